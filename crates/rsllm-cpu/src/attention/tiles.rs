//! Attention of prefill rows on a tile unit: operands in two parts of bf16 each, which hold 16 bits of a value; sums in f32.
//!
//! The (token, query head) pairs that share a K/V head lie in the lanes of result tiles, 32 at a time. A page's keys and values
//! become left-hand tiles once for all lanes of a block. A lane's products and its softmax depend on no other lane, and pages
//! are walked in order, so the cut into blocks and chunks of a prompt changes nothing.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use bytemuck::Zeroable;
use rsllm_tensor::{BackendError, KvType, PageSlot};

use super::{Attention, NO_SCORE, first_visible};
use crate::kernels::{Ahead, Kernels, Lanes, ScoreTiles, TILE, TILE_F32, Tiles, Unpack, Visible};
use crate::kv::CpuKv;
use crate::memory::{Aligned, Allocator};
use crate::step_state::SequenceState;
use crate::threads::{SharedSlice, WorkerPanicked};
use crate::tiles::Configured;

/// Lanes of a tile.
const GROUP: usize = 16;
/// Lanes that are worked on together: two tiles.
const PAIR: usize = 2 * GROUP;
/// Fewest lanes of a block that is cut: fewer do not pay for unpacking a page.
const MIN_LANES: usize = 64;
/// Most lanes of a block.
const MAX_LANES: usize = 512;
/// Positions of one step of the softmax, at least a page: what is accumulated need not be loaded and stored so often. They
/// begin at multiples of this, whatever a block of lanes sees of them.
const SPAN: usize = 256;
/// Positions of a left-hand tile of values, and values of K in any tile.
const DEPTH: usize = 32;

/// What a thread works with.
pub(super) struct TileScratch {
    /// `[position of the span, head_dim]` unpacked K or V.
    rows: Aligned<f32>,
    /// `[group of lanes][k tile][TILE]`.
    queries: Parts,
    /// `[32 positions][2][k tile][TILE]`.
    keys: Parts,
    /// `[16 dimensions][k tile of positions][TILE]`.
    values: Parts,
    /// `[32 positions][group of a pair][2][TILE_F32]`.
    scores: Aligned<f32>,
    /// `[group of a pair][k tile of positions][TILE]`.
    weights: Parts,
    /// `[pair][32 dimensions][group of a pair][2][TILE_F32]`.
    accumulators: Aligned<f32>,
    lanes: Aligned<Lanes>,
}

/// High and low parts, one behind the other.
struct Parts(Aligned<u16>);

impl Parts {
    fn new(allocator: &mut Allocator, what: &str, len: usize) -> Result<Self, BackendError> {
        Aligned::new(allocator, what, 2 * len).map(Self)
    }

    /// Values `range` of each.
    fn get(&self, range: Range<usize>) -> [&[u16]; 2] {
        let (high, low) = self.0.as_slice().split_at(self.0.as_slice().len() / 2);
        [&high[range.clone()], &low[range]]
    }

    fn get_mut(&mut self, range: Range<usize>) -> [&mut [u16]; 2] {
        let both = self.0.as_mut_slice();
        let (high, low) = both.split_at_mut(both.len() / 2);
        [&mut high[range.clone()], &mut low[range]]
    }
}

impl TileScratch {
    pub(super) fn new(
        allocator: &mut Allocator,
        head_dim: usize,
        page_len: usize,
    ) -> Result<Self, BackendError> {
        let span_len = pages_of_span(page_len) * page_len;
        let (depth, positions) = (
            head_dim.next_multiple_of(DEPTH),
            span_len.next_multiple_of(DEPTH),
        );
        Ok(Self {
            rows: Aligned::new(allocator, "attention rows", span_len * head_dim)?,
            queries: Parts::new(allocator, "attention queries", MAX_LANES * depth)?,
            keys: Parts::new(allocator, "attention keys", positions * depth)?,
            values: Parts::new(allocator, "attention values", positions * depth)?,
            scores: Aligned::new(allocator, "attention scores", positions * PAIR)?,
            weights: Parts::new(allocator, "attention weights", positions * PAIR)?,
            accumulators: Aligned::new(allocator, "attention accumulators", MAX_LANES * depth)?,
            lanes: Aligned::new(allocator, "attention maxima", MAX_LANES / GROUP)?,
        })
    }
}

fn pages_of_span(page_len: usize) -> usize {
    // A backend without any cache has no page length.
    (SPAN / page_len.max(1)).max(1)
}

