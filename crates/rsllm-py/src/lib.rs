//! The Python module rsllm._core: thin classes over the engine. This file lists what it holds; `_core.pyi` describes it.
#![deny(unsafe_code)]
#![expect(
    clippy::needless_pass_by_value,
    reason = "arguments from Python come owned"
)]

mod cpu;
mod engine;
mod errors;
mod generation;
mod gguf;
mod metadata;
mod options;
mod quantize;
mod sampling;
mod tensor_data;
mod tokenizer;
mod waiting;
mod watch;

#[pyo3::pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use crate::cpu::{cpu_info, measure_read_bandwidth};
    #[pymodule_export]
    use crate::engine::{Engine, plan};
    #[pymodule_export]
    use crate::generation::Generation;
    #[pymodule_export]
    use crate::gguf::GgufFile;
    #[pymodule_export]
    use crate::quantize::{dequantize, ggml_types, quantize};
    #[pymodule_export]
    use crate::sampling::{sample, sampler_probabilities};
    #[pymodule_export]
    use crate::tensor_data::TensorData;
    #[pymodule_export]
    use crate::tokenizer::Tokenizer;
    #[pymodule_export]
    use crate::watch::exit_when_closed;

    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "the name is Python's")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
