//! The tensor types of GGUF files: ids, names and block sizes.
//!
//! The table covers every id that ggml knows, so that a file can be listed and checked whatever it holds;
//! [`GgmlType::can_dequantize`] says which of them this crate computes with. Ids of types that ggml has withdrawn are
//! told apart from ids nobody has assigned, because the advice differs: convert again, or update.

use std::fmt;

/// Type of a tensor's elements, with ggml's id as discriminant and ggml's name as variant.
#[expect(
    non_camel_case_types,
    reason = "the names are ggml's, as users read them in file names"
)]
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GgmlType {
    /// 32-bit float.
    F32 = 0,
    /// IEEE half.
    F16 = 1,
    /// 32 weights of 4 bits, a scale.
    Q4_0 = 2,
    /// 32 weights of 4 bits, a scale and a minimum.
    Q4_1 = 3,
    /// 32 weights of 5 bits, a scale.
    Q5_0 = 6,
    /// 32 weights of 5 bits, a scale and a minimum.
    Q5_1 = 7,
    /// 32 weights of 8 bits, a scale.
    Q8_0 = 8,
    /// 32 activations of 8 bits, a scale and their sum.
    Q8_1 = 9,
    /// 256 weights of 2 bits, 16 sub-blocks with scale and minimum.
    Q2_K = 10,
    /// 256 weights of 3 bits, 16 sub-blocks with scale.
    Q3_K = 11,
    /// 256 weights of 4 bits, 8 sub-blocks with scale and minimum.
    Q4_K = 12,
    /// 256 weights of 5 bits, 8 sub-blocks with scale and minimum.
    Q5_K = 13,
    /// 256 weights of 6 bits, 16 sub-blocks with scale.
    Q6_K = 14,
    /// 256 activations of 8 bits, an f32 scale and 16 sums.
    Q8_K = 15,
    /// 2-bit grid type.
    IQ2_XXS = 16,
    /// 2-bit grid type.
    IQ2_XS = 17,
    /// 3-bit grid type.
    IQ3_XXS = 18,
    /// 1-bit grid type.
    IQ1_S = 19,
    /// 4-bit codes into a table of 16 values.
    IQ4_NL = 20,
    /// 3-bit grid type.
    IQ3_S = 21,
    /// 2-bit grid type.
    IQ2_S = 22,
    /// 4-bit codes into a table, with sub-block scales.
    IQ4_XS = 23,
    /// 8-bit integer.
    I8 = 24,
    /// 16-bit integer.
    I16 = 25,
    /// 32-bit integer.
    I32 = 26,
    /// 64-bit integer.
    I64 = 27,
    /// 64-bit float.
    F64 = 28,
    /// 1-bit grid type.
    IQ1_M = 29,
    /// bfloat16.
    BF16 = 30,
    /// Ternary, base 3.
    TQ1_0 = 34,
    /// Ternary, 2 bits.
    TQ2_0 = 35,
    /// Microscaling 4-bit float, 32 a shared exponent.
    MXFP4 = 39,
    /// 4-bit float, 16 a shared UE4M3 scale.
    NVFP4 = 40,
    /// Signs and a scale.
    Q1_0 = 41,
    /// 64 weights of 2 bits, a scale.
    Q2_0 = 42,
}

/// Form in which activations meet the rows of a type in a dot product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActivationFormat {
    /// Plain floats; for the float types.
    F32,
    /// [`ActivationBlock`](crate::ActivationBlock)s; for every quantised type.
    Int8,
}

/// A tensor type id that this crate has no type for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnknownGgmlType {
    /// ggml once had this type and has withdrawn it.
    #[error(
        "tensor type {id} ({name}) was removed from ggml; convert the model again from its original weights"
    )]
    Removed {
        /// Id found.
        id: u32,
        /// Name the type had.
        name: &'static str,
    },
    /// ggml never assigned this id, as far as this version knows.
    #[error("tensor type {id} is unknown; the file is damaged or newer than this program")]
    Unassigned {
        /// Id found.
        id: u32,
    },
}

