//! What can be wrong with a GGUF file, a variant each.
//!
//! The message of a variant says what was found where; [`Cause::details`] says the same in parts, and
//! [`Cause::hint`] what to do about it. The file's name is [`GgufError`](crate::GgufError)'s to add.

use std::io;
use std::path::{Path, PathBuf};

use rsllm_quant::GgmlType;

use crate::header::ALIGNMENT_KEY;
use crate::shards::{COUNT_KEY, NUMBER_KEY, TENSOR_COUNT_KEY};
use crate::sniff::{self, Foreign};
use crate::tensor;
use crate::value::ValueType;

/// One variant a cause. Fields named `tensor` and `key` are names in the file; offsets and sizes are bytes.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the fields are named and the messages say what they hold"
)]
pub enum Cause {
    /// The operating system refused; see the source.
    #[error("{0}")]
    Io(io::Error),
    /// A device, pipe or socket: reading it may never end.
    #[error("not a regular file but a {found}")]
    NotRegularFile { found: &'static str },
    #[error("the file is empty")]
    EmptyFile,
    /// The magic is not `GGUF`.
    #[error("not a GGUF file: {foreign}")]
    NotGguf { foreign: Foreign, magic: [u8; 4] },
    /// The version reads as a known one only with its bytes reversed.
    #[error("big-endian GGUF version {version}, which this build does not read")]
    WrongEndian { version: u32 },
    #[error("GGUF version {version} is older than this build reads")]
    VersionTooOld { version: u32 },
    #[error("GGUF version {version} is newer than this build reads")]
    VersionTooNew { version: u32 },

    /// A field of fixed size does not fit in what is left of the file.
    #[error(
        "the file ends inside {field}: {needed} bytes needed at offset {offset}, {available} left"
    )]
    EndOfFile {
        field: String,
        offset: u64,
        needed: u64,
        available: u64,
    },
    /// A count or length read from the file cannot be true in a file of this size.
    #[error(
        "{field} is {length}, which needs at least {needed} bytes, but {available} are left in the file"
    )]
    LengthBeyondFile {
        field: String,
        length: u64,
        needed: u128,
        available: u64,
    },
    #[error("{field} is {value}, above the limit of {limit}")]
    LimitExceeded {
        field: String,
        value: u64,
        limit: u64,
    },
    #[error("{field} is not UTF-8")]
    NotUtf8 { field: String },

    #[error("metadata entry {index} has an empty key")]
    EmptyKey { index: u64 },
    #[error("duplicate metadata key `{key}`")]
    DuplicateKey { key: String },
    #[error("`{key}` has value type {id}, which GGUF does not define")]
    UnknownValueType { key: String, id: u32 },
    #[error("`{key}` is an array of arrays")]
    NestedArray { key: String },
    #[error("`general.alignment` must be u32, it is {found}")]
    AlignmentType { found: ValueType },
    #[error("`general.alignment` must be a non-zero power of two, it is {found}")]
    Alignment { found: u32 },

    #[error("tensor {index} has an empty name")]
    EmptyTensorName { index: u64 },
    #[error("duplicate tensor `{tensor}`")]
    DuplicateTensor { tensor: String },
    /// The same name in two shards.
    #[error("tensor `{tensor}` is in two shards, here and in {}", other.display())]
    DuplicateTensorInShards { tensor: String, other: PathBuf },
    #[error("tensor `{tensor}` has {n_dims} dimensions")]
    TooManyDimensions { tensor: String, n_dims: u32 },
    #[error("tensor `{tensor}` has a zero in dimension {dimension} of {dims:?}")]
    ZeroDimension {
        tensor: String,
        dimension: usize,
        dims: Vec<u64>,
    },
    #[error("tensor `{tensor}` uses type id {id}, unknown to this version")]
    UnknownTensorType { tensor: String, id: u32 },
    #[error("tensor `{tensor}` uses type id {id}, which was removed from the format")]
    RemovedTensorType { tensor: String, id: u32 },
    #[error("tensor `{tensor}` has rows of {row_len} elements, not whole blocks of {block_len} as {ty} needs", ty = .ty.name())]
    PartialBlock {
        tensor: String,
        ty: GgmlType,
        row_len: u64,
        block_len: usize,
    },
    #[error("tensor `{tensor}` of type {ty} and dimensions {dims:?} is larger than any file: it needs {needed} bytes, the file has {available}", ty = .ty.name(), needed = needed_text(*.needed))]
    SizeOverflow {
        tensor: String,
        ty: GgmlType,
        dims: Vec<u64>,
        needed: Option<u128>,
        available: u64,
    },
    #[error("tensor `{tensor}` is at offset {offset}, not a multiple of the alignment {alignment}")]
    Misaligned {
        tensor: String,
        offset: u64,
        alignment: u32,
    },
    #[error(
        "tensor `{tensor}` at offset {offset} begins inside tensor `{other}`, which ends at {other_end}"
    )]
    Overlap {
        tensor: String,
        offset: u64,
        other: String,
        other_end: u64,
    },
    /// The tensor lies outside the file and the file's other offsets do not show that the file was cut.
    #[error(
        "tensor `{tensor}` needs {n_bytes} bytes at offset {offset} of the data, but the file has {available} there"
    )]
    OutOfRange {
        tensor: String,
        offset: u64,
        n_bytes: u64,
        available: u64,
    },
    /// All tensors follow each other without gaps and the file ends before the last one does.
    #[error(
        "tensor `{tensor}` needs bytes up to {needed}, the file has {file_len}: {missing} bytes are missing, the file is truncated"
    )]
    Truncated {
        tensor: String,
        needed: u64,
        file_len: u64,
        missing: u64,
    },

    /// The file says it is one of several, and its name does not say which.
    #[error("the file is part {no} of {count}, but its name does not end in `{expected}`")]
    ShardName {
        no: u64,
        count: u64,
        expected: String,
    },
    /// Shards appended to each other.
    #[error(
        "the file is shards of {count} joined end to end; split GGUF files cannot be concatenated"
    )]
    JoinedShards { count: u64 },
    #[error("shard {no} of {count} is missing: {}", path.display())]
    ShardMissing {
        no: u64,
        count: u64,
        path: PathBuf,
        n_missing: u64,
    },
    #[error("`split.no` is {found}")]
    ShardNumber { expected: u64, found: u64 },
    #[error("`split.count` is {found}")]
    ShardCount { expected: u64, found: u64 },
    #[error("`split.tensors.count` is {expected}, but the shards hold {found} tensors")]
    ShardTensorCount { expected: u64, found: u64 },

    #[error("metadata key `{key}` is missing")]
    KeyMissing { key: String, expected: &'static str },
    #[error("metadata key `{key}` is {found}")]
    KeyType {
        key: String,
        expected: &'static str,
        found: String,
    },
    #[error("metadata key `{key}` is {found}, outside the range of {expected}")]
    KeyRange {
        key: String,
        expected: &'static str,
        found: String,
    },

    /// The writer was given more or fewer bytes than the tensor's type and dimensions ask for.
    #[error("tensor `{tensor}` takes {expected} bytes, {found} were written")]
    TensorDataSize {
        tensor: String,
        expected: u64,
        found: u64,
    },
    #[error("{n_shards} shards are more than the {limit} that `split.count` can say")]
    TooManyShards { n_shards: usize, limit: usize },
}

