//! The one forward loop: embed, layers, norm, output.
//!
//! A decoder is a list of segments, each some layers on one backend. The hidden state crosses a segment's border
//! through host memory; a model on one device is one segment and crosses nothing.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use rsllm_tensor::{
    Backend, BackendError, KvLayout, NO_PAGE, PageSlot, Product, RopeTable, RowSet, Step,
};

use crate::config::{DecoderConfig, LayerConfig, MixerConfig};
use crate::error::ModelError;
use crate::ffn::Ffn;
use crate::kv_cache::LayerState;
use crate::mixer::attention::Attention;
use crate::probe::{Probe, ProbeFn};
use crate::weights::{LayerWeights, Linear};
use crate::workspace::Workspace;

/// Some consecutive layers on one device.
pub(crate) trait Segment: Send {
    /// Layers of the model that live here.
    fn layers(&self) -> Range<usize>;

    /// Run `layers`, which live here, over the rows of `step`. `border` `[rows, embed_dim]` comes in unless they are the
    /// first of a segment that embeds, and goes out unless they are the model's last, which produce what is wanted.
    fn forward(
        &mut self,
        step: &Step<'_>,
        layers: Range<usize>,
        border: &mut [f32],
        wanted: &mut Wanted<'_>,
        abort: &AtomicBool,
        probe: Option<&mut ProbeFn>,
    ) -> Result<(), ModelError>;

    /// Copy the pages of a slot in every layer of this segment.
    fn copy_slot(&mut self, from: PageSlot, to: PageSlot) -> Result<(), ModelError>;

    /// Append the bytes of a slot's pages, layer by layer.
    fn export_slot(&mut self, dst: &mut Vec<u8>, slot: PageSlot) -> Result<(), ModelError>;

    /// Fill a slot's pages from exported bytes; returns the rest.
    fn import_slot<'a>(&mut self, slot: PageSlot, src: &'a [u8]) -> Result<&'a [u8], ModelError>;

    /// Bytes of buffers, KV and scratch.
    fn allocated_bytes(&self) -> u64;
}

