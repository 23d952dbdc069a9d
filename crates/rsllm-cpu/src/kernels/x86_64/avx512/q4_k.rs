//! Q4_K and what Q5_K shares with it: eight groups of 32 with a scale and a minimum each.

use std::arch::x86_64::*;

use bytemuck::Pod;
use rsllm_quant::{ActivationBlock, BlockQ4K};

use crate::kernels::PreparedColumns;

use super::dot::{Activations, Call, Weights, dot_rows, groups_to_runs};
use super::simd::load512;
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
    dot_rows::<BlockQ4K, { Minima::OF_GROUPS }, { Order::RUNS }>(
        call,
        |x| Activations::in_runs::<0, -1>(x),
        |unit| load_runs(unit),
    );
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn unpack(blocks: &[u8], out: &mut [f32]) {
    unpack_units::<BlockQ4K, 32, 0, -1>(blocks, out, &PLACES, |block| load(block));
}

/// Vectors 0 and 1 hold the first and the second half of groups 0, 2, 4, 6, which are the low halves of the bytes;
/// vectors 2 and 3 those of groups 1, 3, 5, 7. So both halves of a group meet in the same lanes.
pub(super) const PLACES: [[Place; 4]; 4] = {
    let mut places = [[Place(0); 4]; 4];
    let mut i = 0;
    while i < 16 {
        places[i / 4][i % 4] = Place(64 * (i % 4) + 32 * (i / 8) + 16 * (i / 4 % 2));
        i += 1;
    }
    places
};

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load(block: &BlockQ4K) -> Weights {
    Weights::new(nibbles(&block.qs), scales_and_minima(block))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn nibbles(qs: &[u8; 128]) -> [__m512i; 4] {
    let (a, b) = (load512::<0, _>(qs), load512::<64, _>(qs));
    let first = _mm512_shuffle_i64x2::<EVEN_QUARTERS>(a, b);
    let second = _mm512_shuffle_i64x2::<ODD_QUARTERS>(a, b);
    let low = _mm512_set1_epi8(15);
    [
        _mm512_and_si512(first, low),
        _mm512_and_si512(second, low),
        _mm512_and_si512(_mm512_srli_epi16::<4>(first), low),
        _mm512_and_si512(_mm512_srli_epi16::<4>(second), low),
    ]
}

/// For dots, in the order of `runs`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load_runs(block: &BlockQ4K) -> Weights {
    let minima = scales_and_minima(block);
    Weights {
        q: nibble_runs(&block.qs),
        scales: groups_to_runs(minima),
        minima,
    }
}

/// Codes in the order of `runs`: 32 bytes hold an even group in their low halves and the next group in the high ones.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn nibble_runs(qs: &[u8; 128]) -> [__m512i; 4] {
    let (a, b) = (load512::<0, _>(qs), load512::<64, _>(qs));
    let low = _mm512_set1_epi8(15);
    let shifts = _mm512_setr_epi64(0, 4, 0, 4, 0, 4, 0, 4);
    let places = [
        _mm512_setr_epi32(0, 4, 0, 4, 8, 12, 8, 12, 16, 20, 16, 20, 24, 28, 24, 28),
        _mm512_setr_epi32(1, 5, 1, 5, 9, 13, 9, 13, 17, 21, 17, 21, 25, 29, 25, 29),
        _mm512_setr_epi32(2, 6, 2, 6, 10, 14, 10, 14, 18, 22, 18, 22, 26, 30, 26, 30),
        _mm512_setr_epi32(3, 7, 3, 7, 11, 15, 11, 15, 19, 23, 19, 23, 27, 31, 27, 31),
    ];
    places.map(|places| {
        let twice = _mm512_permutex2var_epi32(a, places, b);
        _mm512_and_si512(_mm512_srlv_epi64(twice, shifts), low)
    })
}

/// Quarters 0 and 2 of each of two vectors.
pub(super) const EVEN_QUARTERS: i32 = 0b10_00_10_00;
/// Quarters 1 and 3 of each of two vectors.
pub(super) const ODD_QUARTERS: i32 = 0b11_01_11_01;

/// `[d · scale; 8]` and `[dmin · min; 8]`, from the first 64 bytes of a block, which start with `d`, `dmin` and the
/// twelve bytes of packed scales.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(in crate::kernels::x86_64) fn scales_and_minima<U: Pod>(block: &U) -> __m512 {
    let head = load512::<0, _>(block);
    let factors = _mm512_permutexvar_epi16(load512::<0, _>(&FACTORS), head);
    let factors = _mm512_cvtph_ps(_mm512_castsi512_si256(factors));
    let words = _mm512_permutexvar_epi32(load512::<0, _>(&SCALE_WORDS), head);
    let low = _mm512_multishift_epi64_epi8(load512::<0, _>(&LOW_BITS.0), words);
    let high = _mm512_multishift_epi64_epi8(load512::<0, _>(&HIGH_BITS.0), words);
    let low = _mm512_and_si512(low, load512::<0, _>(&LOW_BITS.1));
    // low | high & mask
    let codes = _mm512_ternarylogic_epi32::<0xf8>(low, high, load512::<0, _>(&HIGH_BITS.1));
    _mm512_mul_ps(factors, _mm512_cvtepi32_ps(codes))
}

/// Words of the head of a block: `d` eight times, `dmin` eight times.
const FACTORS: [i16; 32] = {
    let mut words = [0; 32];
    let mut i = 8;
    while i < 16 {
        words[i] = 1;
        i += 1;
    }
    words
};

/// Double words of the head, so that each pair of lanes has all bits of its two scales or minima: the first four bytes
/// of packed scales (or the second four, for minima), then the last four.
const SCALE_WORDS: [i32; 16] = [1, 3, 1, 3, 1, 3, 1, 3, 2, 3, 2, 3, 2, 3, 2, 3];

/// For each byte of the lanes: where in its eight bytes of [`SCALE_WORDS`] the low bits of the code start, and which of
/// the eight bits from there belong to it. See `rsllm_quant::q4_k_scales` for the layout.
const LOW_BITS: ([u8; 64], [u8; 64]) = {
    let (mut shifts, mut masks) = ([0; 64], [0; 64]);
    let mut lane = 0;
    while lane < 16 {
        let group = lane % 8;
        let is_min = lane >= 8;
        (shifts[4 * lane], masks[4 * lane]) = match group {
            0..4 => (8 * group as u8, 63),
            _ => (8 * group as u8 + if is_min { 4 } else { 0 }, 15),
        };
        lane += 1;
    }
    (shifts, masks)
};

/// The same for bits 4 and 5 of groups 4 to 7, which are bits 6 and 7 of the first four bytes.
const HIGH_BITS: ([u8; 64], [u8; 64]) = {
    let (mut shifts, mut masks) = ([0; 64], [0; 64]);
    let mut lane = 0;
    while lane < 16 {
        let group = lane % 8;
        if group >= 4 {
            (shifts[4 * lane], masks[4 * lane]) = (8 * (group as u8 - 4) + 2, 0x30);
        }
        lane += 1;
    }
    (shifts, masks)
};
