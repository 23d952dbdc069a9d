//! BF16: the upper half of an f32, little-endian.
//!
//! ```text
//! byte  0   1        bit 15: sign, 14-7: exponent (bias 127), 6-0: mantissa
//!       [ value ]
//! ```

use bytemuck::{Pod, Zeroable};

use crate::{Block, FloatBlock, GgmlType};

/// A little-endian bfloat16 at any address.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Bf16Le(pub [u8; 2]);

const _: () = assert!(size_of::<Bf16Le>() == 2 && align_of::<Bf16Le>() == 1);

impl Block for Bf16Le {
    const TYPE: GgmlType = GgmlType::BF16;
    const LEN: usize = 1;

    fn dequantize(&self, dst: &mut [f32]) {
        dst.copy_from_slice(&[self.to_f32()]);
    }

    fn quantize(src: &[f32]) -> Self {
        assert_eq!(src.len(), Self::LEN);
        Self(half::bf16::from_f32(src[0]).to_le_bytes())
    }

    fn has_finite_scales(&self) -> bool {
        self.to_f32().is_finite()
    }
}

impl FloatBlock for Bf16Le {
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes(self.0)) << 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn error_is_half_a_unit_in_the_last_place() {
        testing::check_float_type::<Bf16Le>(0.5 / 128.0);
    }

    #[test]
    fn rounding_is_to_even() {
        let encode = |bits: u32| u16::from_le_bytes(Bf16Le::quantize(&[f32::from_bits(bits)]).0);
        assert_eq!(encode(0x3F80_8000), 0x3F80);
        assert_eq!(encode(0x3F81_8000), 0x3F82);
        assert_eq!(encode(0x3F80_8001), 0x3F81);
        assert_eq!(encode(f32::MAX.to_bits()), 0x7F80);
    }
}
