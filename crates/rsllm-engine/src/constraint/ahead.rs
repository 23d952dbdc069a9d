//! Masks computed ahead: while the model computes the next logits, a thread beside the engine's works out which tokens may come.
//! It has nothing else to do than masks, so a hard one delays the sequence it belongs to, and the others only when that one
//! takes longer than a step.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

use super::{Constraint, ConstraintError};
use crate::error::EngineError;
use crate::generation::nanoseconds;

/// The constraint of a sequence, here or on its way through the thread.
pub(crate) struct AheadConstraint {
    here: Option<Box<Constraint>>,
    option: &'static str,
    back: Receiver<Masked>,
    send_back: Sender<Masked>,
    times: MaskTimes,
}

/// What masks took, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MaskTimes {
    /// Of the thread.
    pub(crate) computed_ns: u64,
    /// Of the engine, which waited for it.
    pub(crate) waited_ns: u64,
}

/// A constraint whose mask is there, and the nanoseconds it took.
struct Masked {
    constraint: Box<Constraint>,
    computed_ns: u64,
}

/// The thread; started when first needed, ended with its owner.
#[derive(Default)]
pub(crate) struct MaskThread {
    work: Option<Sender<Work>>,
}

/// A constraint whose mask is wanted, and where it goes then.
struct Work {
    constraint: Box<Constraint>,
    done: Sender<Masked>,
}

impl AheadConstraint {
    /// A constraint that is here.
    pub(crate) fn new(constraint: Constraint) -> Self {
        let (send_back, back) = mpsc::channel();
        Self {
            option: constraint.option_name(),
            here: Some(Box::new(constraint)),
            back,
            send_back,
            times: MaskTimes::default(),
        }
    }

    /// The times since the last call.
    pub(crate) fn take_times(&mut self) -> MaskTimes {
        std::mem::take(&mut self.times)
    }

    /// Works with the constraint, once it is here.
    pub(crate) fn with<'c, T>(
        &'c mut self,
        work: impl FnOnce(&'c mut Constraint) -> Result<T, ConstraintError>,
    ) -> Result<T, EngineError> {
        let option = self.option;
        let here = match self.here.take() {
            Some(here) => here,
            None => self.wait()?,
        };
        work(self.here.insert(here)).map_err(|source| EngineError::Constraint { option, source })
    }

    fn wait(&mut self) -> Result<Box<Constraint>, EngineError> {
        // Ours is not the only sender while the thread has it, but the last one if it was lost.
        let lost = mpsc::channel().0;
        drop(std::mem::replace(&mut self.send_back, lost));
        let start = Instant::now();
        let here = self.back.recv();
        self.times.waited_ns += nanoseconds(start.elapsed());
        let (send_back, back) = mpsc::channel();
        (self.send_back, self.back) = (send_back, back);
        let here = here.map_err(|_| EngineError::Panicked {
            message: format!("the mask of the {} was lost", self.option),
        })?;
        self.times.computed_ns += here.computed_ns;
        Ok(here.constraint)
    }

    /// Sends it to the thread unless it is there. Where there can be none it stays, and the mask is computed when needed.
    pub(crate) fn look_ahead(&mut self, masks: &mut MaskThread) {
        if let Some(constraint) = self.here.take() {
            let done = self.send_back.clone();
            self.here = masks.send(Work { constraint, done });
        }
    }
}

impl MaskThread {
    /// Gives the constraint back if there is no thread.
    fn send(&mut self, work: Work) -> Option<Box<Constraint>> {
        if self.work.is_none() {
            let (sender, received) = mpsc::channel();
            let started = std::thread::Builder::new()
                .name("rsllm-masks".to_owned())
                .spawn(move || serve(&received));
            if started.is_ok() {
                self.work = Some(sender);
            }
        }
        match &self.work {
            None => Some(work.constraint),
            Some(thread) => thread.send(work).err().map(|unsent| unsent.0.constraint),
        }
    }
}

fn serve(received: &Receiver<Work>) {
    for Work {
        mut constraint,
        done,
    } in received
    {
        let start = Instant::now();
        let computed = catch_unwind(AssertUnwindSafe(|| {
            // An error comes again when the sequence asks.
            let _ = constraint.allowed();
            constraint
        }));
        if let Ok(constraint) = computed {
            // Its sequence may be over.
            let computed_ns = nanoseconds(start.elapsed());
            let _ = done.send(Masked {
                constraint,
                computed_ns,
            });
        }
    }
}
