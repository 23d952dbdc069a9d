//! llama: Llama 1 to 3, Mistral, Mixtral, SmolLM, Yi, TinyLlama and many others.
//!
//! Q and K rows are permuted at conversion, hence adjacent pairs; `rope_freqs.weight` (Llama 3.1 and later) divides the
//! frequencies; with `expert_count` the FFN is a mixture (Mixtral).

use rsllm_tensor::{Activation, ExpertGating, RopeStyle};

use super::Arch;
use super::keys::Keys;
use crate::config::{DecoderConfig, Presence};
use crate::error::ModelError;

pub(super) static ARCH: Arch = Arch {
    name: "llama",
    config,
};

fn config(keys: &Keys<'_>) -> Result<DecoderConfig, ModelError> {
    let mut attention = keys.attention()?;
    for layer in &mut attention {
        layer.qkv_bias = Presence::Optional;
        layer.output_bias = Presence::Optional;
    }
    let rope = keys.rope(RopeStyle::Interleaved, attention[0].head_dim)?;
    let ffns = if keys.n_experts()? > 0 {
        let ffn_dim = match keys.expert_ffn_dim()? {
            Some(dim) => dim,
            None => keys.ffn_dims()?[0],
        };
        keys.moe_ffns(ffn_dim, ExpertGating::Softmax)?
    } else {
        keys.dense_ffns(Activation::Silu, Presence::Optional)?
    };
    keys.decoder(attention, ffns, vec![rope])
}
