//! The greedy pick: the largest logit, and of equal ones the lowest id.

use super::candidates::checked_max;
use super::{Candidates, SamplingError};
use crate::TokenId;

/// The most likely candidate.
pub(super) fn pick(candidates: &Candidates) -> Result<TokenId, SamplingError> {
    let mut best: Option<super::Candidate> = None;
    for entry in candidates.as_slice() {
        if entry.logit > best.map_or(f32::NEG_INFINITY, |best| best.logit) {
            best = Some(*entry);
        }
    }
    best.map(|best| best.id).ok_or(SamplingError::NothingToPick)
}

/// The same straight from the logits, when no step comes before.
pub(super) fn pick_from_logits(
    logits: &[f32],
    vocab_size: usize,
) -> Result<TokenId, SamplingError> {
    let max = checked_max(logits, vocab_size)?;
    if max == f32::NEG_INFINITY {
        return Err(SamplingError::NothingToPick);
    }
    let position = logits
        .iter()
        .position(|&logit| logit == max)
        .expect("the maximum is one of the logits");
    Ok(position as TokenId)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(logits: &[f32]) -> Result<TokenId, SamplingError> {
        let mut candidates = Candidates::new(logits.len());
        candidates.load(logits)?;
        let picked = pick(&candidates);
        assert_eq!(picked, pick_from_logits(logits, logits.len()));
        picked
    }

    #[test]
    fn the_lowest_id_wins_ties() {
        let mut logits = [1.0; 40];
        (logits[17], logits[33]) = (2.0, 2.0);
        assert_eq!(both(&logits), Ok(17));
        assert_eq!(both(&[-0.0, 0.0]), Ok(0));
        assert_eq!(both(&[5.0, f32::INFINITY, f32::INFINITY]), Ok(1));
    }

    #[test]
    fn nothing_but_banned_tokens_is_an_error() {
        assert_eq!(
            both(&[f32::NEG_INFINITY; 20]),
            Err(SamplingError::NothingToPick)
        );
        assert_eq!(both(&[]), Err(SamplingError::NothingToPick));
        assert_eq!(
            both(&[0.0, f32::NAN]),
            Err(SamplingError::NanLogit { id: 1 })
        );
    }
}