/// What a forward pass is for.
#[derive(Debug)]
pub enum Wanted<'a> {
    /// Logits of the output rows, `[outputs, vocab_size]`.
    Logits(&'a mut [f32]),
    /// The normed hidden state of the output rows, `[outputs, embed_dim]`.
    Embeddings(&'a mut [f32]),
}

/// The first segment's table and the last one's output.
pub(crate) struct Output<B: Backend> {
    pub(crate) output_norm: B::Weight,
    pub(crate) output: Linear<B>,
}

pub(crate) struct BackendSegment<B: Backend> {
    pub(crate) backend: B,
    pub(crate) config: DecoderConfig,
    /// Layers of the model that live here.
    pub(crate) layers: Range<usize>,
    pub(crate) weights: Vec<LayerWeights<B>>,
    pub(crate) states: Vec<LayerState<B>>,
    /// Shape of each state's store.
    pub(crate) layouts: Vec<KvLayout>,
    pub(crate) ropes: Vec<RopeTable>,
    pub(crate) token_embd: Option<B::Weight>,
    pub(crate) output: Option<Output<B>>,
    pub(crate) workspace: Workspace<B>,
}

impl<B: Backend> Segment for BackendSegment<B> {
    fn layers(&self) -> Range<usize> {
        self.layers.clone()
    }

    fn forward(
        &mut self,
        step: &Step<'_>,
        layers: Range<usize>,
        border: &mut [f32],
        wanted: &mut Wanted<'_>,
        abort: &AtomicBool,
        probe: Option<&mut ProbeFn>,
    ) -> Result<(), ModelError> {
        let embed_dim = self.config.embed_dim;
        let mut probe = Probe {
            function: probe,
            n_rows: step.n_rows(),
        };
        self.backend.begin_step(step)?;
        match &self.token_embd {
            Some(table) if layers.start == self.layers.start => {
                self.backend.embed_rows(
                    &mut self.workspace.hidden,
                    table,
                    self.config.embedding_scale,
                )?;
            }
            _ => self.backend.upload(&mut self.workspace.hidden, border)?,
        }
        if layers.start == 0 {
            probe.rows(
                &mut self.backend,
                "embed",
                0,
                &self.workspace.hidden,
                embed_dim,
            )?;
        }
        let is_last = self.output.is_some() && layers.end == self.layers.end;
        for layer in layers.clone() {
            if abort.load(Ordering::Relaxed) {
                return Err(ModelError::Aborted);
            }
            // Only the rows whose logits are wanted need the rest of the last layer.
            let last = is_last && layer + 1 == layers.end;
            let rows = if last { RowSet::Outputs } else { RowSet::All };
            self.layer(layer - self.layers.start, rows, &mut probe)?;
            if last {
                probe.n_rows = step.outputs.len();
            }
            let out = if last {
                &self.workspace.hidden_outputs
            } else {
                &self.workspace.hidden
            };
            probe.rows(&mut self.backend, "l_out", layer, out, embed_dim)?;
        }
        if let (true, Some(output), Some(buffer)) =
            (is_last, &self.output, &mut self.workspace.logits)
        {
            if !step.outputs.is_empty() {
                let (hidden, normed) = (&self.workspace.hidden_outputs, &mut self.workspace.normed);
                self.backend.rms_norm(
                    normed,
                    hidden,
                    &output.output_norm,
                    self.config.norm_eps,
                    RowSet::Outputs,
                )?;
                probe.rows(&mut self.backend, "result_norm", 0, normed, embed_dim)?;
                match wanted {
                    Wanted::Embeddings(rows) => self.backend.download(rows, normed)?,
                    Wanted::Logits(logits) => {
                        let (linear, backend) = (&output.output, &mut self.backend);
                        let product = Product {
                            dst: &mut *buffer,
                            weight: &linear.weight,
                            bias: linear.bias.as_ref(),
                        };
                        let cap = self.config.logit_softcap;
                        if cap.is_none() && linear.adapters.is_empty() {
                            backend.matmul_to_host(logits, product, normed, RowSet::Outputs)?;
                        } else {
                            backend.matmul(&mut [product], normed, RowSet::Outputs)?;
                            apply_adapters(backend, linear, buffer, normed, RowSet::Outputs)?;
                            if let Some(cap) = cap {
                                backend.softcap(buffer, cap, RowSet::Outputs)?;
                            }
                            backend.download(logits, buffer)?;
                        }
                    }
                }
            }
        } else {
            self.backend.download(border, &self.workspace.hidden)?;
        }
        self.backend.end_step()?;
        Ok(())
    }

    fn copy_slot(&mut self, from: PageSlot, to: PageSlot) -> Result<(), ModelError> {
        for (local, state) in self.states.iter_mut().enumerate() {
            let group = state.group();
            if from.of(group) != NO_PAGE && to.of(group) != NO_PAGE {
                let kv = state.kv_mut(self.layers.start + local)?;
                self.backend.copy_page(kv, from.of(group), to.of(group))?;
            }
        }
        Ok(())
    }

    fn export_slot(&mut self, dst: &mut Vec<u8>, slot: PageSlot) -> Result<(), ModelError> {
        for (local, state) in self.states.iter_mut().enumerate() {
            let page = slot.of(state.group());
            if page != NO_PAGE {
                let kv = state.kv_mut(self.layers.start + local)?;
                self.backend.export_page(dst, kv, page)?;
            }
        }
        Ok(())
    }

    fn import_slot<'a>(
        &mut self,
        slot: PageSlot,
        mut src: &'a [u8],
    ) -> Result<&'a [u8], ModelError> {
        for (local, state) in self.states.iter_mut().enumerate() {
            let page = slot.of(state.group());
            if page != NO_PAGE {
                let n_bytes = 2 * self.layouts[local].page_bytes();
                let (bytes, rest) = src.split_at_checked(n_bytes).ok_or(ModelError::PageBytes {
                    expected: n_bytes,
                    found: src.len(),
                })?;
                let kv = state.kv_mut(self.layers.start + local)?;
                self.backend.import_page(kv, page, bytes)?;
                src = rest;
            }
        }
        Ok(src)
    }

    fn allocated_bytes(&self) -> u64 {
        self.backend.allocated_bytes()
    }
}

