//! Model families as data, weight binding, one generic decoder and the paged KV cache.
//!
//! `arch/` turns metadata into a [`DecoderConfig`]; [`Model::load`] binds the file's tensors to a backend in place;
//! [`Model::forward`] computes one step for any number of sequences.
#![forbid(unsafe_code)]

pub mod arch;
mod config;
mod decoder;
mod error;
mod ffn;
mod kv_cache;
mod mixer;
mod model;
mod probe;
mod weights;
mod workspace;

pub use config::{
    AttentionConfig, DecoderConfig, FfnConfig, LayerConfig, MixerConfig, Presence, RopeConfig,
};
pub use decoder::Wanted;
pub use error::ModelError;
pub use kv_cache::{LayerState, PAGE_LEN, PagePool, PagePools, PageTable, RecurrentState};
pub use model::{Model, ModelMemory, ModelOptions, kv_bytes};
pub use probe::{Intermediate, ProbeFn};
pub use rsllm_tensor::{KvType, NO_PAGE, PageId, PageSlot, Step, StepInput, StepSequence};
pub use weights::WeightBytes;
