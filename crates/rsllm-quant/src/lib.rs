//! Block formats of GGUF tensors with plain, portable, safe code: the oracle for everything faster.
