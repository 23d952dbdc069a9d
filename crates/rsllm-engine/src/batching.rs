//! Generations side by side: who starts, what the next step computes, and what each sequence makes of its logits.

mod drafting;
mod drawing;
mod pass;

use std::cell::{Cell, RefCell};
use std::time::Instant;

use rsllm_model::{PAGE_LEN, Wanted};

use crate::TokenId;
use crate::budget::StepBudget;
use crate::error::EngineError;
use crate::forward::{Forward, Phase};
use crate::generation::{Event, FinishReason, GenerationStats, nanoseconds};
use crate::pages::{Pages, first_visible, slots_for};
use crate::prefix_cache::{OwnedPages, common_len};
use crate::scheduler::{
    Action, SequenceState, State, StepLimits, StepPlan, admit, is_worth_waiting, may_start, plan,
};
use crate::sequence::{Sequence, SequenceParts};
use crate::speculation::{Draft, StepCosts, Trust};
use crate::text::TextStream;
use crate::worker::{GenerateJob, Waiting, Worker, catch};
use pass::Pass;

/// A generation that has begun.
pub(crate) struct Live {
    /// Order of arrival.
    id: u64,
    sequence: Sequence,
    stats: GenerationStats,
    request: Request,
    started: Instant,
    /// Its prompt was computed.
    decode_start: Option<Instant>,
    /// Whole pages that the prefix cache has seen.
    n_remembered: usize,
    /// It was part of a step that failed.
    is_suspect: bool,
    /// It is part of the pass that rests between layers.
    is_in_pass: bool,
    /// In guesses from its own text, and in those of the draft model.
    trust_in_text: Trust,
    trust_in_model: Trust,
    /// Most tokens of a draft.
    max_draft: usize,
    /// What this step verifies.
    draft: Draft,
}

/// The caller's side of a generation.
struct Request {
    events: std::sync::mpsc::Sender<Event>,
    cancel: crate::control::CancelHandle,
    queued: Instant,
}

/// What steps need beside the sequences, kept for its memory.
pub(crate) struct StepState {
    states: Vec<SequenceState>,
    owned: OwnedPages,
    plan: StepPlan,
    pass: Pass,
    budget: StepBudget,
    costs: StepCosts,
    n_arrived: u64,
    last_turn: u64,
}

impl StepState {
    /// Before the first step.
    pub(crate) fn new() -> Self {
        Self {
            states: Vec::new(),
            owned: OwnedPages::default(),
            plan: StepPlan::default(),
            pass: Pass::default(),
            budget: StepBudget::new(),
            costs: StepCosts::new(),
            n_arrived: 0,
            last_turn: 0,
        }
    }
}

impl Waiting {
    /// The tokens of a generation; `None` for anything else.
    fn ids(&self) -> Option<&[TokenId]> {
        match self {
            Self::New(job) => Some(&job.prompt),
            Self::Preempted(live) => Some(live.sequence.ids()),
            Self::Exclusive(_) => None,
        }
    }
}

impl Request {
    fn end(self, stats: GenerationStats, result: Result<FinishReason, EngineError>) {
        let total_ns = nanoseconds(self.queued.elapsed());
        let (finish_reason, error) = match result {
            Ok(reason) => (reason, None),
            Err(error) => (FinishReason::Error, Some(error)),
        };
        let stats = GenerationStats {
            finish_reason,
            total_ns,
            ..stats
        };
        // The caller may be gone; then nobody wants to know.
        let _ = self.events.send(match error {
            None => Event::End(stats),
            Some(error) => Event::Failed(error, stats),
        });
    }
}

