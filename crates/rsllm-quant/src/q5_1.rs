//! Q5_1: 32 weights in 24 bytes. One f16 scale and one f16 minimum; codes of 5 bits. Layout as in ggml; scalar code here
//! is the reference, fast code lives in rsllm-cpu.
//!
//! ```text
//! byte  0 1   2 3   4 .. 7   8 .............. 23
//!       [ d ] [ m ] [ qh ]   [ qs: 16 x 2 nibbles ]    y = d * code + m
//! low four bits: element j is the low half of qs[j], element j + 16 its high half
//! fifth bit of element j: bit j of qh as a little-endian u32
//! ```

use bytemuck::{Pod, Zeroable};

use crate::block::{inverse_scale, min_max, pack_fifth_bits, pack_nibbles, unpack_five_bits};
use crate::{ActivationBlock, Block, F16Le, GgmlType, WeightBlock};

/// 32 weights of 5 bits with a minimum.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ5_1 {
    /// Scale.
    pub d: F16Le,
    /// Minimum, added to every weight.
    pub m: F16Le,
    /// Fifth bits, a little-endian u32.
    pub qh: [u8; 4],
    /// Low four bits: element j low, element j + 16 high.
    pub qs: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ5_1>() == 24 && align_of::<BlockQ5_1>() == 1);

impl BlockQ5_1 {
    /// The 32 quants in element order, 0..=31.
    pub fn quants(&self) -> [i8; 32] {
        unpack_five_bits(&self.qs, self.qh).map(|code| code as i8)
    }
}

impl Block for BlockQ5_1 {
    const TYPE: GgmlType = GgmlType::Q5_1;
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
        let d = (max - min) / 31.0;
        let inverse = inverse_scale(d);
        let codes = std::array::from_fn(|j| (((src[j] - min) * inverse + 0.5) as u8).min(31));
        Self {
            d: F16Le::from_f32(d),
            m: F16Le::from_f32(min),
            qh: pack_fifth_bits(&codes),
            qs: pack_nibbles(&codes),
        }
    }

    fn has_finite_scales(&self) -> bool {
        self.d.is_finite() && self.m.is_finite()
    }
}

impl WeightBlock for BlockQ5_1 {
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
        let mut block = BlockQ5_1 {
            d: F16Le::from_f32(2.0),
            m: F16Le::from_f32(-1.0),
            qh: 1u32.rotate_left(19).to_le_bytes(),
            qs: [0; 16],
        };
        block.qs[3] = 0x21;
        let mut y = [0.0; 32];
        block.dequantize(&mut y);
        assert_eq!((y[3], y[19], y[0]), (1.0, 35.0, -1.0));
    }

    #[test]
    fn quantiser_keeps_its_error_bound() {
        testing::check_quantize_error::<BlockQ5_1>(0.5 / 31.0);
    }

    #[test]
    fn dot_matches_decoding() {
        testing::check_vec_dot::<BlockQ5_1>();
    }
}
