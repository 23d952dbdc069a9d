//! Attention of one query token over part of a page, for all query heads that share a K/V head, straight from packed rows.
//!
//! Keys: sixteen positions at a time lie in sixteen accumulators, which one reduction turns into a vector of scores; a
//! horizontal sum a position would cost more than its products. Values: each row is converted once for up to four heads.
//! A head's numbers do not depend on the other heads, nor on where a page is cut.

use std::arch::x86_64::*;

use super::floats::widen_bf16;
use super::simd::{load_f32, load256, load512, prefetch_row, store_f32};
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

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn scores_f32(rows: &[u8], ahead: &[u8], q: &[f32], group: usize, out: &mut [f32]) {
    scores::<64>(rows, ahead, q, group, out, |bytes| {
        _mm512_castsi512_ps(load512::<0, _>(bytes))
    });
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn scores_f16(rows: &[u8], ahead: &[u8], q: &[f32], group: usize, out: &mut [f32]) {
    scores::<32>(rows, ahead, q, group, out, |bytes| {
        _mm512_cvtph_ps(load256::<0, _>(bytes))
    });
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn scores_bf16(rows: &[u8], ahead: &[u8], q: &[f32], group: usize, out: &mut [f32]) {
    scores::<32>(rows, ahead, q, group, out, |bytes| widen_bf16(bytes));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn values_f32(rows: &[u8], ahead: &[u8], weights: &[f32], group: usize, acc: &mut [f32]) {
    values::<64>(rows, ahead, weights, group, acc, |bytes| {
        _mm512_castsi512_ps(load512::<0, _>(bytes))
    });
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn values_f16(rows: &[u8], ahead: &[u8], weights: &[f32], group: usize, acc: &mut [f32]) {
    values::<32>(rows, ahead, weights, group, acc, |bytes| {
        _mm512_cvtph_ps(load256::<0, _>(bytes))
    });
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn values_bf16(rows: &[u8], ahead: &[u8], weights: &[f32], group: usize, acc: &mut [f32]) {
    values::<32>(rows, ahead, weights, group, acc, |bytes| widen_bf16(bytes));
}

/// Positions of a block.
const POSITIONS: usize = 16;
/// Vectors of the longest head.
const MAX_VECTORS: usize = Attend::MAX_HEAD_DIM / 16;

/// `BYTES` bytes are 16 values.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn scores<const BYTES: usize>(
    rows: &[u8],
    ahead: &[u8],
    q: &[f32],
    group: usize,
    out: &mut [f32],
    load: impl Fn(&[u8; BYTES]) -> __m512 + Copy,
) {
    let (q, rest) = q.as_chunks::<16>();
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
    // Heads of 64 values are the usual ones, and clearing room for the longest would take as long as their scores.
    if n_vectors <= 4 {
        scores_in::<BYTES, { 4 * POSITIONS }>(rows, ahead, q, n_vectors, out, load);
    } else {
        scores_in::<BYTES, { MAX_VECTORS * POSITIONS }>(rows, ahead, q, n_vectors, out, load);
    }
}

/// [`scores`] of heads of `n_vectors`, with room for so many vectors of sixteen positions as `ROOM` says.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn scores_in<const BYTES: usize, const ROOM: usize>(
    rows: &[[u8; BYTES]],
    ahead: &[u8],
    q: &[[f32; 16]],
    n_vectors: usize,
    out: &mut [f32],
    load: impl Fn(&[u8; BYTES]) -> __m512 + Copy,
) {
    let n = rows.len() / n_vectors;
    let row_bytes = n_vectors * BYTES;
    let mut keys = [[0.0f32; 16]; ROOM];
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
            let mut sums = [_mm512_setzero_ps(); POSITIONS];
            for (q, keys) in q.iter().zip(keys.as_chunks::<POSITIONS>().0) {
                let q = load_f32(q);
                for (sum, key) in sums.iter_mut().zip(keys) {
                    *sum = _mm512_fmadd_ps(load_f32(key), q, *sum);
                }
            }
            let mut scores = [0.0; POSITIONS];
            store_f32(&mut scores, sum_each(&sums));
            out[first..first + count].copy_from_slice(&scores[..count]);
        }
        first += count;
    }
}

/// The sum of all lanes of each of sixteen vectors, in a fixed order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn sum_each(v: &[__m512; 16]) -> __m512 {
    let mut pairs = [_mm512_setzero_ps(); 8];
    for (i, pair) in pairs.iter_mut().enumerate() {
        let (a, b) = (v[2 * i], v[2 * i + 1]);
        *pair = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    }
    let mut fours = [_mm512_setzero_ps(); 4];
    for (i, four) in fours.iter_mut().enumerate() {
        let (a, b) = (
            _mm512_castps_pd(pairs[2 * i]),
            _mm512_castps_pd(pairs[2 * i + 1]),
        );
        *four = _mm512_add_ps(
            _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
            _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)),
        );
    }
    quarters(quarters(fours[0], fours[1]), quarters(fours[2], fours[3]))
}

/// Quarters 0 and 1, and 2 and 3, of two vectors added: two quarters each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn quarters(a: __m512, b: __m512) -> __m512 {
    _mm512_add_ps(
        _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b),
        _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b),
    )
}

/// Heads that share a conversion of the values.
const HEADS: usize = 4;
/// Vectors of a row that are accumulated at a time.
const WIDE: usize = 4;

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn values<const BYTES: usize>(
    rows: &[u8],
    ahead: &[u8],
    weights: &[f32],
    group: usize,
    acc: &mut [f32],
    load: impl Fn(&[u8; BYTES]) -> __m512 + Copy,
) {
    let (acc, rest) = acc.as_chunks_mut::<16>();
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
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn add<const H: usize>(
        &self,
        acc: &mut [[f32; 16]],
        load: impl Fn(&[u8; BYTES]) -> __m512 + Copy,
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
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn columns<const H: usize, const W: usize>(
        &self,
        acc: &mut [[f32; 16]],
        first: usize,
        load: impl Fn(&[u8; BYTES]) -> __m512 + Copy,
    ) {
        let n = self.weights.len() / H;
        let mut weights = [&[] as &[f32]; H];
        let mut sums = [[_mm512_setzero_ps(); W]; H];
        for h in 0..H {
            weights[h] = &self.weights[h * n..][..n];
            for j in 0..W {
                sums[h][j] = load_f32(&acc[h * self.n_vectors + first + j]);
            }
        }
        for (position, row) in self.rows.chunks_exact(self.n_vectors).enumerate().take(n) {
            let row = &row[first..][..W];
            let mut value = [_mm512_setzero_ps(); W];
            for j in 0..W {
                value[j] = load(&row[j]);
            }
            for h in 0..H {
                let weight = _mm512_set1_ps(weights[h][position]);
                for j in 0..W {
                    sums[h][j] = _mm512_fmadd_ps(weight, value[j], sums[h][j]);
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
