//! Byte-pair encoding: pieces of text as symbols, merged by rank.
//!
//! Byte-level vocabularies write each byte as a printable character, so that a piece is merged in its printable form.
//! Character vocabularies (Gemma 4) start from the characters, with U+2581 for the space.
//!
//! Two symbols may merge if their texts, with a space between, are one of the merges. Symbols are known by their texts
//! alone until no more merge: that saves looking up three tokens for each of some 300,000 merges before the first text.

use rsllm_gguf::{Metadata, StringArray};

use crate::TokenId;
use crate::byte_map::{byte_to_char, char_to_byte};
use crate::cache::Scratch;
use crate::error::TokenizerError;
use crate::hash::{BadMerge, MergeIndex, Text};
use crate::merge::{Merge, Merger, Symbol};
use crate::pretokenizer::{Flags, PreTokenizer};
use crate::vocabulary::Vocabulary;
use crate::words::{SPACE, WordBreaks};

/// The merges of a vocabulary and how its pieces are cut.
#[derive(Debug)]
pub(crate) struct Bpe {
    pre_tokenizer: PreTokenizer,
    merges: Merges,
    /// The token of each byte, to spell out what is no token; none if the vocabulary has none.
    byte_tokens: [Option<TokenId>; 256],
}

impl Bpe {
    /// Finishes `merges` for `vocabulary`.
    pub(crate) fn new(
        mut merges: Merges,
        pre_tokenizer: PreTokenizer,
        vocabulary: &Vocabulary,
    ) -> Self {
        merges.forget_protocol(vocabulary);
        let byte_tokens = std::array::from_fn(|byte| {
            let byte = byte as u8;
            if pre_tokenizer.flags.raw {
                vocabulary.byte_token(byte)
            } else {
                vocabulary.text_token(byte_to_char(byte).to_string().as_bytes())
            }
        });
        Self {
            pre_tokenizer,
            merges,
            byte_tokens,
        }
    }

    /// Appends the tokens of `text`, which holds no special tokens.
    pub(crate) fn encode(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        scratch: &mut Scratch,
        out: &mut Vec<TokenId>,
    ) {
        let Scratch {
            merger,
            text: line,
            cache,
        } = scratch;
        self.pre_tokenizer.split(text, &mut |piece| {
            if self.flags().raw {
                self.encode_line(piece, line, |word| {
                    cache.get_or_encode(word, out, |out| {
                        self.encode_characters(vocabulary, word, merger, out);
                    });
                });
            } else {
                cache.get_or_encode(piece, out, |out| {
                    self.encode_bytes(vocabulary, piece, line, merger, out);
                });
            }
        });
    }

    fn flags(&self) -> &Flags {
        &self.pre_tokenizer.flags
    }

    /// A piece of a byte-level vocabulary.
    fn encode_bytes(
        &self,
        vocabulary: &Vocabulary,
        piece: &str,
        printable: &mut String,
        merger: &mut Merger,
        out: &mut Vec<TokenId>,
    ) {
        printable.clear();
        merger.symbols.clear();
        for byte in piece.bytes() {
            let start = printable.len();
            printable.push(byte_to_char(byte));
            merger.symbols.push(Symbol {
                id: byte.into(),
                start,
                len: printable.len() - start,
            });
        }
        if self.flags().ignore_merges
            && let Some(id) = vocabulary.text_token(printable.as_bytes())
        {
            out.push(id);
            return;
        }
        self.merge(printable, merger);
        for symbol in &merger.symbols {
            let text = &printable[symbol.start..symbol.start + symbol.len];
            if symbol.id != MERGED {
                out.extend(self.byte_tokens[symbol.id as usize]);
            } else if let Some(id) = vocabulary.text_token(text.as_bytes()) {
                out.push(id);
            } else {
                let bytes = text.chars().filter_map(char_to_byte);
                out.extend(bytes.filter_map(|byte| self.byte_tokens[usize::from(byte)]));
            }
        }
    }

    /// A line, or a run of line feeds, of a character vocabulary, word by word.
    fn encode_line(&self, line: &str, escaped: &mut String, encode: impl FnMut(&str)) {
        escaped.clear();
        if self.flags().escape_spaces {
            escaped.extend(line.chars().map(|c| if c == ' ' { SPACE } else { c }));
        } else {
            escaped.push_str(line);
        }
        self.merges.breaks.words(escaped).for_each(encode);
    }

