//! Q6_K, and the sixteen scales of a block that Q3_K and Q2_K share.

use std::arch::x86_64::*;

use rsllm_quant::{ActivationBlock, BlockQ6K, F16Le};

use crate::kernels::PreparedColumns;

use super::dot::{Activations, Call, Weights, dot_rows, quads, transposed};
use super::simd::{load128, load256, load512};
use super::tail::{Minima, Order};
use super::unpack::{IN_ORDER, unpack_units};

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn dot(
    rows: &[u8],
    row_bytes: usize,
    x: &[ActivationBlock],
    n_columns: usize,
    out: &mut [f32],
    prepared: PreparedColumns<'_>,
) {
    let call = Call {
        rows,
        row_bytes,
        x,
        n_columns,
        out,
        prepared,
    };
    dot_rows::<BlockQ6K, { Minima::NONE }, { Order::QUADS }>(
        call,
        |x| Activations::in_quads::<{ OFFSET as u8 }, 0>(x),
        |unit| load_quads(unit),
    );
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn unpack(blocks: &[u8], out: &mut [f32]) {
    unpack_units::<BlockQ6K, 16, OFFSET, 0>(blocks, out, &IN_ORDER, |unit| load(unit));
}

/// What a code is above its value.
const OFFSET: i32 = 32;

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load(block: &BlockQ6K) -> Weights {
    let (codes, scales) = codes_and_scales(block);
    Weights::new(codes, scales)
}

/// Codes in element order, [`OFFSET`] above the values, and the sixteen scales.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(in crate::kernels::x86_64) fn codes_and_scales(block: &BlockQ6K) -> ([__m512i; 4], __m512) {
    let [a, b] = half(load512::<0, _>(&block.ql), load256::<0, _>(&block.qh));
    let [c, d] = half(load512::<64, _>(&block.ql), load256::<32, _>(&block.qh));
    let scales = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load128::<0, _>(&block.scales)));
    ([a, b, c, d], _mm512_mul_ps(broadcast_half(block.d), scales))
}

/// The codes of 128 elements in order, from their 64 bytes of low bits and 32 bytes of high bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn half(ql: __m512i, qh: __m256i) -> [__m512i; 2] {
    let qh = _mm512_broadcast_i64x4(qh);
    // High bits of elements 0..32, 32..64, 64..96 and 96..128 are bits 0, 2, 4 and 6; they go to bit 4 of their byte.
    let high_a = _mm512_rolv_epi64(qh, _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2));
    let high_b = _mm512_rolv_epi64(qh, _mm512_setr_epi64(0, 0, 0, 0, 62, 62, 62, 62));
    let low_a = _mm512_and_si512(ql, _mm512_set1_epi8(15));
    let low_b = _mm512_and_si512(_mm512_srli_epi16::<4>(ql), _mm512_set1_epi8(15));
    let mask = _mm512_set1_epi8(0x30);
    // low | high & mask
    [
        _mm512_ternarylogic_epi32::<0xf8>(low_a, high_a, mask),
        _mm512_ternarylogic_epi32::<0xf8>(low_b, high_b, mask),
    ]
}

/// A half as f32 in all lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(in crate::kernels::x86_64) fn broadcast_half(half: F16Le) -> __m512 {
    _mm512_cvtph_ps(_mm256_set1_epi16(half.to_bits() as i16))
}

/// For dots, in the order of `quads`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load_quads(unit: &BlockQ6K) -> Weights {
    let Weights { q, scales, .. } = load(unit);
    Weights::new(quads(q), transposed(scales))
}
