//! From tokens to the text that may leave: complete characters only, and nothing that may still become a stop string. Tokens
//! and their log-probabilities travel with the next text that leaves.

use rsllm_tokenizer::StreamDecoder;

use crate::TokenId;
use crate::generation::Piece;
use crate::sampling::PositionLogprobs;
use crate::stop::StopMatcher;

/// The text side of one sequence.
pub(crate) struct TextStream {
    decoder: StreamDecoder,
    stop: StopMatcher,
    /// What leaves next.
    pending: Piece,
}

impl TextStream {
    pub(crate) fn new(decoder: StreamDecoder, stop: StopMatcher) -> Self {
        Self {
            decoder,
            stop,
            pending: Piece::default(),
        }
    }

    /// Adds a token. Returns true when a stop string is complete.
    pub(crate) fn push(&mut self, id: TokenId, logprobs: Option<PositionLogprobs>) -> bool {
        self.pending.ids.push(id);
        self.pending.logprobs.extend(logprobs);
        self.stop
            .push(self.decoder.push(id), &mut self.pending.text)
    }

    /// The text that may leave by now, if any.
    pub(crate) fn take(&mut self) -> Option<Piece> {
        (!self.pending.text.is_empty()).then(|| std::mem::take(&mut self.pending))
    }

    /// The sequence has ended: what was held back, unless it was a stop string. A character that never became complete is
    /// replaced by U+FFFD. `None` when there is neither text nor token left.
    pub(crate) fn finish(&mut self) -> Option<Piece> {
        if self.stop.found().is_none() {
            self.stop
                .push(self.decoder.finish(), &mut self.pending.text);
        }
        self.stop.finish(&mut self.pending.text);
        let piece = std::mem::take(&mut self.pending);
        (!piece.text.is_empty() || !piece.ids.is_empty()).then_some(piece)
    }

    /// The stop string that was found.
    pub(crate) fn found(&self) -> Option<&str> {
        self.stop.found()
    }
}
