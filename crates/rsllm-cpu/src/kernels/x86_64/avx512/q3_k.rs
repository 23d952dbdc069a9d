//! Q3_K.

use std::arch::x86_64::*;

use rsllm_quant::{ActivationBlock, BlockQ3K};

use crate::kernels::PreparedColumns;

use super::dot::{Activations, Call, Weights, dot_rows, quads, transposed};
use super::q2_k::two_bits;
use super::q6_k::broadcast_half;
use super::simd::load256;
use super::tail::{Minima, Order};
use super::unpack::{IN_ORDER, each_unit, unpack_units};

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
    dot_rows::<BlockQ3K, { Minima::NONE }, { Order::QUADS }>(
        call,
        |x| Activations::in_quads::<{ OFFSET as u8 }, 0>(x),
        |unit| load_quads(unit),
    );
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn unpack(blocks: &[u8], out: &mut [f32]) {
    unpack_units::<BlockQ3K, 16, OFFSET, 0>(blocks, out, &IN_ORDER, |unit| load(unit));
}

/// Calls `put` with the place and the values of each sixteen.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(in crate::kernels::x86_64) fn each(blocks: &[u8], put: impl FnMut(usize, __m512)) {
    each_unit::<BlockQ3K, 16, OFFSET, 0>(blocks, &IN_ORDER, |unit| load(unit), put);
}

/// What a code with its high bit is above its value.
const OFFSET: i32 = 4;

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load(block: &BlockQ3K) -> Weights {
    let mut q = two_bits(&block.qs);
    let high = _mm512_broadcast_i64x4(load256::<0, _>(&block.hmask));
    // Bits 2v and 2v + 1 belong to the lower and the upper half of vector v; they go to bit 2 of their byte.
    let rotations = [
        _mm512_setr_epi64(2, 2, 2, 2, 1, 1, 1, 1),
        _mm512_setr_epi64(0, 0, 0, 0, 63, 63, 63, 63),
        _mm512_setr_epi64(62, 62, 62, 62, 61, 61, 61, 61),
        _mm512_setr_epi64(60, 60, 60, 60, 59, 59, 59, 59),
    ];
    for (q, rotation) in q.iter_mut().zip(rotations) {
        // q | high & 4
        *q = _mm512_ternarylogic_epi32::<0xf8>(
            *q,
            _mm512_rolv_epi64(high, rotation),
            _mm512_set1_epi8(4),
        );
    }
    let codes = _mm512_cvtepu8_epi32(scale_codes(&block.scales));
    let scales = _mm512_cvtepi32_ps(_mm512_sub_epi32(codes, _mm512_set1_epi32(32)));
    Weights::new(q, _mm512_mul_ps(broadcast_half(block.d), scales))
}

/// The sixteen 6-bit codes of the scales. See `rsllm_quant::q3_k_scales` for the layout.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn scale_codes(packed: &[u8; 12]) -> __m128i {
    let [a, b, c] = packed.as_chunks::<4>().0 else {
        unreachable!("twelve bytes are three words")
    };
    let low = u64::from(u32::from_le_bytes(*a)) | u64::from(u32::from_le_bytes(*b)) << 32;
    let high = u32::from_le_bytes(*c);
    let high = u64::from(high) | u64::from(high >> 2) << 32;
    let codes =
        |low: u64, high: u64| low & 0x0f0f_0f0f_0f0f_0f0f | (high & 0x0303_0303_0303_0303) << 4;
    _mm_set_epi64x(codes(low >> 4, high >> 4) as i64, codes(low, high) as i64)
}

/// For dots, in the order of `quads`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load_quads(unit: &BlockQ3K) -> Weights {
    let Weights { q, scales, .. } = load(unit);
    Weights::new(quads(q), transposed(scales))
}
