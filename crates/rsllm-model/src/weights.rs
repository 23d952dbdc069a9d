//! Binding a file's tensors to a backend, by their GGUF names, without copying them.

use std::collections::HashSet;

use rsllm_gguf::{Gguf, TensorInfo};
use rsllm_tensor::{Backend, BackendError, LowRank, Op, SharedBytes, WeightSource};

use crate::config::{
    AttentionConfig, DecoderConfig, FfnConfig, LayerConfig, MixerConfig, Presence,
};
use crate::error::ModelError;

/// A linear layer: matrix, bias, and adapters of sequences that ask for them.
pub(crate) struct Linear<B: Backend> {
    pub(crate) weight: B::Weight,
    pub(crate) bias: Option<B::Weight>,
    pub(crate) adapters: Vec<LowRank<B::Weight>>,
}

/// Fields are named as the GGUF tensors.
pub(crate) struct LayerWeights<B: Backend> {
    pub(crate) attn_norm: B::Weight,
    pub(crate) attention: AttentionWeights<B>,
    pub(crate) post_attention_norm: Option<B::Weight>,
    pub(crate) ffn_norm: B::Weight,
    pub(crate) ffn: FfnWeights<B>,
    pub(crate) post_ffw_norm: Option<B::Weight>,
}

#[expect(clippy::struct_field_names, reason = "the tensors' own names")]
pub(crate) struct AttentionWeights<B: Backend> {
    pub(crate) attn_q: Linear<B>,
    pub(crate) attn_k: Linear<B>,
    pub(crate) attn_v: Linear<B>,
    pub(crate) attn_q_norm: Option<B::Weight>,
    pub(crate) attn_k_norm: Option<B::Weight>,
    pub(crate) attn_output: Linear<B>,
}

pub(crate) enum FfnWeights<B: Backend> {
    Dense(DenseWeights<B>),
    Moe(MoeWeights<B>),
}

#[expect(clippy::struct_field_names, reason = "the tensors' own names")]
pub(crate) struct DenseWeights<B: Backend> {
    pub(crate) ffn_gate: Linear<B>,
    pub(crate) ffn_up: Linear<B>,
    pub(crate) ffn_down: Linear<B>,
}

#[expect(clippy::struct_field_names, reason = "the tensors' own names")]
pub(crate) struct MoeWeights<B: Backend> {
    pub(crate) ffn_gate_inp: Linear<B>,
    pub(crate) ffn_gate_exps: B::Weight,
    pub(crate) ffn_up_exps: B::Weight,
    pub(crate) ffn_down_exps: B::Weight,
}

/// Takes tensors from a file, checks their shapes, and notes which were used.
pub(crate) struct Binder<'a, B: Backend> {
    gguf: &'a Gguf,
    backend: &'a mut B,
    architecture: &'static str,
    used: HashSet<&'a str>,
    /// Bytes of all bound tensors, and those read for one decoded token.
    pub(crate) bytes: WeightBytes,
}

/// How much weight data a model has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WeightBytes {
    /// Of all bound tensors, in the mapping.
    pub total: u64,
    /// Read to decode one token: all matrices, of experts only the used ones, of the embedding only a row.
    pub per_token: u64,
}

impl<'a, B: Backend> Binder<'a, B> {
    pub(crate) fn new(gguf: &'a Gguf, backend: &'a mut B, architecture: &'static str) -> Self {
        Self {
            gguf,
            backend,
            architecture,
            used: HashSet::new(),
            bytes: WeightBytes::default(),
        }
    }

    /// Tensors nobody asked for, in file order.
    pub(crate) fn unused(&self) -> Vec<String> {
        let tensors = self.gguf.tensors().iter().map(|tensor| &tensor.name);
        tensors
            .filter(|name| !self.used.contains(name.as_str()))
            .cloned()
            .collect()
    }

    /// The embedding table `[vocab_size, embed_dim]` and its number of rows.
    pub(crate) fn embedding(&mut self, embed_dim: usize) -> Result<(B::Weight, usize), ModelError> {
        let name = "token_embd.weight";
        let tensor = self.tensor(name)?;
        let vocab_size = tensor.n_rows() as usize;
        let row_bytes = tensor.n_bytes() as u64 / tensor.n_rows().max(1);
        let weight = self.bind(name, &[embed_dim, vocab_size], Op::EmbedRows)?;
        self.bytes.per_token += row_bytes;
        Ok((weight, vocab_size))
    }

    /// The output matrix, or the embedding table again where a file ties the two.
    pub(crate) fn output(
        &mut self,
        embed_dim: usize,
        vocab_size: usize,
    ) -> Result<Linear<B>, ModelError> {
        let tied = self.gguf.tensor("output.weight").is_none();
        let name = if tied { "token_embd" } else { "output" };
        let total = self.bytes.total;
        let output = self.linear(name, embed_dim, vocab_size, Presence::Absent)?;
        if tied {
            // Counted with the embedding already.
            self.bytes.total = total;
        }
        Ok(output)
    }