impl Attention<'_> {
    /// As [`Attention::prefill`].
    pub(super) fn prefill_tiles(
        &mut self,
        tiles: &'static Tiles,
        dst: &mut [f32],
        q: &[f32],
    ) -> Result<(), WorkerPanicked> {
        let layout = self.kv.layout;
        let group = self.params.n_heads / layout.n_kv_heads;
        let (step, kv, params, kernels) = (self.step, self.kv, self.params, self.kernels);
        let unpack = self.kv_kernels().unpack;
        let output = SharedSlice::new(dst);
        let threads = SharedSlice::new(&mut self.scratch.tiles);
        let n_threads = self.pool.n_threads();
        let in_prefill = |s: &&SequenceState| s.first_row < step.counts.n_prefill;
        for sequence in step.sequences.iter().filter(in_prefill) {
            let n_lanes = sequence.n_rows * group;
            // Few lanes are cut smaller, or there is not work for every thread.
            let block_lanes = (n_lanes * layout.n_kv_heads / (8 * n_threads))
                .next_multiple_of(PAIR)
                .clamp(MIN_LANES, MAX_LANES);
            let n_blocks = n_lanes.div_ceil(block_lanes);
            let n_jobs = n_blocks * layout.n_kv_heads;
            self.pool.run_pieces(n_jobs, 1, |jobs, thread| {
                // SAFETY: each thread has its own index.
                let scratch = &mut unsafe { threads.range(thread..thread + 1) }[0];
                let _configured = Configured::new(tiles);
                for job in jobs {
                    // The last blocks see the longest context: start with them.
                    let first = (n_blocks - 1 - job / layout.n_kv_heads) * block_lanes;
                    let block = Block {
                        tiles,
                        kernels,
                        kv,
                        params,
                        pages: step.pages_of(sequence),
                        sequence,
                        unpack,
                        head: job % layout.n_kv_heads,
                        lanes: first..n_lanes.min(first + block_lanes),
                    };
                    block.run(q, &output, scratch);
                }
            })?;
        }
        Ok(())
    }
}

/// Some (token, query head) pairs of one K/V head: pair `i` is query head `i % group` of the sequence's token `i / group`.
struct Block<'a> {
    tiles: &'static Tiles,
    kernels: &'a Kernels,
    kv: &'a CpuKv,
    params: &'a rsllm_tensor::AttentionParams,
    pages: &'a [PageSlot],
    sequence: &'a SequenceState,
    unpack: Unpack,
    /// K/V head.
    head: usize,
    lanes: Range<usize>,
}

