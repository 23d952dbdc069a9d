//! Loads a model on its devices, runs sequences, samples, stops and reports timings.
#![forbid(unsafe_code)]

pub mod sampling;
pub mod stop;

/// A token of the vocabulary.
pub type TokenId = u32;
