//! What comes of a step's logits: tokens drawn, drafts that came true, text that leaves, and contexts that are full.

use std::time::Instant;

use super::Live;
use crate::error::EngineError;
use crate::forward::Forward;
use crate::generation::{Event, FinishReason, nanoseconds};
use crate::speculation::{Draft, Trust};
use crate::worker::{Worker, catch};

impl<M: Forward> Worker<M> {
    /// Every sequence whose logits were computed draws a token.
    pub(super) fn draw(&mut self) {
        let vocab_size = self.model.limits().vocab_size;
        let mut n_drawn = 0;
        // Sequences that end leave their place to those behind them, whose numbers the parts still hold.
        let mut ended: Vec<(usize, Result<FinishReason, EngineError>)> = Vec::new();
        let mut shifting: Vec<u64> = Vec::new();
        for i in 0..self.batch.parts().len() {
            let part = self.batch.parts()[i];
            if part.n_outputs == 0 {
                continue;
            }
            let logits = &self.logits[n_drawn * vocab_size..][..part.n_outputs * vocab_size];
            n_drawn += part.n_outputs;
            let live = &mut self.running[part.sequence];
            let drawn = catch(|| live.draw_all(logits, vocab_size));
            let times = live.sequence.take_mask_times();
            self.metrics.mask_ns += times.computed_ns;
            self.metrics.mask_wait_ns += times.waited_ns;
            match drawn {
                Ok(None) if live.sequence.is_full() => shifting.push(live.id),
                Ok(None) => live.sequence.look_ahead(&mut self.masks),
                Ok(Some(reason)) => ended.push((part.sequence, Ok(reason))),
                Err(error) => ended.push((part.sequence, Err(error))),
            }
            if part.n_drafted > 0 {
                let n_evaluated = self.running[part.sequence].sequence.n_evaluated();
                let n_right = (n_evaluated - part.first_index - 1) as u64;
                self.metrics.accepted_tokens += n_right;
                self.metrics.decode_tokens += n_right;
                self.remember(part.sequence);
            }
        }
        ended.sort_by_key(|(i, _)| std::cmp::Reverse(*i));
        for (i, result) in ended {
            self.end(i, result);
        }
        for id in shifting {
            self.shift(id);
        }
    }

    /// Lets a sequence whose context is full go on as a new one of the tokens it keeps.
    fn shift(&mut self, id: u64) {
        let Some(i) = self.running.iter().position(|live| live.id == id) else {
            return;
        };
        let mut live = self.running.remove(i);
        self.give_pages_back(&mut live);
        live.stats.shifts += 1;
        live.stats.dropped_tokens += live.sequence.shift();
        live.trust_in_text = Trust::new();
        live.draft = Draft::NONE;
        live.sequence.look_ahead(&mut self.masks);
        if let Some(live) = self.adopt(live) {
            self.running.insert(i, live);
        }
    }
}

impl Live {
    /// It has all but the token drawn last.
    pub(super) fn is_generating(&self) -> bool {
        let sequence = &self.sequence;
        let n_evaluated = sequence.n_evaluated();
        n_evaluated >= sequence.n_prompt() && n_evaluated + 1 == sequence.ids().len()
    }

    /// Draws from each row of `logits` for as long as the row before gave what the draft said. The last rows of a wrong draft
    /// count for nothing: their KV lies behind the evaluated tokens and will be overwritten.
    fn draw_all(
        &mut self,
        logits: &[f32],
        vocab_size: usize,
    ) -> Result<Option<FinishReason>, EngineError> {
        let draft = std::mem::replace(&mut self.draft, Draft::NONE);
        let drafted = draft.ids();
        let mut n_right = 0;
        let mut finished = None;
        for row in logits.chunks_exact(vocab_size) {
            finished = self.draw(row)?;
            let ids = self.sequence.ids();
            let is_right = finished.is_none() && ids.last() == drafted.get(n_right);
            if !is_right {
                break;
            }
            n_right += 1;
            let n_evaluated = ids.len();
            self.sequence.set_evaluated(n_evaluated);
        }
        if !drafted.is_empty() {
            self.stats.drafted_tokens += drafted.len();
            self.stats.accepted_tokens += n_right;
            let trust = if draft.is_of_model {
                &mut self.trust_in_model
            } else {
                &mut self.trust_in_text
            };
            trust.learn(drafted.len(), n_right);
        }
        Ok(finished)
    }

    /// Draws from `logits` and sends what text may leave. Returns why the sequence is over, or `None` if it goes on.
    fn draw(&mut self, logits: &[f32]) -> Result<Option<FinishReason>, EngineError> {
        let now = Instant::now();
        let decode_start = *self.decode_start.get_or_insert(now);
        if self.stats.prefill_ns == 0 {
            self.stats.prefill_ns = nanoseconds(now - self.started);
        }
        debug_assert!(self.sequence.is_caught_up());
        if self.sequence.is_over_before_it_starts() {
            return Ok(Some(FinishReason::Length));
        }
        let drawn = self.sequence.draw(logits);
        let now = Instant::now();
        self.stats.generated_tokens = self.sequence.n_generated();
        if self.stats.first_token_ns == 0 && self.stats.generated_tokens > 0 {
            self.stats.first_token_ns = nanoseconds(now - self.request.queued);
        }
        self.stats.decode_ns = nanoseconds(now - decode_start);
        let finished = drawn?;
        let piece = if finished.is_some() {
            self.sequence.finish()
        } else {
            self.sequence.take_piece()
        };
        if let Some(piece) = piece
            && self.request.events.send(Event::Piece(piece)).is_err()
        {
            return Ok(Some(FinishReason::Cancelled));
        }
        Ok(finished)
    }
}
