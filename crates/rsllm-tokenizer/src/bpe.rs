//! Byte-pair encoding: pieces of text as symbols, merged by rank.
//!
//! Byte-level vocabularies write each byte as a printable character; the symbols of a piece are then its bytes, and the
//! detour through the printable form is needed only to look up whole pieces. Character vocabularies (Gemma 4) start from
//! the characters, with U+2581 for the space.

use std::collections::HashMap;

use rsllm_gguf::{Metadata, StringArray};

use crate::TokenId;
use crate::byte_map::byte_to_char;
use crate::error::TokenizerError;
use crate::hash::{Merge, MergeTable};
use crate::merge::{Merger, Symbol};
use crate::pretokenizer::{Flags, PreTokenizer};
use crate::vocabulary::Vocabulary;

/// The merges of a vocabulary and how its pieces are cut.
#[derive(Debug)]
pub(crate) struct Bpe {
    pre_tokenizer: PreTokenizer,
    merges: MergeTable,
    /// The symbol of each byte, for byte-level vocabularies; [`NO_SYMBOL`] where nothing is known of it.
    byte_symbols: [u32; 256],
    /// The token of each byte, to spell out what is no token; none if the vocabulary has none.
    byte_tokens: [Option<TokenId>; 256],
    /// Texts that merges speak of but that are no tokens, numbered from the vocabulary size on.
    extra_symbols: HashMap<Vec<u8>, u32>,
    /// Whether no merge joins a text with a space (U+2581) that follows it: then lines are cut there, and stay short.
    words_are_apart: bool,
}

/// Memory reused from piece to piece.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    merger: Merger,
    text: String,
}

impl Bpe {
    /// Reads the merges.
    pub(crate) fn new(
        metadata: &Metadata,
        pre_tokenizer: PreTokenizer,
        vocabulary: &Vocabulary,
    ) -> Result<Self, TokenizerError> {
        let empty = StringArray::default();
        let merges = match metadata.opt_str_array(MERGES_KEY)? {
            Some(merges) if !merges.is_empty() => merges,
            _ if pre_tokenizer.flags.merges_optional => &empty,
            merges => {
                return Err(TokenizerError::NoMerges {
                    missing: merges.is_none(),
                });
            }
        };
        let mut builder = Builder::new(vocabulary, merges.len());
        for (index, merge) in merges.iter().enumerate() {
            builder.add(index, merge)?;
        }
        let raw = pre_tokenizer.flags.raw;
        let mut byte_symbols = [NO_SYMBOL; 256];
        let mut byte_tokens = [None; 256];
        for byte in 0..=u8::MAX {
            let slot = usize::from(byte);
            if raw {
                byte_tokens[slot] = vocabulary.byte_token(byte);
            } else {
                let text = byte_to_char(byte).to_string();
                byte_tokens[slot] = vocabulary.text_token(text.as_bytes());
                byte_symbols[slot] = byte_tokens[slot]
                    .or_else(|| builder.extra_symbols.get(text.as_bytes()).copied())
                    .unwrap_or(NO_SYMBOL);
            }
        }
        Ok(Self {
            pre_tokenizer,
            words_are_apart: builder.words_are_apart,
            merges: builder.merges,
            extra_symbols: builder.extra_symbols,
            byte_symbols,
            byte_tokens,
        })
    }

