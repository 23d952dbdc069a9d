//! gemma3: text models of Gemma 3.
//!
//! Scaled embeddings, norms before and after each branch, normed query and key heads, GELU; five of six layers see a
//! window and rotate with their own base, without the scaling of the full layers.

use rsllm_tensor::{Activation, RopeStyle};

use super::Arch;
use super::keys::Keys;
use crate::config::{DecoderConfig, Presence};
use crate::error::ModelError;

pub(super) static ARCH: Arch = Arch {
    name: "gemma3",
    config,
};

/// Every sixth layer sees the whole context.
const DEFAULT_PATTERN: usize = 6;
/// Rotary base of windowed layers.
const DEFAULT_WINDOW_BASE: f32 = 10_000.0;
/// Layers of the 27B model, which scales queries by the width a head would have without `key_length`.
const LAYERS_27B: usize = 62;

const FULL_ROPE: usize = 0;
const WINDOW_ROPE: usize = 1;

fn config(keys: &Keys<'_>) -> Result<DecoderConfig, ModelError> {
    let mut attention = keys.attention()?;
    let embed_dim = keys.embed_dim()?;
    let window = keys.opt_dim("attention.sliding_window", 1 << 31)?;
    let windowed = windowed_layers(keys)?;
    for (layer, windowed) in attention.iter_mut().zip(windowed) {
        layer.qk_norm = true;
        layer.window = if windowed { window } else { None };
        layer.rope = if layer.window.is_some() {
            WINDOW_ROPE
        } else {
            FULL_ROPE
        };
        layer.softcap = keys.opt_softcap("attn_logit_softcapping")?;
        if keys.n_layers() == LAYERS_27B && !keys.has("attention.scale") {
            layer.scale = 1.0 / ((embed_dim / layer.n_heads) as f32).sqrt();
        }
    }
    let full = keys.rope(RopeStyle::HalfSplit, attention[0].head_dim)?;
    let mut window = full.clone();
    window.params.freq_base = keys
        .opt_positive("rope.freq_base_swa")?
        .unwrap_or(DEFAULT_WINDOW_BASE);
    window.params.frequency_scale = 1.0;
    window.uses_rope_freqs = false;
    let ffns = keys.dense_ffns(Activation::GeluTanh, Presence::Absent)?;
    let mut config = keys.decoder(attention, ffns, vec![full, window])?;
    config.embedding_scale = (embed_dim as f32).sqrt();
    config.logit_softcap = keys.opt_softcap("final_logit_softcapping")?;
    for layer in &mut config.layers {
        layer.post_norms = true;
    }
    Ok(config)
}

/// Which layers see a window: the file's array, or all but every `pattern`-th.
fn windowed_layers(keys: &Keys<'_>) -> Result<Vec<bool>, ModelError> {
    if let Some(layers) = keys.opt_bool_array("attention.sliding_window_pattern")? {
        return Ok(layers);
    }
    let pattern = keys
        .opt_dim("attention.sliding_window_pattern", 1 << 16)?
        .unwrap_or(DEFAULT_PATTERN);
    Ok((0..keys.n_layers())
        .map(|layer| layer % pattern < pattern - 1)
        .collect())
}
