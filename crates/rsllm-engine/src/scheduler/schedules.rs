//! Random schedules against a model of the rules: sequences come and go, share beginnings and wait for them, are cancelled, run
//! out of pages, and are computed in passes over several steps. Every one must end, in an order that can be explained.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::tests::{LIMITS, pages, prompt};
use super::*;

/// A sequence of the simulation.
#[derive(Clone, Debug)]
struct Sim {
    state: SequenceState,
    /// Tokens at its end.
    n_end: usize,
    /// Sequences of one group begin with the same tokens, as many as both have of them.
    group: usize,
    n_shared: usize,
    /// When its caller goes away.
    cancelled_at: u64,
}

impl Sim {
    fn n_common(&self, other: &Self) -> usize {
        if self.group == other.group {
            self.n_shared.min(other.n_shared)
        } else {
            0
        }
    }

    /// Whether it should wait for what `other` computes.
    fn waits_for(&self, other: &Self, n_known: usize) -> bool {
        let other_computes = other.state.n_evaluated < other.state.n_prompt;
        let n_common = self.n_common(other);
        other_computes
            && is_worth_waiting(
                self.state.n_tokens,
                n_common,
                other.state.n_evaluated,
                n_known,
            )
    }
}

/// How a schedule goes, drawn at random.
#[derive(Clone, Debug)]
struct Case {
    arrivals: Vec<Arrival>,
    spare_pages: usize,
    max_sequences: usize,
    max_rows: usize,
    shared_rows: usize,
    /// Steps that a pass takes.
    pass_steps: usize,
    /// Whether what was computed is found again.
    has_cache: bool,
}

#[derive(Clone, Debug)]
struct Arrival {
    pause: usize,
    n_prompt: usize,
    n_generate: usize,
    group: usize,
    n_shared: usize,
    /// Steps until its caller goes away; often never.
    patience: Option<usize>,
}

fn cases() -> impl Strategy<Value = Case> {
    let arrival = (
        0usize..30,
        1usize..400,
        1usize..150,
        0usize..3,
        0usize..400,
        prop::option::weighted(0.2, 0usize..300),
    )
        .prop_map(
            |(pause, n_prompt, n_generate, group, n_shared, patience)| Arrival {
                pause,
                n_prompt,
                n_generate,
                group,
                n_shared: n_shared.min(n_prompt),
                patience,
            },
        );
    (
        prop::collection::vec(arrival, 1..12),
        0usize..12,
        1usize..6,
        6usize..80,
        1usize..40,
        1usize..4,
        any::<bool>(),
    )
        .prop_map(
            |(
                arrivals,
                spare_pages,
                max_sequences,
                max_rows,
                shared_rows,
                pass_steps,
                has_cache,
            )| Case {
                arrivals,
                spare_pages,
                max_sequences,
                max_rows,
                shared_rows,
                pass_steps,
                has_cache,
            },
        )
}

/// The state of a schedule.
struct World {
    case: Case,
    limits: StepLimits,
    n_pages: usize,
    waiting: VecDeque<Sim>,
    running: Vec<Sim>,
    last_turn: u64,
    n_started: u64,
    /// Rows of the sequences of the pass, and steps that it still takes.
    pass: Option<(Vec<(u64, usize)>, usize)>,
    /// Tokens of each group's beginning that were computed.
    computed: [usize; 3],
}

impl World {
    fn new(case: Case) -> Self {
        let longest = case
            .arrivals
            .iter()
            .map(|arrival| arrival.n_prompt + arrival.n_generate);
        let longest = longest.max().unwrap_or(0);
        Self {
            limits: StepLimits {
                max_sequences: case.max_sequences,
                max_rows: case.max_rows,
                shared_rows: case.shared_rows,
                ..LIMITS
            },
            n_pages: slots_for(longest) + case.spare_pages,
            case,
            waiting: VecDeque::new(),
            running: Vec::new(),
            last_turn: 0,
            n_started: 0,
            pass: None,
            computed: [0; 3],
        }
    }

    fn available(&self) -> Pages {
        let used: usize = self.running.iter().map(|sim| sim.state.n_slots).sum();
        pages(self.n_pages - used)
    }

    fn states(&self) -> Vec<SequenceState> {
        self.running.iter().map(|sim| sim.state).collect()
    }

    /// Whole pages of its beginning that it would find.
    fn n_known(&self, sim: &Sim) -> usize {
        if !self.case.has_cache {
            return 0;
        }
        let n_known = self.computed[sim.group].min(sim.n_shared);
        (n_known / PAGE_LEN * PAGE_LEN).min(sim.state.n_prompt - 1)
    }

