//! Weights to the integers of the prefill product. What a format's bytes mean stands in its file; here is where values go.
//!
//! Codes of four and five bits are not multiplied one by one: the integers that a group can have are computed once and looked up.
//! A part's scale comes from the largest value that its groups could have, whether a code has it or not.

use std::arch::x86_64::*;

use rsllm_quant::{
    Block, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K, BlockQ6K, BlockQ8_0,
    F16Le, GgmlType, as_blocks,
};

use super::simd::{load128, load256, load512, store512};
use super::{q4_k, q6_k};
use crate::kernels::{Integers, ScaledRow, UnpackIntegers};

/// The kernel for weights of type `ty`; `None` for those that are unpacked to f32 first.
pub(super) fn of_type(ty: GgmlType) -> Option<UnpackIntegers> {
    Some(match ty {
        GgmlType::Q4_0 => q4_0,
        GgmlType::Q4_1 => q4_1,
        GgmlType::Q5_0 => q5_0,
        GgmlType::Q5_1 => q5_1,
        GgmlType::Q8_0 => q8_0,
        GgmlType::Q4_K => q4_k,
        GgmlType::Q5_K => q5_k,
        GgmlType::Q6_K => q6_k,
        _ => return None,
    })
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn q4_0(blocks: &[u8], dst: &mut ScaledRow) {
    let blocks = as_blocks::<BlockQ4_0>(blocks);
    let scales = halves(blocks, |block| block.d);
    let minima = _mm256_mul_ps(scales, _mm256_set1_ps(8.0));
    let groups = Groups::new::<15>(scales, minima);
    each_block(blocks, dst, |i, block| {
        look_up(groups.twice(i), nibbles(&block.qs))
    });
    dst.scales = groups.part_scales;
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn q4_1(blocks: &[u8], dst: &mut ScaledRow) {
    let blocks = as_blocks::<BlockQ4_1>(blocks);
    let scales = halves(blocks, |block| block.d);
    let minima = negated(halves(blocks, |block| block.m));
    let groups = Groups::new::<15>(scales, minima);
    each_block(blocks, dst, |i, block| {
        look_up(groups.twice(i), nibbles(&block.qs))
    });
    dst.scales = groups.part_scales;
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn q5_0(blocks: &[u8], dst: &mut ScaledRow) {
    let blocks = as_blocks::<BlockQ5_0>(blocks);
    let scales = halves(blocks, |block| block.d);
    let minima = _mm256_mul_ps(scales, _mm256_set1_ps(16.0));
    let groups = Groups::new::<31>(scales, minima);
    each_block(blocks, dst, |i, block| {
        let fifth = u32::from_le_bytes(block.qh);
        look_up(
            groups.of_five_bits(i),
            with_fifth(nibbles(&block.qs), fifth),
        )
    });
    dst.scales = groups.part_scales;
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn q5_1(blocks: &[u8], dst: &mut ScaledRow) {
    let blocks = as_blocks::<BlockQ5_1>(blocks);
    let scales = halves(blocks, |block| block.d);
    let minima = negated(halves(blocks, |block| block.m));
    let groups = Groups::new::<31>(scales, minima);
    each_block(blocks, dst, |i, block| {
        let fifth = u32::from_le_bytes(block.qh);
        look_up(
            groups.of_five_bits(i),
            with_fifth(nibbles(&block.qs), fifth),
        )
    });
    dst.scales = groups.part_scales;
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn q8_0(blocks: &[u8], dst: &mut ScaledRow) {
    let blocks = as_blocks::<BlockQ8_0>(blocks);
    let scales = halves(blocks, |block| block.d);
    // No code is larger than that of -128.
    let most = _mm256_mul_ps(scales, _mm256_set1_ps(128.0));
    let (factors, part_scales) = part_factors(magnitudes(most));
    let scales = _mm512_castps256_ps512(_mm256_mul_ps(scales, factors));
    each_block(blocks, dst, |i, block| {
        let scale = _mm512_permutexvar_ps(_mm512_set1_epi32(i), scales);
        scaled(load256::<0, _>(&block.qs), [scale; 2])
    });
    dst.scales = part_scales;
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn q4_k(blocks: &[u8], dst: &mut ScaledRow) {
    let [block] = as_blocks::<BlockQ4K>(blocks) else {
        unreachable!("up to 256 values are one block");
    };
    let groups = Groups::of_k::<15>(q4_k::scales_and_minima(block));
    let pairs = block.qs.as_chunks::<32>().0;
    for (j, (pair, groups_of_pair)) in pairs
        .iter()
        .zip(as_groups(dst).as_chunks_mut().0)
        .enumerate()
    {
        let [even, odd] = groups_of_pair;
        let words = _mm512_cvtepu8_epi16(load256::<0, _>(pair));
        let table = groups.pair(j as i32);
        // The even group's table is the second. 16 | words & 15
        let low =
            _mm512_ternarylogic_epi32::<0xF8>(_mm512_set1_epi16(16), words, _mm512_set1_epi16(15));
        store512(even, look_up(table, low));
        store512(odd, look_up(table, _mm512_srli_epi16::<4>(words)));
    }
    dst.scales = groups.part_scales;
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn q5_k(blocks: &[u8], dst: &mut ScaledRow) {
    let [block] = as_blocks::<BlockQ5K>(blocks) else {
        unreachable!("up to 256 values are one block");
    };
    let groups = Groups::of_k::<31>(q4_k::scales_and_minima(block));
    let fifth = load256::<0, _>(&block.qh);
    let pairs = block.qs.as_chunks::<32>().0;
    for (j, (pair, groups_of_pair)) in pairs
        .iter()
        .zip(as_groups(dst).as_chunks_mut().0)
        .enumerate()
    {
        let [even, odd] = groups_of_pair;
        let words = _mm512_cvtepu8_epi16(load256::<0, _>(pair));
        let first = 2 * j as i32;
        let bits_of = |group| _mm256_test_epi8_mask(fifth, _mm256_set1_epi8((1u8 << group) as i8));
        let low = with_fifth(words, bits_of(first));
        store512(even, look_up(groups.of_five_bits(first), low));
        let high = with_fifth(_mm512_srli_epi16::<4>(words), bits_of(first + 1));
        store512(odd, look_up(groups.of_five_bits(first + 1), high));
    }
    dst.scales = groups.part_scales;
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn q6_k(blocks: &[u8], dst: &mut ScaledRow) {
    let [block] = as_blocks::<BlockQ6K>(blocks) else {
        unreachable!("up to 256 values are one block");
    };
    let (codes, scales) = q6_k::codes_and_scales(block);
    // Eight runs a part, which meet in one lane of eight.
    let runs = _mm512_castps_si512(_mm512_abs_ps(scales));
    let pairs = _mm512_max_epi32(runs, _mm512_shuffle_epi32::<0b10_11_00_01>(runs));
    let groups = _mm512_castsi512_ps(_mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0),
        pairs,
    ));
    // No code is further from zero than -32.
    let most = _mm256_mul_ps(_mm512_castps512_ps256(groups), _mm256_set1_ps(32.0));
    let (factors, part_scales) = part_factors(magnitudes(most));
    let both = _mm512_permutexvar_ps(
        _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7),
        _mm512_castps256_ps512(factors),
    );
    let scales = _mm512_mul_ps(scales, both);
    for (j, (codes, groups)) in (codes.into_iter())
        .zip(as_groups(dst).as_chunks_mut().0)
        .enumerate()
    {
        let [first, second] = groups;
        let codes = _mm512_sub_epi8(codes, _mm512_set1_epi8(32));
        let scale = |run| _mm512_permutexvar_ps(_mm512_set1_epi32(4 * j as i32 + run), scales);
        let low = scaled(_mm512_castsi512_si256(codes), [scale(0), scale(1)]);
        store512(first, low);
        let high = scaled(_mm512_extracti64x4_epi64::<1>(codes), [scale(2), scale(3)]);
        store512(second, high);
    }
    dst.scales = part_scales;
}

/// Eight groups of 32, whose values are scale · code - minimum, in units of their part's scale.
struct Groups {
    /// Eight scales and eight minima.
    factors: __m512,
    part_scales: [f32; 2],
}

impl Groups {
    /// `MOST` is the largest code.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new<const MOST: u8>(scales: __m256, minima: __m256) -> Self {
        let last = _mm256_fmsub_ps(_mm256_set1_ps(f32::from(MOST)), scales, minima);
        let most = _mm256_max_epi32(magnitudes(last), magnitudes(minima));
        let (factors, part_scales) = part_factors(most);
        let scales = _mm256_mul_ps(scales, factors);
        let minima = _mm256_mul_ps(minima, factors);
        Self {
            factors: _mm512_insertf32x8::<1>(_mm512_castps256_ps512(scales), minima),
            part_scales,
        }
    }

    /// From eight scales and eight minima.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn of_k<const MOST: u8>(factors: __m512) -> Self {
        let minima = _mm512_extractf32x8_ps::<1>(factors);
        Self::new::<MOST>(_mm512_castps512_ps256(factors), minima)
    }

    /// The sixteen values of a group, twice.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn twice(&self, group: i32) -> __m512i {
        self.table(
            _mm512_set1_epi32(group),
            [&SIXTEEN_TWICE[0], &SIXTEEN_TWICE[1]],
        )
    }

    /// The sixteen values of the odd group of a pair, then those of the even one.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn pair(&self, pair: i32) -> __m512i {
        let odd = _mm512_set1_epi32(2 * pair + 1);
        let groups = _mm512_mask_set1_epi32(odd, 0xff00, 2 * pair);
        self.table(groups, [&SIXTEEN_TWICE[0], &SIXTEEN_TWICE[1]])
    }

    /// The thirty-two values of a group.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn of_five_bits(&self, group: i32) -> __m512i {
        self.table(_mm512_set1_epi32(group), [&THIRTY_TWO[0], &THIRTY_TWO[1]])
    }

    /// The values of codes, each lane's of its group, in the order in which packing puts them.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn table(&self, groups: __m512i, codes: [&[f32; 16]; 2]) -> __m512i {
        let scales = _mm512_permutexvar_ps(groups, self.factors);
        let eight = _mm512_set1_epi32(8);
        let minima = _mm512_permutexvar_ps(_mm512_add_epi32(groups, eight), self.factors);
        let values = |codes: &[f32; 16]| {
            let codes = _mm512_castsi512_ps(load512::<0, _>(codes));
            _mm512_cvtps_epi32(_mm512_fmsub_ps(codes, scales, minima))
        };
        _mm512_packs_epi32(values(codes[0]), values(codes[1]))
    }
}

