//! A model cut into several GGUF files, `{prefix}-{number:05}-of-{count:05}.gguf`, numbered from 1.
//!
//! Each shard is a whole GGUF file with `split.no` (from 0), `split.count` and `split.tensors.count`; the first holds
//! all other metadata. Any shard may be opened: the others are looked for in the same folder. A name is not resolved
//! through symbolic links first, because download caches link nice names to files named by hash.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::cause::Cause;
use crate::error::GgufError;
use crate::file::{Gguf, OpenOptions};
use crate::header::{self, Header};
use crate::layout;
use crate::map::Bytes;
use crate::metadata::Metadata;

type Part = (PathBuf, Bytes, Header);

/// Opens the file and, if it is a shard, all others.
pub(crate) fn open(path: &Path, options: OpenOptions) -> Result<Gguf, GgufError> {
    let (bytes, header) = read(path, 0, options)?;
    let Some(split) = Split::of(&header.metadata)? else {
        return Ok(Gguf::from_parts(vec![(path.into(), bytes, header)]));
    };
    let named = |cause: Cause| GgufError::new(cause).in_file(path);
    if is_joined(&header, bytes.as_slice()) {
        return Err(named(Cause::JoinedShards { count: split.count }));
    }
    let suffix = shard_suffix(split.number, split.count);
    let prefix = prefix_of(path, &suffix).ok_or_else(|| {
        named(Cause::ShardName {
            no: split.number + 1,
            count: split.count,
            expected: suffix,
        })
    })?;
    let paths: Vec<PathBuf> = (0..split.count)
        .map(|number| path.with_file_name(format!("{prefix}{}", shard_suffix(number, split.count))))
        .collect();
    let missing: Vec<usize> = (0..paths.len())
        .filter(|&index| !paths[index].exists())
        .collect();
    if let Some(&first) = missing.first() {
        return Err(named(Cause::ShardMissing {
            no: first as u64 + 1,
            count: split.count,
            path: paths[first].clone(),
            n_missing: missing.len() as u64,
        }));
    }
    read_all(&paths, options)
}

/// Opens shards by the given names, in order.
pub(crate) fn open_listed(paths: &[PathBuf], options: OpenOptions) -> Result<Gguf, GgufError> {
    if let [path] = paths {
        let (bytes, header) = read(path, 0, options)?;
        check_single(&header, bytes.as_slice(), path)?;
        return Ok(Gguf::from_parts(vec![(path.clone(), bytes, header)]));
    }
    read_all(paths, options)
}

/// An error if the file is a shard, which cannot be used without its siblings.
pub(crate) fn check_single(header: &Header, bytes: &[u8], path: &Path) -> Result<(), GgufError> {
    let Some(split) = Split::of(&header.metadata)? else {
        return Ok(());
    };
    let cause = if is_joined(header, bytes) {
        Cause::JoinedShards { count: split.count }
    } else {
        Cause::ShardCount {
            expected: 1,
            found: split.count,
        }
    };
    Err(GgufError::new(cause).in_file(path))
}

/// The `split.*` keys of one shard.
struct Split {
    number: u64,
    count: u64,
}

impl Split {
    /// `None` for a file that is not one of several.
    fn of(metadata: &Metadata) -> Result<Option<Self>, GgufError> {
        let count = metadata.opt_u64(COUNT_KEY)?.unwrap_or(0);
        if count <= 1 {
            return Ok(None);
        }
        if count > MAX_SHARDS {
            return Err(metadata.range_error(COUNT_KEY, "u16"));
        }
        let number = metadata.u64(NUMBER_KEY)?;
        if number >= count {
            return Err(metadata.range_error(NUMBER_KEY, "a number below split.count"));
        }
        Ok(Some(Self { number, count }))
    }
}

fn read(path: &Path, shard: usize, options: OpenOptions) -> Result<(Bytes, Header), GgufError> {
    let bytes = Bytes::open(path, options.mmap)?;
    let header = header::parse(&bytes, path, shard)?;
    Ok((bytes, header))
}

fn read_all(paths: &[PathBuf], options: OpenOptions) -> Result<Gguf, GgufError> {
    let mut parts: Vec<Part> = Vec::with_capacity(paths.len());
    for (index, path) in paths.iter().enumerate() {
        let (bytes, header) = read(path, index, options)?;
        check_shard(&header, index as u64, paths.len() as u64)
            .map_err(|error| error.in_file(path))?;
        parts.push((path.clone(), bytes, header));
    }
    check_names(&parts)?;
    if let Some((path, _, header)) = parts.first() {
        let expected = header.metadata.u64(TENSOR_COUNT_KEY)?;
        let found = parts
            .iter()
            .map(|(_, _, header)| header.tensors.len() as u64)
            .sum();
        if expected != found {
            return Err(GgufError::new(Cause::ShardTensorCount { expected, found }).in_file(path));
        }
        return Ok(Gguf::from_parts(parts));
    }
    Err(Cause::ShardCount {
        expected: 0,
        found: 0,
    }
    .into())
}

fn check_shard(header: &Header, number: u64, count: u64) -> Result<(), GgufError> {
    let found = header.metadata.u64(COUNT_KEY)?;
    if found != count {
        return Err(Cause::ShardCount {
            expected: count,
            found,
        }
        .into());
    }
    let found = header.metadata.u64(NUMBER_KEY)?;
    if found != number {
        return Err(Cause::ShardNumber {
            expected: number,
            found,
        }
        .into());
    }
    Ok(())
}

fn check_names(parts: &[Part]) -> Result<(), GgufError> {
    let mut seen: HashMap<&str, &Path> = HashMap::new();
    for (path, _, header) in parts {
        for tensor in &header.tensors {
            if let Some(other) = seen.insert(&tensor.name, path) {
                let cause = Cause::DuplicateTensorInShards {
                    tensor: tensor.name.clone(),
                    other: other.into(),
                };
                return Err(GgufError::new(cause).in_file(path));
            }
        }
    }
    Ok(())
}

/// Whether another GGUF file follows the last tensor, as `cat` leaves it.
fn is_joined(header: &Header, bytes: &[u8]) -> bool {
    let padded = layout::align_up(header.end as u64, header.alignment)
        .and_then(|end| usize::try_from(end).ok());
    [Some(header.end), padded].into_iter().flatten().any(|end| {
        bytes
            .get(end..)
            .is_some_and(|rest| rest.starts_with(header::MAGIC))
    })
}

/// `-00002-of-00003.gguf` for the second of three; `number` counts from 0.
pub(crate) fn shard_suffix(number: u64, count: u64) -> String {
    format!("-{:05}-of-{count:05}.gguf", number + 1)
}

fn prefix_of(path: &Path, suffix: &str) -> Option<String> {
    path.file_name()?
        .to_str()?
        .strip_suffix(suffix)
        .map(Into::into)
}

/// The number of this shard, from 0.
pub(crate) const NUMBER_KEY: &str = "split.no";
/// How many shards there are.
pub(crate) const COUNT_KEY: &str = "split.count";
/// How many tensors all shards hold together.
pub(crate) const TENSOR_COUNT_KEY: &str = "split.tensors.count";
/// All keys that say how a model is split.
pub(crate) const KEYS: [&str; 3] = [NUMBER_KEY, COUNT_KEY, TENSOR_COUNT_KEY];
/// `split.count` is a u16.
pub(crate) const MAX_SHARDS: u64 = u16::MAX as u64;
