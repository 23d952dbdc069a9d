//! Attention of one query token over part of a page, for all query heads that share a K/V head, straight from packed rows.
//!
//! Keys: eight positions at a time lie in eight accumulators, which one reduction turns into a vector of scores; a horizontal
//! sum a position would cost more than its products. Values: each row is converted once for up to four heads.
//! A head's numbers do not depend on the other heads, nor on where a page is cut.

use std::arch::x86_64::*;

use super::floats::widen_bf16;
use super::simd::{load_f32, load128, load256, prefetch_row, store_f32};
use crate::kernels::{Attend, AttendScores, AttendValues};

pub(super) const F32: Attend = Attend {
    scores: scores_f32 as AttendScores,
    values: values_f32 as AttendValues,
};
pub(super) const F16: Attend = Attend {
    scores: scores_f16 as AttendScores,
    values: values_f16 as AttendValues,
};
pub(super) const BF16: Attend = Attend {
    scores: scores_bf16 as AttendScores,
    values: values_bf16 as AttendValues,
};

#[target_feature(enable = "avx2,fma,f16c")]
fn scores_f32(rows: &[u8], ahead: &[u8], q: &[f32], group: usize, out: &mut [f32]) {
    scores::<32>(rows, ahead, q, group, out, |bytes| {
        _mm256_castsi256_ps(load256::<0, _>(bytes))
    });
}

#[target_feature(enable = "avx2,fma,f16c")]
fn scores_f16(rows: &[u8], ahead: &[u8], q: &[f32], group: usize, out: &mut [f32]) {
    scores::<16>(rows, ahead, q, group, out, |bytes| {
        _mm256_cvtph_ps(load128::<0, _>(bytes))
    });
}

#[target_feature(enable = "avx2,fma,f16c")]
fn scores_bf16(rows: &[u8], ahead: &[u8], q: &[f32], group: usize, out: &mut [f32]) {
    scores::<16>(rows, ahead, q, group, out, |bytes| widen_bf16(bytes));
}

#[target_feature(enable = "avx2,fma,f16c")]
fn values_f32(rows: &[u8], ahead: &[u8], weights: &[f32], group: usize, acc: &mut [f32]) {
    values::<32>(rows, ahead, weights, group, acc, |bytes| {
        _mm256_castsi256_ps(load256::<0, _>(bytes))
    });
}

#[target_feature(enable = "avx2,fma,f16c")]
fn values_f16(rows: &[u8], ahead: &[u8], weights: &[f32], group: usize, acc: &mut [f32]) {
    values::<16>(rows, ahead, weights, group, acc, |bytes| {
        _mm256_cvtph_ps(load128::<0, _>(bytes))
    });
}

#[target_feature(enable = "avx2,fma,f16c")]
fn values_bf16(rows: &[u8], ahead: &[u8], weights: &[f32], group: usize, acc: &mut [f32]) {
    values::<16>(rows, ahead, weights, group, acc, |bytes| widen_bf16(bytes));
}

/// Positions of a block.
const POSITIONS: usize = 8;
/// Vectors of the longest head.
const MAX_VECTORS: usize = Attend::MAX_HEAD_DIM / 8;

/// `BYTES` bytes are 8 values.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scores<const BYTES: usize>(
    rows: &[u8],
    ahead: &[u8],
    q: &[f32],
    group: usize,
    out: &mut [f32],
    load: impl Fn(&[u8; BYTES]) -> __m256 + Copy,
) {
    let (q, rest) = q.as_chunks::<8>();
    let n_vectors = q.len() / group;
    let n = out.len() / group;
    let (rows, rows_rest) = rows.as_chunks::<BYTES>();
    assert!(
        rest.is_empty()
            && rows_rest.is_empty()
            && (1..=MAX_VECTORS).contains(&n_vectors)
            && q.len() == group * n_vectors
            && out.len() == group * n
            && rows.len() == n * n_vectors,
        "whole heads of at most {} values",
        Attend::MAX_HEAD_DIM
    );
    let row_bytes = n_vectors * BYTES;
    let mut keys = [[0.0f32; 8]; MAX_VECTORS * POSITIONS];
    let mut first = 0;
    while first < n {
        let count = POSITIONS.min(n - first);
        let keys = &mut keys[..POSITIONS * n_vectors];
        for (position, row) in rows[first * n_vectors..][..count * n_vectors]
            .chunks_exact(n_vectors)
            .enumerate()
        {
            prefetch_row(ahead, (first + position) * row_bytes, row_bytes);
            for (j, bytes) in row.iter().enumerate() {
                store_f32(&mut keys[j * POSITIONS + position], load(bytes));
            }
        }
        for (q, out) in q.chunks_exact(n_vectors).zip(out.chunks_exact_mut(n)) {
            let mut sums = [_mm256_setzero_ps(); POSITIONS];
            for (q, keys) in q.iter().zip(keys.as_chunks::<POSITIONS>().0) {
                let q = load_f32(q);
                for (sum, key) in sums.iter_mut().zip(keys) {
                    *sum = _mm256_fmadd_ps(load_f32(key), q, *sum);
                }
            }
            let mut scores = [0.0; POSITIONS];
            store_f32(&mut scores, sum_each(&sums));
            out[first..first + count].copy_from_slice(&scores[..count]);
        }
        first += count;
    }
}

