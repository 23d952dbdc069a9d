//! From ids back to text, all at once or as they come.

use std::fmt;
use std::sync::Arc;

use crate::TokenId;
use crate::byte_map::char_to_byte;
use crate::settings::Algorithm;
use crate::tokenizer::Inner;
use crate::vocabulary::{TokenKind, named_byte};
use crate::words::SPACE;

/// What decoding shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Show the texts of control and unknown tokens, which otherwise add nothing.
    pub render_special: bool,
    /// Take away the space that encoding puts before the text and after special tokens. Has an effect only in
    /// vocabularies that do so; makes a whole encoded text come back as it was.
    pub strip_space_prefix: bool,
    /// Take away the spaces before `.`, `,`, `?`, `!` and contractions, in vocabularies that ask for it. For whole texts
    /// of prose: it also changes code.
    pub clean_up_spaces: bool,
}

/// Writes the bytes of token after token.
#[derive(Debug)]
pub(crate) struct PieceWriter {
    options: DecodeOptions,
    /// Whether encoding would put a space before what comes now.
    at_start: bool,
}

impl PieceWriter {
    pub(crate) fn new(options: DecodeOptions) -> Self {
        Self {
            options,
            at_start: true,
        }
    }

    /// Appends what the token adds.
    pub(crate) fn push(&mut self, inner: &Inner, id: TokenId, out: &mut Vec<u8>) {
        let text = inner.vocabulary.text(id);
        match inner.vocabulary.kind(id) {
            TokenKind::Control | TokenKind::Unknown => {
                if self.options.render_special {
                    out.extend_from_slice(text);
                    self.at_start = true;
                }
            }
            TokenKind::UserDefined => {
                out.extend_from_slice(text);
                self.at_start = true;
            }
            TokenKind::Byte => {
                match named_byte(text) {
                    Some(byte) => out.push(byte),
                    None => out.extend_from_slice(text),
                }
                self.at_start = false;
            }
            TokenKind::Normal => {
                let before = out.len();
                match inner.settings.algorithm {
                    Algorithm::ByteLevelBpe if !inner.settings.escape_spaces => {
                        push_bytes_of_chars(text, out);
                    }
                    _ => push_with_spaces(text, out),
                }
                let strip =
                    self.at_start && self.options.strip_space_prefix && inner.adds_space_prefix();
                if strip && out.get(before) == Some(&b' ') {
                    out.remove(before);
                }
                self.at_start = false;
            }
            TokenKind::Unused => {}
        }
    }
}

/// The bytes that the characters of a byte-level token stand for. Characters that stand for none are themselves: some
/// files have plain text among their ordinary tokens.
fn push_bytes_of_chars(text: &[u8], out: &mut Vec<u8>) {
    let Ok(text) = std::str::from_utf8(text) else {
        out.extend_from_slice(text);
        return;
    };
    for c in text.chars() {
        match char_to_byte(c) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// `text` with spaces for U+2581.
fn push_with_spaces(text: &[u8], out: &mut Vec<u8>) {
    let mut mark = [0; 4];
    let mark = SPACE.encode_utf8(&mut mark).as_bytes();
    let mut rest = text;
    while let Some(&first) = rest.first() {
        if let Some(after) = rest.strip_prefix(mark) {
            out.push(b' ');
            rest = after;
        } else {
            out.push(first);
            rest = &rest[1..];
        }
    }
}

/// Text without the spaces that word-by-word tokenizers leave before punctuation and contractions.
pub(crate) fn clean_up_spaces(text: &str) -> String {
    let mut text = text.to_owned();
    // Three passes, each over the result of the one before.
    for (from, to) in [(" ?", "?"), (" !", "!"), (" .", "."), (" ,", ",")] {
        text = text.replace(from, to);
    }
    text = text.replace(" ' ", "'");
    for (from, to) in [
        (" 's", "'s"),
        (" 'm", "'m"),
        (" 're", "'re"),
        (" 've", "'ve"),
    ] {
        text = text.replace(from, to);
    }
    text
}

/// Text of tokens that come one by one: what they add is handed out as soon as its characters are complete.
///
/// All that [`Self::push`] and [`Self::finish`] return, together, is what [`crate::Tokenizer::decode`] gives for all
/// ids, with the same options.
pub struct StreamDecoder {
    inner: Arc<Inner>,
    writer: PieceWriter,
    utf8: Utf8Stream,
    piece: Vec<u8>,
}

impl StreamDecoder {
    pub(crate) fn new(inner: Arc<Inner>, options: DecodeOptions) -> Self {
        Self {
            inner,
            writer: PieceWriter::new(options),
            utf8: Utf8Stream::default(),
            piece: Vec::new(),
        }
    }

    /// Takes the next token and returns the text that is complete with it, often the token's own, sometimes none.
    pub fn push(&mut self, id: TokenId) -> &str {
        self.piece.clear();
        self.writer.push(&self.inner, id, &mut self.piece);
        self.utf8.push(&self.piece)
    }

    /// The bytes held back because a character is not complete.
    pub fn pending(&self) -> &[u8] {
        self.utf8.pending()
    }

    /// Ends the text: U+FFFD for a character left incomplete. The decoder can be used for another text then.
    pub fn finish(&mut self) -> &str {
        self.writer.at_start = true;
        self.utf8.finish()
    }
}

impl fmt::Debug for StreamDecoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamDecoder")
            .field("writer", &self.writer)
            .field("utf8", &self.utf8)
            .finish_non_exhaustive()
    }
}

