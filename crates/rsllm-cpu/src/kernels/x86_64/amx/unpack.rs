//! Weights to bf16 in the order of tiles. What a format's bytes mean stands in the AVX-512 files; here is where values go.
//!
//! Codes of four bits are not multiplied one by one: the sixteen values that a group can have are computed once, rounded,
//! and looked up. They are the values of the plain code, so results are the same.

use std::arch::x86_64::*;

use rsllm_quant::{BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ8_0, GgmlType, as_blocks};

use crate::kernels::x86_64::avx512::{
    floats, q2_k, q3_k, q4_k, q5_0, q5_1, q5_k, q6_k,
    simd::{load128, load256, prefetch_row, store512},
};
use crate::kernels::{TILE, UnpackTiles};

/// The kernel for weights of type `ty`; `None` for those that have more bits than bf16 keeps: their product stays f32.
pub(super) fn of_type(ty: GgmlType) -> Option<UnpackTiles> {
    Some(match ty {
        GgmlType::BF16 => bf16,
        GgmlType::Q4_0 => q4_0,
        GgmlType::Q4_1 => q4_1,
        GgmlType::Q5_0 => q5_0,
        GgmlType::Q5_1 => q5_1,
        GgmlType::Q8_0 => q8_0,
        GgmlType::Q2_K => q2_k,
        GgmlType::Q3_K => q3_k,
        GgmlType::Q4_K => q4_k,
        GgmlType::Q5_K => q5_k,
        GgmlType::Q6_K => q6_k,
        _ => return None,
    })
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q5_0(row: &[u8], tiles: &mut [u16]) {
    q5_0::each(row, |at, values| put(tiles, at, values));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q5_1(row: &[u8], tiles: &mut [u16]) {
    q5_1::each(row, |at, values| put(tiles, at, values));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q2_k(row: &[u8], tiles: &mut [u16]) {
    q2_k::each(row, |at, values| put(tiles, at, values));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q3_k(row: &[u8], tiles: &mut [u16]) {
    q3_k::each(row, |at, values| put(tiles, at, values));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q5_k(row: &[u8], tiles: &mut [u16]) {
    q5_k::each(row, |at, values| put(tiles, at, values));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q6_k(row: &[u8], tiles: &mut [u16]) {
    q6_k::each(row, |at, values| put(tiles, at, values));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn bf16(row: &[u8], tiles: &mut [u16]) {
    floats::each_bf16(row, |at, values| put(tiles, at, values));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q4_0(row: &[u8], tiles: &mut [u16]) {
    for (i, block) in as_blocks::<BlockQ4_0>(row).iter().enumerate() {
        let codes = _mm512_sub_ps(counting(), _mm512_set1_ps(8.0));
        let table = rounded(_mm512_mul_ps(q6_k::broadcast_half(block.d), codes));
        put_group(tiles, i, look_up(table, halves(&block.qs)));
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q4_1(row: &[u8], tiles: &mut [u16]) {
    for (i, block) in as_blocks::<BlockQ4_1>(row).iter().enumerate() {
        let (scale, minimum) = (q6_k::broadcast_half(block.d), q6_k::broadcast_half(block.m));
        // Two roundings, as everywhere.
        let table = rounded(_mm512_add_ps(_mm512_mul_ps(scale, counting()), minimum));
        put_group(tiles, i, look_up(table, halves(&block.qs)));
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q4_k(row: &[u8], tiles: &mut [u16]) {
    for (i, block) in as_blocks::<BlockQ4K>(row).iter().enumerate() {
        let factors = q4_k::scales_and_minima(block);
        let table = |group: i32| {
            let scale = _mm512_permutexvar_ps(_mm512_set1_epi32(group), factors);
            let minimum = _mm512_permutexvar_ps(_mm512_set1_epi32(group + 8), factors);
            rounded(_mm512_sub_ps(_mm512_mul_ps(scale, counting()), minimum))
        };
        for (j, pair) in block.qs.as_chunks::<32>().0.iter().enumerate() {
            let words = _mm512_cvtepu8_epi16(load256::<0, _>(pair));
            let low = _mm512_and_si512(words, _mm512_set1_epi16(15));
            let high = _mm512_srli_epi16::<4>(words);
            let (even, odd) = (2 * j as i32, 2 * j as i32 + 1);
            put_group(tiles, 8 * i + 2 * j, look_up(table(even), low));
            put_group(tiles, 8 * i + 2 * j + 1, look_up(table(odd), high));
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q8_0(row: &[u8], tiles: &mut [u16]) {
    for (i, block) in as_blocks::<BlockQ8_0>(row).iter().enumerate() {
        let scale = q6_k::broadcast_half(block.d);
        let quants = load256::<0, _>(&block.qs);
        let value = |half| _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(half)));
        let low = value(_mm256_castsi256_si128(quants));
        let high = value(_mm256_extracti128_si256::<1>(quants));
        let both = _mm512_cvtne2ps_pbh(high, low);
        // SAFETY: both are 512 bits without invalid values.
        put_group(tiles, i, unsafe {
            std::mem::transmute::<__m512bh, __m512i>(both)
        });
    }
}

/// 0 to 15.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn counting() -> __m512 {
    _mm512_setr_ps(
        0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
    )
}

/// Sixteen values to bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn rounded(values: __m512) -> __m256i {
    // SAFETY: both are 256 bits without invalid values.
    unsafe { std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(values)) }
}

/// The low halves of sixteen bytes, then the high halves, a word each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn halves(bytes: &[u8; 16]) -> __m512i {
    let words = _mm256_cvtepu8_epi16(load128::<0, _>(bytes));
    let low = _mm256_and_si256(words, _mm256_set1_epi16(15));
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), _mm256_srli_epi16::<4>(words))
}

/// The table's value for each of 32 words below 16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn look_up(table: __m256i, words: __m512i) -> __m512i {
    _mm512_permutexvar_epi16(words, _mm512_castsi256_si512(table))
}

/// The values of group `group` of 32, which are a row of a tile.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn put_group(tiles: &mut [u16], group: usize, values: __m512i) {
    let dst: &mut [u16; 32] = tiles[group * TILE..]
        .first_chunk_mut()
        .expect("a row of every tile");
    store512(dst, values);
}

/// Values `at` to `at + 16` of a row, which have 32 values a tile.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn put(tiles: &mut [u16], at: usize, values: __m512) {
    let dst = tiles[at / 32 * TILE + at % 32..]
        .first_chunk_mut::<16>()
        .expect("places are multiples of 16 within the tiles");
    // SAFETY: both are 256 bits without invalid values.
    *dst = unsafe { std::mem::transmute::<__m256bh, [u16; 16]>(_mm512_cvtneps_pbh(values)) };
}

/// Into L2, every line.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
pub(super) fn prefetch(bytes: &[u8]) {
    prefetch_row(bytes, 0, bytes.len());
}
