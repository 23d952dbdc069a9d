//! qwen2: Qwen 1.5, 2 and 2.5. Biases on q, k and v.

use rsllm_tensor::{Activation, RopeStyle};

use super::Arch;
use super::keys::Keys;
use crate::config::{DecoderConfig, Presence};
use crate::error::ModelError;

pub(super) static ARCH: Arch = Arch {
    name: "qwen2",
    config,
};

fn config(keys: &Keys<'_>) -> Result<DecoderConfig, ModelError> {
    let mut attention = keys.attention()?;
    for layer in &mut attention {
        layer.qkv_bias = Presence::Required;
        layer.output_bias = Presence::Optional;
    }
    let rope = keys.rope(RopeStyle::HalfSplit, attention[0].head_dim)?;
    keys.decoder(
        attention,
        keys.dense_ffns(Activation::Silu, Presence::Absent)?,
        vec![rope],
    )
}
