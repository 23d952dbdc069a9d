//! Attention of decode rows: memory-bound, one pass over K and V.

use std::ops::Range;

use rsllm_tensor::PageId;

use super::{Attention, NO_SCORE, SPLIT_LEN, ThreadScratch, first_visible};
use crate::kernels::Kernels;
use crate::kv::CpuKv;
use crate::threads::{SharedSlice, WorkerPanicked};

impl Attention<'_> {
    pub(super) fn decode(&mut self, dst: &mut [f32], q: &[f32]) -> Result<(), WorkerPanicked> {
        let layout = self.kv.layout;
        let n_heads = self.params.n_heads;
        let group = n_heads / layout.n_kv_heads;
        let part_len = group * (layout.head_dim + 2);
        let capacity = self.scratch.partials.as_slice().len() / part_len;
        let (step, kv, params, kernels) = (self.step, self.kv, self.params, self.kernels);
        let (dot, unpack) = self.kv_kernels();
        let width = n_heads * layout.head_dim;
        for sequence in &step.sequences {
            let pages = step.pages_of(sequence);
            for row in
                sequence.first_row.max(step.counts.n_prefill)..sequence.first_row + sequence.n_rows
            {
                let index = sequence.first_index + row - sequence.first_row;
                let visible = first_visible(index, params.window)..index + 1;
                let splits = visible.start / SPLIT_LEN..visible.end.div_ceil(SPLIT_LEN);
                let n_jobs = splits.len() * layout.n_kv_heads;
                assert!(
                    n_jobs <= capacity,
                    "partials are reserved for the longest context"
                );
                let partials = SharedSlice::new(
                    &mut self.scratch.partials.as_mut_slice()[..n_jobs * part_len],
                );
                let threads = SharedSlice::new(&mut self.scratch.threads);
                let q_row = &q[row * width..(row + 1) * width];
                let output = SharedSlice::new(&mut dst[row * width..(row + 1) * width]);
                let job = |job: usize, thread: usize| {
                    // SAFETY: each thread has its own index, and each job its own partial.
                    let scratch = &mut unsafe { threads.range(thread..thread + 1) }[0];
                    // SAFETY: as above.
                    let part = unsafe { partials.range(job * part_len..(job + 1) * part_len) };
                    let (head, split) = (job / splits.len(), splits.start + job % splits.len());
                    let from = visible.start.max(split * SPLIT_LEN);
                    let to = visible.end.min((split + 1) * SPLIT_LEN);
                    let q_group = &q_row
                        [head * group * layout.head_dim..(head + 1) * group * layout.head_dim];
                    let reader = Reader {
                        kernels,
                        kv,
                        pages,
                        head,
                        dot,
                        unpack,
                        params,
                    };
                    reader.part(q_group, from..to, part, scratch);
                };
                self.pool
                    .run_pieces(n_jobs, 1, |jobs, thread| jobs.for_each(|j| job(j, thread)))?;
                for head in 0..layout.n_kv_heads {
                    // SAFETY: all jobs are done; each head has its own range.
                    let parts = unsafe {
                        partials.range(
                            head * splits.len() * part_len..(head + 1) * splits.len() * part_len,
                        )
                    };
                    // SAFETY: as above.
                    let out = unsafe {
                        output.range(
                            head * group * layout.head_dim..(head + 1) * group * layout.head_dim,
                        )
                    };
                    merge(parts, part_len, group, out);
                }
            }
        }
        Ok(())
    }
}

/// Reads one K/V head of one sequence.
struct Reader<'a> {
    kernels: &'a Kernels,
    kv: &'a CpuKv,
    pages: &'a [PageId],
    head: usize,
    dot: crate::kernels::DotRowsF32,
    unpack: crate::kernels::Unpack,
    params: &'a rsllm_tensor::AttentionParams,
}

impl Reader<'_> {
    /// One part of the context for the query heads of a group. `part`: accumulators `[group, head_dim]`, maxima
    /// `[group]`, sums `[group]`.
    fn part(
        &self,
        q: &[f32],
        positions: Range<usize>,
        part: &mut [f32],
        scratch: &mut ThreadScratch,
    ) {
        let layout = &self.kv.layout;
        let (head_dim, page_len) = (layout.head_dim, layout.page_len);
        let group = q.len() / head_dim;
        let row_bytes = CpuKv::row_bytes(layout);
        let elementwise = &self.kernels.elementwise;
        let (acc, running) = part.split_at_mut(group * head_dim);
        let (maxima, sums) = running.split_at_mut(group);
        acc.fill(0.0);
        maxima.fill(NO_SCORE);
        sums.fill(0.0);
        let mut position = positions.start;
        while position < positions.end {
            let slot = position % page_len;
            let n = (page_len - slot).min(positions.end - position);
            let page = self.pages[position / page_len] as usize;
            let start = CpuKv::row_offset(layout, page, self.head, slot);
            let k = &self.kv.k.as_slice()[start..start + n * row_bytes];
            let v = &self.kv.v.as_slice()[start..start + n * row_bytes];
            let dots = &mut scratch.page_transposed.as_mut_slice()[..n * group];
            // SAFETY: an instruction set of this machine; `k` holds `n` rows of `head_dim` values, `q` `group` columns
            // of as many, `dots` one value each.
            unsafe { (self.dot)(k, row_bytes, q, group, dots) };
            let v_rows = &mut scratch.page.as_mut_slice()[..n * head_dim];
            // SAFETY: an instruction set of this machine; `v` holds `n * head_dim` values.
            unsafe { (self.unpack)(v, v_rows) };
            let scores = &mut scratch.scores.as_mut_slice()[..n];
            for g in 0..group {
                for (score, dots) in scores.iter_mut().zip(dots.chunks_exact(group)) {
                    *score = dots[g] * self.params.scale;
                }
                // SAFETY (these and the next): an instruction set of this machine; slices carry their lengths.
                unsafe {
                    if let Some(cap) = self.params.softcap {
                        (elementwise.softcap)(scores, cap);
                    }
                    let new = (elementwise.max)(scores).max(maxima[g]);
                    let correction = crate::kernels::elementwise::exp(maxima[g] - new);
                    sums[g] = sums[g] * correction + (elementwise.exp_and_sum)(scores, new);
                    maxima[g] = new;
                    let acc = &mut acc[g * head_dim..(g + 1) * head_dim];
                    (elementwise.scale)(acc, correction);
                    (elementwise.weighted_sum)(acc, v_rows, scores);
                }
            }
            position += n;
        }
    }
}

/// Merge the parts of a head in order and divide by the sum: `out` `[group, head_dim]`.
fn merge(parts: &[f32], part_len: usize, group: usize, out: &mut [f32]) {
    let head_dim = out.len() / group;
    for (g, out) in out.chunks_exact_mut(head_dim).enumerate() {
        let max_of = |part: &[f32]| part[group * head_dim + g];
        let sum_of = |part: &[f32]| part[group * (head_dim + 1) + g];
        let max = parts
            .chunks_exact(part_len)
            .map(max_of)
            .fold(NO_SCORE, f32::max);
        let mut sum = 0.0;
        out.fill(0.0);
        for part in parts.chunks_exact(part_len) {
            let factor = crate::kernels::elementwise::exp(max_of(part) - max);
            sum += sum_of(part) * factor;
            for (y, &x) in out.iter_mut().zip(&part[g * head_dim..(g + 1) * head_dim]) {
                *y += x * factor;
            }
        }
        let scale = 1.0 / sum;
        for y in out {
            *y *= scale;
        }
    }
}
