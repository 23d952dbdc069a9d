//! The inner product of the blocked matrix product: rows of weights times a panel of 32 tokens.

use std::arch::x86_64::*;

use super::simd::{load_f32, store_f32};

/// Tokens of a panel: two vectors.
pub(super) const COLUMNS: usize = 32;

/// Rows of a tile. Its 24 accumulators, the two vectors of the panel and a weight fit the 32 registers, and the 24
/// independent chains cover the latency of two multiply-adds a cycle three times over.
const ROWS: usize = 12;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn gemm(a: &[f32], b: &[f32], c: &mut [f32]) {
    let (b, rest) = b.as_chunks::<COLUMNS>();
    let (c, c_rest) = c.as_chunks_mut::<COLUMNS>();
    let k = b.len();
    assert!(
        rest.is_empty() && c_rest.is_empty() && a.len() == c.len() * k,
        "rows and panel of the same depth"
    );
    let (tiles, c) = c.as_chunks_mut::<ROWS>();
    let (a, a_rest) = a.split_at(tiles.len() * ROWS * k);
    for (i, tile) in tiles.iter_mut().enumerate() {
        multiply(&a[i * ROWS * k..][..ROWS * k], b, tile);
    }
    let (tiles, c) = c.as_chunks_mut::<4>();
    let (a, a_rest) = a_rest.split_at(tiles.len() * 4 * k);
    for (i, tile) in tiles.iter_mut().enumerate() {
        multiply(&a[i * 4 * k..][..4 * k], b, tile);
    }
    for (i, row) in c.iter_mut().enumerate() {
        multiply(&a_rest[i * k..][..k], b, std::array::from_mut(row));
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn multiply<const R: usize>(a: &[f32], b: &[[f32; COLUMNS]], c: &mut [[f32; COLUMNS]; R]) {
    let k = b.len();
    let mut rows = [&[] as &[f32]; R];
    for (r, row) in rows.iter_mut().enumerate() {
        *row = &a[r * k..][..k];
    }
    let mut acc = [[_mm512_setzero_ps(); 2]; R];
    for (acc, c) in acc.iter_mut().zip(c.iter()) {
        let (halves, _) = c.as_chunks::<16>();
        *acc = [load_f32(&halves[0]), load_f32(&halves[1])];
    }
    for (i, b) in b.iter().enumerate() {
        let (halves, _) = b.as_chunks::<16>();
        let x = [load_f32(&halves[0]), load_f32(&halves[1])];
        for r in 0..R {
            let weight = _mm512_set1_ps(rows[r][i]);
            acc[r][0] = _mm512_fmadd_ps(weight, x[0], acc[r][0]);
            acc[r][1] = _mm512_fmadd_ps(weight, x[1], acc[r][1]);
        }
    }
    for (acc, c) in acc.iter().zip(c) {
        let (halves, _) = c.as_chunks_mut::<16>();
        store_f32(&mut halves[0], acc[0]);
        store_f32(&mut halves[1], acc[1]);
    }
}

/// As [`gemm`], with `a` `[k, n_rows]`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn gemm_transposed(a: &[f32], b: &[f32], c: &mut [f32]) {
    let (b, rest) = b.as_chunks::<COLUMNS>();
    let (c, c_rest) = c.as_chunks_mut::<COLUMNS>();
    let n_rows = c.len();
    assert!(
        rest.is_empty() && c_rest.is_empty() && a.len() == n_rows * b.len(),
        "rows and panel of the same depth"
    );
    if b.is_empty() {
        return;
    }
    let mut first = 0;
    let (tiles, c) = c.as_chunks_mut::<ROWS>();
    for tile in tiles {
        multiply_transposed(&a[first..], n_rows, b, tile);
        first += ROWS;
    }
    let (tiles, c) = c.as_chunks_mut::<4>();
    for tile in tiles {
        multiply_transposed(&a[first..], n_rows, b, tile);
        first += 4;
    }
    for row in c {
        multiply_transposed(&a[first..], n_rows, b, std::array::from_mut(row));
        first += 1;
    }
}

/// `a` begins with the first of `R` columns of `[k, n_rows]`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn multiply_transposed<const R: usize>(
    a: &[f32],
    n_rows: usize,
    b: &[[f32; COLUMNS]],
    c: &mut [[f32; COLUMNS]; R],
) {
    let mut acc = [[_mm512_setzero_ps(); 2]; R];
    for (acc, c) in acc.iter_mut().zip(c.iter()) {
        let (halves, _) = c.as_chunks::<16>();
        *acc = [load_f32(&halves[0]), load_f32(&halves[1])];
    }
    for (a, b) in a.chunks(n_rows).zip(b) {
        let weights: &[f32; R] = a.first_chunk().expect("the columns lie within each row");
        let (halves, _) = b.as_chunks::<16>();
        let x = [load_f32(&halves[0]), load_f32(&halves[1])];
        for r in 0..R {
            let weight = _mm512_set1_ps(weights[r]);
            acc[r][0] = _mm512_fmadd_ps(weight, x[0], acc[r][0]);
            acc[r][1] = _mm512_fmadd_ps(weight, x[1], acc[r][1]);
        }
    }
    for (acc, c) in acc.iter().zip(c) {
        let (halves, _) = c.as_chunks_mut::<16>();
        store_f32(&mut halves[0], acc[0]);
        store_f32(&mut halves[1], acc[1]);
    }
}
