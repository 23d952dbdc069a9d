//! A file that appears whole or not at all: written beside its target, synced, then renamed over it.
//!
//! A reader that has the old file mapped keeps its bytes, since the rename replaces the name and not the contents.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A file under a temporary name; dropped without [`commit`](Self::commit) it is removed.
pub(crate) struct AtomicFile {
    file: File,
    temporary: PathBuf,
    target: PathBuf,
    committed: bool,
}

impl AtomicFile {
    /// Creates the temporary file in the folder of `target`.
    pub(crate) fn create(target: &Path) -> io::Result<Self> {
        let name = target.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        loop {
            let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
            let mut hidden = std::ffi::OsString::from(".");
            hidden.push(name);
            hidden.push(format!(".{}-{number}.tmp", std::process::id()));
            let temporary = target.with_file_name(hidden);
            match OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&temporary)
            {
                Ok(file) => {
                    return Ok(Self {
                        file,
                        temporary,
                        target: target.into(),
                        committed: false,
                    });
                }
                // Left by a process of the same number that was killed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes the file durable and gives it its name.
    pub(crate) fn commit(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.temporary, &self.target)?;
        self.committed = true;
        sync_folder(&self.target)
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.committed {
            // Nothing to do about a failure: the write's own error is the one to report.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// A rename lasts through a power cut only once the folder is synced too.
#[cfg(unix)]
fn sync_folder(file: &Path) -> io::Result<()> {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    File::open(folder)?.sync_all()
}

#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "the unix twin can fail")]
fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Tells apart the files one process writes at the same time.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);
