//! What the next step computes, as a pure function of who is there, how many pages are free, and a number of rows.
//!
//! Sequences that generate come first, a row each. What is left of the step goes to prompts, in turn: a part of one prompt, or
//! the ends of several. Where some generate, such parts make a pass of their own, which is spread over several steps, some
//! layers in each (see `budget.rs`); no other begins until it is done. Pages go to older sequences before younger ones: who
//! lacks a page takes those of the youngest sequence, which starts again later from what is left of them in the prefix cache.
//! The oldest sequence therefore always gets on, and with it, sooner or later, every other.

use rsllm_model::PAGE_LEN;

use crate::forward::Phase;
use crate::pages::{Pages, slots_for};

/// A running sequence, as far as planning goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SequenceState {
    /// Order of arrival.
    pub(crate) id: u64,
    /// Tokens of the prompt and those generated.
    pub(crate) n_tokens: usize,
    /// Of the prompt.
    pub(crate) n_prompt: usize,
    /// Whose KV is there; fewer than `n_tokens`.
    pub(crate) n_evaluated: usize,
    /// Slots of its page table.
    pub(crate) n_slots: usize,
    /// Pages that nobody else needs.
    pub(crate) reclaimable: Pages,
    /// It was part of a step that failed; it has to be tried alone.
    pub(crate) is_suspect: bool,
    /// Its next tokens are in the pass that rests between layers; their places are among its slots.
    pub(crate) is_in_pass: bool,
}

/// Everything a plan depends on beside the limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State<'a> {
    /// Oldest first.
    pub(crate) running: &'a [SequenceState],
    /// Pages that are free or can be made so.
    pub(crate) available: Pages,
    /// The sequence whose prompt had the last turn.
    pub(crate) last_turn: u64,
}

/// What a step may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepLimits {
    /// Sequences that run.
    pub(crate) max_sequences: usize,
    /// Rows of a step.
    pub(crate) max_rows: usize,
    /// Rows of prompts in a pass beside which others generate; at least 1.
    pub(crate) shared_rows: usize,
    /// Sequences in such a pass; at least 1.
    pub(crate) shared_sequences: usize,
    /// Window pages that a sequence needs at most between steps.
    pub(crate) window_slots: usize,
}

/// What to do next. Made once and filled again and again.
#[derive(Debug, Default)]
pub(crate) struct StepPlan {
    /// One entry a running sequence.
    pub(crate) actions: Vec<Action>,
    /// The sequence whose prompt has the last turn now.
    pub(crate) last_turn: u64,
}

/// What happens to a running sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Its next tokens are evaluated; none if the step has no room.
    Evaluate(usize),
    /// It gives its pages back and waits.
    Preempt,
}

impl SequenceState {
    /// Which product the next token takes.
    pub(crate) fn phase(&self) -> Phase {
        if self.n_evaluated < self.n_prompt {
            Phase::Prefill
        } else {
            Phase::Decode
        }
    }

    /// Tokens of this phase that are to be evaluated.
    fn n_pending(&self) -> usize {
        match self.phase() {
            Phase::Prefill => self.n_prompt - self.n_evaluated,
            Phase::Decode => self.n_tokens - self.n_evaluated,
        }
    }

    /// It has all but the token drawn last.
    fn is_generating(&self) -> bool {
        self.phase() == Phase::Decode && self.n_pending() == 1
    }

    /// Slots it lacks for its first `n_tokens` tokens.
    fn n_missing_slots(&self, n_tokens: usize) -> usize {
        slots_for(n_tokens).saturating_sub(self.n_slots)
    }
}

/// How many of those that wait, in order, may start. `needed` are the slots each will take, its first token to draw included,
/// without those that running sequences hold already.
pub(crate) fn admit(
    state: &State<'_>,
    limits: &StepLimits,
    needed: impl IntoIterator<Item = usize>,
) -> usize {
    let pages = |n_slots: usize| Pages {
        full: n_slots,
        window: n_slots.min(limits.window_slots),
    };
    // What the running ones were admitted with stays theirs.
    let mut available = state.running.iter().fold(state.available, |left, running| {
        left.less(pages(running.n_missing_slots(running.n_tokens + 1)))
    });
    let n_running = state.running.len();
    needed
        .into_iter()
        .take(limits.max_sequences.saturating_sub(n_running))
        .enumerate()
        .take_while(|&(i, n_slots)| {
            // A page to grow for each that runs keeps a newcomer from being sent away at once.
            let n_others = n_running + i;
            let fits = available.cover(pages(n_slots).plus(Pages::both(n_others)));
            available = available.less(pages(n_slots));
            fits || n_others == 0
        })
        .count()
}

