//! Weights on the CPU: matrices stay where they lie in the mapping, small vectors are kept as f32.

use rsllm_quant::GgmlType;
use rsllm_tensor::{BackendError, Op, SharedBytes, WeightSource};

use crate::kernels::{Dot, Kernels, ToTiles, Unpack, UnpackIntegers};
use crate::tiles::TILE_K;

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
    /// For the product on integers, where there is a short way.
    pub(crate) to_integers: Option<UnpackIntegers>,
    /// For the product on tiles, where the type takes it.
    pub(crate) to_tiles: Option<ToTiles>,
    /// One part with all matrices, or one a matrix.
    parts: Vec<SharedBytes>,
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
            parts,
        } = source;
        let (Some(dot), Some(unpack)) = (kernels.dot(ty), kernels.unpack(ty)) else {
            return Err(BackendError::UnsupportedType {
                backend: BACKEND,
                tensor: name,
                ty,
                op: Op::Matmul,
            });
        };
        let matrices_per_part = if parts.len() == 1 { n_matrices } else { 1 };
        let row_bytes = ty.row_bytes(row_len).unwrap_or(usize::MAX);
        let part_bytes = row_bytes
            .checked_mul(n_rows)
            .and_then(|bytes| bytes.checked_mul(matrices_per_part))
            .unwrap_or(usize::MAX);
        let wrong_part = parts.iter().find(|part| part.len() != part_bytes);
        if row_len == 0 || parts.len() * matrices_per_part != n_matrices || wrong_part.is_some() {
            let found = wrong_part.map_or_else(
                || parts.iter().map(|part| part.len()).sum(),
                |part| part.len(),
            );
            return Err(BackendError::WeightBytes {
                tensor: name,
                expected: part_bytes,
                found,
            });
        }
        let mut vector = Vec::new();
        if n_rows * n_matrices == 1 {
            vector.resize(row_len, 0.0);
            rsllm_quant::dequantize(ty, &parts[0], &mut vector)
                .expect("the bytes are whole blocks of row_len values, checked above");
        }
        let to_tiles = kernels.tiles.and_then(|tiles| (tiles.unpack)(ty));
        // The scratch for second parts has room for rows that fill a tile.
        let fits = |kind: &ToTiles| matches!(kind, ToTiles::Rounded(_)) || row_len >= TILE_K;
        Ok(Self {
            ty,
            row_len,
            n_rows,
            n_matrices,
            row_bytes,
            dot,
            unpack,
            to_integers: kernels.integers.and_then(|integers| (integers.unpack)(ty)),
            to_tiles: to_tiles.filter(fits),
            parts,
            vector,
        })
    }

    /// Whether prefill rows meet it on the tile unit.
    pub(crate) fn takes_tiles(&self) -> bool {
        self.to_tiles.is_some()
    }

    /// Whether they do so in two parts.
    pub(crate) fn in_parts(&self) -> bool {
        matches!(self.to_tiles, Some(ToTiles::Parts(_)))
    }

    /// Packed rows `start..end` of matrix `matrix`.
    pub(crate) fn rows(&self, matrix: usize, rows: std::ops::Range<usize>) -> &[u8] {
        let (part, first) = if self.parts.len() == 1 {
            (0, matrix * self.n_rows)
        } else {
            (matrix, 0)
        };
        &self.parts[part]
            [(first + rows.start) * self.row_bytes..(first + rows.end) * self.row_bytes]
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
