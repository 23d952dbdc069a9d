//! FFNs: what happens to each token alone.

mod dense;
mod moe;

use rsllm_tensor::{Backend, RowSet};

use crate::config::FfnConfig;
use crate::error::ModelError;
use crate::weights::FfnWeights;
use crate::workspace::{DenseBuffers, FfnBuffers};

/// One layer's FFN.
pub(crate) struct Ffn<'a, B: Backend> {
    pub(crate) config: &'a FfnConfig,
    pub(crate) weights: &'a FfnWeights<B>,
}

impl<B: Backend> Ffn<'_, B> {
    /// `dst += ffn(x)`, all `[rows, embed_dim]`; `branch` is scratch.
    pub(crate) fn add(
        &self,
        backend: &mut B,
        buffers: &mut FfnBuffers<B>,
        [dst, branch]: [&mut B::Buffer; 2],
        x: &B::Buffer,
        rows: RowSet,
    ) -> Result<(), ModelError> {
        if let (
            FfnConfig::Dense { activation, .. },
            FfnWeights::Dense(weights),
            FfnBuffers::Dense(DenseBuffers { gate, up }),
        ) = (self.config, self.weights, &mut *buffers)
            && let Some(ffn) = dense::fused(weights, *activation)
        {
            return Ok(backend.gated_ffn_add(dst, branch, x, &ffn, [gate, up], rows)?);
        }
        self.forward(backend, buffers, branch, x, rows)?;
        Ok(backend.add(dst, branch, rows)?)
    }

    /// `dst = ffn(x)`; both `[rows, embed_dim]`.
    pub(crate) fn forward(
        &self,
        backend: &mut B,
        buffers: &mut FfnBuffers<B>,
        dst: &mut B::Buffer,
        x: &B::Buffer,
        rows: RowSet,
    ) -> Result<(), ModelError> {
        match (self.config, self.weights, buffers) {
            (
                FfnConfig::Dense { activation, .. },
                FfnWeights::Dense(weights),
                FfnBuffers::Dense(buffers),
            ) => dense::forward(backend, weights, *activation, buffers, dst, x, rows),
            (
                FfnConfig::Moe {
                    activation, route, ..
                },
                FfnWeights::Moe(weights),
                FfnBuffers::Moe(buffers),
            ) => moe::forward(
                backend,
                weights,
                (*activation, route),
                buffers,
                dst,
                x,
                rows,
            ),
            (FfnConfig::Dense { .. } | FfnConfig::Moe { .. }, ..) => {
                unreachable!("weights and buffers are made from this config")
            }
        }
    }
}