    /// Whether a piece of a character vocabulary is looked up as it is before it is merged.
    fn may_be_whole(&self, piece: &str) -> bool {
        self.flags().whole_newline_runs && piece.starts_with('\n')
    }

    fn encode_characters(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        merger: &mut Merger,
        out: &mut Vec<TokenId>,
    ) {
        if self.may_be_whole(text)
            && let Some(id) = vocabulary.text_token(text.as_bytes())
        {
            out.push(id);
            return;
        }
        merger.symbols.clear();
        merger
            .symbols
            .extend(text.char_indices().map(|(start, c)| Symbol {
                id: 0,
                start,
                len: c.len_utf8(),
            }));
        self.merge(text, merger);
        for symbol in &merger.symbols {
            let bytes = &text.as_bytes()[symbol.start..symbol.start + symbol.len];
            if let Some(id) = vocabulary.text_token(bytes) {
                out.push(id);
            } else {
                let tokens = bytes
                    .iter()
                    .map(|&byte| self.byte_tokens[usize::from(byte)]);
                out.extend(tokens.flatten());
            }
        }
    }

    fn merge(&self, text: &str, merger: &mut Merger) {
        merger.merge(|left, right| {
            let text = |symbol: &Symbol| {
                Text::new(text.as_bytes(), symbol.start..symbol.start + symbol.len)
            };
            let rank = self.merges.index.get(text(left), text(right))?;
            Some(Merge {
                rank,
                merged: MERGED,
            })
        });
    }
}

/// The merges of a file.
#[derive(Debug)]
pub(crate) struct Merges {
    index: MergeIndex,
    /// For character vocabularies: where lines are cut before merging.
    breaks: WordBreaks,
}

impl Merges {
    /// The merges that `metadata` have for a vocabulary with these flags.
    pub(crate) fn texts(metadata: &Metadata, flags: &Flags) -> Result<StringArray, TokenizerError> {
        let merges = match metadata.opt_str_array(MERGES_KEY)? {
            Some(merges) if !merges.is_empty() => merges.clone(),
            _ if flags.merges_optional => StringArray::default(),
            merges => {
                return Err(TokenizerError::NoMerges {
                    missing: merges.is_none(),
                });
            }
        };
        if merges.len() > MAX_MERGES {
            return Err(TokenizerError::TooLarge {
                key: MERGES_KEY,
                found: format!("{} merges", merges.len()),
                limit: MAX_MERGES as u64,
            });
        }
        Ok(merges)
    }

    /// Indexes the merges.
    pub(crate) fn new(texts: &StringArray) -> Result<Self, TokenizerError> {
        let mut breaks = WordBreaks::default();
        let index = MergeIndex::new(texts, |left, right| breaks.add_merge(left, right)).map_err(
            |BadMerge { index }| TokenizerError::BadMerge {
                index,
                merge: described(texts.get(index).unwrap_or_default()),
            },
        )?;
        Ok(Self { index, breaks })
    }

    /// Forgets merges that give a token which text alone must not yield.
    fn forget_protocol(&mut self, vocabulary: &Vocabulary) {
        for (id, text) in vocabulary.iter() {
            // Of equal texts the last token counts.
            if vocabulary.is_protocol(id)
                && text.len() <= SHORT_BYTES
                && vocabulary.id_of(text) == Some(id)
            {
                for middle in 1..text.len() {
                    let (left, right) = text.split_at(middle);
                    self.index.remove(left, right);
                }
            }
        }
        self.index.retain_longer(SHORT_BYTES, |joined| {
            vocabulary
                .id_of(joined)
                .is_none_or(|id| !vocabulary.is_protocol(id))
        });
    }
}

fn described(merge: &[u8]) -> String {
    let cut = &merge[..merge.len().min(DESCRIBED_BYTES)];
    let ellipsis = if cut.len() < merge.len() { "…" } else { "" };
    format!("{}{ellipsis}", cut.escape_ascii())
}

/// In place of a byte: more than one.
const MERGED: u32 = u32::MAX;
const MERGES_KEY: &str = "tokenizer.ggml.merges";
/// Ranks and the numbers of slots fit 32 bits.
const MAX_MERGES: usize = 1 << 29;
/// Of texts up to this length all ways to part them are tried; that would take too long with those of a hostile file.
const SHORT_BYTES: usize = 64;
const DESCRIBED_BYTES: usize = 40;
