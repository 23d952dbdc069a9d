//! The engine thread as its owner holds it: a channel to it, a way to interrupt it, and its end. Dropping the handle never hangs.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::control::Control;
use crate::error::EngineError;
use crate::worker::Command;

/// A running engine thread.
#[derive(Debug)]
pub(crate) struct EngineThread {
    control: Arc<Control>,
    /// `None` once closed.
    open: Mutex<Option<Open>>,
}

#[derive(Debug)]
struct Open {
    commands: Sender<Command>,
    thread: JoinHandle<()>,
    /// Disconnected when the thread ends.
    ended: Receiver<()>,
}

/// How long a dropped engine waits for its thread. An abort takes one layer of the model; a thread that needs longer is left to
/// itself and frees the model when it ends.
const DROP_PATIENCE: Duration = Duration::from_secs(10);

impl EngineThread {
    /// Starts a thread that runs `serve` on the commands to come.
    pub(crate) fn spawn(
        control: Arc<Control>,
        serve: impl FnOnce(Receiver<Command>) + Send + 'static,
    ) -> Result<Self, EngineError> {
        let (commands, received) = mpsc::channel();
        let (alive, ended) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new()
            .name("rsllm-engine".to_owned())
            .spawn(move || {
                serve(received);
                drop(alive);
            })
            .map_err(EngineError::Thread)?;
        Ok(Self {
            control,
            open: Mutex::new(Some(Open {
                commands,
                thread,
                ended,
            })),
        })
    }

    /// For cancelling requests.
    pub(crate) fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Queues a request.
    pub(crate) fn send(&self, command: Command) -> Result<(), EngineError> {
        let open = self.open();
        let open = open.as_ref().ok_or(EngineError::Closed)?;
        open.commands.send(command).map_err(|_| EngineError::Closed)
    }

    /// True until the engine is closed.
    pub(crate) fn is_open(&self) -> bool {
        self.open().is_some()
    }

    /// Interrupts what runs and waits until the thread has freed the model. Closing twice does nothing.
    pub(crate) fn close(&self) {
        self.control.close();
        let open = self.open().take();
        if let Some(Open {
            commands, thread, ..
        }) = open
        {
            drop(commands);
            // The thread catches the panics of requests; one outside of them has printed its message already.
            let _ = thread.join();
        }
    }

    fn open(&self) -> MutexGuard<'_, Option<Open>> {
        // Nothing panics while it is held.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        self.control.close();
        let open = self.open().take();
        if let Some(Open {
            commands,
            thread,
            ended,
        }) = open
        {
            drop(commands);
            if ended.recv_timeout(DROP_PATIENCE) == Err(RecvTimeoutError::Disconnected) {
                let _ = thread.join();
            }
        }
    }
}
