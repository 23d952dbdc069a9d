//! A loaded model, as the bindings use it. Every method may be called from any thread; generations run side by
//! side on the engine thread.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Instant;

use rsllm_gguf::Gguf;
use rsllm_model::PAGE_LEN;
use rsllm_tensor::KvType;
use rsllm_tokenizer::Tokenizer;

use crate::TokenId;
use crate::classifier::Classifier;
use crate::constraint::{Constraint, ConstraintError, ConstraintSpec, Grammars};
use crate::control::CancelHandle;
use crate::embedding::Pooling;
use crate::error::EngineError;
use crate::generation::Generation;
use crate::load::{self, EngineInfo};
use crate::metrics::{Board, EngineMetrics};
use crate::options::{GenerateOptions, LoadOptions};
use crate::prefixes::{RestoreJob, SaveJob, whole_pages};
use crate::reply::Reply;
use crate::sampling::{MAX_COUNT, OptionError, Sampler};
use crate::saved::{SavedFor, SavedPrefix, fingerprint};
use crate::stop::StopMatcher;
use crate::thread::EngineThread;
use crate::worker::{
    BenchJob, BenchTimes, Command, EmbedJob, ExclusiveJob, ExclusiveWork, GenerateJob, LogitsJob,
};

/// A loaded model and the thread that runs it.
#[derive(Debug)]
pub struct Engine {
    info: EngineInfo,
    tokenizer: Tokenizer,
    /// Sorted.
    end_tokens: Vec<TokenId>,
    /// Tokens that the file bans.
    suppressed_tokens: Vec<TokenId>,
    /// Made when first needed.
    grammars: OnceLock<Result<Grammars, ConstraintError>>,
    /// Of a reranker; read when first needed.
    classifier: OnceLock<Arc<Classifier>>,
    /// `None` once closed, so that the file's memory goes with the model's.
    file: Mutex<Option<Arc<Gguf>>>,
    board: Board,
    /// Of the file, for saved prefixes; made when first needed.
    fingerprint: OnceLock<u64>,
    thread: EngineThread,
}

/// What an engine consists of.
pub(crate) struct EngineParts {
    pub(crate) info: EngineInfo,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) end_tokens: Vec<TokenId>,
    pub(crate) file: Arc<Gguf>,
    pub(crate) board: Board,
    pub(crate) thread: EngineThread,
}

