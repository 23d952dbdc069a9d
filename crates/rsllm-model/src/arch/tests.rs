//! Families from recorded metadata, and what damaged metadata give.

use rsllm_gguf::Metadata;
use rsllm_tensor::{Activation, ExpertGating, RopeStyle};

use super::{ARCHES, decoder_config};
use crate::config::{AttentionConfig, DecoderConfig, FfnConfig, MixerConfig, Presence};
use crate::error::ModelError;

/// Keys of SmolLM2-135M-Instruct, as its file has them.
fn smollm2() -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", "llama");
    metadata.insert("llama.block_count", 30u32);
    metadata.insert("llama.context_length", 8192u32);
    metadata.insert("llama.embedding_length", 576u32);
    metadata.insert("llama.feed_forward_length", 1536u32);
    metadata.insert("llama.attention.head_count", 9u32);
    metadata.insert("llama.attention.head_count_kv", 3u32);
    metadata.insert("llama.rope.freq_base", 100_000f32);
    metadata.insert("llama.rope.dimension_count", 64u32);
    metadata.insert("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    metadata
}

/// Keys of Gemma 3 270M.
fn gemma3() -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", "gemma3");
    metadata.insert("gemma3.block_count", 18u32);
    metadata.insert("gemma3.context_length", 32768u32);
    metadata.insert("gemma3.embedding_length", 640u32);
    metadata.insert("gemma3.feed_forward_length", 2048u32);
    metadata.insert("gemma3.attention.head_count", 4u32);
    metadata.insert("gemma3.attention.head_count_kv", 1u32);
    metadata.insert("gemma3.attention.key_length", 256u32);
    metadata.insert("gemma3.attention.value_length", 256u32);
    metadata.insert("gemma3.attention.sliding_window", 512u32);
    metadata.insert("gemma3.rope.freq_base", 1_000_000f32);
    metadata.insert("gemma3.attention.layer_norm_rms_epsilon", 1e-6f32);
    metadata
}

/// The given keys under another family's prefix.
fn renamed(metadata: &Metadata, from: &str, to: &'static str) -> Metadata {
    let mut out = Metadata::new();
    for (key, value) in metadata.iter() {
        out.insert(
            &key.replacen(&format!("{from}."), &format!("{to}."), 1),
            value.clone(),
        );
    }
    out.insert("general.architecture", to);
    out
}

fn attention(config: &DecoderConfig, layer: usize) -> &AttentionConfig {
    let MixerConfig::Attention(attention) = &config.layers[layer].mixer;
    attention
}

#[test]
fn llama_is_read_from_smollm2() {
    let config = decoder_config(&smollm2(), 30).unwrap();
    assert_eq!(
        (config.embed_dim, config.layers.len(), config.context_len),
        (576, 30, 8192)
    );
    let layer = attention(&config, 29);
    assert_eq!(
        (layer.n_heads, layer.n_kv_heads, layer.head_dim),
        (9, 3, 64)
    );
    assert_eq!(
        (layer.scale, layer.window, layer.qk_norm),
        (0.125, None, false)
    );
    assert_eq!(config.ropes[0].params.style, RopeStyle::Interleaved);
    assert_eq!(config.ropes[0].params.freq_base, 100_000.0);
    let expected = FfnConfig::Dense {
        ffn_dim: 1536,
        activation: Activation::Silu,
        bias: Presence::Optional,
    };
    assert_eq!(config.layers[0].ffn, expected);
}

#[test]
fn gemma3_alternates_windows_and_ropes() {
    let config = decoder_config(&gemma3(), 18).unwrap();
    let full: Vec<usize> = (0..18)
        .filter(|&layer| attention(&config, layer).window.is_none())
        .collect();
    assert_eq!(full, [5, 11, 17]);
    let windowed = attention(&config, 0);
    assert_eq!(
        (windowed.window, windowed.head_dim, windowed.scale),
        (Some(512), 256, 1.0 / 16.0)
    );
    assert_eq!(
        config.ropes[attention(&config, 0).rope].params.freq_base,
        10_000.0
    );
    assert_eq!(
        config.ropes[attention(&config, 5).rope].params.freq_base,
        1_000_000.0
    );
    assert_eq!(config.embedding_scale, 640f32.sqrt());
    assert!(config.layers.iter().all(|layer| layer.post_norms));
}

#[test]
fn gemma3_scales_positions_on_full_layers_only() {
    let mut metadata = gemma3();
    metadata.insert("gemma3.rope.scaling.type", "linear");
    metadata.insert("gemma3.rope.scaling.factor", 8f32);
    let config = decoder_config(&metadata, 18).unwrap();
    assert_eq!(
        config.ropes[attention(&config, 5).rope]
            .params
            .frequency_scale,
        0.125
    );
    assert_eq!(
        config.ropes[attention(&config, 0).rope]
            .params
            .frequency_scale,
        1.0
    );
}

