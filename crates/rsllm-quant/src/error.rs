//! What can go wrong between bytes and floats.

use crate::GgmlType;

/// Failure of [`quantize`](crate::quantize), [`dequantize`](crate::dequantize) or a cast to blocks.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// The type is known, but this crate has no code for its blocks.
    #[error("type {ty} is not supported; requantise the model to Q4_K or Q8_0, for example")]
    UnsupportedType {
        /// Type asked for.
        ty: GgmlType,
    },
    /// Bytes that are no whole number of blocks.
    #[error("{n_bytes} bytes are no whole number of {ty} blocks of {} bytes", ty.block_bytes())]
    PartialBlock {
        /// Type of the blocks.
        ty: GgmlType,
        /// Bytes given.
        n_bytes: usize,
    },
    /// Elements that are no whole number of blocks.
    #[error("{n_elements} elements are no whole number of {ty} blocks of {}", ty.block_len())]
    PartialElements {
        /// Type of the blocks.
        ty: GgmlType,
        /// Elements given.
        n_elements: usize,
    },
    /// Source and destination disagree about the number of blocks.
    #[error("{ty}: {n_bytes} bytes hold {} elements, but {n_elements} were given", n_bytes / ty.block_bytes() * ty.block_len())]
    LengthMismatch {
        /// Type of the blocks.
        ty: GgmlType,
        /// Bytes on the quantised side.
        n_bytes: usize,
        /// Floats on the other side.
        n_elements: usize,
    },
    /// A value that no block format can hold.
    #[error("value at index {index} is {value}; only finite values can be quantised")]
    NonFinite {
        /// Index of the first such value.
        index: usize,
        /// NaN or an infinity.
        value: f32,
    },
    /// Finite values so large that the type's own scale overflows to infinity.
    #[error("block {block} (from index {}) is beyond the range of {ty}", block * ty.block_len())]
    OutOfRange {
        /// Type of the blocks.
        ty: GgmlType,
        /// Index of the first such block.
        block: usize,
    },
}
