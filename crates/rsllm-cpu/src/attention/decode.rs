//! Attention of decode rows: memory-bound, one pass over K and V.

use std::ops::Range;

use rsllm_tensor::PageSlot;

use super::{Attention, KvKernels, NO_SCORE, SPLIT_LEN, ThreadScratch, first_visible};
use crate::kernels::Kernels;
use crate::kv::CpuKv;
use crate::memory::Aligned;
use crate::threads::{SharedSlice, WorkerPanicked};

/// A decode row and its parts: one for each K/V head and split of the context.
#[derive(Clone, Copy)]
pub(super) struct DecodeRow {
    row: usize,
    /// Index in the step's sequences.
    sequence: usize,
    /// First and last-but-one position the row sees.
    visible: (usize, usize),
    /// First part of the row in the group.
    first_part: usize,
}

impl DecodeRow {
    fn splits(&self) -> Range<usize> {
        self.visible.0 / SPLIT_LEN..self.visible.1.div_ceil(SPLIT_LEN)
    }
}

impl Attention<'_> {
    /// All decode rows of the step, in groups whose parts fit the scratch.
    pub(super) fn decode(&mut self, dst: &mut [f32], q: &[f32]) -> Result<(), WorkerPanicked> {
        let layout = self.kv.layout;
        let part_len = self.params.n_heads / layout.n_kv_heads * (layout.head_dim + 2);
        let capacity = self.scratch.partials.as_slice().len() / part_len;
        let step = self.step;
        self.scratch.rows.clear();
        let mut n_parts = 0;
        for (number, sequence) in step.sequences.iter().enumerate() {
            let end = sequence.first_row + sequence.n_rows;
            for row in sequence.first_row.max(step.counts.n_prefill)..end {
                let index = sequence.first_index + row - sequence.first_row;
                let mut job = DecodeRow {
                    row,
                    sequence: number,
                    visible: (first_visible(index, self.params.window), index + 1),
                    first_part: n_parts,
                };
                let parts = job.splits().len() * layout.n_kv_heads;
                assert!(parts <= capacity, "reserved for the longest context");
                if n_parts + parts > capacity {
                    self.decode_group(n_parts, part_len, dst, q)?;
                    self.scratch.rows.clear();
                    (n_parts, job.first_part) = (0, 0);
                }
                n_parts += parts;
                self.scratch.rows.push(job);
            }
        }
        self.decode_group(n_parts, part_len, dst, q)
    }

    /// The parts of all collected rows in one job, then their merge.
    fn decode_group(
        &mut self,
        n_parts: usize,
        part_len: usize,
        dst: &mut [f32],
        q: &[f32],
    ) -> Result<(), WorkerPanicked> {
        let layout = self.kv.layout;
        let group_width = self.params.n_heads / layout.n_kv_heads * layout.head_dim;
        let width = self.params.n_heads * layout.head_dim;
        let (step, kv, params, kernels) = (self.step, self.kv, self.params, self.kernels);
        let kv_kernels = self.kv_kernels();
        let rows = &self.scratch.rows;
        let partials = &mut self.scratch.partials.as_mut_slice()[..n_parts * part_len];
        let shared = SharedSlice::new(&mut *partials);
        let out = SharedSlice::new(&mut *dst);
        let threads = SharedSlice::new(&mut self.scratch.threads);
        self.pool.run_pieces(n_parts, 1, |parts, thread| {
            // SAFETY: each thread has its own index.
            let scratch = &mut unsafe { threads.range(thread..thread + 1) }[0];
            let find = |number: usize| {
                let row = &rows[rows.partition_point(|row| row.first_part <= number) - 1];
                let splits = row.splits();
                let within = number - row.first_part;
                let (head, split) = (within / splits.len(), splits.start + within % splits.len());
                let from = row.visible.0.max(split * SPLIT_LEN);
                let to = row.visible.1.min((split + 1) * SPLIT_LEN);
                let reader = Reader {
                    kernels,
                    kv_kernels,
                    kv,
                    pages: step.pages_of(&step.sequences[row.sequence]),
                    head,
                    params,
                };
                (row, reader, from..to)
            };
            for number in parts {
                let (row, reader, positions) = find(number);
                // Mostly this thread's next part.
                let next: &[u8] = if number + 1 < n_parts {
                    let (_, reader, positions) = find(number + 1);
                    reader.rows(&kv.k, reader.run(positions.start, positions.end))
                } else {
                    &[]
                };
                // SAFETY: each part has its own range.
                let part = unsafe { shared.range(number * part_len..(number + 1) * part_len) };
                let start = row.row * width + reader.head * group_width;
                let q = &q[start..start + group_width];
                reader.part(q, positions, next, part, scratch);
                if row.splits().len() == 1 {
                    // SAFETY: each row and head has its own range, and this is its only part.
                    let out = unsafe { out.range(start..start + group_width) };
                    merge(part, part_len, group_width / layout.head_dim, out);
                }
            }
        })?;
        for row in rows.iter().filter(|row| row.splits().len() > 1) {
            let n_splits = row.splits().len();
            let parts = &partials[row.first_part * part_len..];
            let out = &mut dst[row.row * width..(row.row + 1) * width];
            let of_heads = parts.chunks_exact(n_splits * part_len);
            for (out, parts) in out.chunks_exact_mut(group_width).zip(of_heads) {
                merge(parts, part_len, group_width / layout.head_dim, out);
            }
        }
        Ok(())
    }
}

/// Reads one K/V head of one sequence.
struct Reader<'a> {
    kernels: &'a Kernels,
    kv_kernels: KvKernels,
    kv: &'a CpuKv,
    pages: &'a [PageSlot],
    head: usize,
    params: &'a rsllm_tensor::AttentionParams,
}

