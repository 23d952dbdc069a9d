//! Q4_1: 32 weights in 20 bytes. One f16 scale and one f16 minimum; codes of 4 bits. Layout as in ggml; scalar code here
//! is the reference, fast code lives in rsllm-cpu.
//!
//! ```text
//! byte  0 1   2 3   4 ................. 19
//!       [ d ] [ m ] [ qs: 16 x 2 codes    ]    y = d * code + m
//! code j is the low half of qs[j], code j + 16 its high half
//! ```

use bytemuck::{Pod, Zeroable};

use crate::block::{inverse_scale, min_max, pack_nibbles, unpack_nibbles};
use crate::{ActivationBlock, Block, F16Le, GgmlType, WeightBlock};

/// 32 weights of 4 bits with a minimum.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ4_1 {
    /// Scale.
    pub d: F16Le,
    /// Minimum, added to every weight.
    pub m: F16Le,
    /// Codes: element j low, element j + 16 high.
    pub qs: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ4_1>() == 20 && align_of::<BlockQ4_1>() == 1);

impl BlockQ4_1 {
    /// The 32 quants in element order, 0..=15.
    pub fn quants(&self) -> [i8; 32] {
        unpack_nibbles(&self.qs).map(|code| code as i8)
    }
}

impl Block for BlockQ4_1 {
    const TYPE: GgmlType = GgmlType::Q4_1;
    const LEN: usize = 32;

    fn dequantize(&self, dst: &mut [f32]) {
        assert_eq!(dst.len(), Self::LEN);
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        for (y, q) in dst.iter_mut().zip(self.quants()) {
            *y = d * f32::from(q) + m;
        }
    }

    /// Formula: ggml's reference quantiser.
    fn quantize(src: &[f32]) -> Self {
        assert_eq!(src.len(), Self::LEN);
        let (min, max) = min_max(src);
        let d = (max - min) / 15.0;
        let inverse = inverse_scale(d);
        let codes = std::array::from_fn(|j| (((src[j] - min) * inverse + 0.5) as u8).min(15));
        Self {
            d: F16Le::from_f32(d),
            m: F16Le::from_f32(min),
            qs: pack_nibbles(&codes),
        }
    }

    fn has_finite_scales(&self) -> bool {
        self.d.is_finite() && self.m.is_finite()
    }
}

impl WeightBlock for BlockQ4_1 {
    fn dot(&self, x: &ActivationBlock, first_group: usize) -> f64 {
        f64::from(self.d.to_f32()) * x.group_dot(first_group, &self.quants())
            + f64::from(self.m.to_f32()) * f64::from(x.sums[first_group])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn codes_lie_in_drawn_order() {
        let mut block = BlockQ4_1 {
            d: F16Le::from_f32(2.0),
            m: F16Le::from_f32(-1.0),
            qs: [0; 16],
        };
        block.qs[3] = 0xF1;
        let mut y = [0.0; 32];
        block.dequantize(&mut y);
        assert_eq!((y[3], y[19], y[0]), (1.0, 29.0, -1.0));
    }

    #[test]
    fn quantiser_keeps_its_error_bound() {
        testing::check_quantize_error::<BlockQ4_1>(0.5 / 15.0);
    }

    #[test]
    fn dot_matches_decoding() {
        testing::check_vec_dot::<BlockQ4_1>();
    }
}
