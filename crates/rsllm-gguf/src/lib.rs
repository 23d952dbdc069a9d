//! Maps a GGUF file, validates it whole before use, hands out typed metadata and byte slices; also writes GGUF.
//!
//! [`Gguf::open`] checks every offset, length, count, dimension and type of the file, or of all shards of a split one,
//! against the bytes that are really there. What it returns can be used without further checks, and what it refuses is
//! explained by a [`GgufError`]: file, field, expected, found, hint. A hostile file costs time and memory in proportion
//! to its own size, whatever lengths it claims.
//!
//! Not here: what the metadata means (that is rsllm-model's and rsllm-tokenizer's), and what the tensor bytes mean
//! (rsllm-quant's). Big-endian files are refused by name.
#![deny(unsafe_code)]

mod atomic_file;
mod cause;
mod cursor;
mod error;
mod file;
mod header;
mod layout;
mod map;
mod metadata;
mod shard_writer;
mod shards;
mod sniff;
mod tensor;
mod value;
mod writer;

pub use cause::{Cause, ErrorKind};
pub use error::GgufError;
pub use file::{Gguf, OpenOptions};
pub use metadata::Metadata;
pub use shard_writer::{ShardLimit, ShardOptions};
pub use sniff::Foreign;
pub use tensor::TensorInfo;
pub use value::{Array, GgufString, StringArray, Value, ValueType};
pub use writer::{GgufWriter, TensorSpec};
