//! Models for this crate's tests: a scripted one, which says what it is told, and a tiny random one in a real file, which the
//! tests in `tests/` use as well.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rsllm_gguf::{Gguf, GgufWriter};
use rsllm_model::ModelError;
use rsllm_tokenizer::Tokenizer;

use crate::TokenId;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::forward::{Forward, Limits, Phase, SequenceStep};
use crate::load::{EngineInfo, start_engine};

#[path = "../tests/common/tiny_model.rs"]
mod tiny_model;
pub(crate) use tiny_model::*;

/// What a scripted model does.
#[derive(Clone, Default)]
pub(crate) struct Script {
    /// The tokens after any prompt; the last is repeated for ever.
    pub(crate) tokens: Vec<TokenId>,
    /// How long a step takes; it can be aborted at any time.
    pub(crate) step_time: Duration,
    /// In which step (0 is the first of the engine) something goes wrong.
    pub(crate) fault: Option<(usize, Fault)>,
    pub(crate) context: usize,
    /// Tokens that are kept behind the furthest one; `None` for all.
    pub(crate) window: Option<usize>,
}

#[derive(Clone, Copy)]
pub(crate) enum Fault {
    Panic,
    NanLogit,
}

/// Steps that a scripted model was asked for: phase, first index, tokens.
pub(crate) type Steps = Arc<Mutex<Vec<(Phase, usize, usize)>>>;

struct ScriptedModel {
    script: Script,
    limits: Limits,
    next: usize,
    steps: Steps,
    /// The furthest position evaluated.
    end: usize,
}

impl Forward for ScriptedModel {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn can_resume_at(&self, index: usize) -> bool {
        self.script
            .window
            .is_none_or(|window| index + window > self.end)
    }

    fn forward(
        &mut self,
        step: &SequenceStep<'_>,
        logits: &mut [f32],
        abort: &AtomicBool,
    ) -> Result<(), EngineError> {
        let n_steps = {
            let mut steps = self.steps.lock().unwrap();
            steps.push((step.phase, step.first_index, step.ids.len()));
            steps.len()
        };
        assert!(
            step.ids.len() <= self.limits.max_rows
                && step.first_index + step.ids.len() <= self.limits.context
        );
        self.end = step.first_index + step.ids.len();
        let deadline = Instant::now() + self.script.step_time;
        loop {
            if abort.load(Ordering::Relaxed) {
                return Err(ModelError::Aborted.into());
            }
            if Instant::now() >= deadline {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        let fault = self
            .script
            .fault
            .filter(|fault| fault.0 + 1 == n_steps)
            .map(|fault| fault.1);
        assert!(!matches!(fault, Some(Fault::Panic)), "scripted panic");
        self.next = if step.phase == Phase::Prefill {
            0
        } else {
            self.next + 1
        };
        let token = self.script.tokens[self.next.min(self.script.tokens.len() - 1)];
        for (row, id) in logits
            .chunks_exact_mut(self.limits.vocab_size)
            .zip(step.ids)
            .take(step.n_outputs())
        {
            row.fill(0.0);
            // Lets tests see which token a row belongs to.
            row[0] = *id as f32 / 1000.0;
            row[token as usize] = 10.0;
            if matches!(fault, Some(Fault::NanLogit)) {
                row[5] = f32::NAN;
            }
        }
        Ok(())
    }
}

/// An engine whose model follows `script`, and the steps it will be asked for.
pub(crate) fn scripted_engine(script: Script) -> (Engine, Steps) {
    let metadata = vocabulary();
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    let vocab_size = tokenizer.vocab_size();
    let context = if script.context == 0 {
        64
    } else {
        script.context
    };
    let limits = Limits {
        vocab_size,
        context,
        max_rows: 4,
        max_outputs: 3,
    };
    let steps = Steps::default();
    let model = ScriptedModel {
        script,
        limits,
        next: 0,
        steps: Arc::clone(&steps),
        end: 0,
    };
    let mut bytes = Vec::new();
    GgufWriter::new(metadata)
        .unwrap()
        .write_to(&mut bytes, |_, _| Ok(()))
        .unwrap();
    let file = Gguf::from_bytes(bytes, "scripted").unwrap();
    let info = EngineInfo {
        architecture: "scripted".to_owned(),
        name: None,
        context,
        context_reason: "scripted".to_owned(),
        training_context: context,
        threads: 1,
        isa: rsllm_cpu::Isa::Scalar,
        kv_type: "f16",
        weight_bytes: 0,
        kv_bytes: 0,
        scratch_bytes: 0,
        load_ns: 0,
        vocab_size,
        embed_dim: 1,
        n_layers: 1,
        file_bytes: 0,
        decode_bytes_per_token: 0,
        parameters: 0,
        warnings: Vec::new(),
    };
    (start_engine(model, tokenizer, file, info).unwrap(), steps)
}
