//! The random pick: softmax over what the chain has left, then one draw. One number is taken from the generator a token, even
//! when a single candidate is left, so that the stream of draws does not depend on the distributions met on the way.

use super::candidates::Ranked;
use super::softmax::softmax_weight;
use super::{Candidates, Rng, SamplingError};
use crate::TokenId;

/// Draws a candidate with its probability.
pub(super) fn pick(candidates: &mut Candidates, rng: &mut Rng) -> Result<TokenId, SamplingError> {
    let unit = rng.next_unit();
    let total = weigh(candidates)?;
    let target = unit * total;
    let (_, weighed) = candidates.scratch();
    let mut mass = 0.0_f64;
    let mut last = None;
    for item in weighed.iter().filter(|item| item.weight > 0.0) {
        mass += f64::from(item.weight);
        last = Some(item.id());
        if mass > target {
            break;
        }
    }
    // `last` is also right when rounding kept the sum from reaching the target.
    last.ok_or(SamplingError::NothingToPick)
}

/// Adds each candidate's probability to `probabilities[id]`.
pub(super) fn write_probabilities(
    candidates: &mut Candidates,
    probabilities: &mut [f32],
) -> Result<(), SamplingError> {
    let total = weigh(candidates)?;
    let (_, weighed) = candidates.scratch();
    for item in weighed.iter() {
        probabilities[item.id() as usize] = (f64::from(item.weight) / total) as f32;
    }
    Ok(())
}

/// Leaves softmax weights in the scratch list, in order of id; returns their sum, at least 1.
fn weigh(candidates: &mut Candidates) -> Result<f64, SamplingError> {
    let max = candidates.max_logit();
    if max == f32::NEG_INFINITY {
        return Err(SamplingError::NothingToPick);
    }
    let (entries, weighed) = candidates.scratch();
    weighed.clear();
    weighed.extend(
        entries
            .iter()
            .map(|entry| Ranked::new(entry.logit, entry.id, softmax_weight(entry.logit, max))),
    );
    Ok(weighed.iter().map(|item| f64::from(item.weight)).sum())
}

#[cfg(test)]
mod tests {
    use super::super::reference::{Reference, chi_square, mixed_logits};
    use super::*;

    #[test]
    fn draws_follow_the_distribution() {
        let n_tokens = 24;
        let n_draws = 40_000;
        let logits = mixed_logits(n_tokens, 16);
        let expected = Reference::new(&logits).probabilities(n_tokens);
        let mut candidates = Candidates::new(n_tokens);
        let mut rng = Rng::new(2026);
        let mut counts = vec![0_u32; n_tokens];
        for _ in 0..n_draws {
            candidates.load(&logits).unwrap();
            counts[pick(&mut candidates, &mut rng).unwrap() as usize] += 1;
        }
        let (statistic, freedom) = chi_square(&counts, &expected);
        // Mean `freedom`, deviation sqrt(2 freedom): five deviations.
        assert!(
            statistic < freedom + 5.0 * (2.0 * freedom).sqrt(),
            "{statistic} with {freedom}"
        );
    }

    #[test]
    fn banned_tokens_are_never_drawn() {
        let logits = [
            f32::NEG_INFINITY,
            0.0,
            f32::NEG_INFINITY,
            -1.0,
            f32::NEG_INFINITY,
        ];
        let mut candidates = Candidates::new(5);
        let mut rng = Rng::new(3);
        for _ in 0..2000 {
            candidates.load(&logits).unwrap();
            assert!(matches!(pick(&mut candidates, &mut rng).unwrap(), 1 | 3));
        }
        candidates.load(&[f32::NEG_INFINITY; 5]).unwrap();
        assert_eq!(
            pick(&mut candidates, &mut rng),
            Err(SamplingError::NothingToPick)
        );
    }

    #[test]
    fn a_single_candidate_still_takes_a_number() {
        let (mut one, mut two) = (Rng::new(9), Rng::new(9));
        let mut candidates = Candidates::new(1);
        candidates.load(&[4.0]).unwrap();
        pick(&mut candidates, &mut one).unwrap();
        two.next_unit();
        assert_eq!(one, two);
    }
}
