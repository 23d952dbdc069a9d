//! Quantising activations, bit for bit as `rsllm_quant::quantize_activations` does.

use std::arch::x86_64::*;

use bytemuck::Zeroable;
use rsllm_quant::{ActivationBlock, GROUP_LEN, RUN_LEN};

use super::simd::load_f32;

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn quantize_activations(src: &[f32], dst: &mut [ActivationBlock]) {
    let (groups, rest) = src.as_chunks::<GROUP_LEN>();
    assert!(
        rest.is_empty() && dst.len() == groups.len().div_ceil(8),
        "groups of 32, a block for each eight"
    );
    for (block, groups) in dst.iter_mut().zip(groups.chunks(8)) {
        if groups.len() < 8 {
            *block = ActivationBlock::zeroed();
        }
        let (qs, _) = block.qs.as_chunks_mut::<RUN_LEN>();
        for (g, group) in groups.iter().enumerate() {
            let (runs, _) = group.as_chunks::<RUN_LEN>();
            let (first, first_sum) = quantize_run(&runs[0], &mut qs[2 * g]);
            let (second, second_sum) = quantize_run(&runs[1], &mut qs[2 * g + 1]);
            block.scales[2 * g] = first;
            block.scales[2 * g + 1] = second;
            block.sums[g] = first * first_sum + second * second_sum;
        }
    }
}

/// Smallest magnitude not flushed to zero, as in rsllm-quant.
const MIN_AMAX: f32 = 1e-30;

/// Returns the scale, and the sum of the quants.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn quantize_run(src: &[f32; RUN_LEN], qs: &mut [i8; RUN_LEN]) -> (f32, f32) {
    let (eights, _) = src.as_chunks::<8>();
    let x = [load_f32(&eights[0]), load_f32(&eights[1])];
    // The bits of magnitudes order like the magnitudes, faults above all finite values.
    let magnitude =
        |x: __m256| _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(i32::MAX));
    let eight = _mm256_max_epi32(magnitude(x[0]), magnitude(x[1]));
    let four = _mm_max_epi32(
        _mm256_castsi256_si128(eight),
        _mm256_extracti128_si256::<1>(eight),
    );
    let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b00_00_11_10>(four));
    let amax = _mm_max_epi32(two, _mm_shuffle_epi32::<1>(two));
    let amax = f32::from_bits(_mm_cvtsi128_si32(amax) as u32);
    if !amax.is_finite() || amax < MIN_AMAX {
        qs.fill(0);
        return (if amax.is_finite() { 0.0 } else { f32::NAN }, 0.0);
    }
    let inverse = _mm256_set1_ps(127.0 / amax);
    // Conversion rounds to nearest, ties to even.
    let quants = |x: __m256| _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse));
    let quants = [quants(x[0]), quants(x[1])];
    // Packing works on halves of vectors, so the fours come out as 0 2 1 3.
    let words = _mm256_packs_epi32(quants[0], quants[1]);
    let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
    let bytes = _mm_packs_epi16(
        _mm256_castsi256_si128(words),
        _mm256_extracti128_si256::<1>(words),
    );
    // SAFETY: `qs` is 16 bytes long; `storeu` has no alignment duty.
    unsafe { _mm_storeu_si128(qs.as_mut_ptr().cast(), bytes) };
    let eight = _mm256_add_epi32(quants[0], quants[1]);
    let four = _mm_add_epi32(
        _mm256_castsi256_si128(eight),
        _mm256_extracti128_si256::<1>(eight),
    );
    let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b00_00_11_10>(four));
    let sum = _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<1>(two)));
    (amax / 127.0, sum as f32)
}
