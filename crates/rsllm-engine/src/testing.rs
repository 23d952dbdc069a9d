//! Models for this crate's tests: a scripted one, which says what it is told, and a tiny random one in a real file.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rsllm_gguf::{Gguf, GgufWriter, Metadata};
use rsllm_model::ModelError;
use rsllm_quant::GgmlType;
use rsllm_tokenizer::Tokenizer;

use crate::TokenId;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::forward::{Forward, Limits, Phase, SequenceStep};
use crate::load::{EngineInfo, start_engine};
use crate::sampling::Rng;

pub(crate) const BOS: TokenId = 1;
pub(crate) const EOS: TokenId = 2;
/// Token of byte 0.
const FIRST_BYTE: TokenId = 3;
/// Ordinary tokens behind the byte tokens, in the file's spelling.
const PIECES: [&str; 12] = [
    "▁is", "▁not", "▁it", "\nUs", "er", ":", "Hi", "▁x", "▁hello", "▁world", "é", "▁",
];

/// The token of a byte.
pub(crate) fn byte_token(byte: u8) -> TokenId {
    FIRST_BYTE + TokenId::from(byte)
}

/// The token that is exactly this piece of text.
pub(crate) fn piece_token(text: &str) -> TokenId {
    let spelled = text.replace(' ', "▁");
    let position = PIECES
        .iter()
        .position(|piece| *piece == spelled)
        .expect("the piece is in the list");
    FIRST_BYTE + 256 + position as TokenId
}

/// A SentencePiece vocabulary of `<unk>`, `<s>`, `</s>`, all bytes, and a few pieces.
pub(crate) fn vocabulary() -> Metadata {
    let mut tokens = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
    tokens.extend((0..=255_u8).map(|byte| format!("<0x{byte:02X}>")));
    let mut types = vec![2, 3, 3];
    types.extend([6; 256]);
    tokens.extend(PIECES.map(str::to_owned));
    types.extend([1; PIECES.len()]);
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", "llama");
    metadata.insert("tokenizer.ggml.model", "llama");
    metadata.insert("tokenizer.ggml.scores", vec![0.0_f32; tokens.len()]);
    metadata.insert(
        "tokenizer.ggml.tokens",
        tokens.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    metadata.insert("tokenizer.ggml.token_type", types);
    metadata.insert("tokenizer.ggml.bos_token_id", BOS);
    metadata.insert("tokenizer.ggml.eos_token_id", EOS);
    metadata
}

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

/// A file in the temporary folder, removed in the end.
pub(crate) struct TempFile(pub(crate) PathBuf);

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A two-layer llama of seeded random F32 weights over [`vocabulary`]: a few hundred kilobytes.
pub(crate) fn tiny_model(context: u32) -> TempFile {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let (embed_dim, ffn_dim, n_heads, n_kv_heads, n_layers) =
        (128_u64, 96_u64, 4_u64, 2_u64, 2_u32);
    let kv_dim = embed_dim / n_heads * n_kv_heads;
    let mut metadata = vocabulary();
    metadata.insert("llama.block_count", n_layers);
    metadata.insert("llama.context_length", context);
    metadata.insert("llama.embedding_length", embed_dim as u32);
    metadata.insert("llama.feed_forward_length", ffn_dim as u32);
    metadata.insert("llama.attention.head_count", n_heads as u32);
    metadata.insert("llama.attention.head_count_kv", n_kv_heads as u32);
    metadata.insert("llama.attention.layer_norm_rms_epsilon", 1e-5_f32);
    let vocab_size = 3 + 256 + PIECES.len() as u64;
    let mut writer = GgufWriter::new(metadata).unwrap();
    let mut add = |name: &str, dims: &[u64]| writer.add_tensor(name, GgmlType::F32, dims).unwrap();
    add("token_embd.weight", &[embed_dim, vocab_size]);
    for layer in 0..n_layers {
        for (name, dims) in [
            ("attn_norm", vec![embed_dim]),
            ("attn_q", vec![embed_dim, embed_dim]),
            ("attn_k", vec![embed_dim, kv_dim]),
            ("attn_v", vec![embed_dim, kv_dim]),
            ("attn_output", vec![embed_dim, embed_dim]),
            ("ffn_norm", vec![embed_dim]),
            ("ffn_gate", vec![embed_dim, ffn_dim]),
            ("ffn_up", vec![embed_dim, ffn_dim]),
            ("ffn_down", vec![ffn_dim, embed_dim]),
        ] {
            add(&format!("blk.{layer}.{name}.weight"), &dims);
        }
    }
    add("output_norm.weight", &[embed_dim]);
    let name = format!(
        "rsllm-tiny-{}-{}.gguf",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    );
    let path = std::env::temp_dir().join(name);
    let mut rng = Rng::new(2026);
    writer
        .write_file(&path, |tensor, out| {
            let is_norm = tensor.name.ends_with("norm.weight");
            for _ in 0..tensor.n_bytes() / 4 {
                let value = if is_norm {
                    1.0
                } else {
                    (rng.next_unit() as f32 - 0.5) * 0.4
                };
                out.write_all(&value.to_le_bytes())?;
            }
            Ok(())
        })
        .unwrap();
    TempFile(path)
}
