//! How a backend comes into being: alone, beside another, or only to count what a model would take.

use rsllm_tensor::BackendError;

use super::{CpuBackend, Result};
use crate::isa::Isa;
use crate::kernels::Kernels;
use crate::memory::Allocator;
use crate::scratch::Sizes;
use crate::step_state::StepState;
use crate::threads::ThreadPool;
use crate::weight::BACKEND;

impl CpuBackend {
    /// A backend of `n_threads` threads, the caller's included, with the kernels of `isa`.
    pub fn new(isa: Isa, n_threads: usize) -> Result<Self> {
        let unavailable = |reason| BackendError::Unavailable {
            backend: BACKEND,
            reason,
        };
        let kernels = Kernels::for_isa(isa).ok_or_else(|| {
            unavailable(format!(
                "this processor lacks {}",
                isa.required_features().join(", ")
            ))
        })?;
        let pool = ThreadPool::new(n_threads.max(1))
            .map_err(|error| unavailable(format!("cannot start {n_threads} threads: {error}")))?;
        Ok(Self {
            kernels,
            n_threads: pool.n_threads(),
            pool,
            step: StepState::default(),
            sizes: Sizes::default(),
            scratch: None,
            allocator: Allocator::default(),
        })
    }

    /// A backend of another model that computes with the same kernels on the same threads. Whoever has both uses one at a time.
    #[must_use]
    pub fn beside(&self) -> Self {
        Self {
            kernels: self.kernels,
            pool: self.pool.clone(),
            n_threads: self.n_threads,
            step: StepState::default(),
            sizes: Sizes::default(),
            scratch: None,
            allocator: Allocator {
                only_plans: self.allocator.only_plans,
                ..Allocator::default()
            },
        }
    }

    /// A backend that computes nothing and only counts what a model would allocate; see
    /// [`Backend::allocated_bytes`].
    pub fn planner(isa: Isa, n_threads: usize) -> Result<Self> {
        let mut backend = Self::new(isa, 1)?;
        backend.allocator.only_plans = true;
        backend.n_threads = n_threads.max(1);
        Ok(backend)
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.kernels.isa
    }

    /// Threads in use, the caller's included.
    pub fn n_threads(&self) -> usize {
        self.n_threads
    }
}
