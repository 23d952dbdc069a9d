//! A loaded model: configuration, segments, page pool.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use rsllm_gguf::Gguf;
use rsllm_tensor::{
    Backend, BackendError, KvLayout, KvType, PageGroup, PageSlot, Step, StepLimits,
};

use crate::arch::decoder_config;
use crate::config::{DecoderConfig, MixerConfig};
use crate::decoder::{BackendSegment, Output, Segment, Wanted};
use crate::error::ModelError;
use crate::kv_cache::{LayerState, PAGE_LEN, PagePools};
use crate::probe::ProbeFn;
use crate::weights::{Binder, WeightBytes, layers_found};
use crate::workspace::Workspace;

/// What is reserved at load time.
#[derive(Debug, Clone, Copy)]
pub struct ModelOptions {
    /// Tokens of KV for all sequences together; rounded up to whole pages.
    pub kv_tokens: usize,
    /// Element type of K and V.
    pub kv_type: KvType,
    /// Rows of a step.
    pub max_rows: usize,
    /// Rows of a step whose logits are wanted.
    pub max_outputs: usize,
    /// Sequences of a step.
    pub max_sequences: usize,
}

/// Memory of a loaded model, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelMemory {
    /// Weights, in the mapping.
    pub weights: WeightBytes,
    /// KV pages; committed as they are written.
    pub kv: u64,
    /// Activations and scratch.
    pub scratch: u64,
}

/// A model ready to run, on the devices its segments live on.
pub struct Model {
    config: DecoderConfig,
    vocab_size: usize,
    segments: Vec<Box<dyn Segment>>,
    pools: PagePools,
    /// Hidden state between segments `[max_rows, embed_dim]`; empty with one segment.
    border: Vec<f32>,
    /// Hidden state of the step that rests between layers `[max_rows, embed_dim]`.
    resting: Vec<f32>,
    weights: WeightBytes,
    kv_bytes: u64,
    unused_tensors: Vec<String>,
    probe: Option<ProbeFn>,
}

impl Model {
    /// The decoder a file describes, without loading it.
    pub fn config_of(gguf: &Gguf) -> Result<DecoderConfig, ModelError> {
        decoder_config(gguf.metadata(), layers_found(gguf))
    }

