//! qwen3: dense Qwen 3. A norm on each query and key head instead of biases.

use rsllm_tensor::{Activation, RopeStyle};

use super::Arch;
use super::keys::Keys;
use crate::config::{AttentionConfig, DecoderConfig, Presence};
use crate::error::ModelError;

pub(super) static ARCH: Arch = Arch {
    name: "qwen3",
    config,
};

fn config(keys: &Keys<'_>) -> Result<DecoderConfig, ModelError> {
    let attention = attention(keys)?;
    let rope = keys.rope(RopeStyle::HalfSplit, attention[0].head_dim)?;
    keys.decoder(
        attention,
        keys.dense_ffns(Activation::Silu, Presence::Absent)?,
        vec![rope],
    )
}

/// Attention of Qwen 3, dense or not.
pub(super) fn attention(keys: &Keys<'_>) -> Result<Vec<AttentionConfig>, ModelError> {
    let mut attention = keys.attention()?;
    for layer in &mut attention {
        layer.qk_norm = true;
        layer.qkv_bias = Presence::Optional;
    }
    Ok(attention)
}
