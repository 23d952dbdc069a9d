//! Guessing the next tokens, to be verified in one step.
//!
//! Where the last few tokens have occurred before, what followed them then is a draft (prompt lookup); where they have not, a
//! draft model may guess, see `draft_model.rs`. The step computes the draft's rows beside the row it computes anyway; every
//! position is then drawn as usual, and the draft counts for as long as it is what was drawn. So the text is the same with
//! and without, whatever the sampling: rows of generated tokens have the same bits in any company, and the sampler sees the
//! same logits in the same order.
//!
//! Whether that pays is measured: the time of steps by their number of rows, what guesses cost, and how often they come true.

use crate::TokenId;

/// Tokens that must have occurred before.
const MATCH: usize = 3;
/// Longer agreement does not make a place better.
const BEST_MATCH: usize = 8;
/// Longest draft.
pub(crate) const MAX_DRAFT: usize = 15;
/// How far back is searched: the whole of it takes some tens of microseconds.
const MAX_DISTANCE: usize = 32_768;
/// Weight of the newest measurement.
const NEWEST: f32 = 0.2;
/// The same of one that is less than was thought, where few are made: disturbances only add.
const LESS: f32 = 0.5;
/// Gain in tokens a second below which a draft is not worth it.
const LEAST_GAIN: f32 = 1.03;
/// What is left of the cost of further rows after each time that they did not pay.
const HOPE: f32 = 0.9;
/// Tokens to go before drafts that did not pay are weighed again.
const SECOND_LOOK: u32 = 16;
/// Longest pause after drafts that were wrong, in tokens.
const LONGEST_PAUSE: u32 = 64;

/// Tokens that are guessed to come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Draft {
    ids: [TokenId; MAX_DRAFT],
    len: usize,
    /// They come from the draft model, else from the text.
    pub(crate) is_of_model: bool,
}

impl Draft {
    pub(crate) const NONE: Self = Self {
        ids: [0; MAX_DRAFT],
        len: 0,
        is_of_model: false,
    };

    pub(crate) fn ids(&self) -> &[TokenId] {
        &self.ids[..self.len]
    }

    /// Adds a token; there is room for [`MAX_DRAFT`].
    pub(crate) fn push(&mut self, id: TokenId) {
        self.ids[self.len] = id;
        self.len += 1;
    }
}

/// What a sequence has learnt about drafts of one kind from itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trust {
    /// How often a drafted token was right, of those that were looked at.
    hit_rate: f32,
    /// Tokens to go without a draft, and how many it will be after the next failure.
    pause: u32,
    next_pause: u32,
}

impl Trust {
    /// Hopeful.
    pub(crate) fn new() -> Self {
        Self {
            hit_rate: 0.7,
            pause: 0,
            next_pause: 1,
        }
    }

    /// How many tokens to guess next, at most `most`. `costs` says what a step takes that has `n_rows` rows without them, and
    /// `guess_ns` what a guess does.
    pub(crate) fn length(
        &mut self,
        most: usize,
        costs: &mut StepCosts,
        n_rows: usize,
        guess_ns: f32,
    ) -> usize {
        if self.pause > 0 {
            self.pause -= 1;
            return 0;
        }
        if most == 0 {
            return 0;
        }
        let n = costs.best_draft(n_rows, most.min(MAX_DRAFT), self.hit_rate, guess_ns);
        if n == 0 {
            // Texts change, and costs were perhaps measured when the machine was busy: look again later.
            self.pause = SECOND_LOOK;
            self.hit_rate = self.hit_rate.max(0.5);
            costs.hope();
        }
        n
    }

    /// Of a draft of `n_drafted` tokens, `n_right` were drawn.
    pub(crate) fn learn(&mut self, n_drafted: usize, n_right: usize) {
        for i in 0..n_drafted.min(n_right + 1) {
            let hit = if i < n_right { 1.0 } else { 0.0 };
            self.hit_rate += NEWEST * (hit - self.hit_rate);
        }
        if n_right == 0 {
            self.pause = self.next_pause;
            self.next_pause = (2 * self.next_pause).min(LONGEST_PAUSE);
        } else {
            self.next_pause = 1;
        }
    }
}

