//! What can be wrong with a GGUF file, one [`Cause`] each, and the file it was found in.
//!
//! [`GgufError`] adds the path to a cause and answers the questions a user interface asks: which field, what was
//! expected, what was found, what to do. Its text is one line: file, cause and, where there is one, the hint.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rsllm_quant::GgmlType;

use crate::sniff::Foreign;
use crate::value::ValueType;

/// An error found while reading or writing a GGUF file, or while asking its metadata for a value.
pub struct GgufError(Box<Inner>);

struct Inner {
    file: Option<PathBuf>,
    cause: Cause,
}

impl GgufError {
    pub(crate) fn new(cause: Cause) -> Self {
        Self(Box::new(Inner { file: None, cause }))
    }

    /// Names the file, unless one is named already.
    #[must_use]
    pub(crate) fn in_file(mut self, file: &Path) -> Self {
        if self.0.file.is_none() && !file.as_os_str().is_empty() {
            self.0.file = Some(file.into());
        }
        self
    }

    /// What is wrong.
    pub fn cause(&self) -> &Cause {
        &self.0.cause
    }

    /// The file the error was found in; `None` for metadata that was never in a file.
    pub fn file(&self) -> Option<&Path> {
        self.0.file.as_deref()
    }

    /// The part of the file or the metadata key that is wrong.
    pub fn field(&self) -> Option<String> {
        self.0.cause.field()
    }

    /// What the field should have been.
    pub fn expected(&self) -> Option<String> {
        self.0.cause.expected()
    }

    /// What the field was.
    pub fn found(&self) -> Option<String> {
        self.0.cause.found()
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        self.0.cause.hint(self.file())
    }
}

impl From<Cause> for GgufError {
    fn from(cause: Cause) -> Self {
        Self::new(cause)
    }
}

impl fmt::Display for GgufError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = self.file() {
            write!(f, "{}: ", file.display())?;
        }
        write!(f, "{}", self.0.cause)?;
        match self.hint() {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for GgufError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GgufError")
            .field("file", &self.0.file)
            .field("cause", &self.0.cause)
            .finish()
    }
}