/// The class of a [`Cause`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The operating system refused.
    Io,
    /// Not a GGUF file at all.
    NotGguf,
    /// A GGUF file whose end is missing.
    Truncated,
    /// A GGUF file, but with a version, byte order or type this build does not read.
    Unsupported,
    /// A GGUF file that contradicts itself or the format.
    Malformed,
    /// Shards that are missing or do not belong together.
    Shards,
    /// Valid metadata, but not what the caller asked for.
    Metadata,
    /// The writer was given something that cannot be written.
    Write,
}

impl Cause {
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::Io(_) => ErrorKind::Io,
            Self::NotRegularFile { .. } | Self::EmptyFile | Self::NotGguf { .. } => {
                ErrorKind::NotGguf
            }
            Self::WrongEndian { .. }
            | Self::VersionTooOld { .. }
            | Self::VersionTooNew { .. }
            | Self::NestedArray { .. }
            | Self::UnknownTensorType { .. }
            | Self::RemovedTensorType { .. } => ErrorKind::Unsupported,
            Self::EndOfFile { .. } | Self::Truncated { .. } => ErrorKind::Truncated,
            Self::LengthBeyondFile { .. }
            | Self::LimitExceeded { .. }
            | Self::NotUtf8 { .. }
            | Self::EmptyKey { .. }
            | Self::DuplicateKey { .. }
            | Self::UnknownValueType { .. }
            | Self::AlignmentType { .. }
            | Self::Alignment { .. }
            | Self::EmptyTensorName { .. }
            | Self::DuplicateTensor { .. }
            | Self::TooManyDimensions { .. }
            | Self::ZeroDimension { .. }
            | Self::PartialBlock { .. }
            | Self::SizeOverflow { .. }
            | Self::Misaligned { .. }
            | Self::Overlap { .. }
            | Self::OutOfRange { .. } => ErrorKind::Malformed,
            Self::DuplicateTensorInShards { .. }
            | Self::ShardName { .. }
            | Self::JoinedShards { .. }
            | Self::ShardMissing { .. }
            | Self::ShardNumber { .. }
            | Self::ShardCount { .. }
            | Self::ShardTensorCount { .. } => ErrorKind::Shards,
            Self::KeyMissing { .. } | Self::KeyType { .. } | Self::KeyRange { .. } => {
                ErrorKind::Metadata
            }
            Self::TensorDataSize { .. } | Self::TooManyShards { .. } => ErrorKind::Write,
        }
    }

    /// Field, what was expected, what was found.
    pub(crate) fn details(&self) -> Details {
        let tensor_type = "a known tensor type";
        match self {
            Self::Io(_) => Details::default(),
            Self::NotRegularFile { found } => details("file", "a regular file", *found),
            Self::EmptyFile => details("magic", "GGUF", "0 bytes"),
            Self::NotGguf { magic, .. } => details(
                "magic",
                "GGUF",
                format!("{} ({magic:02x?})", magic.escape_ascii()),
            ),
            Self::WrongEndian { version } => details(
                "version",
                "a little-endian version",
                format!("big-endian version {version}"),
            ),
            Self::VersionTooOld { version } | Self::VersionTooNew { version } => {
                details("version", "version 2 or 3", version.to_string())
            }
            Self::EndOfFile {
                field,
                needed,
                available,
                ..
            } => details(field, n_bytes(needed), n_bytes(available)),
            Self::LengthBeyondFile {
                field,
                length,
                available,
                ..
            } => details(
                field,
                format!("at most {available} bytes"),
                length.to_string(),
            ),
            Self::LimitExceeded {
                field,
                value,
                limit,
            } => details(field, format!("at most {limit}"), value.to_string()),
            Self::NotUtf8 { field } => details(field, "UTF-8", "other bytes"),

            Self::EmptyKey { index } => details(
                format!("metadata entry {index}"),
                "a key",
                "an empty string",
            ),
            Self::DuplicateKey { key } => details(key, "the key once", "the key twice"),
            Self::UnknownValueType { key, id } => {
                details(key, "a value type from 0 to 12", id.to_string())
            }
            Self::NestedArray { key } => {
                details(key, "an array of plain values", "an array of arrays")
            }
            Self::AlignmentType { found } => details(ALIGNMENT_KEY, "u32", found.name()),
            Self::Alignment { found } => {
                details(ALIGNMENT_KEY, "a non-zero power of two", found.to_string())
            }

            Self::EmptyTensorName { index } => {
                details(format!("tensor {index}"), "a name", "an empty string")
            }
            Self::DuplicateTensor { tensor } => details(tensor, "the name once", "the name twice"),
            Self::TooManyDimensions { tensor, n_dims } => details(
                tensor,
                format!("at most {} dimensions", tensor::MAX_DIMS),
                n_dims.to_string(),
            ),
            Self::ZeroDimension { tensor, dims, .. } => {
                details(tensor, "dimensions of at least 1", format!("{dims:?}"))
            }
            Self::UnknownTensorType { tensor, id } => {
                details(tensor, tensor_type, format!("type id {id}"))
            }
            Self::RemovedTensorType { tensor, id } => {
                details(tensor, tensor_type, format!("removed type id {id}"))
            }
            Self::PartialBlock {
                tensor,
                row_len,
                block_len,
                ..
            } => details(
                tensor,
                format!("a multiple of {block_len} elements"),
                format!("{row_len} elements"),
            ),
            Self::SizeOverflow {
                tensor,
                needed,
                available,
                ..
            } => details(
                tensor,
                format!("at most {available} bytes"),
                n_bytes(&needed_text(*needed)),
            ),
            Self::Misaligned {
                tensor,
                offset,
                alignment,
            } => details(
                tensor,
                format!("a multiple of {alignment}"),
                format!("offset {offset}"),
            ),
            Self::Overlap {
                tensor,
                offset,
                other_end,
                ..
            } => details(
                tensor,
                format!("an offset from {other_end}"),
                format!("offset {offset}"),
            ),
            Self::OutOfRange {
                tensor,
                n_bytes: needed,
                available,
                ..
            } => details(tensor, n_bytes(needed), n_bytes(available)),
            Self::Truncated {
                tensor,
                file_len,
                missing,
                ..
            } => details(tensor, n_bytes(&(file_len + missing)), n_bytes(file_len)),

            Self::DuplicateTensorInShards { tensor, other } => details(
                tensor,
                "the name once",
                format!("the name also in {}", other.display()),
            ),
            Self::ShardName {
                no,
                count,
                expected,
            } => details(
                "file name",
                format!("a name ending in {expected}"),
                format!("part {no} of {count}"),
            ),
            Self::JoinedShards { count } => details(
                COUNT_KEY,
                "one shard a file",
                format!("{count} shards in one file"),
            ),
            Self::ShardMissing {
                path, n_missing, ..
            } => details(
                COUNT_KEY,
                path.display().to_string(),
                format!("{n_missing} shards missing"),
            ),
            Self::ShardNumber { expected, found } => {
                details(NUMBER_KEY, expected.to_string(), found.to_string())
            }
            Self::ShardCount { expected, found } => {
                details(COUNT_KEY, expected.to_string(), found.to_string())
            }
            Self::ShardTensorCount { expected, found } => {
                details(TENSOR_COUNT_KEY, expected.to_string(), found.to_string())
            }

            Self::KeyMissing { key, expected } => details(key, *expected, "nothing"),
            Self::KeyType {
                key,
                expected,
                found,
            }
            | Self::KeyRange {
                key,
                expected,
                found,
            } => details(key, *expected, found),

            Self::TensorDataSize {
                tensor,
                expected,
                found,
            } => details(tensor, n_bytes(expected), n_bytes(found)),
            Self::TooManyShards { n_shards, limit } => {
                details(COUNT_KEY, format!("at most {limit}"), n_shards.to_string())
            }
        }
    }

    pub(crate) fn hint(&self, file: Option<&Path>) -> Option<String> {
        let part_of = file.and_then(sniff::byte_part);
        Some(match self {
            Self::EmptyFile => {
                "the download did not start or the disk was full; fetch the file again".into()
            }
            Self::NotGguf { foreign, .. } => match part_of {
                Some(_) if foreign.is_unknown() => JOIN_PARTS.into(),
                _ => return foreign.hint(),
            },
            Self::WrongEndian { .. } => "convert the model again for little-endian machines".into(),
            Self::VersionTooOld { .. } => "convert the model again with a current converter".into(),
            Self::VersionTooNew { .. } => "update rsllm".into(),
            Self::EndOfFile { .. } | Self::LengthBeyondFile { .. } => match part_of {
                Some(_) => JOIN_PARTS.into(),
                None => {
                    "the file is truncated or damaged; compare its size and hash with the source"
                        .into()
                }
            },
            Self::Truncated { .. } => match part_of {
                Some(_) => JOIN_PARTS.into(),
                None => {
                    "finish the download; if this is one part of a byte-split file, join the parts"
                        .into()
                }
            },
            Self::UnknownTensorType { .. } => {
                "the file may be newer than this version of rsllm; update it".into()
            }
            Self::RemovedTensorType { .. } => {
                "quantise the model again from its original weights".into()
            }
            Self::SizeOverflow { .. } | Self::Overlap { .. } | Self::OutOfRange { .. } => {
                "the file is damaged; compare its hash with the source".into()
            }
            Self::ShardName { expected, .. } => {
                format!("rename the file back, to something ending in {expected}")
            }
            Self::JoinedShards { .. } => {
                "keep the shards as separate files and open any one of them".into()
            }
            Self::ShardMissing { n_missing, .. } => {
                format!("put all shards in one folder; {n_missing} are not there")
            }
            Self::ShardNumber { expected, .. } | Self::ShardCount { expected, .. } => {
                format!("expected {expected}; the shards are not of one model, or were renamed")
            }
            Self::ShardTensorCount { .. } => "the shards are not of one model".into(),
            Self::KeyMissing { expected, .. } | Self::KeyType { expected, .. } => {
                format!("expected {expected}")
            }
            _ => return None,
        })
    }
}

/// A cause in parts; all missing for an operating system's error.
#[derive(Default)]
pub(crate) struct Details {
    pub(crate) field: Option<String>,
    pub(crate) expected: Option<String>,
    pub(crate) found: Option<String>,
}

fn details(
    field: impl Into<String>,
    expected: impl Into<String>,
    found: impl Into<String>,
) -> Details {
    Details {
        field: Some(field.into()),
        expected: Some(expected.into()),
        found: Some(found.into()),
    }
}

fn n_bytes(count: &impl std::fmt::Display) -> String {
    format!("{count} bytes")
}

/// The byte count, or words for one that does not fit 128 bits.
fn needed_text(needed: Option<u128>) -> String {
    needed.map_or_else(|| "more than 2^128".into(), |n| n.to_string())
}

const JOIN_PARTS: &str =
    "the name looks like one part of a byte-split file; join the parts in order";
