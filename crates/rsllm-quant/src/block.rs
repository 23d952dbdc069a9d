//! What all block formats have in common: a fixed layout, a decoder, an encoder and a dot product.
//!
//! Blocks are plain bytes with alignment 1, so any byte slice of the right length can be viewed as blocks without a
//! copy, wherever it lies in a mapped file. All code behind these traits is scalar and serves as the oracle of faster
//! kernels: it prefers being obviously right.

use bytemuck::Pod;

use crate::activation::{ActivationBlock, GROUP_LEN};
use crate::{GgmlType, QuantError};

/// A block format: `LEN` elements in `size_of::<Self>()` bytes.
pub trait Block: Pod {
    /// The type whose tensors consist of these blocks.
    const TYPE: GgmlType;
    /// Elements in a block.
    const LEN: usize;

    /// Writes the `LEN` elements to `dst`, bit-equal with the `gguf` Python package; NaN and infinite scales pass through.
    ///
    /// # Panics
    /// If `dst` is not `LEN` long.
    fn dequantize(&self, dst: &mut [f32]);

    /// Encodes `LEN` finite values. Values beyond the type's range yield a block for which
    /// [`has_finite_scales`](Self::has_finite_scales) is false.
    ///
    /// # Panics
    /// If `src` is not `LEN` long.
    fn quantize(src: &[f32]) -> Self;

    /// Whether every scale and minimum (for float types: the value) is finite.
    fn has_finite_scales(&self) -> bool;
}

/// A block format of weights, which meets int8 activations in dot products.
pub trait WeightBlock: Block {
    /// Dot product of the block with the activations of `x` from group `first_group` on; formats of 256 elements are
    /// always called with group 0. Integer sums are exact; floats are f64, so that the oracle's own error vanishes
    /// beside that of the f32 kernels compared with it.
    fn dot(&self, x: &ActivationBlock, first_group: usize) -> f64;

    /// Dot product of a row with activations, blocks added in order, rounded to f32 once.
    ///
    /// # Panics
    /// If `x` is not [`ActivationBlock::count`] of the row's elements long.
    fn vec_dot(row: &[Self], x: &[ActivationBlock]) -> f32 {
        assert_eq!(
            x.len(),
            ActivationBlock::count(row.len() * Self::LEN),
            "row and activations must have the same length"
        );
        let blocks_each = ActivationBlock::LEN / Self::LEN;
        let sum: f64 = row
            .iter()
            .enumerate()
            .map(|(i, block)| {
                block.dot(
                    &x[i / blocks_each],
                    i % blocks_each * (Self::LEN / GROUP_LEN),
                )
            })
            .sum();
        sum as f32
    }
}

/// Views bytes as blocks without a copy.
///
/// # Panics
/// If `bytes` is no whole number of blocks; [`try_as_blocks`] is for lengths not yet checked.
pub fn as_blocks<B: Block>(bytes: &[u8]) -> &[B] {
    try_as_blocks(bytes).expect("the caller passes whole blocks")
}

/// Views bytes as blocks without a copy, or says that they are no whole number of blocks.
pub fn try_as_blocks<B: Block>(bytes: &[u8]) -> Result<&[B], QuantError> {
    bytemuck::try_cast_slice(bytes).map_err(|_| QuantError::PartialBlock {
        ty: B::TYPE,
        n_bytes: bytes.len(),
    })
}

/// Views bytes as mutable blocks, or says that they are no whole number of blocks.
pub fn try_as_blocks_mut<B: Block>(bytes: &mut [u8]) -> Result<&mut [B], QuantError> {
    let n_bytes = bytes.len();
    bytemuck::try_cast_slice_mut(bytes).map_err(|_| QuantError::PartialBlock {
        ty: B::TYPE,
        n_bytes,
    })
}

