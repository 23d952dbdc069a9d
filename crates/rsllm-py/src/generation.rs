//! `Generation`: one running sequence.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use rsllm_engine::sampling::{PositionLogprobs, TokenLogprob};
use rsllm_engine::{CancelHandle, EngineError, Next, Piece};

use crate::errors::engine_error;
use crate::tokenizer::shown_bytes;
use crate::waiting::SLICE;

/// One running sequence. Dropping it cancels.
#[pyclass(frozen, module = "rsllm._core")]
pub(crate) struct Generation {
    /// A thread that waits for a piece holds it for a slice at a time.
    running: Mutex<rsllm_engine::Generation>,
    /// Cancels without waiting for that thread.
    cancel: CancelHandle,
    tokenizer: rsllm_tokenizer::Tokenizer,
    with_logprobs: bool,
    /// Keeps the engine alive: a stream may outlive the last name of its model. Last, so that the generation goes first.
    _engine: Arc<rsllm_engine::Engine>,
}

/// How long the figures of a cancelled generation are waited for. Beyond that, those known by then are returned.
const CONFIRMATION: Duration = Duration::from_millis(500);

impl Generation {
    pub(crate) fn new(
        generation: rsllm_engine::Generation,
        tokenizer: rsllm_tokenizer::Tokenizer,
        with_logprobs: bool,
        engine: Arc<rsllm_engine::Engine>,
    ) -> Self {
        let cancel = generation.cancel_handle();
        Self {
            running: Mutex::new(generation),
            cancel,
            tokenizer,
            with_logprobs,
            _engine: engine,
        }
    }

    /// Waits at most one slice.
    fn next_slice(&self, py: Python<'_>, slice: Duration) -> PyResult<Next> {
        let next: Result<Next, EngineError> = py.detach(|| self.lock().next_timeout(slice));
        next.map_err(|error| engine_error(py, &error))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, rsllm_engine::Generation> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// (text, ids, logprobs).
    fn piece<'py>(&self, py: Python<'py>, piece: Piece) -> PyResult<Bound<'py, PyAny>> {
        let logprobs = if self.with_logprobs {
            let entries: PyResult<Vec<_>> = piece
                .logprobs
                .iter()
                .map(|position| self.position_dict(py, position))
                .collect();
            Some(PyList::new(py, entries?)?)
        } else {
            None
        };
        (piece.text, piece.ids, logprobs).into_bound_py_any(py)
    }

    fn position_dict<'py>(
        &self,
        py: Python<'py>,
        position: &PositionLogprobs,
    ) -> PyResult<Bound<'py, PyDict>> {
        let dict = self.token_dict(py, position.chosen)?;
        let top: PyResult<Vec<_>> = position
            .top
            .iter()
            .map(|&token| self.token_dict(py, token))
            .collect();
        dict.set_item("top", top?)?;
        Ok(dict)
    }

    fn token_dict<'py>(
        &self,
        py: Python<'py>,
        token: TokenLogprob,
    ) -> PyResult<Bound<'py, PyDict>> {
        let bytes = shown_bytes(&self.tokenizer, token.id);
        let dict = PyDict::new(py);
        dict.set_item("id", token.id)?;
        dict.set_item("text", String::from_utf8_lossy(&bytes))?;
        dict.set_item("bytes", PyBytes::new(py, &bytes))?;
        dict.set_item("logprob", token.logprob)?;
        Ok(dict)
    }
}

#[pymethods]
impl Generation {
    /// The next piece, or None at the end.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        loop {
            match self.next_slice(py, SLICE)? {
                Next::Piece(piece) => return self.piece(py, piece).map(Some),
                Next::End => return Ok(None),
                Next::Pending => py.check_signals()?,
            }
        }
    }

    /// As next, but False when nothing came in time.
    fn next_timeout<'py>(
        &self,
        py: Python<'py>,
        milliseconds: u64,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut left = Duration::from_millis(milliseconds);
        loop {
            let slice = left.min(SLICE);
            match self.next_slice(py, slice)? {
                Next::Piece(piece) => return self.piece(py, piece).map(Some),
                Next::End => return Ok(None),
                Next::Pending => {
                    py.check_signals()?;
                    left -= slice;
                    if left.is_zero() {
                        return false.into_bound_py_any(py).map(Some);
                    }
                }
            }
        }
    }

    /// Stops the sequence within a layer.
    fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Counts and durations.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| self.lock().stats(CONFIRMATION));
        let dict = PyDict::new(py);
        dict.set_item("finish_reason", stats.finish_reason.name())?;
        dict.set_item("stop_text", stats.stop_text)?;
        dict.set_item("seed", stats.seed)?;
        dict.set_item("prompt_tokens", stats.prompt_tokens)?;
        dict.set_item("cached_tokens", stats.cached_tokens)?;
        dict.set_item("shifts", stats.shifts)?;
        dict.set_item("dropped_tokens", stats.dropped_tokens)?;
        dict.set_item("warnings", stats.warnings)?;
        dict.set_item("generated_tokens", stats.generated_tokens)?;
        dict.set_item("drafted_tokens", stats.drafted_tokens)?;
        dict.set_item("accepted_tokens", stats.accepted_tokens)?;
        dict.set_item("queue_ns", stats.queue_ns)?;
        dict.set_item("prefill_ns", stats.prefill_ns)?;
        dict.set_item("decode_ns", stats.decode_ns)?;
        dict.set_item("first_token_ns", stats.first_token_ns)?;
        dict.set_item("total_ns", stats.total_ns)?;
        Ok(dict)
    }
}
