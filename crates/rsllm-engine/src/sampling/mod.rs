//! From logits to a token. A sampler chain is data: a list of steps, each in its own file, that narrow or reshape the
//! candidates, then one pick. A step that would do nothing is not in the chain. The sampler belongs to one sequence, with its
//! generator, its penalty window and memory for one vocabulary; drawing a token allocates nothing and never sorts the
//! vocabulary.
//!
//! Not here: stop strings (`stop.rs`), and end-of-generation tokens, which are the engine's matter.

mod candidates;
mod dist;
mod greedy;
mod logit_bias;
mod logprobs;
mod min_p;
mod options;
mod penalties;
#[cfg(test)]
mod reference;
mod rng;
mod softmax;
mod temperature;
mod top_k;
mod top_p;
mod typical;

use thiserror::Error;

pub use self::candidates::{Candidate, Candidates};
pub use self::logit_bias::LogitBias;
pub use self::logprobs::{MAX_TOP_LOGPROBS, PositionLogprobs, TokenLogprob, validate_top_logprobs};
pub use self::min_p::MinP;
pub use self::options::{MAX_COUNT, OptionError, RepeatWindow, SamplingOptions};
pub use self::penalties::Penalties;
pub use self::rng::{Rng, random_seed};
pub use self::temperature::Temperature;
pub use self::top_k::TopK;
pub use self::top_p::TopP;
pub use self::typical::Typical;
use crate::TokenId;
use crate::constraint::TokenMask;

/// Draws the tokens of one sequence.
#[derive(Debug)]
pub struct Sampler {
    chain: SamplerChain,
    candidates: Candidates,
    vocab_size: usize,
    seed: u64,
    rng: Rng,
}

/// The steps, in order, and the pick at the end.
#[derive(Clone, Debug)]
pub struct SamplerChain {
    /// Applied in order.
    pub steps: Vec<Step>,
    /// Draws from what the steps leave.
    pub pick: Pick,
}

/// One step of a chain.
#[derive(Clone, Debug)]
#[allow(
    missing_docs,
    reason = "each variant is named after its struct, which is documented"
)]
pub enum Step {
    LogitBias(LogitBias),
    Penalties(Penalties),
    TopK(TopK),
    Typical(Typical),
    TopP(TopP),
    MinP(MinP),
    Temperature(Temperature),
}

impl Step {
    /// The tokens whose logits it changes, if that is all it does.
    fn changes(&self) -> Option<Changes<'_>> {
        match self {
            Self::LogitBias(step) => Some(Changes::Biases(step.biases().iter())),
            Self::Penalties(step) => Some(Changes::Counts(step.counts().iter())),
            _ => None,
        }
    }
}

/// Tokens that a step changes.
#[derive(Clone)]
enum Changes<'a> {
    Biases(std::slice::Iter<'a, (TokenId, f32)>),
    Counts(std::slice::Iter<'a, (TokenId, u32)>),
}

impl<'a> Iterator for Changes<'a> {
    type Item = &'a TokenId;

    fn next(&mut self) -> Option<&'a TokenId> {
        match self {
            Self::Biases(biases) => biases.next().map(|(id, _)| id),
            Self::Counts(counts) => counts.next().map(|(id, _)| id),
        }
    }
}

/// The names of the steps, for orders of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant is named after its step")]
pub enum StepKind {
    LogitBias,
    Penalties,
    TopK,
    Typical,
    TopP,
    MinP,
    Temperature,
}

/// How a chain ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// The most likely token; the lowest id of equal ones.
    Greedy,
    /// A draw with the probabilities that the chain leaves.
    Random,
}

/// Why no token could be drawn. None of these is the caller's doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// The model computed something that is not a number.
    #[error("the logit of token {id} is not a number; the model file or a kernel is faulty")]
    NanLogit {
        /// The first such token.
        id: TokenId,
    },
    /// Every token is at negative infinity.
    #[error("every token has a logit of negative infinity, so none can be picked")]
    NothingToPick,
    /// A row of logits of another length than the vocabulary.
    #[error("{found} logits for a vocabulary of {expected} tokens")]
    LogitCount {
        /// The vocabulary.
        expected: usize,
        /// The row.
        found: usize,
    },
}

