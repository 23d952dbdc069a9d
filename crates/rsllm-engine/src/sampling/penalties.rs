//! Penalties on recent tokens. For a token that occurs c > 0 times in the window: a positive logit is divided by the repeat
//! penalty and any other multiplied by it; then `c * frequency + presence` is taken off. Formulas of Keskar et al. 2019 (CTRL)
//! and of OpenAI's API; the window holds prompt and generated tokens alike, as in the reference engine.

use std::collections::VecDeque;

use super::Candidates;
use crate::TokenId;

/// The penalties and the window they look at.
#[derive(Clone, Debug)]
pub struct Penalties {
    repeat: f32,
    presence: f32,
    frequency: f32,
    /// Window length in tokens.
    capacity: usize,
    /// The window, oldest first.
    recent: VecDeque<TokenId>,
    /// How often each token occurs in the window, in order of id. A sorted list beats a table of the vocabulary: it is as long
    /// as the window at most.
    counts: Vec<(TokenId, u32)>,
}

impl Penalties {
    /// Penalties over the last `capacity` tokens; all memory is taken here.
    pub fn new(repeat: f32, presence: f32, frequency: f32, capacity: usize) -> Self {
        Self {
            repeat,
            presence,
            frequency,
            capacity,
            recent: VecDeque::with_capacity(capacity),
            counts: Vec::with_capacity(capacity),
        }
    }

    /// Moves the window on by one token.
    pub fn accept(&mut self, id: TokenId) {
        if self.capacity == 0 {
            return;
        }
        if self.recent.len() == self.capacity
            && let Some(oldest) = self.recent.pop_front()
        {
            self.forget(oldest);
        }
        self.recent.push_back(id);
        match self.counts.binary_search_by_key(&id, |&(id, _)| id) {
            Ok(position) => self.counts[position].1 += 1,
            Err(position) => self.counts.insert(position, (id, 1)),
        }
    }

    /// How often each token of the window occurs in it, in order of id.
    pub(super) fn counts(&self) -> &[(TokenId, u32)] {
        &self.counts
    }

    /// Lowers the logits of recent tokens.
    pub fn apply(&self, candidates: &mut Candidates) {
        candidates.change(&self.counts, |logit, &count| self.penalised(logit, count));
    }

    fn forget(&mut self, id: TokenId) {
        let position = self
            .counts
            .binary_search_by_key(&id, |&(id, _)| id)
            .expect("each token of the window is counted");
        self.counts[position].1 -= 1;
        if self.counts[position].1 == 0 {
            self.counts.remove(position);
        }
    }

    fn penalised(&self, logit: f32, count: u32) -> f32 {
        if logit == f32::NEG_INFINITY {
            return logit;
        }
        let scaled = if logit <= 0.0 {
            logit * self.repeat
        } else {
            logit / self.repeat
        };
        // Penalties may also favour tokens; the bounds keep a huge logit finite then.
        (scaled - (count as f32 * self.frequency + self.presence)).clamp(f32::MIN, f32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::TopK;
    use super::*;

    fn logits_after(penalties: &Penalties, logits: &[f32]) -> Vec<f32> {
        let mut candidates = Candidates::new(logits.len());
        candidates.load(logits).unwrap();
        penalties.apply(&mut candidates);
        candidates
            .as_slice()
            .iter()
            .map(|entry| entry.logit)
            .collect()
    }

    #[test]
    fn formula_holds_for_both_signs() {
        let mut penalties = Penalties::new(2.0, 0.5, 0.25, 8);
        for id in [0, 1, 1, 2, 99] {
            penalties.accept(id);
        }
        let after = logits_after(&penalties, &[4.0, -3.0, 0.0, 7.0]);
        assert_eq!(
            after,
            [2.0 - 0.25 - 0.5, -6.0 - 0.5 - 0.5, 0.0 - 0.25 - 0.5, 7.0]
        );
    }

    #[test]
    fn the_window_forgets() {
        let mut penalties = Penalties::new(1.0, 1.0, 0.0, 2);
        for id in [0, 1, 2] {
            penalties.accept(id);
        }
        assert_eq!(
            logits_after(&penalties, &[0.0, 0.0, 0.0]),
            [0.0, -1.0, -1.0]
        );
    }

    #[test]
    fn a_window_of_nothing_does_nothing() {
        let mut penalties = Penalties::new(9.0, 9.0, 9.0, 0);
        penalties.accept(0);
        assert_eq!(logits_after(&penalties, &[1.0]), [1.0]);
    }

    #[test]
    fn huge_logits_stay_finite_and_banned_ones_banned() {
        let mut penalties = Penalties::new(0.01, -100.0, 0.0, 4);
        for id in 0..3 {
            penalties.accept(id);
        }
        let after = logits_after(&penalties, &[3.0e38, f32::NEG_INFINITY, -3.0e38]);
        assert_eq!(after, [f32::MAX, f32::NEG_INFINITY, -3.0e38 * 0.01]);
    }

    proptest! {
        #[test]
        fn counts_follow_the_window(ids in prop::collection::vec(0_u32..6, 0..60), capacity in 0_usize..12, k in 1_usize..6) {
            let mut penalties = Penalties::new(1.5, 0.25, 0.5, capacity);
            for &id in &ids { penalties.accept(id); }
            let window = &ids[ids.len().saturating_sub(capacity)..];
            let logits = [1.0, -1.0, 0.0, 2.0, -2.0, 3.0_f32];
            let expected: Vec<f32> = logits.iter().zip(0_u32..).map(|(&logit, id)| {
                let count = window.iter().filter(|&&seen| seen == id).count() as f32;
                if count == 0.0 { return logit; }
                let scaled = if logit <= 0.0 { logit * 1.5 } else { logit / 1.5 };
                scaled - (count * 0.5 + 0.25)
            }).collect();
            prop_assert_eq!(logits_after(&penalties, &logits), expected.clone());
            // The same after a step that dropped candidates.
            let mut candidates = Candidates::new(6);
            candidates.load(&logits).unwrap();
            TopK { k }.apply(&mut candidates);
            penalties.apply(&mut candidates);
            for entry in candidates.as_slice() {
                prop_assert_eq!(entry.logit, expected[entry.id as usize]);
            }
        }
    }
}
