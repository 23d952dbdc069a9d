//! A tiny random model in a real file, and its vocabulary.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use rsllm_gguf::{GgufWriter, Metadata};
use rsllm_quant::GgmlType;
use rsllm_tokenizer::TokenId;

pub(crate) const BOS: TokenId = 1;
pub(crate) const EOS: TokenId = 2;
/// Token of byte 0.
const FIRST_BYTE: TokenId = 3;
/// Ordinary tokens behind the byte tokens, in the file's spelling.
const PIECES: [&str; 12] = [
    "▁is", "▁not", "▁it", "\nUs", "er", ":", "Hi", "▁x", "▁hello", "▁world", "é", "▁",
];

/// The token of a byte.
pub(crate) fn byte_token(byte: u8) -> TokenId {
    FIRST_BYTE + TokenId::from(byte)
}

/// The token that is exactly this piece of text.
pub(crate) fn piece_token(text: &str) -> TokenId {
    let spelled = text.replace(' ', "▁");
    let position = PIECES
        .iter()
        .position(|piece| *piece == spelled)
        .expect("the piece is in the list");
    FIRST_BYTE + 256 + position as TokenId
}

/// What all tokens look like in the file.
pub(crate) fn token_texts() -> Vec<String> {
    let mut tokens = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
    tokens.extend((0..=255_u8).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(PIECES.map(str::to_owned));
    tokens
}

/// A SentencePiece vocabulary of `<unk>`, `<s>`, `</s>`, all bytes, and a few pieces.
pub(crate) fn vocabulary() -> Metadata {
    let tokens = token_texts();
    let mut types = vec![2, 3, 3];
    types.extend([6; 256]);
    types.extend([1; PIECES.len()]);
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", "llama");
    metadata.insert("tokenizer.ggml.model", "llama");
    metadata.insert("tokenizer.ggml.scores", vec![0.0_f32; tokens.len()]);
    metadata.insert(
        "tokenizer.ggml.tokens",
        tokens.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    metadata.insert("tokenizer.ggml.token_type", types);
    metadata.insert("tokenizer.ggml.bos_token_id", BOS);
    metadata.insert("tokenizer.ggml.eos_token_id", EOS);
    metadata
}

/// A file in the temporary folder, removed in the end.
pub(crate) struct TempFile(pub(crate) PathBuf);

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A two-layer llama of seeded random F32 weights over [`vocabulary`]: a few hundred kilobytes.
pub(crate) fn tiny_model(context: u32) -> TempFile {
    tiny_model_of_layers(context, 2)
}

/// The same of another depth.
pub(crate) fn tiny_model_of_layers(context: u32, n_layers: u32) -> TempFile {
    tiny_model_with(context, n_layers, |_| ())
}

/// The same with other metadata.
pub(crate) fn tiny_model_with(
    context: u32,
    n_layers: u32,
    change: impl FnOnce(&mut Metadata),
) -> TempFile {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let (embed_dim, ffn_dim, n_heads, n_kv_heads) = (128_u64, 96_u64, 4_u64, 2_u64);
    let kv_dim = embed_dim / n_heads * n_kv_heads;
    let mut metadata = vocabulary();
    metadata.insert("llama.block_count", n_layers);
    metadata.insert("llama.context_length", context);
    metadata.insert("llama.embedding_length", embed_dim as u32);
    metadata.insert("llama.feed_forward_length", ffn_dim as u32);
    metadata.insert("llama.attention.head_count", n_heads as u32);
    metadata.insert("llama.attention.head_count_kv", n_kv_heads as u32);
    metadata.insert("llama.attention.layer_norm_rms_epsilon", 1e-5_f32);
    change(&mut metadata);
    let vocab_size = 3 + 256 + PIECES.len() as u64;
    let mut writer = GgufWriter::new(metadata).unwrap();
    let mut add = |name: &str, dims: &[u64]| writer.add_tensor(name, GgmlType::F32, dims).unwrap();
    add("token_embd.weight", &[embed_dim, vocab_size]);
    for layer in 0..n_layers {
        for (name, dims) in [
            ("attn_norm", vec![embed_dim]),
            ("attn_q", vec![embed_dim, embed_dim]),
            ("attn_k", vec![embed_dim, kv_dim]),
            ("attn_v", vec![embed_dim, kv_dim]),
            ("attn_output", vec![embed_dim, embed_dim]),
            ("ffn_norm", vec![embed_dim]),
            ("ffn_gate", vec![embed_dim, ffn_dim]),
            ("ffn_up", vec![embed_dim, ffn_dim]),
            ("ffn_down", vec![ffn_dim, embed_dim]),
        ] {
            add(&format!("blk.{layer}.{name}.weight"), &dims);
        }
    }
    add("output_norm.weight", &[embed_dim]);
    let name = format!(
        "rsllm-tiny-{}-{}.gguf",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    );
    let path = std::env::temp_dir().join(name);
    let mut state = 2026_u64;
    writer
        .write_file(&path, |tensor, out| {
            let is_norm = tensor.name.ends_with("norm.weight");
            for _ in 0..tensor.n_bytes() / 4 {
                let value = if is_norm {
                    1.0
                } else {
                    (next_unit(&mut state) - 0.5) * 0.4
                };
                out.write_all(&value.to_le_bytes())?;
            }
            Ok(())
        })
        .unwrap();
    TempFile(path)
}

/// Any numbers of [0, 1) do: the high bits of Knuth's linear congruential generator.
fn next_unit(state: &mut u64) -> f32 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 40) as f32 / (1_u32 << 24) as f32
}
