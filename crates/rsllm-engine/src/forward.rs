//! What the engine thread needs of a model. The seam exists for tests, which put a scripted model in place of a real one, and
//! keeps the thread's code free of backends.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use rsllm_model::{ModelError, PagePools, PageSlot, Step, Wanted};

/// A model with KV pages that its caller hands out.
pub(crate) trait Forward {
    /// Sizes fixed at load time.
    fn limits(&self) -> Limits;

    /// Tokens that the windowed layer with the widest window sees; `None` without such layers.
    fn window(&self) -> Option<usize>;

    /// Which pages belong to whom.
    fn pools(&mut self) -> &mut PagePools;

    /// Copies the contents of the pages of `from` to those of `to`.
    fn copy_slot(&mut self, from: PageSlot, to: PageSlot) -> Result<(), ModelError>;

    /// Appends the contents of the pages of `slot` to `dst`.
    fn export_slot(&mut self, dst: &mut Vec<u8>, slot: PageSlot) -> Result<(), ModelError>;

    /// Fills the pages of `slot` from exported bytes; returns those behind them.
    fn import_slot<'a>(&mut self, slot: PageSlot, src: &'a [u8]) -> Result<&'a [u8], ModelError>;

    /// Evaluates `step`. Fails with an abort soon after `abort` is set; K and V of the step's rows are then undefined.
    fn forward(
        &mut self,
        step: &Step<'_>,
        wanted: Wanted<'_>,
        abort: &AtomicBool,
    ) -> Result<(), ModelError>;

    /// Evaluates some layers of `step`, which then rests while other steps are evaluated; see [`rsllm_model::Model::forward_part`].
    fn forward_part(
        &mut self,
        step: &Step<'_>,
        layers: Range<usize>,
        wanted: Wanted<'_>,
        abort: &AtomicBool,
    ) -> Result<(), ModelError>;
}

/// Sizes fixed at load time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Layers.
    pub(crate) n_layers: usize,
    /// Tokens of the vocabulary.
    pub(crate) vocab_size: usize,
    /// Width of a row of embeddings.
    pub(crate) embed_dim: usize,
    /// Tokens of a sequence.
    pub(crate) context: usize,
    /// Sequences of a step; at most `max_rows` and `max_outputs`.
    pub(crate) max_sequences: usize,
    /// Tokens of a step.
    pub(crate) max_rows: usize,
    /// Rows of logits of a step.
    pub(crate) max_outputs: usize,
}

/// Prompt tokens are prefilled, generated ones decoded. The numbers depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Prefill,
    Decode,
}
