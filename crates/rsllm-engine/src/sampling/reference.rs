//! The oracle of the sampler's tests: the same steps written down plainly, in f64, with full sorts.

use super::Candidates;
use crate::TokenId;

/// Candidates as (id, logit) pairs, in any order.
pub(crate) struct Reference {
    pub(crate) entries: Vec<(TokenId, f64)>,
}

impl Reference {
    pub(crate) fn new(logits: &[f32]) -> Self {
        Self {
            entries: logits
                .iter()
                .zip(0..)
                .map(|(&logit, id)| (id, f64::from(logit)))
                .collect(),
        }
    }

    pub(crate) fn top_k(&mut self, k: usize) {
        self.sort();
        self.entries.truncate(k);
    }

    pub(crate) fn top_p(&mut self, p: f64) {
        self.sort();
        let shares = self.shares();
        let mut mass = 0.0;
        let kept = shares.iter().position(|share| {
            mass += share;
            mass >= p
        });
        self.entries
            .truncate(kept.map_or(shares.len(), |last| last + 1));
    }

    pub(crate) fn min_p(&mut self, p: f64) {
        self.sort();
        let shares = self.shares();
        let kept = shares
            .iter()
            .filter(|&&share| share >= p * shares[0] * (1.0 - 1e-7))
            .count();
        self.entries.truncate(kept);
    }

    pub(crate) fn typical(&mut self, p: f64) {
        self.sort();
        let shares = self.shares();
        let entropy: f64 = shares
            .iter()
            .filter(|&&share| share > 0.0)
            .map(|share| -share * share.ln())
            .sum();
        let mut order: Vec<usize> = (0..shares.len()).collect();
        let distance = |i: usize| (-shares[i].ln() - entropy).abs();
        order.sort_by(|&a, &b| {
            distance(a)
                .total_cmp(&distance(b))
                .then(self.entries[a].0.cmp(&self.entries[b].0))
        });
        let mut mass = 0.0;
        let mut kept = Vec::new();
        for i in order {
            mass += shares[i];
            kept.push(self.entries[i]);
            if mass > p {
                break;
            }
        }
        self.entries = kept;
    }

    pub(crate) fn temperature(&mut self, t: f64) {
        self.entries.iter_mut().for_each(|(_, logit)| *logit /= t);
    }

    /// Probabilities of all tokens of a vocabulary.
    pub(crate) fn probabilities(&self, vocab_size: usize) -> Vec<f64> {
        let mut probabilities = vec![0.0; vocab_size];
        for (&(id, _), share) in self.entries.iter().zip(self.shares()) {
            probabilities[id as usize] = share;
        }
        probabilities
    }

    fn sort(&mut self) {
        self.entries
            .sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    }

    fn shares(&self) -> Vec<f64> {
        let max = self
            .entries
            .iter()
            .map(|entry| entry.1)
            .fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = self
            .entries
            .iter()
            .map(|entry| (entry.1 - max).exp())
            .collect();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / total).collect()
    }
}

/// Same tokens kept, same probabilities within f32 rounding.
pub(crate) fn assert_same_distribution(candidates: &Candidates, reference: &Reference) {
    let mut expected = reference.entries.clone();
    expected.sort_by_key(|entry| entry.0);
    let ids: Vec<TokenId> = candidates.as_slice().iter().map(|entry| entry.id).collect();
    assert_eq!(
        ids,
        expected.iter().map(|entry| entry.0).collect::<Vec<_>>()
    );
    let kept = Reference {
        entries: candidates
            .as_slice()
            .iter()
            .map(|e| (e.id, f64::from(e.logit)))
            .collect(),
    };
    let expected = Reference { entries: expected };
    for (ours, theirs) in kept.shares().iter().zip(expected.shares()) {
        assert!(
            (ours - theirs).abs() <= 1e-5 * theirs + 1e-9,
            "{ours} is not {theirs}"
        );
    }
}

/// Logits like a model's: a few high ones over a broad rest, with no two cumulative shares near a round number.
pub(crate) fn mixed_logits(n: usize, seed: u64) -> Vec<f32> {
    let mut rng = super::Rng::new(seed);
    (0..n)
        .map(|i| {
            let broad = (rng.next_unit() + rng.next_unit() + rng.next_unit()) as f32 * 4.0 - 6.0;
            if i % 97 == 3 { broad + 6.0 } else { broad }
        })
        .collect()
}

/// Pearson's statistic and its degrees of freedom, with rare tokens pooled.
pub(crate) fn chi_square(counts: &[u32], probabilities: &[f64]) -> (f64, f64) {
    let n_draws = f64::from(counts.iter().sum::<u32>());
    let (mut statistic, mut cells) = (0.0, 0_u32);
    let mut rare = (0.0, 0.0);
    let mut add = |observed: f64, expected: f64| {
        statistic += (observed - expected).powi(2) / expected;
        cells += 1;
    };
    for (&count, probability) in counts.iter().zip(probabilities) {
        let expected = probability * n_draws;
        if expected == 0.0 {
            assert_eq!(count, 0, "an impossible token was drawn");
        } else if expected < 10.0 {
            rare = (rare.0 + f64::from(count), rare.1 + expected);
        } else {
            add(f64::from(count), expected);
        }
    }
    if rare.1 > 0.0 {
        add(rare.0, rare.1);
    }
    (statistic, f64::from(cells.saturating_sub(1)))
}
