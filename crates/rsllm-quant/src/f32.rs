//! F32: 32-bit IEEE floats, little-endian.
//!
//! ```text
//! byte  0   1   2   3
//!       [    value    ]
//! ```

use bytemuck::{Pod, Zeroable};

use crate::{Block, FloatBlock, GgmlType};

/// A little-endian f32 at any address.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct F32Le(pub [u8; 4]);

const _: () = assert!(size_of::<F32Le>() == 4 && align_of::<F32Le>() == 1);

impl Block for F32Le {
    const TYPE: GgmlType = GgmlType::F32;
    const LEN: usize = 1;

    fn dequantize(&self, dst: &mut [f32]) {
        dst.copy_from_slice(&[self.to_f32()]);
    }

    fn quantize(src: &[f32]) -> Self {
        assert_eq!(src.len(), Self::LEN);
        Self(src[0].to_le_bytes())
    }

    fn has_finite_scales(&self) -> bool {
        self.to_f32().is_finite()
    }
}

impl FloatBlock for F32Le {
    fn to_f32(self) -> f32 {
        f32::from_le_bytes(self.0)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing;

    #[test]
    fn bits_survive_both_ways() {
        testing::check_float_type::<super::F32Le>(0.0);
    }

    #[test]
    fn nan_payload_survives_decoding() {
        use crate::FloatBlock;
        assert_eq!(
            super::F32Le(0x7FA0_0001u32.to_le_bytes())
                .to_f32()
                .to_bits(),
            0x7FA0_0001
        );
    }
}
