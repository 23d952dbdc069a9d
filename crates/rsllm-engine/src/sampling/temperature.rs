//! Temperature: divides the logits, so values below 1 sharpen the distribution and values above flatten it. 0 is not a division
//! but the greedy pick, which the chain puts in its place.

use super::Candidates;

/// Divides the logits by `t`.
#[derive(Clone, Debug)]
pub struct Temperature {
    /// Above 0.
    pub t: f32,
}

impl Temperature {
    /// Scales the distances to the largest logit, which becomes 0: so a tiny `t` cannot overflow to positive infinity.
    pub fn apply(&self, candidates: &mut Candidates) {
        let max = candidates.max_logit();
        if max == f32::NEG_INFINITY {
            return;
        }
        for entry in candidates.as_mut_slice() {
            entry.logit = (entry.logit - max) / self.t;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::reference::{Reference, assert_same_distribution, mixed_logits};
    use super::*;

    #[test]
    fn matches_a_plain_reference() {
        for t in [0.1, 0.8, 1.0, 3.0, 100.0] {
            let logits = mixed_logits(400, 15);
            let mut candidates = Candidates::new(400);
            candidates.load(&logits).unwrap();
            Temperature { t }.apply(&mut candidates);
            let mut reference = Reference::new(&logits);
            reference.temperature(f64::from(t));
            assert_same_distribution(&candidates, &reference);
        }
    }

    #[test]
    fn the_smallest_temperature_is_greedy_without_nan() {
        let mut candidates = Candidates::new(4);
        candidates
            .load(&[-3.0e38, 3.0e38, 2.9e38, f32::NEG_INFINITY])
            .unwrap();
        Temperature {
            t: f32::from_bits(1),
        }
        .apply(&mut candidates);
        let logits: Vec<f32> = candidates
            .as_slice()
            .iter()
            .map(|entry| entry.logit)
            .collect();
        assert_eq!(
            logits,
            [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY, f32::NEG_INFINITY]
        );
    }
}
