//! The draft model's share of loading: opens and checks its file, says what its cache takes, and binds it.

use std::path::{Path, PathBuf};

use rsllm_cpu::CpuBackend;
use rsllm_gguf::{Gguf, OpenOptions, TensorInfo};
use rsllm_model::{DecoderConfig, Model, ModelOptions, kv_bytes};
use rsllm_tokenizer::Tokenizer;

use crate::draft_model::check_vocabularies;
use crate::error::EngineError;
use crate::forward::Limits;
use crate::load::MAX_ROWS;
use crate::loaded::LoadedModel;
use crate::options::LoadOptions;

/// What guesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftInfo {
    /// `general.architecture`.
    pub architecture: String,
    /// `general.name`, where the file has one.
    pub name: Option<String>,
    /// Tokens of a text that it can follow: the context, or less where it was trained for less.
    pub context: usize,
    /// Values in all tensors.
    pub parameters: u64,
}

/// A file that can draft for the model.
pub(crate) struct DraftFile {
    path: PathBuf,
    file: Gguf,
    config: DecoderConfig,
    options: ModelOptions,
    /// Tokens of its tokenizer.
    vocab_size: usize,
}

/// A draft model but for what it follows.
pub(crate) struct ReadyDraft {
    pub(crate) model: LoadedModel,
    pub(crate) info: DraftInfo,
    /// Bytes of weights read for one token.
    bytes_per_token: u64,
}

impl ReadyDraft {
    /// What a token costs here, as a share of one of a model that reads so many bytes for it.
    pub(crate) fn share_of(&self, bytes_per_token: u64) -> f32 {
        self.bytes_per_token as f32 / bytes_per_token.max(1) as f32
    }
}

impl DraftFile {
    /// Opens `path` for a model with this `tokenizer`.
    pub(crate) fn open(
        path: &Path,
        options: &LoadOptions,
        tokenizer: &Tokenizer,
    ) -> Result<Self, EngineError> {
        let open = || {
            let file = Gguf::open_with(path, OpenOptions::default().with_mmap(options.mmap))?;
            let config = Model::config_of(&file)?;
            let own = Tokenizer::from_metadata(file.metadata())?;
            check_vocabularies(tokenizer, &own)?;
            let options = ModelOptions {
                kv_tokens: 1,
                kv_type: options.kv_type,
                max_rows: MAX_ROWS,
                max_outputs: 1,
                max_sequences: 1,
            };
            kv_bytes(&config, &options)?;
            Ok((file, config, options, own.vocab_size()))
        };
        let (file, config, options, vocab_size) = open().map_err(|error| failed(path, error))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            config,
            options,
            vocab_size,
        })
    }

    /// Bytes of all its files.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.file.file_bytes()
    }

    fn model_options(&self, context: usize) -> ModelOptions {
        let kv_tokens = context.min(self.config.context_len);
        ModelOptions {
            kv_tokens,
            max_rows: MAX_ROWS.min(kv_tokens),
            ..self.options
        }
    }

    /// Its cache beside a context of so many tokens.
    pub(crate) fn kv_bytes(&self, context: usize) -> u64 {
        kv_bytes(&self.config, &self.model_options(context)).unwrap_or(u64::MAX)
    }

    /// Binds it to `backend`.
    pub(crate) fn load(
        self,
        backend: CpuBackend,
        context: usize,
    ) -> Result<ReadyDraft, EngineError> {
        let options = self.model_options(context);
        let model = Model::load(&self.file, backend, &options)
            .map_err(|error| failed(&self.path, error.into()))?;
        let (config, file) = (&self.config, &self.file);
        if model.vocab_size() != self.vocab_size {
            let error = EngineError::VocabularyMismatch {
                tokenizer: self.vocab_size,
                model: model.vocab_size(),
            };
            return Err(failed(&self.path, error));
        }
        let limits = Limits {
            n_layers: config.layers.len(),
            vocab_size: model.vocab_size(),
            embed_dim: config.embed_dim,
            context: options.kv_tokens,
            max_sequences: 1,
            max_rows: options.max_rows,
            max_outputs: 1,
        };
        let name = file.metadata().opt_str("general.name").ok().flatten();
        Ok(ReadyDraft {
            bytes_per_token: model.memory().weights.per_token,
            info: DraftInfo {
                architecture: config.architecture.to_owned(),
                name: name.map(str::to_owned),
                context: options.kv_tokens,
                parameters: file.tensors().iter().map(TensorInfo::n_elements).sum(),
            },
            model: LoadedModel { model, limits },
        })
    }
}

fn failed(path: &Path, error: EngineError) -> EngineError {
    EngineError::Draft {
        path: path.to_owned(),
        error: Box::new(error),
    }
}