impl Engine {
    /// Opens the file (any shard of a split one), checks it, and makes the model ready on the CPU.
    pub fn load(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Self, EngineError> {
        load::load(path.as_ref(), options)
    }

    pub(crate) fn from_parts(parts: EngineParts) -> Self {
        let EngineParts {
            info,
            tokenizer,
            end_tokens,
            file,
            board,
            thread,
        } = parts;
        Self {
            suppressed_tokens: suppressed_tokens(&file, info.vocab_size),
            grammars: OnceLock::new(),
            classifier: OnceLock::new(),
            info,
            tokenizer,
            end_tokens,
            file: Mutex::new(Some(file)),
            board,
            fingerprint: OnceLock::new(),
            thread,
        }
    }

    /// What was loaded, and how.
    pub fn info(&self) -> &EngineInfo {
        &self.info
    }

    /// The file's tokenizer.
    pub fn tokenizer(&self) -> Result<&Tokenizer, EngineError> {
        if self.thread.is_open() {
            Ok(&self.tokenizer)
        } else {
            Err(EngineError::Closed)
        }
    }

    /// Tokens that end a generation, sorted.
    pub fn end_tokens(&self) -> &[TokenId] {
        &self.end_tokens
    }

    /// The file, with its metadata.
    pub fn file(&self) -> Result<Arc<Gguf>, EngineError> {
        self.file_slot().clone().ok_or(EngineError::Closed)
    }

    /// Queues a generation that continues `prompt`. Options and prompt are checked here, before anything runs.
    pub fn generate(
        &self,
        prompt: Vec<TokenId>,
        options: GenerateOptions,
    ) -> Result<Generation, EngineError> {
        options.validate()?;
        self.check_ids(&prompt)?;
        let GenerateOptions {
            max_tokens,
            mut sampling,
            stop,
            logprobs,
            ignore_eos,
            max_draft,
            shift,
            constraint,
        } = options;
        if ignore_eos {
            sampling
                .logit_bias
                .extend(self.end_tokens.iter().map(|&id| (id, f32::NEG_INFINITY)));
        }
        let banned = self.suppressed_tokens.iter();
        sampling
            .logit_bias
            .extend(banned.map(|&id| (id, f32::NEG_INFINITY)));
        let sampler = Sampler::new(&sampling, self.info.vocab_size, self.info.context)?;
        let stop = StopMatcher::new(stop)?;
        let constraint = constraint.map(|spec| self.compile(&spec)).transpose()?;
        let (events, received) = mpsc::channel();
        let cancel = CancelHandle::new(Arc::clone(self.thread.control()));
        let generation = Generation::new(received, cancel.clone(), sampler.seed(), prompt.len());
        let job = GenerateJob {
            prompt,
            max_tokens,
            logprobs,
            sampler,
            constraint,
            stop,
            max_draft,
            shift,
            events,
            cancel,
            queued: Instant::now(),
        };
        self.thread.send(Command::Generate(Box::new(job)))?;
        Ok(generation)
    }

    /// The constraint that `spec` describes; an error before anything runs if it cannot be enforced.
    fn compile(&self, spec: &ConstraintSpec) -> Result<Constraint, EngineError> {
        let constraint = match self.grammars.get_or_init(|| Grammars::new(&self.tokenizer)) {
            Ok(grammars) => grammars.compile(spec),
            Err(error) => Err(error.clone()),
        };
        constraint.map_err(|source| EngineError::Constraint {
            option: spec.option_name(),
            source,
        })
    }

    /// Logits of every position, `[n_ids, vocab_size]`, all taking the prefill product.
    pub fn logits(&self, ids: Vec<TokenId>) -> Result<Reply<Vec<f32>>, EngineError> {
        let n_prefill = ids.len();
        self.decode_logits(ids, n_prefill)
    }

    /// Logits of every position, `[n_ids, vocab_size]`; positions from `n_prefill` on take the decode product, one step each.
    pub fn decode_logits(
        &self,
        ids: Vec<TokenId>,
        n_prefill: usize,
    ) -> Result<Reply<Vec<f32>>, EngineError> {
        self.check_ids(&ids)?;
        if n_prefill > ids.len() {
            return Err(
                OptionError::new("prompt", format!("from 0 to {}", ids.len()), n_prefill).into(),
            );
        }
        self.send_exclusive(|answer| {
            ExclusiveWork::Logits(LogitsJob {
                ids,
                n_prefill,
                answer,
            })
        })
    }

    /// Measures prefill of `n_prompt` tokens and decoding of `n_generate` tokens, each behind `depth` tokens of context.
    pub fn bench(
        &self,
        n_prompt: usize,
        n_generate: usize,
        depth: usize,
    ) -> Result<Reply<BenchTimes>, EngineError> {
        for (name, value) in [
            ("prompt", n_prompt),
            ("generate", n_generate),
            ("depth", depth),
        ] {
            if value > MAX_COUNT {
                return Err(OptionError::new(name, format!("from 0 to {MAX_COUNT}"), value).into());
            }
        }
        let prompt_tokens = depth + n_prompt.max(n_generate);
        self.check_length(prompt_tokens)?;
        self.send_exclusive(|answer| {
            ExclusiveWork::Bench(BenchJob {
                n_prompt,
                n_generate,
                depth,
                answer,
            })
        })
    }

    /// Embeddings of texts, rows of `embed_dim` values: one a text, or one a token where nothing is pooled. `normalise` scales
    /// each row to length 1.
    pub fn embed(
        &self,
        inputs: Vec<Vec<TokenId>>,
        pooling: Pooling,
        normalise: bool,
    ) -> Result<Reply<Vec<f32>>, EngineError> {
        for ids in &inputs {
            self.check_ids(ids)?;
        }
        let classifier = match pooling {
            Pooling::Rank => Some(self.classifier()?),
            _ => None,
        };
        self.send_exclusive(|answer| {
            ExclusiveWork::Embed(EmbedJob {
                inputs,
                pooling,
                normalise,
                classifier,
                answer,
            })
        })
    }

    /// The head that [`Pooling::Rank`] needs.
    fn classifier(&self) -> Result<Arc<Classifier>, EngineError> {
        if let Some(classifier) = self.classifier.get() {
            return Ok(Arc::clone(classifier));
        }
        let file = self.file()?;
        let classifier = Classifier::of_file(&file, self.info.embed_dim)?;
        Ok(Arc::clone(
            self.classifier.get_or_init(|| Arc::new(classifier)),
        ))
    }

    /// The KV of the first whole pages of `ids`, computed where it is not known, as bytes for [`Engine::restore_prefix`]. What
    /// is left of a page is not saved.
    ///
    /// # Errors
    /// [`EngineError::ShortPrefix`] for less than a page.
    pub fn save_prefix(&self, ids: &[TokenId]) -> Result<Reply<Vec<u8>>, EngineError> {
        self.check_ids(ids)?;
        let whole = whole_pages(ids).to_vec();
        if whole.is_empty() {
            return Err(EngineError::ShortPrefix {
                n_tokens: ids.len(),
                page_len: PAGE_LEN,
            });
        }
        let target = self.saved_for()?;
        self.send_exclusive(|answer| {
            ExclusiveWork::Save(SaveJob {
                ids: whole,
                target,
                answer,
            })
        })
    }

    /// Takes what [`Engine::save_prefix`] gave, of an engine of the same file and KV type, into the prefix cache, where new
    /// sequences find it. Answers with its tokens. It does not wait for others, and goes like everything in the cache when
    /// pages are needed.
    pub fn restore_prefix(&self, bytes: Vec<u8>) -> Result<Reply<usize>, EngineError> {
        let target = self.saved_for()?;
        SavedPrefix::read(&bytes, target)?;
        let (answer, received) = mpsc::channel();
        let cancel = CancelHandle::new(Arc::clone(self.thread.control()));
        self.thread.send(Command::Restore(RestoreJob {
            bytes,
            target,
            answer,
        }))?;
        Ok(Reply::new(received, cancel))
    }

    /// What saved prefixes must agree with.
    pub(crate) fn saved_for(&self) -> Result<SavedFor, EngineError> {
        let model = if let Some(&known) = self.fingerprint.get() {
            known
        } else {
            let model = fingerprint(&*self.file()?);
            *self.fingerprint.get_or_init(|| model)
        };
        let kv_type = KvType::from_name(self.info.kv_type).expect("the name is that of a type");
        Ok(SavedFor {
            model,
            kv_type: kv_type.ggml_type().id(),
            kv_type_name: kv_type.name(),
            vocab_size: self.info.vocab_size,
            context: self.info.context,
        })
    }

    /// What the engine has done so far and holds now, as of the last step.
    pub fn metrics(&self) -> EngineMetrics {
        self.board.read()
    }

    /// Interrupts what runs, and waits until the thread is gone and the model's memory is free. What is queued fails with
    /// [`EngineError::Closed`]. Closing twice does nothing.
    pub fn close(&self) {
        self.thread.close();
        self.file_slot().take();
    }

    /// True until the engine is closed.
    pub fn is_open(&self) -> bool {
        self.thread.is_open()
    }

    /// Queues a request with one answer.
    fn send_exclusive<T>(
        &self,
        work: impl FnOnce(mpsc::Sender<Result<T, EngineError>>) -> ExclusiveWork,
    ) -> Result<Reply<T>, EngineError> {
        let (answer, received) = mpsc::channel();
        let cancel = CancelHandle::new(Arc::clone(self.thread.control()));
        let reply = Reply::new(received, cancel.clone());
        let job = ExclusiveJob {
            cancel,
            work: work(answer),
        };
        self.thread.send(Command::Exclusive(job))?;
        Ok(reply)
    }

    fn check_ids(&self, ids: &[TokenId]) -> Result<(), EngineError> {
        if ids.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        self.check_length(ids.len())?;
        let vocab_size = self.info.vocab_size;
        match ids.iter().find(|&&id| id as usize >= vocab_size) {
            Some(&id) => Err(EngineError::TokenOutOfRange { id, vocab_size }),
            None => Ok(()),
        }
    }

    fn check_length(&self, prompt_tokens: usize) -> Result<(), EngineError> {
        let context = self.info.context;
        if prompt_tokens > context {
            return Err(EngineError::ContextLength {
                prompt_tokens,
                context,
            });
        }
        Ok(())
    }

    fn file_slot(&self) -> MutexGuard<'_, Option<Arc<Gguf>>> {
        // Nothing panics while it is held.
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tokens that the model was never meant to draw, as the file says.
fn suppressed_tokens(file: &Gguf, vocab_size: usize) -> Vec<TokenId> {
    let ids = file
        .metadata()
        .opt_i32_array("tokenizer.ggml.suppress_tokens")
        .ok()
        .flatten()
        .unwrap_or_default();
    ids.iter()
        .filter_map(|&id| TokenId::try_from(id).ok())
        .filter(|&id| (id as usize) < vocab_size)
        .collect()
}
