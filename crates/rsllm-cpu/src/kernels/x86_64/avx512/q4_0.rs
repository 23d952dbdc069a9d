//! Q4_0, and the order of nibbles that Q4_1 shares.

use std::arch::x86_64::*;

use rsllm_quant::{ActivationBlock, BlockQ4_0};

use super::dot::{Activations, Call, Weights, dot_rows, quants, scales_and_sums, step};
use super::halves;
use super::q4_k::{EVEN_QUARTERS, ODD_QUARTERS};
use super::simd::{load128, load512};
use super::unpack::{Place, unpack_units};

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
        |w, x, acc| step::<2, 0>(w, x, &LANES, acc),
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

/// Lanes of the sum over vectors 0 and 1, and over 2 and 3.
pub(super) const LANES: [[i32; 16]; 2] = [
    [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3],
    [4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7],
];

const SCALES: halves::Places<2> = halves::Places::new(size_of::<BlockQ4_0>(), 0, [0, 72]);

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load(unit: &[BlockQ4_0; 8]) -> Weights {
    let [a, b, c, d, e, f, g, h] = unit;
    let q = nibbles(
        join(&a.qs, &b.qs, &c.qs, &d.qs),
        join(&e.qs, &f.qs, &g.qs, &h.qs),
    );
    let scales = SCALES.gather([load512::<0, _>(unit), load512::<72, _>(unit)]);
    Weights::new(q, scales)
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

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn prepare(x: &ActivationBlock) -> Activations<2> {
    Activations::new::<{ OFFSET as u8 }>(quants_by_halves(x), scales_and_sums(x))
}

/// Quants in the order of [`PLACES`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn quants_by_halves(x: &ActivationBlock) -> [__m512i; 4] {
    let q = quants(x);
    [
        _mm512_shuffle_i64x2::<EVEN_QUARTERS>(q[0], q[1]),
        _mm512_shuffle_i64x2::<ODD_QUARTERS>(q[0], q[1]),
        _mm512_shuffle_i64x2::<EVEN_QUARTERS>(q[2], q[3]),
        _mm512_shuffle_i64x2::<ODD_QUARTERS>(q[2], q[3]),
    ]
}
