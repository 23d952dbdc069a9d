//! Constrained decoding: only tokens that keep the text inside a JSON schema, a regular expression or a grammar may be drawn.
//!
//! [`Grammars`] belongs to a vocabulary and compiles a [`ConstraintSpec`] into a [`Constraint`], the state of one sequence: before
//! each token [`Constraint::allowed`] says which tokens may come, after it [`Constraint::accept`] moves on. Everything a
//! specification can be refused for is found by [`Grammars::compile`], before the first token, within bounded memory and time.
//!
//! The engine behind it is the crate `llguidance` (a lexer of regular-expression derivatives under an Earley parser). What is
//! ours: `vocabulary.rs` hands it the tokens, `schema.rs` and `regex.rs` prepare its input, `gbnf.rs` and what follows it
//! translate llama.cpp's grammars into its Lark dialect. Its way of forcing the canonical tokens of forced text is off: the mask
//! is exactly the set of tokens whose bytes continue the text.

mod ahead;
mod compile;
mod error;
mod gbnf;
mod mask;
mod regex;
mod schema;
#[cfg(test)]
mod tests;
mod vocabulary;

use llguidance::Matcher;

pub(crate) use self::ahead::{AheadConstraint, MaskThread, MaskTimes};
pub use self::compile::Grammars;
pub use self::error::{ConstraintError, GrammarError};
pub use self::mask::TokenMask;
use crate::TokenId;

/// What the generated text must look like, as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConstraintSpec {
    /// JSON that is valid under this JSON schema, given as JSON text.
    JsonSchema(String),
    /// Any JSON object.
    Json,
    /// A text that this regular expression matches from beginning to end.
    Regex(String),
    /// A grammar in llguidance's dialect of Lark, with the rule `start`.
    Lark(String),
    /// A grammar in llama.cpp's notation, with the rule `root`.
    Gbnf(String),
}

/// How far a sequence has come in its constraint.
pub struct Constraint {
    matcher: Matcher,
    /// The tokens that may come next; `None` when a token was accepted since.
    mask: Option<TokenMask>,
    /// Sorted.
    end_tokens: Vec<TokenId>,
    kind: &'static str,
    warnings: Vec<String>,
}

impl ConstraintSpec {
    /// A grammar in either notation: Lark where it begins with `%llguidance` or defines `start:`, else GBNF.
    pub fn grammar(text: String) -> Self {
        let is_lark = text.lines().map(str::trim_start).any(|line| {
            line.starts_with("%llguidance")
                || line
                    .strip_prefix("start")
                    .is_some_and(|rest| rest.trim_start().starts_with(':') && !rest.contains("::="))
        });
        if is_lark {
            Self::Lark(text)
        } else {
            Self::Gbnf(text)
        }
    }

    /// The option that carries it.
    pub fn option_name(&self) -> &'static str {
        match self {
            Self::JsonSchema(_) | Self::Json => "schema",
            Self::Regex(_) => "regex",
            Self::Lark(_) | Self::Gbnf(_) => "grammar",
        }
    }
}

impl Constraint {
    /// The option that carried its specification.
    pub fn option_name(&self) -> &'static str {
        self.kind
    }

    /// What of the specification is enforced otherwise than it says.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The tokens that may come next. Those that end a generation are among them exactly when the text may end here.
    pub fn allowed(&mut self) -> Result<&TokenMask, ConstraintError> {
        if self.mask.is_none() {
            let allowed = self
                .matcher
                .compute_mask_or_eos()
                .map_err(|error| ConstraintError::failed(self.kind, &error))?;
            self.mask = Some(TokenMask::new(allowed));
        }
        Ok(self.mask.as_ref().expect("set above"))
    }

    /// Sets the logits (`[vocab_size]`) of all other tokens to negative infinity.
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<(), ConstraintError> {
        self.allowed()?.apply(logits);
        Ok(())
    }

    /// Moves on by one token; an error if it is not an allowed one.
    pub fn accept(&mut self, id: TokenId) -> Result<(), ConstraintError> {
        if !self.allowed()?.allows(id) {
            return Err(ConstraintError::TokenNotAllowed { id });
        }
        self.mask = None;
        self.matcher
            .consume_token(id)
            .map_err(|error| ConstraintError::failed(self.kind, &error))
    }

    /// The token that must come, where there is only one.
    pub fn forced(&mut self) -> Result<Option<TokenId>, ConstraintError> {
        Ok(self.allowed()?.only())
    }

    /// True when the text may end here.
    pub fn may_end(&mut self) -> Result<bool, ConstraintError> {
        self.matcher
            .is_accepting()
            .map_err(|error| ConstraintError::failed(self.kind, &error))
    }

    /// True when the text is complete: it may end here, and nothing may follow.
    pub fn is_complete(&mut self) -> Result<bool, ConstraintError> {
        if self.matcher.is_stopped() {
            return Ok(true);
        }
        if !self.may_end()? {
            return Ok(false);
        }
        let end_tokens = std::mem::take(&mut self.end_tokens);
        let only_ends = self
            .allowed()
            .map(|mask| mask.all_within(|id| end_tokens.binary_search(&id).is_ok()));
        self.end_tokens = end_tokens;
        only_ends
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint")
            .field("kind", &self.kind)
            .field("stop_reason", &self.matcher.stop_reason())
            .finish_non_exhaustive()
    }
}