#[test]
fn qwen2_has_biases_and_qwen3_head_norms() {
    let qwen2 = decoder_config(&renamed(&smollm2(), "llama", "qwen2"), 30).unwrap();
    assert_eq!(attention(&qwen2, 0).qkv_bias, Presence::Required);
    assert_eq!(qwen2.ropes[0].params.style, RopeStyle::HalfSplit);
    let qwen3 = decoder_config(&renamed(&smollm2(), "llama", "qwen3"), 30).unwrap();
    assert!(attention(&qwen3, 0).qk_norm);
}

#[test]
fn qwen3moe_and_mixtral_route_tokens() {
    for (family, width) in [("qwen3moe", 768), ("llama", 1536)] {
        let mut metadata = renamed(&smollm2(), "llama", family);
        metadata.insert(&format!("{family}.expert_count"), 8u32);
        metadata.insert(&format!("{family}.expert_used_count"), 2u32);
        if family == "qwen3moe" {
            metadata.insert("qwen3moe.expert_feed_forward_length", 768u32);
        }
        let config = decoder_config(&metadata, 30).unwrap();
        let FfnConfig::Moe {
            expert_ffn_dim,
            route,
            ..
        } = &config.layers[7].ffn
        else {
            panic!("a mixture")
        };
        assert_eq!(
            (*expert_ffn_dim, route.n_experts, route.n_used),
            (width, 8, 2)
        );
        assert_eq!(
            (route.gating, route.normalise),
            (ExpertGating::Softmax, true)
        );
    }
}

#[test]
fn per_layer_arrays_are_taken_and_checked() {
    let mut metadata = smollm2();
    let widths: Vec<u32> = (0..30).map(|layer| 1024 + 32 * layer).collect();
    metadata.insert("llama.feed_forward_length", widths);
    let config = decoder_config(&metadata, 30).unwrap();
    assert!(matches!(
        config.layers[3].ffn,
        FfnConfig::Dense { ffn_dim: 1120, .. }
    ));
    metadata.insert("llama.feed_forward_length", vec![1024u32; 29]);
    assert_error(&metadata, 30, "llama.feed_forward_length");
}

#[track_caller]
fn assert_error(metadata: &Metadata, layers: u64, key: &str) {
    let error = decoder_config(metadata, layers).unwrap_err().to_string();
    assert!(error.contains(key), "`{error}` names {key}");
}

#[test]
fn gf_05_block_count_is_compared_with_the_tensors() {
    for bad in [513u32, 0, u32::MAX] {
        let mut metadata = smollm2();
        metadata.insert("llama.block_count", bad);
        let error = decoder_config(&metadata, 1).unwrap_err();
        assert!(
            matches!(error, ModelError::LayerCount { found: 1, .. }),
            "{error}"
        );
    }
}

#[test]
fn an_unknown_family_names_the_known_ones() {
    let mut metadata = smollm2();
    metadata.insert("general.architecture", "mamba9");
    let error = decoder_config(&metadata, 30).unwrap_err().to_string();
    assert!(
        ARCHES.iter().all(|arch| error.contains(arch.name)),
        "{error}"
    );
}

#[test]
fn damaged_values_are_errors_that_name_the_key() {
    let cases: &[(&str, f32)] = &[
        ("llama.rope.freq_base", f32::NAN),
        ("llama.attention.layer_norm_rms_epsilon", -1.0),
    ];
    for (key, value) in cases {
        let mut metadata = smollm2();
        metadata.insert(key, *value);
        assert_error(&metadata, 30, key);
    }
    let cases: &[(&str, u32)] = &[
        ("llama.attention.head_count", 0),
        ("llama.attention.head_count", 7),
        ("llama.attention.head_count_kv", 2),
        ("llama.embedding_length", 0),
        ("llama.embedding_length", u32::MAX),
        ("llama.rope.dimension_count", 65),
        ("llama.rope.dimension_count", 128),
        ("llama.attention.value_length", 32),
        ("llama.context_length", 0),
    ];
    for (key, value) in cases {
        let mut metadata = smollm2();
        metadata.insert(key, *value);
        assert_error(&metadata, 30, key);
    }
    for key in [
        "llama.context_length",
        "llama.embedding_length",
        "llama.attention.layer_norm_rms_epsilon",
    ] {
        let mut metadata = smollm2();
        metadata.remove(key);
        assert_error(&metadata, 30, key);
    }
    let mut metadata = smollm2();
    metadata.insert("llama.rope.scaling.type", "yarn");
    assert_error(&metadata, 30, "llama.rope.scaling.type");
}
