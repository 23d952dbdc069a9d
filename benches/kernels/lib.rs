//! Shared set-up of the kernel benchmarks.
