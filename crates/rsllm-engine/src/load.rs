//! From a path to a running engine: opens and checks the file, chooses context and threads, binds the model, starts the thread.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rsllm_cpu::{CpuBackend, Isa};
use rsllm_gguf::{Gguf, OpenOptions};
use rsllm_model::{Model, ModelMemory, ModelOptions, PAGE_LEN, kv_bytes};
use rsllm_tensor::BackendError;
use rsllm_tokenizer::Tokenizer;

use crate::context::ContextQuery;
use crate::control::Control;
use crate::cores::usable_cores;
use crate::draft_load::{DraftFile, DraftInfo, ReadyDraft};
use crate::draft_model::DraftModel;
use crate::engine::{Engine, EngineParts};
use crate::error::EngineError;
use crate::forward::{Forward, Limits};
use crate::generation::nanoseconds;
use crate::loaded::LoadedModel;
use crate::memory::available_bytes;
use crate::metrics::Board;
use crate::options::LoadOptions;
use crate::sampling::OptionError;
use crate::thread::EngineThread;
use crate::worker::Worker;

/// What was loaded, and how.
#[derive(Clone, Debug)]
pub struct EngineInfo {
    /// `general.architecture`.
    pub architecture: String,
    /// `general.name`, where the file has one.
    pub name: Option<String>,
    /// Tokens of the context.
    pub context: usize,
    /// Why it is so long.
    pub context_reason: String,
    /// The context the model was trained for.
    pub training_context: usize,
    /// Threads that compute.
    pub threads: usize,
    /// Instruction set of the kernels.
    pub isa: Isa,
    /// Element type of the KV cache.
    pub kv_type: &'static str,
    /// Generations that run side by side.
    pub max_sequences: usize,
    /// The draft model, if there is one. Its weights, KV cache and scratch count with those of the model.
    pub draft: Option<DraftInfo>,
    /// Bytes of the bound tensors, in the mapping.
    pub weight_bytes: u64,
    /// Bytes of the KV cache when the context is full.
    pub kv_bytes: u64,
    /// Bytes of activations and scratch.
    pub scratch_bytes: u64,
    /// Nanoseconds from the call to a model that is ready.
    pub load_ns: u64,
    /// Tokens of the vocabulary.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub embed_dim: usize,
    /// Layers.
    pub n_layers: usize,
    /// Bytes of all files of the model.
    pub file_bytes: u64,
    /// Bytes of weights read to decode one token.
    pub decode_bytes_per_token: u64,
    /// Values in all tensors.
    pub parameters: u64,
    /// What is odd about the file and was worked around.
    pub warnings: Vec<String>,
}

/// Tokens of a prefill step. Large enough that unpacking a weight panel is a small part of its product.
pub(crate) const MAX_ROWS: usize = 512;
/// Rows of logits of a step, for requests that want those of every position. Bounds their memory: 64 MiB at 262,144 tokens.
const MAX_OUTPUTS: usize = 64;
/// A row of logits for each must fit a step.
const MAX_SEQUENCES: usize = MAX_OUTPUTS;
/// A guess that takes so much of the time of a token costs more than it brings.
const WORTHLESS_SHARE: f32 = 0.6;
/// Beyond any machine; a slip of the keyboard is an error, not ten thousand threads.
const MAX_THREADS: usize = 4096;

/// Loads a model and starts its engine.
pub(crate) fn load(path: &Path, options: &LoadOptions) -> Result<Engine, EngineError> {
    let ready = make_ready(path, options, available_bytes(), CpuBackend::new)?;
    let draft = ready.draft.map(|draft| {
        let share = draft.share_of(ready.info.decode_bytes_per_token);
        DraftModel::new(draft.model, ready.info.vocab_size, share)
    });
    start_engine(ready.model, draft, ready.tokenizer, ready.file, ready.info)
}

