//! How others reach into the engine thread while it computes. A step of the model stops between layers when nobody wants any of
//! it: when every request in it was cancelled, or when the engine is being closed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shared by the engine thread, its owner and all requests.
#[derive(Debug, Default)]
pub(crate) struct Control {
    closing: AtomicBool,
    /// What the model reads between layers.
    step_abort: AtomicBool,
    /// The requests of the running step.
    step: Mutex<Vec<Arc<AtomicBool>>>,
}

/// Cancels a request from anywhere.
#[derive(Clone, Debug)]
pub struct CancelHandle {
    /// Set by the caller alone.
    cancelled: Arc<AtomicBool>,
    control: Arc<Control>,
}

impl Control {
    /// Ends what runs, and lets nothing else start.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        let _step = self.step();
        self.step_abort.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// A step for `requests` is about to begin.
    pub(crate) fn begin_step<'a>(&self, requests: impl Iterator<Item = &'a Arc<AtomicBool>>) {
        let mut step = self.step();
        step.clear();
        step.extend(requests.map(Arc::clone));
        self.decide(&step);
    }

    /// For the model.
    pub(crate) fn step_abort(&self) -> &AtomicBool {
        &self.step_abort
    }

    /// A request was cancelled.
    fn reconsider(&self) {
        self.decide(&self.step());
    }

    fn decide(&self, step: &[Arc<AtomicBool>]) {
        // Whatever is set after this looks here again.
        let unwanted = step.iter().all(|request| request.load(Ordering::SeqCst));
        self.step_abort
            .store(unwanted || self.is_closing(), Ordering::SeqCst);
    }

    fn step(&self) -> MutexGuard<'_, Vec<Arc<AtomicBool>>> {
        // Nothing panics while it is held.
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CancelHandle {
    pub(crate) fn new(control: Arc<Control>) -> Self {
        Self {
            cancelled: Arc::default(),
            control,
        }
    }

    /// Asks the engine to stop. A step that computes for this request alone ends within one layer of the model; one that
    /// others share ends as it would, and the request with it.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        self.control.reconsider();
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    /// For [`Control::begin_step`].
    pub(crate) fn flag(&self) -> &Arc<AtomicBool> {
        &self.cancelled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_aborted_when_all_in_it_are_cancelled() {
        let control = Arc::new(Control::default());
        let [a, b] = [(), ()].map(|()| CancelHandle::new(Arc::clone(&control)));
        let aborted = || control.step_abort().load(Ordering::SeqCst);
        control.begin_step([a.flag(), b.flag()].into_iter());
        a.cancel();
        assert!(!aborted());
        b.cancel();
        assert!(aborted());
        let c = CancelHandle::new(Arc::clone(&control));
        control.begin_step([a.flag(), c.flag()].into_iter());
        assert!(!aborted());
        control.begin_step([a.flag()].into_iter());
        assert!(aborted());
    }

    #[test]
    fn closing_aborts_this_step_and_all_to_come() {
        let control = Arc::new(Control::default());
        let request = CancelHandle::new(Arc::clone(&control));
        control.begin_step([request.flag()].into_iter());
        control.close();
        assert!(control.step_abort().load(Ordering::SeqCst) && control.is_closing());
        control.begin_step([request.flag()].into_iter());
        assert!(control.step_abort().load(Ordering::SeqCst));
    }
}
