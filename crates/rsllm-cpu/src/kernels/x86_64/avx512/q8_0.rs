//! Q8_0.

use std::arch::x86_64::*;

use rsllm_quant::{ActivationBlock, BlockQ8_0};

use crate::kernels::PreparedColumns;

use super::dot::{Activations, Call, TRANSPOSITION, Weights, dot_rows, quads};
use super::halves;
use super::simd::{load256, load512};
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
    dot_rows::<[BlockQ8_0; 8], { Minima::NONE }, { Order::QUADS }>(
        call,
        |x| Activations::in_quads::<{ OFFSET as u8 }, 0>(x),
        |unit| load_quads(unit),
    );
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn unpack(blocks: &[u8], out: &mut [f32]) {
    unpack_units::<[BlockQ8_0; 8], 32, OFFSET, 0>(blocks, out, &IN_ORDER, |unit| load(unit));
}

/// The dot wants unsigned bytes, so the quants get their sign bit flipped.
const OFFSET: i32 = 128;

const HEADS: [usize; 4] = [0, 68, 136, 204];
const SCALES: halves::Places<4> = halves::Places::new(size_of::<BlockQ8_0>(), 0, HEADS);
const SCALES_OF_QUADS: halves::Places<4> =
    halves::Places::of_runs(size_of::<BlockQ8_0>(), &TRANSPOSITION, HEADS);

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load(unit: &[BlockQ8_0; 8]) -> Weights {
    Weights::new(codes(unit), scales(unit))
}

/// All quants, plus [`OFFSET`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn codes(unit: &[BlockQ8_0; 8]) -> [__m512i; 4] {
    let [a, b, c, d, e, f, g, h] = unit;
    [
        unsigned(a, b),
        unsigned(c, d),
        unsigned(e, f),
        unsigned(g, h),
    ]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(in crate::kernels::x86_64) fn scales(unit: &[BlockQ8_0; 8]) -> __m512 {
    SCALES.gather(heads(unit))
}

/// Four loads that have all scales.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn heads(unit: &[BlockQ8_0; 8]) -> [__m512i; 4] {
    [
        load512::<{ HEADS[0] }, _>(unit),
        load512::<{ HEADS[1] }, _>(unit),
        load512::<{ HEADS[2] }, _>(unit),
        load512::<{ HEADS[3] }, _>(unit),
    ]
}

/// Quants of two blocks, plus [`OFFSET`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn unsigned(a: &BlockQ8_0, b: &BlockQ8_0) -> __m512i {
    let (a, b) = (load256::<0, _>(&a.qs), load256::<0, _>(&b.qs));
    let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b);
    _mm512_xor_si512(both, _mm512_set1_epi8(OFFSET as i8))
}

/// For dots, in the order of `quads`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load_quads(unit: &[BlockQ8_0; 8]) -> Weights {
    Weights::new(quads(codes(unit)), SCALES_OF_QUADS.gather(heads(unit)))
}
