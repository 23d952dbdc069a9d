//! top_k: keeps the k most likely tokens.

use super::Candidates;

/// Keeps `k` candidates, `k` above 0; of equal logits the lower ids stay.
#[derive(Clone, Debug)]
pub struct TopK {
    /// How many stay.
    pub k: usize,
}

impl TopK {
    /// Drops all but the `k` best.
    pub fn apply(&self, candidates: &mut Candidates) {
        candidates.keep_best(self.k);
    }
}

#[cfg(test)]
mod tests {
    use super::super::reference::{Reference, assert_same_distribution, mixed_logits};
    use super::*;

    #[test]
    fn matches_a_sorted_reference() {
        for (n, k) in [
            (10, 3),
            (500, 40),
            (500, 499),
            (500, 500),
            (500, 900),
            (3000, 1000),
        ] {
            let logits = mixed_logits(n, 11);
            let mut candidates = Candidates::new(n);
            candidates.load(&logits).unwrap();
            TopK { k }.apply(&mut candidates);
            let mut reference = Reference::new(&logits);
            reference.top_k(k);
            assert_same_distribution(&candidates, &reference);
        }
    }
}
