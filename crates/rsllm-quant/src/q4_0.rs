//! Q4_0: 32 weights in 18 bytes. One f16 scale; codes of 4 bits stand for -8..=7 times the scale. Layout as in ggml;
//! scalar code here is the reference, fast code lives in rsllm-cpu.
//!
//! ```text
//! byte  0 1   2 ................. 17
//!       [ d ] [ qs: 16 x 2 codes    ]    y = d * (code - 8)
//! code j is the low half of qs[j], code j + 16 its high half
//! ```

use bytemuck::{Pod, Zeroable};

use crate::block::{inverse_scale, pack_nibbles, signed_abs_max, unpack_nibbles};
use crate::{ActivationBlock, Block, F16Le, GgmlType, WeightBlock};

/// 32 weights of 4 bits.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ4_0 {
    /// Scale.
    pub d: F16Le,
    /// Codes, offset by 8: element j low, element j + 16 high.
    pub qs: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ4_0>() == 18 && align_of::<BlockQ4_0>() == 1);

impl BlockQ4_0 {
    /// The 32 quants in element order, -8..=7.
    pub fn quants(&self) -> [i8; 32] {
        unpack_nibbles(&self.qs).map(|code| code as i8 - 8)
    }
}

impl Block for BlockQ4_0 {
    const TYPE: GgmlType = GgmlType::Q4_0;
    const LEN: usize = 32;

    fn dequantize(&self, dst: &mut [f32]) {
        assert_eq!(dst.len(), Self::LEN);
        let d = self.d.to_f32();
        for (y, q) in dst.iter_mut().zip(self.quants()) {
            *y = d * f32::from(q);
        }
    }

    /// Formula: ggml's reference quantiser. The value of largest magnitude becomes code 0, quant -8, so a block of either
    /// sign uses the full range.
    fn quantize(src: &[f32]) -> Self {
        assert_eq!(src.len(), Self::LEN);
        let d = signed_abs_max(src) / -8.0;
        let inverse = inverse_scale(d);
        let codes = std::array::from_fn(|j| ((src[j] * inverse + 8.5) as u8).min(15));
        Self {
            d: F16Le::from_f32(d),
            qs: pack_nibbles(&codes),
        }
    }

    fn has_finite_scales(&self) -> bool {
        self.d.is_finite()
    }
}

impl WeightBlock for BlockQ4_0 {
    fn dot(&self, x: &ActivationBlock, first_group: usize) -> f64 {
        f64::from(self.d.to_f32()) * x.group_dot(first_group, &self.quants())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn codes_lie_in_drawn_order() {
        let mut block = BlockQ4_0 {
            d: F16Le::from_f32(2.0),
            qs: [0x88; 16],
        };
        block.qs[3] = 0xF0;
        let mut y = [0.0; 32];
        block.dequantize(&mut y);
        assert_eq!((y[3], y[19], y[0]), (-16.0, 14.0, 0.0));
    }

    #[test]
    fn quantiser_keeps_its_error_bound() {
        // One step, not half: the code above 7 is cut off at the end opposite the largest value.
        testing::check_quantize_error::<BlockQ4_0>(1.0 / 8.0);
    }

    #[test]
    fn dot_matches_decoding() {
        testing::check_vec_dot::<BlockQ4_0>();
    }
}