    fn drop_cancelled(&mut self, now: u64) {
        self.waiting.retain(|sim| now < sim.cancelled_at);
        self.running.retain(|sim| now < sim.cancelled_at);
    }

    /// A pass without one of its sequences is none.
    fn check_pass(&mut self) {
        let Some((parts, _)) = &self.pass else { return };
        let is_there = |id: u64| {
            let mut running = self.running.iter();
            running.any(|sim| sim.state.id == id && sim.state.is_in_pass)
        };
        if !parts.iter().all(|&(id, _)| is_there(id)) {
            self.pass = None;
            self.limits.shared_sequences = 1;
            for sim in &mut self.running {
                sim.state.is_in_pass = false;
            }
        }
    }

    fn admit(&mut self) -> Result<(), TestCaseError> {
        let n_free = self.case.max_sequences - self.running.len();
        let waiting = &self.waiting;
        let known: Vec<usize> = waiting.iter().map(|sim| self.n_known(sim)).collect();
        let running = &self.running;
        let waits_for_running = |i: usize| {
            running
                .iter()
                .any(|other| waiting[i].waits_for(other, known[i]))
        };
        let waits_for = |i: usize, j: usize| waiting[i].waits_for(&waiting[j], known[i]);
        let candidates = may_start(waiting.len(), n_free, waits_for_running, waits_for);
        // The oldest waits for one that runs or for nobody; all others have somebody before them to wait for.
        prop_assert!(
            !candidates.is_empty() || !running.is_empty() || waiting.is_empty(),
            "all wait for each other"
        );
        for i in 0..waiting.len() {
            let starts_before = candidates.iter().any(|&j| j > i);
            let has_reason =
                waits_for_running(i) || candidates.iter().any(|&j| j < i && waits_for(i, j));
            prop_assert!(
                candidates.contains(&i) || !starts_before || has_reason,
                "overtaken"
            );
        }

        let states = self.states();
        let state = State {
            running: &states,
            available: self.available(),
            last_turn: self.last_turn,
        };
        let needed = candidates
            .iter()
            .map(|&i| slots_for(waiting[i].state.n_tokens + 1));
        let n_admitted = admit(&state, &self.limits, needed);
        prop_assert!(n_admitted > 0 || !running.is_empty() || waiting.is_empty());
        for (n_gone, &i) in candidates[..n_admitted].iter().enumerate() {
            if let Some(mut sim) = self.waiting.remove(i - n_gone) {
                // Found pages are shared, yet here each has its own.
                let n_slots = self.available().full;
                let n_known = known[i].min(n_slots * PAGE_LEN);
                sim.state.n_evaluated = n_known;
                sim.state.n_slots = slots_for(n_known);
                sim.state.reclaimable = pages(sim.state.n_slots);
                if sim.state.id == 0 {
                    self.n_started += 1;
                    sim.state.id = self.n_started;
                }
                let older = |other: &Sim| other.state.id < sim.state.id;
                let place = self.running.partition_point(older);
                self.running.insert(place, sim);
            }
        }
        prop_assert!(self.running.len() <= self.case.max_sequences);
        Ok(())
    }

    fn step(&mut self) -> Result<(), TestCaseError> {
        self.check_pass();
        let states = self.states();
        let state = State {
            running: &states,
            available: self.available(),
            last_turn: self.last_turn,
        };
        let mut step = StepPlan::default();
        plan(&state, &self.limits, &mut step);
        self.last_turn = step.last_turn;
        let rows = |i: usize| match step.actions[i] {
            Action::Evaluate(n_rows) => n_rows,
            Action::Preempt => 0,
        };
        self.check_plan(&states, &step.actions, rows)?;

        let is_shared = (0..states.len()).any(|i| states[i].is_generating() && rows(i) > 0);
        let mut parts = Vec::new();
        for (i, sim) in self.running.iter_mut().enumerate() {
            let state = &mut sim.state;
            state.n_slots = state.n_slots.max(slots_for(state.n_evaluated + rows(i)));
            if step.actions[i] == Action::Preempt {
                (state.n_evaluated, state.n_slots, state.is_in_pass) = (0, 0, false);
            } else if is_shared && !state.is_generating() {
                if rows(i) > 0 {
                    parts.push((state.id, rows(i)));
                }
            } else {
                evaluate(state, rows(i));
            }
            state.reclaimable = pages(state.n_slots);
        }
        for i in (0..self.running.len()).rev() {
            if step.actions[i] == Action::Preempt {
                self.waiting.push_front(self.running.remove(i));
            }
        }
        self.check_pass();
        self.advance_pass(parts, is_shared)?;
        for sim in &self.running {
            let computed = &mut self.computed[sim.group];
            *computed = (*computed).max(sim.n_shared.min(sim.state.n_evaluated));
        }
        let held: usize = self.running.iter().map(|sim| sim.state.n_slots).sum();
        prop_assert!(held <= self.n_pages, "{held} of {} pages", self.n_pages);
        self.running.retain(|sim| sim.state.n_tokens < sim.n_end);
        Ok(())
    }

