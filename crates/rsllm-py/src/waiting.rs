//! Waiting for the engine without holding the interpreter: in slices, so that Ctrl-C is heard between them.

use std::time::Duration;

use pyo3::prelude::*;
use rsllm_engine::{EngineError, Reply};

use crate::errors::engine_error;

/// How long Ctrl-C may go unheard.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// The answer, or the exception of a signal handler; the engine then abandons the work.
pub(crate) fn wait_for<T: Send>(
    py: Python<'_>,
    reply: Result<Reply<T>, EngineError>,
) -> PyResult<T> {
    let reply = reply.map_err(|error| engine_error(py, &error))?;
    // A receiver is for one thread at a time; this one moves in and out of the detached part.
    let mut reply = reply;
    loop {
        let (returned, answer) = py.detach(move || {
            let answer = reply.wait_timeout(SLICE);
            (reply, answer)
        });
        reply = returned;
        match answer {
            Some(answer) => return answer.map_err(|error| engine_error(py, &error)),
            None => py.check_signals()?,
        }
    }
}
