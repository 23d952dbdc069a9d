//! Q2_K, and the two-bit codes that Q3_K shares.

use std::arch::x86_64::*;

use rsllm_quant::{ActivationBlock, BlockQ2K};

use crate::kernels::PreparedColumns;

use super::dot::{Call, Sums, Weights, add_groups, dot_rows, lanes_of_group, quants, run_factors};
use super::q6_k::{scale_sixteen, spread_sixteen};
use super::simd::{broadcast_half, load128, load256};
use super::unpack::{Values, unpack_units};

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot(
    rows: &[u8],
    row_bytes: usize,
    x: &[ActivationBlock],
    n_columns: usize,
    out: &mut [f32],
    _: PreparedColumns<'_>,
) {
    let call = Call {
        rows,
        row_bytes,
        x,
        n_columns,
        out,
    };
    dot_rows(call, |block| load(block), |w, x, sums| add(w, x, sums));
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unpack(blocks: &[u8], out: &mut [f32]) {
    unpack_units::<BlockQ2K, 0, -1>(blocks, out, |block| values(block));
}

/// Scales in [`Weights::inner`]'s lower nibbles and minima in its upper ones, `-dmin` in [`Weights::minima`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load(block: &BlockQ2K) -> Weights {
    let packed = spread_sixteen(_mm256_cvtepu8_epi16(load128::<0, _>(&block.scales)));
    let minima = _mm256_sub_ps(_mm256_setzero_ps(), broadcast_half(block.dmin));
    Weights {
        q: two_bits(&block.qs),
        inner: packed,
        scales: broadcast_half(block.d),
        minima,
    }
}

/// The sums of 32 that activations carry are too coarse for minima of 16, so the sums are taken here.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add(w: &Weights, x: &ActivationBlock, mut sums: Sums) -> Sums {
    let minima = run_factors(w.minima, x);
    let mut scales = *w;
    for (g, &q) in quants(x).iter().enumerate() {
        scales.inner[g] = _mm256_and_si256(w.inner[g], _mm256_set1_epi16(15));
        let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
        let products = _mm256_madd_epi16(pairs, _mm256_srli_epi16::<4>(w.inner[g]));
        sums[g % 2] = _mm256_fmadd_ps(
            _mm256_cvtepi32_ps(products),
            lanes_of_group(minima, g),
            sums[g % 2],
        );
    }
    add_groups::<false>(&scales, x, sums)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn values(block: &BlockQ2K) -> Values {
    let packed = load128::<0, _>(&block.scales);
    let low = _mm_set1_epi8(15);
    Values {
        q: two_bits(&block.qs),
        scales: scale_sixteen(broadcast_half(block.d), _mm_and_si128(packed, low)),
        minima: scale_sixteen(
            broadcast_half(block.dmin),
            _mm_and_si128(_mm_srli_epi16::<4>(packed), low),
        ),
    }
}

/// 256 codes in element order.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn two_bits(qs: &[u8; 64]) -> [__m256i; 8] {
    let mask = _mm256_set1_epi8(3);
    let (a, b) = (load256::<0, _>(qs), load256::<32, _>(qs));
    [
        _mm256_and_si256(a, mask),
        _mm256_and_si256(_mm256_srli_epi16::<2>(a), mask),
        _mm256_and_si256(_mm256_srli_epi16::<4>(a), mask),
        _mm256_and_si256(_mm256_srli_epi16::<6>(a), mask),
        _mm256_and_si256(b, mask),
        _mm256_and_si256(_mm256_srli_epi16::<2>(b), mask),
        _mm256_and_si256(_mm256_srli_epi16::<4>(b), mask),
        _mm256_and_si256(_mm256_srli_epi16::<6>(b), mask),
    ]
}
