//! Weights on the CPU: matrices stay where they lie in the mapping, small vectors are kept as f32.

use rsllm_quant::GgmlType;
use rsllm_tensor::{BackendError, Op, SharedBytes, WeightSource};

use crate::kernels::{Dot, Kernels, Unpack};

/// A bound weight with the kernels for its type, looked up once.
pub struct CpuWeight {
    pub(crate) ty: GgmlType,
    /// Input width.
    pub(crate) row_len: usize,
    /// Output width.
    pub(crate) n_rows: usize,
    /// Experts.
    pub(crate) n_matrices: usize,
    pub(crate) row_bytes: usize,
    pub(crate) dot: Dot,
    pub(crate) unpack: Unpack,
    bytes: SharedBytes,
    /// The values when this is a vector (norm weight, bias).
    vector: Vec<f32>,
}

pub(crate) const BACKEND: &str = "cpu";

impl CpuWeight {
    pub(crate) fn bind(kernels: &Kernels, source: WeightSource) -> Result<Self, BackendError> {
        let WeightSource {
            name,
            ty,
            row_len,
            n_rows,
            n_matrices,
            bytes,
        } = source;
        let (Some(dot), Some(unpack)) = (kernels.dot(ty), kernels.unpack(ty)) else {
            return Err(BackendError::UnsupportedType {
                backend: BACKEND,
                tensor: name,
                ty,
                op: Op::Matmul,
            });
        };
        let expected = ty
            .row_bytes(row_len)
            .and_then(|row_bytes| row_bytes.checked_mul(n_rows)?.checked_mul(n_matrices))
            .unwrap_or(usize::MAX);
        if expected != bytes.len() || row_len == 0 {
            return Err(BackendError::WeightBytes {
                tensor: name,
                expected,
                found: bytes.len(),
            });
        }
        let row_bytes = expected / (n_rows * n_matrices).max(1);
        let mut vector = Vec::new();
        if n_rows * n_matrices == 1 {
            vector.resize(row_len, 0.0);
            rsllm_quant::dequantize(ty, &bytes, &mut vector)
                .expect("the bytes are whole blocks of row_len values, checked above");
        }
        Ok(Self {
            ty,
            row_len,
            n_rows,
            n_matrices,
            row_bytes,
            dot,
            unpack,
            bytes,
            vector,
        })
    }

    /// Packed rows `start..end` of matrix `matrix`.
    pub(crate) fn rows(&self, matrix: usize, rows: std::ops::Range<usize>) -> &[u8] {
        let first = matrix * self.n_rows;
        &self.bytes[(first + rows.start) * self.row_bytes..(first + rows.end) * self.row_bytes]
    }

    /// The values of a vector weight, checked to be `len` long.
    pub(crate) fn vector(&self, op: Op, len: usize) -> Result<&[f32], BackendError> {
        if self.vector.len() == len {
            Ok(&self.vector)
        } else {
            Err(BackendError::Shape {
                op,
                what: "length of a weight vector",
                expected: len,
                found: self.vector.len(),
            })
        }
    }
}
