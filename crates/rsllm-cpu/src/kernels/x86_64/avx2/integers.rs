//! The prefill product on integers: rows of weights times a panel of 16 tokens, and how values become integers.

use std::arch::x86_64::*;

use super::gemm::COLUMNS;
use super::simd::{load_f32, load256, store_f32, store256};
use crate::kernels::{Integers, SCALED_LEN, ScaledRow};

pub(super) const INTEGERS: Integers = Integers {
    quantize,
    unpack: |_| None,
    gemm,
};

/// Rows of a tile. Its eight accumulators, the two vectors of the panel, a weight and products fit the 16 registers.
const ROWS: usize = 4;

/// Tokens of a panel, a pair of values each.
type Pairs = [[i16; 2]; COLUMNS];

#[target_feature(enable = "avx2,fma,f16c")]
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
    for row in c {
        let tile = std::array::from_mut(row);
        multiply(&a[first..], part, b, b_scales, tile, add);
        first += 1;
    }
}

/// The first `R` rows of `a`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
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
    let mut acc = [[_mm256_setzero_si256(); 2]; R];
    for (i, b) in b.iter().enumerate() {
        let x = [load256::<0, _>(b), load256::<32, _>(b)];
        for r in 0..R {
            let weights = _mm256_set1_epi32(bytemuck::cast(rows[r][i]));
            acc[r][0] = _mm256_add_epi32(acc[r][0], _mm256_madd_epi16(weights, x[0]));
            acc[r][1] = _mm256_add_epi32(acc[r][1], _mm256_madd_epi16(weights, x[1]));
        }
    }
    let (b_scales, _) = b_scales.as_chunks::<8>();
    let b_scales = [load_f32(&b_scales[0]), load_f32(&b_scales[1])];
    // By places known here, or the sums leave their registers for memory, to be walked over there.
    for r in 0..R {
        let row_scale = _mm256_set1_ps(a[r].scales[part]);
        let (halves, _) = c[r].as_chunks_mut::<8>();
        for h in 0..2 {
            let scales = _mm256_mul_ps(row_scale, b_scales[h]);
            let sums = _mm256_cvtepi32_ps(acc[r][h]);
            let sum = if add {
                _mm256_fmadd_ps(sums, scales, load_f32(&halves[h]))
            } else {
                _mm256_mul_ps(sums, scales)
            };
            store_f32(&mut halves[h], sum);
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
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
    let sign = _mm256_set1_ps(-0.0);
    let mut most = _mm256_setzero_si256();
    for src in src.as_flattened().as_chunks().0 {
        let magnitudes = _mm256_castps_si256(_mm256_andnot_ps(sign, load_f32(src)));
        most = _mm256_max_epi32(most, magnitudes);
    }
    let four = _mm_max_epi32(
        _mm256_castsi256_si128(most),
        _mm256_extracti128_si256::<1>(most),
    );
    let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b10_11>(four));
    let one = _mm_max_epi32(two, _mm_shuffle_epi32::<0b01>(two));
    let most = f32::from_bits(_mm_cvtsi128_si32(one) as u32);
    let (scale, factor) = Integers::scale(most, limit);
    let factor = _mm256_set1_ps(factor);
    for (src, dst) in src.iter().zip(dst) {
        let (halves, _) = src.as_chunks::<8>();
        let low = _mm256_cvtps_epi32(_mm256_mul_ps(load_f32(&halves[0]), factor));
        let high = _mm256_cvtps_epi32(_mm256_mul_ps(load_f32(&halves[1]), factor));
        // Packing works within halves of the vectors.
        let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(low, high));
        store256(dst, packed);
    }
    scale
}
