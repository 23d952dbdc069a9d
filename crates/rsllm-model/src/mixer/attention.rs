//! Softmax attention over KV pages.

use rsllm_tensor::{AttentionParams, Backend, HeadProducts, Product, RopeTable, RowSet};

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
        let linears = [&weights.attn_q, &weights.attn_k, &weights.attn_v];
        let [of_q, of_k, of_v] = linears.map(|linear| (&linear.weight, linear.bias.as_ref()));
        let heads = HeadProducts {
            q: of_q,
            k: of_k,
            v: of_v,
            norms: [weights.attn_q_norm.as_ref(), weights.attn_k_norm.as_ref()],
            norm_eps: self.norm_eps,
            head_dim: self.config.head_dim,
            rope: self.rope,
            mixed_block: self.mixed_block,
        };
        // An adapter adds to a product before the next operation reads it, and a probe wants to see K.
        if probe.function.is_none() && linears.iter().all(|linear| linear.adapters.is_empty()) {
            backend.project_heads(q, kv, normed, &heads, [&mut *k, &mut *v])?;
        } else {
            let mut products = [
                Product::new(&mut *q, of_q),
                Product::new(&mut *k, of_k),
                Product::new(&mut *v, of_v),
            ];
            backend.matmul(&mut products, normed, RowSet::All)?;
            for (linear, dst) in linears.into_iter().zip([&mut *q, &mut *k, &mut *v]) {
                apply_adapters(backend, linear, dst, normed, RowSet::All)?;
            }
            backend.finish_heads([&mut *q, &mut *k, &mut *v], kv, &heads)?;
            for (name, x, n_heads) in [
                ("q", &*q, self.config.n_heads),
                ("k", &*k, self.config.n_kv_heads),
            ] {
                let width = n_heads * self.config.head_dim;
                probe.rows(backend, name, self.layer, x, width)?;
            }
        }
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