/// The sum of all lanes of each of eight vectors, in a fixed order.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_each(v: &[__m256; 8]) -> __m256 {
    let fours = |a: usize| {
        _mm256_hadd_ps(
            _mm256_hadd_ps(v[a], v[a + 1]),
            _mm256_hadd_ps(v[a + 2], v[a + 3]),
        )
    };
    let (a, b) = (fours(0), fours(4));
    _mm256_add_ps(
        _mm256_permute2f128_ps::<0x20>(a, b),
        _mm256_permute2f128_ps::<0x31>(a, b),
    )
}

/// Heads that share a conversion of the values.
const HEADS: usize = 4;
/// Vectors of a row that are accumulated at a time.
const WIDE: usize = 2;

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn values<const BYTES: usize>(
    rows: &[u8],
    ahead: &[u8],
    weights: &[f32],
    group: usize,
    acc: &mut [f32],
    load: impl Fn(&[u8; BYTES]) -> __m256 + Copy,
) {
    let (acc, rest) = acc.as_chunks_mut::<8>();
    let n_vectors = acc.len() / group;
    let n = weights.len() / group;
    let (rows, rows_rest) = rows.as_chunks::<BYTES>();
    assert!(
        rest.is_empty()
            && rows_rest.is_empty()
            && acc.len() == group * n_vectors
            && weights.len() == group * n
            && rows.len() == n * n_vectors,
        "whole heads"
    );
    for position in 0..n {
        prefetch_row(ahead, position * n_vectors * BYTES, n_vectors * BYTES);
    }
    let mut head = 0;
    while head < group {
        let heads = HEADS.min(group - head);
        let part = Values {
            rows,
            n_vectors,
            weights: &weights[head * n..(head + heads) * n],
        };
        let acc = &mut acc[head * n_vectors..(head + heads) * n_vectors];
        match heads {
            1 => part.add::<1>(acc, load),
            2 => part.add::<2>(acc, load),
            3 => part.add::<3>(acc, load),
            _ => part.add::<HEADS>(acc, load),
        }
        head += heads;
    }
}

/// Rows of values, and the weights of some heads.
struct Values<'a, const BYTES: usize> {
    /// `[n, n_vectors]`.
    rows: &'a [[u8; BYTES]],
    n_vectors: usize,
    /// `[H, n]`.
    weights: &'a [f32],
}

impl<const BYTES: usize> Values<'_, BYTES> {
    /// `acc` is `[H, n_vectors]`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add<const H: usize>(
        &self,
        acc: &mut [[f32; 8]],
        load: impl Fn(&[u8; BYTES]) -> __m256 + Copy,
    ) {
        let mut j = 0;
        while j + WIDE <= self.n_vectors {
            self.columns::<H, WIDE>(acc, j, load);
            j += WIDE;
        }
        while j < self.n_vectors {
            self.columns::<H, 1>(acc, j, load);
            j += 1;
        }
    }

    /// Vectors `first` to `first + W` of each head.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn columns<const H: usize, const W: usize>(
        &self,
        acc: &mut [[f32; 8]],
        first: usize,
        load: impl Fn(&[u8; BYTES]) -> __m256 + Copy,
    ) {
        let n = self.weights.len() / H;
        let mut weights = [&[] as &[f32]; H];
        let mut sums = [[_mm256_setzero_ps(); W]; H];
        for h in 0..H {
            weights[h] = &self.weights[h * n..][..n];
            for j in 0..W {
                sums[h][j] = load_f32(&acc[h * self.n_vectors + first + j]);
            }
        }
        for (position, row) in self.rows.chunks_exact(self.n_vectors).enumerate().take(n) {
            let row = &row[first..][..W];
            let mut value = [_mm256_setzero_ps(); W];
            for j in 0..W {
                value[j] = load(&row[j]);
            }
            for h in 0..H {
                let weight = _mm256_set1_ps(weights[h][position]);
                for j in 0..W {
                    sums[h][j] = _mm256_fmadd_ps(weight, value[j], sums[h][j]);
                }
            }
        }
        for h in 0..H {
            for j in 0..W {
                store_f32(&mut acc[h * self.n_vectors + first + j], sums[h][j]);
            }
        }
    }
}
