//! The answer to a request that has one answer: logits, a measurement. Waiting can be cut into slices, and dropping the handle
//! abandons the work.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::control::CancelHandle;
use crate::error::EngineError;

/// An answer that may still be on its way.
#[derive(Debug)]
pub struct Reply<T> {
    answer: Receiver<Result<T, EngineError>>,
    cancel: CancelHandle,
}

impl<T> Reply<T> {
    pub(crate) fn new(answer: Receiver<Result<T, EngineError>>, cancel: CancelHandle) -> Self {
        Self { answer, cancel }
    }

    /// Waits for the answer.
    pub fn wait(self) -> Result<T, EngineError> {
        self.answer.recv().unwrap_or(Err(EngineError::Closed))
    }

    /// Waits at most `timeout`; `None` when the answer is not there yet. To be asked again only after `None`.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<Result<T, EngineError>> {
        match self.answer.recv_timeout(timeout) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(EngineError::Closed)),
        }
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}
