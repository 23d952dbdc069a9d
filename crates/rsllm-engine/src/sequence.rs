//! One mutable timeline: its tokens, how many of them are evaluated, its pages, its sampler and its text. It decides when it is
//! over; it neither waits nor measures time.

use std::sync::Arc;

use rsllm_model::PageTable;

use crate::TokenId;
use crate::constraint::Constraint;
use crate::error::EngineError;
use crate::generation::{FinishReason, Piece};
use crate::sampling::Sampler;
use crate::text::TextStream;

/// A sequence between its prompt and its end.
pub(crate) struct Sequence {
    /// Prompt and generated tokens.
    ids: Vec<TokenId>,
    n_prompt: usize,
    /// Tokens whose KV is there.
    n_evaluated: usize,
    pages: PageTable,
    context: usize,
    max_tokens: Option<usize>,
    /// Alternatives to report a token.
    logprobs: Option<usize>,
    /// Sorted.
    end_tokens: Arc<[TokenId]>,
    sampler: Sampler,
    constraint: Option<Constraint>,
    text: TextStream,
}

/// What a sequence is made of.
pub(crate) struct SequenceParts {
    pub(crate) prompt: Vec<TokenId>,
    pub(crate) context: usize,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) logprobs: Option<usize>,
    pub(crate) end_tokens: Arc<[TokenId]>,
    pub(crate) sampler: Sampler,
    pub(crate) constraint: Option<Constraint>,
    pub(crate) text: TextStream,
}

impl Sequence {
    /// A sequence about to be prefilled. Takes all memory it will need.
    pub(crate) fn new(parts: SequenceParts) -> Self {
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
            pages: PageTable::with_capacity(context),
            context,
            max_tokens,
            logprobs,
            end_tokens,
            sampler,
            constraint,
            text,
        }
    }

    /// Prompt and generated tokens.
    pub(crate) fn ids(&self) -> &[TokenId] {
        &self.ids
    }

    /// Tokens of the prompt.
    pub(crate) fn n_prompt(&self) -> usize {
        self.n_prompt
    }

    /// Tokens whose KV is in the pages.
    pub(crate) fn n_evaluated(&self) -> usize {
        self.n_evaluated
    }

    /// Where the KV of the first [`Sequence::n_evaluated`] tokens is, and of those to come.
    pub(crate) fn pages(&self) -> &PageTable {
        &self.pages
    }

    /// For growing, and for giving back what a window has passed.
    pub(crate) fn pages_mut(&mut self) -> &mut PageTable {
        &mut self.pages
    }

    /// All that is known of the sequence for taking over a prefix: its tokens and its pages, empty so far.
    pub(crate) fn ids_and_pages(&mut self) -> (&[TokenId], &mut PageTable) {
        (&self.ids, &mut self.pages)
    }

    /// The KV of the first `n_tokens` is in the pages now.
    pub(crate) fn set_evaluated(&mut self, n_tokens: usize) {
        debug_assert!(n_tokens <= self.ids.len());
        self.n_evaluated = n_tokens;
    }

    /// True when the logits of the last token are the next thing to draw from.
    pub(crate) fn is_caught_up(&self) -> bool {
        self.n_evaluated == self.ids.len()
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

    /// Tokens that may still be drawn.
    pub(crate) fn room(&self) -> usize {
        self.max_tokens
            .map_or(usize::MAX, |max| max.saturating_sub(self.n_generated()))
    }

    /// Tokens drawn so far, without an end-of-generation token.
    pub(crate) fn n_generated(&self) -> usize {
        self.ids.len() - self.n_prompt
    }
}
