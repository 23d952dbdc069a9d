//! Loads a model on its devices, runs sequences, samples, stops and reports timings.
