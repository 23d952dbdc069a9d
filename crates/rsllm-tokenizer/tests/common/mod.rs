//! Toy vocabularies, small enough to read.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test file uses its own part, and a failure here fails the test"
)]

use rsllm_gguf::Metadata;
use rsllm_tokenizer::{EncodeOptions, Tokenizer};

/// A byte-level vocabulary: all 256 bytes (ids 0–255, in order of their characters), a few merges, and the special
/// tokens `<|end|>`-like given by the caller as text and type.
pub(crate) fn byte_level(pre: &str, merges: &[&str], special: &[(&str, i32)]) -> Metadata {
    let mut tokens: Vec<String> = Vec::new();
    for code in (0x21..=0x7E)
        .chain(0xA1..=0xAC)
        .chain(0xAE..=0xFF)
        .chain(0x100..=0x143u32)
    {
        tokens.push(char::from_u32(code).unwrap().to_string());
    }
    assert_eq!(tokens.len(), 256);
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    let mut types = vec![1; tokens.len()];
    for &(text, kind) in special {
        tokens.push(text.to_owned());
        types.push(kind);
    }
    let mut metadata = Metadata::new();
    metadata.insert("tokenizer.ggml.model", "gpt2");
    metadata.insert("tokenizer.ggml.pre", pre);
    metadata.insert(
        "tokenizer.ggml.tokens",
        tokens.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    metadata.insert("tokenizer.ggml.token_type", types);
    metadata.insert("tokenizer.ggml.merges", merges.to_vec());
    metadata
}

/// A SentencePiece vocabulary: `<unk>`, `<s>`, `</s>`, the 256 byte tokens, then pieces of falling score, then special
/// tokens.
pub(crate) fn sentence_piece(pieces: &[&str], special: &[(&str, i32)]) -> Metadata {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).into();
    let mut types = vec![2, 3, 3];
    for byte in 0..=255u8 {
        tokens.push(format!("<0x{byte:02X}>"));
        types.push(6);
    }
    let mut scores = vec![0.0; tokens.len()];
    for (rank, piece) in pieces.iter().enumerate() {
        tokens.push((*piece).to_owned());
        types.push(1);
        scores.push(-(rank as f32));
    }
    for &(text, kind) in special {
        tokens.push(text.to_owned());
        types.push(kind);
        scores.push(0.0);
    }
    let mut metadata = Metadata::new();
    metadata.insert("tokenizer.ggml.model", "llama");
    metadata.insert(
        "tokenizer.ggml.tokens",
        tokens.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    metadata.insert("tokenizer.ggml.token_type", types);
    metadata.insert("tokenizer.ggml.scores", scores);
    metadata
}

/// A vocabulary of the Gemma 4 kind over a few characters, line feed runs and byte tokens.
pub(crate) fn characters(merges: &[&str]) -> Metadata {
    let mut tokens: Vec<String> = ["<pad>", "<eos>", "<bos>", "\n", "\n\n", "▁", "a", "b", "c"]
        .map(str::to_owned)
        .into();
    let mut types = vec![3, 3, 3, 1, 1, 1, 1, 1, 1];
    for byte in 0..=255u8 {
        tokens.push(format!("<0x{byte:02X}>"));
        types.push(6);
    }
    for merge in merges {
        tokens.push(merge.replace(' ', ""));
        types.push(1);
    }
    let mut metadata = Metadata::new();
    metadata.insert("tokenizer.ggml.model", "gemma4");
    metadata.insert(
        "tokenizer.ggml.tokens",
        tokens.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    metadata.insert("tokenizer.ggml.token_type", types);
    metadata.insert("tokenizer.ggml.merges", merges.to_vec());
    metadata.insert("tokenizer.ggml.bos_token_id", 2u32);
    metadata.insert("tokenizer.ggml.eos_token_id", 1u32);
    metadata
}

pub(crate) fn tokenizer(metadata: &Metadata) -> Tokenizer {
    Tokenizer::from_metadata(metadata).unwrap()
}

pub(crate) const PLAIN: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: false,
};
pub(crate) const PARSE: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: true,
};

/// The texts of the tokens of `text`.
pub(crate) fn pieces(tokenizer: &Tokenizer, text: &str, options: EncodeOptions) -> Vec<String> {
    let text_of = |id| String::from_utf8_lossy(tokenizer.token_text(id).unwrap()).into_owned();
    tokenizer
        .encode(text, options)
        .into_iter()
        .map(text_of)
        .collect()
}