impl<M: Forward> Worker<M> {
    /// Ends what its callers no longer want, waiting or running.
    pub(crate) fn drop_cancelled(&mut self) {
        let mut i = 0;
        while i < self.running.len() {
            if self.running[i].request.cancel.is_cancelled() {
                self.end(i, Ok(FinishReason::Cancelled));
            } else {
                i += 1;
            }
        }
        let is_cancelled = |waiting: &Waiting| match waiting {
            Waiting::New(job) => job.cancel.is_cancelled(),
            Waiting::Preempted(live) => live.request.cancel.is_cancelled(),
            Waiting::Exclusive(job) => job.cancel.is_cancelled(),
        };
        let mut i = 0;
        while i < self.waiting.len() {
            if !is_cancelled(&self.waiting[i]) {
                i += 1;
                continue;
            }
            match self.waiting.remove(i) {
                Some(Waiting::New(job)) => {
                    let mut stats = GenerationStats::at_start(job.sampler.seed(), job.prompt.len());
                    stats.queue_ns = nanoseconds(job.queued.elapsed());
                    let request = Request {
                        events: job.events,
                        cancel: job.cancel,
                        queued: job.queued,
                    };
                    request.end(stats, Ok(FinishReason::Cancelled));
                }
                Some(Waiting::Preempted(live)) => {
                    self.metrics.ended += 1;
                    self.tell_metrics();
                    live.request.end(live.stats, Ok(FinishReason::Cancelled));
                }
                // Its caller is gone.
                Some(Waiting::Exclusive(_)) | None => (),
            }
        }
    }

    /// Starts those that wait and fit.
    pub(crate) fn admit(&mut self) {
        if self.waiting.is_empty() || self.running.len() >= self.model.limits().max_sequences {
            return;
        }
        let limits = self.step_limits();
        let context = self.model.limits().context;
        self.describe_running();
        let candidates = self.candidates();
        let state = State {
            running: &self.step_state.states,
            available: self.cache.available(self.model.pools()),
            last_turn: self.step_state.last_turn,
        };
        let (cache, model) = (&mut self.cache, &mut self.model);
        let waiting = &self.waiting;
        let needed = candidates.iter().filter_map(|&i| {
            let ids = waiting[i].ids()?;
            let n_slots = slots_for((ids.len() + 1).min(context));
            Some(n_slots - cache.slots_in_use(model.pools(), None, ids))
        });
        let n_admitted = admit(&state, &limits, needed);
        for (n_gone, &i) in candidates[..n_admitted].iter().enumerate() {
            let live = match self.waiting.remove(i - n_gone) {
                Some(Waiting::New(job)) => self.begin(*job),
                Some(Waiting::Preempted(live)) => *live,
                Some(Waiting::Exclusive(_)) | None => {
                    unreachable!("only generations were counted")
                }
            };
            self.start(live);
        }
    }

    /// Those that wait and may start, in order: all before a request that wants the model alone, but for those that wait for a
    /// prefix that others are computing.
    fn candidates(&mut self) -> Vec<usize> {
        let n_free = self.model.limits().max_sequences - self.running.len();
        let texts: Vec<&[TokenId]> = self.waiting.iter().map_while(Waiting::ids).collect();
        // Asked for several times in a row.
        let (cache, last) = (RefCell::new(&mut self.cache), Cell::new(None));
        let known = |i: usize| match last.get() {
            Some((asked, n_known)) if asked == i => n_known,
            _ => {
                let n_known = cache.borrow_mut().known(None, texts[i]);
                last.set(Some((i, n_known)));
                n_known
            }
        };
        let is_worth = |i: usize, prompt: &[TokenId], n_evaluated| {
            let n_common = common_len(prompt, texts[i]);
            is_worth_waiting(texts[i].len(), n_common, n_evaluated, known(i))
        };
        let running_computes_it = |i: usize| {
            self.running.iter().any(|live| {
                let sequence = &live.sequence;
                let (n_prompt, n_evaluated) = (sequence.n_prompt(), sequence.n_evaluated());
                n_evaluated < n_prompt && is_worth(i, &sequence.ids()[..n_prompt], n_evaluated)
            })
        };
        // Those that start now have computed nothing beyond what is known.
        let will_compute_it = |i: usize, other: usize| is_worth(i, texts[other], 0);
        may_start(texts.len(), n_free, running_computes_it, will_compute_it)
    }

