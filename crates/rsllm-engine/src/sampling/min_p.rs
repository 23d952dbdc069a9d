//! min_p (Nguyen et al. 2024): drops tokens whose probability is below p times that of the most likely one. A comparison of
//! logits suffices: `logit >= max + ln p`.

use super::Candidates;

/// Keeps tokens at least this likely, as a share of the most likely one.
#[derive(Clone, Debug)]
pub struct MinP {
    /// Above 0, at most 1; 1 keeps only the most likely token and its equals.
    pub p: f32,
}

impl MinP {
    /// Drops the unlikely tail.
    pub fn apply(&self, candidates: &mut Candidates) {
        let bar = candidates.max_logit() + self.p.ln();
        candidates.retain(|entry| entry.logit >= bar);
    }
}

#[cfg(test)]
mod tests {
    use super::super::reference::{Reference, assert_same_distribution, mixed_logits};
    use super::*;

    #[test]
    fn matches_a_plain_reference() {
        for p in [1e-6, 0.05, 0.3, 1.0] {
            for n in [1, 10, 1000] {
                let logits = mixed_logits(n, 13);
                let mut candidates = Candidates::new(n);
                candidates.load(&logits).unwrap();
                MinP { p }.apply(&mut candidates);
                let mut reference = Reference::new(&logits);
                reference.min_p(f64::from(p));
                assert_same_distribution(&candidates, &reference);
            }
        }
    }

    #[test]
    fn banned_tokens_are_dropped_and_one_always_stays() {
        let mut candidates = Candidates::new(3);
        candidates
            .load(&[f32::NEG_INFINITY, -5.0, f32::NEG_INFINITY])
            .unwrap();
        MinP { p: 1.0 }.apply(&mut candidates);
        assert_eq!(candidates.as_slice().len(), 1);
        assert_eq!(candidates.as_slice()[0].id, 1);
    }
}
