//! Chosen prefixes in a folder, so that they outlive the process: a file each, written beside its place and renamed.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::TokenId;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::saved::checksum;

/// What became of one file of a folder.
#[derive(Debug)]
pub struct RestoredFile {
    /// The file.
    pub path: PathBuf,
    /// Tokens that are in the prefix cache now, or why there are none.
    pub result: Result<usize, EngineError>,
}

/// The end of the names of such files.
const EXTENSION: &str = "rsllm-kv";

impl Engine {
    /// Saves a prefix to a file of `folder`, which is made if there is none; see [`Engine::save_prefix`]. The name depends on
    /// the model and the tokens, so that the same prefix is written once. Blocks until it is on disk.
    ///
    /// # Errors
    /// Those of [`Engine::save_prefix`]; [`EngineError::PrefixFolder`].
    pub fn persist_prefix(&self, ids: &[TokenId], folder: &Path) -> Result<PathBuf, EngineError> {
        let target = self.saved_for()?;
        let bytes = self.save_prefix(ids)?.wait()?;
        // What is saved names itself: model, KV type and tokens are part of it.
        let name = format!(
            "{:016x}-{:016x}.{EXTENSION}",
            target.model,
            checksum(&bytes)
        );
        let path = folder.join(name);
        write_durably(folder, &path, &bytes).map_err(|source| EngineError::PrefixFolder {
            path: path.clone(),
            source,
        })?;
        Ok(path)
    }

    /// Takes all prefixes of this model that `folder` has into the prefix cache. Files of other models are left alone; one
    /// that is damaged is told and hinders no other. A folder that does not exist has none.
    pub fn restore_folder(&self, folder: &Path) -> Result<Vec<RestoredFile>, EngineError> {
        let start = format!("{:016x}-", self.saved_for()?.model);
        let failed = |path: &Path, source| EngineError::PrefixFolder {
            path: path.to_owned(),
            source,
        };
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| failed(folder, error))?,
        };
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| failed(folder, error))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(&start) && path.extension().is_some_and(|end| end == EXTENSION) {
                paths.push(path);
            }
        }
        paths.sort();
        let restore = |path: PathBuf| RestoredFile {
            result: fs::read(&path)
                .map_err(|error| failed(&path, error))
                .and_then(|bytes| self.restore_prefix(bytes)?.wait()),
            path,
        };
        Ok(paths.into_iter().map(restore).collect())
    }
}

fn write_durably(folder: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    if path.exists() {
        return Ok(());
    }
    let beside = path.with_extension(format!("{}.part", std::process::id()));
    let written = fs::File::create(&beside)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // The first error counts.
        let _ = fs::remove_file(&beside);
    }
    written
}
