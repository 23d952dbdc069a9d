//! Locally typical sampling (Meister et al. 2022): ranks tokens by how near their surprise `-ln p` is to the entropy
//! `H = -sum p ln p`, and keeps the nearest until their probabilities exceed `typical_p`. It may drop the most likely token.

use super::Candidates;
use super::softmax::softmax_weight;

/// Keeps this much probability, most typical tokens first.
#[derive(Clone, Debug)]
pub struct Typical {
    /// From 0 to 1; 0 keeps the most typical token alone.
    pub p: f32,
}

impl Typical {
    /// Drops the least typical tokens.
    pub fn apply(&self, candidates: &mut Candidates) {
        let max = candidates.max_logit();
        // Both sums in f64: the entropy of a flat 262,144-token vocabulary adds terms of 5e-5.
        let (mut total, mut weighted) = (0.0_f64, 0.0_f64);
        for entry in candidates.as_slice() {
            let weight = f64::from(softmax_weight(entry.logit, max));
            total += weight;
            if weight > 0.0 {
                weighted += weight * f64::from(max - entry.logit);
            }
        }
        // With surprise = (max - logit) + ln total, the entropy is the mean of the first term plus the second; the second
        // cancels in their difference.
        let mean_gap = weighted / total;
        let typicality = |logit: f32| -(f64::from(max) - f64::from(logit) - mean_gap).abs() as f32;
        let p = f64::from(self.p);
        candidates.keep_mass(typicality, |mass| mass > p);
    }
}

#[cfg(test)]
mod tests {
    use super::super::reference::{Reference, assert_same_distribution, mixed_logits};
    use super::*;

    #[test]
    fn matches_a_sorted_reference() {
        for p in [0.0, 0.2, 0.5, 0.9, 0.99] {
            for n in [1, 10, 1000, 5000] {
                let logits = mixed_logits(n, 14);
                let mut candidates = Candidates::new(n);
                candidates.load(&logits).unwrap();
                Typical { p }.apply(&mut candidates);
                let mut reference = Reference::new(&logits);
                reference.typical(f64::from(p));
                assert_same_distribution(&candidates, &reference);
            }
        }
    }

    #[test]
    fn the_most_likely_token_can_be_untypical() {
        // One token of 40 % and twenty of 3 %: the entropy is 2.47, the surprises are 0.92 and 3.51.
        let mut logits = vec![0.0; 21];
        logits[0] = (0.40_f32 / 0.03).ln();
        let mut candidates = Candidates::new(21);
        candidates.load(&logits).unwrap();
        Typical { p: 0.5 }.apply(&mut candidates);
        let ids: Vec<u32> = candidates.as_slice().iter().map(|entry| entry.id).collect();
        assert_eq!(ids, (1..=17).collect::<Vec<u32>>());
    }

    #[test]
    fn only_banned_tokens_are_left_alone() {
        let mut candidates = Candidates::new(2);
        candidates.load(&[f32::NEG_INFINITY; 2]).unwrap();
        Typical { p: 0.5 }.apply(&mut candidates);
        assert_eq!(candidates.as_slice().len(), 2);
    }
}
