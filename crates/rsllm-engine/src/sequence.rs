//! One mutable timeline: its tokens, how many of them are evaluated, its pages, its sampler and its text. It decides when it is
//! over; it neither waits nor measures time.

use std::sync::Arc;

use rsllm_model::PageTable;

use crate::TokenId;
use crate::constraint::{AheadConstraint, Constraint, MaskThread, MaskTimes};
use crate::error::EngineError;
use crate::generation::{FinishReason, Piece};
use crate::sampling::Sampler;
use crate::text::TextStream;

/// A sequence between its prompt and its end.
pub(crate) struct Sequence {
    /// Prompt and generated tokens.
    ids: Vec<TokenId>,
    /// Of them those that take the prefill product.
    n_prompt: usize,
    n_generated: usize,
    /// Tokens that stay in front when the context is full; `None` if that is the end.
    num_keep: Option<usize>,
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
    constraint: Option<AheadConstraint>,
    text: TextStream,
}

/// What a sequence is made of.
pub(crate) struct SequenceParts {
    pub(crate) prompt: Vec<TokenId>,
    pub(crate) context: usize,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) num_keep: Option<usize>,
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
            num_keep,
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
            n_generated: 0,
            num_keep,
            n_evaluated: 0,
            pages: PageTable::with_capacity(context),
            context,
            max_tokens,
            logprobs,
            end_tokens,
            sampler,
            constraint: constraint.map(AheadConstraint::new),
            text,
        }
    }

    /// Prompt and generated tokens.
    pub(crate) fn ids(&self) -> &[TokenId] {
        &self.ids
    }

    /// Tokens that take the prefill product: those of the prompt, or all there were when the context was shifted.
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

    /// All that is known of the sequence for guessing how it goes on.
    pub(crate) fn ids_and_sampler(&mut self) -> (&[TokenId], &mut Sampler) {
        (&self.ids, &mut self.sampler)
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
                let allowed = constraint.with(Constraint::allowed)?;
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
        self.n_generated += 1;
        let stopped = self.text.push(id, logprobs);
        Ok(if stopped || is_complete {
            Some(FinishReason::Stop)
        } else if self.max_tokens.is_some_and(|max| self.n_generated() >= max) {
            Some(FinishReason::Length)
        } else if self.is_full() && self.num_keep.is_none() {
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
        constraint.with(|constraint| {
            constraint.accept(id)?;
            constraint.is_complete()
        })
    }

    /// Has the next mask computed by `masks` while the model computes the next logits.
    pub(crate) fn look_ahead(&mut self, masks: &mut MaskThread) {
        if let Some(constraint) = &mut self.constraint {
            constraint.look_ahead(masks);
        }
    }

    /// What its masks took since the last call.
    pub(crate) fn take_mask_times(&mut self) -> MaskTimes {
        let constraint = self.constraint.as_mut();
        constraint
            .map(AheadConstraint::take_times)
            .unwrap_or_default()
    }

    /// The last token has no place in the context.
    pub(crate) fn is_full(&self) -> bool {
        self.ids.len() > self.context
    }

    /// Makes the sequence, whose pages are gone, a new one: the tokens to keep, then the newer half of the others. Returns how
    /// many were dropped.
    pub(crate) fn shift(&mut self) -> usize {
        debug_assert!(self.n_evaluated == 0 && self.pages.slots().is_empty());
        // A quarter of the context at least must be able to move on.
        let most = self.context - self.context.div_ceil(4);
        let n_keep = self.num_keep.unwrap_or(0).min(most);
        let n_dropped = (self.ids.len() - n_keep).div_ceil(2);
        self.ids.drain(n_keep..n_keep + n_dropped);
        self.n_prompt = self.ids.len();
        n_dropped
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
        self.n_generated
    }
}
