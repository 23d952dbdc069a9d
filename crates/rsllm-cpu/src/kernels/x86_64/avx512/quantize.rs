//! Quantising activations, bit for bit as `rsllm_quant::quantize_activations` does.

use std::arch::x86_64::*;

use bytemuck::Zeroable;
use rsllm_quant::{ActivationBlock, GROUP_LEN};

use super::simd::load_f32;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
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
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn quantize_group(src: &[f32; GROUP_LEN], qs: &mut [i8; GROUP_LEN]) -> (f32, f32) {
    let (halves, _) = src.as_chunks::<16>();
    let x = [load_f32(&halves[0]), load_f32(&halves[1])];
    // The bits of magnitudes order like the magnitudes, faults above all finite values.
    let magnitudes = [
        _mm512_castps_si512(_mm512_abs_ps(x[0])),
        _mm512_castps_si512(_mm512_abs_ps(x[1])),
    ];
    let amax = _mm512_reduce_max_epi32(_mm512_max_epi32(magnitudes[0], magnitudes[1]));
    let amax = f32::from_bits(amax as u32);
    if !amax.is_finite() || amax < MIN_AMAX {
        qs.fill(0);
        return if amax.is_finite() {
            (0.0, 0.0)
        } else {
            (f32::NAN, f32::NAN)
        };
    }
    let inverse = _mm512_set1_ps(127.0 / amax);
    // Conversion rounds to nearest, ties to even.
    let quants = [
        _mm512_cvtps_epi32(_mm512_mul_ps(x[0], inverse)),
        _mm512_cvtps_epi32(_mm512_mul_ps(x[1], inverse)),
    ];
    let (low, high) = (
        _mm512_cvtepi32_epi8(quants[0]),
        _mm512_cvtepi32_epi8(quants[1]),
    );
    // SAFETY: `qs` is 32 bytes long; `storeu` has no alignment duty.
    unsafe { _mm256_storeu_si256(qs.as_mut_ptr().cast(), _mm256_set_m128i(high, low)) };
    let sum = _mm512_reduce_add_epi32(_mm512_add_epi32(quants[0], quants[1]));
    let scale = amax / 127.0;
    (scale, scale * sum as f32)
}
