//! Int8 activations: the one format in which inputs of a matmul meet quantised weights of any type.
//!
//! ggml has three (Q8_0, Q8_1, Q8_K), chosen by the weight's type. One format means that an input is quantised once
//! however many types its consumers have, that f32 scales lose nothing, and that the sums which formats with a minimum
//! or an offset need are ready. A scale for each 16 values costs kernels nothing, whose lanes hold sums of 16 products or
//! fewer anyway, and leaves little more than half the squared error of Q8_0's scale for each 32, because activations
//! have outliers.
//!
//! The quantiser here is the definition: SIMD versions must give the same bits, and can, because each step is exact or
//! a single rounding, and the maximum does not depend on the order of evaluation.

use bytemuck::{Pod, Zeroable};

use crate::block::dot_i8;

/// Values that share a scale.
pub const RUN_LEN: usize = 16;

/// Values that share a sum: two runs.
pub const GROUP_LEN: usize = 32;

/// 256 activations: value `i` is `scales[i / 16] * qs[i]`. Eleven vectors of 32 bytes.
#[repr(C, align(32))]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct ActivationBlock {
    /// Quants, -127..=127.
    pub qs: [i8; 256],
    /// One for each run of 16 values. NaN marks a run that held NaN or an infinity; its quants are 0.
    pub scales: [f32; 16],
    /// One for each group of 32: the sum of its values, that is of `scales[r]` times the sum of the quants of run `r`, for
    /// its two runs.
    pub sums: [f32; 8],
}

const _: () = assert!(size_of::<ActivationBlock>() == 352);

impl ActivationBlock {
    /// Values in a block.
    pub const LEN: usize = 256;

    /// 256 zeros; what buffers start from.
    pub const ZERO: Self = Self {
        qs: [0; 256],
        scales: [0.0; 16],
        sums: [0.0; 8],
    };

    /// Blocks that hold `n_elements`; the last one may be part empty.
    pub fn count(n_elements: usize) -> usize {
        n_elements.div_ceil(Self::LEN)
    }

    /// Σ `weights[i]` times value `i` of run `run`.
    pub(crate) fn run_dot(&self, run: usize, weights: &[i8]) -> f64 {
        let sum = dot_i8(weights, &self.qs[RUN_LEN * run..][..RUN_LEN]);
        f64::from(self.scales[run]) * f64::from(sum)
    }

    /// Σ `weights[i]` times value `i` of group `group`.
    pub(crate) fn group_dot(&self, group: usize, weights: &[i8]) -> f64 {
        let (first, second) = weights.split_at(RUN_LEN);
        self.run_dot(2 * group, first) + self.run_dot(2 * group + 1, second)
    }
}

