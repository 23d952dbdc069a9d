//! `GgufFile`: a model file as it lies on disk, without a model in memory.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use rsllm_gguf::{Gguf, OpenOptions};

use crate::errors::gguf_error;
use crate::metadata::metadata_dict;
use crate::tensor_data::TensorData;

/// A GGUF file, or all shards of one, mapped and validated.
#[pyclass(frozen, module = "rsllm._core")]
pub(crate) struct GgufFile {
    file: Arc<Gguf>,
}

#[pymethods]
impl GgufFile {
    #[new]
    #[pyo3(signature = (path, *, mmap = true))]
    fn new(py: Python<'_>, path: PathBuf, mmap: bool) -> PyResult<Self> {
        let options = OpenOptions::default().with_mmap(mmap);
        let file = py
            .detach(|| Gguf::open_with(&path, options))
            .map_err(|error| gguf_error(py, &error))?;
        Ok(Self {
            file: Arc::new(file),
        })
    }

    #[getter]
    fn version(&self) -> u32 {
        self.file.version()
    }

    #[getter]
    fn alignment(&self) -> u32 {
        self.file.alignment()
    }

    #[getter]
    fn files(&self) -> Vec<String> {
        self.file
            .files()
            .iter()
            .map(|path| path.to_string_lossy().into_owned())
            .collect()
    }

    #[getter]
    fn file_bytes(&self) -> u64 {
        self.file.file_bytes()
    }

    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        metadata_dict(py, self.file.metadata())
    }

    /// One dict a tensor.
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for tensor in self.file.tensors() {
            let dict = PyDict::new(py);
            dict.set_item("name", &tensor.name)?;
            dict.set_item("type", tensor.ty.name())?;
            // The file has the row length first, numpy has it last.
            dict.set_item("shape", tensor.dims.iter().rev().collect::<Vec<_>>())?;
            dict.set_item("n_bytes", tensor.n_bytes())?;
            dict.set_item("n_elements", tensor.n_elements())?;
            list.append(dict)?;
        }
        Ok(list)
    }

    /// The packed bytes of a tensor, not copied.
    fn tensor_data(&self, name: &str) -> PyResult<TensorData> {
        let tensor = self
            .file
            .tensor(name)
            .ok_or_else(|| PyKeyError::new_err(name.to_owned()))?;
        Ok(TensorData::new(
            self.file.owner(tensor),
            self.file.tensor_range(tensor),
        ))
    }
}
