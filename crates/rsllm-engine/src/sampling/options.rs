//! What a caller may ask of the sampler, and the ranges in which it makes sense. A value outside its range is an error that
//! names the option; nothing is clamped. Defaults are the reference engine's, which design also fixes in part
//! (`temperature` 0.8, `repeat_penalty` 1.0).

use std::fmt::Display;

use thiserror::Error;

use crate::TokenId;

/// How a sequence draws its tokens. Every field has a neutral value at which its step leaves the chain altogether.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingOptions {
    /// Added to the logits of single tokens; negative infinity bans one. Default none.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Divides the logits; 0 picks the most likely token. 0 to 100, default 0.8.
    pub temperature: f32,
    /// Keeps this many of the most likely tokens; 0 keeps all. Default 40.
    pub top_k: usize,
    /// Keeps the smallest set of most likely tokens that holds this much probability. 0 to 1, default 0.95, neutral 1.
    pub top_p: f32,
    /// Drops tokens less likely than this share of the most likely one. 0 to 1, default 0.05, neutral 0.
    pub min_p: f32,
    /// Keeps the tokens whose surprise is nearest to the entropy, up to this much probability. 0 to 1, default and neutral 1.
    pub typical_p: f32,
    /// Divides positive and multiplies negative logits of recent tokens. Above 0 to 100, default and neutral 1.
    pub repeat_penalty: f32,
    /// Taken once from the logit of each recent token. -100 to 100, default and neutral 0.
    pub presence_penalty: f32,
    /// Taken from the logit of a recent token once an occurrence. -100 to 100, default and neutral 0.
    pub frequency_penalty: f32,
    /// Which tokens count as recent, prompt included. Default the last 64.
    pub repeat_last_n: RepeatWindow,
    /// The seed of the sequence's generator; `None` asks the operating system.
    pub seed: Option<u64>,
}

/// The tokens that the penalties look back on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepeatWindow {
    /// At most this many tokens; 0 turns the penalties off.
    Last(usize),
    /// All tokens of the sequence.
    Context,
}

/// An option with a value it cannot have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("option `{name}` must be {expected}, not {found}")]
pub struct OptionError {
    /// The option as callers write it.
    pub name: &'static str,
    /// The accepted values, in words.
    pub expected: String,
    /// The value that was given.
    pub found: String,
}

impl Default for SamplingOptions {
    fn default() -> Self {
        Self {
            logit_bias: Vec::new(),
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repeat_last_n: RepeatWindow::Last(64),
            seed: None,
        }
    }
}

impl SamplingOptions {
    /// The most likely token each time, with no penalties.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            ..Self::default()
        }
    }

    /// Checks each option against its range; NaN and infinities are in none.
    pub fn validate(&self) -> Result<(), OptionError> {
        check_range("temperature", self.temperature, 0.0, MAX_TEMPERATURE)?;
        if self.top_k > MAX_COUNT {
            return Err(OptionError::new(
                "top_k",
                format!("from 0 to {MAX_COUNT}"),
                self.top_k,
            ));
        }
        check_range("top_p", self.top_p, 0.0, 1.0)?;
        check_range("min_p", self.min_p, 0.0, 1.0)?;
        check_range("typical_p", self.typical_p, 0.0, 1.0)?;
        // Written so that NaN fails too.
        if !(self.repeat_penalty > 0.0 && self.repeat_penalty <= MAX_PENALTY) {
            let expected = format!("above 0 and at most {MAX_PENALTY}");
            return Err(OptionError::new(
                "repeat_penalty",
                expected,
                self.repeat_penalty,
            ));
        }
        check_range(
            "presence_penalty",
            self.presence_penalty,
            -MAX_PENALTY,
            MAX_PENALTY,
        )?;
        check_range(
            "frequency_penalty",
            self.frequency_penalty,
            -MAX_PENALTY,
            MAX_PENALTY,
        )?;
        if let Some((id, bias)) = self
            .logit_bias
            .iter()
            .find(|(_, bias)| bias.is_nan() || *bias == f32::INFINITY)
        {
            let expected = "numbers below infinity";
            return Err(OptionError::new(
                "logit_bias",
                expected,
                format!("{bias} for token {id}"),
            ));
        }
        if let RepeatWindow::Last(n) = self.repeat_last_n
            && n > MAX_COUNT
        {
            return Err(OptionError::new(
                "repeat_last_n",
                format!("from -1 to {MAX_COUNT}"),
                n,
            ));
        }
        Ok(())
    }
}

