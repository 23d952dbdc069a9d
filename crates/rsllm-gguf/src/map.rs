//! A file's bytes: mapped, read into memory, or handed over by the caller. The only module with unsafe code.
//!
//! A mapping costs no copy and is shared between processes. Its price: if another process truncates the file, or the
//! disk fails under it, touching the missing page raises SIGBUS and the process dies; no check can prevent that. So a
//! model that must not take its process down is opened with `mmap: false`, which reads the file into anonymous memory,
//! and the store maps only files that are renamed into place and never written again.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use memmap2::{Mmap, MmapMut};

use crate::cause::Cause;
use crate::error::GgufError;

/// Bytes that stay where they are for as long as any clone of the handle lives.
#[derive(Clone)]
pub(crate) enum Bytes {
    /// A mapped file, or anonymous memory a file was read into; page-aligned.
    Mapped(Arc<Mmap>),
    /// The caller's buffer.
    Owned(Arc<Vec<u8>>),
}

impl Bytes {
    /// Maps the file, or reads it whole with `mmap` false.
    pub(crate) fn open(path: &Path, mmap: bool) -> Result<Self, GgufError> {
        Self::open_unnamed(path, mmap).map_err(|error| error.in_file(path))
    }

    fn open_unnamed(path: &Path, mmap: bool) -> Result<Self, GgufError> {
        let io = |error| GgufError::new(Cause::Io(error));
        // Looked at before opening: opening a pipe waits for a writer, and reading a device may never end.
        check_regular(&std::fs::metadata(path).map_err(io)?, path)?;
        let mut file = File::open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        check_regular(&metadata, path)?;
        let length =
            usize::try_from(metadata.len()).map_err(|_| io(io::ErrorKind::FileTooLarge.into()))?;
        if length == 0 {
            return Ok(Self::Owned(Arc::default())); // A mapping cannot be empty.
        }
        let map = if mmap {
            map_file(&file)
        } else {
            read_file(&mut file, length)
        };
        map.map(|map| Self::Mapped(Arc::new(map))).map_err(io)
    }

    pub(crate) fn from_vec(bytes: Vec<u8>) -> Self {
        Self::Owned(Arc::new(bytes))
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }

    pub(crate) fn owner(&self) -> Arc<dyn AsRef<[u8]> + Send + Sync> {
        match self {
            Self::Mapped(map) => Arc::clone(map) as _,
            Self::Owned(bytes) => Arc::clone(bytes) as _,
        }
    }

    /// Asks the system to read the pages in and to use large ones. Only advice: failure changes nothing but speed.
    pub(crate) fn advise_will_need(&self) {
        #[cfg(target_os = "linux")]
        if let Self::Mapped(map) = self {
            use memmap2::Advice;
            // Refused for mapped files on most file systems and kernels; taken for anonymous memory.
            let _ = map.advise(Advice::HugePage);
            let _ = map.advise(Advice::WillNeed);
        }
    }
}

fn check_regular(metadata: &std::fs::Metadata, path: &Path) -> Result<(), GgufError> {
    if metadata.is_file() {
        return Ok(());
    }
    if metadata.is_dir() {
        // Read all the same, for the system's own error with its number.
        let read = File::open(path).and_then(|mut folder| folder.read(&mut [0]));
        let error = read
            .err()
            .unwrap_or_else(|| io::ErrorKind::IsADirectory.into());
        return Err(Cause::Io(error).into());
    }
    Err(Cause::NotRegularFile {
        found: special_file(metadata),
    }
    .into())
}

#[cfg(unix)]
fn special_file(metadata: &std::fs::Metadata) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    let ty = metadata.file_type();
    if ty.is_fifo() {
        "pipe"
    } else if ty.is_socket() {
        "socket"
    } else {
        "device"
    }
}

#[cfg(not(unix))]
fn special_file(_: &std::fs::Metadata) -> &'static str {
    "device"
}

#[expect(
    unsafe_code,
    reason = "mapping a file is unsafe by nature; the module's documentation tells the risk"
)]
fn map_file(file: &File) -> io::Result<Mmap> {
    // SAFETY: the mapping is read-only, so this process never writes through it. Another process may change or
    // truncate the file: changed bytes are only ever read as plain integers that were validated for range at load, as
    // weights, of which any bit pattern is valid, or as strings of bytes, the places of which were noted at load, and
    // truncation ends the process by SIGBUS. Both are documented in the module's head, with `mmap: false` as the alternative.
    unsafe { memmap2::MmapOptions::new().map(file) }
}

/// Reads into anonymous memory, not a vector: it is page-aligned, may use huge pages, and is not zeroed twice.
fn read_file(file: &mut File, length: usize) -> io::Result<Mmap> {
    let mut memory = MmapMut::map_anon(length)?;
    #[cfg(target_os = "linux")]
    {
        let _ = memory.advise(memmap2::Advice::HugePage);
    }
    file.read_exact(&mut memory)?;
    memory.make_read_only()
}
