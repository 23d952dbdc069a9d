//! Checks that every format's tests share.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::{
    ActivationBlock, Block, FloatBlock, WeightBlock, dequantize_activations, quantize_activations,
};

/// Half a unit in the last place of a normal f16, relative: what rounding a scale costs.
const F16_ROUNDING: f32 = 1.0 / 2048.0;

/// Half the smallest f16, what a subnormal scale is off by, times the most a scale is multiplied by (in Q6_K).
const SUBNORMAL_ROUNDING: f32 = 4096.0 / (1 << 25) as f32;

/// Quantises random blocks of several shapes and magnitudes and asserts that no element moves by more than `bound` times
/// the range of the block (its largest magnitude, or largest minus smallest).
pub(crate) fn check_quantize_error<B: Block + std::fmt::Debug>(bound: f32) {
    let values = prop_oneof![
        prop::collection::vec(-1f32..1.0, B::LEN),
        prop::collection::vec(0f32..1.0, B::LEN),
        prop::collection::vec(-1f32..-0.9, B::LEN),
        // Mostly small with outliers, as weights are.
        prop::collection::vec((-1f32..1.0).prop_map(|x| x * x * x), B::LEN),
        prop::collection::vec(prop::sample::select(vec![-1f32, 0.0, 1.0, 0.5]), B::LEN),
    ];
    let mut runner = TestRunner::new(Config::with_cases(256));
    let outcome = runner.run(&(values, 0i32..4), |(mut src, magnitude)| {
        for x in &mut src {
            *x *= 10f32.powi(magnitude);
        }
        let block = B::quantize(&src);
        prop_assert!(block.has_finite_scales());
        let mut back = vec![0.0; B::LEN];
        block.dequantize(&mut back);
        let (min, max) = crate::block::min_max(&src);
        let range = max.abs().max(min.abs()).max(max - min);
        for (x, y) in src.iter().zip(&back) {
            let tolerance = range * (bound + 2.0 * F16_ROUNDING) + SUBNORMAL_ROUNDING;
            prop_assert!(
                (x - y).abs() <= tolerance,
                "{x} became {y} in range {range}, error {}",
                (x - y).abs() / range
            );
        }
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{}: {error}", B::TYPE);
    }
}

/// Asserts that a float type keeps values to a relative error, keeps zeros, and dots as f64 would.
pub(crate) fn check_float_type<B: FloatBlock + std::fmt::Debug + PartialEq>(relative: f32) {
    let mut runner = TestRunner::new(Config::with_cases(256));
    let outcome = runner.run(
        &prop::collection::vec((-100f32..100.0, -2f32..2.0), 0..70),
        |pairs| {
            let row: Vec<B> = pairs
                .iter()
                .map(|&(weight, _)| B::quantize(&[weight]))
                .collect();
            let x: Vec<f32> = pairs.iter().map(|&(_, x)| x).collect();
            let (mut sum, mut magnitude) = (0f64, 0f64);
            for (block, &(weight, x)) in row.iter().zip(&pairs) {
                let mut back = [0.0];
                block.dequantize(&mut back);
                prop_assert!(
                    (back[0] - weight).abs() <= relative * weight.abs() + 1e-7,
                    "{weight} became {}",
                    back[0]
                );
                prop_assert_eq!(B::quantize(&back), *block);
                sum += f64::from(back[0]) * f64::from(x);
                magnitude += (f64::from(back[0]) * f64::from(x)).abs();
            }
            let dot = f64::from(B::vec_dot_f32(&row, &x));
            prop_assert!((dot - sum).abs() <= magnitude * 1e-7, "{dot} {sum}");
            Ok(())
        },
    );
    if let Err(error) = outcome {
        panic!("{}: {error}", B::TYPE);
    }
}

/// Compares `vec_dot` of random blocks and activations with an f64 dot product of the decoded values.
pub(crate) fn check_vec_dot<B: WeightBlock>() {
    for n_blocks in [0, 1, 2, 3, 7, 8, 9, 33] {
        let mut runner = TestRunner::new(Config::with_cases(8));
        let n = n_blocks * B::LEN;
        let inputs = (
            prop::collection::vec(-1f32..1.0, n),
            prop::collection::vec(-3f32..3.0, n),
        );
        let outcome = runner.run(&inputs, |(weights, activations)| {
            let row: Vec<B> = weights.chunks_exact(B::LEN).map(B::quantize).collect();
            let mut x = vec![ActivationBlock::ZERO; ActivationBlock::count(n)];
            quantize_activations(&activations, &mut x);
            let (mut w, mut a) = (vec![0.0; n], vec![0.0; n]);
            row.iter()
                .zip(w.chunks_exact_mut(B::LEN))
                .for_each(|(block, w)| block.dequantize(w));
            dequantize_activations(&x, &mut a);
            let products = || w.iter().zip(&a).map(|(&w, &a)| f64::from(w) * f64::from(a));
            let (sum, magnitude) = (
                products().sum::<f64>(),
                products().map(f64::abs).sum::<f64>(),
            );
            let dot = f64::from(B::vec_dot(&row, &x));
            prop_assert!(
                (dot - sum).abs() <= magnitude * 1e-6,
                "{dot} is not {sum}; products add up to {magnitude}"
            );
            let through_bytes = crate::vec_dot(B::TYPE, bytemuck::cast_slice(&row), &x);
            prop_assert_eq!(f64::from(through_bytes), dot);
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("{} at {n_blocks} blocks: {error}", B::TYPE);
        }
    }
}