    /// A vector such as a norm weight, by its full name.
    pub(crate) fn vector(&mut self, name: &str, len: usize) -> Result<B::Weight, ModelError> {
        let weight = self.bind(name, &[len], Op::RmsNorm)?;
        self.bytes.per_token += self.tensor(name)?.n_bytes() as u64;
        Ok(weight)
    }

    /// Values of a small float tensor a family may have.
    pub(crate) fn optional_values(
        &mut self,
        name: &str,
        len: usize,
    ) -> Result<Option<Vec<f32>>, ModelError> {
        let Some(tensor) = self.gguf.tensor(name) else {
            return Ok(None);
        };
        self.used.insert(&tensor.name);
        check_shape(tensor, &[len])?;
        let mut values = vec![0.0; len];
        rsllm_quant::dequantize(tensor.ty, self.gguf.tensor_bytes(tensor), &mut values).map_err(
            |_| BackendError::UnsupportedType {
                backend: self.backend.name(),
                tensor: name.to_owned(),
                ty: tensor.ty,
                op: Op::Rope,
            },
        )?;
        Ok(Some(values))
    }

    pub(crate) fn layer(
        &mut self,
        index: usize,
        config: &DecoderConfig,
        layer: &LayerConfig,
    ) -> Result<LayerWeights<B>, ModelError> {
        let embed_dim = config.embed_dim;
        let name = |tensor: &str| format!("blk.{index}.{tensor}");
        let MixerConfig::Attention(attention) = &layer.mixer;
        let post_norm = |binder: &mut Self, tensor: &str| {
            layer
                .post_norms
                .then(|| binder.vector(&name(tensor), embed_dim))
                .transpose()
        };
        Ok(LayerWeights {
            attn_norm: self.vector(&name("attn_norm.weight"), embed_dim)?,
            attention: self.attention(&name(""), embed_dim, attention)?,
            post_attention_norm: post_norm(self, "post_attention_norm.weight")?,
            ffn_norm: self.vector(&name("ffn_norm.weight"), embed_dim)?,
            ffn: self.ffn(&name(""), embed_dim, &layer.ffn)?,
            post_ffw_norm: post_norm(self, "post_ffw_norm.weight")?,
        })
    }

    fn attention(
        &mut self,
        prefix: &str,
        embed_dim: usize,
        config: &AttentionConfig,
    ) -> Result<AttentionWeights<B>, ModelError> {
        let q_dim = config.n_heads * config.head_dim;
        let kv_dim = config.n_kv_heads * config.head_dim;
        let name = |tensor: &str| format!("{prefix}{tensor}");
        let head_norm = |binder: &mut Self, tensor: &str| {
            config
                .qk_norm
                .then(|| binder.vector(&name(tensor), config.head_dim))
                .transpose()
        };
        Ok(AttentionWeights {
            attn_q: self.linear(&name("attn_q"), embed_dim, q_dim, config.qkv_bias)?,
            attn_k: self.linear(&name("attn_k"), embed_dim, kv_dim, config.qkv_bias)?,
            attn_v: self.linear(&name("attn_v"), embed_dim, kv_dim, config.qkv_bias)?,
            attn_q_norm: head_norm(self, "attn_q_norm.weight")?,
            attn_k_norm: head_norm(self, "attn_k_norm.weight")?,
            attn_output: self.linear(&name("attn_output"), q_dim, embed_dim, config.output_bias)?,
        })
    }

    fn ffn(
        &mut self,
        prefix: &str,
        embed_dim: usize,
        config: &FfnConfig,
    ) -> Result<FfnWeights<B>, ModelError> {
        let name = |tensor: &str| format!("{prefix}{tensor}");
        match config {
            FfnConfig::Dense { ffn_dim, bias, .. } => Ok(FfnWeights::Dense(DenseWeights {
                ffn_gate: self.linear(&name("ffn_gate"), embed_dim, *ffn_dim, *bias)?,
                ffn_up: self.linear(&name("ffn_up"), embed_dim, *ffn_dim, *bias)?,
                ffn_down: self.linear(&name("ffn_down"), *ffn_dim, embed_dim, *bias)?,
            })),
            FfnConfig::Moe {
                expert_ffn_dim,
                route,
                ..
            } => {
                let (ffn_dim, n) = (*expert_ffn_dim, route.n_experts);
                let mut experts = |tensor: &str, row_len: usize, n_rows: usize| {
                    self.experts(prefix, tensor, [row_len, n_rows, n], route.n_used)
                };
                let ffn_gate_exps = experts("ffn_gate", embed_dim, ffn_dim)?;
                let ffn_up_exps = experts("ffn_up", embed_dim, ffn_dim)?;
                let ffn_down_exps = experts("ffn_down", ffn_dim, embed_dim)?;
                let ffn_gate_inp =
                    self.linear(&name("ffn_gate_inp"), embed_dim, n, Presence::Absent)?;
                Ok(FfnWeights::Moe(MoeWeights {
                    ffn_gate_inp,
                    ffn_gate_exps,
                    ffn_up_exps,
                    ffn_down_exps,
                }))
            }
        }
    }

