//! Q4_0, and the order of nibbles that Q4_1 shares.

use std::arch::x86_64::*;

use rsllm_quant::{ActivationBlock, BlockQ4_0};

use crate::kernels::PreparedColumns;

use super::dot::{Activations, Call, RUNS, Weights, dot_rows};
use super::halves;
use super::simd::{load_four, load128, load512};
use super::tail::{Minima, Order};
use super::unpack::{Place, unpack_units};

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
    dot_rows::<[BlockQ4_0; 8], { Minima::NONE }, { Order::RUNS }>(
        call,
        |x| Activations::in_runs::<{ OFFSET as u8 }, 0>(x),
        |unit| load_runs(unit),
    );
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn unpack(blocks: &[u8], out: &mut [f32]) {
    unpack_units::<[BlockQ4_0; 8], 32, OFFSET, 0>(blocks, out, &PLACES, |unit| load(unit));
}

/// What a code is above its value.
const OFFSET: i32 = 8;

/// Vectors 0 and 1 hold the low and the high halves of the bytes of blocks 0 to 3, vectors 2 and 3 those of blocks 4 to 7.
pub(super) const PLACES: [[Place; 4]; 4] = {
    let mut places = [[Place(0); 4]; 4];
    let mut i = 0;
    while i < 16 {
        places[i / 4][i % 4] = Place(128 * (i / 8) + 32 * (i % 4) + 16 * (i / 4 % 2));
        i += 1;
    }
    places
};

const BLOCK_BYTES: usize = size_of::<BlockQ4_0>();
const HEADS: [usize; 2] = [0, 72];
const SCALES: halves::Places<2> = halves::Places::new(BLOCK_BYTES, 0, HEADS);
const SCALES_OF_RUNS: halves::Places<2> = halves::Places::of_runs(BLOCK_BYTES, &RUNS, HEADS);

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load(unit: &[BlockQ4_0; 8]) -> Weights {
    let [a, b, c, d, e, f, g, h] = unit;
    let q = nibbles(
        join(&a.qs, &b.qs, &c.qs, &d.qs),
        join(&e.qs, &f.qs, &g.qs, &h.qs),
    );
    Weights::new(q, scales(unit))
}

/// For dots, in the order of `runs`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load_runs(unit: &[BlockQ4_0; 8]) -> Weights {
    let q = nibble_runs(
        load_four::<2, BLOCK_BYTES, _>(unit),
        load_four::<{ 2 + 4 * BLOCK_BYTES }, BLOCK_BYTES, _>(unit),
    );
    Weights::new(q, SCALES_OF_RUNS.gather(heads(unit)))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(in crate::kernels::x86_64) fn scales(unit: &[BlockQ4_0; 8]) -> __m512 {
    SCALES.gather(heads(unit))
}

/// Two loads that have all scales.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn heads(unit: &[BlockQ4_0; 8]) -> [__m512i; 2] {
    [
        load512::<{ HEADS[0] }, _>(unit),
        load512::<{ HEADS[1] }, _>(unit),
    ]
}

/// The packed codes of four blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn join(a: &[u8; 16], b: &[u8; 16], c: &[u8; 16], d: &[u8; 16]) -> __m512i {
    let v = _mm512_inserti32x4::<1>(
        _mm512_castsi128_si512(load128::<0, _>(a)),
        load128::<0, _>(b),
    );
    _mm512_inserti32x4::<3>(
        _mm512_inserti32x4::<2>(v, load128::<0, _>(c)),
        load128::<0, _>(d),
    )
}

/// Codes in the order of [`PLACES`], from twice four blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn nibbles(a: __m512i, b: __m512i) -> [__m512i; 4] {
    let low = _mm512_set1_epi8(15);
    [
        _mm512_and_si512(a, low),
        _mm512_and_si512(_mm512_srli_epi16::<4>(a), low),
        _mm512_and_si512(b, low),
        _mm512_and_si512(_mm512_srli_epi16::<4>(b), low),
    ]
}

/// Codes in the order of `runs`, from twice four blocks: elements 0 to 15 of a block are the low halves of its bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn nibble_runs(a: __m512i, b: __m512i) -> [__m512i; 4] {
    let first = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
    let second = _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15);
    nibbles_of_qwords(
        _mm512_permutex2var_epi64(a, first, b),
        _mm512_permutex2var_epi64(a, second, b),
    )
}

/// The same from the first and the second eight bytes of eight blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn nibbles_of_qwords(first: __m512i, second: __m512i) -> [__m512i; 4] {
    // Of the eight bytes of a block: the low halves of four into the lane of its first run, the high ones beside them.
    let [lower, upper] = [0, 32].map(|start| {
        let shifts = 0x1c14_0c04_1810_0800 + 0x0101_0101_0101_0101 * start;
        _mm512_set1_epi64(shifts)
    });
    let low = _mm512_set1_epi8(15);
    [
        _mm512_and_si512(_mm512_multishift_epi64_epi8(lower, first), low),
        _mm512_and_si512(_mm512_multishift_epi64_epi8(upper, first), low),
        _mm512_and_si512(_mm512_multishift_epi64_epi8(lower, second), low),
        _mm512_and_si512(_mm512_multishift_epi64_epi8(upper, second), low),
    ]
}
