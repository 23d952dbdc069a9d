//! Weights that are floats: dots with f32 activations, and conversion. The three types differ in how they load.

use std::arch::x86_64::*;

use super::simd::{horizontal_sum, load_f32, load128, load256, prefetch_behind, store_f32};

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot_f32(rows: &[u8], row_bytes: usize, x: &[f32], n_columns: usize, out: &mut [f32]) {
    dot_rows::<32>(rows, row_bytes, x, n_columns, out, |bytes| {
        _mm256_castsi256_ps(load256::<0, _>(bytes))
    });
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot_f16(rows: &[u8], row_bytes: usize, x: &[f32], n_columns: usize, out: &mut [f32]) {
    dot_rows::<16>(rows, row_bytes, x, n_columns, out, |bytes| {
        _mm256_cvtph_ps(load128::<0, _>(bytes))
    });
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot_bf16(
    rows: &[u8],
    row_bytes: usize,
    x: &[f32],
    n_columns: usize,
    out: &mut [f32],
) {
    dot_rows::<16>(rows, row_bytes, x, n_columns, out, |bytes| {
        widen_bf16(bytes)
    });
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unpack_f16(blocks: &[u8], out: &mut [f32]) {
    unpack::<16>(blocks, out, |bytes| _mm256_cvtph_ps(load128::<0, _>(bytes)));
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unpack_bf16(blocks: &[u8], out: &mut [f32]) {
    unpack::<16>(blocks, out, |bytes| widen_bf16(bytes));
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn widen_bf16(bytes: &[u8; 16]) -> __m256 {
    let wide = _mm256_cvtepu16_epi32(load128::<0, _>(bytes));
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
}

/// `BYTES` bytes are 8 weights.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_rows<const BYTES: usize>(
    rows: &[u8],
    row_bytes: usize,
    x: &[f32],
    n_columns: usize,
    out: &mut [f32],
    load: impl Fn(&[u8; BYTES]) -> __m256 + Copy,
) {
    let row_len = x.len() / n_columns;
    let n_rows = out.len() / n_columns;
    assert!(
        x.len() == n_columns * row_len && row_bytes * 8 == row_len * BYTES,
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
        let mut c = 0;
        // Eight of the sixteen registers are accumulators.
        while c + 1 < n_columns {
            let [first, second] = dot(row, [column(c), column(c + 1)], load);
            out[c * n_rows + r] = first;
            out[(c + 1) * n_rows + r] = second;
            c += 2;
        }
        if c < n_columns {
            [out[c * n_rows + r]] = dot(row, [column(c)], load);
        }
    }
}

/// A row times `C` columns, in four sums a column so that the additions do not wait for each other.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot<const BYTES: usize, const C: usize>(
    row: &[u8],
    x: [&[f32]; C],
    load: impl Fn(&[u8; BYTES]) -> __m256 + Copy,
) -> [f32; C] {
    let (weights, tail) = row.as_chunks::<BYTES>();
    let mut acc = [[_mm256_setzero_ps(); 4]; C];
    let mut columns = [&[] as &[[f32; 8]]; C];
    for (column, x) in columns.iter_mut().zip(x) {
        *column = &x.as_chunks::<8>().0[..weights.len()];
    }
    let (fours, _) = weights.as_chunks::<4>();
    for (i, four) in fours.iter().enumerate() {
        prefetch_behind(four);
        for j in 0..4 {
            let w = load(&four[j]);
            for c in 0..C {
                acc[c][j] = _mm256_fmadd_ps(w, load_f32(&columns[c][4 * i + j]), acc[c][j]);
            }
        }
    }
    for i in fours.len() * 4..weights.len() {
        let w = load(&weights[i]);
        for c in 0..C {
            acc[c][0] = _mm256_fmadd_ps(w, load_f32(&columns[c][i]), acc[c][0]);
        }
    }
    if !tail.is_empty() {
        let mut padded = [0; BYTES];
        padded[..tail.len()].copy_from_slice(tail);
        let w = load(&padded);
        for c in 0..C {
            let rest = &x[c][weights.len() * 8..];
            let mut padded = [0.0; 8];
            padded[..rest.len()].copy_from_slice(rest);
            acc[c][0] = _mm256_fmadd_ps(w, load_f32(&padded), acc[c][0]);
        }
    }
    let mut results = [0.0; C];
    for (result, acc) in results.iter_mut().zip(acc) {
        *result = horizontal_sum(_mm256_add_ps(
            _mm256_add_ps(acc[0], acc[1]),
            _mm256_add_ps(acc[2], acc[3]),
        ));
    }
    results
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn unpack<const BYTES: usize>(src: &[u8], dst: &mut [f32], load: impl Fn(&[u8; BYTES]) -> __m256) {
    let ((src, tail), (dst, dst_tail)) = (src.as_chunks::<BYTES>(), dst.as_chunks_mut::<8>());
    assert!(
        src.len() == dst.len() && tail.len() * 8 == dst_tail.len() * BYTES,
        "a destination of the source's size"
    );
    for (src, dst) in src.iter().zip(dst) {
        store_f32(dst, load(src));
    }
    if !tail.is_empty() {
        let mut padded = [0; BYTES];
        padded[..tail.len()].copy_from_slice(tail);
        let mut values = [0.0; 8];
        store_f32(&mut values, load(&padded));
        dst_tail.copy_from_slice(&values[..dst_tail.len()]);
    }
}
