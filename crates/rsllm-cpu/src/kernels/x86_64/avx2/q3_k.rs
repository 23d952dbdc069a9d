//! Q3_K.

use std::arch::x86_64::*;

use rsllm_quant::{ActivationBlock, BlockQ3K};

use crate::kernels::PreparedColumns;

use super::dot::{Call, Weights, add_groups, dot_rows};
use super::q2_k::two_bits;
use super::q6_k::{scale_sixteen, spread_sixteen};
use super::simd::{broadcast_half, load256};
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
    unpack_units::<BlockQ3K, 0, 0>(blocks, out, |block| values(block));
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load(block: &BlockQ3K) -> Weights {
    let inner = spread_sixteen(_mm256_cvtepi8_epi16(scales(&block.scales)));
    Weights {
        q: q(block),
        inner,
        scales: broadcast_half(block.d),
        minima: _mm256_setzero_ps(),
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn values(block: &BlockQ3K) -> Values {
    let scales = scale_sixteen(broadcast_half(block.d), scales(&block.scales));
    Values {
        q: q(block),
        scales,
        minima: [_mm256_setzero_ps(); 2],
    }
}

/// 256 quants in element order.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q(block: &BlockQ3K) -> [__m256i; 8] {
    let bits = load256::<0, _>(&block.hmask);
    // Bit g of a byte goes to bit 2.
    let high = [
        _mm256_slli_epi16::<2>(bits),
        _mm256_slli_epi16::<1>(bits),
        bits,
        _mm256_srli_epi16::<1>(bits),
        _mm256_srli_epi16::<2>(bits),
        _mm256_srli_epi16::<3>(bits),
        _mm256_srli_epi16::<4>(bits),
        _mm256_srli_epi16::<5>(bits),
    ];
    let mut q = two_bits(&block.qs);
    let four = _mm256_set1_epi8(4);
    for g in 0..8 {
        q[g] = _mm256_sub_epi8(_mm256_or_si256(q[g], _mm256_and_si256(high[g], four)), four);
    }
    q
}

/// The sixteen scales, signed. See `rsllm_quant::q3_k_scales` for the layout.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scales(packed: &[u8; 12]) -> __m128i {
    let (words, _) = packed.as_chunks::<4>();
    let [a, b, c] = [0, 1, 2].map(|i| u32::from_le_bytes(words[i]));
    let low = u64::from(a) | u64::from(b) << 32;
    let high = u64::from(c) | u64::from(c >> 2) << 32;
    let codes = |low: u64, high: u64| {
        (low & 0x0f0f_0f0f_0f0f_0f0f | (high & 0x0303_0303_0303_0303) << 4) as i64
    };
    _mm_sub_epi8(
        _mm_set_epi64x(codes(low >> 4, high >> 4), codes(low, high)),
        _mm_set1_epi8(32),
    )
}
