//! Scaled dot-product attention over KV pages, read in place.
//!
//! Both forms walk a sequence's pages in order with an online softmax. Decode: one query row at a time, all heads that
//! share a K/V head together; a long context is cut at fixed positions and the parts are merged in order, so the result
//! does not depend on how many threads took part. Prefill: up to [`LANES`] (token, head) pairs that share a K/V head lie
//! in lanes; a page is unpacked once for all of them and both products run in the matrix kernel. A page that a lane may
//! not see leaves that lane untouched, so the cut of a prompt into chunks does not matter either. On a tile unit the same
//! products go through tiles, unless K and V are f32.

mod decode;
mod prefill;
mod tiles;

use rsllm_quant::GgmlType;
use rsllm_tensor::{AttentionParams, BackendError, KvLayout, KvType, StepLimits};

use crate::kernels::{Attend, Dot, DotRowsF32, Kernels, Unpack};
use crate::kv::CpuKv;
use crate::memory::{Aligned, Allocator};
use crate::step_state::StepState;
use crate::threads::{ThreadPool, WorkerPanicked};

/// (token, head) pairs of a prefill block; a multiple of every table's `gemm_columns`.
const LANES: usize = 128;
/// Tokens of a part of the context in decode attention. Fixed: it decides the order of summation.
const SPLIT_LEN: usize = 512;
/// A finite stand-in for -inf as the running maximum, so that no subtraction gives NaN.
const NO_SCORE: f32 = -1e30;

/// Scratch reserved at load time.
pub(crate) struct AttentionScratch {
    threads: Vec<ThreadScratch>,
    /// For prefill rows on tiles; empty without a tile unit.
    tiles: Vec<tiles::TileScratch>,
    /// Partial results of decode attention.
    partials: Aligned<f32>,
    /// Rows of the running group of decode rows.
    rows: Vec<decode::DecodeRow>,
}

struct ThreadScratch {
    /// `[head_dim, LANES]` packed queries, then as many accumulators.
    queries: Aligned<f32>,
    accumulators: Aligned<f32>,
    /// `[page_len, head_dim]` unpacked K or V.
    page: Aligned<f32>,
    /// Scores `[group, page_len]` of a decode row.
    decode_scores: Aligned<f32>,
    /// `[page_len, LANES]`.
    scores: Aligned<f32>,
    /// Maximum, sum, correction and query index of each lane.
    maxima: Aligned<f32>,
    sums: Aligned<f32>,
    corrections: Aligned<f32>,
}

impl AttentionScratch {
    pub(crate) fn new(
        allocator: &mut Allocator,
        kernels: &Kernels,
        n_threads: usize,
        layouts: &[KvLayout],
        limits: &StepLimits,
    ) -> Result<Self, BackendError> {
        let head_dim = layouts.iter().map(|l| l.head_dim).max().unwrap_or(0);
        let page_len = layouts.iter().map(|l| l.page_len).max().unwrap_or(0);
        let threads = (0..n_threads)
            .map(|_| {
                Ok(ThreadScratch {
                    queries: Aligned::new(allocator, "attention queries", head_dim * LANES)?,
                    accumulators: Aligned::new(
                        allocator,
                        "attention accumulators",
                        head_dim * LANES,
                    )?,
                    page: Aligned::new(allocator, "attention page", page_len * head_dim)?,
                    decode_scores: Aligned::new(
                        allocator,
                        "attention scores",
                        page_len * limits.max_heads,
                    )?,
                    scores: Aligned::new(allocator, "attention scores", page_len * LANES)?,
                    maxima: Aligned::new(allocator, "attention maxima", LANES)?,
                    sums: Aligned::new(allocator, "attention sums", LANES)?,
                    corrections: Aligned::new(allocator, "attention corrections", LANES)?,
                })
            })
            .collect::<Result<_, BackendError>>()?;
        // One row over the longest context always fits, as do a short row each; more go in groups.
        let splits = (limits.max_sequence_pages * page_len)
            .div_ceil(SPLIT_LEN)
            .max(1)
            + limits.max_sequences;
        let partials = splits * (limits.max_query_width + 2 * limits.max_heads);
        let tiles = match kernels.tiles {
            Some(_) => (0..n_threads)
                .map(|_| tiles::TileScratch::new(allocator, head_dim, page_len))
                .collect::<Result<_, _>>()?,
            None => Vec::new(),
        };
        Ok(Self {
            threads,
            tiles,
            partials: Aligned::new(allocator, "attention partials", partials)?,
            rows: Vec::with_capacity(limits.max_rows),
        })
    }
}

/// The parts of the backend attention works with.
pub(crate) struct Attention<'a> {
    pub(crate) kernels: &'a Kernels,
    pub(crate) pool: &'a mut ThreadPool,
    pub(crate) scratch: &'a mut AttentionScratch,
    pub(crate) step: &'a StepState,
    pub(crate) kv: &'a CpuKv,
    pub(crate) params: &'a AttentionParams,
}

impl Attention<'_> {
    /// `dst` and `q` `[rows, n_heads * head_dim]`.
    pub(crate) fn run(&mut self, dst: &mut [f32], q: &[f32]) -> Result<(), WorkerPanicked> {
        if self.step.counts.n_prefill > 0 {
            match self.kernels.tiles {
                // Whoever keeps K and V in f32 wants more than bf16 holds.
                Some(tiles) if self.kv.layout.kv_type != KvType::F32 => {
                    self.prefill_tiles(tiles, dst, q)?;
                }
                _ => self.prefill(dst, q)?,
            }
        }
        if self.step.counts.n_prefill < self.step.counts.n_rows {
            self.decode(dst, q)?;
        }
        Ok(())
    }

    /// The kernels that read K and V of this store.
    fn kv_kernels(&self) -> KvKernels {
        let layout = &self.kv.layout;
        let ty = layout.kv_type.ggml_type();
        KvKernels {
            // Quantised keys are unpacked in cache: scores of int8 queries would be noisier than the keys.
            attend: self.kernels.attend(ty, layout.head_dim),
            attend_unpacked: self.kernels.attend(GgmlType::F32, layout.head_dim),
            dot: match self.kernels.dot(ty) {
                Some(Dot::F32(dot)) => Some(dot),
                Some(Dot::Int8(_)) | None => None,
            },
            unpack: self
                .kernels
                .unpack(ty)
                .expect("every KV type has a kernel in the scalar table"),
            dot_f32: self.kernels.dot_f32,
        }
    }
}

/// How one element type is read.
#[derive(Clone, Copy)]
struct KvKernels {
    /// Straight from the packed rows, for float types.
    attend: Option<Attend>,
    /// On unpacked rows.
    attend_unpacked: Option<Attend>,
    /// Of packed keys, for float types.
    dot: Option<DotRowsF32>,
    unpack: Unpack,
    dot_f32: DotRowsF32,
}

/// First position the token at `index` may see.
fn first_visible(index: usize, window: Option<usize>) -> usize {
    window.map_or(0, |window| (index + 1).saturating_sub(window))
}
