//! top_p, or nucleus sampling (Holtzman et al. 2019): keeps the smallest set of most likely tokens whose probabilities add up
//! to p. The token that crosses p stays, so at least one always does.

use super::Candidates;

/// Keeps this much probability; 0 keeps the most likely token alone.
#[derive(Clone, Debug)]
pub struct TopP {
    /// From 0 to 1.
    pub p: f32,
}

impl TopP {
    /// Drops the unlikely tail.
    pub fn apply(&self, candidates: &mut Candidates) {
        let p = f64::from(self.p);
        candidates.keep_mass(|logit| logit, |mass| mass >= p);
    }
}

#[cfg(test)]
mod tests {
    use super::super::reference::{Reference, assert_same_distribution, mixed_logits};
    use super::*;

    #[test]
    fn matches_a_sorted_reference() {
        for p in [0.0, 0.1, 0.5, 0.9, 0.95, 0.999] {
            for n in [1, 10, 1000, 5000] {
                let logits = mixed_logits(n, 12);
                let mut candidates = Candidates::new(n);
                candidates.load(&logits).unwrap();
                TopP { p }.apply(&mut candidates);
                let mut reference = Reference::new(&logits);
                reference.top_p(f64::from(p));
                assert_same_distribution(&candidates, &reference);
            }
        }
    }

    #[test]
    fn a_flat_vocabulary_keeps_its_share() {
        let logits = [0.0; 1000];
        let mut candidates = Candidates::new(1000);
        candidates.load(&logits).unwrap();
        TopP { p: 0.25 }.apply(&mut candidates);
        let ids: Vec<u32> = candidates.as_slice().iter().map(|entry| entry.id).collect();
        assert_eq!(ids, (0..250).collect::<Vec<u32>>());
    }
}
