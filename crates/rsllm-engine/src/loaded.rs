//! A real model behind [`Forward`]: its pages, and the inputs of its steps. One sequence owns the whole page pool for now; the
//! table, the positions and the output rows have the shape that several will use.

use std::sync::atomic::AtomicBool;

use rsllm_model::{Model, PageTable, Step, StepInput, StepSequence};

use crate::error::EngineError;
use crate::forward::{Forward, Limits, Outputs, Phase, SequenceStep};

/// A model with KV pages for one sequence.
pub(crate) struct LoadedModel {
    model: Model,
    limits: Limits,
    table: PageTable,
    /// `0..context`, so that any step's positions, or its output rows, are a part of it.
    counting: Vec<u32>,
}

impl LoadedModel {
    /// Takes all pages of the model's pool.
    pub(crate) fn new(mut model: Model, limits: Limits) -> Result<Self, EngineError> {
        let mut table = PageTable::with_capacity(limits.context);
        table.grow(model.pool(), limits.context)?;
        let counting = (0..limits.context.max(limits.max_rows) as u32).collect();
        Ok(Self {
            model,
            limits,
            table,
            counting,
        })
    }
}

impl Forward for LoadedModel {
    fn limits(&self) -> Limits {
        self.limits
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
        let n_pages = end.div_ceil(rsllm_model::PAGE_LEN);
        let sequence = StepSequence {
            first_row: 0,
            n_rows,
            first_index: step.first_index,
            pages: &self.table.pages()[..n_pages],
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
            .forward(&model_step, &mut logits[..n_logits], abort)?;
        Ok(())
    }
}
