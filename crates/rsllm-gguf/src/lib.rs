//! Maps a GGUF file, validates it whole before use, hands out typed metadata and byte slices; also writes GGUF.