/// What [`Engine::load`] with the same options would report, without allocating what it would allocate: the same code
/// runs on a backend that only counts. A context that was asked for is planned whether it fits now or not: the caller
/// may free memory before it loads.
///
/// # Errors
/// Those of [`Engine::load`].
pub fn plan(path: &Path, options: &LoadOptions) -> Result<EngineInfo, EngineError> {
    let free_bytes = match options.context {
        Some(_) => None,
        None => available_bytes(),
    };
    Ok(make_ready(path, options, free_bytes, CpuBackend::planner)?.info)
}

/// All of an engine but its thread.
struct Ready {
    model: LoadedModel,
    draft: Option<ReadyDraft>,
    tokenizer: Tokenizer,
    file: Gguf,
    info: EngineInfo,
}

fn make_ready(
    path: &Path,
    options: &LoadOptions,
    free_bytes: Option<u64>,
    backend: impl FnOnce(Isa, usize) -> Result<CpuBackend, BackendError>,
) -> Result<Ready, EngineError> {
    let start = Instant::now();
    let threads = match options.threads {
        Some(n) if n == 0 || n > MAX_THREADS => {
            return Err(OptionError::new("threads", format!("from 1 to {MAX_THREADS}"), n).into());
        }
        Some(n) => n,
        None => usable_cores(),
    };
    let max_sequences = options.max_sequences;
    if !(1..=MAX_SEQUENCES).contains(&max_sequences) {
        let expected = format!("from 1 to {MAX_SEQUENCES}");
        return Err(OptionError::new("max_sequences", expected, max_sequences).into());
    }
    if let Some(isa) = options.isa
        && !isa.is_available()
    {
        let available: Vec<&str> = Isa::available().into_iter().map(Isa::name).collect();
        let expected = format!("one that this processor has ({})", available.join(", "));
        return Err(OptionError::new("isa", expected, isa).into());
    }
    let file = Gguf::open_with(path, OpenOptions::default().with_mmap(options.mmap))?;
    let config = Model::config_of(&file)?;
    let tokenizer = Tokenizer::from_metadata(file.metadata())?;
    let mut warnings: Vec<String> = tokenizer
        .warnings()
        .iter()
        .map(ToString::to_string)
        .collect();
    let mut draft = match &options.draft {
        Some(path) => {
            let draft = DraftFile::open(path, options, &tokenizer);
            draft_or_warning(draft, options, &mut warnings)?
        }
        None => None,
    };
    let model_options = |context: usize| {
        let max_rows = MAX_ROWS.min(context).max(max_sequences);
        ModelOptions {
            kv_tokens: context,
            kv_type: options.kv_type,
            max_rows,
            max_outputs: MAX_OUTPUTS.min(max_rows),
            max_sequences,
        }
    };
    // What the KV type does not allow at one length it allows at none.
    kv_bytes(&config, &model_options(1))?;
    let choose = |draft: Option<&DraftFile>| {
        let query = ContextQuery {
            requested: options.context,
            training_context: config.context_len,
            kv_bytes: &|context| {
                let own = kv_bytes(&config, &model_options(context)).unwrap_or(u64::MAX);
                own.saturating_add(draft.map_or(0, |draft| draft.kv_bytes(context)))
            },
            free_bytes,
            // Weights that were read instead of mapped have taken their memory already.
            weight_bytes: if options.mmap {
                file.file_bytes() + draft.map_or(0, DraftFile::file_bytes)
            } else {
                0
            },
            page_len: PAGE_LEN,
        };
        let mut choice = query.choose()?;
        if draft.is_some() {
            choice.reason += ", a draft model beside it";
        }
        Ok(choice)
    };
    let mut choice = match choose(draft.as_ref()) {
        // Better without one than not at all.
        Err(error) if draft.is_some() => {
            draft = draft_or_warning::<DraftFile>(Err(error), options, &mut warnings)?;
            choose(None)?
        }
        choice => choice?,
    };

    let backend = backend(options.isa.unwrap_or_else(Isa::detect), threads)?;
    let isa = backend.isa();
    let draft = match draft {
        Some(draft) => {
            let draft = draft.load(backend.beside(), choice.context);
            let draft = draft_or_warning(draft, options, &mut warnings)?;
            if draft.is_none() {
                choice = choose(None)?;
            }
            draft
        }
        None => None,
    };
    let model_options = model_options(choice.context);
    let model = Model::load(&file, backend, &model_options)?;
    let vocab_size = model.vocab_size();
    if tokenizer.vocab_size() != vocab_size {
        return Err(EngineError::VocabularyMismatch {
            tokenizer: tokenizer.vocab_size(),
            model: vocab_size,
        });
    }
    let limits = Limits {
        n_layers: config.layers.len(),
        vocab_size,
        embed_dim: config.embed_dim,
        context: choice.context,
        max_sequences,
        max_rows: model_options.max_rows,
        max_outputs: model_options.max_outputs,
    };
    let memory = model.memory();
    debug_assert_eq!(memory.kv, kv_bytes(&config, &model_options)?);
    let of_draft = draft.as_ref().map(|draft| draft.model.model.memory());
    let sum = |of: fn(&ModelMemory) -> u64| of(&memory) + of_draft.as_ref().map_or(0, of);
    // The head of a reranker is read when it is asked for.
    let unused: Vec<&str> = (model.unused_tensors().iter().map(String::as_str))
        .filter(|name| !name.starts_with("cls."))
        .collect();
    if !unused.is_empty() {
        warnings.push(format!("tensors without a use here: {}", unused.join(", ")));
    }
    if let Some(draft) = &draft
        && draft.share_of(memory.weights.per_token) > WORTHLESS_SHARE
    {
        warnings.push(
            "the draft model reads nearly as much as the model: its guesses cannot pay".to_owned(),
        );
    }
    let info = EngineInfo {
        architecture: config.architecture.to_owned(),
        name: file
            .metadata()
            .opt_str("general.name")
            .ok()
            .flatten()
            .map(str::to_owned),
        context: choice.context,
        context_reason: choice.reason,
        training_context: config.context_len,
        threads,
        isa,
        kv_type: options.kv_type.name(),
        max_sequences,
        weight_bytes: sum(|memory| memory.weights.total),
        kv_bytes: sum(|memory| memory.kv),
        scratch_bytes: sum(|memory| memory.scratch),
        draft: draft.as_ref().map(|draft| draft.info.clone()),
        load_ns: nanoseconds(start.elapsed()),
        vocab_size,
        embed_dim: config.embed_dim,
        n_layers: config.layers.len(),
        file_bytes: file.file_bytes(),
        decode_bytes_per_token: memory.weights.per_token,
        parameters: file
            .tensors()
            .iter()
            .map(rsllm_gguf::TensorInfo::n_elements)
            .sum(),
        warnings,
    };
    Ok(Ready {
        model: LoadedModel { model, limits },
        draft,
        tokenizer,
        file,
        info,
    })
}