    /// Bind every layer of a file to `backend`.
    pub fn load<B: Backend + 'static>(
        gguf: &Gguf,
        mut backend: B,
        options: &ModelOptions,
    ) -> Result<Self, ModelError> {
        let mut config = Self::config_of(gguf)?;
        let mut binder = Binder::new(gguf, &mut backend, config.architecture);
        let (token_embd, vocab_size) = binder.embedding(config.embed_dim)?;
        bind_rope_factors(&mut config, &mut binder)?;
        let weights = (config.layers.iter().enumerate())
            .map(|(index, layer)| binder.layer(index, &config, layer))
            .collect::<Result<Vec<_>, _>>()?;
        let output_norm = binder.vector("output_norm.weight", config.embed_dim)?;
        let output = Output {
            output_norm,
            output: binder.output(config.embed_dim, vocab_size)?,
        };
        let (weight_bytes, unused_tensors) = (binder.bytes, binder.unused());

        let pages = PageCounts::of(&config, options);
        let layouts: Vec<KvLayout> = (config.layers.iter())
            .map(|layer| kv_layout(&layer.mixer, options.kv_type, pages))
            .collect();
        let mut states = Vec::with_capacity(config.layers.len());
        for (layer, layout) in config.layers.iter().zip(&layouts) {
            let MixerConfig::Attention(attention) = &layer.mixer;
            let kv = backend.alloc_kv(layout)?;
            states.push(match attention.window {
                Some(window) => LayerState::Window { kv, window },
                None => LayerState::Pages(kv),
            });
        }
        let kv_bytes = layouts.iter().map(KvLayout::bytes).sum();
        let ropes = config
            .ropes
            .iter()
            .map(|rope| backend.bind_rope(rope.params.clone()))
            .collect::<Result<_, _>>()?;
        let (max_rows, max_outputs) = (options.max_rows, options.max_outputs);
        let workspace = Workspace::new(
            &mut backend,
            &config,
            Some(vocab_size),
            max_rows,
            max_outputs,
        )?;
        backend.prepare(&step_limits(&config, options))?;
        let segment = BackendSegment {
            backend,
            config: config.clone(),
            layers: 0..config.layers.len(),
            weights,
            states,
            layouts,
            ropes,
            token_embd: Some(token_embd),
            output: Some(output),
            workspace,
        };
        Ok(Self {
            vocab_size,
            segments: vec![Box::new(segment)],
            pools: PagePools::new(pages.full, pages.window),
            border: Vec::new(),
            resting: vec![0.0; max_rows * config.embed_dim],
            config,
            weights: weight_bytes,
            kv_bytes,
            unused_tensors,
            probe: None,
        })
    }

    /// The decoder.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Rows of the embedding table, values of a row of logits.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The pages of all sequences.
    pub fn pools(&mut self) -> &mut PagePools {
        &mut self.pools
    }

    /// Tokens a windowed layer sees, of the layer that sees most; `None` without windowed layers.
    pub fn window(&self) -> Option<usize> {
        widest_window(&self.config)
    }

    /// Copy the pages of `from` to those of `to`, in every layer that has both.
    pub fn copy_slot(&mut self, from: PageSlot, to: PageSlot) -> Result<(), ModelError> {
        self.segments
            .iter_mut()
            .try_for_each(|segment| segment.copy_slot(from, to))
    }

    /// Append the contents of a slot's pages to `dst`.
    pub fn export_slot(&mut self, dst: &mut Vec<u8>, slot: PageSlot) -> Result<(), ModelError> {
        self.segments
            .iter_mut()
            .try_for_each(|segment| segment.export_slot(dst, slot))
    }

    /// Fill a slot's pages from what [`Model::export_slot`] gave for a slot with the same groups, of a model loaded
    /// from the same file with the same KV type; returns the bytes behind it.
    pub fn import_slot<'a>(
        &mut self,
        slot: PageSlot,
        src: &'a [u8],
    ) -> Result<&'a [u8], ModelError> {
        self.segments
            .iter_mut()
            .try_fold(src, |rest, segment| segment.import_slot(slot, rest))
    }

    /// Tensors of the file that the family has no use for.
    pub fn unused_tensors(&self) -> &[String] {
        &self.unused_tensors
    }

    /// What the model occupies.
    pub fn memory(&self) -> ModelMemory {
        let allocated: u64 = self
            .segments
            .iter()
            .map(|segment| segment.allocated_bytes())
            .sum();
        let resting = size_of_val(&self.resting[..]);
        ModelMemory {
            weights: self.weights,
            kv: self.kv_bytes,
            scratch: allocated.saturating_sub(self.kv_bytes) + resting as u64,
        }
    }

    /// Show every intermediate of coming steps to `probe`; for comparing layers with a reference.
    pub fn set_probe(&mut self, probe: Option<ProbeFn>) {
        self.probe = probe;
    }

    /// Compute a step: K and V of all its rows go to their pages, what is wanted of its output rows to `wanted`. Stops
    /// between layers with [`ModelError::Aborted`] once `abort` is set; the step's rows are then undefined.
    pub fn forward(
        &mut self,
        step: &Step<'_>,
        mut wanted: Wanted<'_>,
        abort: &AtomicBool,
    ) -> Result<(), ModelError> {
        let border_len = if self.segments.len() > 1 {
            step.n_rows() * self.config.embed_dim
        } else {
            0
        };
        for segment in &mut self.segments {
            let border = &mut self.border[..border_len];
            let probe = self.probe.as_mut();
            segment.forward(step, segment.layers(), border, &mut wanted, abort, probe)?;
        }
        Ok(())
    }

    /// Compute some layers of a step, which rests behind the last of them: the same step's next layers may be computed
    /// after other steps. One step rests at a time; that which begins with layer 0 takes the place of one that rested.
    /// Its sequences' pages must be left as they are. What is wanted comes with the last layer; else as
    /// [`Self::forward`].
    pub fn forward_part(
        &mut self,
        step: &Step<'_>,
        layers: Range<usize>,
        mut wanted: Wanted<'_>,
        abort: &AtomicBool,
    ) -> Result<(), ModelError> {
        let border = &mut self.resting[..step.n_rows() * self.config.embed_dim];
        for segment in &mut self.segments {
            let here = segment.layers();
            let part = layers.start.max(here.start)..layers.end.min(here.end);
            if !part.is_empty() {
                let probe = self.probe.as_mut();
                segment.forward(step, part, border, &mut wanted, abort, probe)?;
            }
        }
        Ok(())
    }

    /// Layers.
    pub fn n_layers(&self) -> usize {
        self.config.layers.len()
    }
}

