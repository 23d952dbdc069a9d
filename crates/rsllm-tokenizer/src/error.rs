//! What can be wrong with the tokenizer part of a file.

use rsllm_gguf::GgufError;

/// Why no tokenizer could be made from a file's metadata.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A key is absent or has the wrong type; the cause names it.
    #[error("tokenizer metadata")]
    Metadata(#[from] GgufError),
    /// The file's vocabulary is of a known kind that this crate cannot read.
    #[error(
        "tokenizer kind `{kind}` (key `tokenizer.ggml.model`) is not supported; supported are {supported}"
    )]
    UnsupportedKind {
        /// The value in the file.
        kind: String,
        /// The kinds that are.
        supported: &'static str,
    },
    /// The file's vocabulary is of a kind nobody has heard of.
    #[error(
        "unknown tokenizer kind `{kind}` (key `tokenizer.ggml.model`); supported are {supported}"
    )]
    UnknownKind {
        /// The value in the file.
        kind: String,
        /// The kinds that are supported.
        supported: &'static str,
    },
    /// The file names a pre-tokenizer without a rule set here. Guessing one would change every id.
    #[error(
        "unknown pre-tokenizer `{pre}` (key `tokenizer.ggml.pre`); known are {}",
        known.join(", ")
    )]
    UnknownPreTokenizer {
        /// The value in the file.
        pre: String,
        /// All names known.
        known: Vec<&'static str>,
    },
    /// The vocabulary has no tokens.
    #[error("`tokenizer.ggml.tokens` is empty")]
    EmptyVocabulary,
    /// More entries, or more bytes of text, than ids and offsets of 32 bits can tell apart.
    #[error("`{key}` has {found}, more than the limit of {limit}")]
    TooLarge {
        /// The metadata key.
        key: &'static str,
        /// What was counted, with its unit: `5000000000 bytes`.
        found: String,
        /// The limit, in the same unit.
        limit: u64,
    },
    /// An array that should have one element a token has another length.
    #[error("`{key}` has {found} elements, but there are {expected} tokens")]
    LengthMismatch {
        /// The metadata key.
        key: &'static str,
        /// The number of tokens.
        expected: usize,
        /// The length of the array.
        found: usize,
    },
    /// A token type outside 1 to 6.
    #[error("`tokenizer.ggml.token_type` has {value} for token {index}; types are 1 to 6")]
    BadTokenType {
        /// The token's id.
        index: usize,
        /// The number found.
        value: i32,
    },
    /// A BPE vocabulary without merges.
    #[error("`tokenizer.ggml.merges` is {}; a BPE vocabulary needs merges", if *.missing { "missing" } else { "empty" })]
    NoMerges {
        /// Whether the key is absent, not just empty.
        missing: bool,
    },
    /// A merge that is not two texts with a space between.
    #[error(
        "`tokenizer.ggml.merges` entry {index} is \"{merge}\", not two texts with a space between them"
    )]
    BadMerge {
        /// Index in the array.
        index: usize,
        /// The entry, escaped, cut after 40 characters.
        merge: String,
    },
}
