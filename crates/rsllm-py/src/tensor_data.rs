//! `TensorData`: the packed bytes of one tensor for Python's buffer protocol, without a copy.
//!
//! The only module of this crate with unsafe code: the protocol hands out a raw pointer, and PyO3 has no safe form of it.

#![expect(unsafe_code, reason = "the buffer protocol hands out a raw pointer")]

use std::ffi::c_int;
use std::ops::Range;
use std::sync::Arc;

use pyo3::exceptions::PyOverflowError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Packed bytes of one tensor; supports the buffer protocol, read only.
#[pyclass(frozen, module = "rsllm._core")]
pub(crate) struct TensorData {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl TensorData {
    /// The bytes of `owner` in `range`, which the file was checked to have.
    pub(crate) fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, range: Range<usize>) -> Self {
        Self { owner, range }
    }

    fn bytes(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

#[pymethods]
impl TensorData {
    /// # Safety
    /// Called by the interpreter alone, with a view that is null or valid for writing.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes = slf.get().bytes();
        let len = isize::try_from(bytes.len())
            .map_err(|_| PyOverflowError::new_err("the tensor is larger than the address space"))?;
        // SAFETY: `view` is the interpreter's own, and `PyBuffer_FillInfo` checks it for null. The pointer is valid for `len`
        // bytes as long as `slf` lives, because a frozen object never changes its owner or range and mapped bytes do not move;
        // the view keeps a reference to `slf`. The view is marked read-only (the fifth argument), so nobody writes through the
        // pointer made mutable here.
        let status = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                bytes.as_ptr().cast_mut().cast(),
                len,
                1,
                flags,
            )
        };
        if status == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(slf.py()))
        }
    }

    fn __len__(&self) -> usize {
        self.bytes().len()
    }
}
