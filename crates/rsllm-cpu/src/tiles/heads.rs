//! Results that are heads of queries, keys and values: normed, rotated and mixed while they lie in L1, then written once,
//! keys and values to their pages.

use std::ops::Range;

use rsllm_tensor::RopeStyle;

use super::{GROUP, prefetch_to_write};
use crate::kernels::Tiles;
use crate::kernels::elementwise::Elementwise;
use crate::kv::CpuKv;
use crate::step_state::{RopeState, StepState};
use crate::threads::SharedSlice;

/// What a head is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Query,
    Key,
    Value,
}

/// What is done with heads, and where they go.
pub(crate) struct Heads<'t> {
    pub(crate) elementwise: &'t Elementwise,
    pub(crate) step: &'t StepState,
    pub(crate) head_dim: usize,
    /// Of queries, keys and values.
    pub(crate) biases: [Option<&'t [f32]>; 3],
    /// Of queries and keys.
    pub(crate) norms: [Option<&'t [f32]>; 2],
    pub(crate) norm_eps: f32,
    pub(crate) rope: &'t RopeState,
    pub(crate) mixed_block: Option<usize>,
    /// `[rows, query_width]`.
    pub(crate) queries: SharedSlice<'t, f32>,
    pub(crate) query_width: usize,
    pub(crate) layout: &'t rsllm_tensor::KvLayout,
    pub(crate) keys: SharedSlice<'t, u8>,
    pub(crate) values: SharedSlice<'t, u8>,
}

impl Heads<'_> {
    /// The results of weight rows `rows`, whole heads, and of `tokens`, a group's. `tiles_of` gives the tiles of some rows.
    pub(super) fn write<'r, I: Iterator<Item = (usize, &'r [f32])>>(
        &self,
        tiles: &Tiles,
        kind: Kind,
        rows: &Range<usize>,
        tokens: Range<usize>,
        staged: &mut [f32],
        tiles_of: impl Fn(&Range<usize>) -> I,
    ) {
        let n = rows.len();
        if kind == Kind::Query {
            for token in tokens.clone() {
                let start = token * self.query_width;
                for value in (start + rows.start..start + rows.end).step_by(GROUP) {
                    prefetch_to_write(&self.queries, value);
                }
            }
        }
        let staged = &mut staged[..tokens.len() * n];
        let bias = self.biases[kind as usize];
        for (first, tile) in tiles_of(rows) {
            if first >= rows.end {
                continue;
            }
            let of_tile = first - rows.start..n.min(first - rows.start + GROUP);
            let mut dst: [&mut [f32]; GROUP] = std::array::from_fn(|_| &mut [] as &mut [f32]);
            for (dst, row) in dst.iter_mut().zip(staged.chunks_exact_mut(n)) {
                *dst = &mut row[of_tile.clone()];
            }
            let bias = bias.map(|bias| &bias[first..first + of_tile.len()]);
            // SAFETY: an instruction set of this machine.
            unsafe { (tiles.scatter)(tile, bias, &mut dst[..tokens.len()]) };
        }
        for (token, row) in tokens.zip(staged.chunks_exact_mut(n)) {
            for head in row.chunks_exact_mut(self.head_dim) {
                self.finish(kind, token, head);
            }
            if kind == Kind::Query {
                let start = token * self.query_width;
                // SAFETY: strips cover disjoint rows of the weight, so these ranges are disjoint.
                let dst = unsafe { self.queries.range(start + rows.start..start + rows.end) };
                dst.copy_from_slice(row);
            } else {
                self.store(kind, token, rows.start / self.head_dim, row);
            }
        }
    }

    /// Norm, rotation and mixing of one head of one row of the step, as each operation of its own does them.
    fn finish(&self, kind: Kind, row: usize, head: &mut [f32]) {
        let elementwise = self.elementwise;
        // SAFETY: the table belongs to an instruction set this machine has.
        unsafe {
            if kind != Kind::Value {
                if let Some(norm) = self.norms[kind as usize] {
                    (elementwise.rms_norm_in_place)(head, norm, self.norm_eps);
                }
                let rotate = match self.rope.style {
                    RopeStyle::Interleaved => elementwise.rope_interleaved,
                    RopeStyle::HalfSplit => elementwise.rope_half_split,
                };
                let n_rot = self.rope.n_rot;
                rotate(head, &self.rope.cos_sin[row * n_rot..(row + 1) * n_rot]);
            }
            if let Some(block) = self.mixed_block {
                for values in head.chunks_exact_mut(block) {
                    (elementwise.hadamard)(values);
                }
            }
        }
    }

    /// The heads from `first` on of one row of the step to their slots.
    fn store(&self, kind: Kind, row: usize, first: usize, heads: &[f32]) {
        let sequences = &self.step.sequences;
        let sequence = &sequences[sequences.partition_point(|s| s.rows().end <= row)];
        let layout = self.layout;
        let index = sequence.first_index + row - sequence.first_row;
        let page = self.step.pages_of(sequence)[index / layout.page_len].of(layout.group) as usize;
        let store = if kind == Kind::Key {
            &self.keys
        } else {
            &self.values
        };
        for (i, head) in heads.chunks_exact(self.head_dim).enumerate() {
            let at = CpuKv::row_offset(layout, page, first + i, index % layout.page_len);
            // SAFETY: each (sequence, position, head) has its own slot: pages being written belong to one sequence.
            let slot = unsafe { store.range(at..at + layout.row_bytes()) };
            CpuKv::encode(layout.kv_type, slot, head);
        }
    }
}
