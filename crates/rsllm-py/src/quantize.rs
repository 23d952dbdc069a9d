//! Blocks to floats and back, for tools and for tests against other implementations.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyDict, PyList};
use rsllm_quant::GgmlType;

use crate::errors::{quant_error, unknown_type_error};

/// Whole blocks of `type_name` as little-endian float32 bytes.
#[pyfunction]
pub(crate) fn dequantize<'py>(
    py: Python<'py>,
    data: PyBuffer<u8>,
    type_name: &str,
) -> PyResult<Bound<'py, PyByteArray>> {
    let ty = type_of(py, type_name)?;
    let packed = data.to_vec(py)?;
    let values = py.detach(|| {
        let n_elements = packed.len() / ty.block_bytes() * ty.block_len();
        let mut values = vec![0.0; n_elements];
        rsllm_quant::dequantize(ty, &packed, &mut values).map(|()| values)
    });
    float_bytes(py, &values.map_err(|error| quant_error(py, &error))?)
}

/// Little-endian float32 bytes as whole blocks of `type_name`.
#[pyfunction]
pub(crate) fn quantize<'py>(
    py: Python<'py>,
    data: PyBuffer<u8>,
    type_name: &str,
) -> PyResult<Bound<'py, PyByteArray>> {
    let ty = type_of(py, type_name)?;
    let bytes = data.to_vec(py)?;
    let values = floats(py, &bytes)?;
    let packed = py.detach(|| {
        let n_bytes = values.len() / ty.block_len() * ty.block_bytes();
        let mut packed = vec![0; n_bytes];
        rsllm_quant::quantize(ty, &values, &mut packed).map(|()| packed)
    });
    Ok(PyByteArray::new(
        py,
        &packed.map_err(|error| quant_error(py, &error))?,
    ))
}

/// Every tensor type.
#[pyfunction]
pub(crate) fn ggml_types(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    for ty in GgmlType::ALL {
        let dict = PyDict::new(py);
        dict.set_item("name", ty.name())?;
        dict.set_item("id", ty.id())?;
        dict.set_item("block_len", ty.block_len())?;
        dict.set_item("block_bytes", ty.block_bytes())?;
        dict.set_item("can_dequantize", ty.can_dequantize())?;
        list.append(dict)?;
    }
    Ok(list)
}

/// `values` as little-endian bytes.
pub(crate) fn float_bytes<'py>(
    py: Python<'py>,
    values: &[f32],
) -> PyResult<Bound<'py, PyByteArray>> {
    PyByteArray::new_with(py, values.len() * 4, |bytes| {
        for (bytes, value) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(values) {
            *bytes = value.to_le_bytes();
        }
        Ok(())
    })
}

/// Little-endian bytes as values.
pub(crate) fn floats(py: Python<'_>, bytes: &[u8]) -> PyResult<Vec<f32>> {
    let (chunks, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        let error = rsllm_quant::QuantError::PartialBlock {
            ty: GgmlType::F32,
            n_bytes: bytes.len(),
        };
        return Err(quant_error(py, &error));
    }
    Ok(chunks
        .iter()
        .map(|&chunk| f32::from_le_bytes(chunk))
        .collect())
}

fn type_of(py: Python<'_>, name: &str) -> PyResult<GgmlType> {
    GgmlType::from_name(name).ok_or_else(|| unknown_type_error(py, name))
}