/// What followed the end of `ids` where it occurred before, at most `most` tokens.
pub(crate) fn look_up(ids: &[TokenId], most: usize) -> Draft {
    let mut draft = Draft::NONE;
    if let Some(start) = last_occurrence(ids) {
        for &id in ids[start..].iter().take(most.min(MAX_DRAFT)) {
            draft.push(id);
        }
    }
    draft
}

/// Where the text went on after the place that agrees best with its end; the latest of equals.
fn last_occurrence(ids: &[TokenId]) -> Option<usize> {
    let n = ids.len();
    let &[.., last] = ids else { return None };
    let first = n.saturating_sub(MAX_DISTANCE);
    let mut best = (MATCH - 1, None);
    // A place right before the end would be a draft of what is the end.
    for end in (first + 1..n).rev() {
        if ids[end - 1] != last {
            continue;
        }
        let before = &ids[first..end];
        let agreement = before
            .iter()
            .rev()
            .zip(ids.iter().rev())
            .take(BEST_MATCH)
            .take_while(|(a, b)| a == b)
            .count();
        if agreement > best.0 {
            best = (agreement, Some(end));
            if agreement == BEST_MATCH {
                break;
            }
        }
    }
    best.1
}

/// A moving average of nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measured {
    average: Option<f32>,
    /// The newest, as it was measured.
    last: f32,
}

impl Measured {
    /// What was measured; `expected` while nothing was.
    pub(crate) fn or(self, expected: f32) -> f32 {
        self.average.unwrap_or(expected)
    }

    /// A new measurement. One that was disturbed must not count for long, not even the first; two in a row are no chance.
    pub(crate) fn record(&mut self, new: f32, expected: f32) {
        let new = self.believed(new, expected);
        self.average = Some(self.average.map_or(new, |old| old + NEWEST * (new - old)));
    }

    /// As [`Self::record`], of something that is measured only for as long as it is cheap: one dear measurement, even the first,
    /// must not keep it from being tried again.
    fn record_tried(&mut self, new: f32, expected: f32) {
        let new = self.believed(new, expected);
        let old = self.or(expected);
        let share = match self.average {
            None if new < old => 1.0,
            Some(_) if new >= old => NEWEST,
            _ => LESS,
        };
        self.average = Some(old + share * (new - old));
    }

    fn believed(&mut self, new: f32, expected: f32) -> f32 {
        let believable = self.last.max(4.0 * self.or(expected));
        self.last = new;
        new.min(believable)
    }

    /// Comes `share` of the way back to `expected`: what is not tried is not measured either.
    pub(crate) fn forget(&mut self, share: f32, expected: f32) {
        if let Some(ns) = &mut self.average {
            *ns += share * (expected.min(*ns) - *ns);
        }
    }
}

/// Nanoseconds of a step by its rows of generated tokens. Steps with prompts do not count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepCosts {
    by_rows: [Measured; StepCosts::MOST + 1],
}

impl StepCosts {
    /// Rows beyond which nothing is drafted: a pass over the weights serves so many at once.
    pub(crate) const MOST: usize = MAX_DRAFT + 1;
    /// A guess: what a further row adds, as a share of the first.
    const GUESS: f32 = 0.15;

    pub(crate) fn new() -> Self {
        Self {
            by_rows: [Measured::default(); Self::MOST + 1],
        }
    }

    /// A step of `n_rows` rows took `step_ns`.
    pub(crate) fn record(&mut self, n_rows: usize, step_ns: u64) {
        if n_rows <= Self::MOST {
            let new = step_ns as f32;
            // Nothing is known of how long a step takes before the first.
            let expected = if self.alone().is_some() {
                self.of(n_rows)
            } else {
                new
            };
            let measured = &mut self.by_rows[n_rows];
            if n_rows > 1 {
                measured.record_tried(new, expected);
            } else {
                measured.record(new, expected);
            }
        }
    }

    /// Steps of several rows may have become cheaper.
    fn hope(&mut self) {
        if let Some(one) = self.alone() {
            for cost in &mut self.by_rows[2..] {
                cost.forget(1.0 - HOPE, one);
            }
        }
    }

