//! Byte-pair encoding: pieces of text as symbols, merged by rank.
//!
//! Byte-level vocabularies write each byte as a printable character; the symbols of a piece are then its bytes, and the
//! detour through the printable form is needed only to look up whole pieces. Character vocabularies (Gemma 4) start from
//! the characters, with U+2581 for the space.

use std::collections::HashMap;

use rsllm_gguf::{Metadata, StringArray};

use crate::TokenId;
use crate::byte_map::byte_to_char;
use crate::cache::Scratch;
use crate::error::TokenizerError;
use crate::hash::{Merge, MergeTable};
use crate::merge::{Merger, Symbol};
use crate::pretokenizer::{Flags, PreTokenizer};
use crate::vocabulary::{MAX_TOKENS, Vocabulary};
use crate::words::{SPACE, WordBreaks};

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
    /// For character vocabularies: where lines are cut before merging.
    breaks: WordBreaks,
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
        if merges.len() > MAX_MERGES {
            return Err(TokenizerError::TooLarge {
                key: MERGES_KEY,
                found: format!("{} merges", merges.len()),
                limit: MAX_MERGES as u64,
            });
        }
        let mut builder = Builder::new(vocabulary, merges.len());
        builder.add_all(merges)?;
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
            breaks: builder.breaks,
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
        if self.flags().ignore_merges {
            printable.clear();
            printable.extend(piece.bytes().map(byte_to_char));
            if let Some(id) = vocabulary.text_token(printable.as_bytes()) {
                out.push(id);
                return;
            }
        }
        merger.symbols.clear();
        merger
            .symbols
            .extend(piece.bytes().enumerate().map(|(start, byte)| Symbol {
                id: self.byte_symbols[usize::from(byte)],
                start,
                len: 1,
            }));
        self.merge_and_emit(vocabulary, piece, merger, out);
    }

    /// A line, or a run of line feeds, of a character vocabulary, word by word.
    fn encode_line(&self, line: &str, escaped: &mut String, encode: impl FnMut(&str)) {
        escaped.clear();
        if self.flags().escape_spaces {
            escaped.extend(line.chars().map(|c| if c == ' ' { SPACE } else { c }));
        } else {
            escaped.push_str(line);
        }
        self.breaks.words(escaped).for_each(encode);
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

/// The table under construction.
struct Builder<'v> {
    vocabulary: &'v Vocabulary,
    merges: MergeTable,
    extra_symbols: HashMap<Vec<u8>, u32>,
    breaks: WordBreaks,
    /// Both texts of a merge in one.
    joined: Vec<u8>,
    /// What the merge before gave.
    last_merged: u32,
}

impl<'v> Builder<'v> {
    fn new(vocabulary: &'v Vocabulary, n_merges: usize) -> Self {
        Self {
            vocabulary,
            merges: MergeTable::with_capacity(n_merges),
            extra_symbols: HashMap::new(),
            breaks: WordBreaks::default(),
            joined: Vec::new(),
            last_merged: 0,
        }
    }

    /// Adds the merges batch by batch. What a merge needs lies all over the vocabulary and the table, and waiting for
    /// memory takes most of the time; looking at all places of a batch first lets the processor wait for them at once.
    fn add_all(&mut self, merges: &StringArray) -> Result<(), TokenizerError> {
        let mut texts = Vec::with_capacity(BATCH);
        let mut resolved = Vec::with_capacity(BATCH);
        let mut merges = merges.iter().enumerate();
        loop {
            texts.clear();
            let mut touched = 0;
            for (index, merge) in merges.by_ref().take(BATCH) {
                let Some((left, right)) = split_merge(merge) else {
                    return Err(TokenizerError::BadMerge {
                        index,
                        merge: described(merge),
                    });
                };
                touched ^= self.vocabulary.touch(left) ^ self.vocabulary.touch(right);
                texts.push((index as u32, left, right));
            }
            if texts.is_empty() {
                return Ok(());
            }
            std::hint::black_box(touched);

            resolved.clear();
            for &(rank, left, right) in &texts {
                if let Some(merged) = self.merged(left, right) {
                    let (left, right) = (self.symbol(left), self.symbol(right));
                    touched ^= self.merges.touch(left, right);
                    resolved.push((left, right, Merge { rank, merged }));
                }
            }
            std::hint::black_box(touched);
            for &(left, right, merge) in &resolved {
                self.merges.insert(left, right, merge);
            }
        }
    }

    /// The symbol that two texts give; `None` if it is a token that text alone must not yield.
    fn merged(&mut self, left: &[u8], right: &[u8]) -> Option<u32> {
        self.breaks.add_merge(left, right);
        self.joined.clear();
        self.joined.extend_from_slice(left);
        self.joined.extend_from_slice(right);
        // Vocabularies list tokens in the order of the merges that give them, often several merges a token.
        let guesses = [self.last_merged, self.last_merged + 1];
        let merged = match self.vocabulary.id_of_with_guesses(&self.joined, guesses) {
            Some(id) if self.vocabulary.is_protocol(id) => return None,
            Some(id) => id,
            None => self.extra_symbol(self.joined.clone()),
        };
        self.last_merged = merged;
        Some(merged)
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

/// The two texts of a merge, which the first space parts that does not begin it.
fn split_merge(merge: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = 1 + merge.iter().skip(1).position(|&byte| byte == b' ')?;
    let (left, right) = (&merge[..space], &merge[space + 1..]);
    (!right.is_empty()).then_some((left, right))
}

fn described(merge: &[u8]) -> String {
    let cut = &merge[..merge.len().min(DESCRIBED_BYTES)];
    let ellipsis = if cut.len() < merge.len() { "…" } else { "" };
    format!("{}{ellipsis}", cut.escape_ascii())
}

/// A symbol of no token and no merge.
const NO_SYMBOL: u32 = u32::MAX - 1;
const MERGES_KEY: &str = "tokenizer.ggml.merges";
/// With [`MAX_TOKENS`], keeps the numbers of all symbols below [`NO_SYMBOL`]: a merge names at most three texts.
const MAX_MERGES: usize = MAX_TOKENS / 2;
const BATCH: usize = 64;
const DESCRIBED_BYTES: usize = 40;
