//! The Python module rsllm._core: thin classes over the engine.