    fn advance_pass(
        &mut self,
        parts: Vec<(u64, usize)>,
        is_shared: bool,
    ) -> Result<(), TestCaseError> {
        if !parts.is_empty() {
            prop_assert!(self.pass.is_none(), "one pass at a time");
            prop_assert!(parts.len() <= self.limits.shared_sequences);
            for sim in &mut self.running {
                sim.state.is_in_pass = parts.iter().any(|&(id, _)| id == sim.state.id);
            }
            self.pass = Some((parts, self.case.pass_steps));
        }
        let Some((parts, n_left)) = &mut self.pass else {
            return Ok(());
        };
        *n_left -= 1;
        if *n_left == 0 || !is_shared {
            for sim in &mut self.running {
                let part = parts.iter().find(|&&(id, _)| id == sim.state.id);
                if let Some(&(_, n_rows)) = part {
                    sim.state.is_in_pass = false;
                    evaluate(&mut sim.state, n_rows);
                }
            }
            self.pass = None;
            self.limits.shared_sequences = usize::MAX;
        }
        Ok(())
    }

    fn check_plan(
        &self,
        states: &[SequenceState],
        actions: &[Action],
        rows: impl Fn(usize) -> usize,
    ) -> Result<(), TestCaseError> {
        let sum = |is_wanted: fn(&SequenceState) -> bool| -> usize {
            (0..states.len())
                .filter(|&i| is_wanted(&states[i]))
                .map(&rows)
                .sum()
        };
        let n_generating = sum(SequenceState::is_generating);
        let n_others = sum(|state| !state.is_generating());
        prop_assert!(n_generating + n_others <= self.case.max_rows);
        prop_assert!(n_generating == 0 || n_others <= self.case.shared_rows);
        prop_assert!(
            actions.first() != Some(&Action::Preempt),
            "the oldest stays"
        );
        let does_something = n_generating + n_others > 0
            || actions.contains(&Action::Preempt)
            || self.pass.is_some();
        prop_assert!(does_something || states.is_empty());
        for (i, state) in states.iter().enumerate() {
            prop_assert!(rows(i) <= state.n_pending());
            // Whoever generates and has a place for its token gets a row.
            let has_page = state.n_missing_slots(state.n_tokens) == 0;
            let is_idle = actions[i] == Action::Evaluate(0);
            prop_assert!(!(state.is_generating() && has_page && is_idle));
        }
        Ok(())
    }
}

fn evaluate(state: &mut SequenceState, n_rows: usize) {
    state.n_evaluated += n_rows;
    if state.n_evaluated == state.n_tokens {
        state.n_tokens += 1;
    }
}

fn run(case: Case) -> Result<(), TestCaseError> {
    let mut to_come: VecDeque<(u64, Sim)> = VecDeque::new();
    let mut time = 0;
    for arrival in &case.arrivals {
        time += arrival.pause as u64;
        let sim = Sim {
            // Numbered when it starts.
            state: prompt(0, 0, arrival.n_prompt),
            n_end: arrival.n_prompt + arrival.n_generate,
            group: arrival.group,
            n_shared: arrival.n_shared,
            cancelled_at: arrival.patience.map_or(u64::MAX, |n| time + n as u64),
        };
        to_come.push_back((time, sim));
    }
    let n_tokens: usize = case
        .arrivals
        .iter()
        .map(|a| a.n_prompt + a.n_generate)
        .sum();
    // The oldest has a row at least every round of turns, after at most so many steps in which it takes pages.
    let patience = time as usize + n_tokens * (3 * case.max_sequences + 2) * (case.pass_steps + 1);
    let mut world = World::new(case);
    for now in 0.. {
        while to_come.front().is_some_and(|(time, _)| *time <= now) {
            world
                .waiting
                .extend(to_come.pop_front().map(|(_, sim)| sim));
        }
        world.drop_cancelled(now);
        if world.running.is_empty() && world.waiting.is_empty() && to_come.is_empty() {
            break;
        }
        prop_assert!((now as usize) < patience, "no end: {:?}", world.running);
        world.admit()?;
        world.step()?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn every_schedule_keeps_the_rules_and_ends(case in cases()) {
        run(case)?;
    }
}
