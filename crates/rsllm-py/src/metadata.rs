//! Metadata as Python values: numbers, strings, lists. Strings that are not UTF-8, which token texts may be, become `bytes`.

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use rsllm_gguf::{Array, Metadata, Value};

/// All keys and values, in file order.
pub(crate) fn metadata_dict<'py>(
    py: Python<'py>,
    metadata: &Metadata,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (key, value) in metadata.iter() {
        dict.set_item(key, value_object(py, value)?)?;
    }
    Ok(dict)
}

fn value_object<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Value::U8(v) => v.into_bound_py_any(py),
        Value::I8(v) => v.into_bound_py_any(py),
        Value::U16(v) => v.into_bound_py_any(py),
        Value::I16(v) => v.into_bound_py_any(py),
        Value::U32(v) => v.into_bound_py_any(py),
        Value::I32(v) => v.into_bound_py_any(py),
        Value::U64(v) => v.into_bound_py_any(py),
        Value::I64(v) => v.into_bound_py_any(py),
        Value::F32(v) => v.into_bound_py_any(py),
        Value::F64(v) => v.into_bound_py_any(py),
        Value::Bool(v) => v.into_bound_py_any(py),
        Value::String(v) => text_object(py, v.as_bytes()),
        Value::Array(v) => array_object(py, v),
    }
}

fn array_object<'py>(py: Python<'py>, array: &Array) -> PyResult<Bound<'py, PyAny>> {
    let list = match array {
        // A list, like the others, and not `bytes`.
        Array::U8(v) => PyList::new(py, v.iter().map(|&v| u32::from(v)))?,
        Array::I8(v) => PyList::new(py, v)?,
        Array::U16(v) => PyList::new(py, v)?,
        Array::I16(v) => PyList::new(py, v)?,
        Array::U32(v) => PyList::new(py, v)?,
        Array::I32(v) => PyList::new(py, v)?,
        Array::U64(v) => PyList::new(py, v)?,
        Array::I64(v) => PyList::new(py, v)?,
        Array::F32(v) => PyList::new(py, v)?,
        Array::F64(v) => PyList::new(py, v)?,
        Array::Bool(v) => PyList::new(py, v)?,
        Array::String(v) => {
            let texts: PyResult<Vec<_>> = v.iter().map(|text| text_object(py, text)).collect();
            PyList::new(py, texts?)?
        }
    };
    Ok(list.into_any())
}

fn text_object<'py>(py: Python<'py>, text: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    match std::str::from_utf8(text) {
        Ok(text) => text.into_bound_py_any(py),
        Err(_) => Ok(PyBytes::new(py, text).into_any()),
    }
}
