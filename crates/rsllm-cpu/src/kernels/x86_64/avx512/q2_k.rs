//! Q2_K, and the two-bit codes that Q3_K shares.

use std::arch::x86_64::*;

use rsllm_quant::{ActivationBlock, BlockQ2K};

use crate::kernels::PreparedColumns;

use super::dot::{Activations, Call, Weights, dot_rows, quads, sum_of_products, transposed};
use super::q6_k::broadcast_half;
use super::simd::{load128, load256};
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
    dot_rows::<BlockQ2K, { Minima::OF_RUNS }, { Order::QUADS }>(
        call,
        |x| prepare(x),
        |unit| load_quads(unit),
    );
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn unpack(blocks: &[u8], out: &mut [f32]) {
    unpack_units::<BlockQ2K, 16, 0, -1>(blocks, out, &IN_ORDER, |unit| load(unit));
}

/// Calls `put` with the place and the values of each sixteen.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(in crate::kernels::x86_64) fn each(blocks: &[u8], put: impl FnMut(usize, __m512)) {
    each_unit::<BlockQ2K, 16, 0, -1>(blocks, &IN_ORDER, |unit| load(unit), put);
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load(block: &BlockQ2K) -> Weights {
    let packed = load128::<0, _>(&block.scales);
    let low = _mm_set1_epi8(15);
    let scales = _mm512_cvtepu8_epi32(_mm_and_si128(packed, low));
    let minima = _mm512_cvtepu8_epi32(_mm_and_si128(_mm_srli_epi16::<4>(packed), low));
    Weights {
        q: two_bits(&block.qs),
        scales: _mm512_mul_ps(broadcast_half(block.d), _mm512_cvtepi32_ps(scales)),
        minima: _mm512_mul_ps(broadcast_half(block.dmin), _mm512_cvtepi32_ps(minima)),
    }
}

/// 256 codes in element order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn two_bits(qs: &[u8; 64]) -> [__m512i; 4] {
    let halves = [
        _mm512_broadcast_i64x4(load256::<0, _>(qs)),
        _mm512_broadcast_i64x4(load256::<32, _>(qs)),
    ];
    let shifts = [
        _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2),
        _mm512_setr_epi64(4, 4, 4, 4, 6, 6, 6, 6),
    ];
    let low = _mm512_set1_epi8(3);
    [
        _mm512_and_si512(_mm512_srlv_epi64(halves[0], shifts[0]), low),
        _mm512_and_si512(_mm512_srlv_epi64(halves[0], shifts[1]), low),
        _mm512_and_si512(_mm512_srlv_epi64(halves[1], shifts[0]), low),
        _mm512_and_si512(_mm512_srlv_epi64(halves[1], shifts[1]), low),
    ]
}

/// For dots, in the order of `quads`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load_quads(unit: &BlockQ2K) -> Weights {
    let Weights { q, scales, minima } = load(unit);
    Weights {
        q: quads(q),
        scales: transposed(scales),
        minima: transposed(minima),
    }
}

/// The sums of 32 that activations carry are too coarse for minima of 16, so the sums are taken here. They are negative
/// because minima are subtracted.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn prepare(x: &ActivationBlock) -> Activations {
    let x = Activations::in_quads::<0, 0>(x);
    let sums = sum_of_products([_mm512_set1_epi8(1); 4], x.q, _mm512_setzero_si512());
    let negative = _mm512_sub_epi32(_mm512_setzero_si512(), sums);
    Activations {
        sums: _mm512_mul_ps(x.scales, _mm512_cvtepi32_ps(negative)),
        ..x
    }
}