impl<B: Backend> BackendSegment<B> {
    /// One layer; with [`RowSet::Outputs`] everything after attention is done for the output rows alone.
    fn layer(
        &mut self,
        local: usize,
        rows: RowSet,
        probe: &mut Probe<'_>,
    ) -> Result<(), ModelError> {
        let index = self.layers.start + local;
        let (embed_dim, eps) = (self.config.embed_dim, self.config.norm_eps);
        let LayerConfig {
            mixer: MixerConfig::Attention(config),
            ffn,
            ..
        } = &self.config.layers[index];
        let (weights, backend) = (&self.weights[local], &mut self.backend);
        let parts = self.workspace.parts(config, ffn);
        let (normed, branch) = (parts.normed, parts.branch);

        backend.rms_norm(normed, parts.hidden, &weights.attn_norm, eps, RowSet::All)?;
        probe.rows(backend, "attn_norm", index, normed, embed_dim)?;
        let rope = self.ropes[config.rope];
        let layout = &self.layouts[local];
        let attention = Attention {
            config,
            weights: &weights.attention,
            norm_eps: eps,
            rope,
            mixed_block: layout.kv_type.mixed_block(layout.head_dim),
            layer: index,
        };
        let kv = self.states[local].kv_mut(index)?;
        attention.forward(backend, parts.attention, normed, kv, probe)?;
        probe.rows(
            backend,
            "kqv_out",
            index,
            &parts.attention.out,
            config.n_heads * config.head_dim,
        )?;

        let (attended, hidden) = match rows {
            RowSet::All => (&parts.attention.out, parts.hidden),
            RowSet::Outputs => {
                backend.gather_outputs(&mut parts.attention.out_outputs, &parts.attention.out)?;
                backend.gather_outputs(parts.hidden_outputs, parts.hidden)?;
                (&parts.attention.out_outputs, parts.hidden_outputs)
            }
        };
        let attn_output = &weights.attention.attn_output;
        let product = Product::new(
            &mut *branch,
            (&attn_output.weight, attn_output.bias.as_ref()),
        );
        if weights.post_attention_norm.is_none() && attn_output.adapters.is_empty() {
            backend.matmul_add(hidden, product, attended, rows)?;
        } else {
            backend.matmul(&mut [product], attended, rows)?;
            apply_adapters(backend, attn_output, branch, attended, rows)?;
            add_branch(
                backend,
                hidden,
                branch,
                weights.post_attention_norm.as_ref(),
                eps,
                rows,
            )?;
        }

        backend.rms_norm(normed, hidden, &weights.ffn_norm, eps, rows)?;
        let ffn = Ffn {
            config: ffn,
            weights: &weights.ffn,
        };
        match &weights.post_ffw_norm {
            None => ffn.add(backend, parts.ffn, [hidden, branch], normed, rows)?,
            Some(norm) => {
                ffn.forward(backend, parts.ffn, branch, normed, rows)?;
                add_branch(backend, hidden, branch, Some(norm), eps, rows)?;
            }
        }
        Ok(())
    }
}

/// `hidden += branch`, which is normed first where there is a norm for it.
fn add_branch<B: Backend>(
    backend: &mut B,
    hidden: &mut B::Buffer,
    branch: &mut B::Buffer,
    norm: Option<&B::Weight>,
    eps: f32,
    rows: RowSet,
) -> Result<(), BackendError> {
    if let Some(norm) = norm {
        backend.rms_norm_in_place(branch, norm, eps, rows)?;
    }
    backend.add(hidden, branch, rows)
}

/// Add what the adapters of a linear layer contribute for the sequences that use them.
pub(crate) fn apply_adapters<B: Backend>(
    backend: &mut B,
    linear: &Linear<B>,
    dst: &mut B::Buffer,
    x: &B::Buffer,
    rows: RowSet,
) -> Result<(), BackendError> {
    for adapter in &linear.adapters {
        backend.low_rank_add(dst, x, adapter, rows)?;
    }
    Ok(())
}
