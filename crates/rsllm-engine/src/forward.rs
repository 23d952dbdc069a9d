//! What the engine thread needs of a model. The seam exists for tests, which put a scripted model in place of a real one, and
//! keeps the thread's code free of backends.

use std::sync::atomic::AtomicBool;

use crate::TokenId;
use crate::error::EngineError;

/// A model with room for one sequence, position by position.
pub(crate) trait Forward {
    /// Sizes fixed at load time.
    fn limits(&self) -> Limits;

    /// True if a step may begin at `index`: everything that its first token sees is still there. Layers with a window drop what
    /// has passed it.
    fn can_resume_at(&self, index: usize) -> bool;

    /// Evaluates `step` and writes the logits asked for, `[n_outputs, vocab_size]`, to the front of `logits`. KV of earlier
    /// positions must be there; that of later ones is forgotten. Fails with an abort soon after `abort` is set.
    fn forward(
        &mut self,
        step: &SequenceStep<'_>,
        logits: &mut [f32],
        abort: &AtomicBool,
    ) -> Result<(), EngineError>;
}

/// Sizes fixed at load time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Tokens of the vocabulary.
    pub(crate) vocab_size: usize,
    /// Tokens of a sequence.
    pub(crate) context: usize,
    /// Tokens of a step.
    pub(crate) max_rows: usize,
    /// Rows of logits of a step.
    pub(crate) max_outputs: usize,
}

/// Consecutive tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SequenceStep<'a> {
    /// Which product the tokens take; the numbers depend on it.
    pub(crate) phase: Phase,
    /// The tokens, at most `max_rows`.
    pub(crate) ids: &'a [TokenId],
    /// Index in the sequence of the first of them.
    pub(crate) first_index: usize,
    /// Rows whose logits are wanted.
    pub(crate) outputs: Outputs,
}

/// Prompt tokens are prefilled, generated ones decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Prefill,
    Decode,
}

/// Rows of a step whose logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outputs {
    None,
    Last,
    /// At most `max_outputs`.
    All,
}

impl SequenceStep<'_> {
    /// How many rows of logits come out.
    pub(crate) fn n_outputs(&self) -> usize {
        match self.outputs {
            Outputs::None => 0,
            Outputs::Last => 1,
            Outputs::All => self.ids.len(),
        }
    }
}
