//! The tokens as llguidance wants them: the bytes that each adds to the text, in a trie.
//!
//! Tokens that are protocol and not text (control tokens, and user-defined ones written like them) are entered behind the byte
//! 0xFF, which no UTF-8 text has, so that a grammar reaches them by name or id only. Tokens that add no bytes are not entered:
//! a generation that may draw them need not end.

use std::sync::Arc;

use llguidance::toktrie::{INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use rsllm_tokenizer::{DecodeOptions, EncodeOptions, TokenKind, Tokenizer};

use super::error::ConstraintError;
use crate::TokenId;

/// Tokens of a text; the trie of their bytes.
struct Environment {
    tokenizer: Tokenizer,
    trie: TokTrie,
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.tokenizer.encode(text, EncodeOptions::default()),
            Err(_) => self.trie.greedy_tokenize(bytes),
        }
    }

    /// Said to be false, so that a forced text leaves all its tokenizations open, as the mask promises.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

/// The environment of a vocabulary.
pub(super) fn environment(tokenizer: &Tokenizer) -> Result<TokEnv, ConstraintError> {
    let vocab_size = tokenizer.vocab_size();
    if vocab_size >= MAX_TOKENS {
        return Err(ConstraintError::Vocabulary {
            reason: format!("{vocab_size} tokens, the limit is {MAX_TOKENS}"),
        });
    }
    let mut longest = 0;
    let words: Vec<Vec<u8>> = (0..vocab_size as TokenId)
        .map(|id| {
            let word = word(tokenizer, id);
            // A token beyond what the trie can hold is never drawn.
            if word.len() > MAX_TOKEN_BYTES {
                Vec::new()
            } else {
                longest = longest.max(word.len());
                word
            }
        })
        .collect();
    let end_tokens = tokenizer.end_of_generation();
    let info = TokRxInfo::new(
        vocab_size as u32,
        end_tokens.first().copied().unwrap_or(INVALID_TOKEN),
    );
    let mut trie = TokTrie::from(&info, &words);
    if !end_tokens.is_empty() {
        trie = trie.with_eos_tokens(end_tokens);
    }
    Ok(Arc::new(Environment {
        tokenizer: tokenizer.clone(),
        trie,
    }))
}

/// What the token adds to a text, or its name behind the marker.
fn word(tokenizer: &Tokenizer, id: TokenId) -> Vec<u8> {
    let text = tokenizer.token_text(id).unwrap_or_default();
    let is_protocol = match tokenizer.kind(id) {
        TokenKind::Control | TokenKind::Unknown => true,
        TokenKind::UserDefined => looks_like_protocol(text),
        TokenKind::Normal | TokenKind::Byte => false,
        TokenKind::Unused => return Vec::new(),
    };
    if is_protocol || tokenizer.is_end_of_generation(id) {
        let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
        word.extend_from_slice(text);
        return word;
    }
    let bytes = tokenizer.decode_bytes(&[id], DecodeOptions::default());
    // The byte token 0xFF is the marker itself; no UTF-8 text has it.
    if bytes.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) {
        return Vec::new();
    }
    bytes
}

/// As the tokenizer sees it: a user-defined token that a model's turns and channels are built on.
fn looks_like_protocol(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| {
        ["<|", "|>", "<｜", "｜>"]
            .iter()
            .any(|mark| text.contains(mark))
    })
}

/// A trie node has 24 bits for the id.
const MAX_TOKENS: usize = (1 << 24) - 1;
/// A trie node has 10 bits for the depth.
const MAX_TOKEN_BYTES: usize = 1000;