/// Σ `weights[i] * activations[i]`, exact: 32-bit sums have room for 2^16 products of two int8.
pub(crate) fn dot_i8(weights: &[i8], activations: &[i8]) -> i32 {
    debug_assert_eq!(weights.len(), activations.len());
    weights
        .iter()
        .zip(activations)
        .map(|(&w, &a)| i32::from(w) * i32::from(a))
        .sum()
}

/// Σ `activations[i]`.
pub(crate) fn sum_i8(activations: &[i8]) -> i32 {
    activations.iter().map(|&a| i32::from(a)).sum()
}

/// The element of largest magnitude with its sign, the first of equals; 0 for an empty slice.
pub(crate) fn signed_abs_max(src: &[f32]) -> f32 {
    src.iter().fold(
        0.0,
        |max: f32, &x| if x.abs() > max.abs() { x } else { max },
    )
}

/// Smallest and largest element; infinities the wrong way round for an empty slice.
pub(crate) fn min_max(src: &[f32]) -> (f32, f32) {
    src.iter()
        .fold((f32::INFINITY, f32::NEG_INFINITY), |(min, max), &x| {
            // Comparisons keep the first of 0 and -0, where f32::min may return either.
            (if x < min { x } else { min }, if x > max { x } else { max })
        })
}

/// 1 / `scale`, and 0 for a scale of 0: the factor that turns values into quants.
pub(crate) fn inverse_scale(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// Packs 32 codes of 4 bits: code j in the low half of byte j, code j + 16 in its high half.
pub(crate) fn pack_nibbles(codes: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|j| codes[j] & 15 | codes[j + 16] << 4)
}

/// Inverse of [`pack_nibbles`].
pub(crate) fn unpack_nibbles(qs: &[u8; 16]) -> [u8; 32] {
    std::array::from_fn(|j| if j < 16 { qs[j] & 15 } else { qs[j - 16] >> 4 })
}

/// Collects bit 4 of 32 codes into a little-endian u32, code j at bit j.
pub(crate) fn pack_fifth_bits(codes: &[u8; 32]) -> [u8; 4] {
    std::array::from_fn(|byte| (0..8).fold(0, |bits, j| bits | (codes[8 * byte + j] >> 4 & 1) << j))
}

/// Codes of 5 bits from their low nibbles and fifth bits.
pub(crate) fn unpack_five_bits(qs: &[u8; 16], qh: [u8; 4]) -> [u8; 32] {
    let low = unpack_nibbles(qs);
    std::array::from_fn(|j| low[j] | (qh[j / 8] >> (j % 8) & 1) << 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockQ4_0, BlockQ4K};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn casts_accept_whole_blocks_only_at_any_address(n_bytes in 0usize..600, start in 0usize..8) {
            let bytes = vec![0u8; n_bytes + start];
            let bytes = &bytes[start..];
            let expected = |ty: GgmlType| {
                if n_bytes.is_multiple_of(ty.block_bytes()) {
                    Ok(n_bytes / ty.block_bytes())
                } else {
                    Err(QuantError::PartialBlock { ty, n_bytes })
                }
            };
            prop_assert_eq!(try_as_blocks::<BlockQ4_0>(bytes).map(<[_]>::len), expected(GgmlType::Q4_0));
            prop_assert_eq!(try_as_blocks::<BlockQ4K>(bytes).map(<[_]>::len), expected(GgmlType::Q4_K));
        }

        #[test]
        fn nibbles_round_trip(qs: [u8; 16]) {
            prop_assert_eq!(pack_nibbles(&unpack_nibbles(&qs)), qs);
        }
    }

    #[test]
    fn five_bit_codes_round_trip() {
        let codes: [u8; 32] = std::array::from_fn(|j| (j as u8).wrapping_mul(11) & 31);
        assert_eq!(
            unpack_five_bits(&pack_nibbles(&codes), pack_fifth_bits(&codes)),
            codes
        );
    }

    #[test]
    fn signed_abs_max_takes_the_first_of_equals() {
        assert_eq!(signed_abs_max(&[1.0, -3.0, 3.0]), -3.0);
        assert_eq!(signed_abs_max(&[]), 0.0);
    }
}
