//! What a family's decoder looks like, as data. `arch/` fills it from metadata; the rest of the crate reads only this.

use rsllm_tensor::{Activation, MoeRouteParams, RopeParams};

/// A whole decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    /// `general.architecture`.
    pub architecture: &'static str,
    /// Width of the residual stream (`embedding_length`).
    pub embed_dim: usize,
    /// Tokens the model was trained for (`context_length`).
    pub context_len: usize,
    /// Epsilon of every RMS norm.
    pub norm_eps: f32,
    /// Factor on looked-up embeddings; gemma: sqrt(embed_dim).
    pub embedding_scale: f32,
    /// `cap * tanh(logit / cap)` on the logits; gemma.
    pub logit_softcap: Option<f32>,
    /// Rotary embeddings that layers name by index; gemma3 has one for windowed and one for full layers.
    pub ropes: Vec<RopeConfig>,
    /// Layers in order (`block_count`).
    pub layers: Vec<LayerConfig>,
}

/// One layer: a mixer and an FFN, each in a residual branch with a norm before it.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerConfig {
    /// How tokens see each other.
    pub mixer: MixerConfig,
    /// What happens to each token alone.
    pub ffn: FfnConfig,
    /// Norms after mixer and FFN, before the residual additions; gemma2 and gemma3.
    pub post_norms: bool,
}

/// The mixer of a layer.
#[derive(Debug, Clone, PartialEq)]
pub enum MixerConfig {
    /// Softmax attention over KV pages; every family so far.
    Attention(AttentionConfig),
}

/// Softmax attention.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionConfig {
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads.
    pub n_kv_heads: usize,
    /// Width of a head, for queries, keys and values alike.
    pub head_dim: usize,
    /// Factor on `q·k`.
    pub scale: f32,
    /// `cap * tanh(score / cap)`; gemma2.
    pub softcap: Option<f32>,
    /// Tokens a query sees, itself included; `None` for all.
    pub window: Option<usize>,
    /// Index into [`DecoderConfig::ropes`].
    pub rope: usize,
    /// RMS norm of each query and key head before rotation; qwen3, gemma3.
    pub qk_norm: bool,
    /// Biases of q, k and v; qwen2 has them.
    pub qkv_bias: Presence,
    /// Bias of the output projection.
    pub output_bias: Presence,
}

/// The FFN of a layer.
#[derive(Debug, Clone, PartialEq)]
pub enum FfnConfig {
    /// `down(act(gate·x) * up·x)`.
    Dense {
        /// Inner width.
        ffn_dim: usize,
        /// Of the gate.
        activation: Activation,
        /// Biases of gate, up and down; llama allows them.
        bias: Presence,
    },
    /// Some of many such FFNs, chosen per token; mixtral (llama), qwen3moe.
    Moe {
        /// Inner width of an expert.
        expert_ffn_dim: usize,
        /// Of the gate.
        activation: Activation,
        /// Choosing.
        route: MoeRouteParams,
    },
}

/// Whether a family's files hold a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Always.
    Required,
    /// In some files.
    Optional,
    /// Never.
    Absent,
}

/// A rotary embedding; `factors` come from a tensor when there is one.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Everything but the factors.
    pub params: RopeParams,
    /// Take `rope_freqs.weight` as factors when the file has it.
    pub uses_rope_freqs: bool,
}
