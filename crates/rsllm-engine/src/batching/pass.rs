//! The pass over prompts beside which others generate. It is made once, then each step computes some of its layers, until all
//! are done; its sequences wait for it. A pass ends early when one of its sequences goes: then none of it counts.

use std::time::Instant;

use rsllm_model::Wanted;

use super::Live;
use crate::batch::Batch;
use crate::budget::PassShape;
use crate::error::EngineError;
use crate::forward::Forward;
use crate::generation::nanoseconds;
use crate::worker::{Worker, catch};

/// The pass that rests between layers.
#[derive(Default)]
pub(super) struct Pass {
    batch: Batch,
    /// The sequences of the parts.
    ids: Vec<u64>,
    /// Layers that are done.
    n_done: usize,
    /// The last one ended early: sequences are sent away faster than a pass of many gets on.
    is_narrow: bool,
}

impl Pass {
    /// Sequences that the next pass may have.
    pub(super) fn max_sequences(&self) -> usize {
        if self.is_narrow { 1 } else { usize::MAX }
    }

    /// Whether there is one.
    pub(super) fn is_under_way(&self) -> bool {
        self.batch.n_rows() > 0
    }

    fn shape(&self) -> PassShape {
        let parts = self.batch.parts().iter();
        PassShape {
            n_rows: self.batch.n_rows(),
            depth: parts
                .map(|part| part.first_index + part.n_rows)
                .max()
                .unwrap_or(0),
        }
    }

    /// For gathering its rows, while there is none.
    pub(super) fn batch_mut(&mut self) -> &mut Batch {
        &mut self.batch
    }
}

impl<M: Forward> Worker<M> {
    /// What was gathered is a pass from now on.
    pub(super) fn begin_pass(&mut self) {
        let pass = &mut self.step_state.pass;
        pass.ids.clear();
        pass.n_done = 0;
        for part in pass.batch.parts() {
            let live = &mut self.running[part.sequence];
            live.is_in_pass = true;
            pass.ids.push(live.id);
        }
    }

    /// Ends the pass if a sequence of it has gone; else notes where they all are.
    pub(super) fn check_pass(&mut self) {
        let Worker {
            running,
            step_state,
            ..
        } = self;
        let pass = &mut step_state.pass;
        let ids = &pass.ids;
        let is_whole = pass.batch.renumber(|part| {
            (running.iter()).position(|live| live.is_in_pass && live.id == ids[part])
        });
        if !is_whole {
            self.drop_pass();
            self.step_state.pass.is_narrow = true;
        }
    }

    fn drop_pass(&mut self) {
        self.step_state.pass.batch.clear();
        self.step_state.pass.ids.clear();
        for live in &mut self.running {
            live.is_in_pass = false;
        }
    }

    /// Computes the layers of the pass that fit the step, all that are left if nobody generates, and behind the last lets its
    /// sequences draw.
    pub(super) fn advance_pass(&mut self) {
        // Some may have ended in this step.
        self.check_pass();
        if !self.step_state.pass.is_under_way() {
            return;
        }
        let limits = self.model.limits();
        let is_generating = |live: &&Live| !live.is_in_pass && live.is_generating();
        let n_generating = self.running.iter().filter(is_generating).count();
        let is_shared = n_generating > 0;
        let n_prompts = self.running.len() - n_generating;
        self.step_state.budget.weigh(n_generating, n_prompts);
        let pass = &mut self.step_state.pass;
        let shape = pass.shape();
        let n_left = limits.n_layers - pass.n_done;
        let n_layers = if is_shared {
            let has_outputs = pass.batch.n_outputs() > 0;
            self.step_state.budget.layers(shape, n_left, has_outputs)
        } else {
            n_left
        };
        let layers = pass.n_done..pass.n_done + n_layers;
        let is_last = layers.end == limits.n_layers;

        let running = &self.running;
        let requests = pass.batch.parts().iter();
        self.control
            .begin_step(requests.map(|part| running[part.sequence].request.cancel.flag()));
        let start = Instant::now();
        let n_logits = if is_last {
            pass.batch.n_outputs() * limits.vocab_size
        } else {
            0
        };
        let (batch, model) = (&mut pass.batch, &mut self.model);
        let wanted = Wanted::Logits(&mut self.logits[..n_logits]);
        let abort = self.control.step_abort();
        let computed = catch(|| {
            let pages = |i: usize| running[i].sequence.pages().slots();
            batch.run_layers(model, layers.clone(), pages, wanted, abort)
        });
        let part_ns = nanoseconds(start.elapsed());
        match computed {
            Ok(()) => {
                self.metrics.prefill_ns += part_ns;
                self.step_state.pass.n_done = layers.end;
                // What logits took says nothing about layers.
                if is_shared && n_logits == 0 {
                    let budget = &mut self.step_state.budget;
                    budget.record_pass(shape, n_layers, part_ns);
                }
                if is_last {
                    self.end_pass();
                }
            }
            // Those that were cancelled are found before the next step.
            Err(error) if error.is_abort() => self.drop_pass(),
            Err(error) => self.fail_pass(error),
        }
    }

    /// The rows of the pass are in their pages.
    fn end_pass(&mut self) {
        std::mem::swap(&mut self.batch, &mut self.step_state.pass.batch);
        self.count_rows();
        self.drop_pass();
        self.step_state.pass.is_narrow = false;
        self.take_over();
        self.draw();
    }

    fn fail_pass(&mut self, error: EngineError) {
        let parts = self.step_state.pass.batch.parts();
        if let &[part] = parts {
            self.drop_pass();
            return self.end(part.sequence, Err(error));
        }
        for part in parts {
            self.running[part.sequence].is_suspect = true;
        }
        self.drop_pass();
    }
}