/// Codes whose values, packed, are those of 0 to 15, twice: quarters of packed vectors are of four from either.
const SIXTEEN_TWICE: [[f32; 16]; 2] = in_order_of_packing(16);
/// The same of 0 to 31.
const THIRTY_TWO: [[f32; 16]; 2] = in_order_of_packing(32);

const fn in_order_of_packing(n_codes: usize) -> [[f32; 16]; 2] {
    let mut codes = [[0.0; 16]; 2];
    let mut place = 0;
    while place < 32 {
        codes[place / 4 % 2][place / 8 * 4 + place % 4] = (place % n_codes) as f32;
        place += 1;
    }
    codes
}

/// From the bits of the largest magnitude of each group what its values are multiplied with, and the scales of the two parts. The
/// same as [`Integers::scale`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn part_factors(most: __m256i) -> (__m256, [f32; 2]) {
    let most = _mm256_max_epi32(most, _mm256_shuffle_epi32::<0b01_00_11_10>(most));
    let most = _mm256_max_epi32(most, _mm256_shuffle_epi32::<0b10_11_00_01>(most));
    let most = _mm256_castsi256_ps(most);
    let limit = _mm256_set1_ps(Integers::WEIGHT_LIMIT);
    let there = _mm256_cmp_ps_mask::<_CMP_NLT_UQ>(most, _mm256_set1_ps(Integers::LEAST));
    let scales = _mm256_maskz_div_ps(there, most, limit);
    let part_scales = [
        _mm256_cvtss_f32(scales),
        _mm_cvtss_f32(_mm256_extractf32x4_ps::<1>(scales)),
    ];
    (_mm256_maskz_div_ps(there, limit, most), part_scales)
}

