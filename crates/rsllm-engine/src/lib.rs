//! Loads a model on its devices, runs sequences, samples, stops and reports timings. The only API that bindings use.
//!
//! [`Engine::load`] makes a model ready and starts the one thread that runs it. [`Engine::generate`] queues a sequence and
//! returns a [`Generation`]: pieces of text over a channel, then counts and durations. Dropping it cancels. The way of a
//! request: `engine.rs` checks it, `worker.rs` takes it, `scheduler.rs` plans what each step computes for all requests together,
//! `batching.rs` runs the steps, `prefix_cache.rs` finds what was computed before; `sequence.rs` is a request's timeline,
//! `sampling/` draws its tokens, `text.rs` and `stop.rs` decide what text may leave.
#![forbid(unsafe_code)]

mod batch;
mod batching;
#[cfg(test)]
mod batching_tests;
mod budget;
mod classifier;
#[cfg(test)]
mod constrained_tests;
pub mod constraint;
mod context;
mod control;
mod cores;
mod cpu;
mod draft_load;
mod draft_model;
#[cfg(test)]
mod draft_tests;
mod embedding;
mod engine;
#[cfg(test)]
mod engine_tests;
mod error;
mod exclusive;
#[cfg(test)]
mod field_cases;
mod forward;
mod generation;
mod load;
#[cfg(test)]
mod load_tests;
mod loaded;
mod memory;
mod metrics;
mod options;
mod pages;
mod prefix_cache;
#[cfg(test)]
mod prefix_cache_tests;
mod prefix_folder;
mod prefixes;
mod reply;
pub mod sampling;
mod saved;
#[cfg(test)]
mod saved_tests;
mod scheduler;
mod sequence;
mod speculation;
pub mod stop;
#[cfg(test)]
mod testing;
mod text;
mod thread;
mod worker;

pub use control::CancelHandle;
pub use cores::usable_cores;
pub use cpu::{CpuReport, KernelReport, cpu_report, measure_read_bandwidth};
pub use draft_load::DraftInfo;
pub use embedding::Pooling;
pub use engine::Engine;
pub use error::{EngineError, ErrorClass};
pub use generation::{FinishReason, Generation, GenerationStats, Next, Piece};
pub use load::{EngineInfo, plan};
pub use memory::available_bytes;
pub use metrics::{BATCH_SIZES, EngineMetrics};
pub use options::{GenerateOptions, LoadOptions};
pub use prefix_folder::RestoredFile;
pub use reply::Reply;
pub use rsllm_cpu::Isa;
pub use rsllm_tensor::KvType;
pub use rsllm_tokenizer::TokenId;
pub use saved::SavedPrefixError;
pub use worker::BenchTimes;
