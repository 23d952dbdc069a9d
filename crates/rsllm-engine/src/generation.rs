//! A running generation as its caller sees it: pieces of text as they become certain, then the figures. Dropping the handle
//! cancels the generation, wherever it stands in queue, prompt or text.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::TokenId;
use crate::control::CancelHandle;
use crate::error::EngineError;
use crate::sampling::PositionLogprobs;

/// Text that is valid and final: no later token and no stop string can change it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// Never empty but in the last piece of a generation, which may carry tokens whose text did not leave.
    pub text: String,
    /// All tokens since the last piece.
    pub ids: Vec<TokenId>,
    /// One entry a token, when asked for.
    pub logprobs: Vec<PositionLogprobs>,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended its turn, or a stop string was complete.
    Stop,
    /// `max_tokens` were generated.
    Length,
    /// The context has no room for another token.
    Context,
    /// The caller no longer wants it.
    Cancelled,
    /// The engine failed; the error was handed out in place of a piece.
    Error,
}

/// Counts and durations of one generation. Durations are in nanoseconds on a monotonic clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenerationStats {
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// The stop string that ended it.
    pub stop_text: Option<String>,
    /// The seed in force, given or drawn.
    pub seed: u64,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them whose KV was already there.
    pub cached_tokens: usize,
    /// Times that the context was full and a part of the text was forgotten, see [`crate::GenerateOptions::shift`].
    pub shifts: usize,
    /// Tokens that this took out of the text.
    pub dropped_tokens: usize,
    /// What was done otherwise than asked for.
    pub warnings: Vec<String>,
    /// Tokens drawn, without the end-of-generation token.
    pub generated_tokens: usize,
    /// Tokens that were guessed from the text so far and computed beside others.
    pub drafted_tokens: usize,
    /// Those of them that were then drawn.
    pub accepted_tokens: usize,
    /// From the request to the start of its work.
    pub queue_ns: u64,
    /// The prompt's own computation.
    pub prefill_ns: u64,
    /// From the end of the prompt to the end.
    pub decode_ns: u64,
    /// From the request to the first token; 0 if there was none.
    pub first_token_ns: u64,
    /// From the request to the end.
    pub total_ns: u64,
}

/// What the engine thread sends.
#[derive(Debug)]
pub(crate) enum Event {
    Piece(Piece),
    /// The last event.
    End(GenerationStats),
    /// The last event as well.
    Failed(EngineError, GenerationStats),
}

/// What [`Generation::next_timeout`] found.
#[derive(Debug)]
pub enum Next {
    /// More text.
    Piece(Piece),
    /// Nothing came in time.
    Pending,
    /// The generation is over.
    End,
}

/// One running generation. Dropping it cancels.
#[derive(Debug)]
pub struct Generation {
    events: Receiver<Event>,
    cancel: CancelHandle,
    /// What is known from the start; replaced by the final figures.
    stats: GenerationStats,
    ended: bool,
    queued: Instant,
}

impl Generation {
    pub(crate) fn new(
        events: Receiver<Event>,
        cancel: CancelHandle,
        seed: u64,
        prompt_tokens: usize,
    ) -> Self {
        Self {
            events,
            cancel,
            stats: GenerationStats::at_start(seed, prompt_tokens),
            ended: false,
            queued: Instant::now(),
        }
    }

    /// Waits for the next piece; `None` at the end.
    pub fn next_piece(&mut self) -> Result<Option<Piece>, EngineError> {
        loop {
            match self.next_timeout(Duration::from_secs(3600))? {
                Next::Piece(piece) => return Ok(Some(piece)),
                Next::Pending => (),
                Next::End => return Ok(None),
            }
        }
    }

    /// Waits at most `timeout` for the next piece. An error is handed out once; the generation is over then.
    pub fn next_timeout(&mut self, timeout: Duration) -> Result<Next, EngineError> {
        if self.ended {
            return Ok(Next::End);
        }
        match self.events.recv_timeout(timeout) {
            Ok(Event::Piece(piece)) => Ok(Next::Piece(piece)),
            Ok(Event::End(stats)) => {
                self.end(stats);
                Ok(Next::End)
            }
            Ok(Event::Failed(error, stats)) => {
                self.end(stats);
                Err(error)
            }
            Err(RecvTimeoutError::Timeout) => Ok(Next::Pending),
            Err(RecvTimeoutError::Disconnected) => {
                // The engine was closed before it came to this request.
                let cancelled = self.cancel.is_cancelled();
                let finish_reason = if cancelled {
                    FinishReason::Cancelled
                } else {
                    FinishReason::Error
                };
                self.end(GenerationStats {
                    finish_reason,
                    ..self.so_far()
                });
                if cancelled {
                    Ok(Next::End)
                } else {
                    Err(EngineError::Closed)
                }
            }
        }
    }

    /// Stops the generation; [`Generation::next_piece`] still hands out what left before, then ends.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// For cancelling while another thread waits for pieces.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.cancel.clone()
    }

    /// True once the end was reached.
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// The final figures once the generation has ended. Before that they are those known from the start and the time passed;
    /// after a cancellation this waits up to `timeout` for the engine to confirm it, dropping unread pieces.
    pub fn stats(&mut self, timeout: Duration) -> GenerationStats {
        let deadline = Instant::now() + timeout;
        while !self.ended && self.cancel.is_cancelled() {
            let left = deadline.saturating_duration_since(Instant::now());
            if let Ok(Next::Pending) = self.next_timeout(left) {
                break;
            }
        }
        if self.ended {
            self.stats.clone()
        } else {
            self.so_far()
        }
    }

    fn end(&mut self, stats: GenerationStats) {
        self.stats = stats;
        self.ended = true;
    }

    fn so_far(&self) -> GenerationStats {
        GenerationStats {
            total_ns: nanoseconds(self.queued.elapsed()),
            ..self.stats.clone()
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

impl GenerationStats {
    pub(crate) fn at_start(seed: u64, prompt_tokens: usize) -> Self {
        Self {
            finish_reason: FinishReason::Cancelled,
            stop_text: None,
            seed,
            prompt_tokens,
            cached_tokens: 0,
            shifts: 0,
            dropped_tokens: 0,
            warnings: Vec::new(),
            generated_tokens: 0,
            drafted_tokens: 0,
            accepted_tokens: 0,
            queue_ns: 0,
            prefill_ns: 0,
            decode_ns: 0,
            first_token_ns: 0,
            total_ns: 0,
        }
    }
}

impl FinishReason {
    /// The name that callers see.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Context => "context",
            Self::Cancelled => "cancelled",
            Self::Error => "error",
        }
    }
}

/// Whole nanoseconds; 584 years fit.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
