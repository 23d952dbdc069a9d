//! Why a model could not be loaded or run.

use rsllm_gguf::GgufError;
use rsllm_tensor::BackendError;

/// One variant a cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// Reading metadata failed.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The backend refused.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// No code for this family.
    #[error("architecture `{found}` is not supported; supported are {}", .known.join(", "))]
    UnsupportedArchitecture {
        /// `general.architecture`.
        found: String,
        /// Families of this version.
        known: Vec<&'static str>,
    },
    /// A key has a value this family or version cannot run.
    #[error("`{key}` is {found}, expected {expected}")]
    UnsupportedValue {
        /// Metadata key.
        key: String,
        /// What would work.
        expected: String,
        /// What the file has.
        found: String,
    },
    /// A tensor the family needs is not in the file.
    #[error("tensor `{name}` is missing: architecture `{architecture}` needs it")]
    MissingTensor {
        /// GGUF name.
        name: String,
        /// The family.
        architecture: &'static str,
    },
    /// A tensor has another shape than the metadata say.
    #[error("tensor `{name}` has shape {found:?}, expected {expected:?}")]
    TensorShape {
        /// GGUF name.
        name: String,
        /// Dimensions by the metadata, row length first.
        expected: Vec<u64>,
        /// Dimensions in the file.
        found: Vec<u64>,
    },
    /// `block_count` is not what the tensors say.
    #[error("`{key}` is {block_count}, but the file has tensors for {found} layers")]
    LayerCount {
        /// Metadata key.
        key: String,
        /// Its value.
        block_count: u64,
        /// Highest layer number among the tensors, plus one.
        found: u64,
    },
    /// No page left for a sequence.
    #[error("the KV cache has no free page: {n_pages} pages of {page_len} tokens are in use")]
    OutOfPages {
        /// Pages of the pool.
        n_pages: usize,
        /// Tokens of a page.
        page_len: usize,
    },
    /// Saved pages do not fit this model.
    #[error("saved pages have {found} bytes left where a page of {expected} is due")]
    PageBytes {
        /// Bytes of a page.
        expected: usize,
        /// Bytes there.
        found: usize,
    },
    /// A layer was handed a state of another kind.
    #[error("layer {layer} has a {found} state, its mixer needs {expected}")]
    LayerState {
        /// Layer number.
        layer: usize,
        /// What the mixer works on.
        expected: &'static str,
        /// What it was given.
        found: &'static str,
    },
    /// The abort flag was set.
    #[error("aborted")]
    Aborted,
}
