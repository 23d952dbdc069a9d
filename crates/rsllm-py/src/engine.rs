//! `Engine`: a loaded model and the thread that runs it.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict};
use rsllm_engine::sampling::OptionError;
use rsllm_engine::{BATCH_SIZES, Isa, KvType, LoadOptions, Pooling, TokenId};
use rsllm_tokenizer::EncodeOptions;

use crate::errors::{engine_error, option_error};
use crate::generation::Generation;
use crate::metadata::metadata_dict;
use crate::options::generate_options;
use crate::quantize::float_bytes;
use crate::tokenizer::{detokenize, special_tokens, token_bytes, tokenize, tokenize_parts};
use crate::waiting::wait_for;

/// A loaded model and the thread that runs it.
#[pyclass(frozen, module = "rsllm._core")]
pub(crate) struct Engine {
    engine: Arc<rsllm_engine::Engine>,
}

impl Engine {
    fn tokenizer(&self, py: Python<'_>) -> PyResult<&rsllm_tokenizer::Tokenizer> {
        self.engine
            .tokenizer()
            .map_err(|error| engine_error(py, &error))
    }
}

#[pymethods]
impl Engine {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    #[pyo3(signature = (path, *, threads = None, context = None, kv_type = "f16", isa = None, mmap = true, max_sequences = 16, draft = None, draft_must_fit = true))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        threads: Option<usize>,
        context: Option<usize>,
        kv_type: &str,
        isa: Option<&str>,
        mmap: bool,
        max_sequences: usize,
        draft: Option<PathBuf>,
        draft_must_fit: bool,
    ) -> PyResult<Self> {
        let mut options = load_options(py, threads, context, kv_type, isa, mmap)?;
        options.max_sequences = max_sequences;
        options.draft = draft;
        options.draft_must_fit = draft_must_fit;
        let engine = py
            .detach(|| rsllm_engine::Engine::load(&path, &options))
            .map_err(|error| engine_error(py, &error))?;
        Ok(Self {
            engine: Arc::new(engine),
        })
    }

    /// What was loaded, and how.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        info_dict(py, self.engine.info())
    }

    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let file = self
            .engine
            .file()
            .map_err(|error| engine_error(py, &error))?;
        metadata_dict(py, file.metadata())
    }

    fn special_tokens<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        special_tokens(py, self.tokenizer(py)?)
    }

    #[pyo3(signature = (text, *, add_special = false, parse_special = false))]
    fn tokenize(
        &self,
        py: Python<'_>,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> PyResult<Vec<TokenId>> {
        Ok(tokenize(
            py,
            self.tokenizer(py)?,
            text,
            EncodeOptions {
                add_special,
                parse_special,
            },
        ))
    }

    #[pyo3(signature = (parts, *, add_special = false))]
    fn tokenize_parts(
        &self,
        py: Python<'_>,
        parts: Vec<(String, bool)>,
        add_special: bool,
    ) -> PyResult<Vec<TokenId>> {
        Ok(tokenize_parts(py, self.tokenizer(py)?, &parts, add_special))
    }

    #[pyo3(signature = (ids, *, render_special = true))]
    fn detokenize(
        &self,
        py: Python<'_>,
        ids: Vec<TokenId>,
        render_special: bool,
    ) -> PyResult<String> {
        detokenize(py, self.tokenizer(py)?, &ids, render_special)
    }

    fn token_bytes<'py>(&self, py: Python<'py>, id: TokenId) -> PyResult<Bound<'py, PyBytes>> {
        token_bytes(py, self.tokenizer(py)?, id)
    }

    /// float32 (n, vocab_size), prefill numerics.
    fn logits<'py>(&self, py: Python<'py>, ids: Vec<TokenId>) -> PyResult<Bound<'py, PyByteArray>> {
        float_bytes(py, &wait_for(py, self.engine.logits(ids))?)
    }

    /// float32 (n, vocab_size); positions from `prompt` on go through the decode path.
    #[pyo3(signature = (ids, *, prompt = 1))]
    fn decode_logits<'py>(
        &self,
        py: Python<'py>,
        ids: Vec<TokenId>,
        prompt: usize,
    ) -> PyResult<Bound<'py, PyByteArray>> {
        float_bytes(py, &wait_for(py, self.engine.decode_logits(ids, prompt))?)
    }

    /// Queues one sequence.
    fn generate(
        &self,
        py: Python<'_>,
        ids: Vec<TokenId>,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<Generation> {
        let options = generate_options(py, options, Some(self.tokenizer(py)?))?;
        let with_logprobs = options.logprobs.is_some();
        let generation = py
            .detach(|| self.engine.generate(ids, options))
            .map_err(|error| engine_error(py, &error))?;
        Ok(Generation::new(
            generation,
            self.tokenizer(py)?.clone(),
            with_logprobs,
            Arc::clone(&self.engine),
        ))
    }

    /// One repetition of a measurement.
    #[pyo3(signature = (*, prompt, generate, depth))]
    fn bench<'py>(
        &self,
        py: Python<'py>,
        prompt: usize,
        generate: usize,
        depth: usize,
    ) -> PyResult<Bound<'py, PyDict>> {
        let times = wait_for(py, self.engine.bench(prompt, generate, depth))?;
        let dict = PyDict::new(py);
        dict.set_item("prompt_ns", times.prompt_ns)?;
        dict.set_item("generate_ns", times.generate_ns)?;
        dict.set_item("prompt_tokens", times.prompt_tokens)?;
        dict.set_item("generate_tokens", times.generate_tokens)?;
        Ok(dict)
    }

    /// float32 rows of embed_dim values: one a text, or one a token where nothing is pooled. A score a text for `rank`.
    #[pyo3(signature = (ids, *, pooling = "last", normalise = true))]
    fn embed<'py>(
        &self,
        py: Python<'py>,
        ids: Vec<Vec<TokenId>>,
        pooling: &str,
        normalise: bool,
    ) -> PyResult<Bound<'py, PyByteArray>> {
        let pooling = Pooling::from_name(pooling).ok_or_else(|| {
            option_error(
                py,
                &choice_error("pooling", &Pooling::ALL.map(Pooling::name), pooling),
            )
        })?;
        float_bytes(
            py,
            &wait_for(py, self.engine.embed(ids, pooling, normalise))?,
        )
    }

    /// The KV of the first whole pages of `ids`, as bytes for `restore_prefix`.
    fn save_prefix<'py>(
        &self,
        py: Python<'py>,
        ids: Vec<TokenId>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = wait_for(py, self.engine.save_prefix(&ids))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Takes saved bytes into the prefix cache; returns their tokens.
    fn restore_prefix(&self, py: Python<'_>, data: Vec<u8>) -> PyResult<usize> {
        let reply = py.detach(|| self.engine.restore_prefix(data));
        wait_for(py, reply)
    }

    /// Saves a prefix to a file of a folder; returns its path.
    fn persist_prefix(
        &self,
        py: Python<'_>,
        ids: Vec<TokenId>,
        folder: PathBuf,
    ) -> PyResult<PathBuf> {
        py.detach(|| self.engine.persist_prefix(&ids, &folder))
            .map_err(|error| engine_error(py, &error))
    }

    /// Takes all prefixes of this model that a folder has into the prefix cache: (path, tokens, error) each.
    fn restore_prefixes(
        &self,
        py: Python<'_>,
        folder: PathBuf,
    ) -> PyResult<Vec<(PathBuf, usize, Option<String>)>> {
        let files = py
            .detach(|| self.engine.restore_folder(&folder))
            .map_err(|error| engine_error(py, &error))?;
        let files = files.into_iter().map(|file| match file.result {
            Ok(n_tokens) => (file.path, n_tokens, None),
            Err(error) => (file.path, 0, Some(error.to_string())),
        });
        Ok(files.collect())
    }

    /// What the engine has done so far and holds now.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let metrics = self.engine.metrics();
        let dict = PyDict::new(py);
        dict.set_item("waiting", metrics.waiting)?;
        dict.set_item("running", metrics.running)?;
        dict.set_item("started", metrics.started)?;
        dict.set_item("ended", metrics.ended)?;
        dict.set_item("preempted", metrics.preempted)?;
        dict.set_item("queue_ns", metrics.queue_ns)?;
        dict.set_item("prefill_tokens", metrics.prefill_tokens)?;
        dict.set_item("prefill_ns", metrics.prefill_ns)?;
        dict.set_item("decode_tokens", metrics.decode_tokens)?;
        dict.set_item("decode_ns", metrics.decode_ns)?;
        dict.set_item("cached_tokens", metrics.cached_tokens)?;
        dict.set_item("drafted_tokens", metrics.drafted_tokens)?;
        dict.set_item("accepted_tokens", metrics.accepted_tokens)?;
        dict.set_item("mask_ns", metrics.mask_ns)?;
        dict.set_item("mask_wait_ns", metrics.mask_wait_ns)?;
        dict.set_item("steps", metrics.steps)?;
        let sizes = BATCH_SIZES.map(|most| (most < usize::MAX).then_some(most));
        let batch_sizes: Vec<_> = sizes.into_iter().zip(metrics.batch_sizes).collect();
        dict.set_item("batch_sizes", batch_sizes)?;
        dict.set_item("pages", metrics.pages)?;
        dict.set_item("pages_free", metrics.pages_free)?;
        dict.set_item("pages_cached", metrics.pages_cached)?;
        dict.set_item("page_len", metrics.page_len)?;
        Ok(dict)
    }

    /// Stops what runs and frees the memory.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.engine.close());
    }
}

