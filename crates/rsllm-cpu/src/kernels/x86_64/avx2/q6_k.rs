//! Q6_K, and the sixteen scales of a block that Q3_K and Q2_K share.

use std::arch::x86_64::*;

use rsllm_quant::{ActivationBlock, BlockQ6K};

use crate::kernels::PreparedColumns;

use super::dot::{Call, Weights, add_groups, dot_rows};
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
    dot_rows(
        call,
        |block| load(block),
        |w, x, sums| add_groups::<true>(w, x, sums),
    );
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unpack(blocks: &[u8], out: &mut [f32]) {
    unpack_units::<BlockQ6K, 0, 0>(blocks, out, |block| values(block));
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load(block: &BlockQ6K) -> Weights {
    let inner = spread_sixteen(_mm256_cvtepi8_epi16(load128::<0, _>(&block.scales)));
    Weights {
        q: q(block),
        inner,
        scales: broadcast_half(block.d),
        minima: _mm256_setzero_ps(),
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn values(block: &BlockQ6K) -> Values {
    let scales = scale_sixteen(broadcast_half(block.d), load128::<0, _>(&block.scales));
    Values {
        q: q(block),
        scales,
        minima: [_mm256_setzero_ps(); 2],
    }
}

/// 256 quants in element order.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q(block: &BlockQ6K) -> [__m256i; 8] {
    let [a, b, c, d] = half(
        load256::<0, _>(&block.ql),
        load256::<32, _>(&block.ql),
        load256::<0, _>(&block.qh),
    );
    let [e, f, g, h] = half(
        load256::<64, _>(&block.ql),
        load256::<96, _>(&block.ql),
        load256::<32, _>(&block.qh),
    );
    [a, b, c, d, e, f, g, h]
}

/// 128 quants, from 64 bytes of low bits and 32 of high bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn half(ql_a: __m256i, ql_b: __m256i, qh: __m256i) -> [__m256i; 4] {
    let quants = |low: __m256i, high: __m256i| {
        let low = _mm256_and_si256(low, _mm256_set1_epi8(15));
        let high = _mm256_and_si256(high, _mm256_set1_epi8(0x30));
        _mm256_sub_epi8(_mm256_or_si256(low, high), _mm256_set1_epi8(32))
    };
    [
        quants(ql_a, _mm256_slli_epi16::<4>(qh)),
        quants(ql_b, _mm256_slli_epi16::<2>(qh)),
        quants(_mm256_srli_epi16::<4>(ql_a), qh),
        quants(_mm256_srli_epi16::<4>(ql_b), _mm256_srli_epi16::<2>(qh)),
    ]
}

/// Sixteen scales as factors of pairs of products: the two of a group in the two halves of its vector.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn spread_sixteen(scales: __m256i) -> [__m256i; 8] {
    let low = _mm256_permute4x64_epi64::<0b01_00_01_00>(scales);
    let high = _mm256_permute4x64_epi64::<0b11_10_11_10>(scales);
    let pick = |scales: __m256i, g: i16| {
        // Bytes 4g and 4g + 1 everywhere in the lower half, 4g + 2 and 4g + 3 in the upper.
        let lower = _mm_set1_epi16(((4 * g + 1) << 8) | (4 * g));
        let upper = _mm_set1_epi16(((4 * g + 3) << 8) | (4 * g + 2));
        _mm256_shuffle_epi8(scales, _mm256_set_m128i(upper, lower))
    };
    [
        pick(low, 0),
        pick(low, 1),
        pick(low, 2),
        pick(low, 3),
        pick(high, 0),
        pick(high, 1),
        pick(high, 2),
        pick(high, 3),
    ]
}

/// Sixteen signed bytes times `factor`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn scale_sixteen(factor: __m256, codes: __m128i) -> [__m256; 2] {
    let low = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
    let high = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(codes)));
    [_mm256_mul_ps(factor, low), _mm256_mul_ps(factor, high)]
}
