//! Prefixes as bytes: the KV pages of a text, to be taken up again by another engine of the same model.
//!
//! ```text
//! magic     8   "rsllmKV\x02", the last byte is the version
//! model     8   fingerprint of the model, see [`fingerprint`]
//! kv type   4   id of its ggml type
//! page      4   tokens of a page
//! tokens    4   how many there are, a whole number of pages
//! pages     8   bytes of all pages together
//! ids       4 each
//! groups    1 each page: bit 0 = of layers that see everything, bit 1 = of windowed layers
//! contents  the pages, one behind the other, as the model exports them
//! checksum  8   of everything before
//! ```
//!
//! Numbers are little-endian. The checksum finds what storage and transport do to bytes, and any single byte for certain; it
//! does not prove where they come from. Bytes that somebody made up on purpose cannot harm the process, but what a model says
//! behind them is theirs.

use rsllm_gguf::Gguf;
use rsllm_model::{NO_PAGE, PAGE_LEN, PageSlot};

use crate::TokenId;

/// Why saved bytes are not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SavedPrefixError {
    /// They are something else.
    #[error("these bytes are no saved prefix")]
    NotSaved,
    /// They were written by another version.
    #[error("the saved prefix has version {found}, this build reads {expected}")]
    Version {
        /// What is read.
        expected: u8,
        /// What was found.
        found: u8,
    },
    /// They are damaged.
    #[error("the saved prefix is damaged: its checksum does not fit")]
    Checksum,
    /// They end too early or too late.
    #[error("the saved prefix has {found} bytes, expected {expected}")]
    Length {
        /// What the header says.
        expected: u64,
        /// What there is.
        found: u64,
    },
    /// They belong to another model.
    #[error("the saved prefix belongs to another model file")]
    Model,
    /// Their pages have another element type.
    #[error("the saved prefix has another KV type; this model was loaded with {expected}")]
    KvType {
        /// Of this engine.
        expected: &'static str,
    },
    /// A field has a value that no engine writes.
    #[error("the saved prefix is damaged: {field} is {found}")]
    Field {
        /// Its name.
        field: &'static str,
        /// Its value.
        found: u64,
    },
}

/// A prefix on its way out or in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SavedPrefix<'a> {
    /// Whole pages of tokens.
    pub(crate) ids: Vec<TokenId>,
    /// Which groups each page has.
    pub(crate) groups: Vec<Groups>,
    pub(crate) contents: &'a [u8],
}

/// The page groups that a slot has pages of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Groups {
    pub(crate) full: bool,
    pub(crate) window: bool,
}

/// What a saved prefix must agree with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SavedFor {
    pub(crate) model: u64,
    /// Id of the ggml type.
    pub(crate) kv_type: u32,
    pub(crate) kv_type_name: &'static str,
    pub(crate) vocab_size: usize,
    pub(crate) context: usize,
}

const MAGIC: &[u8; 7] = b"rsllmKV";
const VERSION: u8 = 2;
const HEADER_BYTES: usize = 36;
const CHECKSUM_BYTES: usize = 8;

impl Groups {
    /// Those of a slot.
    pub(crate) fn of(slot: PageSlot) -> Self {
        Self {
            full: slot.full != NO_PAGE,
            window: slot.window != NO_PAGE,
        }
    }

    fn to_byte(self) -> u8 {
        u8::from(self.full) | u8::from(self.window) << 1
    }

    fn from_byte(byte: u8) -> Result<Self, SavedPrefixError> {
        if byte > 3 {
            return Err(field("groups of a page", u64::from(byte)));
        }
        Ok(Self {
            full: byte & 1 != 0,
            window: byte & 2 != 0,
        })
    }
}

