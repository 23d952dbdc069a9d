//! The sampler on given logits, for tests against other implementations.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyDict};
use rsllm_engine::TokenId;
use rsllm_engine::sampling::{Sampler, SamplingOptions};

use crate::errors::{engine_error, option_error};
use crate::options::generate_options;
use crate::quantize::{float_bytes, floats};

/// `n` draws from the same float32 logits; no draw changes the penalties of the next.
#[pyfunction]
pub(crate) fn sample(
    py: Python<'_>,
    logits: PyBuffer<u8>,
    options: &Bound<'_, PyDict>,
    n: usize,
    seed: u64,
) -> PyResult<Vec<TokenId>> {
    let logits = floats(py, &logits.to_vec(py)?)?;
    let options = SamplingOptions {
        seed: Some(seed),
        ..generate_options(py, options, None)?.sampling
    };
    let mut sampler = new_sampler(py, &options, logits.len())?;
    py.detach(|| {
        (0..n)
            .map(|_| sampler.sample(&logits))
            .collect::<Result<_, _>>()
    })
    .map_err(|error| engine_error(py, &error.into()))
}

/// The distribution that a draw after `history` has, as float32 probabilities.
#[pyfunction]
pub(crate) fn sampler_probabilities<'py>(
    py: Python<'py>,
    logits: PyBuffer<u8>,
    options: &Bound<'py, PyDict>,
    history: Vec<TokenId>,
) -> PyResult<Bound<'py, PyByteArray>> {
    let logits = floats(py, &logits.to_vec(py)?)?;
    let options = generate_options(py, options, None)?.sampling;
    let mut sampler = new_sampler(py, &options, logits.len())?;
    let probabilities = py.detach(|| {
        for id in history {
            sampler.accept(id);
        }
        sampler.probabilities(&logits)
    });
    float_bytes(
        py,
        &probabilities.map_err(|error| engine_error(py, &error.into()))?,
    )
}

fn new_sampler(py: Python<'_>, options: &SamplingOptions, vocab_size: usize) -> PyResult<Sampler> {
    /// Longer than any history of a test.
    const CONTEXT: usize = 1 << 16;
    Sampler::new(options, vocab_size, CONTEXT).map_err(|error| option_error(py, &error))
}
