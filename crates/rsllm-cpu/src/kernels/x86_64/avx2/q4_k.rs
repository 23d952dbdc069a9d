//! Q4_K and what Q5_K shares with it: eight groups of 32 with a scale and a minimum each.

use std::arch::x86_64::*;

use rsllm_quant::{ActivationBlock, BlockQ4K, F16Le};

use crate::kernels::PreparedColumns;

use super::dot::{Call, Weights, add_groups_and_minima, dot_rows, ones};
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
        |w, x, sums| add_groups_and_minima(w, x, sums),
    );
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unpack(blocks: &[u8], out: &mut [f32]) {
    unpack_units::<BlockQ4K, 0, 1>(blocks, out, |block| values(block));
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load(block: &BlockQ4K) -> Weights {
    let [scales, minima] = scales_and_minima(block.d, block.dmin, &block.scales);
    Weights {
        q: nibbles(&block.qs),
        inner: ones(),
        scales,
        minima,
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn values(block: &BlockQ4K) -> Values {
    let [scales, minima] = scales_and_minima(block.d, block.dmin, &block.scales);
    Values::of_groups(nibbles(&block.qs), scales, minima)
}

/// The low four bits of 256 codes in element order.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn nibbles(qs: &[u8; 128]) -> [__m256i; 8] {
    let mask = _mm256_set1_epi8(15);
    let packed = [
        load256::<0, _>(qs),
        load256::<32, _>(qs),
        load256::<64, _>(qs),
        load256::<96, _>(qs),
    ];
    let low = |i: usize| _mm256_and_si256(packed[i], mask);
    let high = |i: usize| _mm256_and_si256(_mm256_srli_epi16::<4>(packed[i]), mask);
    [
        low(0),
        high(0),
        low(1),
        high(1),
        low(2),
        high(2),
        low(3),
        high(3),
    ]
}

/// `d · scale` and `-dmin · min` of each group.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn scales_and_minima(d: F16Le, dmin: F16Le, packed: &[u8; 12]) -> [__m256; 2] {
    // Four bytes at once; see `rsllm_quant::q4_k_scales` for the layout.
    let (words, _) = packed.as_chunks::<4>();
    let [s, m, low] = [0, 1, 2].map(|i| u32::from_le_bytes(words[i]));
    let upper = |x: u32| x >> 2 & 0x3030_3030;
    let scales = u64::from(s & 0x3f3f_3f3f) | u64::from(low & 0x0f0f_0f0f | upper(s)) << 32;
    let minima = u64::from(m & 0x3f3f_3f3f) | u64::from(low >> 4 & 0x0f0f_0f0f | upper(m)) << 32;
    let widen =
        |codes: u64| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(codes as i64)));
    let negative = F16Le((dmin.to_bits() ^ 0x8000).to_le_bytes());
    [
        _mm256_mul_ps(broadcast_half(d), widen(scales)),
        _mm256_mul_ps(broadcast_half(negative), widen(minima)),
    ]
}
