//! Q8_1: 32 activations in 36 bytes. ggml quantises inputs of Q4_1 and Q5_1 matmuls to it; no weight file uses it, and
//! this program's own kernels take [`ActivationBlock`](crate::ActivationBlock)s. Kept for files of test data.
//!
//! ```text
//! byte  0 1   2 3   4 ................. 35
//!       [ d ] [ s ] [ qs: 32 x i8         ]    y = d * q,  s = d * (sum of the quants)
//! ```

use bytemuck::{Pod, Zeroable};

use crate::block::sum_i8;
use crate::q8_0::quantize_q8;
use crate::{Block, F16Le, GgmlType};

/// 32 activations of 8 bits with their sum.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ8_1 {
    /// Scale.
    pub d: F16Le,
    /// `d * Σ qs`, from the scale before it became f16.
    pub s: F16Le,
    /// Quants.
    pub qs: [i8; 32],
}

const _: () = assert!(size_of::<BlockQ8_1>() == 36 && align_of::<BlockQ8_1>() == 1);

impl Block for BlockQ8_1 {
    const TYPE: GgmlType = GgmlType::Q8_1;
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
            s: F16Le::from_f32(sum_i8(&qs) as f32 * d),
            qs,
        }
    }

    fn has_finite_scales(&self) -> bool {
        self.d.is_finite() && self.s.is_finite()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn sum_is_that_of_the_quants() {
        let block = BlockQ8_1::quantize(&[-2.0; 32]);
        assert_eq!(block.qs, [-127; 32]);
        assert_eq!(block.s.to_f32(), -64.0);
    }

    #[test]
    fn quantiser_keeps_its_error_bound() {
        testing::check_quantize_error::<BlockQ8_1>(0.5 / 127.0);
    }
}
