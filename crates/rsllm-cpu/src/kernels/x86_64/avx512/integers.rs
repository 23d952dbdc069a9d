//! The prefill product on integers: rows of weights times a panel of 32 tokens, and how values become integers.

use std::arch::x86_64::*;

use super::gemm::COLUMNS;
use super::simd::{load_f32, load512, store_f32, store256};
use super::to_integers;
use crate::kernels::{Integers, SCALED_LEN, ScaledRow};

pub(super) const INTEGERS: Integers = Integers {
    quantize,
    unpack: to_integers::of_type,
    gemm,
};

/// Rows of a tile: as of the product on f32.
const ROWS: usize = 12;

/// Tokens of a panel, a pair of values each.
type Pairs = [[i16; 2]; COLUMNS];

/// From one panel of tokens to the next, which lies in L2 when its turn comes.
const PANEL_BYTES: usize = SCALED_LEN / 2 * size_of::<Pairs>();

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn gemm(a: &[ScaledRow], part: usize, b: &[i16], b_scales: &[f32], c: &mut [f32], add: bool) {
    let (b, rest) = b.as_chunks::<2>().0.as_chunks::<COLUMNS>();
    let (c, c_rest) = c.as_chunks_mut::<COLUMNS>();
    let b_scales: &[f32; COLUMNS] = b_scales.try_into().expect("one for each token");
    assert!(
        rest.is_empty() && c_rest.is_empty() && a.len() == c.len(),
        "rows and panel of the same depth"
    );
    let mut first = 0;
    let (tiles, c) = c.as_chunks_mut::<ROWS>();
    for tile in tiles {
        multiply(&a[first..], part, b, b_scales, tile, add);
        first += ROWS;
    }
    let (tiles, c) = c.as_chunks_mut::<4>();
    for tile in tiles {
        multiply(&a[first..], part, b, b_scales, tile, add);
        first += 4;
    }
    for row in c {
        let tile = std::array::from_mut(row);
        multiply(&a[first..], part, b, b_scales, tile, add);
        first += 1;
    }
}

/// The first `R` rows of `a`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn multiply<const R: usize>(
    a: &[ScaledRow],
    part: usize,
    b: &[Pairs],
    b_scales: &[f32; COLUMNS],
    c: &mut [[f32; COLUMNS]; R],
    add: bool,
) {
    let n_pairs = b.len();
    let mut rows = [&[] as &[[i16; 2]]; R];
    for (r, row) in rows.iter_mut().enumerate() {
        *row = &a[r].q[part].as_chunks().0[..n_pairs];
    }
    for c in c.iter() {
        prefetch::<0, _>(c);
    }
    let mut acc = [[_mm512_setzero_si512(); 2]; R];
    for (i, b) in b.iter().enumerate() {
        prefetch::<PANEL_BYTES, _>(b);
        let x = [load512::<0, _>(b), load512::<64, _>(b)];
        for r in 0..R {
            let weights = _mm512_set1_epi32(bytemuck::cast(rows[r][i]));
            acc[r][0] = _mm512_dpwssd_epi32(acc[r][0], weights, x[0]);
            acc[r][1] = _mm512_dpwssd_epi32(acc[r][1], weights, x[1]);
        }
    }
    let (b_scales, _) = b_scales.as_chunks::<16>();
    let b_scales = [load_f32(&b_scales[0]), load_f32(&b_scales[1])];
    // By places known here, or the sums leave their registers for memory, to be walked over there.
    for r in 0..R {
        let row_scale = _mm512_set1_ps(a[r].scales[part]);
        let (halves, _) = c[r].as_chunks_mut::<16>();
        for h in 0..2 {
            let scales = _mm512_mul_ps(row_scale, b_scales[h]);
            let sums = _mm512_cvtepi32_ps(acc[r][h]);
            let sum = if add {
                _mm512_fmadd_ps(sums, scales, load_f32(&halves[h]))
            } else {
                _mm512_mul_ps(sums, scales)
            };
            store_f32(&mut halves[h], sum);
        }
    }
}

/// Asks for every cache line of what lies `AHEAD` bytes behind `src`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
#[allow(
    unused_unsafe,
    reason = "later versions of Rust than the oldest supported one declare prefetches safe"
)]
fn prefetch<const AHEAD: usize, T>(src: &T) {
    let start = std::ptr::from_ref(src).cast::<i8>().wrapping_add(AHEAD);
    for line in (0..size_of::<T>()).step_by(64) {
        // SAFETY: a prefetch reads nothing; an address outside the panels, or unmapped, has no effect.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line)) };
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn quantize(src: &[f32], limit: f32, dst: &mut [i16]) -> f32 {
    let (src, rest) = src.as_chunks::<16>();
    let (dst, dst_rest) = dst.as_chunks_mut::<16>();
    assert!(
        rest.is_empty()
            && dst_rest.is_empty()
            && src.len() == dst.len()
            && src.len() <= SCALED_LEN / 16,
        "equal lengths"
    );
    // As integers, in whose order those that are no numbers come last.
    let mut most = _mm512_setzero_si512();
    for src in src {
        let magnitudes = _mm512_castps_si512(_mm512_abs_ps(load_f32(src)));
        most = _mm512_max_epi32(most, magnitudes);
    }
    let most = f32::from_bits(_mm512_reduce_max_epi32(most) as u32);
    let (scale, factor) = Integers::scale(most, limit);
    let factor = _mm512_set1_ps(factor);
    for (src, dst) in src.iter().zip(dst) {
        let values = _mm512_cvtps_epi32(_mm512_mul_ps(load_f32(src), factor));
        store256(dst, _mm512_cvtsepi32_epi16(values));
    }
    scale
}