/// Bits of magnitudes: as integers they have their order, and what is no number comes last.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn magnitudes(values: __m256) -> __m256i {
    _mm256_castps_si256(_mm256_andnot_ps(_mm256_set1_ps(-0.0), values))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn negated(values: __m256) -> __m256 {
    _mm256_xor_ps(_mm256_set1_ps(-0.0), values)
}

/// A half of each of up to eight blocks, zeros for those that are not there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,f16c")]
fn halves<B: Block>(blocks: &[B], of: impl Fn(&B) -> F16Le) -> __m256 {
    let mut bits = [0u16; 8];
    for (bits, block) in bits.iter_mut().zip(blocks) {
        *bits = of(block).to_bits();
    }
    _mm256_cvtph_ps(load128::<0, _>(&bits))
}

/// Groups of 32 of both parts.
fn as_groups(dst: &mut ScaledRow) -> &mut [[i16; 32]] {
    dst.q.as_flattened_mut().as_chunks_mut().0
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn each_block<B: Block>(blocks: &[B], dst: &mut ScaledRow, values: impl Fn(i32, &B) -> __m512i) {
    for ((i, block), dst) in (0..).zip(blocks).zip(as_groups(dst)) {
        store512(dst, values(i, block));
    }
}

/// The low halves of sixteen bytes, then the high halves, in the lowest four bits of a word each; those above are any.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn nibbles(bytes: &[u8; 16]) -> __m512i {
    let words = _mm256_cvtepu8_epi16(load128::<0, _>(bytes));
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(words), _mm256_srli_epi16::<4>(words))
}

/// Words below 32, of their lowest four bits and a fifth.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn with_fifth(words: __m512i, fifth: u32) -> __m512i {
    let low = _mm512_and_si512(words, _mm512_set1_epi16(15));
    _mm512_mask_add_epi16(low, fifth, low, _mm512_set1_epi16(16))
}

/// The table's value for the lowest five bits of each of 32 words.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn look_up(table: __m512i, words: __m512i) -> __m512i {
    _mm512_permutexvar_epi16(words, table)
}

/// Thirty-two signed bytes, each half times its scale.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn scaled(codes: __m256i, scales: [__m512; 2]) -> __m512i {
    let value = |codes, scale| {
        let codes = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
        _mm512_cvtps_epi32(_mm512_mul_ps(scale, codes))
    };
    let low = value(_mm256_castsi256_si128(codes), scales[0]);
    let high = value(_mm256_extracti128_si256::<1>(codes), scales[1]);
    // Packing takes four of either in turn.
    let order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    _mm512_permutexvar_epi64(order, _mm512_packs_epi32(low, high))
}
