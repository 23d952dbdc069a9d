//! A model as its users see it: one file, or all shards of one, behind one list of tensors.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::GgufError;
use crate::header;
use crate::map::Bytes;
use crate::metadata::Metadata;
use crate::shards;
use crate::tensor::TensorInfo;

/// How to open a file.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Map the file (the default) or read it into memory. A mapped file that shrinks while in use ends the process.
    pub mmap: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { mmap: true }
    }
}

impl OpenOptions {
    /// These options with `mmap` set.
    #[must_use]
    pub fn with_mmap(mut self, mmap: bool) -> Self {
        self.mmap = mmap;
        self
    }
}

/// A validated GGUF model: its metadata, its tensors and their bytes.
///
/// Metadata of a model in shards is that of the first shard, which holds it all.
pub struct Gguf {
    pub(crate) files: Vec<PathBuf>,
    pub(crate) bytes: Vec<Bytes>,
    pub(crate) version: u32,
    pub(crate) alignment: u32,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
    pub(crate) by_name: HashMap<String, usize>,
}

impl Gguf {
    /// Maps the file and, if it is a shard, its siblings in the same folder. Any shard will do.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        Self::open_with(path, OpenOptions::default())
    }

    /// As [`Self::open`], with options.
    pub fn open_with(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self, GgufError> {
        shards::open(path.as_ref(), options)
    }

    /// Opens a model whose shards have names of their own, given in order; for one file as well.
    pub fn open_shards(paths: &[PathBuf], options: OpenOptions) -> Result<Self, GgufError> {
        shards::open_listed(paths, options)
    }

    /// A model in memory; `name` stands for the path in errors. A shard of several cannot be opened so.
    pub fn from_bytes(bytes: Vec<u8>, name: impl Into<PathBuf>) -> Result<Self, GgufError> {
        let name = name.into();
        let bytes = Bytes::from_vec(bytes);
        let header = header::parse(&bytes, &name, 0)?;
        shards::check_single(&header, bytes.as_slice(), &name)?;
        Ok(Self::from_parts(vec![(name, bytes, header)]))
    }

    /// Joins shards that were checked against each other; there is at least one.
    pub(crate) fn from_parts(parts: Vec<(PathBuf, Bytes, header::Header)>) -> Self {
        let (mut files, mut bytes, mut tensors) = (Vec::new(), Vec::new(), Vec::new());
        let mut first = None;
        for (file, file_bytes, header) in parts {
            files.push(file);
            bytes.push(file_bytes);
            tensors.extend(header.tensors);
            first.get_or_insert((header.version, header.alignment, header.metadata));
        }
        let (version, alignment, metadata) = first.expect("a model has at least one file");
        let by_name = tensors
            .iter()
            .enumerate()
            .map(|(index, t): (_, &TensorInfo)| (t.name.clone(), index))
            .collect();
        Self {
            files,
            bytes,
            version,
            alignment,
            metadata,
            tensors,
            by_name,
        }
    }

    /// The metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, in the order of the table, shard after shard.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of the given name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&index| &self.tensors[index])
    }

    /// The bytes of a tensor of this model. A tensor of another model may panic or give other bytes.
    pub fn tensor_bytes(&self, tensor: &TensorInfo) -> &[u8] {
        &self.bytes[tensor.shard].as_slice()[tensor.range.clone()]
    }

    /// What keeps a tensor's bytes alive: the whole file it is in. See [`Self::tensor_range`] for the place.
    pub fn owner(&self, tensor: &TensorInfo) -> Arc<dyn AsRef<[u8]> + Send + Sync> {
        self.bytes[tensor.shard].owner()
    }

    /// Where in its [`owner`](Self::owner) a tensor's bytes are.
    pub fn tensor_range(&self, tensor: &TensorInfo) -> Range<usize> {
        tensor.range.clone()
    }

    /// The files of the model, in shard order.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The bytes of all files together.
    pub fn file_bytes(&self) -> u64 {
        self.bytes
            .iter()
            .map(|bytes| bytes.as_slice().len() as u64)
            .sum()
    }

    /// The format version of the (first) file: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The alignment of tensor data in the (first) file, a power of two.
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// Asks the system to read the files in ahead of use. Returns at once; does nothing where there is no such advice.
    pub fn advise_will_need(&self) {
        for bytes in &self.bytes {
            bytes.advise_will_need();
        }
    }
}

impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gguf")
            .field("files", &self.files)
            .field("metadata_entries", &self.metadata.len())
            .field("tensors", &self.tensors.len())
            .finish_non_exhaustive()
    }
}
