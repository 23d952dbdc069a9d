//! Attention of prefill rows: compute-bound, (token, head) pairs in lanes, both products in the matrix kernel.

use rsllm_tensor::PageSlot;

use super::{Attention, LANES, NO_SCORE, ThreadScratch, first_visible};
use crate::kernels::elementwise::Square;
use crate::kernels::{Kernels, Unpack};
use crate::kv::CpuKv;
use crate::panels::{SQUARE, copy as copy_side};
use crate::step_state::SequenceState;
use crate::threads::{SharedSlice, WorkerPanicked};

impl Attention<'_> {
    pub(super) fn prefill(&mut self, dst: &mut [f32], q: &[f32]) -> Result<(), WorkerPanicked> {
        let layout = self.kv.layout;
        let group = self.params.n_heads / layout.n_kv_heads;
        let (step, kv, params, kernels) = (self.step, self.kv, self.params, self.kernels);
        let unpack = self.kv_kernels().unpack;
        let output = SharedSlice::new(dst);
        let threads = SharedSlice::new(&mut self.scratch.threads);
        // A group wider than the lanes is walked in parts of LANES heads.
        let most_tokens = (LANES / group).max(1);
        // Few tokens are cut smaller, or there is not work for every thread.
        let fewest_tokens = (kernels.gemm_columns / group).clamp(1, most_tokens);
        let n_threads = self.pool.n_threads();
        for sequence in step
            .sequences
            .iter()
            .filter(|s| s.first_row < step.counts.n_prefill)
        {
            let pages = step.pages_of(sequence);
            let per_thread = sequence.n_rows * layout.n_kv_heads / (2 * n_threads);
            let tokens_per_block = per_thread.clamp(fewest_tokens, most_tokens);
            let n_blocks = sequence.n_rows.div_ceil(tokens_per_block);
            let n_jobs = n_blocks * layout.n_kv_heads;
            self.pool.run_pieces(n_jobs, 1, |jobs, thread| {
                // SAFETY: each thread has its own index.
                let scratch = &mut unsafe { threads.range(thread..thread + 1) }[0];
                for job in jobs {
                    // The last blocks see the longest context: start with them.
                    let (block, head) = (
                        n_blocks - 1 - job / layout.n_kv_heads,
                        job % layout.n_kv_heads,
                    );
                    let first = block * tokens_per_block;
                    let tokens = first..sequence.n_rows.min(first + tokens_per_block);
                    let mut first_head = 0;
                    while first_head < group {
                        let heads = first_head..group.min(first_head + LANES);
                        let block = Block {
                            kernels,
                            kv,
                            params,
                            pages,
                            sequence,
                            unpack,
                            head,
                            heads: heads.clone(),
                            tokens: tokens.clone(),
                        };
                        block.run(q, &output, scratch);
                        first_head = heads.end;
                    }
                }
            })?;
        }
        Ok(())
    }
}

/// Some tokens times some query heads of one K/V head.
struct Block<'a> {
    kernels: &'a Kernels,
    kv: &'a CpuKv,
    params: &'a rsllm_tensor::AttentionParams,
    pages: &'a [PageSlot],
    sequence: &'a SequenceState,
    unpack: Unpack,
    /// K/V head.
    head: usize,
    /// Query heads within the group.
    heads: std::ops::Range<usize>,
    /// Tokens within the sequence's rows.
    tokens: std::ops::Range<usize>,
}