    /// One step for all that run.
    pub(crate) fn step(&mut self) {
        // Some may have gone since the last.
        self.check_pass();
        let limits = self.step_limits();
        self.describe_running();
        let state = State {
            running: &self.step_state.states,
            available: self.cache.available(self.model.pools()),
            last_turn: self.step_state.last_turn,
        };
        plan(&state, &limits, &mut self.step_state.plan);
        self.step_state.last_turn = self.step_state.plan.last_turn;
        let is_preempting = self.preempt_planned();
        if let Err((i, error)) = self.prepare_batch() {
            self.end(i, Err(error));
            return;
        }
        let is_idle = self.batch.n_rows() == 0;
        if !is_idle {
            self.evaluate();
        }
        if self.step_state.pass.is_under_way() {
            self.advance_pass();
        } else if is_idle && !is_preempting {
            // Plans always get the oldest on; if one ever does not, that must not become a hang.
            let error = rsllm_model::ModelError::OutOfPages {
                n_pages: self.model.pools().full.n_pages(),
                page_len: PAGE_LEN,
            };
            self.end(0, Err(error.into()));
        }
    }

    fn step_limits(&self) -> StepLimits {
        let limits = self.model.limits();
        StepLimits {
            max_sequences: limits.max_sequences,
            max_rows: limits.max_rows,
            shared_rows: self.step_state.budget.rows(limits.max_rows),
            shared_sequences: self.step_state.pass.max_sequences(),
            // A window that begins and ends inside of pages.
            window_slots: self.model.window().map_or(0, |n| slots_for(n) + 2),
        }
    }

    fn describe_running(&mut self) {
        let StepState { states, owned, .. } = &mut self.step_state;
        let pools = self.model.pools();
        self.cache.owned(owned);
        states.clear();
        states.extend(self.running.iter().map(|live| {
            let sequence = &live.sequence;
            let slots = sequence.pages().slots();
            SequenceState {
                id: live.id,
                n_tokens: sequence.ids().len(),
                n_prompt: sequence.n_prompt(),
                n_evaluated: sequence.n_evaluated(),
                n_slots: slots.len(),
                reclaimable: slots.iter().fold(Pages::ZERO, |pages, &slot| {
                    pages.plus(owned.reclaimable(pools, slot))
                }),
                is_suspect: live.is_suspect,
                is_in_pass: live.is_in_pass,
            }
        }));
    }

    fn begin(&mut self, job: GenerateJob) -> Live {
        let started = Instant::now();
        let mut stats = GenerationStats::at_start(job.sampler.seed(), job.prompt.len());
        stats.queue_ns = nanoseconds(started - job.queued);
        if let Some(constraint) = &job.constraint {
            stats.warnings = constraint.warnings().to_vec();
        }
        self.metrics.started += 1;
        self.metrics.queue_ns += stats.queue_ns;
        self.step_state.n_arrived += 1;
        Live {
            id: self.step_state.n_arrived,
            sequence: Sequence::new(SequenceParts {
                prompt: job.prompt,
                context: self.model.limits().context,
                max_tokens: job.max_tokens,
                num_keep: job.shift,
                logprobs: job.logprobs,
                end_tokens: self.end_tokens.clone(),
                sampler: job.sampler,
                constraint: job.constraint,
                text: TextStream::new(self.tokenizer.stream_decoder(), job.stop),
            }),
            stats,
            request: Request {
                events: job.events,
                cancel: job.cancel,
                queued: job.queued,
            },
            started,
            decode_start: None,
            n_remembered: 0,
            is_suspect: false,
            is_in_pass: false,
            trust_in_text: Trust::new(),
            trust_in_model: Trust::new(),
            max_draft: job.max_draft,
            draft: Draft::NONE,
        }
    }

    /// Lets a sequence without pages run.
    fn start(&mut self, live: Live) {
        if let Some(live) = self.adopt(live) {
            // One that was sent away and then waited for a beginning may come after younger ones.
            let place = self.running.partition_point(|other| other.id < live.id);
            self.running.insert(place, live);
        }
    }

