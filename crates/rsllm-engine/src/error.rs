//! Why the engine could not do what was asked.

use rsllm_gguf::GgufError;
use rsllm_model::ModelError;
use rsllm_tensor::BackendError;
use rsllm_tokenizer::TokenizerError;

use crate::TokenId;
use crate::constraint::ConstraintError;
use crate::sampling::{OptionError, SamplingError};
use crate::saved::SavedPrefixError;

/// One variant a cause. Errors of the crates below are passed on as they are.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The model file.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The tokenizer part of the file.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The model itself.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The device that computes.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// An option outside its range.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// No token could be drawn.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// A schema, regular expression or grammar that cannot be enforced.
    #[error("{source}")]
    Constraint {
        /// The option that carries it.
        option: &'static str,
        /// Why not.
        source: ConstraintError,
    },
    /// A saved prefix that cannot be taken.
    #[error(transparent)]
    SavedPrefix(#[from] SavedPrefixError),
    /// A prefix that is too short to be saved.
    #[error("the prefix has {n_tokens} tokens; what is saved is whole pages of {page_len}")]
    ShortPrefix {
        /// Its tokens.
        n_tokens: usize,
        /// Tokens of a page.
        page_len: usize,
    },
    /// A folder of saved prefixes that cannot be read or written.
    #[error("cannot use {}", .path.display())]
    PrefixFolder {
        /// The file or folder.
        path: std::path::PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The model cannot score: it has no head for that, or one of an unknown kind.
    #[error(
        "the model has no classification head that is known (tensors `cls.weight` or `cls.output.weight`{}); pooling `rank` needs a reranker",
        .unknown.map(|name| format!(" without `{name}`")).unwrap_or_default()
    )]
    NoClassifier {
        /// A tensor of the head that is not known.
        unknown: Option<&'static str>,
    },
    /// A tensor of the classification head does not fit the model.
    #[error("tensor `{tensor}` has {found} values where the model needs {expected}")]
    ClassifierShape {
        /// The tensor.
        tensor: String,
        /// Inputs, or outputs for a bias.
        expected: u64,
        /// Those of the tensor.
        found: u64,
    },
    /// A tensor of the classification head cannot be read.
    #[error("tensor `{tensor}` cannot be read")]
    ClassifierType {
        /// The tensor.
        tensor: String,
        /// Why not.
        source: rsllm_quant::QuantError,
    },
    /// The prompt is longer than the context.
    #[error("the prompt has {prompt_tokens} tokens, but the context has room for {context}")]
    ContextLength {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// The KV cache of the context does not fit the free memory.
    #[error(
        "a context of {context} tokens needs {kv_bytes} bytes, but {free_bytes} are free; the largest that fits is {fits}"
    )]
    ContextMemory {
        /// Tokens asked for, or the fewest that are useful.
        context: usize,
        /// Their KV cache.
        kv_bytes: u64,
        /// Free memory.
        free_bytes: u64,
        /// Tokens that would fit.
        fits: usize,
    },
    /// A request without tokens has nothing to continue.
    #[error("the prompt has no tokens; there must be at least one")]
    EmptyPrompt,
    /// A token id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab_size}")]
    TokenOutOfRange {
        /// The id.
        id: TokenId,
        /// Tokens of the vocabulary.
        vocab_size: usize,
    },
    /// The vocabulary of the tokenizer and the output of the model differ.
    #[error("the tokenizer has {tokenizer} tokens, but the model computes logits for {model}")]
    VocabularyMismatch {
        /// Tokens of the tokenizer.
        tokenizer: usize,
        /// Rows of the output matrix.
        model: usize,
    },
    /// The draft model cannot be used.
    #[error("draft model {}: {error}", .path.display())]
    Draft {
        /// Its file.
        path: std::path::PathBuf,
        /// Why not.
        error: Box<EngineError>,
    },
    /// The draft model has another vocabulary.
    #[error("{what}; both must have the same tokens")]
    DraftVocabulary {
        /// The first difference.
        what: String,
    },
    /// The engine thread could not be started.
    #[error("cannot start the engine thread")]
    Thread(#[source] std::io::Error),
    /// Code of the engine panicked while it served this request; others are not affected.
    #[error("internal error in the engine: {message}")]
    Panicked {
        /// What the panic said.
        message: String,
    },
    /// The engine was closed.
    #[error("the model is closed")]
    Closed,
}

/// What callers tell errors apart by. Unlike the errors themselves this list is closed, so that whoever translates it, say to
/// Python exceptions, hears from the compiler when it grows.
#[derive(Clone, Copy, Debug)]
pub enum ErrorClass<'e> {
    /// The model file is damaged or cannot be read.
    File(&'e GgufError),
    /// The file's vocabulary cannot be used.
    Tokenizer,
    /// The file is sound, but this model cannot be run.
    Model,
    /// The device, or the engine itself, failed.
    Backend,
    /// The caller asked for something impossible.
    Option {
        /// The option at fault.
        name: &'static str,
    },
    /// The prompt is longer than the context.
    ContextLength {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// The engine was closed.
    Closed,
}

impl EngineError {
    /// The class of this error.
    pub fn class(&self) -> ErrorClass<'_> {
        match self {
            Self::Gguf(error) | Self::Model(ModelError::Gguf(error)) => ErrorClass::File(error),
            Self::Tokenizer(_) => ErrorClass::Tokenizer,
            Self::Model(ModelError::Backend(error)) | Self::Backend(error) => backend_class(error),
            Self::Model(_)
            | Self::VocabularyMismatch { .. }
            | Self::ClassifierShape { .. }
            | Self::ClassifierType { .. } => ErrorClass::Model,
            Self::NoClassifier { .. } => ErrorClass::Option { name: "pooling" },
            Self::Option(error) => ErrorClass::Option { name: error.name },
            Self::Constraint { option, .. } => ErrorClass::Option { name: option },
            Self::ContextMemory { .. } => ErrorClass::Option { name: "context" },
            Self::Draft { error, .. } => error.class(),
            Self::DraftVocabulary { .. } => ErrorClass::Option { name: "draft" },
            Self::SavedPrefix(_) => ErrorClass::Option { name: "prefix" },
            Self::PrefixFolder { .. } => ErrorClass::Option { name: "folder" },
            Self::EmptyPrompt | Self::ShortPrefix { .. } | Self::TokenOutOfRange { .. } => {
                ErrorClass::Option { name: "prompt" }
            }
            &Self::ContextLength {
                prompt_tokens,
                context,
            } => ErrorClass::ContextLength {
                prompt_tokens,
                context,
            },
            Self::Sampling(_) | Self::Thread(_) | Self::Panicked { .. } => ErrorClass::Backend,
            Self::Closed => ErrorClass::Closed,
        }
    }

    /// True when the work was abandoned because the caller, or the engine's owner, no longer wanted it.
    pub(crate) fn is_abort(&self) -> bool {
        matches!(self, Self::Model(ModelError::Aborted))
    }
}

/// Not every refusal of a backend is its failure.
fn backend_class(error: &BackendError) -> ErrorClass<'static> {
    match error {
        BackendError::UnsupportedType { .. } | BackendError::WeightBytes { .. } => {
            ErrorClass::Model
        }
        BackendError::UnsupportedKvType { .. } => ErrorClass::Option { name: "kv_type" },
        _ => ErrorClass::Backend,
    }
}