    /// Between two that are known on the line between them, so that not every number has to be tried; behind them with a guess.
    fn of(&self, n_rows: usize) -> f32 {
        let one = self.by_rows[1].or(1.0);
        let known = |n: usize| self.by_rows[n].average.map(|ns| (n, ns));
        let Some((below, below_ns)) = (1..=n_rows).rev().find_map(known) else {
            return one * (1.0 + Self::GUESS * (n_rows as f32 - 1.0));
        };
        let more = (n_rows - below) as f32;
        match (n_rows..=Self::MOST).find_map(known) {
            Some((above, above_ns)) if above > below => {
                below_ns + (above_ns - below_ns) / (above - below) as f32 * more
            }
            _ => below_ns + Self::GUESS * one * more,
        }
    }

    /// What a step of one row takes; `None` while unknown.
    pub(crate) fn alone(&self) -> Option<f32> {
        self.by_rows[1].average
    }

    /// The length of a draft that makes most tokens a second in a step of `n_rows` rows, if a drafted token is right at
    /// `hit_rate` and takes `guess_ns` to guess; 0 where none pays.
    fn best_draft(&self, n_rows: usize, most: usize, hit_rate: f32, guess_ns: f32) -> usize {
        if n_rows == 0 || n_rows >= Self::MOST {
            return 0;
        }
        let alone = self.of(n_rows);
        let (mut best, mut best_gain) = (0, LEAST_GAIN);
        let (mut expected, mut all_right) = (1.0, 1.0);
        for n in 1..=most.min(Self::MOST - n_rows) {
            all_right *= hit_rate;
            expected += all_right;
            let gain = expected * alone / (self.of(n_rows + n) + guess_ns * n as f32);
            if gain > best_gain {
                (best, best_gain) = (n, gain);
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cheap() -> StepCosts {
        StepCosts::new()
    }

    #[test]
    fn a_repeated_phrase_goes_on_as_it_did() {
        let ids = [1, 2, 3, 4, 5, 9, 9, 1, 2, 3];
        assert_eq!(look_up(&ids, 2).ids(), [4, 5]);
        // Two tokens in common are chance, and what never occurred has no continuation.
        for ids in [&[7, 2, 3, 4, 8, 2, 3][..], &[1, 2, 3], &[1], &[]] {
            assert_eq!(look_up(ids, 4), Draft::NONE);
        }
    }

    #[test]
    fn the_longest_agreement_wins_then_the_latest() {
        let ids = [5, 1, 2, 3, 10, 6, 1, 2, 3, 11, 7, 1, 2, 3, 12, 6, 1, 2, 3];
        assert_eq!(ids[last_occurrence(&ids).unwrap()], 11);
        let ids = [5, 1, 2, 3, 10, 6, 1, 2, 3, 11, 9, 1, 2, 3];
        assert_eq!(ids[last_occurrence(&ids).unwrap()], 11);
    }

    #[test]
    fn wrong_drafts_pause_longer_and_longer_and_a_right_one_ends_that() {
        let mut trust = Trust::new();
        let mut pauses = Vec::new();
        for _ in 0..5 {
            trust.learn(1, 0);
            let mut pause = 0;
            while trust.pause > 0 {
                assert_eq!(trust.length(4, &mut cheap(), 1, 0.0), 0);
                pause += 1;
            }
            pauses.push(pause);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16]);
        trust.learn(4, 4);
        trust.learn(1, 0);
        assert_eq!(trust.pause, 1);
    }

    fn costs(ns_of_rows: impl Fn(u64) -> u64) -> StepCosts {
        let mut costs = StepCosts::new();
        for rows in 1..=StepCosts::MOST {
            // What is dear is believed after some times only.
            for _ in 0..8 {
                costs.record(rows, ns_of_rows(rows as u64));
            }
        }
        costs
    }

    #[test]
    fn drafts_are_as_long_as_they_pay() {
        let free = costs(|_| 1_000_000);
        assert_eq!(free.best_draft(1, MAX_DRAFT, 0.9, 0.0), MAX_DRAFT);
        assert_eq!(free.best_draft(StepCosts::MOST, MAX_DRAFT, 1.0, 0.0), 0);
        let dear = costs(|rows| rows * 1_000_000);
        assert_eq!(dear.best_draft(1, MAX_DRAFT, 0.9, 0.0), 0);
    }

    #[test]
    fn a_single_disturbed_measurement_counts_little() {
        let mut measured = Measured::default();
        measured.record(1_000.0, 10.0);
        assert!(measured.or(0.0) <= 40.0);
        for _ in 0..3 {
            measured.record(1_000.0, 10.0);
        }
        assert!(measured.or(0.0) > 400.0, "it is so");
        measured.forget(0.5, 10.0);
        assert!(measured.or(0.0) < 300.0);
    }

    #[test]
    fn what_is_tried_seldom_gets_a_second_try() {
        let mut measured = Measured::default();
        measured.record_tried(400.0, 100.0);
        assert_eq!(measured.or(0.0), 250.0);
        measured.record_tried(100.0, 100.0);
        assert_eq!(measured.or(0.0), 175.0);
        measured.record_tried(275.0, 100.0);
        assert!((measured.or(0.0) - 195.0).abs() < 0.1);
        let mut cheap = Measured::default();
        cheap.record_tried(80.0, 100.0);
        assert_eq!(cheap.or(0.0), 80.0);
    }

    #[test]
    fn costs_that_are_not_known_lie_between_those_that_are() {
        let mut costs = StepCosts::new();
        assert!(costs.of(8) > costs.of(2) && costs.of(2) > costs.of(1));
        costs.record(1, 100);
        costs.record(9, 200);
        assert_eq!([1, 5, 9].map(|n| costs.of(n)), [100.0, 150.0, 200.0]);
        assert!(costs.of(10) > 200.0);
    }

    #[test]
    fn what_a_busy_machine_measured_is_tried_again() {
        let mut costs = StepCosts::new();
        costs.record(1, 1_000);
        for _ in 0..100 {
            for rows in 2..=StepCosts::MOST {
                costs.record(rows, 100_000);
            }
        }
        let mut trust = Trust::new();
        let mut n_tokens = 0;
        while trust.length(4, &mut costs, 1, 0.0) == 0 {
            n_tokens += 1;
            assert!(n_tokens < 3_000, "it must look again some time");
        }
        assert!(n_tokens > 5 * LONGEST_PAUSE, "but not soon: {n_tokens}");
    }

    #[test]
    fn guesses_that_cost_time_are_fewer_and_none_where_they_cost_too_much() {
        let mut free = costs(|_| 1_000_000);
        let few = free.best_draft(1, MAX_DRAFT, 0.7, 200_000.0);
        assert!((1..MAX_DRAFT).contains(&few), "{few}");
        assert_eq!(free.best_draft(1, MAX_DRAFT, 0.7, 800_000.0), 0);
        let mut trust = Trust::new();
        assert_eq!(trust.length(MAX_DRAFT, &mut free, 1, 200_000.0), few);
        assert_eq!(trust.length(MAX_DRAFT, &mut free, 1, 800_000.0), 0);
        assert_eq!(trust.pause, SECOND_LOOK, "it looks again later");
    }

    proptest! {
        #[test]
        fn a_draft_is_a_part_of_the_text(
            ids in prop::collection::vec(0u32..4, 0..200),
            most in 0usize..40,
        ) {
            let draft = look_up(&ids, most);
            let draft = draft.ids();
            prop_assert!(draft.len() <= most.min(MAX_DRAFT));
            if !draft.is_empty() {
                let phrase = [&ids[ids.len() - MATCH..], draft].concat();
                prop_assert!(ids.windows(phrase.len()).any(|window| window == phrase));
            }
        }

        #[test]
        fn a_step_never_has_more_rows_than_are_served_at_once(
            most in 0usize..40,
            n_rows in 0usize..12,
            guess_ns in 0f32..1e6,
        ) {
            let n = Trust::new().length(most, &mut cheap(), n_rows, guess_ns);
            prop_assert!(n <= most.min(MAX_DRAFT));
            prop_assert!(n == 0 || n_rows + n <= StepCosts::MOST);
        }
    }
}
