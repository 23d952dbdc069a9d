//! F16: IEEE half precision, little-endian. Also the type of the scales in nearly all block formats.
//!
//! ```text
//! byte  0   1        bit 15: sign, 14-10: exponent (bias 15), 9-0: mantissa
//!       [ value ]
//! ```

use bytemuck::{Pod, Zeroable};

use crate::{Block, FloatBlock, GgmlType};

/// A little-endian half at any address.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct F16Le(pub [u8; 2]);

const _: () = assert!(size_of::<F16Le>() == 2 && align_of::<F16Le>() == 1);

impl F16Le {
    /// The nearest half, ties to even; infinity beyond 65519.
    pub fn from_f32(value: f32) -> Self {
        Self(half::f16::from_f32(value).to_le_bytes())
    }

    /// The value, exactly.
    pub fn to_f32(self) -> f32 {
        half::f16::from_le_bytes(self.0).to_f32()
    }

    /// The 16 bits.
    pub fn to_bits(self) -> u16 {
        u16::from_le_bytes(self.0)
    }

    /// Neither NaN nor infinite.
    pub fn is_finite(self) -> bool {
        self.to_bits() & EXPONENT_MASK != EXPONENT_MASK
    }
}

const EXPONENT_MASK: u16 = 0x7C00;

impl Block for F16Le {
    const TYPE: GgmlType = GgmlType::F16;
    const LEN: usize = 1;

    fn dequantize(&self, dst: &mut [f32]) {
        dst.copy_from_slice(&[self.to_f32()]);
    }

    fn quantize(src: &[f32]) -> Self {
        assert_eq!(src.len(), Self::LEN);
        Self::from_f32(src[0])
    }

    fn has_finite_scales(&self) -> bool {
        self.is_finite()
    }
}

impl FloatBlock for F16Le {
    fn to_f32(self) -> f32 {
        Self::to_f32(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn error_is_half_a_unit_in_the_last_place() {
        testing::check_float_type::<F16Le>(0.5 / 1024.0);
    }

    #[test]
    fn every_half_decodes_to_its_formula_and_back() {
        for bits in 0..=u16::MAX {
            let half = F16Le(bits.to_le_bytes());
            let exponent = i32::from(bits >> 10 & 31);
            let mantissa = f32::from(bits & 1023);
            let magnitude = match exponent {
                0 => mantissa * 2f32.powi(-24),
                31 if mantissa == 0.0 => f32::INFINITY,
                31 => f32::NAN,
                _ => (1024.0 + mantissa) * 2f32.powi(exponent - 25),
            };
            let value = half.to_f32();
            assert_eq!(half.is_finite(), value.is_finite());
            if magnitude.is_nan() {
                assert!(value.is_nan());
            } else {
                assert_eq!(
                    value.to_bits(),
                    magnitude
                        .copysign(if bits >> 15 == 1 { -1.0 } else { 1.0 })
                        .to_bits()
                );
                assert_eq!(F16Le::from_f32(value), half);
            }
        }
    }

    #[test]
    fn rounding_is_to_even_and_overflow_is_infinite() {
        assert_eq!(F16Le::from_f32(2049.0).to_f32(), 2048.0);
        assert_eq!(F16Le::from_f32(2051.0).to_f32(), 2052.0);
        assert_eq!(F16Le::from_f32(65519.0).to_f32(), 65504.0);
        assert_eq!(F16Le::from_f32(65520.0).to_f32(), f32::INFINITY);
        assert_eq!(F16Le::from_f32(2f32.powi(-25)).to_bits(), 0);
        assert_eq!(F16Le::from_f32(-0.0).to_bits(), 0x8000);
    }
}