/// Pages of each group.
#[derive(Debug, Clone, Copy)]
struct PageCounts {
    full: usize,
    window: usize,
}

impl PageCounts {
    /// Full layers hold `kv_tokens`. Windowed layers hold, for each running sequence and for as many cached ones, a
    /// window; the rows of a step; and the partly filled pages at both ends.
    fn of(config: &DecoderConfig, options: &ModelOptions) -> Self {
        let full = options.kv_tokens.div_ceil(PAGE_LEN);
        let all_windowed = config
            .layers
            .iter()
            .all(|layer| window(&layer.mixer).is_some());
        let window = widest_window(config).map_or(0, |window| {
            let of_sequence = window.div_ceil(PAGE_LEN) + 2;
            let of_step = options.max_rows.div_ceil(PAGE_LEN);
            full.min(2 * options.max_sequences * of_sequence + of_step)
        });
        Self {
            full: if all_windowed { 0 } else { full },
            window,
        }
    }
}

fn window(mixer: &MixerConfig) -> Option<usize> {
    match mixer {
        MixerConfig::Attention(attention) => attention.window,
    }
}

fn widest_window(config: &DecoderConfig) -> Option<usize> {
    config
        .layers
        .iter()
        .filter_map(|layer| window(&layer.mixer))
        .max()
}

fn kv_layout(mixer: &MixerConfig, kv_type: KvType, pages: PageCounts) -> KvLayout {
    let MixerConfig::Attention(attention) = mixer;
    let (group, n_pages) = match attention.window {
        Some(_) => (PageGroup::Window, pages.window),
        None => (PageGroup::Full, pages.full),
    };
    KvLayout {
        n_pages,
        page_len: PAGE_LEN,
        n_kv_heads: attention.n_kv_heads,
        head_dim: attention.head_dim,
        kv_type,
        group,
    }
}

/// Bytes of KV that [`Model::load`] takes with these options: pages of all layers, those of windowed ones included, which
/// hold no more than they need. Grows with [`ModelOptions::kv_tokens`]. Fails when a layer's heads do not fit the type.
pub fn kv_bytes(config: &DecoderConfig, options: &ModelOptions) -> Result<u64, ModelError> {
    let pages = PageCounts::of(config, options);
    let of_layer = |mixer: &MixerConfig| {
        let MixerConfig::Attention(attention) = mixer;
        let (kv_type, head_dim) = (options.kv_type, attention.head_dim);
        match kv_type.row_bytes(head_dim) {
            Some(_) => Ok(kv_layout(mixer, kv_type, pages).bytes()),
            None => Err(ModelError::from(BackendError::UnsupportedKvType {
                kv_type: kv_type.name(),
                head_dim,
            })),
        }
    };
    config
        .layers
        .iter()
        .map(|layer| of_layer(&layer.mixer))
        .sum()
}

/// Take frequency factors from `rope_freqs.weight` where the family uses them.
fn bind_rope_factors<B: Backend>(
    config: &mut DecoderConfig,
    binder: &mut Binder<'_, B>,
) -> Result<(), ModelError> {
    for rope in config.ropes.iter_mut().filter(|rope| rope.uses_rope_freqs) {
        if let Some(factors) = binder.optional_values("rope_freqs.weight", rope.params.n_rot / 2)? {
            rope.params.factors = factors;
        }
    }
    Ok(())
}

fn step_limits(config: &DecoderConfig, options: &ModelOptions) -> StepLimits {
    let attention = config.layers.iter().map(|layer| match &layer.mixer {
        MixerConfig::Attention(attention) => attention,
    });
    StepLimits {
        max_rows: options.max_rows,
        max_outputs: options.max_outputs,
        max_sequences: options.max_sequences,
        // Sequences may share pages, so together they may name more than there are.
        max_pages: options.max_sequences * options.kv_tokens.div_ceil(PAGE_LEN),
        max_sequence_pages: options.kv_tokens.div_ceil(PAGE_LEN),
        max_heads: attention.clone().map(|a| a.n_heads).max().unwrap_or(0),
        max_query_width: attention.map(|a| a.n_heads * a.head_dim).max().unwrap_or(0),
    }
}
