//! Quantising activations, bit for bit as `rsllm_quant::quantize_activations` does.

use std::arch::x86_64::*;

use bytemuck::Zeroable;
use rsllm_quant::{ActivationBlock, GROUP_LEN};

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
        let (qs, _) = block.qs.as_chunks_mut::<GROUP_LEN>();
        for (g, group) in groups.iter().enumerate() {
            (block.scales[g], block.sums[g]) = quantize_group(group, &mut qs[g]);
        }
    }
}

/// Smallest magnitude not flushed to zero, as in rsllm-quant.
const MIN_AMAX: f32 = 1e-30;

/// Returns scale and sum.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn quantize_group(src: &[f32; GROUP_LEN], qs: &mut [i8; GROUP_LEN]) -> (f32, f32) {
    let (eights, _) = src.as_chunks::<8>();
    let x = [
        load_f32(&eights[0]),
        load_f32(&eights[1]),
        load_f32(&eights[2]),
        load_f32(&eights[3]),
    ];
    // The bits of magnitudes order like the magnitudes, faults above all finite values.
    let magnitude =
        |x: __m256| _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(i32::MAX));
    let a = _mm256_max_epi32(magnitude(x[0]), magnitude(x[1]));
    let b = _mm256_max_epi32(magnitude(x[2]), magnitude(x[3]));
    let eight = _mm256_max_epi32(a, b);
    let four = _mm_max_epi32(
        _mm256_castsi256_si128(eight),
        _mm256_extracti128_si256::<1>(eight),
    );
    let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b00_00_11_10>(four));
    let amax = _mm_max_epi32(two, _mm_shuffle_epi32::<1>(two));
    let amax = f32::from_bits(_mm_cvtsi128_si32(amax) as u32);
    if !amax.is_finite() || amax < MIN_AMAX {
        qs.fill(0);
        return if amax.is_finite() {
            (0.0, 0.0)
        } else {
            (f32::NAN, f32::NAN)
        };
    }
    let inverse = _mm256_set1_ps(127.0 / amax);
    // Conversion rounds to nearest, ties to even.
    let quants = |x: __m256| _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse));
    let quants = [quants(x[0]), quants(x[1]), quants(x[2]), quants(x[3])];
    // Packing works on halves of vectors, so the eights of bytes come out as 0 4 1 5 2 6 3 7, four at a time.
    let packed = _mm256_packs_epi16(
        _mm256_packs_epi32(quants[0], quants[1]),
        _mm256_packs_epi32(quants[2], quants[3]),
    );
    let packed = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    // SAFETY: `qs` is 32 bytes long; `storeu` has no alignment duty.
    unsafe { _mm256_storeu_si256(qs.as_mut_ptr().cast(), packed) };
    let eight = _mm256_add_epi32(
        _mm256_add_epi32(quants[0], quants[1]),
        _mm256_add_epi32(quants[2], quants[3]),
    );
    let four = _mm_add_epi32(
        _mm256_castsi256_si128(eight),
        _mm256_extracti128_si256::<1>(eight),
    );
    let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b00_00_11_10>(four));
    let sum = _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<1>(two)));
    let scale = amax / 127.0;
    (scale, scale * sum as f32)
}
