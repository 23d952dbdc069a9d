//! The CPU backend: thread pool, SIMD kernels and their dispatch table.

mod isa;
mod kernels;

pub use isa::{Isa, cpu_features};
pub use kernels::Kernels;
