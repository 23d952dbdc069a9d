//! Q5_0, and the fifth bits that Q5_1 shares.

use std::arch::x86_64::*;

use rsllm_quant::{ActivationBlock, BlockQ5_0};

use crate::kernels::PreparedColumns;

use super::dot::{Activations, Call, TRANSPOSITION, Weights, dot_rows, quads};
use super::halves;
use super::simd::{load128, load512};
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
    dot_rows::<[BlockQ5_0; 8], { Minima::NONE }, { Order::QUADS }>(
        call,
        |x| Activations::in_quads::<{ OFFSET as u8 }, 0>(x),
        |unit| load_quads(unit),
    );
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn unpack(blocks: &[u8], out: &mut [f32]) {
    unpack_units::<[BlockQ5_0; 8], 32, OFFSET, 0>(blocks, out, &IN_ORDER, |unit| load(unit));
}

/// What a code is above its value.
const OFFSET: i32 = 16;

const HEADS: [usize; 3] = [0, 66, 112];
const SCALES: halves::Places<3> = halves::Places::new(size_of::<BlockQ5_0>(), 0, HEADS);
const SCALES_OF_QUADS: halves::Places<3> =
    halves::Places::of_runs(size_of::<BlockQ5_0>(), &TRANSPOSITION, HEADS);

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load(unit: &[BlockQ5_0; 8]) -> Weights {
    Weights::new(codes(unit), scales(unit))
}

/// All codes in element order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn codes(unit: &[BlockQ5_0; 8]) -> [__m512i; 4] {
    let [a, b, c, d, e, f, g, h] = unit;
    [
        five_bits(&a.qs, &b.qs, a.qh, b.qh),
        five_bits(&c.qs, &d.qs, c.qh, d.qh),
        five_bits(&e.qs, &f.qs, e.qh, f.qh),
        five_bits(&g.qs, &h.qs, g.qh, h.qh),
    ]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(in crate::kernels::x86_64) fn scales(unit: &[BlockQ5_0; 8]) -> __m512 {
    SCALES.gather(heads(unit))
}

/// Three loads that have all scales.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn heads(unit: &[BlockQ5_0; 8]) -> [__m512i; 3] {
    [
        load512::<{ HEADS[0] }, _>(unit),
        load512::<{ HEADS[1] }, _>(unit),
        load512::<{ HEADS[2] }, _>(unit),
    ]
}

/// The codes of two blocks in element order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn five_bits(qs_a: &[u8; 16], qs_b: &[u8; 16], qh_a: [u8; 4], qh_b: [u8; 4]) -> __m512i {
    let a = _mm512_broadcast_i32x4(load128::<0, _>(qs_a));
    let both = _mm512_mask_broadcast_i32x4(a, 0xff00, load128::<0, _>(qs_b));
    let halves = _mm512_srlv_epi64(both, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4));
    let low = _mm512_and_si512(halves, _mm512_set1_epi8(15));
    let fifth = u64::from(u32::from_le_bytes(qh_a)) | u64::from(u32::from_le_bytes(qh_b)) << 32;
    _mm512_mask_add_epi8(low, fifth, low, _mm512_set1_epi8(16))
}

/// For dots, in the order of `quads`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load_quads(unit: &[BlockQ5_0; 8]) -> Weights {
    Weights::new(quads(codes(unit)), SCALES_OF_QUADS.gather(heads(unit)))
}
