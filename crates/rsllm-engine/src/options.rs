//! What callers ask of the engine: how to load a model, and how to continue a prompt.

use std::path::PathBuf;

use rsllm_cpu::Isa;
use rsllm_tensor::KvType;

use crate::constraint::ConstraintSpec;
use crate::sampling::{MAX_COUNT, OptionError, SamplingOptions, validate_top_logprobs};

/// How to load a model.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Threads that compute, the engine's own included; `None` = the physical cores this process may use.
    pub threads: Option<usize>,
    /// Tokens of context; `None` = what the model and half of the free memory allow.
    pub context: Option<usize>,
    /// Element type of the KV cache.
    pub kv_type: KvType,
    /// Instruction set of the kernels; `None` = the best this processor has.
    pub isa: Option<Isa>,
    /// Generations that run side by side; more wait. They share the pages of one context.
    pub max_sequences: usize,
    /// Map the file (the default) or read it into memory.
    pub mmap: bool,
    /// A smaller model of the same vocabulary that guesses what comes next where one sequence generates alone. No token changes;
    /// where guesses do not pay, which is measured, there are none.
    pub draft: Option<PathBuf>,
    /// A draft model that cannot be used is an error; else a warning, and the model does without.
    pub draft_must_fit: bool,
}

/// How to continue a prompt.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// Most tokens to generate; `None` = until the context is full.
    pub max_tokens: Option<usize>,
    /// How tokens are drawn.
    pub sampling: SamplingOptions,
    /// Texts before which the generation ends.
    pub stop: Vec<String>,
    /// Report log-probabilities, with this many alternatives a token.
    pub logprobs: Option<usize>,
    /// Never draw an end-of-generation token.
    pub ignore_eos: bool,
    /// Most tokens to guess, from the text so far or by the draft model, and verify in one step, which changes no token; 0 =
    /// none. How many there are each time is decided by what drafts cost and how often they come true.
    pub max_draft: usize,
    /// What happens when the context is full. `None`: the generation ends. Else so many of the first tokens stay, the older half
    /// of the others goes, and what is left is prefilled again, as often as it takes; the figures say how often. At most three
    /// quarters of the context stay.
    pub shift: Option<usize>,
    /// What the text must look like. The generation ends when it is complete.
    pub constraint: Option<ConstraintSpec>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            threads: None,
            context: None,
            kv_type: KvType::F16,
            isa: None,
            max_sequences: 16,
            mmap: true,
            draft: None,
            draft_must_fit: true,
        }
    }
}

impl GenerateOptions {
    /// Checks what the sampler and the stop matcher do not check themselves.
    pub(crate) fn validate(&self) -> Result<(), OptionError> {
        if let Some(n) = self.max_tokens
            && n > MAX_COUNT
        {
            return Err(OptionError::new(
                "max_tokens",
                format!("from 0 to {MAX_COUNT}"),
                n,
            ));
        }
        self.logprobs.map_or(Ok(()), validate_top_logprobs)
    }
}
