//! Typed access to a family's hyper-parameters (`{arch}.…`), with the checks all families share.

use rsllm_gguf::{Array, Metadata, Value};
use rsllm_tensor::{Activation, ExpertGating, MoeRouteParams, RopeParams, RopeStyle};

use crate::config::{
    AttentionConfig, DecoderConfig, FfnConfig, LayerConfig, MixerConfig, Presence, RopeConfig,
};
use crate::error::ModelError;

/// No model is wider or longer; larger values are damage.
const MAX_DIM: u64 = 1 << 24;
const MAX_CONTEXT: u64 = 1 << 31;
const MAX_HEADS: u64 = 4096;
const MAX_EXPERTS: u64 = 4096;

/// The metadata of a file under a family's prefix.
pub(super) struct Keys<'a> {
    pub(super) architecture: &'static str,
    metadata: &'a Metadata,
    n_layers: usize,
}

impl<'a> Keys<'a> {
    pub(super) fn new(
        architecture: &'static str,
        metadata: &'a Metadata,
        layers_found: u64,
    ) -> Result<Self, ModelError> {
        let mut keys = Self {
            architecture,
            metadata,
            n_layers: 0,
        };
        let key = keys.key("block_count");
        let block_count = metadata.u64(&key)?;
        // Comparing with the tensors bounds everything that is allocated per layer.
        if block_count == 0 || block_count != layers_found {
            return Err(ModelError::LayerCount {
                key,
                block_count,
                found: layers_found,
            });
        }
        keys.n_layers = block_count as usize;
        Ok(keys)
    }

    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    pub(super) fn n_layers(&self) -> usize {
        self.n_layers
    }

    pub(super) fn unsupported(
        &self,
        name: &str,
        expected: impl Into<String>,
        found: impl std::fmt::Display,
    ) -> ModelError {
        ModelError::UnsupportedValue {
            key: self.key(name),
            expected: expected.into(),
            found: found.to_string(),
        }
    }

    /// An integer in `1..=max`.
    pub(super) fn dim(&self, name: &str, max: u64) -> Result<usize, ModelError> {
        self.opt_dim(name, max)?
            .ok_or_else(|| match self.metadata.u64(&self.key(name)) {
                Err(missing) => missing.into(),
                Ok(value) => self.unsupported(name, format!("1 to {max}"), value),
            })
    }

    pub(super) fn opt_dim(&self, name: &str, max: u64) -> Result<Option<usize>, ModelError> {
        match self.metadata.opt_u64(&self.key(name))? {
            None => Ok(None),
            Some(value) if (1..=max).contains(&value) => Ok(Some(value as usize)),
            Some(value) => Err(self.unsupported(name, format!("1 to {max}"), value)),
        }
    }

    pub(super) fn opt_bool(&self, name: &str) -> Result<Option<bool>, ModelError> {
        Ok(self.metadata.opt_bool(&self.key(name))?)
    }

    /// A finite float above zero.
    pub(super) fn opt_positive(&self, name: &str) -> Result<Option<f32>, ModelError> {
        match self.metadata.opt_f32(&self.key(name))? {
            Some(value) if !value.is_finite() || value <= 0.0 => {
                Err(self.unsupported(name, "a finite number above 0", value))
            }
            other => Ok(other),
        }
    }

    /// A soft-cap: absent or 0 for none.
    pub(super) fn opt_softcap(&self, name: &str) -> Result<Option<f32>, ModelError> {
        match self.metadata.opt_f32(&self.key(name))? {
            Some(0.0) => Ok(None),
            _ => self.opt_positive(name),
        }
    }

    /// A per-layer value: a scalar for all layers, or an array of one each.
    pub(super) fn per_layer(&self, name: &str, max: u64) -> Result<Vec<usize>, ModelError> {
        let key = self.key(name);
        if !matches!(self.metadata.get(&key), Some(Value::Array(_))) {
            return Ok(vec![self.dim(name, max)?; self.n_layers]);
        }
        let values = self.metadata.u32_array(&key)?;
        if values.len() != self.n_layers {
            let expected = format!("{} values, one a layer", self.n_layers);
            return Err(self.unsupported(name, expected, format!("{} values", values.len())));
        }
        values
            .iter()
            .map(|&v| {
                if (1..=max).contains(&u64::from(v)) {
                    Ok(v as usize)
                } else {
                    Err(self.unsupported(name, format!("values of 1 to {max}"), v))
                }
            })
            .collect()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.metadata.contains(&self.key(name))
    }