    /// Gives a sequence without pages what the prefix cache has of it. If that fails it is over.
    fn adopt(&mut self, mut live: Live) -> Option<Live> {
        let (ids, pages) = live.sequence.ids_and_pages();
        let adopted = catch(|| self.cache.adopt(&mut self.model, None, ids, pages));
        match adopted {
            Ok(n_tokens) => {
                live.sequence.set_evaluated(n_tokens);
                live.n_remembered = n_tokens / PAGE_LEN;
                if live.decode_start.is_none() {
                    live.stats.cached_tokens = n_tokens;
                }
                self.metrics.cached_tokens += n_tokens as u64;
                Some(live)
            }
            Err(error) => {
                pages.truncate(self.model.pools(), 0);
                self.metrics.ended += 1;
                live.request.end(live.stats, Err(error));
                None
            }
        }
    }

    /// Sends away those that the plan preempts, and tells whether there were any.
    fn preempt_planned(&mut self) -> bool {
        let n_before = self.running.len();
        for i in (0..n_before).rev() {
            if self.step_state.plan.actions[i] == Action::Preempt {
                self.step_state.plan.actions.remove(i);
                let mut live = self.running.remove(i);
                self.give_pages_back(&mut live);
                self.metrics.preempted += 1;
                self.waiting.push_front(Waiting::Preempted(Box::new(live)));
            }
        }
        self.running.len() < n_before
    }

    /// Finds pages for what is planned and gathers its rows. What others generate beside goes into a pass of its own. Fails
    /// with the sequence at fault.
    fn prepare_batch(&mut self) -> Result<(), (usize, EngineError)> {
        self.check_pass();
        self.batch.clear();
        let is_planned = |(live, action): (&Live, &Action)| {
            live.is_generating() && matches!(action, Action::Evaluate(n_rows) if *n_rows > 0)
        };
        let mut planned = self.running.iter().zip(&self.step_state.plan.actions);
        let is_shared = planned.any(is_planned);
        let had_pass = self.step_state.pass.is_under_way();
        for phase in [Phase::Prefill, Phase::Decode] {
            for (i, live) in self.running.iter_mut().enumerate() {
                let Action::Evaluate(n_rows) = self.step_state.plan.actions[i] else {
                    continue;
                };
                let sequence = &mut live.sequence;
                let (n_prompt, start) = (sequence.n_prompt(), sequence.n_evaluated());
                let phase_now = if start < n_prompt {
                    Phase::Prefill
                } else {
                    Phase::Decode
                };
                if n_rows == 0 || phase_now != phase {
                    continue;
                }
                let end = start + n_rows;
                let n_slots = slots_for(end).saturating_sub(sequence.pages().slots().len());
                let pools = self.model.pools();
                self.cache.make_room(pools, Pages::both(n_slots));
                sequence
                    .pages_mut()
                    .grow(pools, end)
                    .map_err(|error| (i, error.into()))?;
                let ids = sequence.ids();
                let n_outputs = usize::from(end == ids.len());
                let is_for_pass = is_shared && (phase == Phase::Prefill || n_rows > 1);
                let batch = if is_for_pass {
                    self.step_state.pass.batch_mut()
                } else {
                    &mut self.batch
                };
                batch.add(i, phase, start, &ids[start..end], n_outputs);
            }
        }
        if self.step_state.pass.is_under_way() {
            if !had_pass {
                self.begin_pass();
            }
        } else {
            self.add_drafts();
        }
        Ok(())
    }

    /// Computes the batch, and lets its sequences draw. A step that fails is repeated for each sequence alone, so that only
    /// the one at fault gets the error.
    fn evaluate(&mut self) {
        let start = Instant::now();
        let requests = self.batch.parts().iter();
        let running = &self.running;
        self.control
            .begin_step(requests.map(|part| running[part.sequence].request.cancel.flag()));
        let n_logits = self.batch.n_outputs() * self.model.limits().vocab_size;
        let (batch, model) = (&mut self.batch, &mut self.model);
        let wanted = Wanted::Logits(&mut self.logits[..n_logits]);
        let abort = self.control.step_abort();
        let computed = catch(|| {
            let pages = |i: usize| running[i].sequence.pages().slots();
            batch.run(model, pages, wanted, abort)
        });
        let step_ns = nanoseconds(start.elapsed());
        match computed {
            Ok(()) => {
                self.count_step(step_ns);
                self.take_over();
                self.draw();
            }
            // Those that were cancelled are found before the next step.
            Err(error) if error.is_abort() => (),
            Err(error) => match self.batch.parts() {
                &[part] => self.end(part.sequence, Err(error)),
                parts => {
                    for part in parts {
                        self.running[part.sequence].is_suspect = true;
                    }
                }
            },
        }
    }

