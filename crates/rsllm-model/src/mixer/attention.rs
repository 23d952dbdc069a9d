//! Softmax attention over KV pages.

use rsllm_tensor::{AttentionParams, Backend, Product, RopeTable, RowSet};

use crate::config::AttentionConfig;
use crate::decoder::apply_adapters;
use crate::error::ModelError;
use crate::probe::Probe;
use crate::weights::AttentionWeights;
use crate::workspace::AttentionBuffers;

/// One layer's attention, with what it borrows.
pub(crate) struct Attention<'a, B: Backend> {
    pub(crate) config: &'a AttentionConfig,
    pub(crate) weights: &'a AttentionWeights<B>,
    pub(crate) norm_eps: f32,
    pub(crate) rope: RopeTable,
    /// See [`rsllm_tensor::KvType::mixed_block`].
    pub(crate) mixed_block: Option<usize>,
    pub(crate) layer: usize,
}

impl<B: Backend> Attention<'_, B> {
    /// `buffers.out = attention(normed)` before the output projection; stores K and V of the step's rows.
    pub(crate) fn forward(
        &self,
        backend: &mut B,
        buffers: &mut AttentionBuffers<B>,
        normed: &B::Buffer,
        kv: &mut B::Kv,
        probe: &mut Probe,
    ) -> Result<(), ModelError> {
        let AttentionBuffers { q, k, v, out, .. } = buffers;
        let weights = self.weights;
        backend.matmul(
            &mut [
                Product {
                    dst: q,
                    weight: &weights.attn_q.weight,
                    bias: weights.attn_q.bias.as_ref(),
                },
                Product {
                    dst: k,
                    weight: &weights.attn_k.weight,
                    bias: weights.attn_k.bias.as_ref(),
                },
                Product {
                    dst: v,
                    weight: &weights.attn_v.weight,
                    bias: weights.attn_v.bias.as_ref(),
                },
            ],
            normed,
            RowSet::All,
        )?;
        apply_adapters(backend, &weights.attn_q, q, normed, RowSet::All)?;
        apply_adapters(backend, &weights.attn_k, k, normed, RowSet::All)?;
        apply_adapters(backend, &weights.attn_v, v, normed, RowSet::All)?;
        if let Some(norm) = &weights.attn_q_norm {
            backend.rms_norm_heads(q, norm, self.norm_eps)?;
        }
        if let Some(norm) = &weights.attn_k_norm {
            backend.rms_norm_heads(k, norm, self.norm_eps)?;
        }
        backend.rope(q, self.config.head_dim, self.rope)?;
        backend.rope(k, self.config.head_dim, self.rope)?;
        probe.rows(
            backend,
            "q",
            self.layer,
            q,
            self.config.n_heads * self.config.head_dim,
        )?;
        probe.rows(
            backend,
            "k",
            self.layer,
            k,
            self.config.n_kv_heads * self.config.head_dim,
        )?;
        // Scores do not change when Q and K are mixed alike, and what is mixed in V is undone in the sum.
        if let Some(block) = self.mixed_block {
            for x in [&mut *q, &mut *k, &mut *v] {
                backend.hadamard(x, block)?;
            }
        }
        backend.kv_store(kv, k, v)?;
        let params = AttentionParams {
            n_heads: self.config.n_heads,
            scale: self.config.scale,
            softcap: self.config.softcap,
            window: self.config.window,
        };
        backend.attention(out, q, kv, &params)?;
        if let Some(block) = self.mixed_block {
            backend.hadamard(out, block)?;
        }
        Ok(())
    }
}