    pub(super) fn embed_dim(&self) -> Result<usize, ModelError> {
        self.dim("embedding_length", MAX_DIM)
    }

    pub(super) fn ffn_dims(&self) -> Result<Vec<usize>, ModelError> {
        self.per_layer("feed_forward_length", MAX_DIM)
    }

    /// Heads of each layer: (query heads, key/value heads).
    fn heads(&self) -> Result<Vec<(usize, usize)>, ModelError> {
        let heads = self.per_layer("attention.head_count", MAX_HEADS)?;
        let kv_heads = if self.has("attention.head_count_kv") {
            self.per_layer("attention.head_count_kv", MAX_HEADS)?
        } else {
            heads.clone()
        };
        heads
            .into_iter()
            .zip(kv_heads)
            .map(|(heads, kv_heads)| {
                if heads % kv_heads == 0 {
                    Ok((heads, kv_heads))
                } else {
                    Err(self.unsupported(
                        "attention.head_count_kv",
                        format!("a divisor of {heads} heads"),
                        kv_heads,
                    ))
                }
            })
            .collect()
    }

    /// Attention of each layer with what most families share: full context, one rope, `1/sqrt(head_dim)`.
    pub(super) fn attention(&self) -> Result<Vec<AttentionConfig>, ModelError> {
        let embed_dim = self.embed_dim()?;
        let key_length = self.opt_dim("attention.key_length", MAX_DIM)?;
        let value_length = self.opt_dim("attention.value_length", MAX_DIM)?;
        let scale = self.opt_positive("attention.scale")?;
        self.heads()?
            .into_iter()
            .map(|(n_heads, n_kv_heads)| {
                let head_dim = match key_length {
                    Some(length) => length,
                    None if embed_dim % n_heads == 0 => embed_dim / n_heads,
                    None => {
                        let expected = format!(
                            "a divisor of embedding_length {embed_dim}, or attention.key_length"
                        );
                        return Err(self.unsupported("attention.head_count", expected, n_heads));
                    }
                };
                let value_dim = value_length.unwrap_or(head_dim);
                if value_dim != head_dim {
                    let expected = format!("{head_dim}, as attention.key_length");
                    return Err(self.unsupported("attention.value_length", expected, value_dim));
                }
                if head_dim % 2 != 0 {
                    return Err(self.unsupported(
                        "attention.key_length",
                        "an even number",
                        head_dim,
                    ));
                }
                Ok(AttentionConfig {
                    n_heads,
                    n_kv_heads,
                    head_dim,
                    scale: scale.unwrap_or(1.0 / (head_dim as f32).sqrt()),
                    softcap: None,
                    window: None,
                    rope: 0,
                    qk_norm: false,
                    qkv_bias: Presence::Absent,
                    output_bias: Presence::Absent,
                })
            })
            .collect()
    }

    /// The rotary embedding with linear scaling, or none.
    pub(super) fn rope(&self, style: RopeStyle, head_dim: usize) -> Result<RopeConfig, ModelError> {
        let n_rot = self
            .opt_dim("rope.dimension_count", MAX_DIM)?
            .unwrap_or(head_dim);
        if n_rot > head_dim || n_rot % 2 != 0 {
            return Err(self.unsupported(
                "rope.dimension_count",
                format!("an even number up to {head_dim}"),
                n_rot,
            ));
        }
        let key = self.key("rope.scaling.type");
        let scaling = self.metadata.opt_str(&key)?;
        let factor = match self.opt_positive("rope.scaling.factor")? {
            Some(factor) => factor,
            None => self.opt_positive("rope.scale_linear")?.unwrap_or(1.0),
        };
        let frequency_scale = match scaling {
            Some("none") => 1.0,
            None | Some("linear") => 1.0 / factor,
            Some(other) => {
                return Err(self.unsupported(
                    "rope.scaling.type",
                    "none or linear",
                    format!("`{other}`"),
                ));
            }
        };
        let freq_base = self.opt_positive("rope.freq_base")?.unwrap_or(10_000.0);
        Ok(RopeConfig {
            params: RopeParams {
                style,
                n_rot,
                freq_base,
                frequency_scale,
                factors: Vec::new(),
            },
            uses_rope_freqs: true,
        })
    }