    fn count_step(&mut self, step_ns: u64) {
        self.count_rows();
        if self.batch.n_prefill() > 0 {
            self.metrics.prefill_ns += step_ns;
            return;
        }
        self.metrics.decode_ns += step_ns;
        if self.batch.parts().iter().all(|part| part.n_rows == 1) {
            let is_beside = self.step_state.pass.is_under_way();
            let n_rows = self.batch.n_rows();
            self.step_state
                .budget
                .record_decode(n_rows, step_ns, is_beside);
        }
        self.step_state.costs.record(self.batch.n_rows(), step_ns);
    }

    /// Counts the rows of the batch, which are done.
    fn count_rows(&mut self) {
        let n_prefill = self.batch.n_prefill();
        let n_decode = self.batch.n_rows() - n_prefill;
        let metrics = &mut self.metrics;
        metrics.count_step(self.batch.parts().len());
        metrics.prefill_tokens += n_prefill as u64;
        let n_drafted: usize = self.batch.parts().iter().map(|part| part.n_drafted).sum();
        metrics.decode_tokens += (n_decode - n_drafted) as u64;
        metrics.drafted_tokens += n_drafted as u64;
    }

    /// The rows of the step are in their pages now.
    fn take_over(&mut self) {
        for i in 0..self.batch.parts().len() {
            let part = self.batch.parts()[i];
            let live = &mut self.running[part.sequence];
            live.is_suspect = false;
            // Of a draft nothing is certain yet.
            let n_evaluated = part.first_index + part.n_rows - part.n_drafted;
            live.sequence.set_evaluated(n_evaluated);
            self.remember(part.sequence);
        }
    }

    /// Shows the prefix cache the whole pages that a sequence has filled, and gives back those that its window has passed.
    fn remember(&mut self, sequence: usize) {
        let window = self.model.window();
        let live = &mut self.running[sequence];
        let n_evaluated = live.sequence.n_evaluated();
        let pools = self.model.pools();
        if n_evaluated / PAGE_LEN > live.n_remembered {
            live.n_remembered = n_evaluated / PAGE_LEN;
            let (ids, slots) = (live.sequence.ids(), live.sequence.pages().slots());
            self.cache
                .insert(pools, None, &ids[..n_evaluated], slots, false);
        }
        let visible = first_visible(n_evaluated, window);
        live.sequence.pages_mut().drop_passed(pools, visible);
    }

    /// Takes a sequence out and tells its caller.
    fn end(&mut self, i: usize, result: Result<FinishReason, EngineError>) {
        let mut live = self.running.remove(i);
        // First the pages: the caller's next request may come at once.
        self.give_pages_back(&mut live);
        self.metrics.ended += 1;
        let Live {
            stats,
            request,
            sequence,
            ..
        } = live;
        let stop_text = sequence.stop_text().map(str::to_owned);
        self.tell_metrics();
        request.end(GenerationStats { stop_text, ..stats }, result);
    }

    /// Leaves the pages of a sequence to the prefix cache.
    fn give_pages_back(&mut self, live: &mut Live) {
        let pools = self.model.pools();
        let sequence = &mut live.sequence;
        let ids = &sequence.ids()[..sequence.n_evaluated()];
        self.cache
            .insert(pools, None, ids, sequence.pages().slots(), true);
        sequence.pages_mut().truncate(pools, 0);
        sequence.set_evaluated(0);
        live.n_remembered = 0;
        live.is_in_pass = false;
        debug_assert!(pools.check_integrity() && self.cache.check_integrity(pools));
    }
}
