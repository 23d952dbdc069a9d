//! Requests that have the model for themselves: the logits of every position, measurements, embeddings. Their pages go back as
//! soon as they are done; nothing of them is kept for reuse.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use rsllm_model::{PageTable, Wanted};

use crate::TokenId;
use crate::embedding::{Pool, Pooling};
use crate::error::EngineError;
use crate::forward::{Forward, Phase};
use crate::generation::nanoseconds;
use crate::pages::{Pages, first_visible, slots_for};
use crate::worker::{
    BenchJob, BenchTimes, EmbedJob, ExclusiveJob, ExclusiveWork, LogitsJob, Worker, aborted, catch,
};

/// Consecutive tokens of the one sequence.
#[derive(Clone, Copy)]
struct Chunk<'a> {
    phase: Phase,
    first_index: usize,
    ids: &'a [TokenId],
    /// Rows of output, from the last token backwards.
    n_outputs: usize,
}

/// What the rows of output are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Output {
    Logits,
    Embeddings,
}

impl<M: Forward> Worker<M> {
    /// Serves a request while no generation runs.
    pub(crate) fn serve_exclusive(&mut self, job: ExclusiveJob) {
        self.control.begin_step([job.cancel.flag()].into_iter());
        // Callers that are gone want no answer.
        match job.work {
            ExclusiveWork::Logits(job) => {
                let result = self.with_pages(|worker, pages| worker.all_logits(&job, pages));
                let _ = job.answer.send(result);
            }
            ExclusiveWork::Bench(job) => {
                let result = self.with_pages(|worker, pages| worker.bench(&job, pages));
                let _ = job.answer.send(result);
            }
            ExclusiveWork::Save(job) => {
                let result = self.with_pages(|worker, pages| worker.save(&job, pages));
                let _ = job.answer.send(result);
            }
            ExclusiveWork::Embed(job) => {
                let result = self.with_pages(|worker, pages| worker.embed(&job, pages));
                let _ = job.answer.send(result);
            }
        }
    }

    /// Lends an empty page table. An abort that the engine's owner caused is told as such.
    fn with_pages<T>(
        &mut self,
        work: impl FnOnce(&mut Self, &mut PageTable) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let mut pages = PageTable::with_capacity(self.model.limits().context);
        let result = catch(|| work(self, &mut pages));
        pages.truncate(self.model.pools(), 0);
        match result {
            Err(error) if error.is_abort() && self.control.is_closing() => Err(EngineError::Closed),
            result => result,
        }
    }

    /// `[n_ids, vocab_size]`.
    fn all_logits(
        &mut self,
        job: &LogitsJob,
        pages: &mut PageTable,
    ) -> Result<Vec<f32>, EngineError> {
        let limits = self.model.limits();
        let mut all = Vec::with_capacity(job.ids.len() * limits.vocab_size);
        let mut first_index = 0;
        while first_index < job.ids.len() {
            let (phase, n_left) = if first_index < job.n_prefill {
                (Phase::Prefill, job.n_prefill - first_index)
            } else {
                (Phase::Decode, job.ids.len() - first_index)
            };
            let n_rows = n_left.min(limits.max_rows).min(limits.max_outputs);
            let chunk = Chunk {
                phase,
                first_index,
                ids: &job.ids[first_index..first_index + n_rows],
                n_outputs: n_rows,
            };
            self.evaluate_chunk(chunk, pages, Output::Logits)?;
            all.extend_from_slice(&self.logits[..n_rows * limits.vocab_size]);
            first_index += n_rows;
        }
        Ok(all)
    }

