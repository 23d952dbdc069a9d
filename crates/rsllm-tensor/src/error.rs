//! Why a backend could not do what was asked.

use rsllm_quant::GgmlType;

use crate::params::Op;

/// One variant a cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The device cannot be used at all.
    #[error("backend `{backend}` is not available: {reason}")]
    Unavailable {
        /// Name of the backend.
        backend: &'static str,
        /// What is missing.
        reason: String,
    },
    /// A tensor has a type for which the operation has no kernel.
    #[error("tensor `{tensor}` has type {ty}, for which `{op:?}` has no kernel on {backend}", ty = .ty.name())]
    UnsupportedType {
        /// Name of the backend.
        backend: &'static str,
        /// GGUF name of the tensor.
        tensor: String,
        /// Its type.
        ty: GgmlType,
        /// The operation.
        op: Op,
    },
    /// Two operands do not fit together.
    #[error("`{op:?}`: {what} is {found}, expected {expected}")]
    Shape {
        /// The operation.
        op: Op,
        /// Which dimension of which operand.
        what: &'static str,
        /// What the operation needs.
        expected: usize,
        /// What it was given.
        found: usize,
    },
    /// Bytes of a weight do not match its shape.
    #[error("tensor `{tensor}` needs {expected} bytes, got {found}")]
    WeightBytes {
        /// GGUF name of the tensor.
        tensor: String,
        /// Bytes its shape and type need.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// Memory for a buffer cannot be had.
    #[error("cannot allocate {bytes} bytes for `{what}`")]
    OutOfMemory {
        /// What the memory was for.
        what: String,
        /// How much.
        bytes: u64,
    },
    /// A step asks for more than was reserved at load time.
    #[error("a step has {found} {what}, more than the {limit} reserved at load time")]
    StepLimit {
        /// Rows, outputs, sequences or pages.
        what: &'static str,
        /// What was reserved.
        limit: usize,
        /// What the step has.
        found: usize,
    },
    /// A token id is not in the embedding table.
    #[error("token id {id} is outside the vocabulary of {vocab_size}")]
    TokenOutOfRange {
        /// The id.
        id: u32,
        /// Rows of the embedding table.
        vocab_size: usize,
    },
    /// A kernel failed or a worker thread panicked.
    #[error("`{op:?}` failed: a worker thread panicked")]
    WorkerPanicked {
        /// The operation.
        op: Op,
    },
    /// Heads of this width cannot be stored in this type.
    #[error(
        "kv type {kv_type} stores blocks of 32 values, but a head has {head_dim}; use f16, bf16 or f32"
    )]
    UnsupportedKvType {
        /// The type asked for.
        kv_type: &'static str,
        /// Width of a head.
        head_dim: usize,
    },
}
