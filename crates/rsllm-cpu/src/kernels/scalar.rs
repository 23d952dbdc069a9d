//! The portable table, wired to rsllm-quant: the oracle for every other.

use rsllm_quant::{
    ActivationBlock, GgmlType, dequantize, quantize_activations, vec_dot, vec_dot_f32,
};

use super::{Kernels, elementwise};
use crate::isa::Isa;

/// Tokens a call of the portable product works on.
const GEMM_COLUMNS: usize = 8;

pub(crate) const SCALAR: Kernels = Kernels {
    isa: Isa::Scalar,
    dot_q4_0: |rows, row_bytes, x, n, out, _| dot(GgmlType::Q4_0, rows, row_bytes, x, n, out),
    dot_q4_1: |rows, row_bytes, x, n, out, _| dot(GgmlType::Q4_1, rows, row_bytes, x, n, out),
    dot_q5_0: |rows, row_bytes, x, n, out, _| dot(GgmlType::Q5_0, rows, row_bytes, x, n, out),
    dot_q5_1: |rows, row_bytes, x, n, out, _| dot(GgmlType::Q5_1, rows, row_bytes, x, n, out),
    dot_q8_0: |rows, row_bytes, x, n, out, _| dot(GgmlType::Q8_0, rows, row_bytes, x, n, out),
    dot_q2_k: |rows, row_bytes, x, n, out, _| dot(GgmlType::Q2_K, rows, row_bytes, x, n, out),
    dot_q3_k: |rows, row_bytes, x, n, out, _| dot(GgmlType::Q3_K, rows, row_bytes, x, n, out),
    dot_q4_k: |rows, row_bytes, x, n, out, _| dot(GgmlType::Q4_K, rows, row_bytes, x, n, out),
    dot_q5_k: |rows, row_bytes, x, n, out, _| dot(GgmlType::Q5_K, rows, row_bytes, x, n, out),
    dot_q6_k: |rows, row_bytes, x, n, out, _| dot(GgmlType::Q6_K, rows, row_bytes, x, n, out),
    dot_f32: |rows, row_bytes, x, n, out| dot_f32(GgmlType::F32, rows, row_bytes, x, n, out),
    dot_f16: |rows, row_bytes, x, n, out| dot_f32(GgmlType::F16, rows, row_bytes, x, n, out),
    dot_bf16: |rows, row_bytes, x, n, out| dot_f32(GgmlType::BF16, rows, row_bytes, x, n, out),
    unpack_f32: |blocks, out| unpack(GgmlType::F32, blocks, out),
    unpack_f16: |blocks, out| unpack(GgmlType::F16, blocks, out),
    unpack_bf16: |blocks, out| unpack(GgmlType::BF16, blocks, out),
    unpack_q4_0: |blocks, out| unpack(GgmlType::Q4_0, blocks, out),
    unpack_q4_1: |blocks, out| unpack(GgmlType::Q4_1, blocks, out),
    unpack_q5_0: |blocks, out| unpack(GgmlType::Q5_0, blocks, out),
    unpack_q5_1: |blocks, out| unpack(GgmlType::Q5_1, blocks, out),
    unpack_q8_0: |blocks, out| unpack(GgmlType::Q8_0, blocks, out),
    unpack_q2_k: |blocks, out| unpack(GgmlType::Q2_K, blocks, out),
    unpack_q3_k: |blocks, out| unpack(GgmlType::Q3_K, blocks, out),
    unpack_q4_k: |blocks, out| unpack(GgmlType::Q4_K, blocks, out),
    unpack_q5_k: |blocks, out| unpack(GgmlType::Q5_K, blocks, out),
    unpack_q6_k: |blocks, out| unpack(GgmlType::Q6_K, blocks, out),
    quantize_activations,
    gemm_columns: GEMM_COLUMNS,
    gemm,
    gemm_transposed,
    integers: None,
    tiles: None,
    attend_f32: None,
    attend_f16: None,
    attend_bf16: None,
    elementwise: elementwise::SCALAR,
};

fn dot(
    ty: GgmlType,
    rows: &[u8],
    row_bytes: usize,
    x: &[ActivationBlock],
    n_columns: usize,
    out: &mut [f32],
) {
    let column_blocks = x.len() / n_columns;
    let n_rows = out.len() / n_columns;
    for (column, out) in x
        .chunks_exact(column_blocks)
        .zip(out.chunks_exact_mut(n_rows))
    {
        for (row, y) in rows.chunks_exact(row_bytes).zip(out) {
            *y = vec_dot(ty, row, column);
        }
    }
}

fn dot_f32(
    ty: GgmlType,
    rows: &[u8],
    row_bytes: usize,
    x: &[f32],
    n_columns: usize,
    out: &mut [f32],
) {
    let row_len = x.len() / n_columns;
    let n_rows = out.len() / n_columns;
    for (column, out) in x.chunks_exact(row_len).zip(out.chunks_exact_mut(n_rows)) {
        for (row, y) in rows.chunks_exact(row_bytes).zip(out) {
            *y = vec_dot_f32(ty, row, column);
        }
    }
}

fn unpack(ty: GgmlType, blocks: &[u8], out: &mut [f32]) {
    dequantize(ty, blocks, out)
        .expect("the caller passes whole blocks and a destination of their size");
}

fn gemm(a: &[f32], b: &[f32], c: &mut [f32]) {
    let k = b.len() / GEMM_COLUMNS;
    if k == 0 {
        return;
    }
    for (a_row, c_row) in a.chunks_exact(k).zip(c.chunks_exact_mut(GEMM_COLUMNS)) {
        for (&weight, b_row) in a_row.iter().zip(b.chunks_exact(GEMM_COLUMNS)) {
            for (y, &x) in c_row.iter_mut().zip(b_row) {
                *y += weight * x;
            }
        }
    }
}

fn gemm_transposed(a: &[f32], b: &[f32], c: &mut [f32]) {
    let n_rows = c.len() / GEMM_COLUMNS;
    if n_rows == 0 {
        return;
    }
    for (a_row, b_row) in a.chunks_exact(n_rows).zip(b.chunks_exact(GEMM_COLUMNS)) {
        for (&weight, c_row) in a_row.iter().zip(c.chunks_exact_mut(GEMM_COLUMNS)) {
            for (y, &x) in c_row.iter_mut().zip(b_row) {
                *y += weight * x;
            }
        }
    }
}