/// Quantises `src`, whose length is a multiple of 32, to `ActivationBlock::count(src.len())` blocks. Groups past the end
/// of `src` become zero.
///
/// For each 16 values: `amax` is the largest magnitude. Below 1e-30 the run is zero. Else the scale is `amax / 127`, and a
/// quant is `x * (127 / amax)` rounded to nearest, ties to even. A run with NaN or an infinity gets scale NaN and quants 0,
/// and its group the sum NaN, so that the fault reaches the logits instead of looking like a number.
///
/// # Panics
/// If the lengths do not fit.
pub fn quantize_activations(src: &[f32], dst: &mut [ActivationBlock]) {
    let (groups, rest) = src.as_chunks::<GROUP_LEN>();
    assert!(rest.is_empty(), "activations come in groups of 32");
    assert_eq!(
        dst.len(),
        ActivationBlock::count(src.len()),
        "one block for each 256 values"
    );
    for (block, groups) in dst.iter_mut().zip(groups.chunks(8)) {
        if groups.len() < 8 {
            *block = ActivationBlock::ZERO;
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

/// Writes the values that `src` stands for; `dst` may end before the last block does.
///
/// # Panics
/// If `src` is not `ActivationBlock::count(dst.len())` long.
pub fn dequantize_activations(src: &[ActivationBlock], dst: &mut [f32]) {
    assert_eq!(
        src.len(),
        ActivationBlock::count(dst.len()),
        "one block for each 256 values"
    );
    for (block, dst) in src.iter().zip(dst.chunks_mut(ActivationBlock::LEN)) {
        for (i, y) in dst.iter_mut().enumerate() {
            *y = block.scales[i / RUN_LEN] * f32::from(block.qs[i]);
        }
    }
}

/// Rounds to the nearest integer, ties to even, for |x| < 2^22: adding 1.5 * 2^23 leaves a float whose last bit is worth
/// 1. A plain addition, so it vectorises everywhere, where `round_ties_even` would call libm on baseline x86-64.
pub(crate) fn nearest_int(x: f32) -> i32 {
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT).to_bits() as i32 - SHIFT.to_bits() as i32
}

/// Returns the scale, and the sum of the quants.
fn quantize_run(src: &[f32; RUN_LEN], qs: &mut [i8; RUN_LEN]) -> (f32, f32) {
    // The bit patterns of magnitudes order like the magnitudes, with infinity and then NaN above all finite values: an
    // integer maximum finds the largest and the faults at once, in any order of evaluation.
    let amax = f32::from_bits(src.iter().fold(0, |max, x| max.max(x.abs().to_bits())));
    if !amax.is_finite() {
        qs.fill(0);
        return (f32::NAN, 0.0);
    }
    if amax < MIN_AMAX {
        qs.fill(0);
        return (0.0, 0.0);
    }
    let inverse = 127.0 / amax;
    let mut sum = 0;
    for (q, &x) in qs.iter_mut().zip(src) {
        // |x * inverse| is at most 127 and two roundings, so it cannot round to 128.
        let quant = nearest_int(x * inverse);
        *q = quant as i8;
        sum += quant;
    }
    (amax / 127.0, sum as f32)
}

/// Smallest magnitude not flushed to zero. Keeps `127 / amax` from overflowing and the scale out of the subnormals, where
/// a processor may be slow or set to flush; nothing a network computes is that small on purpose.
const MIN_AMAX: f32 = 1e-30;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn quantized(src: &[f32]) -> Vec<ActivationBlock> {
        let mut blocks = vec![ActivationBlock::ZERO; ActivationBlock::count(src.len())];
        quantize_activations(src, &mut blocks);
        blocks
    }

    proptest! {
            #[test]
            fn error_is_at_most_half_a_step(
                mut src in prop::collection::vec(-1e3f32..1e3, 0..700),
                magnitude in -20i32..20,
            ) {
                src.truncate(src.len() / GROUP_LEN * GROUP_LEN);
                for x in &mut src {
     *x *= 10f32.powi(magnitude);
    }
                let blocks = quantized(&src);
                let mut back = vec![0.0; src.len()];
                dequantize_activations(&blocks, &mut back);
                for (x, y) in src.chunks(RUN_LEN).zip(back.chunks(RUN_LEN)) {
                    let amax = x.iter().fold(0f32, |m, x| m.max(x.abs()));
                    for (x, y) in x.iter().zip(y) {
                        prop_assert!((x - y).abs() <= amax / 127.0 * 0.50001, "{x} became {y} beside {amax}");
                    }
                }
                for (g, y) in back.chunks(GROUP_LEN).enumerate() {
                    let amax = y.iter().fold(0f32, |m, y| m.max(y.abs()));
                    let sum: f64 = y.iter().map(|&y| f64::from(y)).sum();
                    let tolerance = f64::from(amax) * 32.0 * f64::from(f32::EPSILON);
                    prop_assert!((f64::from(blocks[g / 8].sums[g % 8]) - sum).abs() <= tolerance);
                }
            }

            #[test]
            fn nearest_int_rounds_ties_to_even(x in -2_000_000f32..2_000_000.0, half in -1000i32..1000) {
                prop_assert_eq!(nearest_int(x), x.round_ties_even() as i32);
                let tie = half as f32 + 0.5;
                prop_assert_eq!(nearest_int(tie), tie.round_ties_even() as i32);
            }
        }

    #[test]
    fn groups_past_the_end_are_zero() {
        let mut blocks = [ActivationBlock {
            qs: [7; 256],
            scales: [7.0; 16],
            sums: [7.0; 8],
        }];
        quantize_activations(&[1.0; 32], &mut blocks);
        assert_eq!(blocks[0].qs[..32], [127; 32]);
        assert_eq!(blocks[0].sums[0], 127.0 * 32.0 * (1.0 / 127.0));
        assert!(blocks[0].qs[32..].iter().all(|&q| q == 0));
        assert_eq!(blocks[0].scales[2..], [0.0; 14]);
        assert_eq!(blocks[0].sums[1..], [0.0; 7]);
    }

    #[test]
    fn faults_reach_the_scale_and_tiny_values_flush() {
        for fault in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut src = [1.0; 64];
            src[33] = fault;
            let block = quantized(&src)[0];
            assert!(
                block.scales[1].is_finite() && block.scales[2].is_nan() && block.sums[1].is_nan()
            );
            assert!(block.scales[3].is_finite() && block.sums[0].is_finite());
            assert_eq!(block.qs[32..64], [[0; 16], [127; 16]].concat());
        }
        for tiny in [0.0, -0.0, f32::MIN_POSITIVE, 9e-31, f32::from_bits(1)] {
            assert_eq!(quantized(&[tiny; 32])[0], ActivationBlock::ZERO);
        }
        assert_eq!(quantized(&[f32::MAX; 32])[0].qs[..32], [127; 32]);
    }

    #[test]
    #[should_panic(expected = "groups of 32")]
    fn odd_lengths_are_refused() {
        quantize_activations(&[0.0; 33], &mut [ActivationBlock::ZERO]);
    }
}
