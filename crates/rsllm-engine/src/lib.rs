//! Loads a model on its devices, runs sequences, samples, stops and reports timings. The only API that bindings use.
//!
//! [`Engine::load`] makes a model ready and starts the one thread that runs it. [`Engine::generate`] queues a sequence and
//! returns a [`Generation`]: pieces of text over a channel, then counts and durations. Dropping it cancels. The way of a
//! request: `engine.rs` checks it, `worker.rs` serves it, `sequence.rs` is its timeline, `sampling/` draws its tokens, `text.rs`
//! and `stop.rs` decide what text may leave, `loaded.rs` turns its tokens into steps of the model.
#![forbid(unsafe_code)]

pub mod constraint;
mod context;
mod cores;
mod cpu;
mod engine;
#[cfg(test)]
mod engine_tests;
mod error;
mod forward;
mod generation;
mod load;
#[cfg(test)]
mod load_tests;
mod loaded;
mod memory;
mod options;
mod prefix;
mod reply;
pub mod sampling;
mod sequence;
pub mod stop;
#[cfg(test)]
mod testing;
mod text;
mod thread;
mod worker;

pub use cores::usable_cores;
pub use cpu::{CpuReport, KernelReport, cpu_report, measure_read_bandwidth};
pub use engine::Engine;
pub use error::{EngineError, ErrorClass};
pub use generation::{CancelHandle, FinishReason, Generation, GenerationStats, Next, Piece};
pub use load::{EngineInfo, plan};
pub use memory::available_bytes;
pub use options::{GenerateOptions, LoadOptions};
pub use reply::Reply;
pub use rsllm_cpu::Isa;
pub use rsllm_tensor::KvType;
pub use rsllm_tokenizer::TokenId;
pub use worker::BenchTimes;
