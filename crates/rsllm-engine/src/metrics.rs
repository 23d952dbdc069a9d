//! What the engine has done so far and holds now. The engine thread counts for itself and publishes after every step.

use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// Figures of an engine. Counts and durations add up from its start; durations are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineMetrics {
    /// Requests that wait.
    pub waiting: usize,
    /// Sequences that run.
    pub running: usize,
    /// Generations that began.
    pub started: u64,
    /// Generations that ended, however.
    pub ended: u64,
    /// Times that a sequence gave its pages to an older one.
    pub preempted: u64,
    /// Time that generations waited before they began.
    pub queue_ns: u64,
    /// Prompt tokens computed.
    pub prefill_tokens: u64,
    /// Time that this took.
    pub prefill_ns: u64,
    /// Generated tokens computed.
    pub decode_tokens: u64,
    /// Time that this took.
    pub decode_ns: u64,
    /// Prompt tokens that were found in the prefix cache.
    pub cached_tokens: u64,
    /// Tokens that were guessed and computed beside others.
    pub drafted_tokens: u64,
    /// Those of them that came true; they count as decoded too.
    pub accepted_tokens: u64,
    /// Time that masks of constrained sequences took beside the model.
    pub mask_ns: u64,
    /// Of it the time that the model waited for them.
    pub mask_wait_ns: u64,
    /// Steps of the model.
    pub steps: u64,
    /// Steps by number of sequences; see [`BATCH_SIZES`].
    pub batch_sizes: [u64; BATCH_SIZES.len()],
    /// KV pages of layers that see the whole context; of windowed layers where there are no others.
    pub pages: usize,
    /// Pages that hold nothing.
    pub pages_free: usize,
    /// Pages that hold only what may be used again.
    pub pages_cached: usize,
    /// Tokens of a page.
    pub page_len: usize,
}

/// Largest number of sequences that each entry of [`EngineMetrics::batch_sizes`] counts.
pub const BATCH_SIZES: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, usize::MAX];

/// Where the engine thread leaves its figures.
#[derive(Clone, Debug, Default)]
pub(crate) struct Board(Arc<Mutex<EngineMetrics>>);

impl EngineMetrics {
    /// A step of `n_sequences` was computed.
    pub(crate) fn count_step(&mut self, n_sequences: usize) {
        self.steps += 1;
        let bucket = BATCH_SIZES.partition_point(|&most| most < n_sequences);
        self.batch_sizes[bucket] += 1;
    }
}

impl Board {
    /// The newest figures.
    pub(crate) fn read(&self) -> EngineMetrics {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for readers.
    pub(crate) fn write(&self, metrics: EngineMetrics) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = metrics;
    }

    /// Never waits: while somebody reads, the figures stay as they are until the next step.
    pub(crate) fn publish(&self, metrics: EngineMetrics) {
        match self.0.try_lock() {
            Ok(mut board) => *board = metrics,
            Err(TryLockError::Poisoned(board)) => *board.into_inner() = metrics,
            Err(TryLockError::WouldBlock) => (),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_counted_by_their_size() {
        let mut metrics = EngineMetrics::default();
        for n in [1, 2, 3, 4, 16, 17, 1000] {
            metrics.count_step(n);
        }
        assert_eq!(metrics.steps, 7);
        assert_eq!(metrics.batch_sizes, [1, 1, 2, 0, 1, 1, 0, 1]);
        let board = Board::default();
        board.publish(metrics);
        assert_eq!(board.read(), metrics);
    }
}
