//! The CPU backend: thread pool, SIMD kernels and their dispatch table.
