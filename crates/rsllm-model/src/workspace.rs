//! All activations of a forward pass, allocated once at load time.

use rsllm_tensor::{Backend, BackendError};

use crate::config::{AttentionConfig, DecoderConfig, FfnConfig, MixerConfig};

/// Buffers of a segment. Attention and FFN buffers exist once for each distinct width among the layers.
pub(crate) struct Workspace<B: Backend> {
    /// The residual stream `[max_rows, embed_dim]`.
    pub(crate) hidden: B::Buffer,
    /// The residual stream of the output rows `[max_outputs, embed_dim]`.
    pub(crate) hidden_outputs: B::Buffer,
    /// Input of a branch `[max_rows, embed_dim]`.
    pub(crate) normed: B::Buffer,
    /// Result of a branch `[max_rows, embed_dim]`.
    pub(crate) branch: B::Buffer,
    /// `[max_outputs, vocab_size]`.
    pub(crate) logits: Option<B::Buffer>,
    attention: Vec<(AttentionDims, AttentionBuffers<B>)>,
    ffn: Vec<(FfnDims, FfnBuffers<B>)>,
}

pub(crate) struct AttentionBuffers<B: Backend> {
    /// `[max_rows, n_heads * head_dim]`.
    pub(crate) q: B::Buffer,
    /// `[max_rows, n_kv_heads * head_dim]`.
    pub(crate) k: B::Buffer,
    /// As `k`.
    pub(crate) v: B::Buffer,
    /// As `q`.
    pub(crate) out: B::Buffer,
    /// Output rows of `out`, `[max_outputs, n_heads * head_dim]`.
    pub(crate) out_outputs: B::Buffer,
}

pub(crate) enum FfnBuffers<B: Backend> {
    Dense(DenseBuffers<B>),
    Moe(MoeBuffers<B>),
}

pub(crate) struct DenseBuffers<B: Backend> {
    /// `[max_rows, ffn_dim]`.
    pub(crate) gate: B::Buffer,
    /// As `gate`.
    pub(crate) up: B::Buffer,
}

pub(crate) struct MoeBuffers<B: Backend> {
    /// Router logits `[max_rows, n_experts]`.
    pub(crate) router: B::Buffer,
    pub(crate) routing: B::Routing,
}

#[derive(PartialEq, Eq, Clone, Copy)]
struct AttentionDims {
    q: usize,
    kv: usize,
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum FfnDims {
    Dense(usize),
    Moe { n_experts: usize, n_used: usize },
}

impl AttentionDims {
    fn of(config: &AttentionConfig) -> Self {
        Self {
            q: config.n_heads * config.head_dim,
            kv: config.n_kv_heads * config.head_dim,
        }
    }
}

impl FfnDims {
    fn of(config: &FfnConfig) -> Self {
        match config {
            FfnConfig::Dense { ffn_dim, .. } => Self::Dense(*ffn_dim),
            FfnConfig::Moe { route, .. } => Self::Moe {
                n_experts: route.n_experts,
                n_used: route.n_used,
            },
        }
    }
}

impl<B: Backend> Workspace<B> {
    pub(crate) fn new(
        backend: &mut B,
        config: &DecoderConfig,
        vocab_size: Option<usize>,
        max_rows: usize,
        max_outputs: usize,
    ) -> Result<Self, BackendError> {
        let mut attention = Vec::new();
        let mut ffn = Vec::new();
        for layer in &config.layers {
            let MixerConfig::Attention(mixer) = &layer.mixer;
            let dims = AttentionDims::of(mixer);
            if !attention.iter().any(|(known, _)| *known == dims) {
                let buffers = AttentionBuffers {
                    q: backend.alloc("q", max_rows, dims.q)?,
                    k: backend.alloc("k", max_rows, dims.kv)?,
                    v: backend.alloc("v", max_rows, dims.kv)?,
                    out: backend.alloc("attention output", max_rows, dims.q)?,
                    out_outputs: backend.alloc("attention output rows", max_outputs, dims.q)?,
                };
                attention.push((dims, buffers));
            }
            let dims = FfnDims::of(&layer.ffn);
            if !ffn.iter().any(|(known, _)| *known == dims) {
                let buffers = match dims {
                    FfnDims::Dense(ffn_dim) => FfnBuffers::Dense(DenseBuffers {
                        gate: backend.alloc("ffn gate", max_rows, ffn_dim)?,
                        up: backend.alloc("ffn up", max_rows, ffn_dim)?,
                    }),
                    FfnDims::Moe { n_experts, n_used } => FfnBuffers::Moe(MoeBuffers {
                        router: backend.alloc("router logits", max_rows, n_experts)?,
                        routing: backend.alloc_routing(max_rows, n_used)?,
                    }),
                };
                ffn.push((dims, buffers));
            }
        }
        Ok(Self {
            hidden: backend.alloc("hidden", max_rows, config.embed_dim)?,
            hidden_outputs: backend.alloc("hidden outputs", max_outputs, config.embed_dim)?,
            normed: backend.alloc("normed", max_rows, config.embed_dim)?,
            branch: backend.alloc("branch", max_rows, config.embed_dim)?,
            logits: vocab_size
                .map(|vocab_size| backend.alloc("logits", max_outputs, vocab_size))
                .transpose()?,
            attention,
            ffn,
        })
    }

    /// The buffers for a layer's attention and FFN, with the shared ones.
    pub(crate) fn parts(&mut self, mixer: &AttentionConfig, ffn: &FfnConfig) -> Parts<'_, B> {
        let (mixer, ffn) = (AttentionDims::of(mixer), FfnDims::of(ffn));
        let attention = self.attention.iter_mut().find(|(dims, _)| *dims == mixer);
        let ffn = self.ffn.iter_mut().find(|(dims, _)| *dims == ffn);
        Parts {
            hidden: &mut self.hidden,
            hidden_outputs: &mut self.hidden_outputs,
            normed: &mut self.normed,
            branch: &mut self.branch,
            attention: &mut attention.expect("allocated for every layer").1,
            ffn: &mut ffn.expect("allocated for every layer").1,
        }
    }
}

/// Borrowed buffers of one layer.
pub(crate) struct Parts<'a, B: Backend> {
    pub(crate) hidden: &'a mut B::Buffer,
    pub(crate) hidden_outputs: &'a mut B::Buffer,
    pub(crate) normed: &'a mut B::Buffer,
    pub(crate) branch: &'a mut B::Buffer,
    pub(crate) attention: &'a mut AttentionBuffers<B>,
    pub(crate) ffn: &'a mut FfnBuffers<B>,
}