/// The reference engine's order: truncation works on the model's own distribution, temperature comes last.
pub const DEFAULT_ORDER: [StepKind; 7] = [
    StepKind::LogitBias,
    StepKind::Penalties,
    StepKind::TopK,
    StepKind::Typical,
    StepKind::TopP,
    StepKind::MinP,
    StepKind::Temperature,
];

impl Sampler {
    /// A sampler with the default order for a sequence of at most `context_len` tokens. Takes about 24 bytes a token of the
    /// vocabulary.
    pub fn new(
        options: &SamplingOptions,
        vocab_size: usize,
        context_len: usize,
    ) -> Result<Self, OptionError> {
        options.validate()?;
        if let Some(&(id, _)) = options
            .logit_bias
            .iter()
            .find(|&&(id, _)| id as usize >= vocab_size)
        {
            let expected = format!("for tokens below {vocab_size}");
            return Err(OptionError::new(
                "logit_bias",
                expected,
                format!("for token {id}"),
            ));
        }
        let seed = options.seed.unwrap_or_else(random_seed);
        Ok(Self {
            chain: SamplerChain::new(options, &DEFAULT_ORDER, context_len),
            candidates: Candidates::new(vocab_size),
            vocab_size,
            seed,
            rng: Rng::new(seed),
        })
    }

    /// The seed in force, given or drawn.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether it always picks the most likely token of what its steps leave.
    pub(crate) fn is_greedy(&self) -> bool {
        self.chain.pick == Pick::Greedy
    }

    /// What `work` draws counts for nothing: what is drawn next is what would have been without it.
    pub(crate) fn rehearse<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let rng = self.rng.clone();
        let result = work(self);
        self.rng = rng;
        result
    }

    /// Tells the sampler that `id` is now part of the sequence; to be called for prompt and generated tokens alike.
    pub fn accept(&mut self, id: TokenId) {
        self.chain.accept(id);
    }

    /// Draws a token from `logits` (`[vocab_size]`) without accepting it.
    pub fn sample(&mut self, logits: &[f32]) -> Result<TokenId, SamplingError> {
        if self.chain.pick == Pick::Greedy && self.chain.steps.is_empty() {
            return greedy::pick_from_logits(logits, self.vocab_size);
        }
        match self.chain.n_best() {
            Some(n_best) => self
                .candidates
                .load_best(logits, n_best, self.chain.changed())?,
            None => self.candidates.load(logits)?,
        }
        self.pick()
    }

    /// Applies the chain to the loaded candidates and draws one of what is left.
    fn pick(&mut self) -> Result<TokenId, SamplingError> {
        self.chain.apply(&mut self.candidates);
        match self.chain.pick {
            Pick::Greedy => greedy::pick(&self.candidates),
            Pick::Random => dist::pick(&mut self.candidates, &mut self.rng),
        }
    }

    /// Draws one of the `allowed` tokens, which are all that the chain gets to see, without accepting it.
    pub fn sample_within(
        &mut self,
        logits: &[f32],
        allowed: &TokenMask,
    ) -> Result<TokenId, SamplingError> {
        self.candidates.load(logits)?;
        self.candidates.retain(|entry| allowed.allows(entry.id));
        self.pick()
    }

    /// The distribution that [`Sampler::sample`] draws from, `[vocab_size]`; for tests and tools.
    pub fn probabilities(&mut self, logits: &[f32]) -> Result<Vec<f32>, SamplingError> {
        self.candidates.load(logits)?;
        self.chain.apply(&mut self.candidates);
        let mut probabilities = vec![0.0; self.vocab_size];
        match self.chain.pick {
            Pick::Greedy => probabilities[greedy::pick(&self.candidates)? as usize] = 1.0,
            Pick::Random => dist::write_probabilities(&mut self.candidates, &mut probabilities)?,
        }
        Ok(probabilities)
    }

    /// Log-probabilities under the model's own `logits` of `chosen` and of the `n_top` most likely tokens.
    pub fn logprobs(
        &mut self,
        logits: &[f32],
        chosen: TokenId,
        n_top: usize,
    ) -> Result<PositionLogprobs, SamplingError> {
        logprobs::position_logprobs(logits, chosen, n_top, &mut self.candidates)
    }
}