/// What loading a file with these options would report, without allocating anything: the memory plan.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
#[pyo3(signature = (path, *, threads = None, context = None, kv_type = "f16", isa = None, mmap = true, max_sequences = 16, draft = None, draft_must_fit = true))]
pub(crate) fn plan<'py>(
    py: Python<'py>,
    path: PathBuf,
    threads: Option<usize>,
    context: Option<usize>,
    kv_type: &str,
    isa: Option<&str>,
    mmap: bool,
    max_sequences: usize,
    draft: Option<PathBuf>,
    draft_must_fit: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let mut options = load_options(py, threads, context, kv_type, isa, mmap)?;
    options.max_sequences = max_sequences;
    options.draft = draft;
    options.draft_must_fit = draft_must_fit;
    let info = py
        .detach(|| rsllm_engine::plan(&path, &options))
        .map_err(|error| engine_error(py, &error))?;
    info_dict(py, &info)
}

fn load_options(
    py: Python<'_>,
    threads: Option<usize>,
    context: Option<usize>,
    kv_type: &str,
    isa: Option<&str>,
    mmap: bool,
) -> PyResult<LoadOptions> {
    let kv_type = KvType::from_name(kv_type).ok_or_else(|| {
        option_error(
            py,
            &choice_error("kv_type", &KvType::ALL.map(KvType::name), kv_type),
        )
    })?;
    let find_isa = |name| {
        Isa::from_name(name)
            .ok_or_else(|| option_error(py, &choice_error("isa", &Isa::ALL.map(Isa::name), name)))
    };
    Ok(LoadOptions {
        threads,
        context,
        kv_type,
        isa: isa.map(find_isa).transpose()?,
        mmap,
        ..LoadOptions::default()
    })
}

