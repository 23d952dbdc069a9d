//! Log-probabilities as callers see them: log-softmax of the model's own logits, before any step of the chain, of the drawn
//! token and of the most likely alternatives.

use super::candidates::{Candidates, Ranked, checked_max, select_best};
use super::softmax::sum_of_weights;
use super::{OptionError, SamplingError};
use crate::TokenId;

/// A token and the natural logarithm of its probability, at most 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub id: TokenId,
    /// `ln p`, finite for every token that can be drawn.
    pub logprob: f32,
}

/// What the model thought of one position.
#[derive(Clone, Debug, PartialEq)]
pub struct PositionLogprobs {
    /// The drawn token.
    pub chosen: TokenLogprob,
    /// The most likely tokens, best first; fewer than asked for when the rest is impossible. The drawn token need not be there.
    pub top: Vec<TokenLogprob>,
}

/// The most alternatives a caller may ask for at a position.
pub const MAX_TOP_LOGPROBS: usize = 128;

/// Checks a number of alternatives.
pub fn validate_top_logprobs(n_top: usize) -> Result<(), OptionError> {
    if n_top <= MAX_TOP_LOGPROBS {
        Ok(())
    } else {
        Err(OptionError::new(
            "logprobs",
            format!("from 0 to {MAX_TOP_LOGPROBS}"),
            n_top,
        ))
    }
}

/// Log-probabilities of `chosen` and of the `n_top` most likely tokens under `logits`. `scratch` is overwritten; only the
/// returned list is allocated.
pub(super) fn position_logprobs(
    logits: &[f32],
    chosen: TokenId,
    n_top: usize,
    scratch: &mut Candidates,
) -> Result<PositionLogprobs, SamplingError> {
    let max = checked_max(logits, logits.len())?;
    if max == f32::NEG_INFINITY {
        return Err(SamplingError::NothingToPick);
    }
    let log_sum = log_sum_above_max(logits, max);
    let logprob = |id: TokenId| {
        let logit = logits[id as usize];
        // Infinities come first, where the difference would be NaN. The sum is at least its largest term, so only rounding
        // could make a logarithm positive.
        let above_max = if logit == max {
            0.0
        } else {
            f64::from(logit) - f64::from(max)
        };
        TokenLogprob {
            id,
            logprob: ((above_max - log_sum) as f32).min(0.0),
        }
    };
    let mut top = Vec::with_capacity(n_top);
    if n_top > 0 {
        let (_, ranked) = scratch.scratch();
        let possible = logits
            .iter()
            .zip(0..)
            .filter(|(logit, _)| **logit > f32::NEG_INFINITY);
        select_best(
            ranked,
            possible.map(|(&key, id)| Ranked::new(key, id, 0.0)),
            n_top,
        );
        ranked.sort_unstable_by(Ranked::best_first);
        top.extend(
            ranked
                .iter()
                .map(|item| logprob(item.id()))
                .filter(|item| item.logprob > f32::NEG_INFINITY),
        );
    }
    Ok(PositionLogprobs {
        chosen: logprob(chosen),
        top,
    })
}

/// `ln(sum exp(logit - max))`, at least 0. At a maximum of positive infinity, the tokens there share everything.
fn log_sum_above_max(logits: &[f32], max: f32) -> f64 {
    if max == f32::INFINITY {
        return (logits.iter().filter(|&&logit| logit == max).count() as f64).ln();
    }
    sum_of_weights(logits, max).ln()
}

#[cfg(test)]
mod tests {
    use super::super::reference::mixed_logits;
    use super::*;

    #[test]
    fn matches_a_plain_log_softmax() {
        let logits = mixed_logits(3000, 17);
        let max = logits.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
        let sum: f64 = logits
            .iter()
            .map(|&logit| f64::from(logit - max).exp())
            .sum();
        let expected = |id: TokenId| f64::from(logits[id as usize] - max) - sum.ln();
        let mut order: Vec<TokenId> = (0..3000).collect();
        order.sort_by(|&a, &b| {
            logits[b as usize]
                .total_cmp(&logits[a as usize])
                .then(a.cmp(&b))
        });
        let mut scratch = Candidates::new(3000);
        for n_top in [0, 1, 5, 20, 128] {
            let result = position_logprobs(&logits, 77, n_top, &mut scratch).unwrap();
            assert!((f64::from(result.chosen.logprob) - expected(77)).abs() < 1e-4);
            let ids: Vec<TokenId> = result.top.iter().map(|item| item.id).collect();
            assert_eq!(ids, order[..n_top]);
            for item in &result.top {
                assert!((f64::from(item.logprob) - expected(item.id)).abs() < 1e-4);
            }
        }
    }

    #[test]
    fn impossible_tokens_are_not_alternatives() {
        let logits = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY, 1.0];
        let result = position_logprobs(&logits, 3, 4, &mut Candidates::new(4)).unwrap();
        assert_eq!(
            result.top.iter().map(|item| item.id).collect::<Vec<_>>(),
            [1, 3]
        );
        assert!((result.chosen.logprob - 0.5_f32.ln()).abs() < 1e-6);
        let infinite =
            position_logprobs(&[0.0, f32::INFINITY], 1, 2, &mut Candidates::new(2)).unwrap();
        assert_eq!(
            infinite.top,
            [TokenLogprob {
                id: 1,
                logprob: 0.0
            }]
        );
        assert_eq!(infinite.chosen.logprob, 0.0);
    }

    #[test]
    fn nan_is_an_error() {
        let error = position_logprobs(&[0.0, f32::NAN], 0, 1, &mut Candidates::new(2)).unwrap_err();
        assert_eq!(error, SamplingError::NanLogit { id: 1 });
    }
}
