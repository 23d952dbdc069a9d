//! The machine's processor, for `rsllm doctor` and `rsllm bench`.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rsllm_engine::{Isa, cpu_report};

use crate::errors::engine_error;

/// What the processor has and what is made of it.
#[pyfunction]
pub(crate) fn cpu_info(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let report = py.detach(cpu_report);
    let features = PyDict::new(py);
    for (name, on) in &report.features {
        features.set_item(name, on)?;
    }
    let kernels = PyDict::new(py);
    for kernel in &report.kernels {
        let dict = PyDict::new(py);
        dict.set_item("decode", &kernel.decode)?;
        dict.set_item("prefill", &kernel.prefill)?;
        kernels.set_item(kernel.ty.name(), dict)?;
    }
    let dict = PyDict::new(py);
    dict.set_item("features", features)?;
    dict.set_item("isa", report.isa.name())?;
    dict.set_item(
        "available_isas",
        report
            .available_isas
            .into_iter()
            .map(Isa::name)
            .collect::<Vec<_>>(),
    )?;
    dict.set_item("kernels", kernels)?;
    dict.set_item("threads", report.threads)?;
    dict.set_item("reason", report.reason)?;
    Ok(dict)
}

/// Best bytes a second that `threads` threads read from the mapped file.
#[pyfunction]
pub(crate) fn measure_read_bandwidth(
    py: Python<'_>,
    path: PathBuf,
    threads: usize,
) -> PyResult<f64> {
    py.detach(|| rsllm_engine::measure_read_bandwidth(&path, threads))
        .map_err(|error| engine_error(py, &error))
}