    fn bench(&mut self, job: &BenchJob, pages: &mut PageTable) -> Result<BenchTimes, EngineError> {
        let vocab_size = self.model.limits().vocab_size;
        // Any tokens do; these are spread over the vocabulary, so that embedding rows and experts vary.
        let ids: Vec<TokenId> = (0..job.depth + job.n_prompt.max(job.n_generate))
            .map(|i| {
                ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) % vocab_size as u64) as TokenId
            })
            .collect();
        self.prefill(&ids[..job.depth], 0, pages)?;
        let mut times = BenchTimes {
            prompt_tokens: job.n_prompt,
            prompt_ns: 0,
            generate_tokens: job.n_generate,
            generate_ns: 0,
        };
        if job.n_prompt > 0 {
            let start = Instant::now();
            self.prefill(&ids[job.depth..job.depth + job.n_prompt], job.depth, pages)?;
            times.prompt_ns = nanoseconds(start.elapsed());
        }
        if job.n_generate > 0 {
            // The prompt is overwritten: decoding is measured behind `depth` tokens as well. Windowed layers may have dropped
            // what that needs; then the pages before are computed again.
            if self.model.window().is_some() && job.n_prompt > 0 {
                pages.truncate(self.model.pools(), 0);
                self.prefill(&ids[..job.depth], 0, pages)?;
            }
            let start = Instant::now();
            for first_index in job.depth..job.depth + job.n_generate {
                let chunk = Chunk {
                    phase: Phase::Decode,
                    first_index,
                    ids: &ids[first_index..=first_index],
                    n_outputs: 1,
                };
                self.evaluate_chunk(chunk, pages, Output::Logits)?;
            }
            times.generate_ns = nanoseconds(start.elapsed());
        }
        Ok(times)
    }

    /// The logits of the last token only.
    fn prefill(
        &mut self,
        ids: &[TokenId],
        first_index: usize,
        pages: &mut PageTable,
    ) -> Result<(), EngineError> {
        let max_rows = self.model.limits().max_rows;
        let n_chunks = ids.len().div_ceil(max_rows);
        for (i, ids) in ids.chunks(max_rows).enumerate() {
            let chunk = Chunk {
                phase: Phase::Prefill,
                first_index: first_index + i * max_rows,
                ids,
                n_outputs: usize::from(i + 1 == n_chunks),
            };
            self.evaluate_chunk(chunk, pages, Output::Logits)?;
        }
        Ok(())
    }

    /// The rows of all texts, one behind the other.
    fn embed(&mut self, job: &EmbedJob, pages: &mut PageTable) -> Result<Vec<f32>, EngineError> {
        let limits = self.model.limits();
        let mut all = Vec::new();
        for ids in &job.inputs {
            pages.truncate(self.model.pools(), 0);
            let mut pool = Pool::new(job.pooling, limits.embed_dim);
            // The output of a step has room for so many rows.
            let n_most = match job.pooling {
                Pooling::Last | Pooling::Rank => limits.max_rows,
                Pooling::None | Pooling::Mean | Pooling::Cls => {
                    limits.max_rows.min(limits.max_outputs)
                }
            };
            let mut first_index = 0;
            for ids_of_chunk in ids.chunks(n_most) {
                let end = first_index + ids_of_chunk.len();
                let n_outputs = match job.pooling {
                    Pooling::Last | Pooling::Rank => usize::from(end == ids.len()),
                    Pooling::Cls if first_index > 0 => break,
                    Pooling::None | Pooling::Mean | Pooling::Cls => ids_of_chunk.len(),
                };
                let chunk = Chunk {
                    phase: Phase::Prefill,
                    first_index,
                    ids: ids_of_chunk,
                    n_outputs,
                };
                self.evaluate_chunk(chunk, pages, Output::Embeddings)?;
                pool.push(&self.logits[..n_outputs * limits.embed_dim]);
                first_index = end;
            }
            match &job.classifier {
                Some(classifier) => all.push(classifier.score(&pool.finish(false))),
                None => all.extend(pool.finish(job.normalise)),
            }
        }
        Ok(all)
    }

    /// Computes the KV of `ids`, the tokens from `first_index` on, at most `max_rows`.
    pub(crate) fn evaluate_rows(
        &mut self,
        phase: Phase,
        first_index: usize,
        ids: &[TokenId],
        pages: &mut PageTable,
    ) -> Result<(), EngineError> {
        let chunk = Chunk {
            phase,
            first_index,
            ids,
            n_outputs: 0,
        };
        self.evaluate_chunk(chunk, pages, Output::Logits)
    }

    /// Leaves the rows of output in the front of `logits`. Positions from the chunk on are forgotten.
    fn evaluate_chunk(
        &mut self,
        chunk: Chunk<'_>,
        pages: &mut PageTable,
        output: Output,
    ) -> Result<(), EngineError> {
        let abort: &AtomicBool = self.control.step_abort();
        if abort.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(aborted());
        }
        let limits = self.model.limits();
        let window = self.model.window();
        let end = chunk.first_index + chunk.ids.len();
        let pools = self.model.pools();
        pages.truncate(pools, chunk.first_index);
        let n_slots = slots_for(end).saturating_sub(pages.slots().len());
        self.cache.make_room(pools, Pages::both(n_slots));
        pages.grow(pools, end)?;
        self.batch.clear();
        self.batch.add(
            0,
            chunk.phase,
            chunk.first_index,
            chunk.ids,
            chunk.n_outputs,
        );
        let wanted = match output {
            Output::Logits => {
                Wanted::Logits(&mut self.logits[..chunk.n_outputs * limits.vocab_size])
            }
            Output::Embeddings => {
                Wanted::Embeddings(&mut self.logits[..chunk.n_outputs * limits.embed_dim])
            }
        };
        self.batch
            .run(&mut self.model, |_| pages.slots(), wanted, abort)?;
        pages.drop_passed(self.model.pools(), first_visible(end, window));
        Ok(())
    }
}