/// UTF-8 that comes in pieces cut anywhere. Bytes that are not UTF-8 become U+FFFD, as in
/// [`String::from_utf8_lossy`] of the whole.
#[derive(Debug, Default)]
pub struct Utf8Stream {
    /// A beginning of a character; at most three bytes.
    pending: Vec<u8>,
    complete: String,
}

impl Utf8Stream {
    /// Takes more bytes and returns the text that is complete with them.
    pub fn push(&mut self, bytes: &[u8]) -> &str {
        self.complete.clear();
        self.pending.extend_from_slice(bytes);
        let mut done = 0;
        while done < self.pending.len() {
            let rest = &self.pending[done..];
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.complete.push_str(text);
                    done = self.pending.len();
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    self.complete
                        .push_str(std::str::from_utf8(valid).expect("valid up to here"));
                    done += valid.len();
                    let Some(n_invalid) = error.error_len() else {
                        break;
                    };
                    debug_assert!(n_invalid <= after.len());
                    self.complete.push(char::REPLACEMENT_CHARACTER);
                    done += n_invalid;
                }
            }
        }
        self.pending.drain(..done);
        &self.complete
    }

    /// The bytes held back.
    pub fn pending(&self) -> &[u8] {
        &self.pending
    }

    /// Ends the text: U+FFFD for a character left incomplete.
    pub fn finish(&mut self) -> &str {
        self.complete.clear();
        if !self.pending.is_empty() {
            self.pending.clear();
            self.complete.push(char::REPLACEMENT_CHARACTER);
        }
        &self.complete
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn stream_of_any_bytes_equals_the_whole(bytes in prop::collection::vec(any::<u8>(), 0..64), step in 1usize..5) {
            let mut stream = Utf8Stream::default();
            let mut text = String::new();
            for piece in bytes.chunks(step) {
                text.push_str(stream.push(piece));
                prop_assert!(stream.pending().len() <= 3);
            }
            text.push_str(stream.finish());
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn stream_of_cut_text_equals_the_text(text in "\\PC*", step in 1usize..5) {
            let mut stream = Utf8Stream::default();
            let mut joined = String::new();
            for piece in text.as_bytes().chunks(step) {
                joined.push_str(stream.push(piece));
            }
            prop_assert_eq!(stream.finish(), "");
            prop_assert_eq!(joined, text);
        }
    }

    #[test]
    fn incomplete_characters_are_held_back() {
        let mut stream = Utf8Stream::default();
        assert_eq!(stream.push(b"a\xF0\x9F"), "a");
        assert_eq!(stream.pending(), b"\xF0\x9F");
        assert_eq!(stream.push(b"\xA6\x99"), "🦙");
        assert_eq!(stream.push(b"\xC3"), "");
        assert_eq!(stream.push(b"("), "\u{FFFD}(");
        assert_eq!(stream.push(b"\xE2\x82"), "");
        assert_eq!(stream.finish(), "\u{FFFD}");
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn spaces_are_cleaned_up_in_three_passes() {
        assert_eq!(
            clean_up_spaces("Is it , well ? It 's ' quoted ' ."),
            "Is it, well? It's'quoted '."
        );
    }
}
