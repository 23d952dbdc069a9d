//! The engine thread: owns the model, takes requests from a channel, and runs one after another. A panic while serving a request
//! becomes that caller's error; the thread goes on.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rsllm_tokenizer::Tokenizer;

use crate::TokenId;
use crate::constraint::Constraint;
use crate::error::EngineError;
use crate::forward::{Forward, Outputs, Phase, SequenceStep};
use crate::generation::{Event, FinishReason, GenerationStats, nanoseconds};
use crate::prefix::PrefilledPrefix;
use crate::sampling::Sampler;
use crate::sequence::{Sequence, SequenceParts};
use crate::stop::StopMatcher;
use crate::text::TextStream;

/// A request. Everything in it was checked by the caller's thread.
pub(crate) enum Command {
    Generate(Box<GenerateJob>),
    Logits(LogitsJob),
    Bench(BenchJob),
}

/// Continue a prompt.
pub(crate) struct GenerateJob {
    /// At least one token, at most the context.
    pub(crate) prompt: Vec<TokenId>,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) logprobs: Option<usize>,
    pub(crate) sampler: Sampler,
    pub(crate) constraint: Option<Constraint>,
    pub(crate) stop: StopMatcher,
    pub(crate) events: Sender<Event>,
    pub(crate) abort: Arc<AtomicBool>,
    pub(crate) queued: Instant,
}

/// Compute the logits of every position.
pub(crate) struct LogitsJob {
    pub(crate) ids: Vec<TokenId>,
    /// Positions from here on take the decode product, one step each.
    pub(crate) n_prefill: usize,
    pub(crate) answer: Sender<Result<Vec<f32>, EngineError>>,
    pub(crate) abort: Arc<AtomicBool>,
}

/// Measure prefill and decoding behind a context of `depth` tokens.
pub(crate) struct BenchJob {
    pub(crate) n_prompt: usize,
    pub(crate) n_generate: usize,
    pub(crate) depth: usize,
    pub(crate) answer: Sender<Result<BenchTimes, EngineError>>,
    pub(crate) abort: Arc<AtomicBool>,
}

/// The result of one measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BenchTimes {
    /// Tokens prefilled behind `depth` tokens of context.
    pub prompt_tokens: usize,
    /// Nanoseconds they took, the logits of the last included; 0 for none.
    pub prompt_ns: u64,
    /// Tokens decoded behind `depth` tokens of context, one step each.
    pub generate_tokens: usize,
    /// Nanoseconds they took; 0 for none.
    pub generate_ns: u64,
}

/// How the engine's owner reaches into the running thread.
#[derive(Debug, Default)]
pub(crate) struct Control {
    closing: AtomicBool,
    /// The abort flag of the request being served.
    current: Mutex<Option<Arc<AtomicBool>>>,
}

/// The state of the engine thread.
pub(crate) struct Worker<M> {
    pub(crate) model: M,
    pub(crate) tokenizer: Tokenizer,
    /// Tokens that end a generation, sorted.
    pub(crate) end_tokens: Vec<TokenId>,
    /// `[max_outputs, vocab_size]`.
    pub(crate) logits: Vec<f32>,
    /// What the last prompt left in the pages.
    pub(crate) prefix: PrefilledPrefix,
    pub(crate) control: Arc<Control>,
}

