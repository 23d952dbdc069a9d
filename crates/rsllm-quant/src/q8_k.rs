//! Q8_K: 256 activations in 292 bytes. ggml quantises inputs of K-quant matmuls to it; no weight file uses it, and this
//! program's own kernels take [`ActivationBlock`](crate::ActivationBlock)s. Kept for files of test data.
//!
//! ```text
//! byte  0 .. 3    4 ............ 259   260 ............ 291
//!       [ d:f32 ] [ qs: 256 x i8     ] [ bsums: 16 x i16   ]    y = d * q
//! bsums[k] is the sum of quants 16k .. 16k + 16
//! ```

use bytemuck::{Pod, Zeroable};

use crate::activation::nearest_int;
use crate::block::{signed_abs_max, sum_i8};
use crate::{Block, F32Le, FloatBlock, GgmlType};

/// 256 activations of 8 bits with sums.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ8K {
    /// Scale.
    pub d: F32Le,
    /// Quants.
    pub qs: [i8; 256],
    /// Sums of 16 quants each, little-endian i16.
    pub bsums: [[u8; 2]; 16],
}

const _: () = assert!(size_of::<BlockQ8K>() == 292 && align_of::<BlockQ8K>() == 1);

impl BlockQ8K {
    /// Sum of quants `16 * group .. 16 * group + 16`, as stored.
    pub fn group_sum(&self, group: usize) -> i16 {
        i16::from_le_bytes(self.bsums[group])
    }
}

impl Block for BlockQ8K {
    const TYPE: GgmlType = GgmlType::Q8_K;
    const LEN: usize = 256;

    fn dequantize(&self, dst: &mut [f32]) {
        assert_eq!(dst.len(), Self::LEN);
        let d = self.d.to_f32();
        for (y, q) in dst.iter_mut().zip(self.qs) {
            *y = d * f32::from(q);
        }
    }

    /// Formula: ggml's reference quantiser. The value of largest magnitude becomes -127, so the scale may be negative.
    fn quantize(src: &[f32]) -> Self {
        assert_eq!(src.len(), Self::LEN);
        let inverse = -127.0 / signed_abs_max(src);
        if !inverse.is_finite() {
            return Self::zeroed();
        }
        let qs: [i8; 256] = std::array::from_fn(|j| nearest_int(src[j] * inverse).min(127) as i8);
        let bsums = std::array::from_fn(|k| (sum_i8(&qs[16 * k..][..16]) as i16).to_le_bytes());
        Self {
            d: F32Le((1.0 / inverse).to_le_bytes()),
            qs,
            bsums,
        }
    }

    fn has_finite_scales(&self) -> bool {
        self.d.to_f32().is_finite()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn sums_are_those_of_the_quants() {
        let mut src = [1.0; 256];
        src[255] = -2.0;
        let block = BlockQ8K::quantize(&src);
        assert_eq!(block.qs[255], -127);
        assert_eq!(block.group_sum(0), 16 * 64);
        assert_eq!(block.group_sum(15), 15 * 64 - 127);
    }

    #[test]
    fn zeros_and_vanishing_values_give_scale_zero() {
        for tiny in [0.0, -0.0, f32::from_bits(1)] {
            assert_eq!(BlockQ8K::quantize(&[tiny; 256]), BlockQ8K::zeroed());
        }
    }

    #[test]
    fn quantiser_keeps_its_error_bound() {
        testing::check_quantize_error::<BlockQ8K>(0.5 / 127.0);
    }
}