fn info_dict<'py>(
    py: Python<'py>,
    info: &rsllm_engine::EngineInfo,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("architecture", &info.architecture)?;
    dict.set_item("name", &info.name)?;
    dict.set_item("context", info.context)?;
    dict.set_item("context_reason", &info.context_reason)?;
    dict.set_item("training_context", info.training_context)?;
    dict.set_item("threads", info.threads)?;
    dict.set_item("isa", info.isa.name())?;
    dict.set_item("kv_type", info.kv_type)?;
    dict.set_item("max_sequences", info.max_sequences)?;
    dict.set_item("weight_bytes", info.weight_bytes)?;
    dict.set_item("kv_bytes", info.kv_bytes)?;
    dict.set_item("scratch_bytes", info.scratch_bytes)?;
    dict.set_item("load_ns", info.load_ns)?;
    dict.set_item("vocab_size", info.vocab_size)?;
    dict.set_item("embed_dim", info.embed_dim)?;
    dict.set_item("n_layers", info.n_layers)?;
    dict.set_item("file_bytes", info.file_bytes)?;
    dict.set_item("decode_bytes_per_token", info.decode_bytes_per_token)?;
    dict.set_item("parameters", info.parameters)?;
    dict.set_item("warnings", &info.warnings)?;
    let draft = info.draft.as_ref().map(|draft| draft_dict(py, draft));
    dict.set_item("draft", draft.transpose()?)?;
    Ok(dict)
}

fn draft_dict<'py>(
    py: Python<'py>,
    draft: &rsllm_engine::DraftInfo,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("architecture", &draft.architecture)?;
    dict.set_item("name", &draft.name)?;
    dict.set_item("context", draft.context)?;
    dict.set_item("parameters", draft.parameters)?;
    Ok(dict)
}

fn choice_error(name: &'static str, known: &[&str], found: &str) -> OptionError {
    OptionError::new(name, format!("one of {}", known.join(", ")), found)
}
