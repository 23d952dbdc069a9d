//! The tokens of a vocabulary: text, kind and score of each, and the way back from text to id.

use std::borrow::Cow;

use rsllm_gguf::{Metadata, StringArray};

use crate::TokenId;
use crate::error::TokenizerError;
use crate::hash::TextIndex;

/// What a token is, as the file says (`tokenizer.ggml.token_type`) or its text shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// Ordinary text.
    Normal,
    /// Stands for what cannot be written.
    Unknown,
    /// Part of the model's protocol, not of any text: never made from text unless asked, never shown unless asked.
    Control,
    /// Text that is always one token and always shown.
    UserDefined,
    /// A place in the table that the model does not use.
    Unused,
    /// One byte, written `<0x0A>`.
    Byte,
}

impl TokenKind {
    fn from_type(value: i32) -> Option<Self> {
        Some(match value {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// The tokens.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    texts: StringArray,
    kinds: Vec<TokenKind>,
    scores: Option<Vec<f32>>,
    index: TextIndex,
}

impl Vocabulary {
    /// Reads texts, kinds and scores, and checks that their numbers agree.
    pub(crate) fn from_metadata(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let texts = metadata.str_array(TOKENS_KEY)?;
        let vocab_size = texts.len();
        if vocab_size == 0 {
            return Err(TokenizerError::EmptyVocabulary);
        }
        if vocab_size > MAX_TOKENS {
            return Err(TokenizerError::TooLarge {
                key: TOKENS_KEY,
                found: format!("{vocab_size} tokens"),
                limit: MAX_TOKENS as u64,
            });
        }
        let kinds = match metadata.opt_i32_array(TYPES_KEY)? {
            None => vec![TokenKind::Normal; vocab_size],
            Some(types) => {
                check_length(TYPES_KEY, vocab_size, types.len())?;
                types
                    .iter()
                    .enumerate()
                    .map(|(index, &value)| {
                        TokenKind::from_type(value)
                            .ok_or(TokenizerError::BadTokenType { index, value })
                    })
                    .collect::<Result<_, _>>()?
            }
        };
        let scores = read_scores(metadata)?;
        if let Some(scores) = &scores {
            check_length(SCORES_KEY, vocab_size, scores.len())?;
        }
        let texts = with_texts_for_empty(texts);
        let index = TextIndex::new(&texts);
        Ok(Self {
            texts,
            kinds,
            scores,
            index,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.texts.len()
    }

    /// The token's text as stored; empty past the end.
    pub(crate) fn text(&self, id: TokenId) -> &[u8] {
        self.texts.get(id as usize).unwrap_or_default()
    }

    /// The token's kind; unused past the end.
    pub(crate) fn kind(&self, id: TokenId) -> TokenKind {
        self.kinds
            .get(id as usize)
            .copied()
            .unwrap_or(TokenKind::Unused)
    }

    /// Whether merging must not yield the token, whatever the text: it belongs to the model's protocol.
    pub(crate) fn is_protocol(&self, id: TokenId) -> bool {
        match self.kind(id) {
            TokenKind::Control | TokenKind::Unknown => true,
            TokenKind::UserDefined => looks_like_protocol(self.text(id)),
            TokenKind::Normal | TokenKind::Unused | TokenKind::Byte => false,
        }
    }

    pub(crate) fn set_kind(&mut self, id: TokenId, kind: TokenKind) {
        self.kinds[id as usize] = kind;
    }

    /// The token's score; 0 where the file has none.
    pub(crate) fn score(&self, id: TokenId) -> f32 {
        self.scores
            .as_ref()
            .and_then(|scores| scores.get(id as usize))
            .copied()
            .unwrap_or(0.0)
    }

    pub(crate) fn has_scores(&self) -> bool {
        self.scores.is_some()
    }

    /// The token with exactly this text; the last if there are several.
    pub(crate) fn id_of(&self, text: &[u8]) -> Option<TokenId> {
        self.index.get(&self.texts, text)
    }

    /// As [`Self::id_of`], unless it is a token that ordinary text must not yield.
    pub(crate) fn text_token(&self, text: &[u8]) -> Option<TokenId> {
        self.id_of(text).filter(|&id| !self.is_protocol(id))
    }

    /// The token of a single byte, written `<0x0A>`.
    pub(crate) fn byte_token(&self, byte: u8) -> Option<TokenId> {
        self.text_token(format!("<0x{byte:02X}>").as_bytes())
    }

    /// All ids with their texts, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (TokenId, &[u8])> {
        (0..).zip(self.texts.iter())
    }
}

/// Whether a user-defined token is written as control tokens are. gpt-oss and Gemma 4 build their turns and channels on
/// such tokens; words, runs of spaces and HTML tags are written otherwise.
fn looks_like_protocol(text: &[u8]) -> bool {
    ["<|", "|>", "<｜", "｜>"].iter().any(|mark| {
        text.windows(mark.len())
            .any(|window| window == mark.as_bytes())
    })
}

/// The byte that a token text like `<0x0A>` names.
pub(crate) fn named_byte(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    if digits.len() != 2 {
        return None;
    }
    // `from_str_radix` takes a sign, which is no digit.
    let digits = std::str::from_utf8(digits)
        .ok()
        .filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))?;
    u8::from_str_radix(digits, 16).ok()
}

/// Scores are floats; some writers store integers.
fn read_scores(metadata: &Metadata) -> Result<Option<Vec<f32>>, TokenizerError> {
    let integers = metadata.opt_i32_array(SCORES_KEY);
    if let Ok(Some(scores)) = integers {
        return Ok(Some(scores.iter().map(|&score| score as f32).collect()));
    }
    Ok(metadata.opt_f32_array(SCORES_KEY)?.map(Cow::into_owned))
}

fn check_length(key: &'static str, expected: usize, found: usize) -> Result<(), TokenizerError> {
    if expected == found {
        Ok(())
    } else {
        Err(TokenizerError::LengthMismatch {
            key,
            expected,
            found,
        })
    }
}

/// A token without text could match anywhere; it gets one that names its place.
fn with_texts_for_empty(texts: &StringArray) -> StringArray {
    if texts.iter().all(|text| !text.is_empty()) {
        return texts.clone();
    }
    texts
        .iter()
        .enumerate()
        .map(|(id, text)| {
            if text.is_empty() {
                Cow::Owned(format!("[EMPTY_{id}]").into_bytes())
            } else {
                Cow::Borrowed(text)
            }
        })
        .collect()
}

/// Ids and the numbers of slots fit 32 bits.
const MAX_TOKENS: usize = 1 << 30;
pub(crate) const TOKENS_KEY: &str = "tokenizer.ggml.tokens";
const TYPES_KEY: &str = "tokenizer.ggml.token_type";
const SCORES_KEY: &str = "tokenizer.ggml.scores";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_two_hexadecimal_digits_name_a_byte() {
        assert_eq!(named_byte(b"<0x0A>"), Some(10));
        assert_eq!(named_byte(b"<0xff>"), Some(255));
        for text in [&b"<0x>"[..], b"<0x0>", b"<0x+A>", b"<0x00A>", b"0x0A", b""] {
            assert_eq!(named_byte(text), None, "{}", text.escape_ascii());
        }
    }
}
