//! The CPU backend: thread pool, SIMD kernels and their dispatch table.
//!
//! `backend.rs` implements [`rsllm_tensor::Backend`]; `matmul.rs` (with `tiles.rs` and `panels.rs` for prompts),
//! `attention.rs`, `moe.rs` and `ops.rs` hold the operations, each in terms of single-threaded kernels from the table in `kernels/`.

mod adapters;
mod attention;
mod backend;
#[doc(hidden)]
pub mod bench_support;
mod ffn;
mod heads;
mod isa;
mod kernels;
mod kv;
mod largest;
mod matmul;
mod memory;
mod moe;
mod ops;
mod panels;
mod pieces;
mod products;
mod scratch;
mod step_state;
mod threads;
mod tiles;
mod weight;

pub use backend::CpuBackend;
pub use isa::{Isa, cpu_features};
pub use kernels::Kernels;
pub use kv::CpuKv;
pub use largest::largest;
pub use memory::{CpuBuffer, prefetch_line};
pub use moe::CpuRouting;
pub use weight::CpuWeight;
