//! qwen3moe: Qwen 3 with a mixture of experts in every layer; chosen weights are normalised.

use rsllm_tensor::{ExpertGating, RopeStyle};

use super::Arch;
use super::keys::Keys;
use crate::config::DecoderConfig;
use crate::error::ModelError;

pub(super) static ARCH: Arch = Arch {
    name: "qwen3moe",
    config,
};

fn config(keys: &Keys<'_>) -> Result<DecoderConfig, ModelError> {
    let attention = super::qwen3::attention(keys)?;
    let rope = keys.rope(RopeStyle::HalfSplit, attention[0].head_dim)?;
    let expert_ffn_dim = if let Some(dim) = keys.expert_ffn_dim()? {
        dim
    } else {
        // Early files give the width of all used experts together.
        let n_used = keys.dim("expert_used_count", u64::from(u32::MAX))?;
        keys.ffn_dims()?[0] / n_used
    };
    keys.decoder(
        attention,
        keys.moe_ffns(expert_ffn_dim, ExpertGating::Softmax)?,
        vec![rope],
    )
}
