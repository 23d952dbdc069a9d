//! Q8_0: 32 weights in 34 bytes. One f16 scale and signed bytes. Layout as in ggml; scalar code here is the reference,
//! fast code lives in rsllm-cpu.
//!
//! ```text
//! byte  0 1   2 ................. 33
//!       [ d ] [ qs: 32 x i8         ]    y = d * q
//! ```

use bytemuck::{Pod, Zeroable};

use crate::block::inverse_scale;
use crate::{ActivationBlock, Block, F16Le, GgmlType, WeightBlock};

/// 32 weights of 8 bits.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ8_0 {
    /// Scale.
    pub d: F16Le,
    /// Quants. The quantiser writes -127..=127; a file may hold -128.
    pub qs: [i8; 32],
}

const _: () = assert!(size_of::<BlockQ8_0>() == 34 && align_of::<BlockQ8_0>() == 1);

impl Block for BlockQ8_0 {
    const TYPE: GgmlType = GgmlType::Q8_0;
    const LEN: usize = 32;

    fn dequantize(&self, dst: &mut [f32]) {
        assert_eq!(dst.len(), Self::LEN);
        let d = self.d.to_f32();
        for (y, q) in dst.iter_mut().zip(self.qs) {
            *y = d * f32::from(q);
        }
    }

    /// Formula: ggml's reference quantiser.
    fn quantize(src: &[f32]) -> Self {
        let (d, qs) = quantize_q8(src);
        Self {
            d: F16Le::from_f32(d),
            qs,
        }
    }

    fn has_finite_scales(&self) -> bool {
        self.d.is_finite()
    }
}

impl WeightBlock for BlockQ8_0 {
    fn dot(&self, x: &ActivationBlock, first_group: usize) -> f64 {
        f64::from(self.d.to_f32()) * x.group_dot(first_group, &self.qs)
    }
}

/// Scale `amax / 127` and quants, rounded half away from zero with the scale before it became f16; for Q8_0 and Q8_1.
pub(crate) fn quantize_q8(src: &[f32]) -> (f32, [i8; 32]) {
    assert_eq!(src.len(), 32);
    let amax = src.iter().fold(0f32, |max, x| max.max(x.abs()));
    let d = amax / 127.0;
    let inverse = inverse_scale(d);
    (d, std::array::from_fn(|j| (src[j] * inverse).round() as i8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn quantiser_rounds_half_away_from_zero() {
        let mut src = [0.0; 32];
        src[..5].copy_from_slice(&[127.0, 0.5, -0.5, 1.5, -2.5]);
        let block = BlockQ8_0::quantize(&src);
        assert_eq!(block.qs[..5], [127, 1, -1, 2, -3]);
        assert_eq!(block.d.to_f32(), 1.0);
    }

    #[test]
    fn quantiser_keeps_its_error_bound() {
        testing::check_quantize_error::<BlockQ8_0>(0.5 / 127.0);
    }

    #[test]
    fn dot_matches_decoding() {
        testing::check_vec_dot::<BlockQ8_0>();
    }
}
