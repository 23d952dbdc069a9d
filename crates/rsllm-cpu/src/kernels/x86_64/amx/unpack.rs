//! Weights to bf16 in the order of tiles. What a format's bytes mean stands in the AVX-512 files; here is where values go.
//!
//! Codes of four and five bits are not multiplied one by one: the values that a group can have are computed once, rounded, and
//! looked up. They are the values of the plain code, so results are the same. Shuffles bound this code, so scales are converted
//! eight at a time and spread by loads.

use std::arch::x86_64::*;

use rsllm_quant::{
    Block, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K, BlockQ6K, BlockQ8_0,
    F16Le, GgmlType, as_blocks,
};

use super::attend::parts_of;
use crate::kernels::x86_64::avx512::{
    floats as wide, q2_k, q3_k, q4_0, q4_1, q4_k, q5_0, q5_1, q6_k, q8_0,
    simd::{load128, load256, load512, prefetch_row, store_f32, store512},
};
use crate::kernels::{PartsMut, TILE, ToTiles, UnpackTiles};

/// The kernel for weights of type `ty`; `None` for those that have more bits than two bf16 keep: their product stays f32.
pub(super) fn of_type(ty: GgmlType) -> Option<ToTiles> {
    let rounded: UnpackTiles = match ty {
        GgmlType::F16 => return Some(ToTiles::Parts(f16)),
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
    };
    Some(ToTiles::Rounded(rounded))
}