/// Whether a sequence of `n_tokens` tokens should wait for one that is computing its prompt, because it begins alike. `n_common`
/// tokens of that prompt are the same, `n_evaluated` of it are computed, and the newcomer would find `n_known` now. What is
/// gained by waiting comes in whole pages. The one waited for runs, so it gets on, is preempted, or ends: each of these ends
/// the wait.
pub(crate) fn is_worth_waiting(
    n_tokens: usize,
    n_common: usize,
    n_evaluated: usize,
    n_known: usize,
) -> bool {
    // The newcomer computes at least its last token.
    let pages = |n: usize| n / PAGE_LEN;
    pages(n_common.min(n_tokens.saturating_sub(1))) > pages(n_evaluated).max(pages(n_known))
}

/// Which of `n_waiting`, in order, may start, at most `n_free`: those that need not wait for one that runs, nor for one that
/// starts before them now.
pub(crate) fn may_start(
    n_waiting: usize,
    n_free: usize,
    mut waits_for_running: impl FnMut(usize) -> bool,
    mut waits_for: impl FnMut(usize, usize) -> bool,
) -> Vec<usize> {
    let mut starting: Vec<usize> = Vec::new();
    for i in 0..n_waiting {
        if starting.len() == n_free {
            break;
        }
        if !waits_for_running(i) && !starting.iter().any(|&other| waits_for(i, other)) {
            starting.push(i);
        }
    }
    starting
}

/// Fills `plan` with the next step.
pub(crate) fn plan(state: &State<'_>, limits: &StepLimits, plan: &mut StepPlan) {
    plan.actions.clear();
    plan.actions
        .resize(state.running.len(), Action::Evaluate(0));
    plan.last_turn = state.last_turn;
    let mut planner = Planner {
        running: state.running,
        available: state.available,
        n_free_rows: limits.max_rows,
        actions: &mut plan.actions,
    };
    if let Some(suspect) = state.running.iter().position(|s| s.is_suspect) {
        planner.evaluate(suspect, limits.max_rows);
        return;
    }
    for i in 0..state.running.len() {
        if state.running[i].is_generating() {
            planner.evaluate(i, 1);
        }
    }
    let is_shared = planner.n_free_rows < limits.max_rows;
    let mut n_rows = if is_shared {
        limits.shared_rows.max(1)
    } else {
        limits.max_rows
    };
    let mut n_sequences = if is_shared {
        limits.shared_sequences.max(1)
    } else {
        usize::MAX
    };
    // One pass at a time; those in it have all that it needs.
    if planner.is_pass_under_way() {
        return;
    }
    let first = (state.running).partition_point(|sequence| sequence.id <= state.last_turn);
    for turn in 0..state.running.len() {
        let i = (first + turn) % state.running.len();
        if n_rows > 0 && n_sequences > 0 && !state.running[i].is_generating() {
            let n_planned = planner.evaluate(i, n_rows);
            n_rows -= n_planned;
            if n_planned > 0 {
                plan.last_turn = state.running[i].id;
                n_sequences -= 1;
            }
        }
    }
}

/// A plan in the making.
struct Planner<'a> {
    running: &'a [SequenceState],
    available: Pages,
    n_free_rows: usize,
    actions: &'a mut [Action],
}

impl Planner<'_> {
    /// Whether a pass goes on: it does unless a sequence in it is preempted.
    fn is_pass_under_way(&self) -> bool {
        let members = || (self.running.iter().zip(&*self.actions)).filter(|(s, _)| s.is_in_pass);
        members().next().is_some() && members().all(|(_, action)| *action != Action::Preempt)
    }

    /// Plans up to `n_rows` rows of a sequence that has none yet, and returns how many. Whoever gets none for want of a page has
    /// taken those of the youngest.
    fn evaluate(&mut self, i: usize, n_rows: usize) -> usize {
        let sequence = &self.running[i];
        if self.actions[i] == Action::Preempt {
            return 0;
        }
        let n_rows = n_rows.min(sequence.n_pending()).min(self.n_free_rows);
        if n_rows > 0 && self.rows_in_pages(i) == 0 {
            self.preempt_youngest_after(i);
        }
        let n_rows = n_rows.min(self.rows_in_pages(i));
        let n_slots = sequence.n_missing_slots(sequence.n_evaluated + n_rows);
        self.available = self.available.less(Pages::both(n_slots));
        self.n_free_rows -= n_rows;
        self.actions[i] = Action::Evaluate(n_rows);
        n_rows
    }

    /// Tokens of a sequence that have a place in its pages and the available ones.
    fn rows_in_pages(&self, i: usize) -> usize {
        let sequence = &self.running[i];
        let n_slots = sequence.n_slots.saturating_add(self.available.slots());
        n_slots
            .saturating_mul(PAGE_LEN)
            .saturating_sub(sequence.n_evaluated)
    }

    /// One only: what its pages bring is exact for the first, an estimate for more, and the next plan knows better.
    fn preempt_youngest_after(&mut self, i: usize) {
        let youngest = (i + 1..self.running.len())
            .rev()
            .find(|&j| self.actions[j] != Action::Preempt);
        let Some(j) = youngest else { return };
        let sequence = &self.running[j];
        if let Action::Evaluate(n_rows) = self.actions[j] {
            let n_slots = sequence.n_missing_slots(sequence.n_evaluated + n_rows);
            self.available = self.available.plus(Pages::both(n_slots));
            self.n_free_rows += n_rows;
        }
        self.available = self.available.plus(sequence.reclaimable);
        self.actions[j] = Action::Preempt;
    }
}

