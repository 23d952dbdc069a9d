//! Scaled dot-product attention over KV pages, read in place.
//!
//! Both forms walk a sequence's pages in order with an online softmax. Decode: one query row at a time, all heads that
//! share a K/V head together; a long context is cut at fixed positions and the parts are merged in order, so the result
//! does not depend on how many threads took part. Prefill: up to [`LANES`] (token, head) pairs that share a K/V head lie
//! in lanes; a page is unpacked once for all of them and both products run in the matrix kernel. A page that a lane may
//! not see leaves that lane untouched, so the cut of a prompt into chunks does not matter either.

mod decode;
mod prefill;

use rsllm_tensor::{AttentionParams, BackendError, KvLayout, KvType, StepLimits};

use crate::kernels::{DotRowsF32, Kernels, Unpack};
use crate::kv::CpuKv;
use crate::memory::Aligned;
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
    /// Partial results of decode attention: `[slots, head_dim + 2]`.
    partials: Aligned<f32>,
}

struct ThreadScratch {
    /// `[head_dim, LANES]` packed queries, then as many accumulators.
    queries: Aligned<f32>,
    accumulators: Aligned<f32>,
    /// `[page_len, head_dim]` unpacked K or V, and V transposed.
    page: Aligned<f32>,
    page_transposed: Aligned<f32>,
    /// `[page_len, LANES]`.
    scores: Aligned<f32>,
    /// Maximum, sum, correction and query index of each lane.
    maxima: Aligned<f32>,
    sums: Aligned<f32>,
    corrections: Aligned<f32>,
}

impl AttentionScratch {
    pub(crate) fn new(
        n_threads: usize,
        layouts: &[KvLayout],
        limits: &StepLimits,
    ) -> Result<Self, BackendError> {
        let head_dim = layouts.iter().map(|l| l.head_dim).max().unwrap_or(0);
        let page_len = layouts.iter().map(|l| l.page_len).max().unwrap_or(0);
        let threads = (0..n_threads)
            .map(|_| {
                Ok(ThreadScratch {
                    queries: Aligned::new("attention queries", head_dim * LANES)?,
                    accumulators: Aligned::new("attention accumulators", head_dim * LANES)?,
                    page: Aligned::new("attention page", page_len * head_dim)?,
                    page_transposed: Aligned::new("attention page", page_len * head_dim)?,
                    scores: Aligned::new("attention scores", page_len * LANES)?,
                    maxima: Aligned::new("attention maxima", LANES)?,
                    sums: Aligned::new("attention sums", LANES)?,
                    corrections: Aligned::new("attention corrections", LANES)?,
                })
            })
            .collect::<Result<_, BackendError>>()?;
        // One row over the longest context always fits; more rows go in groups.
        let splits = (limits.max_pages * page_len).div_ceil(SPLIT_LEN).max(1);
        let partials = splits * (limits.max_query_width + 2 * limits.max_heads);
        Ok(Self {
            threads,
            partials: Aligned::new("attention partials", partials)?,
        })
    }

    pub(crate) fn bytes(&self) -> u64 {
        let per_thread = |t: &ThreadScratch| {
            t.queries.bytes()
                + t.accumulators.bytes()
                + t.page.bytes()
                + t.page_transposed.bytes()
                + t.scores.bytes()
                + t.maxima.bytes()
                + t.sums.bytes()
                + t.corrections.bytes()
        };
        self.partials.bytes() + self.threads.iter().map(per_thread).sum::<u64>()
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
            self.prefill(dst, q)?;
        }
        if self.step.counts.n_prefill < self.step.counts.n_rows {
            self.decode(dst, q)?;
        }
        Ok(())
    }

    fn kv_kernels(&self) -> (DotRowsF32, Unpack) {
        match self.kv.layout.kv_type {
            KvType::F32 => (self.kernels.dot_f32, self.kernels.unpack_f32),
            KvType::F16 => (self.kernels.dot_f16, self.kernels.unpack_f16),
            KvType::BF16 => (self.kernels.dot_bf16, self.kernels.unpack_bf16),
        }
    }
}

/// First position the token at `index` may see.
fn first_visible(index: usize, window: Option<usize>) -> usize {
    window.map_or(0, |window| (index + 1).saturating_sub(window))
}