impl Reader<'_> {
    /// One part of the context for the query heads of a group. `part`: accumulators `[group, head_dim]`, maxima
    /// `[group]`, sums `[group]`. `behind` is read next.
    fn part(
        &self,
        q: &[f32],
        positions: Range<usize>,
        behind: &[u8],
        part: &mut [f32],
        scratch: &mut ThreadScratch,
    ) {
        let layout = &self.kv.layout;
        let head_dim = layout.head_dim;
        let group = q.len() / head_dim;
        let elementwise = &self.kernels.elementwise;
        let (acc, running) = part.split_at_mut(group * head_dim);
        let (maxima, sums) = running.split_at_mut(group);
        acc.fill(0.0);
        maxima.fill(NO_SCORE);
        sums.fill(0.0);
        let mut position = positions.start;
        while position < positions.end {
            let run = self.run(position, positions.end);
            let (k, v) = (self.rows(&self.kv.k, run), self.rows(&self.kv.v, run));
            let n = run.len;
            let scores = &mut scratch.decode_scores.as_mut_slice()[..n * group];
            let unpacked = &mut scratch.page.as_mut_slice()[..n * head_dim];
            self.scores(k, v, q, scores, unpacked);
            for (g, scores) in scores.chunks_exact_mut(n).enumerate() {
                // SAFETY: an instruction set of this machine; slices carry their lengths.
                unsafe {
                    (elementwise.scale)(scores, self.params.scale);
                    if let Some(cap) = self.params.softcap {
                        (elementwise.softcap)(scores, cap);
                    }
                    let new = (elementwise.max)(scores).max(maxima[g]);
                    let correction = crate::kernels::elementwise::exp(maxima[g] - new);
                    sums[g] = sums[g] * correction + (elementwise.exp_and_sum)(scores, new);
                    maxima[g] = new;
                    (elementwise.scale)(&mut acc[g * head_dim..(g + 1) * head_dim], correction);
                }
            }
            position += n;
            let next = if position < positions.end {
                self.rows(&self.kv.k, self.run(position, positions.end))
            } else {
                behind
            };
            self.values(v, next, scores, acc, unpacked);
        }
    }

    /// Rows of one page from `position` on, none at or after `end`.
    fn run(&self, position: usize, end: usize) -> Run {
        let layout = &self.kv.layout;
        let slot = position % layout.page_len;
        let page = self.pages[position / layout.page_len].of(layout.group) as usize;
        Run {
            start: CpuKv::row_offset(layout, page, self.head, slot),
            len: (layout.page_len - slot).min(end - position),
        }
    }

    fn rows<'b>(&self, store: &'b Aligned<u8>, run: Run) -> &'b [u8] {
        &store.as_slice()[run.start..][..run.len * self.kv.layout.row_bytes()]
    }

    /// `scores` `[group, n]`; `next` is read after `k`; `unpacked` `[n, head_dim]` is scratch.
    fn scores(&self, k: &[u8], next: &[u8], q: &[f32], scores: &mut [f32], unpacked: &mut [f32]) {
        let head_dim = self.kv.layout.head_dim;
        let group = q.len() / head_dim;
        if let Some(attend) = self.kv_kernels.attend {
            // SAFETY: an instruction set of this machine.
            unsafe { (attend.scores)(k, next, q, group, scores) };
            return;
        }
        let (rows, dot) = if let Some(dot) = self.kv_kernels.dot {
            (k, dot)
        } else {
            // SAFETY: an instruction set of this machine; `k` holds as many values as `unpacked`.
            unsafe { (self.kv_kernels.unpack)(k, unpacked) };
            let rows: &[u8] = bytemuck::cast_slice(unpacked);
            if let Some(attend) = self.kv_kernels.attend_unpacked {
                // SAFETY: an instruction set of this machine.
                unsafe { (attend.scores)(rows, &[], q, group, scores) };
                return;
            }
            (rows, self.kv_kernels.dot_f32)
        };
        let n = scores.len() / group;
        // SAFETY: an instruction set of this machine; `rows` holds `n` rows of `head_dim` values, `q` `group` columns of as many,
        // `scores` one value each.
        unsafe { dot(rows, rows.len() / n, q, group, scores) };
    }

    /// `acc` `[group, head_dim]` plus the rows of `v` weighted with `weights` `[group, n]`; `next` is read after `v`.
    fn values(
        &self,
        v: &[u8],
        next: &[u8],
        weights: &[f32],
        acc: &mut [f32],
        unpacked: &mut [f32],
    ) {
        let head_dim = self.kv.layout.head_dim;
        let group = acc.len() / head_dim;
        if let Some(attend) = self.kv_kernels.attend {
            // SAFETY: an instruction set of this machine.
            unsafe { (attend.values)(v, next, weights, group, acc) };
            return;
        }
        // SAFETY: an instruction set of this machine; `v` holds as many values as `unpacked`.
        unsafe { (self.kv_kernels.unpack)(v, unpacked) };
        if let Some(attend) = self.kv_kernels.attend_unpacked {
            let rows = bytemuck::cast_slice(unpacked);
            // SAFETY: an instruction set of this machine.
            unsafe { (attend.values)(rows, &[], weights, group, acc) };
            return;
        }
        let n = weights.len() / group;
        for (acc, weights) in acc.chunks_exact_mut(head_dim).zip(weights.chunks_exact(n)) {
            // SAFETY: an instruction set of this machine; slices carry their lengths.
            unsafe { (self.kernels.elementwise.weighted_sum)(acc, unpacked, weights) };
        }
    }
}

/// Rows of one head in one page: byte offset of the first, and how many.
#[derive(Clone, Copy)]
struct Run {
    start: usize,
    len: usize,
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