impl Block<'_> {
    /// Tiles of this thread must be configured.
    fn run(&self, q: &[f32], output: &SharedSlice<'_, f32>, scratch: &mut TileScratch) {
        let layout = &self.kv.layout;
        let page_len = layout.page_len;
        let n_groups = self.lanes.len().div_ceil(GROUP);
        self.pack_queries(q, &mut scratch.queries);
        scratch.lanes.as_mut_slice()[..n_groups].fill(Lanes {
            maxima: [NO_SCORE; GROUP],
            ..Lanes::zeroed()
        });
        let last = self.index(self.lanes.end - 1);
        let first_page = first_visible(self.index(self.lanes.start), self.params.window) / page_len;
        let of_span = pages_of_span(page_len);
        for span in first_page / of_span..=last / page_len / of_span {
            let start = span * of_span * page_len;
            let positions = start..(start + of_span * page_len).min(last + 1);
            self.unpack(positions.clone(), first_page, scratch);
            for first in (0..n_groups).step_by(2) {
                self.add_span(positions.clone(), first..n_groups.min(first + 2), scratch);
            }
        }
        self.write(scratch, output);
    }

    /// Position of a lane's token.
    fn index(&self, lane: usize) -> usize {
        self.sequence.first_index + lane / self.group()
    }

    /// Query heads of a K/V head.
    fn group(&self) -> usize {
        self.params.n_heads / self.kv.layout.n_kv_heads
    }

    /// Offset of a lane's query (and result) row in `[rows, n_heads * head_dim]`.
    fn row_offset(&self, lane: usize) -> usize {
        let (token, head) = (lane / self.group(), lane % self.group());
        let row = self.sequence.first_row + token;
        (row * self.params.n_heads + self.head * self.group() + head) * self.kv.layout.head_dim
    }

    /// The lanes of a group of the block that exist.
    fn lanes_of(&self, group: usize) -> Range<usize> {
        let first = self.lanes.start + group * GROUP;
        first..self.lanes.end.min(first + GROUP)
    }

    /// Queries to `[group][k tile][TILE]`, missing lanes zero.
    fn pack_queries(&self, q: &[f32], packed: &mut Parts) {
        let head_dim = self.kv.layout.head_dim;
        let n_tiles = head_dim.div_ceil(DEPTH);
        for i in 0..self.lanes.len().div_ceil(GROUP) * n_tiles {
            let values = i % n_tiles * DEPTH..head_dim.min((i % n_tiles + 1) * DEPTH);
            let lanes = self.lanes_of(i / n_tiles);
            let mut rows = [&[] as &[f32]; GROUP];
            for (row, lane) in rows.iter_mut().zip(lanes.clone()) {
                *row = &q[self.row_offset(lane)..][values.clone()];
            }
            // SAFETY: an instruction set of this machine.
            unsafe {
                (self.tiles.queries)(
                    &rows[..lanes.len()],
                    packed.get_mut(i * TILE..(i + 1) * TILE),
                );
            }
        }
    }

    /// The positions of a span to tiles of keys and values; those of pages before `first_page`, which nobody sees, are zero.
    fn unpack(&self, span: Range<usize>, first_page: usize, scratch: &mut TileScratch) {
        let layout = &self.kv.layout;
        let (head_dim, page_len, tiles) = (layout.head_dim, layout.page_len, self.tiles);
        let depth = head_dim.next_multiple_of(DEPTH);
        let positions = span.len().next_multiple_of(DEPTH);
        let rows = &mut scratch.rows.as_mut_slice()[..span.len() * head_dim];
        let read = |packed: &[u8], rows: &mut [f32]| {
            for (i, rows) in rows.chunks_mut(page_len * head_dim).enumerate() {
                let page = span.start / page_len + i;
                if page < first_page {
                    rows.fill(0.0);
                    continue;
                }
                let page = self.pages[page].of(layout.group) as usize;
                let start = CpuKv::row_offset(layout, page, self.head, 0);
                let bytes = &packed[start..start + rows.len() / head_dim * layout.row_bytes()];
                // SAFETY: an instruction set of this machine; the bytes hold as many values as the rows.
                unsafe { (self.unpack)(bytes, rows) };
            }
        };
        read(self.kv.k.as_slice(), rows);
        // SAFETY: an instruction set of this machine.
        unsafe { (tiles.keys)(rows, head_dim, scratch.keys.get_mut(0..positions * depth)) };
        read(self.kv.v.as_slice(), rows);
        // SAFETY: as above.
        unsafe { (tiles.values)(rows, head_dim, scratch.values.get_mut(0..positions * depth)) };
    }

    /// A span for one or two groups of lanes.
    fn add_span(&self, span: Range<usize>, groups: Range<usize>, scratch: &mut TileScratch) {
        let (tiles, elementwise) = (self.tiles, &self.kernels.elementwise);
        let head_dim = self.kv.layout.head_dim;
        let lanes = self.lanes_of(groups.start).start..self.lanes_of(groups.end - 1).end;
        let (first, last) = (self.index(lanes.start), self.index(lanes.end - 1));
        let first_seen = first_visible(first, self.params.window);
        if span.start > last || span.end <= first_seen {
            return;
        }
        // The tiles of values are as many as the span has; what is behind the last lane's position is left out.
        let value_tiles = span.len().next_multiple_of(DEPTH);
        let n = span.len().min(last + 1 - span.start);
        // The first span that these lanes look at: there is nothing to correct, nor to add to.
        let begins = span.start <= first_seen;
        let all_visible =
            span.start + n <= first + 1 && first_visible(last, self.params.window) <= span.start;
        let (depth, positions) = (head_dim.next_multiple_of(DEPTH), n.next_multiple_of(DEPTH));
        let (n_groups, results) = (groups.len(), groups.len() * 2 * TILE_F32);
        let of_groups = groups.start * GROUP * depth..groups.end * GROUP * depth;
        let queries = scratch.queries.get(of_groups.clone());
        let scores = &mut scratch.scores.as_mut_slice()[..positions / DEPTH * results];
        for (chunk, scores) in scores.chunks_exact_mut(results).enumerate() {
            let keys = self.left(&scratch.keys, chunk * DEPTH * depth, DEPTH * depth);
            // SAFETY: configured by the caller; the slices carry their lengths.
            unsafe { (tiles.multiply_parts)(keys, queries, scores, false, &Ahead::default()) };
        }
        let mut factor = self.params.scale * LOG2_E;
        if let Some(cap) = self.params.softcap {
            // SAFETY: an instruction set of this machine.
            unsafe {
                (elementwise.scale)(scores, self.params.scale);
                (elementwise.softcap)(scores, cap);
            }
            factor = LOG2_E;
        }
        let accumulators = &mut scratch.accumulators.as_mut_slice()[of_groups];
        for g in 0..n_groups {
            let weights = g * GROUP * positions..(g + 1) * GROUP * positions;
            let weights = scratch.weights.get_mut(weights);
            let group = groups.start + g;
            let page = ScoreTiles {
                scores: &scores[g * 2 * TILE_F32..],
                stride: results,
                n,
                factor,
            };
            let visible = self.visible(group, span.start, n);
            let visible = (!all_visible).then_some(&visible);
            let lanes = &mut scratch.lanes.as_mut_slice()[group];
            // SAFETY: an instruction set of this machine; slices carry their lengths.
            unsafe {
                if (tiles.softmax)(&page, visible, lanes, weights) && !begins {
                    for tiles in accumulators.chunks_exact_mut(results) {
                        let tiles = &mut tiles[g * 2 * TILE_F32..(g + 1) * 2 * TILE_F32];
                        (elementwise.scale_lanes)(tiles, &lanes.corrections);
                    }
                }
            }
        }
        let weights = scratch.weights.get(0..n_groups * GROUP * positions);
        for (part, results) in accumulators.chunks_exact_mut(results).enumerate() {
            let len = DEPTH * value_tiles;
            let values = self.left(&scratch.values, part * len, len);
            // SAFETY: configured by the caller; the slices carry their lengths.
            unsafe { (tiles.multiply_parts)(values, weights, results, !begins, &Ahead::default()) };
        }
    }

    /// Left operands from `first` on. Values in bf16 have no low part.
    fn left<'s>(&self, parts: &'s Parts, first: usize, len: usize) -> [&'s [u16]; 2] {
        let [high, low] = parts.get(first..first + len);
        match self.kv.layout.kv_type {
            KvType::BF16 => [high, &[]],
            _ => [high, low],
        }
    }

    /// Which of the span's first `n` positions each lane of a group sees; missing lanes see none.
    fn visible(&self, group: usize, start: usize, n: usize) -> Visible {
        let mut visible = Visible {
            from: [0; GROUP],
            to: [0; GROUP],
        };
        for (i, lane) in self.lanes_of(group).enumerate() {
            let index = self.index(lane);
            let from = first_visible(index, self.params.window).saturating_sub(start);
            visible.from[i] = from.min(n) as i32;
            visible.to[i] = (index + 1).saturating_sub(start).min(n) as i32;
        }
        visible
    }

    fn write(&self, scratch: &mut TileScratch, output: &SharedSlice<'_, f32>) {
        let head_dim = self.kv.layout.head_dim;
        let depth = head_dim.next_multiple_of(DEPTH);
        let n_groups = self.lanes.len().div_ceil(GROUP);
        for group in 0..n_groups {
            // Where the tiles of a group lie within those of its pair.
            let pair = group / 2 * 2;
            let in_pair = 2.min(n_groups - pair);
            let start = pair * GROUP * depth + group % 2 * 2 * TILE_F32;
            let factors = scratch.lanes.as_slice()[group].sums.map(|sum| 1.0 / sum);
            let lanes = self.lanes_of(group);
            for first in (0..head_dim).step_by(GROUP) {
                let at = start + (first / DEPTH * in_pair * 2 + first % DEPTH / GROUP) * TILE_F32;
                let tile = &mut scratch.accumulators.as_mut_slice()[at..at + TILE_F32];
                let n = GROUP.min(head_dim - first);
                let mut dst: [&mut [f32]; GROUP] = std::array::from_fn(|_| &mut [] as &mut [f32]);
                for (dst, lane) in dst.iter_mut().zip(lanes.clone()) {
                    let start = self.row_offset(lane) + first;
                    // SAFETY: a (token, head) pair belongs to one lane of one block.
                    *dst = unsafe { output.range(start..start + n) };
                }
                // SAFETY: an instruction set of this machine; one tile.
                unsafe {
                    (self.kernels.elementwise.scale_lanes)(tile, &factors);
                    (self.tiles.scatter)(tile, None, &mut dst[..lanes.len()]);
                }
            }
        }
    }
}