impl GgmlType {
    /// Every type, by ascending id.
    pub const ALL: &[Self] = &[
        Self::F32,
        Self::F16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q8_1,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::Q8_K,
        Self::IQ2_XXS,
        Self::IQ2_XS,
        Self::IQ3_XXS,
        Self::IQ1_S,
        Self::IQ4_NL,
        Self::IQ3_S,
        Self::IQ2_S,
        Self::IQ4_XS,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::F64,
        Self::IQ1_M,
        Self::BF16,
        Self::TQ1_0,
        Self::TQ2_0,
        Self::MXFP4,
        Self::NVFP4,
        Self::Q1_0,
        Self::Q2_0,
    ];

    /// The type with ggml's `id`.
    pub fn from_id(id: u32) -> Result<Self, UnknownGgmlType> {
        if let Some(&ty) = Self::ALL.iter().find(|ty| ty.id() == id) {
            return Ok(ty);
        }
        Err(match REMOVED.iter().find(|&&(removed, _)| removed == id) {
            Some(&(_, name)) => UnknownGgmlType::Removed { id, name },
            None => UnknownGgmlType::Unassigned { id },
        })
    }

    /// The type with ggml's `name`, in any letter case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|ty| ty.name().eq_ignore_ascii_case(name))
    }

    /// ggml's id.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// ggml's name, such as `Q4_K`.
    pub fn name(self) -> &'static str {
        self.entry().0
    }

    /// Elements in a block; 1 for types without blocks.
    pub fn block_len(self) -> usize {
        self.entry().1
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.entry().2
    }

    /// Bytes of a row of `n_elements`. None if that is no whole number of blocks, or beyond `usize`.
    pub fn row_bytes(self, n_elements: usize) -> Option<usize> {
        let (_, block_len, block_bytes) = self.entry();
        if !n_elements.is_multiple_of(block_len) {
            return None;
        }
        (n_elements / block_len).checked_mul(block_bytes)
    }

    /// Mean bits an element, scales included.
    pub fn bits_per_weight(self) -> f32 {
        (8 * self.block_bytes()) as f32 / self.block_len() as f32
    }

    /// Whether this crate decodes the type: the 13 weight types, and the activation types Q8_1 and Q8_K.
    pub fn can_dequantize(self) -> bool {
        crate::dispatch::has_format(self)
    }

    /// Form of activations in dot products with rows of this type; a statement about the format, so it is defined for
    /// types that this crate does not compute with.
    pub fn activation_format(self) -> ActivationFormat {
        if self.block_len() == 1 {
            ActivationFormat::F32
        } else {
            ActivationFormat::Int8
        }
    }

    /// Name, elements a block, bytes a block. Source: ggml's type traits.
    fn entry(self) -> (&'static str, usize, usize) {
        match self {
            Self::F32 => ("F32", 1, 4),
            Self::F16 => ("F16", 1, 2),
            Self::Q4_0 => ("Q4_0", 32, 18),
            Self::Q4_1 => ("Q4_1", 32, 20),
            Self::Q5_0 => ("Q5_0", 32, 22),
            Self::Q5_1 => ("Q5_1", 32, 24),
            Self::Q8_0 => ("Q8_0", 32, 34),
            Self::Q8_1 => ("Q8_1", 32, 36),
            Self::Q2_K => ("Q2_K", 256, 84),
            Self::Q3_K => ("Q3_K", 256, 110),
            Self::Q4_K => ("Q4_K", 256, 144),
            Self::Q5_K => ("Q5_K", 256, 176),
            Self::Q6_K => ("Q6_K", 256, 210),
            Self::Q8_K => ("Q8_K", 256, 292),
            Self::IQ2_XXS => ("IQ2_XXS", 256, 66),
            Self::IQ2_XS => ("IQ2_XS", 256, 74),
            Self::IQ3_XXS => ("IQ3_XXS", 256, 98),
            Self::IQ1_S => ("IQ1_S", 256, 50),
            Self::IQ4_NL => ("IQ4_NL", 32, 18),
            Self::IQ3_S => ("IQ3_S", 256, 110),
            Self::IQ2_S => ("IQ2_S", 256, 82),
            Self::IQ4_XS => ("IQ4_XS", 256, 136),
            Self::I8 => ("I8", 1, 1),
            Self::I16 => ("I16", 1, 2),
            Self::I32 => ("I32", 1, 4),
            Self::I64 => ("I64", 1, 8),
            Self::F64 => ("F64", 1, 8),
            Self::IQ1_M => ("IQ1_M", 256, 56),
            Self::BF16 => ("BF16", 1, 2),
            Self::TQ1_0 => ("TQ1_0", 256, 54),
            Self::TQ2_0 => ("TQ2_0", 256, 66),
            Self::MXFP4 => ("MXFP4", 32, 17),
            Self::NVFP4 => ("NVFP4", 64, 36),
            Self::Q1_0 => ("Q1_0", 128, 18),
            Self::Q2_0 => ("Q2_0", 64, 18),
        }
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl TryFrom<u32> for GgmlType {
    type Error = UnknownGgmlType;

    fn try_from(id: u32) -> Result<Self, UnknownGgmlType> {
        Self::from_id(id)
    }
}

/// Ids that ggml has withdrawn: two early formats and the files repacked for one instruction set.
const REMOVED: [(u32, &str); 8] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_below_the_count_is_known_or_removed() {
        for id in 0..43 {
            match GgmlType::from_id(id) {
                Ok(ty) => assert_eq!(ty.id(), id),
                Err(error) => assert!(matches!(error, UnknownGgmlType::Removed { .. }), "{error}"),
            }
        }
        assert_eq!(
            GgmlType::from_id(43),
            Err(UnknownGgmlType::Unassigned { id: 43 })
        );
        assert_eq!(
            GgmlType::from_id(u32::MAX),
            Err(UnknownGgmlType::Unassigned { id: u32::MAX })
        );
        assert_eq!(GgmlType::ALL.len() + REMOVED.len(), 43);
        assert!(GgmlType::ALL.is_sorted());
    }

    #[test]
    fn names_parse_in_any_case_and_round_trip() {
        for &ty in GgmlType::ALL {
            assert_eq!(GgmlType::from_name(ty.name()), Some(ty));
            assert_eq!(
                GgmlType::from_name(&ty.to_string().to_lowercase()),
                Some(ty)
            );
        }
        assert_eq!(GgmlType::from_name("Q4_2"), None);
        assert_eq!(GgmlType::from_name(""), None);
    }

    #[test]
    fn row_bytes_rejects_partial_blocks_and_overflow() {
        assert_eq!(GgmlType::Q4_K.row_bytes(4096), Some(16 * 144));
        assert_eq!(GgmlType::Q4_K.row_bytes(0), Some(0));
        assert_eq!(GgmlType::Q4_K.row_bytes(255), None);
        assert_eq!(GgmlType::Q8_0.row_bytes(96), Some(3 * 34));
        assert_eq!(GgmlType::F32.row_bytes(usize::MAX), None);
        assert_eq!(GgmlType::Q8_K.row_bytes(usize::MAX & !255), None);
    }

    #[test]
    fn fifteen_types_can_be_decoded() {
        assert_eq!(
            GgmlType::ALL
                .iter()
                .filter(|ty| ty.can_dequantize())
                .count(),
            15
        );
        assert!(!GgmlType::IQ2_XS.can_dequantize());
    }

    #[test]
    fn bits_per_weight_includes_scales() {
        assert_eq!(GgmlType::Q6_K.bits_per_weight(), 6.5625);
        assert_eq!(GgmlType::F64.bits_per_weight(), 64.0);
    }
}