impl std::error::Error for GgufError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.cause {
            Cause::Io(error) => Some(error),
            _ => None,
        }
    }
}

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
    #[error("GGUF version {version} is no longer supported")]
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
    #[error("{field} is {length} long; the limit is {limit}")]
    TooLong {
        field: String,
        length: u64,
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
    #[error("`general.alignment` is of type {found}")]
    AlignmentType { found: ValueType },
    #[error("`general.alignment` is {found}")]
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
    #[error("the file is {count} shards joined end to end")]
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

impl Cause {
    fn field(&self) -> Option<String> {
        Some(match self {
            Self::Io(_) | Self::NotRegularFile { .. } => return None,
            Self::EmptyFile | Self::NotGguf { .. } => "magic".into(),
            Self::WrongEndian { .. } | Self::VersionTooOld { .. } | Self::VersionTooNew { .. } => {
                "version".into()
            }
            Self::EndOfFile { field, .. }
            | Self::LengthBeyondFile { field, .. }
            | Self::TooLong { field, .. }
            | Self::NotUtf8 { field } => field.clone(),
            Self::EmptyKey { index } => format!("metadata entry {index}"),
            Self::DuplicateKey { key }
            | Self::UnknownValueType { key, .. }
            | Self::NestedArray { key }
            | Self::KeyMissing { key, .. }
            | Self::KeyType { key, .. }
            | Self::KeyRange { key, .. } => key.clone(),
            Self::AlignmentType { .. } | Self::Alignment { .. } => "general.alignment".into(),
            Self::EmptyTensorName { index } => format!("tensor {index}"),
            Self::DuplicateTensor { tensor }
            | Self::DuplicateTensorInShards { tensor, .. }
            | Self::UnknownTensorType { tensor, .. }
            | Self::RemovedTensorType { tensor, .. }
            | Self::PartialBlock { tensor, .. }
            | Self::SizeOverflow { tensor, .. }
            | Self::Misaligned { tensor, .. }
            | Self::Overlap { tensor, .. }
            | Self::OutOfRange { tensor, .. }
            | Self::Truncated { tensor, .. }
            | Self::TensorDataSize { tensor, .. }
            | Self::TooManyDimensions { tensor, .. }
            | Self::ZeroDimension { tensor, .. } => tensor.clone(),
            Self::ShardName { .. } => "file name".into(),
            Self::ShardNumber { .. } => "split.no".into(),
            Self::JoinedShards { .. }
            | Self::ShardMissing { .. }
            | Self::ShardCount { .. }
            | Self::TooManyShards { .. } => "split.count".into(),
            Self::ShardTensorCount { .. } => "split.tensors.count".into(),
        })
    }

    fn expected(&self) -> Option<String> {
        Some(match self {
            Self::Io(_)
            | Self::DuplicateKey { .. }
            | Self::DuplicateTensor { .. }
            | Self::NestedArray { .. } => {
                return None;
            }
            Self::DuplicateTensorInShards { .. } => return None,
            Self::NotRegularFile { .. } => "a regular file".into(),
            Self::EmptyFile | Self::NotGguf { .. } => "GGUF".into(),
            Self::WrongEndian { .. } => "a little-endian version".into(),
            Self::VersionTooOld { .. } | Self::VersionTooNew { .. } => "version 2 or 3".into(),
            Self::EndOfFile { needed, .. } => format!("{needed} bytes"),
            Self::LengthBeyondFile { available, .. } => format!("at most {available} bytes"),
            Self::TooLong { limit, .. } => format!("at most {limit}"),
            Self::NotUtf8 { .. } => "UTF-8".into(),
            Self::EmptyKey { .. } | Self::EmptyTensorName { .. } => "a name".into(),
            Self::UnknownValueType { .. } => "a value type from 0 to 12".into(),
            Self::AlignmentType { .. } => "must be u32".into(),
            Self::Alignment { .. } => "must be a non-zero power of two".into(),
            Self::TooManyDimensions { .. } => {
                format!("at most {} dimensions", crate::tensor::MAX_DIMS)
            }
            Self::ZeroDimension { .. } => "dimensions of at least 1".into(),
            Self::UnknownTensorType { .. } | Self::RemovedTensorType { .. } => {
                "a known tensor type".into()
            }
            Self::PartialBlock { block_len, .. } => format!("a multiple of {block_len} elements"),
            Self::SizeOverflow { available, .. } => format!("at most {available} bytes"),
            Self::Misaligned { alignment, .. } => format!("a multiple of {alignment}"),
            Self::Overlap { other_end, .. } => format!("an offset from {other_end}"),
            Self::OutOfRange { n_bytes, .. } => format!("{n_bytes} bytes"),
            Self::Truncated { needed, .. } => format!("{needed} bytes"),
            Self::ShardName { expected, .. } => format!("a name ending in {expected}"),
            Self::JoinedShards { .. } => "one shard a file".into(),
            Self::ShardMissing { path, .. } => path.display().to_string(),
            Self::ShardNumber { expected, .. }
            | Self::ShardCount { expected, .. }
            | Self::ShardTensorCount { expected, .. } => expected.to_string(),
            Self::KeyMissing { expected, .. }
            | Self::KeyType { expected, .. }
            | Self::KeyRange { expected, .. } => (*expected).into(),
            Self::TensorDataSize { expected, .. } => format!("{expected} bytes"),
            Self::TooManyShards { limit, .. } => format!("at most {limit}"),
        })
    }

    fn found(&self) -> Option<String> {
        Some(match self {
            Self::Io(_) => return None,
            Self::NotRegularFile { found } => (*found).into(),
            Self::EmptyFile => "0 bytes".into(),
            Self::NotGguf { magic, .. } => format!("{} ({magic:02x?})", magic.escape_ascii()),
            Self::WrongEndian { version } => format!("big-endian version {version}"),
            Self::VersionTooOld { version } | Self::VersionTooNew { version } => {
                version.to_string()
            }
            Self::EndOfFile { available, .. } | Self::OutOfRange { available, .. } => {
                format!("{available} bytes")
            }
            Self::LengthBeyondFile { length, .. } | Self::TooLong { length, .. } => {
                length.to_string()
            }
            Self::NotUtf8 { .. } => "other bytes".into(),
            Self::EmptyKey { .. } | Self::EmptyTensorName { .. } => "an empty name".into(),
            Self::DuplicateKey { .. } | Self::DuplicateTensor { .. } => "the name twice".into(),
            Self::DuplicateTensorInShards { other, .. } => {
                format!("the name also in {}", other.display())
            }
            Self::UnknownValueType { id, .. } => id.to_string(),
            Self::NestedArray { .. } => "an array of arrays".into(),
            Self::AlignmentType { found } => found.to_string(),
            Self::Alignment { found } => found.to_string(),
            Self::TooManyDimensions { n_dims, .. } => n_dims.to_string(),
            Self::ZeroDimension { dims, .. } => format!("{dims:?}"),
            Self::UnknownTensorType { id, .. } | Self::RemovedTensorType { id, .. } => {
                format!("type id {id}")
            }
            Self::PartialBlock { row_len, .. } => format!("{row_len} elements"),
            Self::SizeOverflow { needed, .. } => format!("{} bytes", needed_text(*needed)),
            Self::Misaligned { offset, .. } | Self::Overlap { offset, .. } => {
                format!("offset {offset}")
            }
            Self::Truncated { file_len, .. } => format!("{file_len} bytes"),
            Self::ShardName { .. } => return None,
            Self::JoinedShards { count } => format!("{count} shards in one file"),
            Self::ShardMissing { n_missing, .. } => format!("{n_missing} files missing"),
            Self::ShardNumber { found, .. } | Self::ShardCount { found, .. } => found.to_string(),
            Self::ShardTensorCount { found, .. } => found.to_string(),
            Self::KeyMissing { .. } => "nothing".into(),
            Self::KeyType { found, .. } | Self::KeyRange { found, .. } => found.clone(),
            Self::TensorDataSize { found, .. } => format!("{found} bytes"),
            Self::TooManyShards { n_shards, .. } => n_shards.to_string(),
        })
    }

    fn hint(&self, file: Option<&Path>) -> Option<String> {
        let part_of = file.and_then(crate::sniff::byte_part);
        Some(match self {
            Self::EmptyFile => "the download did not start or the disk was full; fetch the file again".into(),
            Self::NotGguf { foreign, .. } => match part_of {
                Some(_) if foreign.is_unknown() => JOIN_PARTS.into(),
                _ => return foreign.hint(),
            },
            Self::WrongEndian { .. } => "convert the model again for little-endian machines".into(),
            Self::VersionTooOld { .. } => "convert the model again with a current converter".into(),
            Self::VersionTooNew { .. } => "update rsllm".into(),
            Self::EndOfFile { .. } | Self::LengthBeyondFile { .. } => match part_of {
                Some(_) => JOIN_PARTS.into(),
                None => "the file is truncated or damaged; compare its size and hash with the source".into(),
            },
            Self::Truncated { .. } => match part_of {
                Some(_) => JOIN_PARTS.into(),
                None => "finish the download; if this is one part of a byte-split file, join the parts".into(),
            },
            Self::AlignmentType { .. } => "must be u32".into(),
            Self::Alignment { .. } => "alignment must be a non-zero power of two".into(),
            Self::UnknownTensorType { .. } => "the file may be newer than this version of rsllm; update it".into(),
            Self::RemovedTensorType { .. } => "quantise the model again from its original weights".into(),
            Self::SizeOverflow { .. } | Self::Overlap { .. } | Self::OutOfRange { .. } => {
                "the file is damaged; compare its hash with the source".into()
            }
            Self::ShardName { expected, .. } => format!("rename the file back, to something ending in {expected}"),
            Self::JoinedShards { .. } => {
                "split GGUF parts cannot be concatenated; keep them as separate files and open any one of them".into()
            }
            Self::ShardMissing { n_missing, .. } => {
                format!("put all shards in one folder; {n_missing} are not there")
            }
            Self::ShardNumber { expected, .. } | Self::ShardCount { expected, .. } => {
                format!("expected {expected}; the shards are not of one model, or were renamed")
            }
            Self::ShardTensorCount { .. } => "the shards are not of one model".into(),
            Self::KeyMissing { expected, .. } | Self::KeyType { expected, .. } => format!("expected {expected}"),
            _ => return None,
        })
    }
}

/// The byte count, or words for one that does not fit 128 bits.
fn needed_text(needed: Option<u128>) -> String {
    needed.map_or_else(|| "more than 2^128".into(), |n| n.to_string())
}

const JOIN_PARTS: &str =
    "the name looks like one part of a byte-split file; join the parts in order";
