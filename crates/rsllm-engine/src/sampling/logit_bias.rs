//! Logit bias: adds a constant to the logits of single tokens; negative infinity bans them. Comes first, as in the reference
//! engine, which also expresses "ignore the end of text" this way.

use super::Candidates;
use crate::TokenId;

/// Biases by token.
#[derive(Clone, Debug)]
pub struct LogitBias {
    /// In order of id, each id once. No NaN, no positive infinity.
    biases: Vec<(TokenId, f32)>,
}

impl LogitBias {
    /// The biases of `biases`; those of one token add up.
    pub fn new(mut biases: Vec<(TokenId, f32)>) -> Self {
        biases.sort_by_key(|&(id, _)| id);
        biases.dedup_by(|later, first| {
            let same = later.0 == first.0;
            if same {
                first.1 += later.1;
            }
            same
        });
        Self { biases }
    }

    /// The biases, in order of id.
    pub(super) fn biases(&self) -> &[(TokenId, f32)] {
        &self.biases
    }

    /// Adds the biases.
    pub fn apply(&self, candidates: &mut Candidates) {
        candidates.change(&self.biases, |logit, &bias| {
            // A banned token stays banned, and a sum beyond the range of f32 stays finite.
            if logit == f32::NEG_INFINITY || bias == f32::NEG_INFINITY {
                f32::NEG_INFINITY
            } else {
                (logit + bias).clamp(f32::MIN, f32::MAX)
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::TopK;
    use super::*;

    fn logits_after(bias: &LogitBias, logits: &[f32]) -> Vec<f32> {
        let mut candidates = Candidates::new(logits.len());
        candidates.load(logits).unwrap();
        bias.apply(&mut candidates);
        candidates
            .as_slice()
            .iter()
            .map(|entry| entry.logit)
            .collect()
    }

    #[test]
    fn biases_add_up_and_ban() {
        let bias = LogitBias::new(vec![(2, 1.0), (0, f32::NEG_INFINITY), (2, 0.5), (0, 100.0)]);
        assert_eq!(
            logits_after(&bias, &[5.0, 1.0, 1.0]),
            [f32::NEG_INFINITY, 1.0, 2.5]
        );
    }

    #[test]
    fn sums_stay_finite() {
        let bias = LogitBias::new(vec![(0, 3.0e38), (1, 3.0e38)]);
        assert_eq!(
            logits_after(&bias, &[3.0e38, f32::NEG_INFINITY]),
            [f32::MAX, f32::NEG_INFINITY]
        );
    }

    #[test]
    fn dropped_candidates_stay_dropped() {
        let mut candidates = Candidates::new(4);
        candidates.load(&[0.0, 3.0, 1.0, 2.0]).unwrap();
        TopK { k: 2 }.apply(&mut candidates);
        LogitBias::new(vec![(0, 9.0), (3, 9.0)]).apply(&mut candidates);
        let left: Vec<(TokenId, f32)> = candidates
            .as_slice()
            .iter()
            .map(|entry| (entry.id, entry.logit))
            .collect();
        assert_eq!(left, [(1, 3.0), (3, 11.0)]);
    }
}
