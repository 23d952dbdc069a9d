//! Writes a model as several files, in the layout that [`shards`](crate::shards) reads.
//!
//! The first shard holds all metadata; the others hold the `split.*` keys and the alignment. All shards are written
//! under temporary names and appear together at the end.

use std::io::{self, Write};
use std::num::{NonZeroU64, NonZeroUsize};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::atomic_file::AtomicFile;
use crate::cause::Cause;
use crate::error::GgufError;
use crate::header::ALIGNMENT_KEY;
use crate::metadata::Metadata;
use crate::shards::{self, COUNT_KEY, MAX_SHARDS, NUMBER_KEY, TENSOR_COUNT_KEY};
use crate::writer::{self, GgufWriter, TensorSpec};

/// When a shard is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardLimit {
    /// At this many tensors.
    Tensors(NonZeroUsize),
    /// Before its tensors, padded, take more than this many bytes; a larger tensor has a shard of its own.
    Bytes(NonZeroU64),
}

/// How to cut a model into shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardOptions {
    /// When to begin the next shard.
    pub limit: ShardLimit,
    /// Whether the first shard holds metadata only, so that it can be fetched by itself.
    pub first_without_tensors: bool,
}

impl GgufWriter {
    /// Writes shards named `{prefix}-00001-of-0000N.gguf` and returns their paths. `source` as in
    /// [`write_to`](Self::write_to). One shard is still named and marked as such.
    pub fn write_shards(
        &self,
        prefix: impl AsRef<Path>,
        options: ShardOptions,
        mut source: impl FnMut(&TensorSpec, &mut dyn Write) -> io::Result<()>,
    ) -> Result<Vec<PathBuf>, GgufError> {
        let plan = self.shard_plan(options)?;
        let count = plan.len() as u64;
        let mut files = Vec::with_capacity(plan.len());
        for (number, tensors) in (0_u64..).zip(plan) {
            let path = shard_path(prefix.as_ref(), number, count);
            let metadata = self.shard_metadata(number, count);
            let write = || {
                let mut file = AtomicFile::create(&path).map_err(Cause::Io)?;
                let tensors = &self.tensors[tensors];
                writer::write_file_contents(
                    &mut file,
                    &metadata,
                    tensors,
                    self.alignment,
                    &mut source,
                )?;
                Ok(file)
            };
            let file = write().map_err(|error: GgufError| error.in_file(&path))?;
            files.push((path, file));
        }
        let mut paths = Vec::with_capacity(files.len());
        for (path, file) in files {
            file.commit()
                .map_err(|error| GgufError::new(Cause::Io(error)).in_file(&path))?;
            paths.push(path);
        }
        Ok(paths)
    }

    /// Which tensors go into which shard, as ranges of [`tensors`](Self::tensors); at least one shard.
    pub fn shard_plan(&self, options: ShardOptions) -> Result<Vec<Range<usize>>, GgufError> {
        let mut plan = Vec::new();
        let (mut start, mut shard_bytes) = (0, 0_u64);
        if options.first_without_tensors {
            plan.push(0..0);
        }
        for (index, tensor) in self.tensors.iter().enumerate() {
            let n_bytes = writer::padded(tensor.n_bytes, self.alignment)?;
            let is_full = match options.limit {
                ShardLimit::Tensors(most) => index - start >= most.get(),
                ShardLimit::Bytes(most) => shard_bytes.saturating_add(n_bytes) > most.get(),
            };
            if is_full && index > start {
                plan.push(start..index);
                (start, shard_bytes) = (index, 0);
            }
            shard_bytes = shard_bytes.saturating_add(n_bytes);
        }
        if start < self.tensors.len() || plan.is_empty() {
            plan.push(start..self.tensors.len());
        }
        if plan.len() as u64 > MAX_SHARDS {
            return Err(Cause::TooManyShards {
                n_shards: plan.len(),
                limit: MAX_SHARDS as usize,
            }
            .into());
        }
        Ok(plan)
    }

    fn shard_metadata(&self, number: u64, count: u64) -> Metadata {
        let mut metadata = if number == 0 {
            self.metadata.clone()
        } else {
            self.metadata
                .iter()
                .filter(|(key, _)| *key == ALIGNMENT_KEY)
                .map(|(k, v)| (k, v.clone()))
                .collect()
        };
        // The widths the format prescribes; both numbers are at most MAX_SHARDS.
        metadata.insert(NUMBER_KEY, number as u16);
        metadata.insert(COUNT_KEY, count as u16);
        metadata.insert(TENSOR_COUNT_KEY, self.tensors.len() as i32);
        metadata
    }
}

fn shard_path(prefix: &Path, number: u64, count: u64) -> PathBuf {
    let mut path = prefix.as_os_str().to_owned();
    path.push(shards::shard_suffix(number, count));
    path.into()
}

#[cfg(test)]
mod tests {
    use rsllm_quant::GgmlType;

    use super::*;

    fn plan(limit: ShardLimit, first_without_tensors: bool) -> Vec<(usize, usize)> {
        let mut writer = GgufWriter::new(Metadata::new()).unwrap();
        for (index, n_bytes) in [32, 33, 1, 200, 32].into_iter().enumerate() {
            writer
                .add_tensor(&format!("t{index}"), GgmlType::I8, &[n_bytes])
                .unwrap();
        }
        let plan = writer
            .shard_plan(ShardOptions {
                limit,
                first_without_tensors,
            })
            .unwrap();
        plan.into_iter()
            .map(|range| (range.start, range.end))
            .collect()
    }

    #[test]
    fn shards_are_cut_by_count_or_padded_bytes() {
        let by_count = |n| ShardLimit::Tensors(NonZeroUsize::new(n).unwrap());
        let by_bytes = |n| ShardLimit::Bytes(NonZeroU64::new(n).unwrap());
        assert_eq!(plan(by_count(2), false), [(0, 2), (2, 4), (4, 5)]);
        assert_eq!(plan(by_count(9), false), [(0, 5)]);
        assert_eq!(plan(by_count(3), true), [(0, 0), (0, 3), (3, 5)]);
        assert_eq!(plan(by_bytes(96), false), [(0, 2), (2, 3), (3, 4), (4, 5)]);
        assert_eq!(
            plan(by_bytes(1), false),
            [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
        );
    }

    #[test]
    fn a_model_without_tensors_is_one_shard() {
        let writer = GgufWriter::new(Metadata::new()).unwrap();
        let limit = ShardLimit::Tensors(NonZeroUsize::MIN);
        let plan = writer
            .shard_plan(ShardOptions {
                limit,
                first_without_tensors: false,
            })
            .unwrap();
        assert_eq!((plan.len(), plan[0].is_empty()), (1, true));
    }
}
