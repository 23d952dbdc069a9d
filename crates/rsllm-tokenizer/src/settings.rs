//! The kinds of vocabulary, what each implies, and what the file's keys change.

use rsllm_gguf::Metadata;

use crate::error::TokenizerError;
use crate::pretokenizer::PreTokenizer;
use crate::special::{SpecialTokens, names_bos_and_eos};
use crate::vocabulary::{TokenKind, Vocabulary};
use crate::warning::TokenizerWarning;

/// How text becomes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// Pairs of bytes merged by rank, within pieces that a pre-tokenizer cuts (GPT-2, Llama 3, Qwen, …).
    ByteLevelBpe,
    /// Pairs of characters merged by rank, spaces written U+2581, rare characters as bytes (Gemma 4).
    CharacterBpe,
    /// Pairs merged by the score of the token they give (SentencePiece BPE: Llama 2, Gemma 3, Phi 3).
    SentencePiece,
}

/// What is fixed before the first text.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts about a vocabulary, not a state"
)]
pub(crate) struct Settings {
    pub(crate) algorithm: Algorithm,
    /// Only for BPE.
    pub(crate) pre_tokenizer: Option<PreTokenizer>,
    pub(crate) add_bos: bool,
    pub(crate) add_eos: bool,
    pub(crate) add_sep: bool,
    pub(crate) add_space_prefix: bool,
    pub(crate) clean_spaces: bool,
    /// Spaces are written U+2581 in token texts.
    pub(crate) escape_spaces: bool,
}

impl Settings {
    /// Reads the kind, the pre-tokenizer and the flags.
    pub(crate) fn from_metadata(
        metadata: &Metadata,
        warnings: &mut Vec<TokenizerWarning>,
    ) -> Result<Self, TokenizerError> {
        let kind = metadata.str(KIND_KEY)?;
        let mut settings = match kind {
            "llama" => Self {
                algorithm: Algorithm::SentencePiece,
                pre_tokenizer: None,
                add_bos: true,
                add_eos: false,
                add_sep: false,
                add_space_prefix: true,
                clean_spaces: false,
                escape_spaces: true,
            },
            "gpt2" => {
                let pre = metadata.opt_str(PRE_KEY)?;
                if pre.is_none() {
                    warnings.push(TokenizerWarning::MissingPreTokenizer);
                }
                Self::bpe(pre.unwrap_or("default"))?
            }
            "gemma4" => Self::bpe("gemma4")?,
            "bert" | "t5" | "rwkv" | "plamo2" | "hybriddna" | "whitespace" | "no_vocab"
            | "none" => {
                return Err(TokenizerError::UnsupportedKind {
                    kind: kind.into(),
                    supported: SUPPORTED,
                });
            }
            _ => {
                return Err(TokenizerError::UnknownKind {
                    kind: kind.into(),
                    supported: SUPPORTED,
                });
            }
        };
        for (key, flag) in [
            ("tokenizer.ggml.add_bos_token", &mut settings.add_bos),
            ("tokenizer.ggml.add_eos_token", &mut settings.add_eos),
            ("tokenizer.ggml.add_sep_token", &mut settings.add_sep),
            (
                "tokenizer.ggml.add_space_prefix",
                &mut settings.add_space_prefix,
            ),
        ] {
            if let Some(value) = metadata.opt_bool(key)? {
                *flag = value;
            }
        }
        if kind == "gemma4" {
            // Converters have written false here; the model needs the token.
            settings.add_bos = true;
        }
        Ok(settings)
    }

    fn bpe(pre: &str) -> Result<Self, TokenizerError> {
        let pre_tokenizer =
            PreTokenizer::by_name(pre).ok_or_else(|| TokenizerError::UnknownPreTokenizer {
                pre: pre.into(),
                known: PreTokenizer::names(),
            })?;
        let flags = pre_tokenizer.flags;
        Ok(Self {
            algorithm: if flags.raw {
                Algorithm::CharacterBpe
            } else {
                Algorithm::ByteLevelBpe
            },
            pre_tokenizer: Some(pre_tokenizer),
            add_bos: flags.add_bos,
            add_eos: false,
            add_sep: flags.add_sep,
            add_space_prefix: false,
            clean_spaces: flags.clean_spaces,
            escape_spaces: flags.escape_spaces,
        })
    }

    /// The special ids: the kind's own, replaced by the file's.
    pub(crate) fn special_tokens(
        &self,
        metadata: &Metadata,
        vocabulary: &Vocabulary,
        warnings: &mut Vec<TokenizerWarning>,
    ) -> Result<SpecialTokens, TokenizerError> {
        let vocab_size = vocabulary.len();
        let in_range = |id: u32| Some(id).filter(|&id| (id as usize) < vocab_size);
        let defaults = match self.algorithm {
            Algorithm::SentencePiece => SpecialTokens {
                bos: in_range(1),
                eos: in_range(2),
                unknown: in_range(0),
                ..SpecialTokens::default()
            },
            Algorithm::ByteLevelBpe => {
                // Falcon's id. In another vocabulary it is a comma or the like, and must not end texts.
                let (has_bos, has_eos) = names_bos_and_eos(metadata);
                let falcon = in_range(11).filter(|&id| {
                    vocabulary.kind(id) == TokenKind::Control
                        || vocabulary.text(id) == b"<|endoftext|>"
                });
                let no_default_bos = self
                    .pre_tokenizer
                    .is_some_and(|pre| pre.flags.no_default_bos);
                SpecialTokens {
                    bos: falcon.filter(|_| !has_bos && !no_default_bos),
                    eos: falcon.filter(|_| !has_eos),
                    ..SpecialTokens::default()
                }
            }
            Algorithm::CharacterBpe => SpecialTokens::default(),
        };
        SpecialTokens::from_metadata(metadata, defaults, vocab_size, warnings)
    }
}

const KIND_KEY: &str = "tokenizer.ggml.model";
const PRE_KEY: &str = "tokenizer.ggml.pre";
const SUPPORTED: &str = "`gpt2`, `llama` and `gemma4`";
