//! One tensor's record: name, type, dimensions and where its bytes are.
//!
//! Dimensions are in GGUF order: `dims[0]` is the length of a row, the values of a row lie next to each other. Whoever
//! makes a [`TensorInfo`] has checked it with [`checked_size`], so its sizes are computed without overflow.

use std::ops::Range;

use rsllm_quant::GgmlType;

use crate::cause::Cause;
use crate::error::GgufError;

/// A tensor of a loaded file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The GGUF name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// The type its values are packed in.
    pub ty: GgmlType,
    /// Up to four dimensions, none zero, row length first; empty for a scalar.
    pub dims: Vec<u64>,
    /// Which of the model's files it is in.
    pub(crate) shard: usize,
    /// The tensor's bytes in that file.
    pub(crate) range: Range<usize>,
}

impl TensorInfo {
    /// The number of values.
    pub fn n_elements(&self) -> u64 {
        self.dims.iter().product()
    }

    /// The number of bytes in the file.
    pub fn n_bytes(&self) -> usize {
        self.range.len()
    }

    /// Values a row: `dims[0]`, or 1 for a scalar.
    pub fn row_len(&self) -> u64 {
        self.dims.first().copied().unwrap_or(1)
    }

    /// The number of rows: the product of all dimensions but the first.
    pub fn n_rows(&self) -> u64 {
        self.dims.iter().skip(1).product()
    }

    /// Which of [`Gguf::files`](crate::Gguf::files) holds the tensor.
    pub fn file_index(&self) -> usize {
        self.shard
    }
}

/// The number of bytes a tensor takes, or why there is no such tensor. `available` is the size of the file's data, or
/// the most a writer could write.
pub(crate) fn checked_size(
    name: &str,
    ty: GgmlType,
    dims: &[u64],
    available: u64,
) -> Result<u64, GgufError> {
    if dims.len() > MAX_DIMS {
        return Err(Cause::TooManyDimensions {
            tensor: name.into(),
            n_dims: dims.len() as u32,
        }
        .into());
    }
    if let Some(dimension) = dims.iter().position(|&dim| dim == 0) {
        return Err(Cause::ZeroDimension {
            tensor: name.into(),
            dimension,
            dims: dims.into(),
        }
        .into());
    }
    let row_len = dims.first().copied().unwrap_or(1);
    let block_len = ty.block_len();
    if row_len % block_len as u64 != 0 {
        return Err(Cause::PartialBlock {
            tensor: name.into(),
            ty,
            row_len,
            block_len,
        }
        .into());
    }
    let n_blocks = dims
        .iter()
        .skip(1)
        .try_fold(u128::from(row_len / block_len as u64), |blocks, &dim| {
            blocks.checked_mul(u128::from(dim))
        });
    let needed = n_blocks.and_then(|blocks| blocks.checked_mul(ty.block_bytes() as u128));
    // Elements too must be countable: the formats below one byte a value have more elements than bytes.
    let n_elements = dims
        .iter()
        .try_fold(1_u64, |product, &dim| product.checked_mul(dim));
    match needed.map(u64::try_from) {
        Some(Ok(bytes)) if n_elements.is_some_and(fits_i64) && fits_i64(bytes) => Ok(bytes),
        _ => Err(Cause::SizeOverflow {
            tensor: name.into(),
            ty,
            dims: dims.into(),
            needed,
            available,
        }
        .into()),
    }
}

/// GGUF counts elements and bytes in signed 64-bit numbers.
fn fits_i64(n: u64) -> bool {
    i64::try_from(n).is_ok()
}

/// The most dimensions a tensor has.
pub(crate) const MAX_DIMS: usize = 4;
/// The most bytes of a tensor name: the reference engine keeps 64 with the closing NUL.
pub(crate) const MAX_TENSOR_NAME: usize = 63;
/// The most bytes of a metadata key, from the format's description.
pub(crate) const MAX_KEY: usize = 65535;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_blocks_of_rows() {
        assert_eq!(
            checked_size("t", GgmlType::Q4_K, &[512, 3], 0).unwrap(),
            6 * 144
        );
        assert_eq!(checked_size("t", GgmlType::F32, &[], 0).unwrap(), 4);
        let error = checked_size("t", GgmlType::Q4_K, &[128, 2], 0).unwrap_err();
        assert!(matches!(
            error.cause(),
            Cause::PartialBlock {
                row_len: 128,
                block_len: 256,
                ..
            }
        ));
    }

    #[test]
    fn products_that_wrap_are_refused_with_the_true_size() {
        let error = checked_size("t", GgmlType::F32, &[1 << 62, 4], 100).unwrap_err();
        assert_eq!(error.found().as_deref(), Some("73786976294838206464 bytes"));
        let error = checked_size("t", GgmlType::F32, &[u64::MAX; 4], 100).unwrap_err();
        assert_eq!(error.found().as_deref(), Some("more than 2^128 bytes"));
    }
}
