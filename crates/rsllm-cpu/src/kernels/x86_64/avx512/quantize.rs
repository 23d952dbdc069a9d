//! Quantising activations, bit for bit as `rsllm_quant::quantize_activations` does.

use std::arch::x86_64::*;

use bytemuck::Zeroable;
use rsllm_quant::{ActivationBlock, GROUP_LEN, RUN_LEN};

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
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn quantize_run(src: &[f32; RUN_LEN], qs: &mut [i8; RUN_LEN]) -> (f32, f32) {
    let x = load_f32(src);
    // The bits of magnitudes order like the magnitudes, faults above all finite values.
    let amax = _mm512_reduce_max_epi32(_mm512_castps_si512(_mm512_abs_ps(x)));
    let amax = f32::from_bits(amax as u32);
    if !amax.is_finite() || amax < MIN_AMAX {
        qs.fill(0);
        return (if amax.is_finite() { 0.0 } else { f32::NAN }, 0.0);
    }
    // Conversion rounds to nearest, ties to even.
    let quants = _mm512_cvtps_epi32(_mm512_mul_ps(x, _mm512_set1_ps(127.0 / amax)));
    // SAFETY: `qs` is 16 bytes long; `storeu` has no alignment duty.
    unsafe { _mm_storeu_si128(qs.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(quants)) };
    (amax / 127.0, _mm512_reduce_add_epi32(quants) as f32)
}
