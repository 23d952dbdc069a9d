//! Q2_K, and the two-bit codes that Q3_K shares.

use std::arch::x86_64::*;

use rsllm_quant::{ActivationBlock, BlockQ2K};

use super::dot::{
    Activations, Call, LANES_OF_16, Weights, dot_rows, quants, step, sums_of_products,
};
use super::q6_k::{broadcast_half, scales_of_sixteen};
use super::simd::{load128, load256};
use super::unpack::{IN_ORDER, unpack_units};

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn dot(
    rows: &[u8],
    row_bytes: usize,
    x: &[ActivationBlock],
    n_columns: usize,
    out: &mut [f32],
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
        |x| prepare(x),
        |unit| load(unit),
        |w, x, acc| add(w, x, acc),
    );
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn unpack(blocks: &[u8], out: &mut [f32]) {
    unpack_units::<BlockQ2K, 16, 0, -1>(blocks, out, &IN_ORDER, |unit| load(unit));
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn add(w: &Weights, x: &Activations<4>, acc: __m512) -> __m512 {
    let acc = step::<4, 0>(w, x, &LANES_OF_16, acc);
    _mm512_fnmadd_ps(w.minima, x.sums, acc)
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

/// The sums of 32 that activations carry are too coarse for minima of 16, so the sums are taken here.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn prepare(x: &ActivationBlock) -> Activations<4> {
    let (q, scales) = (quants(x), scales_of_sixteen(x));
    let zero = _mm512_setzero_si512();
    // Four lanes a group.
    let s = sums_of_products([_mm512_set1_epi8(1); 4], q, [zero; 4]);
    let pairs = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (a, b) = (pairs(s[0], s[1]), pairs(s[2], s[3]));
    let sums = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    // Lane 4k + i is group 4i + k by now.
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    let sums = _mm512_cvtepi32_ps(_mm512_permutexvar_epi32(order, sums));
    Activations {
        sums: _mm512_mul_ps(scales, sums),
        ..Activations::new::<0>(q, scales)
    }
}
