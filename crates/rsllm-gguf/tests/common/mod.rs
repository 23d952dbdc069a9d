//! What the tests of this crate share: files built byte by byte, and a folder that removes itself.
#![expect(dead_code, reason = "each test binary uses a part")]

use std::path::{Path, PathBuf};

use rsllm_gguf::{Gguf, GgufError, GgufWriter};
use rsllm_quant::GgmlType;

pub(crate) mod exercise;

/// A GGUF file in the making, with whatever nonsense the test wants in it.
#[derive(Default)]
pub(crate) struct RawFile {
    entries: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
}

impl RawFile {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn key(self, key: &str, value_type: u32, value: &[u8]) -> Self {
        self.raw_key(key.as_bytes(), value_type, value)
    }

    pub(crate) fn raw_key(mut self, key: &[u8], value_type: u32, value: &[u8]) -> Self {
        self.entries.push(
            [
                &(key.len() as u64).to_le_bytes(),
                key,
                &value_type.to_le_bytes(),
                value,
            ]
            .concat(),
        );
        self
    }

    pub(crate) fn tensor(mut self, name: &str, dims: &[u64], ty: u32, offset: u64) -> Self {
        let dims_bytes: Vec<u8> = dims.iter().flat_map(|dim| dim.to_le_bytes()).collect();
        self.tensors.push(
            [
                &(name.len() as u64).to_le_bytes(),
                name.as_bytes(),
                &(dims.len() as u32).to_le_bytes(),
                &dims_bytes,
                &ty.to_le_bytes(),
                &offset.to_le_bytes(),
            ]
            .concat(),
        );
        self
    }

    /// Version 3, with `n_data` zero bytes after padding to 32 if there are tensors.
    pub(crate) fn build(self, n_data: usize) -> Vec<u8> {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.entries.len() as u64).to_le_bytes());
        file.extend(self.entries.concat());
        file.extend(self.tensors.concat());
        if !self.tensors.is_empty() {
            file.resize(file.len().next_multiple_of(32) + n_data, 0);
        }
        file
    }
}

/// Bytes from hexadecimal digits; blanks are for the reader.
pub(crate) fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u32> = digits.chars().filter_map(|c| c.to_digit(16)).collect();
    digits
        .chunks_exact(2)
        .map(|pair| (pair[0] * 16 + pair[1]) as u8)
        .collect()
}

/// A folder for one test, removed at its end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("rsllm-gguf-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    pub(crate) fn as_path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The error that opening `bytes` under the name `case.gguf` gives.
pub(crate) fn refused(bytes: &[u8]) -> GgufError {
    match Gguf::from_bytes(bytes.to_vec(), "case.gguf") {
        Ok(model) => panic!("accepted as {model:?}"),
        Err(error) => {
            assert_eq!(
                error.file(),
                Some(std::path::Path::new("case.gguf")),
                "{error}"
            );
            error
        }
    }
}

/// A model of `n_tensors` tensors of ten f32, all bytes of tensor `i` being `i`.
pub(crate) fn small_model(n_tensors: usize) -> Vec<u8> {
    let mut file = Vec::new();
    let mut number = 0;
    writer(n_tensors)
        .write_to(&mut file, |_, out| {
            number += 1;
            out.write_all(&[number - 1; 40])
        })
        .unwrap();
    file
}

/// A writer of what `small_model` has.
pub(crate) fn writer(n_tensors: usize) -> GgufWriter {
    let metadata = [("general.architecture", "llama"), ("general.name", "tiny")]
        .into_iter()
        .collect();
    let mut writer = GgufWriter::new(metadata).unwrap();
    for index in 0..n_tensors {
        writer
            .add_tensor(&format!("blk.{index}.w"), GgmlType::F32, &[10])
            .unwrap();
    }
    writer
}