impl SamplerChain {
    /// The chain that valid `options` describe, with its steps in `order`. At temperature 0, steps that cannot change which
    /// token is the most likely are left out.
    pub fn new(options: &SamplingOptions, order: &[StepKind], context_len: usize) -> Self {
        let pick = if options.temperature == 0.0 {
            Pick::Greedy
        } else {
            Pick::Random
        };
        // Only typical sampling can drop the most likely token, and what comes before it changes what is typical.
        let narrows = pick == Pick::Random || options.typical_p < 1.0;
        let steps =
            order.iter().filter_map(|kind| match kind {
                StepKind::LogitBias => (!options.logit_bias.is_empty())
                    .then(|| Step::LogitBias(LogitBias::new(options.logit_bias.clone()))),
                StepKind::Penalties => penalties_of(options, context_len).map(Step::Penalties),
                StepKind::TopK => {
                    (narrows && options.top_k > 0).then_some(Step::TopK(TopK { k: options.top_k }))
                }
                StepKind::Typical => (options.typical_p < 1.0).then_some(Step::Typical(Typical {
                    p: options.typical_p,
                })),
                StepKind::TopP => (narrows && options.top_p < 1.0)
                    .then_some(Step::TopP(TopP { p: options.top_p })),
                StepKind::MinP => (narrows && options.min_p > 0.0)
                    .then_some(Step::MinP(MinP { p: options.min_p })),
                StepKind::Temperature => (pick == Pick::Random && options.temperature != 1.0)
                    .then_some(Step::Temperature(Temperature {
                        t: options.temperature,
                    })),
            });
        Self {
            steps: steps.collect(),
            pick,
        }
    }

    /// Tells the steps that `id` is now part of the sequence.
    pub fn accept(&mut self, id: TokenId) {
        for step in &mut self.steps {
            if let Step::Penalties(penalties) = step {
                penalties.accept(id);
            }
        }
    }

    /// How many of the best tokens matter once [`SamplerChain::changed`] are: `None` for more than a few.
    fn n_best(&self) -> Option<usize> {
        let mut rest = self
            .steps
            .iter()
            .skip_while(|step| step.changes().is_some());
        match (rest.next(), self.pick) {
            (Some(Step::TopK(step)), _) => Some(step.k),
            (None, Pick::Greedy) => Some(1),
            _ => None,
        }
    }

    /// The tokens whose logits the first steps change.
    fn changed(&self) -> impl Iterator<Item = &TokenId> + Clone {
        self.steps.iter().map_while(Step::changes).flatten()
    }

    /// Applies each step in turn.
    pub fn apply(&self, candidates: &mut Candidates) {
        for step in &self.steps {
            match step {
                Step::LogitBias(step) => step.apply(candidates),
                Step::Penalties(step) => step.apply(candidates),
                Step::TopK(step) => step.apply(candidates),
                Step::Typical(step) => step.apply(candidates),
                Step::TopP(step) => step.apply(candidates),
                Step::MinP(step) => step.apply(candidates),
                Step::Temperature(step) => step.apply(candidates),
            }
        }
    }
}

fn penalties_of(options: &SamplingOptions, context_len: usize) -> Option<Penalties> {
    let window = match options.repeat_last_n {
        RepeatWindow::Last(n) => n.min(context_len),
        RepeatWindow::Context => context_len,
    };
    let neutral = options.repeat_penalty == 1.0
        && options.presence_penalty == 0.0
        && options.frequency_penalty == 0.0;
    (window > 0 && !neutral).then(|| {
        Penalties::new(
            options.repeat_penalty,
            options.presence_penalty,
            options.frequency_penalty,
            window,
        )
    })
}

#[cfg(test)]
mod tests;