#[cfg(test)]
mod schedules;

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const LIMITS: StepLimits = StepLimits {
        max_sequences: 4,
        max_rows: 512,
        shared_rows: 20,
        shared_sequences: usize::MAX,
        window_slots: usize::MAX,
    };

    /// A sequence with so many tokens evaluated of a prompt, whose pages hold just those.
    pub(super) fn prompt(id: u64, n_evaluated: usize, n_prompt: usize) -> SequenceState {
        SequenceState {
            id,
            n_tokens: n_prompt,
            n_prompt,
            n_evaluated,
            n_slots: slots_for(n_evaluated),
            reclaimable: pages(slots_for(n_evaluated)),
            is_suspect: false,
            is_in_pass: false,
        }
    }

    /// A sequence that has drawn its last token.
    fn generating(id: u64, n_evaluated: usize) -> SequenceState {
        SequenceState {
            n_tokens: n_evaluated + 1,
            ..prompt(id, n_evaluated, n_evaluated)
        }
    }

    pub(super) fn pages(full: usize) -> Pages {
        Pages {
            full,
            window: usize::MAX / 4,
        }
    }

    /// Rows of each, and `None` for those that are preempted.
    fn planned(running: &[SequenceState], n_free: usize, last_turn: u64) -> Vec<Option<usize>> {
        let state = State {
            running,
            available: pages(n_free),
            last_turn,
        };
        let mut step = StepPlan::default();
        plan(&state, &LIMITS, &mut step);
        step.actions
            .iter()
            .map(|action| match action {
                Action::Evaluate(n_rows) => Some(*n_rows),
                Action::Preempt => None,
            })
            .collect()
    }

    #[test]
    fn waiting_must_bring_a_page() {
        // Five pages in common, two computed.
        assert!(is_worth_waiting(400, 330, 130, 0));
        // Nothing but what is there already, here or in the cache.
        assert!(!is_worth_waiting(400, 330, 320, 0));
        assert!(!is_worth_waiting(400, 330, 130, 320));
        assert!(!is_worth_waiting(400, 63, 0, 0));
        // The last token is computed in any case.
        assert!(!is_worth_waiting(64, 64, 0, 0) && is_worth_waiting(65, 64, 0, 0));
    }

    #[test]
    fn a_lone_prompt_has_the_whole_step() {
        assert_eq!(planned(&[prompt(1, 0, 4000)], 100, 0), [Some(512)]);
        assert_eq!(planned(&[prompt(1, 3900, 4000)], 100, 0), [Some(100)]);
        assert_eq!(
            planned(&[prompt(1, 0, 300), prompt(2, 0, 300)], 100, 0),
            [Some(300), Some(212)]
        );
        // Pages are a limit as well.
        assert_eq!(planned(&[prompt(1, 0, 4000)], 2, 0), [Some(128)]);
    }

    #[test]
    fn those_that_generate_come_first_and_prompts_take_turns() {
        let running = [
            prompt(1, 0, 300),
            generating(2, 70),
            prompt(3, 0, 300),
            generating(4, 64),
        ];
        let rows = |a, b| [Some(a), Some(1), Some(b), Some(1)];
        assert_eq!(planned(&running, 100, 0), rows(20, 0));
        assert_eq!(planned(&running, 100, 1), rows(0, 20));
        assert_eq!(planned(&running, 100, 3), rows(20, 0));
        // What one leaves the next gets.
        let running = [prompt(1, 295, 300), generating(2, 70), prompt(3, 0, 300)];
        assert_eq!(planned(&running, 100, 0), [Some(5), Some(1), Some(15)]);
    }

    #[test]
    fn the_youngest_gives_way_to_the_oldest() {
        // All need a page for their next token; none is free.
        let running = [generating(1, 64), generating(2, 128), generating(3, 192)];
        assert_eq!(planned(&running, 0, 0), [Some(1), Some(1), None]);
        assert_eq!(planned(&running, 3, 0), [Some(1), Some(1), Some(1)]);
        // The last has nobody to take from.
        assert_eq!(planned(&running, 2, 0), [Some(1), Some(1), Some(0)]);
        // Those that need nothing go on.
        let running = [generating(1, 64), generating(2, 100)];
        assert_eq!(planned(&running[1..], 0, 0), [Some(1)]);
        // Pages that others share are not won; the next plan sees what is.
        let mut shared = generating(3, 192);
        shared.reclaimable = pages(0);
        assert_eq!(
            planned(&[generating(1, 64), generating(2, 128), shared], 0, 0),
            [Some(0), Some(0), None]
        );
    }

    #[test]
    fn after_a_failure_each_is_tried_alone() {
        let mut running = [generating(1, 10), generating(2, 10), prompt(3, 0, 9)];
        running[1].is_suspect = true;
        running[2].is_suspect = true;
        assert_eq!(planned(&running, 9, 0), [Some(0), Some(1), Some(0)]);
        running[1].is_suspect = false;
        assert_eq!(planned(&running, 9, 0), [Some(0), Some(0), Some(9)]);
    }

    #[test]
    fn one_pass_at_a_time() {
        let mut running = [generating(1, 70), prompt(2, 64, 300), prompt(3, 0, 300)];
        running[1].is_in_pass = true;
        assert_eq!(planned(&running, 100, 0), [Some(1), Some(0), Some(0)]);
        // It goes on when nobody generates any more, and is no more when one of it is sent away.
        assert_eq!(planned(&running[1..], 100, 0), [Some(0), Some(0)]);
        running[0] = generating(1, 64);
        running[2].is_in_pass = true;
        assert_eq!(planned(&running, 0, 0), [Some(0), Some(0), None]);
        running[2].reclaimable = pages(3);
        running[2].n_slots = 3;
        assert_eq!(planned(&running, 0, 0), [Some(1), Some(20), None]);
    }

    #[test]
    fn a_pass_may_be_of_one_sequence_only() {
        let running = [generating(1, 70), prompt(2, 0, 5), prompt(3, 0, 5)];
        assert_eq!(planned(&running, 100, 0), [Some(1), Some(5), Some(5)]);
        let state = State {
            running: &running,
            available: pages(100),
            last_turn: 0,
        };
        let limits = StepLimits {
            shared_sequences: 1,
            ..LIMITS
        };
        let mut step = StepPlan::default();
        plan(&state, &limits, &mut step);
        assert_eq!(
            step.actions[1..],
            [Action::Evaluate(5), Action::Evaluate(0)]
        );
        assert_eq!(step.last_turn, 2);
    }

    #[test]
    fn generated_tokens_are_computed_again_in_turn_with_prompts() {
        let again = SequenceState {
            n_tokens: 200,
            ..prompt(2, 130, 130)
        };
        assert_eq!(
            planned(&[generating(1, 10), again], 9, 0),
            [Some(1), Some(20)]
        );
    }

    #[test]
    fn as_many_start_as_there_are_pages_and_places_for() {
        let admitted = |running: &[SequenceState], n_free, needed: &[usize]| {
            let state = State {
                running,
                available: pages(n_free),
                last_turn: 0,
            };
            admit(&state, &LIMITS, needed.iter().copied())
        };
        assert_eq!(admitted(&[], 100, &[1; 9]), 4);
        assert_eq!(admitted(&[generating(1, 10)], 100, &[1; 9]), 3);
        // The first always starts, the others with a page to spare for each before them.
        assert_eq!(admitted(&[], 10, &[20]), 1);
        assert_eq!(admitted(&[], 10, &[4, 5]), 2);
        assert_eq!(admitted(&[], 10, &[4, 6]), 1);
        // What a running prompt still needs is not for others.
        assert_eq!(admitted(&[prompt(1, 0, 500)], 10, &[2]), 0);
        assert_eq!(admitted(&[prompt(1, 0, 500)], 11, &[2]), 1);
        // Nobody overtakes.
        assert_eq!(admitted(&[generating(1, 10)], 10, &[20, 1]), 0);
    }
}
