//! A real model behind [`Forward`]: its pages, and the inputs of its steps. One sequence owns the whole page pool for now; the
//! table, the positions and the output rows have the shape that several will use.

use std::sync::atomic::AtomicBool;

use rsllm_model::{Model, PAGE_LEN, PageTable, Step, StepInput, StepSequence, Wanted};

use crate::error::EngineError;
use crate::forward::{Forward, Limits, Outputs, Phase, SequenceStep};

/// A model with KV pages for one sequence.
pub(crate) struct LoadedModel {
    model: Model,
    limits: Limits,
    table: PageTable,
    /// Tokens, in whole pages, that windowed layers have dropped.
    n_passed: usize,
    /// `0..context`, so that any step's positions, or its output rows, are a part of it.
    counting: Vec<u32>,
}

impl LoadedModel {
    /// A model whose pages all belong to one sequence.
    pub(crate) fn new(model: Model, limits: Limits) -> Result<Self, EngineError> {
        let table = PageTable::with_capacity(limits.context);
        let counting = (0..limits.context.max(limits.max_rows) as u32).collect();
        Ok(Self {
            model,
            limits,
            table,
            n_passed: 0,
            counting,
        })
    }
}

impl Forward for LoadedModel {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn can_resume_at(&self, index: usize) -> bool {
        let sees = self
            .model
            .window()
            .map_or(0, |window| (index + 1).saturating_sub(window));
        self.n_passed <= sees || self.n_passed == 0
    }

    fn forward(
        &mut self,
        step: &SequenceStep<'_>,
        logits: &mut [f32],
        abort: &AtomicBool,
    ) -> Result<(), EngineError> {
        let n_rows = step.ids.len();
        let end = step.first_index + n_rows;
        let outputs = match step.outputs {
            Outputs::None => 0..0,
            Outputs::Last => n_rows - 1..n_rows,
            Outputs::All => 0..n_rows,
        };
        let pools = self.model.pools();
        self.table.truncate(pools, step.first_index);
        if step.first_index == 0 {
            self.n_passed = 0;
        }
        self.table.grow(pools, end)?;
        let sequence = StepSequence {
            first_row: 0,
            n_rows,
            first_index: step.first_index,
            pages: self.table.slots(),
            adapter: None,
        };
        let model_step = Step {
            input: StepInput::Ids(step.ids),
            positions: &self.counting[step.first_index..end],
            n_prefill: match step.phase {
                Phase::Prefill => n_rows,
                Phase::Decode => 0,
            },
            sequences: &[sequence],
            outputs: &self.counting[outputs],
        };
        let n_logits = step.n_outputs() * self.limits.vocab_size;
        self.model
            .forward(&model_step, Wanted::Logits(&mut logits[..n_logits]), abort)?;
        if let Some(window) = self.model.window() {
            let next_sees = (end + 1).saturating_sub(window);
            self.table.drop_passed(self.model.pools(), next_sees);
            self.n_passed = self.n_passed.max(next_sees - next_sees % PAGE_LEN);
        }
        Ok(())
    }
}
