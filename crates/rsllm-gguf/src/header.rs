//! One file's header: magic, version, metadata, tensor table, all checked before any of it is used.
//!
//! The format is little-endian throughout: `GGUF`, u32 version, u64 tensor count, u64 metadata count, the metadata, the
//! table, padding to the alignment, then the tensors' bytes. Versions 2 and 3 have the same layout.

use std::collections::HashSet;
use std::path::Path;

use rsllm_quant::{GgmlType, UnknownGgmlType};

use crate::cause::Cause;
use crate::cursor::Cursor;
use crate::error::GgufError;
use crate::layout::{self, Record};
use crate::map::Bytes;
use crate::metadata::Metadata;
use crate::sniff::Foreign;
use crate::tensor::{self, TensorInfo};
use crate::value::{Value, ValueType};

/// A parsed header with the tensors' places in the file.
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) alignment: u32,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
    /// Where the last tensor ends, or the header if there is none.
    pub(crate) end: usize,
}

/// Parses and checks the file with the given bytes; `file` is named in errors, `shard` goes into each tensor.
pub(crate) fn parse(bytes: &Bytes, file: &Path, shard: usize) -> Result<Header, GgufError> {
    parse_unnamed(bytes, file, shard).map_err(|error| error.in_file(file))
}

fn parse_unnamed(owner: &Bytes, file: &Path, shard: usize) -> Result<Header, GgufError> {
    let bytes = owner.as_slice();
    let mut cursor = Cursor::new(owner);
    let version = magic_and_version(&mut cursor, bytes)?;
    // After the metadata less is left, but then the loop below ends at the first record that is not there.
    let n_tensors = cursor.count(MIN_RECORD_BYTES, MAX_TENSORS, || "tensor count".into())?;
    let n_entries = cursor.count(MIN_ENTRY_BYTES, MAX_ENTRIES, || "metadata count".into())?;

    let metadata = read_metadata(&mut cursor, n_entries, file)?;
    let alignment = alignment(&metadata)?;
    let records = read_table(&mut cursor, n_tensors, bytes.len() as u64)?;

    let header_end = cursor.offset();
    // Padding that would overflow leaves no room for data either; `place` reports it if there is a tensor.
    let data_start = layout::align_up(header_end as u64, alignment).unwrap_or(u64::MAX);
    let ranges = layout::place(&records, data_start, alignment, bytes.len() as u64)?;
    let end = ranges
        .iter()
        .map(|range| range.end)
        .fold(header_end, usize::max);
    let tensors = records
        .into_iter()
        .zip(ranges)
        .map(|(record, range)| TensorInfo {
            name: record.name,
            ty: record.ty,
            dims: record.dims,
            shard,
            range,
        })
        .collect();
    Ok(Header {
        version,
        alignment,
        metadata,
        tensors,
        end,
    })
}

fn magic_and_version(cursor: &mut Cursor<'_>, bytes: &[u8]) -> Result<u32, GgufError> {
    if bytes.is_empty() {
        return Err(Cause::EmptyFile.into());
    }
    if !bytes.starts_with(MAGIC) && !MAGIC.starts_with(bytes) {
        let mut magic = [0; 4];
        let n_found = bytes.len().min(4);
        magic[..n_found].copy_from_slice(&bytes[..n_found]);
        let foreign = Foreign::detect(&bytes[..bytes.len().min(SNIFFED_BYTES)]);
        return Err(Cause::NotGguf { foreign, magic }.into());
    }
    cursor.u32(|| "magic".into())?;
    let version = cursor.u32(|| "version".into())?;
    match version {
        2 | 3 => Ok(version),
        // A small number written most significant byte first.
        _ if version != 0 && version.trailing_zeros() >= 16 => Err(Cause::WrongEndian {
            version: version.swap_bytes(),
        }
        .into()),
        0 | 1 => Err(Cause::VersionTooOld { version }.into()),
        _ => Err(Cause::VersionTooNew { version }.into()),
    }
}

fn read_metadata(
    cursor: &mut Cursor<'_>,
    n_entries: usize,
    file: &Path,
) -> Result<Metadata, GgufError> {
    let mut metadata = Metadata::in_file(file);
    for index in 0..n_entries {
        let field = || format!("key of metadata entry {index}");
        let key = cursor.string(field)?;
        if key.is_empty() {
            return Err(Cause::EmptyKey {
                index: index as u64,
            }
            .into());
        }
        let key = checked_name(key, tensor::MAX_KEY, field)?;
        let id = cursor.u32(|| format!("value type of {key}"))?;
        let ty = ValueType::from_id(id).ok_or_else(|| Cause::UnknownValueType {
            key: key.into(),
            id,
        })?;
        if metadata.contains(key) {
            return Err(Cause::DuplicateKey { key: key.into() }.into());
        }
        metadata.insert(key, cursor.value(ty, key)?);
    }
    Ok(metadata)
}

