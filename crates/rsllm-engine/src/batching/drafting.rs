//! Which guesses a step verifies beside what it computes anyway.

use std::time::Instant;

use crate::forward::Forward;
use crate::generation::nanoseconds;
use crate::pages::{Pages, slots_for};
use crate::speculation::{Draft, look_up};
use crate::worker::{Worker, catch};

/// What a draft model is expected to save of the time of the tokens to come, as a share: what it may take to catch up.
const WORTH: f32 = 0.3;

impl<M: Forward> Worker<M> {
    /// Adds guesses to a step of one generating sequence: what they cost is known only where nobody else is in it.
    pub(super) fn add_drafts(&mut self) {
        let &[part] = self.batch.parts() else { return };
        let live = &mut self.running[part.sequence];
        live.draft = Draft::NONE;
        if self.batch.n_prefill() > 0 || part.n_rows != 1 || part.n_outputs != 1 || live.is_suspect
        {
            return;
        }
        let draft = self.draft(part.sequence);
        if draft.ids().is_empty() {
            return;
        }
        let live = &mut self.running[part.sequence];
        let end = live.sequence.ids().len() + draft.ids().len();
        let pools = self.model.pools();
        let n_slots = slots_for(end).saturating_sub(live.sequence.pages().slots().len());
        self.cache.make_room(pools, Pages::both(n_slots));
        // Without pages for it there is no draft; the step itself has its own.
        if live.sequence.pages_mut().grow(pools, end).is_err() {
            return;
        }
        self.batch.add_draft(draft.ids());
        live.draft = draft;
    }

    /// What may follow a sequence that generates alone: what its text says, else what the draft model does.
    fn draft(&mut self, sequence: usize) -> Draft {
        let limits = self.model.limits();
        let costs = &mut self.step_state.costs;
        let live = &mut self.running[sequence];
        let ids = live.sequence.ids();
        let most = live
            .max_draft
            .min(limits.max_outputs - 1)
            .min(limits.max_rows - 1)
            .min(limits.context.saturating_sub(ids.len()))
            .min(live.sequence.room());
        let n = live.trust_in_text.length(most, costs, 1, 0.0);
        let of_text = if n > 0 { look_up(ids, n) } else { Draft::NONE };
        if !of_text.ids().is_empty() {
            return of_text;
        }
        let (Some(model), Some(alone_ns)) = (&mut self.draft_model, costs.alone()) else {
            return Draft::NONE;
        };
        let guess_ns = model.token_ns(alone_ns);
        let n = live.trust_in_model.length(most, costs, 1, guess_ns);
        if n == 0 {
            model.hope(alone_ns);
            return Draft::NONE;
        }
        // Most of it is never needed where the text soon ends.
        let worth_ns = WORTH * alone_ns * live.sequence.room().min(limits.context) as f32;
        if !model.is_worth(ids, alone_ns, worth_ns) {
            return Draft::NONE;
        }
        let start = Instant::now();
        let flag = live.request.cancel.flag();
        self.control.begin_step([flag].into_iter());
        let (ids, sampler) = live.sequence.ids_and_sampler();
        let abort = self.control.step_abort();
        let draft =
            sampler.rehearse(|sampler| catch(|| model.propose(ids, sampler, n, alone_ns, abort)));
        self.metrics.decode_ns += nanoseconds(start.elapsed());
        match draft {
            Ok(mut draft) => {
                draft.is_of_model = true;
                draft
            }
            // Whoever is cancelled is found before the next step.
            Err(error) if error.is_abort() => Draft::NONE,
            Err(error) => {
                let warning = format!("the draft model failed and is no longer used: {error}");
                live.stats.warnings.push(warning);
                self.draft_model = None;
                Draft::NONE
            }
        }
    }
}
