//! Weights that are floats: dots with f32 activations, and conversion. The three types differ in how they load.

use std::arch::x86_64::*;

use super::simd::{horizontal_sum, load_f32, load256, load512, prefetch_behind, store_f32};

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn dot_f32(rows: &[u8], row_bytes: usize, x: &[f32], n_columns: usize, out: &mut [f32]) {
    dot_rows::<64>(rows, row_bytes, x, n_columns, out, |bytes| {
        _mm512_castsi512_ps(load512::<0, _>(bytes))
    });
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn dot_f16(rows: &[u8], row_bytes: usize, x: &[f32], n_columns: usize, out: &mut [f32]) {
    dot_rows::<32>(rows, row_bytes, x, n_columns, out, |bytes| {
        _mm512_cvtph_ps(load256::<0, _>(bytes))
    });
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn dot_bf16(
    rows: &[u8],
    row_bytes: usize,
    x: &[f32],
    n_columns: usize,
    out: &mut [f32],
) {
    dot_rows::<32>(rows, row_bytes, x, n_columns, out, |bytes| {
        widen_bf16(bytes)
    });
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn unpack_f16(blocks: &[u8], out: &mut [f32]) {
    unpack::<32>(blocks, out, |bytes| _mm512_cvtph_ps(load256::<0, _>(bytes)));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn unpack_bf16(blocks: &[u8], out: &mut [f32]) {
    unpack::<32>(blocks, out, |bytes| widen_bf16(bytes));
}

/// Calls `put` with the place and the values of each sixteen; the last ones are filled up with zeros.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(in crate::kernels::x86_64) fn each_bf16(row: &[u8], put: impl FnMut(usize, __m512)) {
    each::<32>(row, |bytes| widen_bf16(bytes), put);
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn each<const BYTES: usize>(
    row: &[u8],
    load: impl Fn(&[u8; BYTES]) -> __m512,
    mut put: impl FnMut(usize, __m512),
) {
    let (row, tail) = row.as_chunks::<BYTES>();
    for (i, bytes) in row.iter().enumerate() {
        put(16 * i, load(bytes));
    }
    if !tail.is_empty() {
        let mut padded = [0; BYTES];
        padded[..tail.len()].copy_from_slice(tail);
        put(16 * row.len(), load(&padded));
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn widen_bf16(bytes: &[u8; 32]) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(load256::<
        0,
        _,
    >(bytes))))
}

/// `BYTES` bytes are 16 weights.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn dot_rows<const BYTES: usize>(
    rows: &[u8],
    row_bytes: usize,
    x: &[f32],
    n_columns: usize,
    out: &mut [f32],
    load: impl Fn(&[u8; BYTES]) -> __m512 + Copy,
) {
    let row_len = x.len() / n_columns;
    let n_rows = out.len() / n_columns;
    assert!(
        x.len() == n_columns * row_len && row_bytes * 16 == row_len * BYTES,
        "whole columns as long as a row"
    );
    assert!(
        rows.len() == n_rows * row_bytes && out.len() == n_rows * n_columns,
        "whole rows, a result each"
    );
    if row_len == 0 {
        out.fill(0.0);
        return;
    }
    let column = |c: usize| &x[c * row_len..][..row_len];
    for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
        let mut put = |c: usize, dots: &[f32]| {
            for (i, dot) in dots.iter().enumerate() {
                out[(c + i) * n_rows + r] = *dot;
            }
        };
        let mut c = 0;
        while c < n_columns {
            c += match n_columns - c {
                1 => {
                    put(c, &dot(row, [column(c)], load));
                    1
                }
                2 | 3 => {
                    put(c, &dot(row, [column(c), column(c + 1)], load));
                    2
                }
                _ => {
                    let four = [column(c), column(c + 1), column(c + 2), column(c + 3)];
                    put(c, &dot(row, four, load));
                    4
                }
            };
        }
    }
}

/// A row times `C` columns, in four sums a column so that the additions do not wait for each other.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn dot<const BYTES: usize, const C: usize>(
    row: &[u8],
    x: [&[f32]; C],
    load: impl Fn(&[u8; BYTES]) -> __m512 + Copy,
) -> [f32; C] {
    let (weights, tail) = row.as_chunks::<BYTES>();
    let mut acc = [[_mm512_setzero_ps(); 4]; C];
    let mut columns = [&[] as &[[f32; 16]]; C];
    for (column, x) in columns.iter_mut().zip(x) {
        *column = &x.as_chunks::<16>().0[..weights.len()];
    }
    let (fours, _) = weights.as_chunks::<4>();
    for (i, four) in fours.iter().enumerate() {
        prefetch_behind(four);
        for j in 0..4 {
            let w = load(&four[j]);
            for c in 0..C {
                acc[c][j] = _mm512_fmadd_ps(w, load_f32(&columns[c][4 * i + j]), acc[c][j]);
            }
        }
    }
    for i in fours.len() * 4..weights.len() {
        let w = load(&weights[i]);
        for c in 0..C {
            acc[c][0] = _mm512_fmadd_ps(w, load_f32(&columns[c][i]), acc[c][0]);
        }
    }
    if !tail.is_empty() {
        let mut padded = [0; BYTES];
        padded[..tail.len()].copy_from_slice(tail);
        let w = load(&padded);
        for c in 0..C {
            let rest = &x[c][weights.len() * 16..];
            let mut padded = [0.0; 16];
            padded[..rest.len()].copy_from_slice(rest);
            acc[c][0] = _mm512_fmadd_ps(w, load_f32(&padded), acc[c][0]);
        }
    }
    let mut results = [0.0; C];
    for (result, acc) in results.iter_mut().zip(acc) {
        *result = horizontal_sum(_mm512_add_ps(
            _mm512_add_ps(acc[0], acc[1]),
            _mm512_add_ps(acc[2], acc[3]),
        ));
    }
    results
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn unpack<const BYTES: usize>(src: &[u8], dst: &mut [f32], load: impl Fn(&[u8; BYTES]) -> __m512) {
    let ((src, tail), (dst, dst_tail)) = (src.as_chunks::<BYTES>(), dst.as_chunks_mut::<16>());
    assert!(
        src.len() == dst.len() && tail.len() * 16 == dst_tail.len() * BYTES,
        "a destination of the source's size"
    );
    for (src, dst) in src.iter().zip(dst) {
        store_f32(dst, load(src));
    }
    if !tail.is_empty() {
        let mut padded = [0; BYTES];
        padded[..tail.len()].copy_from_slice(tail);
        let mut values = [0.0; 16];
        store_f32(&mut values, load(&padded));
        dst_tail.copy_from_slice(&values[..dst_tail.len()]);
    }
}
