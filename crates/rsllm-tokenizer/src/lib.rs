//! Text to token ids and back, from GGUF metadata alone.
//!
//! [`Tokenizer::from_metadata`] reads a vocabulary; [`Tokenizer::encode`] and [`Tokenizer::decode`] use it. Three kinds of
//! vocabulary are known (see [`Algorithm`]). The ids are meant to be those of llama.cpp for every text, with two
//! exceptions, both on the safe side: merging never yields a control token, and a vocabulary that names no end-of-text
//! token does not get Falcon's by default.
//!
//! Text that a person or a program sends in and text that a chat template writes are told apart by
//! [`Tokenizer::encode_parts`]: only the latter may contain control tokens.
//!
//! All work is linear in the length of the text or nearly so, whatever the text is.

mod bpe;
mod byte_map;
mod cache;
mod decode;
mod error;
mod hash;
mod merge;
mod partition;
mod pretokenizer;
mod settings;
mod special;
mod spm;
mod tokenizer;
mod unicode;
mod vocabulary;
mod warning;
mod words;

pub use decode::{DecodeOptions, StreamDecoder, Utf8Stream};
pub use error::TokenizerError;
pub use settings::Algorithm;
pub use special::SpecialTokens;
pub use tokenizer::{EncodeOptions, TextPart, Tokenizer};
pub use vocabulary::TokenKind;
pub use warning::TokenizerWarning;

/// The number of a token in its vocabulary.
pub type TokenId = u32;
