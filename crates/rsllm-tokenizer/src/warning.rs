//! Oddities of a file's tokenizer that are worked around, for whoever shows them to a person.

use std::fmt;

use crate::TokenId;

/// Something that may make ids differ from what the model was trained with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenizerWarning {
    /// A byte-level vocabulary without `tokenizer.ggml.pre`; the default rules are used.
    MissingPreTokenizer,
    /// A special id outside the vocabulary is ignored.
    SpecialIdOutOfRange {
        /// The metadata key.
        key: &'static str,
        /// The id in the file.
        id: i128,
        /// The number of tokens.
        vocab_size: usize,
    },
    /// A token that ends texts or turns is not marked as control in the file; it is treated as such.
    NotMarkedControl {
        /// The token.
        id: TokenId,
        /// Its text.
        text: String,
    },
    /// A SentencePiece vocabulary without scores; all are taken as 0.
    MissingScores,
}

impl fmt::Display for TokenizerWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingPreTokenizer => f.write_str(
                "`tokenizer.ggml.pre` is missing; text is split by default rules, which may not be the model's",
            ),
            Self::SpecialIdOutOfRange { key, id, vocab_size } => {
                write!(f, "`{key}` is {id}, but there are {vocab_size} tokens; ignored")
            }
            Self::NotMarkedControl { id, text } => {
                write!(f, "token {id} \"{text}\" is not marked as control in the file; treated as such")
            }
            Self::MissingScores => f.write_str("`tokenizer.ggml.scores` is missing; all scores are taken as 0"),
        }
    }
}