impl OptionError {
    /// An error for option `name`, which accepts `expected` and was given `found`.
    pub fn new(name: &'static str, expected: impl Into<String>, found: impl Display) -> Self {
        Self {
            name,
            expected: expected.into(),
            found: format!("{found}"),
        }
    }
}

fn check_range(name: &'static str, value: f32, low: f32, high: f32) -> Result<(), OptionError> {
    if (low..=high).contains(&value) {
        Ok(())
    } else {
        Err(OptionError::new(
            name,
            format!("from {low} to {high}"),
            value,
        ))
    }
}

/// Above this the distribution is flat for any logits a model makes; larger values are mistakes.
const MAX_TEMPERATURE: f32 = 100.0;
/// Far beyond any logit difference a model makes.
const MAX_PENALTY: f32 = 100.0;
/// Counts travel as 32-bit integers in every client protocol.
pub const MAX_COUNT: usize = i32::MAX as usize;

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(change: impl Fn(&mut SamplingOptions)) -> Option<&'static str> {
        let mut options = SamplingOptions::default();
        change(&mut options);
        options.validate().err().map(|error| error.name)
    }

    #[test]
    fn defaults_and_limits_are_accepted() {
        assert_eq!(error_of(|_| ()), None);
        assert_eq!(error_of(|o| o.temperature = 0.0), None);
        assert_eq!(error_of(|o| o.temperature = 100.0), None);
        assert_eq!(error_of(|o| o.top_k = 0), None);
        assert_eq!(error_of(|o| o.top_k = MAX_COUNT), None);
        assert_eq!(
            error_of(|o| (o.top_p, o.min_p, o.typical_p) = (0.0, 1.0, 0.0)),
            None
        );
        assert_eq!(error_of(|o| o.presence_penalty = -100.0), None);
        assert_eq!(error_of(|o| o.repeat_last_n = RepeatWindow::Last(0)), None);
    }

    #[test]
    fn extreme_values_are_refused_by_name() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0, 999_999.0] {
            assert_eq!(
                error_of(|o| o.temperature = bad),
                Some("temperature"),
                "{bad}"
            );
            assert_eq!(error_of(|o| o.top_p = bad), Some("top_p"), "{bad}");
            assert_eq!(error_of(|o| o.min_p = bad), Some("min_p"), "{bad}");
            assert_eq!(error_of(|o| o.typical_p = bad), Some("typical_p"), "{bad}");
            assert_eq!(
                error_of(|o| o.repeat_penalty = bad),
                Some("repeat_penalty"),
                "{bad}"
            );
        }
        for bad in [f32::NAN, f32::INFINITY, -101.0, 101.0] {
            assert_eq!(
                error_of(|o| o.presence_penalty = bad),
                Some("presence_penalty"),
                "{bad}"
            );
            assert_eq!(
                error_of(|o| o.frequency_penalty = bad),
                Some("frequency_penalty"),
                "{bad}"
            );
        }
        assert_eq!(error_of(|o| o.repeat_penalty = 0.0), Some("repeat_penalty"));
        for bad in [f32::NAN, f32::INFINITY] {
            assert_eq!(
                error_of(|o| o.logit_bias = vec![(0, f32::NEG_INFINITY), (1, bad)]),
                Some("logit_bias")
            );
        }
        assert_eq!(error_of(|o| o.top_k = 1 << 31), Some("top_k"));
        assert_eq!(
            error_of(|o| o.repeat_last_n = RepeatWindow::Last(1 << 31)),
            Some("repeat_last_n")
        );
    }

    #[test]
    fn the_message_names_option_range_and_value() {
        let options = SamplingOptions {
            top_p: -1.0,
            ..SamplingOptions::default()
        };
        let message = options.validate().unwrap_err().to_string();
        assert_eq!(message, "option `top_p` must be from 0 to 1, not -1");
    }
}