impl<'a> SavedPrefix<'a> {
    /// The bytes.
    pub(crate) fn write(&self, target: SavedFor) -> Vec<u8> {
        debug_assert_eq!(self.ids.len(), self.groups.len() * PAGE_LEN);
        let mut bytes = Vec::with_capacity(
            HEADER_BYTES + 4 * self.ids.len() + self.groups.len() + self.contents.len() + 8,
        );
        bytes.extend_from_slice(MAGIC);
        bytes.push(VERSION);
        bytes.extend_from_slice(&target.model.to_le_bytes());
        bytes.extend_from_slice(&target.kv_type.to_le_bytes());
        bytes.extend_from_slice(&(PAGE_LEN as u32).to_le_bytes());
        bytes.extend_from_slice(&(self.ids.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(self.contents.len() as u64).to_le_bytes());
        for id in &self.ids {
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes.extend(self.groups.iter().map(|groups| groups.to_byte()));
        bytes.extend_from_slice(self.contents);
        let sum = checksum(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads what [`SavedPrefix::write`] wrote for the same target. Allocates no more than the bytes justify.
    pub(crate) fn read(bytes: &'a [u8], target: SavedFor) -> Result<Self, SavedPrefixError> {
        let rest = bytes
            .strip_prefix(MAGIC)
            .ok_or(SavedPrefixError::NotSaved)?;
        let &found = rest.first().ok_or(SavedPrefixError::NotSaved)?;
        if found != VERSION {
            return Err(SavedPrefixError::Version {
                expected: VERSION,
                found,
            });
        }
        if bytes.len() < HEADER_BYTES + CHECKSUM_BYTES {
            return Err(SavedPrefixError::Length {
                expected: (HEADER_BYTES + CHECKSUM_BYTES) as u64,
                found: bytes.len() as u64,
            });
        }
        let (body, sum) = bytes.split_at(bytes.len() - CHECKSUM_BYTES);
        if checksum(body).to_le_bytes() != sum {
            return Err(SavedPrefixError::Checksum);
        }
        let n_tokens = u32_at(body, 24);
        let n_pages = n_tokens / PAGE_LEN as u32;
        let n_bytes = u64_at(body, 28);
        if u64_at(body, 8) != target.model {
            return Err(SavedPrefixError::Model);
        }
        if u32_at(body, 16) != target.kv_type {
            return Err(SavedPrefixError::KvType {
                expected: target.kv_type_name,
            });
        }
        if u32_at(body, 20) != PAGE_LEN as u32 {
            return Err(field("the page length", u64::from(u32_at(body, 20))));
        }
        let is_whole = n_tokens > 0 && n_tokens.is_multiple_of(PAGE_LEN as u32);
        if !is_whole || n_tokens as usize > target.context {
            return Err(field("the number of tokens", u64::from(n_tokens)));
        }
        let expected = (HEADER_BYTES as u64)
            .saturating_add(4 * u64::from(n_tokens))
            .saturating_add(u64::from(n_pages))
            .saturating_add(n_bytes);
        if expected != body.len() as u64 {
            return Err(SavedPrefixError::Length {
                expected: expected.saturating_add(CHECKSUM_BYTES as u64),
                found: bytes.len() as u64,
            });
        }
        let (ids, rest) = body[HEADER_BYTES..].split_at(4 * n_tokens as usize);
        let (groups, contents) = rest.split_at(n_pages as usize);
        let ids: Vec<TokenId> = ids.chunks_exact(4).map(|id| u32_at(id, 0)).collect();
        if let Some(&id) = ids.iter().find(|&&id| id as usize >= target.vocab_size) {
            return Err(field("a token", u64::from(id)));
        }
        Ok(Self {
            ids,
            groups: groups
                .iter()
                .map(|&byte| Groups::from_byte(byte))
                .collect::<Result<_, _>>()?,
            contents,
        })
    }
}

/// A number for a model file: its size, what the numbers in its KV depend on in its metadata, the table of its tensors, and a
/// sample of each tensor. Files that differ in any of this are told apart but for a chance of 2^-64.
pub(crate) fn fingerprint(file: &Gguf) -> u64 {
    let mut sum = Checksum::new();
    sum.add(&file.file_bytes().to_le_bytes());
    let metadata = file.metadata();
    let architecture = metadata.architecture().unwrap_or_default().to_owned();
    sum.add(architecture.as_bytes());
    for (key, value) in metadata.iter() {
        // Of the family's own keys. Names, texts and tokenizers change no number.
        let is_own = key
            .strip_prefix(&architecture)
            .is_some_and(|rest| rest.starts_with('.'));
        if is_own {
            sum.add(key.as_bytes());
            sum.add(format!("{value:?}").as_bytes());
        }
    }
    for tensor in file.tensors() {
        sum.add(tensor.name.as_bytes());
        sum.add(&tensor.ty.id().to_le_bytes());
        for n in &tensor.dims {
            sum.add(&n.to_le_bytes());
        }
        let bytes = file.tensor_bytes(tensor);
        for start in [0, bytes.len() / 2, bytes.len().saturating_sub(SAMPLE_BYTES)] {
            sum.add(&bytes[start..(start + SAMPLE_BYTES).min(bytes.len())]);
        }
    }
    sum.finish()
}

/// Bytes of a tensor that are looked at in each of three places.
const SAMPLE_BYTES: usize = 256;

/// The checksum of bytes in one piece.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    let mut sum = Checksum::new();
    sum.add(bytes);
    sum.finish()
}

/// Each word is mixed in by a step that can be undone, so that two texts that differ in one word never agree.
struct Checksum(u64);

impl Checksum {
    fn new() -> Self {
        Self(0x243f_6a88_85a3_08d3)
    }

    fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
    }

    /// Adds the bytes and where they end.
    fn add(&mut self, bytes: &[u8]) {
        let words = bytes.chunks_exact(8);
        let mut last = [0; 8];
        last[..words.remainder().len()].copy_from_slice(words.remainder());
        for word in words {
            self.word(u64_at(word, 0));
        }
        self.word(u64::from_le_bytes(last));
        self.word(bytes.len() as u64);
    }

    fn finish(mut self) -> u64 {
        self.word(0);
        self.0 ^ self.0 >> 31
    }
}

fn field(field: &'static str, found: u64) -> SavedPrefixError {
    SavedPrefixError::Field { field, found }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes[at..at + 4].try_into();
    u32::from_le_bytes(bytes.expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes[at..at + 8].try_into();
    u64::from_le_bytes(bytes.expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TARGET: SavedFor = SavedFor {
        model: 7,
        kv_type: 1,
        kv_type_name: "f16",
        vocab_size: 100,
        context: 256,
    };

    fn saved() -> Vec<u8> {
        SavedPrefix {
            ids: (0..128).map(|i| i % 100).collect(),
            groups: [(true, false), (true, true)]
                .map(|(full, window)| Groups { full, window })
                .to_vec(),
            contents: &[5; 77],
        }
        .write(TARGET)
    }

    /// With a checksum that fits again.
    fn forged(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = saved();
        bytes.truncate(bytes.len() - CHECKSUM_BYTES);
        change(&mut bytes);
        let sum = checksum(&bytes);
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = saved();
        let read = SavedPrefix::read(&bytes, TARGET).unwrap();
        assert_eq!(read.write(TARGET), bytes);
        assert_eq!((read.ids.len(), read.contents.len()), (128, 77));
    }

    #[test]
    fn each_mismatch_has_its_error() {
        let bytes = saved();
        let error = |bytes: &[u8], target| SavedPrefix::read(bytes, target).unwrap_err();
        let other = SavedFor { model: 8, ..TARGET };
        assert_eq!(error(&bytes, other), SavedPrefixError::Model);
        let other = SavedFor {
            kv_type: 8,
            kv_type_name: "q8_0",
            ..TARGET
        };
        assert_eq!(
            error(&bytes, other),
            SavedPrefixError::KvType { expected: "q8_0" }
        );
        let short = SavedFor {
            context: 64,
            ..TARGET
        };
        assert_eq!(error(&bytes, short), field("the number of tokens", 128));
        assert_eq!(error(b"GGUF", TARGET), SavedPrefixError::NotSaved);
        assert_eq!(
            error(&forged(|bytes| bytes[7] = 9), TARGET),
            SavedPrefixError::Version {
                expected: VERSION,
                found: 9
            }
        );
        assert_eq!(
            error(&forged(|bytes| bytes[HEADER_BYTES] = 200), TARGET),
            field("a token", 200)
        );
        let huge = forged(|bytes| bytes[28..36].fill(255));
        assert!(matches!(
            error(&huge, TARGET),
            SavedPrefixError::Length { .. }
        ));
    }

    proptest! {
        #[test]
        fn a_flipped_byte_or_a_cut_is_found(at in 0usize..10_000, flip in 1u8..=255, n in 0usize..10_000) {
            let bytes = saved();
            let mut flipped = bytes.clone();
            flipped[at % bytes.len()] ^= flip;
            prop_assert!(SavedPrefix::read(&flipped, TARGET).is_err());
            prop_assert!(SavedPrefix::read(&bytes[..n % bytes.len()], TARGET).is_err());
            let longer = [&bytes[..], &vec![flip; 1 + n % 100]].concat();
            prop_assert!(SavedPrefix::read(&longer, TARGET).is_err());
        }

        #[test]
        fn forged_bytes_never_panic(changes in prop::collection::vec((0usize..600, any::<u8>()), 1..6)) {
            let bytes = forged(|bytes| {
                for (at, byte) in changes {
                    let n = bytes.len();
                    bytes[at % n] = byte;
                }
            });
            if let Ok(read) = SavedPrefix::read(&bytes, TARGET) {
                prop_assert!(read.ids.iter().all(|&id| id < 100));
            }
        }
    }
}