impl Control {
    /// Ends what runs, and lets nothing else start.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        // A request that is set from here on sees `closing`.
        if let Some(abort) = self.current().as_ref() {
            abort.store(true, Ordering::SeqCst);
        }
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    fn set_current(&self, abort: Option<Arc<AtomicBool>>) {
        *self.current() = abort;
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Option<Arc<AtomicBool>>> {
        // Nothing panics while it is held.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Command {
    fn abort(&self) -> &Arc<AtomicBool> {
        match self {
            Self::Generate(job) => &job.abort,
            Self::Logits(job) => &job.abort,
            Self::Bench(job) => &job.abort,
        }
    }
}

impl<M: Forward> Worker<M> {
    /// Serves requests until every sender is gone or the engine is closed.
    pub(crate) fn run(mut self, commands: &Receiver<Command>) {
        while let Ok(command) = commands.recv() {
            self.control.set_current(Some(Arc::clone(command.abort())));
            if self.control.is_closing() {
                // Dropping a request tells its caller that the engine is closed.
                return;
            }
            match command {
                Command::Generate(job) => self.serve_generation(job),
                Command::Logits(job) => {
                    let answer = catch(|| self.all_logits(&job));
                    // The caller may be gone; then nobody wants the answer.
                    let _ = job.answer.send(self.closed_or(answer));
                }
                Command::Bench(job) => {
                    let answer = catch(|| self.bench(&job));
                    let _ = job.answer.send(self.closed_or(answer));
                }
            }
            self.control.set_current(None);
        }
    }

    /// An abort that the engine's owner caused is told as such.
    fn closed_or<T>(&self, answer: Result<T, EngineError>) -> Result<T, EngineError> {
        match answer {
            Err(error) if error.is_abort() && self.control.is_closing() => Err(EngineError::Closed),
            answer => answer,
        }
    }

    fn serve_generation(&mut self, job: Box<GenerateJob>) {
        let events = job.events.clone();
        let queued = job.queued;
        let mut stats = GenerationStats::at_start(job.sampler.seed(), job.prompt.len());
        let result = catch(|| self.generate(*job, &mut stats));
        stats.total_ns = nanoseconds(queued.elapsed());
        let event = match self.closed_or(result) {
            Ok(reason) => Event::End(GenerationStats {
                finish_reason: reason,
                ..stats
            }),
            Err(error) if error.is_abort() => Event::End(GenerationStats {
                finish_reason: FinishReason::Cancelled,
                ..stats
            }),
            Err(error) => Event::Failed(
                error,
                GenerationStats {
                    finish_reason: FinishReason::Error,
                    ..stats
                },
            ),
        };
        let _ = events.send(event);
    }

    fn generate(
        &mut self,
        job: GenerateJob,
        stats: &mut GenerationStats,
    ) -> Result<FinishReason, EngineError> {
        let GenerateJob {
            prompt,
            max_tokens,
            logprobs,
            sampler,
            constraint,
            stop,
            events,
            abort,
            queued,
        } = job;
        let started = Instant::now();
        stats.queue_ns = nanoseconds(started - queued);
        if abort.load(Ordering::Relaxed) {
            return Ok(FinishReason::Cancelled);
        }
        let vocab_size = self.model.limits().vocab_size;
        let mut sequence = Sequence::new(SequenceParts {
            prompt,
            context: self.model.limits().context,
            max_tokens,
            logprobs,
            end_tokens: &self.end_tokens,
            sampler,
            constraint,
            text: TextStream::new(self.tokenizer.stream_decoder(), stop),
        });
        let prefilled =
            sequence.prefill(&mut self.model, &mut self.prefix, &mut self.logits, &abort);
        let decode_start = Instant::now();
        stats.prefill_ns = nanoseconds(decode_start - started);
        stats.cached_tokens = prefilled?;
        if sequence.is_over_before_it_starts() {
            return Ok(FinishReason::Length);
        }
        loop {
            let drawn = sequence.draw(&self.logits[..vocab_size]);
            let now = Instant::now();
            stats.generated_tokens = sequence.n_generated();
            if stats.first_token_ns == 0 && stats.generated_tokens > 0 {
                stats.first_token_ns = nanoseconds(now - queued);
            }
            stats.decode_ns = nanoseconds(now - decode_start);
            let finished = drawn?;
            let piece = if finished.is_some() {
                sequence.finish()
            } else {
                sequence.take_piece()
            };
            if let Some(piece) = piece
                && events.send(Event::Piece(piece)).is_err()
            {
                return Ok(FinishReason::Cancelled);
            }
            if let Some(reason) = finished {
                stats.stop_text = sequence.stop_text().map(str::to_owned);
                return Ok(reason);
            }
            let decoded = sequence.decode(&mut self.model, &mut self.logits, &abort);
            stats.decode_ns = nanoseconds(decode_start.elapsed());
            decoded?;
        }
    }

    /// `[n_ids, vocab_size]`.
    fn all_logits(&mut self, job: &LogitsJob) -> Result<Vec<f32>, EngineError> {
        self.prefix.truncate(0);
        let limits = self.model.limits();
        let mut all = Vec::with_capacity(job.ids.len() * limits.vocab_size);
        let mut first_index = 0;
        while first_index < job.ids.len() {
            let (phase, n_rows) = if first_index < job.n_prefill {
                let left = job.n_prefill.min(job.ids.len()) - first_index;
                (
                    Phase::Prefill,
                    left.min(limits.max_rows).min(limits.max_outputs),
                )
            } else {
                (Phase::Decode, 1)
            };
            let ids = &job.ids[first_index..first_index + n_rows];
            let step = SequenceStep {
                phase,
                ids,
                first_index,
                outputs: Outputs::All,
            };
            self.model.forward(&step, &mut self.logits, &job.abort)?;
            all.extend_from_slice(&self.logits[..n_rows * limits.vocab_size]);
            first_index += n_rows;
        }
        Ok(all)
    }

    fn bench(&mut self, job: &BenchJob) -> Result<BenchTimes, EngineError> {
        self.prefix.truncate(0);
        let vocab_size = self.model.limits().vocab_size;
        // Any tokens do; these are spread over the vocabulary, so that embedding rows and experts vary.
        let ids: Vec<TokenId> = (0..job.depth + job.n_prompt.max(job.n_generate))
            .map(|i| {
                ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) % vocab_size as u64) as TokenId
            })
            .collect();
        self.bench_prefill(&ids[..job.depth], 0, &job.abort)?;
        let mut times = BenchTimes {
            prompt_tokens: job.n_prompt,
            prompt_ns: 0,
            generate_tokens: job.n_generate,
            generate_ns: 0,
        };
        if job.n_prompt > 0 {
            let start = Instant::now();
            self.bench_prefill(
                &ids[job.depth..job.depth + job.n_prompt],
                job.depth,
                &job.abort,
            )?;
            times.prompt_ns = nanoseconds(start.elapsed());
        }
        if job.n_generate > 0 {
            // The prompt is overwritten: decoding is measured behind `depth` tokens as well.
            let start = Instant::now();
            for first_index in job.depth..job.depth + job.n_generate {
                let ids = &ids[first_index..=first_index];
                let step = SequenceStep {
                    phase: Phase::Decode,
                    ids,
                    first_index,
                    outputs: Outputs::Last,
                };
                self.model.forward(&step, &mut self.logits, &job.abort)?;
            }
            times.generate_ns = nanoseconds(start.elapsed());
        }
        Ok(times)
    }

    fn bench_prefill(
        &mut self,
        ids: &[TokenId],
        first_index: usize,
        abort: &AtomicBool,
    ) -> Result<(), EngineError> {
        let max_rows = self.model.limits().max_rows;
        let n_chunks = ids.len().div_ceil(max_rows);
        for (i, chunk) in ids.chunks(max_rows).enumerate() {
            let outputs = if i + 1 == n_chunks {
                Outputs::Last
            } else {
                Outputs::None
            };
            let first_index = first_index + i * max_rows;
            self.model.forward(
                &SequenceStep {
                    phase: Phase::Prefill,
                    ids: chunk,
                    first_index,
                    outputs,
                },
                &mut self.logits,
                abort,
            )?;
        }
        Ok(())
    }
}

/// Turns a panic into an error. State that a panic leaves half changed is KV and scratch, both rewritten by the next request.
fn catch<T>(work: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        Err(EngineError::Panicked {
            message: message_of(&*panic),
        })
    })
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        (None, None) => "a panic without a message".to_owned(),
    }
}
