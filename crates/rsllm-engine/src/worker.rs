//! The engine thread: owns the model, takes requests from a channel, and computes one step after another for all of them
//! together. A panic while serving a request becomes that caller's error; the thread goes on.
//!
//! Generations run side by side, see `batching.rs`. Requests that want the model for themselves, see `exclusive.rs`, run when
//! all generations before them have ended.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use rsllm_model::ModelError;
use rsllm_tokenizer::Tokenizer;

use crate::TokenId;
use crate::batch::Batch;
use crate::batching::{Live, StepState};
use crate::classifier::Classifier;
use crate::constraint::{Constraint, MaskThread};
use crate::control::{CancelHandle, Control};
use crate::draft_model::DraftModel;
use crate::embedding::Pooling;
use crate::error::EngineError;
use crate::forward::Forward;
use crate::generation::Event;
use crate::metrics::{Board, EngineMetrics};
use crate::pages::Pages;
use crate::prefix_cache::PrefixCache;
use crate::prefixes::{RestoreJob, SaveJob};
use crate::sampling::Sampler;
use crate::stop::StopMatcher;

/// How long an idle engine waits for a second request: longer than a program takes between two that it starts together, and too
/// short to be felt.
const GATHERING: Duration = Duration::from_micros(300);
/// How long it waits for further ones, and for all of them.
const FURTHER_GATHERING: Duration = Duration::from_millis(1);
const LONGEST_GATHERING: Duration = Duration::from_millis(8);

/// A request. Everything in it was checked by the caller's thread.
pub(crate) enum Command {
    Generate(Box<GenerateJob>),
    Exclusive(ExclusiveJob),
    Restore(RestoreJob),
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
    pub(crate) max_draft: usize,
    /// Tokens to keep when the context is full.
    pub(crate) shift: Option<usize>,
    pub(crate) events: Sender<Event>,
    pub(crate) cancel: CancelHandle,
    pub(crate) queued: Instant,
}

/// A request that needs the model for itself.
pub(crate) struct ExclusiveJob {
    pub(crate) cancel: CancelHandle,
    pub(crate) work: ExclusiveWork,
}

pub(crate) enum ExclusiveWork {
    Logits(LogitsJob),
    Bench(BenchJob),
    Embed(EmbedJob),
    Save(SaveJob),
}

/// Compute the logits of every position.
pub(crate) struct LogitsJob {
    pub(crate) ids: Vec<TokenId>,
    /// Positions from here on take the decode product.
    pub(crate) n_prefill: usize,
    pub(crate) answer: Sender<Result<Vec<f32>, EngineError>>,
}

/// Measure prefill and decoding behind a context of `depth` tokens.
pub(crate) struct BenchJob {
    pub(crate) n_prompt: usize,
    pub(crate) n_generate: usize,
    pub(crate) depth: usize,
    pub(crate) answer: Sender<Result<BenchTimes, EngineError>>,
}

/// Compute embeddings.
pub(crate) struct EmbedJob {
    /// Each of at least one token and at most the context.
    pub(crate) inputs: Vec<Vec<TokenId>>,
    pub(crate) pooling: Pooling,
    pub(crate) normalise: bool,
    /// For scores in place of embeddings.
    pub(crate) classifier: Option<Arc<Classifier>>,
    pub(crate) answer: Sender<Result<Vec<f32>, EngineError>>,
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

/// The state of the engine thread.
pub(crate) struct Worker<M> {
    pub(crate) model: M,
    pub(crate) tokenizer: Tokenizer,
    /// Tokens that end a generation, sorted.
    pub(crate) end_tokens: Arc<[TokenId]>,
    /// `[max_outputs, vocab_size]`, or rows of embeddings.
    pub(crate) logits: Vec<f32>,
    pub(crate) control: Arc<Control>,
    pub(crate) cache: PrefixCache,
    pub(crate) batch: Batch,
    pub(crate) metrics: EngineMetrics,
    board: Board,
    /// In order of arrival.
    pub(crate) waiting: VecDeque<Waiting>,
    /// In order of arrival, all before those that wait.
    pub(crate) running: Vec<Live>,
    pub(crate) step_state: StepState,
    pub(crate) masks: MaskThread,
    /// Guesses for a sequence that generates alone.
    pub(crate) draft_model: Option<DraftModel<M>>,
}

/// A request that waits.
pub(crate) enum Waiting {
    New(Box<GenerateJob>),
    /// Gave its pages to an older sequence.
    Preempted(Box<Live>),
    Exclusive(ExclusiveJob),
}

impl<M: Forward> Worker<M> {
    /// A thread's state before the first request.
    pub(crate) fn new(
        model: M,
        draft_model: Option<DraftModel<M>>,
        tokenizer: Tokenizer,
        end_tokens: Arc<[TokenId]>,
        control: Arc<Control>,
        board: Board,
    ) -> Self {
        let limits = model.limits();
        Self {
            cache: PrefixCache::new(model.window()),
            model,
            tokenizer,
            end_tokens,
            logits: vec![0.0; limits.max_outputs * limits.vocab_size.max(limits.embed_dim)],
            control,
            batch: Batch::default(),
            metrics: EngineMetrics::default(),
            board,
            waiting: VecDeque::new(),
            running: Vec::with_capacity(limits.max_sequences),
            step_state: StepState::new(),
            masks: MaskThread::default(),
            draft_model,
        }
    }

