//! Q5_0: 32 weights in 22 bytes. One f16 scale; codes of 5 bits stand for -16..=15 times the scale. Layout as in ggml;
//! scalar code here is the reference, fast code lives in rsllm-cpu.
//!
//! ```text
//! byte  0 1   2 .. 5   6 .............. 21
//!       [ d ] [ qh ]   [ qs: 16 x 2 nibbles ]    y = d * (code - 16)
//! low four bits: element j is the low half of qs[j], element j + 16 its high half
//! fifth bit of element j: bit j of qh as a little-endian u32
//! ```

use bytemuck::{Pod, Zeroable};

use crate::block::{
    inverse_scale, pack_fifth_bits, pack_nibbles, signed_abs_max, unpack_five_bits,
};
use crate::{ActivationBlock, Block, F16Le, GgmlType, WeightBlock};

/// 32 weights of 5 bits.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ5_0 {
    /// Scale.
    pub d: F16Le,
    /// Fifth bits, a little-endian u32.
    pub qh: [u8; 4],
    /// Low four bits: element j low, element j + 16 high.
    pub qs: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ5_0>() == 22 && align_of::<BlockQ5_0>() == 1);

impl BlockQ5_0 {
    /// The 32 quants in element order, -16..=15.
    pub fn quants(&self) -> [i8; 32] {
        unpack_five_bits(&self.qs, self.qh).map(|code| code as i8 - 16)
    }
}

impl Block for BlockQ5_0 {
    const TYPE: GgmlType = GgmlType::Q5_0;
    const LEN: usize = 32;

    fn dequantize(&self, dst: &mut [f32]) {
        assert_eq!(dst.len(), Self::LEN);
        let d = self.d.to_f32();
        for (y, q) in dst.iter_mut().zip(self.quants()) {
            *y = d * f32::from(q);
        }
    }

    /// Formula: ggml's reference quantiser. The value of largest magnitude becomes quant -16.
    fn quantize(src: &[f32]) -> Self {
        assert_eq!(src.len(), Self::LEN);
        let d = signed_abs_max(src) / -16.0;
        let inverse = inverse_scale(d);
        let codes = std::array::from_fn(|j| ((src[j] * inverse + 16.5) as u8).min(31));
        Self {
            d: F16Le::from_f32(d),
            qh: pack_fifth_bits(&codes),
            qs: pack_nibbles(&codes),
        }
    }

    fn has_finite_scales(&self) -> bool {
        self.d.is_finite()
    }
}

impl WeightBlock for BlockQ5_0 {
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
        let mut block = BlockQ5_0 {
            d: F16Le::from_f32(2.0),
            qh: 1u32.rotate_left(19).to_le_bytes(),
            qs: [0; 16],
        };
        block.qs[3] = 0x21;
        let mut y = [0.0; 32];
        block.dequantize(&mut y);
        assert_eq!((y[3], y[19], y[0]), (-30.0, 4.0, -32.0));
    }

    #[test]
    fn quantiser_keeps_its_error_bound() {
        // One step, not half: the code above 15 is cut off at the end opposite the largest value.
        testing::check_quantize_error::<BlockQ5_0>(1.0 / 16.0);
    }

    #[test]
    fn dot_matches_decoding() {
        testing::check_vec_dot::<BlockQ5_0>();
    }
}