    /// Appends the tokens of `text`, which holds no special tokens.
    pub(crate) fn encode(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        scratch: &mut Scratch,
        out: &mut Vec<TokenId>,
    ) {
        self.pre_tokenizer.split(text, &mut |piece| {
            if self.flags().raw {
                self.encode_line(vocabulary, piece, scratch, out);
            } else {
                self.encode_bytes(vocabulary, piece, scratch, out);
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
        scratch: &mut Scratch,
        out: &mut Vec<TokenId>,
    ) {
        if self.flags().ignore_merges {
            scratch.text.clear();
            scratch.text.extend(piece.bytes().map(byte_to_char));
            if let Some(id) = vocabulary.text_token(scratch.text.as_bytes()) {
                out.push(id);
                return;
            }
        }
        let symbols = &mut scratch.merger.symbols;
        symbols.clear();
        symbols.extend(piece.bytes().enumerate().map(|(start, byte)| Symbol {
            id: self.byte_symbols[usize::from(byte)],
            start,
            len: 1,
        }));
        self.merge_and_emit(vocabulary, piece, &mut scratch.merger, out);
    }

    /// A line, or a run of line feeds, of a character vocabulary.
    fn encode_line(
        &self,
        vocabulary: &Vocabulary,
        line: &str,
        scratch: &mut Scratch,
        out: &mut Vec<TokenId>,
    ) {
        let mut text = std::mem::take(&mut scratch.text);
        text.clear();
        if self.flags().escape_spaces {
            text.extend(line.chars().map(|c| if c == ' ' { SPACE } else { c }));
        } else {
            text.push_str(line);
        }
        let whole = self.flags().ignore_merges
            || (self.flags().whole_newline_runs && text.starts_with('\n'));
        if let Some(id) = vocabulary.text_token(text.as_bytes()).filter(|_| whole) {
            out.push(id);
        } else if self.words_are_apart {
            for word in split_before_spaces(&text) {
                self.encode_characters(vocabulary, word, &mut scratch.merger, out);
            }
        } else {
            self.encode_characters(vocabulary, &text, &mut scratch.merger, out);
        }
        scratch.text = text;
    }

    fn encode_characters(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        merger: &mut Merger,
        out: &mut Vec<TokenId>,
    ) {
        merger.symbols.clear();
        merger.symbols.extend(text.char_indices().map(|(start, c)| {
            let len = c.len_utf8();
            let character = &text.as_bytes()[start..start + len];
            let id = vocabulary
                .text_token(character)
                .or_else(|| self.extra_symbols.get(character).copied())
                .unwrap_or(NO_SYMBOL);
            Symbol { id, start, len }
        }));
        self.merge_and_emit(vocabulary, text, merger, out);
    }

    fn merge_and_emit(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        merger: &mut Merger,
        out: &mut Vec<TokenId>,
    ) {
        merger.merge(|left, right| self.merges.get(left.id, right.id));
        for symbol in &merger.symbols {
            if (symbol.id as usize) < vocabulary.len() {
                out.push(symbol.id);
            } else {
                let bytes = &text.as_bytes()[symbol.start..symbol.start + symbol.len];
                out.extend(
                    bytes
                        .iter()
                        .filter_map(|&byte| self.byte_tokens[usize::from(byte)]),
                );
            }
        }
    }
}

/// Cuts before each U+2581 that follows another character.
pub(crate) fn split_before_spaces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let spaces = rest.len() - rest.trim_start_matches(SPACE).len();
        let end = rest[spaces..]
            .find(SPACE)
            .map_or(rest.len(), |index| spaces + index);
        let (word, after) = rest.split_at(end);
        rest = after;
        Some(word)
    })
}

/// The table under construction.
struct Builder<'v> {
    vocabulary: &'v Vocabulary,
    merges: MergeTable,
    extra_symbols: HashMap<Vec<u8>, u32>,
    words_are_apart: bool,
    /// Both texts of a merge in one.
    joined: Vec<u8>,
}

impl<'v> Builder<'v> {
    fn new(vocabulary: &'v Vocabulary, n_merges: usize) -> Self {
        Self {
            vocabulary,
            merges: MergeTable::with_capacity(n_merges),
            extra_symbols: HashMap::new(),
            words_are_apart: true,
            joined: Vec::new(),
        }
    }

    fn add(&mut self, index: usize, merge: &[u8]) -> Result<(), TokenizerError> {
        // The left text may itself begin with a space.
        let space = merge
            .iter()
            .skip(1)
            .position(|&byte| byte == b' ')
            .map(|at| at + 1);
        let Some((left, right)) = space
            .map(|at| (&merge[..at], &merge[at + 1..]))
            .filter(|(_, right)| !right.is_empty())
        else {
            return Err(TokenizerError::BadMerge {
                index,
                merge: described(merge),
            });
        };
        self.joined.clear();
        self.joined.extend_from_slice(left);
        self.joined.extend_from_slice(right);
        if right.starts_with(SPACE_BYTES) && !left.ends_with(SPACE_BYTES) {
            self.words_are_apart = false;
        }
        let merged = match self.vocabulary.id_of(&self.joined) {
            // Text alone must not yield such a token, so no merge may.
            Some(id) if self.vocabulary.kind(id).is_protocol() => return Ok(()),
            Some(id) => id,
            None => self.extra_symbol(self.joined.clone()),
        };
        let left = self.symbol(left);
        let right = self.symbol(right);
        self.merges.insert(
            left,
            right,
            Merge {
                rank: index as u32,
                merged,
            },
        );
        Ok(())
    }

    fn symbol(&mut self, text: &[u8]) -> u32 {
        self.vocabulary
            .text_token(text)
            .unwrap_or_else(|| self.extra_symbol(text.to_vec()))
    }

    fn extra_symbol(&mut self, text: Vec<u8>) -> u32 {
        let next = (self.vocabulary.len() + self.extra_symbols.len()) as u32;
        *self.extra_symbols.entry(text).or_insert(next)
    }
}

fn described(merge: &[u8]) -> String {
    let cut = &merge[..merge.len().min(DESCRIBED_BYTES)];
    let ellipsis = if cut.len() < merge.len() { "…" } else { "" };
    format!("{}{ellipsis}", cut.escape_ascii())
}

/// A symbol of no token and no merge.
const NO_SYMBOL: u32 = u32::MAX - 1;
pub(crate) const SPACE: char = '\u{2581}';
const SPACE_BYTES: &[u8] = "\u{2581}".as_bytes();
const MERGES_KEY: &str = "tokenizer.ggml.merges";
const DESCRIBED_BYTES: usize = 40;