/// The upper halves of the bits of f32, then what they leave: eight bits and three.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn f16(row: &[u8], tiles: PartsMut<'_>) {
    let [high, low] = tiles;
    let (lines, rest) = row.as_chunks::<64>();
    let values = |line: &[u8; 64]| {
        [
            _mm512_cvtph_ps(load256::<0, _>(line)),
            _mm512_cvtph_ps(load256::<32, _>(line)),
        ]
    };
    for (t, line) in lines.iter().enumerate() {
        let [upper, lower] = parts_of(values(line));
        put_group(high, t, upper);
        put_group(low, t, lower);
    }
    if !rest.is_empty() {
        let mut padded = [0; 64];
        padded[..rest.len()].copy_from_slice(rest);
        let [upper, lower] = parts_of(values(&padded));
        put_group(high, lines.len(), upper);
        put_group(low, lines.len(), lower);
    }
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
fn bf16(row: &[u8], tiles: &mut [u16]) {
    wide::each_bf16(row, |at, values| put(tiles, at, values));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q4_0(row: &[u8], tiles: &mut [u16]) {
    let codes = _mm512_sub_ps(counting(), _mm512_set1_ps(8.0));
    each_eight::<BlockQ4_0>(
        row,
        tiles,
        |eight| q4_0::scales(eight),
        |block| [block.d; 2],
        |block, scale, _| {
            let values = _mm512_mul_ps(scale, codes);
            look_up(rounded(values, values), nibbles(&block.qs))
        },
    );
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q4_1(row: &[u8], tiles: &mut [u16]) {
    each_eight::<BlockQ4_1>(
        row,
        tiles,
        |eight| q4_1::scales_and_minima(eight),
        |block| [block.d, block.m],
        |block, scale, minimum| {
            // Two roundings, as everywhere: no fused multiply-add, here and below.
            let values = _mm512_add_ps(_mm512_mul_ps(scale, counting()), minimum);
            look_up(rounded(values, values), nibbles(&block.qs))
        },
    );
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q5_0(row: &[u8], tiles: &mut [u16]) {
    let low = _mm512_sub_ps(counting(), _mm512_set1_ps(16.0));
    each_eight::<BlockQ5_0>(
        row,
        tiles,
        |eight| q5_0::scales(eight),
        |block| [block.d; 2],
        |block, scale, _| {
            let table = rounded(_mm512_mul_ps(scale, low), _mm512_mul_ps(scale, counting()));
            look_up(
                table,
                with_fifth(nibbles(&block.qs), u32::from_le_bytes(block.qh)),
            )
        },
    );
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q5_1(row: &[u8], tiles: &mut [u16]) {
    let high = _mm512_add_ps(counting(), _mm512_set1_ps(16.0));
    each_eight::<BlockQ5_1>(
        row,
        tiles,
        |eight| q5_1::scales_and_minima(eight),
        |block| [block.d, block.m],
        |block, scale, minimum| {
            let table = rounded(
                _mm512_add_ps(_mm512_mul_ps(scale, counting()), minimum),
                _mm512_add_ps(_mm512_mul_ps(scale, high), minimum),
            );
            look_up(
                table,
                with_fifth(nibbles(&block.qs), u32::from_le_bytes(block.qh)),
            )
        },
    );
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q8_0(row: &[u8], tiles: &mut [u16]) {
    each_eight::<BlockQ8_0>(
        row,
        tiles,
        |eight| q8_0::scales(eight),
        |block| [block.d; 2],
        |block, scale, _| {
            let (low, high) = (load128::<0, _>(&block.qs), load128::<16, _>(&block.qs));
            scaled(low, high, scale, scale)
        },
    );
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q4_k(row: &[u8], tiles: &mut [u16]) {
    let blocks = as_blocks::<BlockQ4K>(row);
    // One block ahead, as it takes long until a scale can be loaded.
    let factors_of = |block| floats(q4_k::scales_and_minima(block));
    let mut next = blocks.first().map(factors_of);
    for (i, block) in blocks.iter().enumerate() {
        let Some(factors) = next else { return };
        next = blocks.get(i + 1).map(factors_of);
        let values = |group: usize| {
            let scale = everywhere(&factors[group]);
            let minimum = everywhere(&factors[8 + group]);
            _mm512_sub_ps(_mm512_mul_ps(scale, counting()), minimum)
        };
        for (j, pair) in block.qs.as_chunks::<32>().0.iter().enumerate() {
            let words = _mm512_cvtepu8_epi16(load256::<0, _>(pair));
            let (even, odd) = (2 * j, 2 * j + 1);
            // Two tables of sixteen: that of the even group, whose codes are the low halves, is the second.
            let table = rounded(values(odd), values(even));
            // 16 | words & 15
            let low = _mm512_ternarylogic_epi32::<0xF8>(
                _mm512_set1_epi16(16),
                words,
                _mm512_set1_epi16(15),
            );
            put_group(tiles, 8 * i + even, look_up(table, low));
            let high = _mm512_srli_epi16::<4>(words);
            put_group(tiles, 8 * i + odd, look_up(table, high));
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q5_k(row: &[u8], tiles: &mut [u16]) {
    let high = _mm512_add_ps(counting(), _mm512_set1_ps(16.0));
    let blocks = as_blocks::<BlockQ5K>(row);
    let factors_of = |block| floats(q4_k::scales_and_minima(block));
    let mut next = blocks.first().map(factors_of);
    for (i, block) in blocks.iter().enumerate() {
        let Some(factors) = next else { return };
        next = blocks.get(i + 1).map(factors_of);
        let fifth = load256::<0, _>(&block.qh);
        for (group, bit) in [1, 2, 4, 8, 16, 32, 64, -128].into_iter().enumerate() {
            let scale = everywhere(&factors[group]);
            let minimum = everywhere(&factors[8 + group]);
            let table = rounded(
                _mm512_sub_ps(_mm512_mul_ps(scale, counting()), minimum),
                _mm512_sub_ps(_mm512_mul_ps(scale, high), minimum),
            );
            let words =
                _mm512_cvtepu8_epi16(load256::<0, _>(&block.qs.as_chunks::<32>().0[group / 2]));
            let words = if group % 2 == 0 {
                words
            } else {
                _mm512_srli_epi16::<4>(words)
            };
            let fifth = _mm256_test_epi8_mask(fifth, _mm256_set1_epi8(bit));
            put_group(
                tiles,
                8 * i + group,
                look_up(table, with_fifth(words, fifth)),
            );
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q6_k(row: &[u8], tiles: &mut [u16]) {
    for (i, block) in as_blocks::<BlockQ6K>(row).iter().enumerate() {
        let (codes, scales) = q6_k::codes_and_scales(block);
        let scales = floats(scales);
        for (j, codes) in codes.into_iter().enumerate() {
            let codes = _mm512_sub_epi8(codes, _mm512_set1_epi8(32));
            for (half, codes) in [
                _mm512_castsi512_si256(codes),
                _mm512_extracti64x4_epi64::<1>(codes),
            ]
            .into_iter()
            .enumerate()
            {
                let group = 2 * j + half;
                let values = scaled(
                    _mm256_castsi256_si128(codes),
                    _mm256_extracti128_si256::<1>(codes),
                    everywhere(&scales[2 * group]),
                    everywhere(&scales[2 * group + 1]),
                );
                put_group(tiles, 8 * i + group, values);
            }
        }
    }
}

/// Blocks of 32 values, whose scales (and minima) eight at a time are converted by `scales`; those of the blocks that are left come
/// from `of_one`. `values` gets them in all lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn each_eight<B: Block>(
    row: &[u8],
    tiles: &mut [u16],
    scales: impl Fn(&[B; 8]) -> __m512,
    of_one: impl Fn(&B) -> [F16Le; 2],
    values: impl Fn(&B, __m512, __m512) -> __m512i,
) {
    let (eights, rest) = as_blocks::<B>(row).as_chunks::<8>();
    // Eight blocks ahead, as in Q4_K.
    let factors_of = |blocks| floats(scales(blocks));
    let mut next = eights.first().map(factors_of);
    for (i, blocks) in eights.iter().enumerate() {
        let Some(factors) = next else { break };
        next = eights.get(i + 1).map(factors_of);
        for (j, block) in blocks.iter().enumerate() {
            let (scale, minimum) = (everywhere(&factors[j]), everywhere(&factors[8 + j]));
            put_group(tiles, 8 * i + j, values(block, scale, minimum));
        }
    }
    for (i, block) in rest.iter().enumerate() {
        let [scale, minimum] = of_one(block).map(|half| q6_k::broadcast_half(half));
        put_group(tiles, 8 * eights.len() + i, values(block, scale, minimum));
    }
}

/// A value in all lanes, by a load: the compiler would rather keep all of them in a register and shuffle.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn everywhere(value: &f32) -> __m512 {
    let values: __m512;
    // SAFETY: reads the four bytes of `value`; the caller's features include the instruction.
    unsafe {
        std::arch::asm!(
            "vbroadcastss {values}, dword ptr [{value}]",
            values = out(zmm_reg) values,
            value = in(reg) std::ptr::from_ref(value),
            options(nostack, readonly, pure, preserves_flags),
        );
    }
    values
}

/// Sixteen signed bytes and sixteen more, each times its scale.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn scaled(low: __m128i, high: __m128i, low_scale: __m512, high_scale: __m512) -> __m512i {
    let value = |q, scale| _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q)));
    rounded(value(low, low_scale), value(high, high_scale))
}

/// 0 to 15.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn counting() -> __m512 {
    _mm512_setr_ps(
        0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
    )
}

/// Thirty-two values to bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn rounded(low: __m512, high: __m512) -> __m512i {
    // SAFETY: both are 512 bits without invalid values.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) }
}

/// In memory, from where one value can be had in all lanes without a shuffle.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn floats(values: __m512) -> [f32; 16] {
    let mut floats = [0.0; 16];
    store_f32(&mut floats, values);
    floats
}

/// The low halves of sixteen bytes, then the high halves, in the lowest four bits of a word each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn nibbles(bytes: &[u8; 16]) -> __m512i {
    /// Each byte twice, for the low and the high halves.
    const ORDER: [u8; 64] = {
        let mut order = [0; 64];
        let mut i = 0;
        while i < 64 {
            order[i] = (i / 2 % 16) as u8;
            i += 1;
        }
        order
    };
    let twice = _mm512_broadcast_i32x4(load128::<0, _>(bytes));
    let words = _mm512_permutexvar_epi8(load512::<0, _>(&ORDER), twice);
    _mm512_mask_srli_epi16::<4>(words, 0xFFFF_0000, words)
}

/// Words below 32, of their lowest four bits and a fifth.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn with_fifth(words: __m512i, fifth: u32) -> __m512i {
    let low = _mm512_and_si512(words, _mm512_set1_epi16(15));
    _mm512_mask_add_epi16(low, fifth, low, _mm512_set1_epi16(16))
}

/// The table's value for the lowest five bits of each of 32 words.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn look_up(table: __m512i, words: __m512i) -> __m512i {
    _mm512_permutexvar_epi16(words, table)
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
