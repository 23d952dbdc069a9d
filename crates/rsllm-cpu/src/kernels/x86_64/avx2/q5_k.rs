//! Q5_K: Q4_K with a fifth bit.

use std::arch::x86_64::*;

use rsllm_quant::{ActivationBlock, BlockQ5K};

use crate::kernels::PreparedColumns;

use super::dot::{Call, Weights, add_groups_and_minima, dot_rows, ones};
use super::q4_k::{nibbles, scales_and_minima};
use super::simd::load256;
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
        |w, x, sums| add_groups_and_minima(w, x, sums),
    );
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unpack(blocks: &[u8], out: &mut [f32]) {
    unpack_units::<BlockQ5K, 0, 1>(blocks, out, |block| values(block));
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load(block: &BlockQ5K) -> Weights {
    let [scales, minima] = scales_and_minima(block.d, block.dmin, &block.scales);
    Weights {
        q: q(block),
        inner: ones(),
        scales,
        minima,
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn values(block: &BlockQ5K) -> Values {
    let [scales, minima] = scales_and_minima(block.d, block.dmin, &block.scales);
    Values::of_groups(q(block), scales, minima)
}

/// 256 codes in element order.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q(block: &BlockQ5K) -> [__m256i; 8] {
    let bits = load256::<0, _>(&block.qh);
    let low = nibbles(&block.qs);
    // Bit g of a byte goes to bit 4.
    let fifth = [
        _mm256_slli_epi16::<4>(bits),
        _mm256_slli_epi16::<3>(bits),
        _mm256_slli_epi16::<2>(bits),
        _mm256_slli_epi16::<1>(bits),
        bits,
        _mm256_srli_epi16::<1>(bits),
        _mm256_srli_epi16::<2>(bits),
        _mm256_srli_epi16::<3>(bits),
    ];
    let mut q = low;
    for g in 0..8 {
        q[g] = _mm256_or_si256(low[g], _mm256_and_si256(fifth[g], _mm256_set1_epi8(16)));
    }
    q
}
