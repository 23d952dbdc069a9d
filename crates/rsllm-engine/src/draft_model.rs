//! A small model that guesses what a large one of the same vocabulary will draw. It has a cache and scratch of its own and the
//! threads of the large one, and follows one sequence at a time: the one that generates alone.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use rsllm_model::{PageTable, Wanted};
use rsllm_tokenizer::Tokenizer;

use crate::TokenId;
use crate::batch::Batch;
use crate::error::EngineError;
use crate::forward::{Forward, Phase};
use crate::generation::nanoseconds;
use crate::pages::first_visible;
use crate::prefix_cache::common_len;
use crate::sampling::Sampler;
use crate::speculation::{Draft, MAX_DRAFT, Measured};

/// Tokens to catch up with that count as generated; more take the prefill product.
const FEW_ROWS: usize = MAX_DRAFT + 1;
/// Tokens that it is behind after a guess: the one that came of it, and the last of the guess, which it has not seen.
const USUALLY_BEHIND: usize = 2;
/// A guess is worth another one behind it while all of them together are as likely as this.
const LEAST_LIKELY: f32 = 0.4;
/// Logits this far below another have no part in its probability that matters.
const NEGLIGIBLE: f32 = 12.0;
/// Rows of a step that catches up with a text: whoever waits for the next token waits for them too.
const CATCH_UP_ROWS: usize = 128;
/// Rows of such a step that take as long as a guess, until that is measured.
const ROWS_OF_A_GUESS: f32 = 8.0;
/// How much of a disturbed measurement is forgotten with each token that goes without a guess.
const FORGOTTEN: f32 = 0.01;
/// Tokens at the start of a vocabulary that may differ: special ones, which nobody drafts.
const MAY_DIFFER: usize = 5;
/// Tokens that one vocabulary may have behind those of the other: rows that pad an output matrix.
const MOST_PADDING: usize = 128;

/// The model and how far it has followed.
pub(crate) struct DraftModel<M> {
    model: M,
    /// What its pages hold.
    ids: Vec<TokenId>,
    pages: PageTable,
    /// Windowed layers have dropped what shorter texts than this need.
    shortest: usize,
    batch: Batch,
    /// Of the longer vocabulary; those of tokens that it does not have are at negative infinity.
    logits: Vec<f32>,
    /// Tokens of the large model.
    vocab_size: usize,
    /// A guess takes so long, and a row of a text to catch up with.
    token_ns: Measured,
    row_ns: Measured,
    /// Bytes it reads for a token, as a share of those of the large model.
    share: f32,
}

impl<M: Forward> DraftModel<M> {
    /// A draft model for one with `vocab_size` tokens. `share` is what a token costs here, as a share of what it costs there,
    /// until that is measured.
    pub(crate) fn new(mut model: M, vocab_size: usize, share: f32) -> Self {
        let limits = model.limits();
        debug_assert!(model.pools().check_integrity());
        Self {
            model,
            ids: Vec::with_capacity(limits.context),
            pages: PageTable::with_capacity(limits.context),
            shortest: 0,
            batch: Batch::default(),
            logits: vec![f32::NEG_INFINITY; limits.vocab_size.max(vocab_size)],
            vocab_size,
            token_ns: Measured::default(),
            row_ns: Measured::default(),
            share,
        }
    }

    /// What a guess takes, in nanoseconds, where a token of the large model takes `alone_ns`.
    pub(crate) fn token_ns(&self, alone_ns: f32) -> f32 {
        self.token_ns.or(self.share * alone_ns)
    }

    /// No guess is made because guesses take too long: perhaps they did so only once.
    pub(crate) fn hope(&mut self, alone_ns: f32) {
        self.token_ns.forget(FORGOTTEN, self.share * alone_ns);
    }

    /// Whether catching up with `ids` takes less than `worth_ns`.
    pub(crate) fn is_worth(&self, ids: &[TokenId], alone_ns: f32, worth_ns: f32) -> bool {
        let behind = ids.len() - common_len(&self.ids, ids);
        let row_ns = self.row_ns.or(self.token_ns(alone_ns) / ROWS_OF_A_GUESS);
        behind <= FEW_ROWS || behind as f32 * row_ns < worth_ns
    }

    /// Up to `most` tokens that are likely to follow `ids`; fewer where it is not sure. None while it catches up with a long
    /// text, a step's rows at a time, or where its context is at an end.
    ///
    /// They are drawn by the sequence's own `sampler`, in a rehearsal, with the random numbers that it will draw with once more
    /// when the large model has spoken: where both models mostly agree, so do the tokens, however random.
    pub(crate) fn propose(
        &mut self,
        ids: &[TokenId],
        sampler: &mut Sampler,
        most: usize,
        alone_ns: f32,
        abort: &AtomicBool,
    ) -> Result<Draft, EngineError> {
        let mut draft = Draft::NONE;
        let limits = self.model.limits();
        let most = most.min(limits.context.saturating_sub(ids.len()));
        self.rewind(ids);
        let new = &ids[self.ids.len()..];
        if most == 0 || new.iter().any(|&id| id as usize >= limits.vocab_size) {
            return Ok(draft);
        }
        let start = Instant::now();
        let step_rows = limits.max_rows.min(CATCH_UP_ROWS);
        if new.len() > FEW_ROWS {
            let new = &new[..new.len().min(step_rows)];
            self.evaluate(new, abort)?;
            let row_ns = nanoseconds(start.elapsed()) as f32 / new.len() as f32;
            let expected = self.token_ns(alone_ns) / ROWS_OF_A_GUESS;
            self.row_ns.record(row_ns, expected);
            if self.ids.len() < ids.len() {
                return Ok(draft);
            }
        } else {
            self.evaluate(new, abort)?;
        }
        self.guess(sampler, most, &mut draft, abort)?;
        // Who has been away for a while has more to compute than a guess.
        if new.len() <= USUALLY_BEHIND && !draft.ids().is_empty() {
            let token_ns = nanoseconds(start.elapsed()) as f32 / draft.ids().len() as f32;
            self.token_ns.record(token_ns, self.share * alone_ns);
        }
        Ok(draft)
    }