    /// Dense gated FFNs.
    pub(super) fn dense_ffns(
        &self,
        activation: Activation,
        bias: Presence,
    ) -> Result<Vec<FfnConfig>, ModelError> {
        Ok(self
            .ffn_dims()?
            .into_iter()
            .map(|ffn_dim| FfnConfig::Dense {
                ffn_dim,
                activation,
                bias,
            })
            .collect())
    }

    /// One kind of expert FFN for all layers.
    pub(super) fn moe_ffns(
        &self,
        expert_ffn_dim: usize,
        gating: ExpertGating,
    ) -> Result<Vec<FfnConfig>, ModelError> {
        let n_experts = self.dim("expert_count", MAX_EXPERTS)?;
        let n_used = self.dim("expert_used_count", n_experts as u64)?;
        let gating = match self.metadata.opt_u32(&self.key("expert_gating_func"))? {
            None | Some(0) => gating,
            Some(1) => ExpertGating::Softmax,
            Some(2) => ExpertGating::Sigmoid,
            Some(3) => ExpertGating::SoftmaxOfSelected,
            Some(other) => return Err(self.unsupported("expert_gating_func", "1, 2 or 3", other)),
        };
        let scale = match self.metadata.opt_f32(&self.key("expert_weights_scale"))? {
            None | Some(0.0) => 1.0,
            Some(scale) => scale,
        };
        let normalise = self.opt_bool("expert_weights_norm")?.unwrap_or(true);
        let route = MoeRouteParams {
            n_experts,
            n_used,
            gating,
            normalise,
            scale,
        };
        let ffn = FfnConfig::Moe {
            expert_ffn_dim,
            activation: Activation::Silu,
            route,
        };
        Ok(vec![ffn; self.n_layers])
    }

    /// The number of experts, 0 for a dense model.
    pub(super) fn n_experts(&self) -> Result<u64, ModelError> {
        Ok(self
            .metadata
            .opt_u64(&self.key("expert_count"))?
            .unwrap_or(0))
    }

    pub(super) fn expert_ffn_dim(&self) -> Result<Option<usize>, ModelError> {
        self.opt_dim("expert_feed_forward_length", MAX_DIM)
    }

    /// Everything around the layers with what most families share.
    pub(super) fn decoder(
        &self,
        attention: Vec<AttentionConfig>,
        ffns: Vec<FfnConfig>,
        ropes: Vec<RopeConfig>,
    ) -> Result<DecoderConfig, ModelError> {
        let layers = attention
            .into_iter()
            .zip(ffns)
            .map(|(attention, ffn)| LayerConfig {
                mixer: MixerConfig::Attention(attention),
                ffn,
                post_norms: false,
            });
        Ok(DecoderConfig {
            architecture: self.architecture,
            embed_dim: self.embed_dim()?,
            context_len: self.dim("context_length", MAX_CONTEXT)?,
            norm_eps: match self.opt_positive("attention.layer_norm_rms_epsilon")? {
                Some(eps) => eps,
                None => {
                    return Err(self
                        .metadata
                        .f32(&self.key("attention.layer_norm_rms_epsilon"))
                        .err()
                        .map_or_else(
                            || {
                                self.unsupported(
                                    "attention.layer_norm_rms_epsilon",
                                    "a number above 0",
                                    "0",
                                )
                            },
                            ModelError::from,
                        ));
                }
            },
            embedding_scale: 1.0,
            logit_softcap: None,
            ropes,
            layers: layers.collect(),
        })
    }

    /// A per-layer array of booleans (or of 0 and 1).
    pub(super) fn opt_bool_array(&self, name: &str) -> Result<Option<Vec<bool>>, ModelError> {
        let key = self.key(name);
        let values = match self.metadata.get(&key) {
            Some(Value::Array(Array::Bool(values))) => values.clone(),
            Some(Value::Array(_)) => self
                .metadata
                .u32_array(&key)?
                .iter()
                .map(|&v| v != 0)
                .collect(),
            _ => return Ok(None),
        };
        if values.len() == self.n_layers {
            return Ok(Some(values));
        }
        let expected = format!("{} values, one a layer", self.n_layers);
        Err(self.unsupported(name, expected, format!("{} values", values.len())))
    }
}