    fn linear(
        &mut self,
        name: &str,
        row_len: usize,
        n_rows: usize,
        bias: Presence,
    ) -> Result<Linear<B>, ModelError> {
        let weight_name = format!("{name}.weight");
        let weight = self.bind(&weight_name, &[row_len, n_rows], Op::Matmul)?;
        self.bytes.per_token += self.tensor(&weight_name)?.n_bytes() as u64;
        let bias_name = format!("{name}.bias");
        let bias = match bias {
            Presence::Required => true,
            Presence::Optional => self.gguf.tensor(&bias_name).is_some(),
            Presence::Absent => false,
        };
        let bias = bias.then(|| self.vector(&bias_name, n_rows)).transpose()?;
        Ok(Linear {
            weight,
            bias,
            adapters: Vec::new(),
        })
    }

    /// Stacked experts (`ffn_gate_exps.weight`), or the older one tensor an expert (`ffn_gate.3.weight`).
    fn experts(
        &mut self,
        prefix: &str,
        tensor: &str,
        dims: [usize; 3],
        n_used: usize,
    ) -> Result<B::Weight, ModelError> {
        let stacked = format!("{prefix}{tensor}_exps.weight");
        let first = format!("{prefix}{tensor}.0.weight");
        let total = self.bytes.total;
        let weight = if self.gguf.tensor(&stacked).is_some() || self.gguf.tensor(&first).is_none() {
            self.bind(&stacked, &dims, Op::MoeFfn)?
        } else {
            let names: Vec<String> = (0..dims[2])
                .map(|expert| format!("{prefix}{tensor}.{expert}.weight"))
                .collect();
            self.bind_parts(&names, &dims[..2], Op::MoeFfn)?
        };
        self.bytes.per_token += (self.bytes.total - total) / dims[2] as u64 * n_used as u64;
        Ok(weight)
    }

    fn bind(&mut self, name: &str, dims: &[usize], op: Op) -> Result<B::Weight, ModelError> {
        self.bind_parts(&[name.to_owned()], dims, op)
    }

    /// Bind tensors of the same shape and type as the matrices of one weight (a single one: as it is).
    fn bind_parts(
        &mut self,
        names: &[String],
        dims: &[usize],
        op: Op,
    ) -> Result<B::Weight, ModelError> {
        let ty = self.tensor(&names[0])?.ty;
        let mut parts = Vec::with_capacity(names.len());
        for name in names {
            let tensor = self.tensor(name)?;
            check_shape(tensor, dims)?;
            if tensor.ty != ty || !self.backend.supports(op, tensor.ty) {
                let (backend, ty) = (self.backend.name(), tensor.ty);
                return Err(BackendError::UnsupportedType {
                    backend,
                    tensor: name.clone(),
                    ty,
                    op,
                }
                .into());
            }
            self.used.insert(&tensor.name);
            self.bytes.total += tensor.n_bytes() as u64;
            let bytes = SharedBytes::new(self.gguf.owner(tensor), self.gguf.tensor_range(tensor));
            parts.push(bytes.expect("the reader has checked the tensor's range"));
        }
        let n_matrices = if names.len() > 1 {
            names.len()
        } else {
            dims.get(2).copied().unwrap_or(1)
        };
        let source = WeightSource {
            name: names[0].clone(),
            ty,
            row_len: dims[0],
            n_rows: dims.get(1).copied().unwrap_or(1),
            n_matrices,
            parts,
        };
        Ok(self.backend.bind_weight(source)?)
    }

    fn tensor(&self, name: &str) -> Result<&'a TensorInfo, ModelError> {
        let missing = || ModelError::MissingTensor {
            name: name.to_owned(),
            architecture: self.architecture,
        };
        self.gguf.tensor(name).ok_or_else(missing)
    }
}

/// Equal up to trailing ones.
fn check_shape(tensor: &TensorInfo, dims: &[usize]) -> Result<(), ModelError> {
    let significant = |dims: &[u64]| {
        dims.iter()
            .rposition(|&d| d != 1)
            .map_or(0, |last| last + 1)
    };
    let expected: Vec<u64> = dims.iter().map(|&d| d as u64).collect();
    let found = &tensor.dims;
    if expected[..significant(&expected)] == found[..significant(found)] {
        return Ok(());
    }
    Err(ModelError::TensorShape {
        name: tensor.name.clone(),
        expected,
        found: found.clone(),
    })
}

/// Number of layers the file has tensors for: the highest `blk.N.` plus one.
pub(crate) fn layers_found(gguf: &Gguf) -> u64 {
    let number = |name: &str| {
        name.strip_prefix("blk.")?
            .split('.')
            .next()?
            .parse::<u64>()
            .ok()
    };
    gguf.tensors()
        .iter()
        .filter_map(|tensor| number(&tensor.name))
        .max()
        .map_or(0, |last| last.saturating_add(1))
}