/// A draft model, or none and a warning where it need not fit.
fn draft_or_warning<T>(
    draft: Result<T, EngineError>,
    options: &LoadOptions,
    warnings: &mut Vec<String>,
) -> Result<Option<T>, EngineError> {
    match draft {
        Ok(draft) => Ok(Some(draft)),
        Err(error) if options.draft_must_fit => Err(error),
        Err(error) => {
            warnings.push(format!("no draft model is used: {error}"));
            Ok(None)
        }
    }
}

/// Starts the thread of `model`.
pub(crate) fn start_engine<M: Forward + Send + 'static>(
    model: M,
    draft: Option<DraftModel<M>>,
    tokenizer: Tokenizer,
    file: Gguf,
    info: EngineInfo,
) -> Result<Engine, EngineError> {
    let control = Arc::new(Control::default());
    let board = Board::default();
    let end_tokens = tokenizer.end_of_generation().to_vec();
    let worker = Worker::new(
        model,
        draft,
        tokenizer.clone(),
        end_tokens.clone().into(),
        Arc::clone(&control),
        board.clone(),
    );
    let thread = EngineThread::spawn(control, move |commands| worker.run(&commands))?;
    Ok(Engine::from_parts(EngineParts {
        info,
        tokenizer,
        end_tokens,
        file: Arc::new(file),
        board,
        thread,
    }))
}