impl Block<'_> {
    fn run(&self, q: &[f32], output: &SharedSlice<'_, f32>, scratch: &mut ThreadScratch) {
        let layout = &self.kv.layout;
        let (head_dim, page_len) = (layout.head_dim, layout.page_len);
        let columns = self.kernels.gemm_columns;
        let n_lanes = self.tokens.len() * self.heads.len();
        let n_panels = n_lanes.div_ceil(columns);
        let lanes = n_panels * columns;
        let elementwise = &self.kernels.elementwise;
        self.pack_queries(q, &mut scratch.queries.as_mut_slice()[..lanes * head_dim]);
        let queries = &scratch.queries.as_slice()[..lanes * head_dim];
        let accumulators = &mut scratch.accumulators.as_mut_slice()[..lanes * head_dim];
        accumulators.fill(0.0);
        let maxima = &mut scratch.maxima.as_mut_slice()[..lanes];
        let sums = &mut scratch.sums.as_mut_slice()[..lanes];
        let corrections = &mut scratch.corrections.as_mut_slice()[..lanes];
        maxima.fill(NO_SCORE);
        sums.fill(0.0);

        let first_index = self.sequence.first_index + self.tokens.start;
        let last_index = self.sequence.first_index + self.tokens.end - 1;
        let first_page = first_visible(first_index, self.params.window) / page_len;
        for page_number in first_page..=last_index / page_len {
            let page_start = page_number * page_len;
            let n = page_len.min(last_index + 1 - page_start);
            let start = CpuKv::row_offset(
                layout,
                self.pages[page_number].of(layout.group) as usize,
                self.head,
                0,
            );
            let bytes = n * layout.row_bytes();
            let rows = &mut scratch.page.as_mut_slice()[..n * head_dim];
            // SAFETY: an instruction set of this machine; the bytes hold `n * head_dim` values.
            unsafe { (self.unpack)(&self.kv.k.as_slice()[start..start + bytes], rows) };
            let scores = &mut scratch.scores.as_mut_slice()[..n * lanes];
            scores.fill(0.0);
            for (scores, queries) in scores
                .chunks_exact_mut(n * columns)
                .zip(queries.chunks_exact(head_dim * columns))
            {
                // SAFETY: an instruction set of this machine; `[n, head_dim] x [head_dim, columns]`.
                unsafe { (self.kernels.gemm)(rows, queries, scores) };
            }
            // SAFETY: an instruction set of this machine; the bytes hold `n * head_dim` values.
            unsafe { (self.unpack)(&self.kv.v.as_slice()[start..start + bytes], rows) };
            for panel in 0..n_panels {
                let scores = &mut scores[panel * n * columns..(panel + 1) * n * columns];
                let lane_range = panel * columns..(panel + 1) * columns;
                // SAFETY: an instruction set of this machine; slices carry their lengths, and the product is
                // `[n, head_dim]` transposed times `[n, columns]`.
                unsafe {
                    (elementwise.scale)(scores, self.params.scale);
                    if let Some(cap) = self.params.softcap {
                        (elementwise.softcap)(scores, cap);
                    }
                    if !self.sees_all(page_start, n) {
                        self.mask(scores, columns, lane_range.start, page_start, n_lanes);
                    }
                    let corrections = &mut corrections[lane_range.clone()];
                    (elementwise.softmax_lanes)(
                        scores,
                        &mut maxima[lane_range.clone()],
                        &mut sums[lane_range],
                        corrections,
                    );
                    let acc = &mut accumulators
                        [panel * head_dim * columns..(panel + 1) * head_dim * columns];
                    (elementwise.scale_lanes)(acc, corrections);
                    (self.kernels.gemm_transposed)(rows, scores, acc);
                }
            }
        }
        self.write(accumulators, sums, columns, output);
    }

    /// Token and query head (within the group) of a lane; heads vary fastest.
    fn lane(&self, lane: usize) -> (usize, usize) {
        (
            self.tokens.start + lane / self.heads.len(),
            self.heads.start + lane % self.heads.len(),
        )
    }

    /// Offset of a lane's query (and result) row in `[rows, n_heads * head_dim]`.
    fn row_offset(&self, lane: usize) -> usize {
        let (token, head) = self.lane(lane);
        let group = self.params.n_heads / self.kv.layout.n_kv_heads;
        let row = self.sequence.first_row + token;
        (row * self.params.n_heads + self.head * group + head) * self.kv.layout.head_dim
    }

    /// Queries to `[panel][head_dim][column]`, missing lanes zero.
    fn pack_queries(&self, q: &[f32], packed: &mut [f32]) {
        let head_dim = self.kv.layout.head_dim;
        let columns = self.kernels.gemm_columns;
        let n_lanes = self.tokens.len() * self.heads.len();
        let side = SQUARE.min(columns);
        let mut square: Square = [[0.0; SQUARE]; SQUARE];
        for (panel, packed) in packed.chunks_exact_mut(head_dim * columns).enumerate() {
            for first in (0..columns).step_by(side) {
                for start in (0..head_dim).step_by(SQUARE) {
                    let n = SQUARE.min(head_dim - start);
                    for (lane, row) in (panel * columns + first..).zip(&mut square[..side]) {
                        if lane < n_lanes {
                            copy_side(row, &q[self.row_offset(lane) + start..][..n]);
                        } else {
                            row.fill(0.0);
                        }
                    }
                    // SAFETY: an instruction set of this machine.
                    unsafe { (self.kernels.elementwise.transpose)(&mut square) };
                    for (row, values) in (start..start + n).zip(&square) {
                        copy_side(&mut packed[row * columns + first..], &values[..side]);
                    }
                }
            }
        }
    }

    /// Whether every token of the block may see all of the `n` positions from `page_start` on.
    fn sees_all(&self, page_start: usize, n: usize) -> bool {
        let first = self.sequence.first_index + self.tokens.start;
        let last = self.sequence.first_index + self.tokens.end - 1;
        page_start + n <= first + 1 && first_visible(last, self.params.window) <= page_start
    }

    /// Set to -inf what a lane's token may not see: later positions, and those before its window.
    fn mask(
        &self,
        scores: &mut [f32],
        columns: usize,
        first_lane: usize,
        page_start: usize,
        n_lanes: usize,
    ) {
        let n = scores.len() / columns;
        for column in 0..columns.min(n_lanes.saturating_sub(first_lane)) {
            let (token, _) = self.lane(first_lane + column);
            let index = self.sequence.first_index + token;
            let visible_end = (index + 1).saturating_sub(page_start).min(n);
            let visible_start = first_visible(index, self.params.window)
                .saturating_sub(page_start)
                .min(n);
            for position in (0..visible_start).chain(visible_end..n) {
                scores[position * columns + column] = f32::NEG_INFINITY;
            }
        }
    }

    fn write(
        &self,
        accumulators: &[f32],
        sums: &[f32],
        columns: usize,
        output: &SharedSlice<'_, f32>,
    ) {
        let head_dim = self.kv.layout.head_dim;
        let n_lanes = self.tokens.len() * self.heads.len();
        let side = SQUARE.min(columns);
        let mut square: Square = [[0.0; SQUARE]; SQUARE];
        for first in (0..n_lanes).step_by(side) {
            let acc = &accumulators[first / columns * head_dim * columns..][..head_dim * columns];
            for start in (0..head_dim).step_by(SQUARE) {
                let n = SQUARE.min(head_dim - start);
                for (row, square) in (start..start + n).zip(&mut square) {
                    let sums = &acc[row * columns + first % columns..][..side];
                    copy_side(square, sums);
                }
                // SAFETY: an instruction set of this machine.
                unsafe { (self.kernels.elementwise.transpose)(&mut square) };
                for (lane, values) in (first..n_lanes).zip(&square[..side]) {
                    let at = self.row_offset(lane) + start;
                    // SAFETY: a (token, head) pair belongs to one lane of one block.
                    let dst = unsafe { output.range(at..at + n) };
                    copy_side(dst, &values[..n]);
                    let scale = 1.0 / sums[lane];
                    for y in dst {
                        *y *= scale;
                    }
                }
            }
        }
    }
}
