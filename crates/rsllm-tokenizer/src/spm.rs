//! SentencePiece's BPE as Llama 2 uses it: characters merged while the two together are a token, best score first.
//!
//! There is no table of merges: whether two neighbours may merge, and how good that is, follows from the token their
//! texts give together. Characters that are no tokens become byte tokens.

use crate::TokenId;
use crate::cache::Scratch;
use crate::merge::{Merge, Merger, NO_MERGE, Symbol};
use crate::vocabulary::{TokenKind, Vocabulary};
use crate::words::WordBreaks;

/// What encoding needs beside the vocabulary.
#[derive(Debug)]
pub(crate) struct SentencePiece {
    byte_tokens: [Option<TokenId>; 256],
    longest: usize,
    breaks: WordBreaks,
    unknown: Option<TokenId>,
}

impl SentencePiece {
    /// Prepares the vocabulary.
    pub(crate) fn new(vocabulary: &Vocabulary, unknown: Option<TokenId>) -> Self {
        let mut byte_tokens = [None; 256];
        for byte in 0..=u8::MAX {
            byte_tokens[usize::from(byte)] = vocabulary
                .byte_token(byte)
                .or_else(|| vocabulary.text_token(&[byte]));
        }
        let mut breaks = WordBreaks::default();
        let mut longest = 0;
        for (id, text) in vocabulary.iter() {
            if may_come_from_text(vocabulary, id) {
                longest = longest.max(text.len());
                breaks.add_token(text);
            }
        }
        Self {
            byte_tokens,
            longest,
            breaks,
            // A file that marks it as control does not want it to come from text.
            unknown: unknown.filter(|&id| vocabulary.kind(id) != TokenKind::Control),
        }
    }

    /// Appends the tokens of `text`, in which spaces are U+2581 and no special tokens are left.
    pub(crate) fn encode(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        scratch: &mut Scratch,
        out: &mut Vec<TokenId>,
    ) {
        let Scratch { merger, cache, .. } = scratch;
        for word in self.breaks.words(text) {
            cache.get_or_encode(word, out, |out| {
                self.encode_word(vocabulary, word, merger, out);
            });
        }
    }

    fn encode_word(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        merger: &mut Merger,
        out: &mut Vec<TokenId>,
    ) {
        let bytes = text.as_bytes();
        merger.symbols.clear();
        merger
            .symbols
            .extend(text.char_indices().map(|(start, c)| Symbol {
                id: NO_TOKEN,
                start,
                len: c.len_utf8(),
            }));
        merger.merge(|left, right| {
            let len = left.len + right.len;
            if len > self.longest {
                return None;
            }
            let merged = vocabulary.id_of(&bytes[left.start..left.start + len])?;
            may_come_from_text(vocabulary, merged).then(|| Merge {
                rank: rank_of_score(vocabulary.score(merged)),
                merged,
            })
        });
        for symbol in &merger.symbols {
            let text = &bytes[symbol.start..symbol.start + symbol.len];
            if symbol.id != NO_TOKEN {
                out.push(symbol.id);
            } else if let Some(id) = vocabulary
                .id_of(text)
                .filter(|&id| may_come_from_text(vocabulary, id))
            {
                out.push(id);
            } else {
                out.extend(
                    text.iter()
                        .filter_map(|&byte| self.byte_tokens[usize::from(byte)].or(self.unknown)),
                );
            }
        }
    }
}

/// Byte tokens and those of the model's protocol are no text.
fn may_come_from_text(vocabulary: &Vocabulary, id: TokenId) -> bool {
    vocabulary.kind(id) != TokenKind::Byte && !vocabulary.is_protocol(id)
}

/// Smaller for greater scores; never [`NO_MERGE`]. NaN is worse than all numbers.
fn rank_of_score(score: f32) -> u32 {
    if score.is_nan() {
        return NO_MERGE - 1;
    }
    // Floats of one sign order as their bits do; adding zero makes −0 equal 0.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 0 {
        bits | 1 << 31
    } else {
        !bits
    };
    (!ascending).min(NO_MERGE - 1)
}

/// The symbol of a character that has not merged.
const NO_TOKEN: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_order_as_scores_do() {
        let scores = [
            f32::INFINITY,
            3.0,
            1e-30,
            0.0,
            -1e-30,
            -1.0,
            -1e9,
            f32::NEG_INFINITY,
            f32::NAN,
        ];
        let ranks: Vec<u32> = scores.iter().map(|&score| rank_of_score(score)).collect();
        assert!(ranks.is_sorted_by(|a, b| a < b), "{ranks:?}");
        assert_eq!(rank_of_score(-0.0), rank_of_score(0.0));
        assert!(ranks.iter().all(|&rank| rank != NO_MERGE));
    }
}