/// The alignment that `metadata` asks for.
pub(crate) fn alignment(metadata: &Metadata) -> Result<u32, GgufError> {
    match metadata.get(ALIGNMENT_KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(&Value::U32(alignment)) if alignment.is_power_of_two() => Ok(alignment),
        Some(&Value::U32(found)) => Err(Cause::Alignment { found }.into()),
        Some(other) => Err(Cause::AlignmentType {
            found: other.value_type(),
        }
        .into()),
    }
}

fn read_table(
    cursor: &mut Cursor<'_>,
    n_tensors: usize,
    file_len: u64,
) -> Result<Vec<Record>, GgufError> {
    let mut records: Vec<Record> = Vec::new();
    for index in 0..n_tensors {
        records.push(read_record(cursor, index, file_len)?);
    }
    let mut names = HashSet::with_capacity(records.len());
    match records
        .iter()
        .find(|record| !names.insert(record.name.as_str()))
    {
        Some(record) => Err(Cause::DuplicateTensor {
            tensor: record.name.clone(),
        }
        .into()),
        None => Ok(records),
    }
}

fn read_record(cursor: &mut Cursor<'_>, index: usize, file_len: u64) -> Result<Record, GgufError> {
    let field = || format!("name of tensor {index}");
    let name = cursor.string(field)?;
    if name.is_empty() {
        return Err(Cause::EmptyTensorName {
            index: index as u64,
        }
        .into());
    }
    let name = checked_name(name, tensor::MAX_TENSOR_NAME, field)?;
    let n_dims = cursor.u32(|| format!("dimension count of {name}"))?;
    if n_dims as usize > tensor::MAX_DIMS {
        return Err(Cause::TooManyDimensions {
            tensor: name.into(),
            n_dims,
        }
        .into());
    }
    let mut dims = Vec::with_capacity(n_dims as usize);
    for _ in 0..n_dims {
        dims.push(cursor.u64(|| format!("dimensions of {name}"))?);
    }
    let id = cursor.u32(|| format!("type of {name}"))?;
    let ty = GgmlType::from_id(id).map_err(|unknown| match unknown {
        UnknownGgmlType::Removed { .. } => Cause::RemovedTensorType {
            tensor: name.into(),
            id,
        },
        _ => Cause::UnknownTensorType {
            tensor: name.into(),
            id,
        },
    })?;
    let offset = cursor.u64(|| format!("offset of {name}"))?;
    let n_bytes = tensor::checked_size(name, ty, &dims, file_len)?;
    Ok(Record {
        name: name.into(),
        ty,
        dims,
        offset,
        n_bytes,
    })
}

/// A key or tensor name: UTF-8 of limited length.
fn checked_name(bytes: &[u8], limit: usize, field: impl Fn() -> String) -> Result<&str, GgufError> {
    if bytes.len() > limit {
        return Err(Cause::LimitExceeded {
            field: format!("length of {}", field()),
            value: bytes.len() as u64,
            limit: limit as u64,
        }
        .into());
    }
    std::str::from_utf8(bytes).map_err(|_| Cause::NotUtf8 { field: field() }.into())
}

/// The first four bytes of every GGUF file.
pub(crate) const MAGIC: &[u8; 4] = b"GGUF";
/// The metadata key that sets the alignment of tensor data.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
/// The alignment of files that do not set one.
pub(crate) const DEFAULT_ALIGNMENT: u32 = 32;
/// Key length, value type, one byte of value: no metadata entry is smaller, its key being refused if empty.
const MIN_ENTRY_BYTES: usize = 8 + 4 + 1;
/// Name length, dimension count, type, offset.
const MIN_RECORD_BYTES: usize = 8 + 4 + 4 + 8;
/// Real models have less than a thousand. An entry takes about 18 times its least size in memory, so that without a
/// limit a large file of nothing but entries could ask for more memory than there is.
const MAX_ENTRIES: u64 = 1 << 16;
/// Real models have up to 47,000, those with a tensor for each expert of each layer. Limited as the entries are.
const MAX_TENSORS: u64 = 1 << 18;
/// Enough for the magic of a tar archive and the first member's name in a zip.
const SNIFFED_BYTES: usize = 512;