    /// Guesses one token after the other.
    fn guess(
        &mut self,
        sampler: &mut Sampler,
        most: usize,
        draft: &mut Draft,
        abort: &AtomicBool,
    ) -> Result<(), EngineError> {
        let mut all_right = 1.0;
        loop {
            let logits = &self.logits[..self.vocab_size];
            // A faulty model has nothing to say.
            let Ok(id) = sampler.sample(logits) else {
                break;
            };
            if id as usize >= self.model.limits().vocab_size {
                break;
            }
            if sampler.is_greedy() {
                all_right *= probability(logits, id);
            }
            draft.push(id);
            if draft.ids().len() == most || all_right < LEAST_LIKELY {
                break;
            }
            self.evaluate(&[id], abort)?;
        }
        Ok(())
    }

    /// Forgets what is not the beginning of `ids`, and at least the last of them, whose logits are wanted.
    fn rewind(&mut self, ids: &[TokenId]) {
        let n_common = common_len(&self.ids, &ids[..ids.len() - 1]);
        let keep = if n_common < self.shortest {
            0
        } else {
            n_common
        };
        if keep == 0 {
            self.shortest = 0;
        }
        self.ids.truncate(keep);
        self.pages.truncate(self.model.pools(), keep);
    }

    /// Computes the next tokens, at most a step's rows, and the logits of the last.
    fn evaluate(&mut self, new: &[TokenId], abort: &AtomicBool) -> Result<(), EngineError> {
        let first_index = self.ids.len();
        let end = first_index + new.len();
        // What a step that fails has written is written again.
        self.pages.truncate(self.model.pools(), first_index);
        self.pages.grow(self.model.pools(), end)?;
        let phase = if new.len() <= FEW_ROWS {
            Phase::Decode
        } else {
            Phase::Prefill
        };
        self.batch.clear();
        self.batch.add(0, phase, first_index, new, 1);
        let pages = self.pages.slots();
        let n_logits = self.model.limits().vocab_size;
        let wanted = Wanted::Logits(&mut self.logits[..n_logits]);
        self.batch.run(&mut self.model, |_| pages, wanted, abort)?;
        self.ids.extend_from_slice(new);
        // A draft that was wrong is taken back.
        if let Some(window) = self.model.window() {
            // What is dropped stays so, also when the text becomes shorter.
            self.shortest = self.shortest.max(end.saturating_sub(FEW_ROWS));
            let visible = first_visible(self.shortest, Some(window));
            self.pages.drop_passed(self.model.pools(), visible);
        }
        Ok(())
    }
}

/// What the model gives `id`.
fn probability(logits: &[f32], id: TokenId) -> f32 {
    let own = logits[id as usize];
    let near = logits.iter().filter(|&&logit| logit > own - NEGLIGIBLE);
    1.0 / near.map(|&logit| (logit - own).exp()).sum::<f32>()
}

/// Whether one vocabulary can draft for the other: the same texts for the same ids.
///
/// # Errors
/// [`EngineError::DraftVocabulary`] with the first difference.
pub(crate) fn check_vocabularies(model: &Tokenizer, draft: &Tokenizer) -> Result<(), EngineError> {
    let (n, n_draft) = (model.vocab_size(), draft.vocab_size());
    let error = |what| Err(EngineError::DraftVocabulary { what });
    if n.abs_diff(n_draft) > MOST_PADDING {
        return error(format!("it has {n_draft} tokens, the model {n}"));
    }
    for id in MAY_DIFFER..n.min(n_draft) {
        let [of_model, of_draft] = [model, draft].map(|it| it.token_text(id as TokenId));
        if of_model != of_draft {
            let [of_model, of_draft] = [of_model, of_draft]
                .map(|text| String::from_utf8_lossy(text.unwrap_or_default()).into_owned());
            return error(format!(
                "its token {id} is {of_draft:?}, that of the model {of_model:?}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probability_of_a_token_is_its_share() {
        let logits = [1.0, 3.0, f32::NEG_INFINITY, 3.0, -40.0];
        // Two threes and a one: 1 / (2 + exp(-2)).
        assert!((probability(&logits, 1) - 0.468_31).abs() < 1e-4);
        assert!((probability(&logits, 0) - 0.063_38).abs() < 1e-4);
    }
}