    /// Serves requests until every sender is gone or the engine is closed.
    pub(crate) fn run(mut self, commands: &Receiver<Command>) {
        loop {
            if self.running.is_empty() && self.waiting.is_empty() {
                self.tell_metrics();
                match commands.recv() {
                    Ok(command) => self.enqueue(command),
                    Err(_) => return,
                }
                self.gather(commands);
            }
            while let Ok(command) = commands.try_recv() {
                self.enqueue(command);
            }
            if self.control.is_closing() {
                // Dropping a request tells its caller that the engine is closed.
                return;
            }
            self.drop_cancelled();
            self.admit();
            if self.running.is_empty() {
                if let Some(Waiting::Exclusive(job)) = self.waiting.pop_front() {
                    self.serve_exclusive(job);
                }
            } else {
                self.step();
            }
            self.update_metrics();
            self.board.publish(self.metrics);
        }
    }

    /// Waits for those that come together with the first, because prompts that are computed together take far less time than one
    /// by one, and whoever begins later holds up the others' ends.
    fn gather(&mut self, commands: &Receiver<Command>) {
        let start = Instant::now();
        let most = self.model.limits().max_sequences;
        while matches!(self.waiting.back(), Some(Waiting::New(_)))
            && self.waiting.len() < most
            && start.elapsed() < LONGEST_GATHERING
        {
            let patience = if self.waiting.len() > 1 {
                FURTHER_GATHERING
            } else {
                GATHERING
            };
            match commands.recv_timeout(patience) {
                Ok(command) => self.enqueue(command),
                Err(_) => return,
            }
        }
    }

    fn enqueue(&mut self, command: Command) {
        match command {
            Command::Generate(job) => self.waiting.push_back(Waiting::New(job)),
            Command::Exclusive(job) => self.waiting.push_back(Waiting::Exclusive(job)),
            Command::Restore(job) => self.restore(&job),
        }
    }

    /// Publishes figures that are looked at next.
    pub(crate) fn tell_metrics(&mut self) {
        self.update_metrics();
        self.board.write(self.metrics);
    }

    fn update_metrics(&mut self) {
        let pools = self.model.pools();
        let of = |pages: Pages, pools: &rsllm_model::PagePools| {
            if pools.full.n_pages() > 0 {
                pages.full
            } else {
                pages.window
            }
        };
        let free = Pages {
            full: pools.full.n_free(),
            window: pools.window.n_free(),
        };
        let all = Pages {
            full: pools.full.n_pages(),
            window: pools.window.n_pages(),
        };
        let unused = of(self.cache.available(pools), pools);
        let metrics = &mut self.metrics;
        metrics.waiting = self.waiting.len();
        metrics.running = self.running.len();
        metrics.page_len = rsllm_model::PAGE_LEN;
        metrics.pages = of(all, pools);
        metrics.pages_free = of(free, pools);
        metrics.pages_cached = unused - metrics.pages_free;
    }
}

/// Turns a panic into an error. State that a panic leaves half changed is KV and scratch, both rewritten by the next request.
pub(crate) fn catch<T, E: Into<EngineError>>(
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T, EngineError> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(Into::into),
        Err(panic) => Err(EngineError::Panicked {
            message: message_of(&*panic),
        }),
    }
}

/// The error of work that nobody wants any more.
pub(crate) fn aborted() -> EngineError {
    ModelError::Aborted.into()
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        (None, None) => "a panic without a message".to_owned(),
    }
}
