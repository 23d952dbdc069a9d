//! One mutable timeline: its tokens, how many of them are evaluated, its sampler and its text. It decides what is evaluated next
//! and when it is over; it neither waits nor measures time.

use std::sync::atomic::AtomicBool;

use crate::TokenId;
use crate::constraint::Constraint;
use crate::error::EngineError;
use crate::forward::{Forward, Outputs, Phase, SequenceStep};
use crate::generation::{FinishReason, Piece};
use crate::prefix::PrefilledPrefix;
use crate::sampling::Sampler;
use crate::text::TextStream;

/// A sequence between its prompt and its end.
pub(crate) struct Sequence<'t> {
    /// Prompt and generated tokens.
    ids: Vec<TokenId>,
    n_prompt: usize,
    /// Tokens whose KV is there.
    n_evaluated: usize,
    context: usize,
    max_tokens: Option<usize>,
    /// Alternatives to report a token.
    logprobs: Option<usize>,
    /// Sorted.
    end_tokens: &'t [TokenId],
    sampler: Sampler,
    constraint: Option<Constraint>,
    text: TextStream,
}

/// What a sequence is made of.
pub(crate) struct SequenceParts<'t> {
    pub(crate) prompt: Vec<TokenId>,
    pub(crate) context: usize,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) logprobs: Option<usize>,
    pub(crate) end_tokens: &'t [TokenId],
    pub(crate) sampler: Sampler,
    pub(crate) constraint: Option<Constraint>,
    pub(crate) text: TextStream,
}

impl<'t> Sequence<'t> {
    /// A sequence about to be prefilled. Takes all memory it will need.
    pub(crate) fn new(parts: SequenceParts<'t>) -> Self {
        let SequenceParts {
            prompt: mut ids,
            context,
            max_tokens,
            logprobs,
            end_tokens,
            mut sampler,
            constraint,
            text,
        } = parts;
        for &id in &ids {
            sampler.accept(id);
        }
        let n_prompt = ids.len();
        // The token after the last position of the context is drawn but never evaluated.
        let room = (context + 1).saturating_sub(n_prompt);
        ids.reserve_exact(max_tokens.map_or(room, |n| n.min(room)));
        Self {
            ids,
            n_prompt,
            n_evaluated: 0,
            context,
            max_tokens,
            logprobs,
            end_tokens,
            sampler,
            constraint,
            text,
        }
    }

    /// Evaluates the prompt, chunk by chunk, but for what `prefix` says is there; leaves the logits of its last token in the
    /// front of `logits`. Returns how many tokens were there.
    pub(crate) fn prefill(
        &mut self,
        model: &mut impl Forward,
        prefix: &mut PrefilledPrefix,
        logits: &mut [f32],
        abort: &AtomicBool,
    ) -> Result<usize, EngineError> {
        let max_rows = model.limits().max_rows;
        let n_shared = prefix.shared_with(&self.ids[..self.n_prompt]);
        let n_cached = if model.can_resume_at(n_shared) {
            n_shared
        } else {
            0
        };
        // From here on a failing step leaves the positions behind undefined.
        prefix.truncate(n_cached);
        self.n_evaluated = n_cached;
        while self.n_evaluated < self.n_prompt {
            let start = self.n_evaluated;
            let end = self.n_prompt.min(start + max_rows);
            let outputs = if end == self.n_prompt {
                Outputs::Last
            } else {
                Outputs::None
            };
            self.evaluate(end, Phase::Prefill, outputs, model, logits, abort)?;
            prefix.extend(&self.ids[start..end]);
        }
        Ok(n_cached)
    }

    /// Evaluates the last token.
    pub(crate) fn decode(
        &mut self,
        model: &mut impl Forward,
        logits: &mut [f32],
        abort: &AtomicBool,
    ) -> Result<(), EngineError> {
        self.evaluate(
            self.ids.len(),
            Phase::Decode,
            Outputs::Last,
            model,
            logits,
            abort,
        )
    }

    /// True when no token may be drawn at all.
    pub(crate) fn is_over_before_it_starts(&self) -> bool {
        self.max_tokens == Some(0)
    }

    /// Draws the next token from `logits`, `[vocab_size]`. Returns why the sequence is over, or `None` when the token has to be
    /// evaluated next.
    pub(crate) fn draw(&mut self, logits: &[f32]) -> Result<Option<FinishReason>, EngineError> {
        let id = match &mut self.constraint {
            Some(constraint) => {
                let option = constraint.option_name();
                let allowed = constraint
                    .allowed()
                    .map_err(|source| EngineError::Constraint { option, source })?;
                self.sampler.sample_within(logits, allowed)?
            }
            None => self.sampler.sample(logits)?,
        };
        if self.end_tokens.binary_search(&id).is_ok() {
            return Ok(Some(FinishReason::Stop));
        }
        let logprobs = match self.logprobs {
            Some(n_top) => Some(self.sampler.logprobs(logits, id, n_top)?),
            None => None,
        };
        self.sampler.accept(id);
        let is_complete = self.accept_in_constraint(id)?;
        self.ids.push(id);
        let stopped = self.text.push(id, logprobs);
        Ok(if stopped || is_complete {
            Some(FinishReason::Stop)
        } else if self.max_tokens.is_some_and(|max| self.n_generated() >= max) {
            Some(FinishReason::Length)
        } else if self.ids.len() > self.context {
            Some(FinishReason::Context)
        } else {
            None
        })
    }

    /// Moves the constraint on; returns whether it leaves nothing to be said.
    fn accept_in_constraint(&mut self, id: TokenId) -> Result<bool, EngineError> {
        let Some(constraint) = &mut self.constraint else {
            return Ok(false);
        };
        let option = constraint.option_name();
        constraint
            .accept(id)
            .and_then(|()| constraint.is_complete())
            .map_err(|source| EngineError::Constraint { option, source })
    }

    /// Text that may leave.
    pub(crate) fn take_piece(&mut self) -> Option<Piece> {
        self.text.take()
    }

    /// What is left at the end.
    pub(crate) fn finish(&mut self) -> Option<Piece> {
        self.text.finish()
    }

    /// The stop string that was found.
    pub(crate) fn stop_text(&self) -> Option<&str> {
        self.text.found()
    }

    /// Tokens drawn so far, without an end-of-generation token.
    pub(crate) fn n_generated(&self) -> usize {
        self.ids.len() - self.n_prompt
    }

    fn evaluate(
        &mut self,
        end: usize,
        phase: Phase,
        outputs: Outputs,
        model: &mut impl Forward,
        logits: &mut [f32],
        abort: &AtomicBool,
    ) -> Result<(), EngineError> {
        let ids = &self.ids[self.n_evaluated..end];
        model.forward(
            &SequenceStep {
                phase,
                ids,
                first_index: self.n_evaluated,
                outputs,
            },
            logits,
            abort,
        )?;
        self.n_evaluated = end;
        Ok(())
    }
}
