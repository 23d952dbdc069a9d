//! Where a strip's results go: to rows of activations, to heads of attention, or, gated, to the tiles of the next product.

use std::ops::Range;

use super::heads::{Heads, Kind};
use super::{GROUP, PANEL_ROWS, TILE_K, packed_at, prefetch_to_write};
use crate::kernels::{GateTiles, TILE, TILE_F32, Tiles};
use crate::matmul::Output;
use crate::threads::SharedSlice;

/// The destination of a strip's results.
pub(super) enum Sink<'a, 't> {
    /// Rows `[token, n_rows]`.
    Rows {
        output: &'a Output<'t>,
        /// Which row a token's results go to; without it they follow each other.
        places: Option<&'a [u32]>,
        /// Results are added to what is there.
        add: bool,
    },
    Heads {
        heads: &'a Heads<'t>,
        kind: Kind,
    },
    Gated(&'a Gated<'t>),
}

/// Pairs of results become right-hand operands.
pub(super) struct Gated<'t> {
    /// `[block of K][group][k tile][TILE]`; the second is for low parts.
    pub(super) dst: [SharedSlice<'t, u16>; 2],
    /// Values of a row of it.
    pub(super) row_len: usize,
    /// Of gate and up.
    pub(super) biases: [Option<&'t [f32]>; 2],
    pub(super) kernel: GateKernel,
}

/// `act(gate) * up` of result tiles to an operand.
pub(super) enum GateKernel {
    Rounded(GateTiles),
    /// In two parts: in place, by the kernel that all other rows take, and then cut.
    Parts(unsafe fn(&mut [f32], &[f32])),
}

impl Sink<'_, '_> {
    /// Results `[panel][group][2][TILE_F32]` of weight rows `rows`; with two weights, panels of the first and of the second take
    /// turns. `staged` holds 16 rows of a strip.
    pub(super) fn write(
        &self,
        tiles: &Tiles,
        rows: &Range<usize>,
        n_tokens: usize,
        results: &mut [f32],
        staged: &mut [f32],
    ) {
        let n_groups = n_tokens.div_ceil(GROUP);
        let panel_results = n_groups * 2 * TILE_F32;
        match self {
            Self::Rows {
                output,
                places,
                add,
            } => {
                // All rows of a few tokens: so the pages that are written to change seldom.
                for group in 0..n_groups {
                    let places_of = |group| {
                        let tokens = group * GROUP..n_tokens.min((group + 1) * GROUP);
                        places_of(tokens, *places, output.weight.n_rows)
                    };
                    let (here, next) = (places_of(group), places_of(group + 1));
                    for (first_row, tile) in tiles_of(rows, group, panel_results, results) {
                        let rows = first_row..rows.end.min(first_row + GROUP);
                        write_tile(tiles, output, rows, [&here, &next], *add, tile);
                    }
                }
            }
            Self::Heads { heads, kind } => {
                for group in 0..n_groups {
                    let tokens = group * GROUP..n_tokens.min((group + 1) * GROUP);
                    heads.write(tiles, *kind, rows, tokens, staged, |rows| {
                        tiles_of(rows, group, panel_results, results)
                    });
                }
            }
            Self::Gated(gated) => {
                for (first_row, results) in rows
                    .clone()
                    .step_by(PANEL_ROWS)
                    .zip(results.chunks_exact_mut(2 * panel_results))
                {
                    let rows = first_row..rows.end.min(first_row + PANEL_ROWS);
                    let (gates, ups) = results.split_at_mut(panel_results);
                    let gates = gates.chunks_exact_mut(2 * TILE_F32);
                    for (group, (gate, up)) in
                        gates.zip(ups.chunks_exact_mut(2 * TILE_F32)).enumerate()
                    {
                        gated.write(tiles, &rows, group, n_groups, [gate, up]);
                    }
                }
            }
        }
    }
}

/// The result tiles of a group of tokens, each with the first of its weight rows, which begin at `rows`.
fn tiles_of<'r>(
    rows: &Range<usize>,
    group: usize,
    panel_results: usize,
    results: &'r [f32],
) -> impl Iterator<Item = (usize, &'r [f32])> + use<'r> {
    rows.clone()
        .step_by(PANEL_ROWS)
        .zip(results.chunks_exact(panel_results))
        .flat_map(move |(first_row, results)| {
            let halves =
                results[group * 2 * TILE_F32..(group + 1) * 2 * TILE_F32].chunks_exact(TILE_F32);
            halves
                .enumerate()
                .map(move |(half, tile)| (first_row + half * GROUP, tile))
        })
}

/// Where the rows of a group of tokens begin.
struct Places {
    starts: [usize; GROUP],
    n: usize,
}

fn places_of(tokens: Range<usize>, places: Option<&[u32]>, width: usize) -> Places {
    let mut starts = [0; GROUP];
    for (start, token) in starts.iter_mut().zip(tokens.clone()) {
        *start = places.map_or(token, |places| places[token] as usize) * width;
    }
    Places {
        starts,
        n: tokens.len(),
    }
}

/// A result tile of weight rows `rows` to rows of the output; those of the next tokens are asked for.
fn write_tile(
    tiles: &Tiles,
    output: &Output<'_>,
    rows: Range<usize>,
    [here, next]: [&Places; 2],
    add: bool,
    tile: &[f32],
) {
    if rows.is_empty() {
        return;
    }
    for start in &next.starts[..next.n] {
        prefetch_to_write(&output.dst, start + rows.start);
    }
    let mut dst: [&mut [f32]; GROUP] = std::array::from_fn(|_| &mut [] as &mut [f32]);
    for (dst, start) in dst.iter_mut().zip(&here.starts[..here.n]) {
        // SAFETY: strips cover disjoint rows of the weight and no two tokens have one place, so these ranges are disjoint.
        *dst = unsafe { output.dst.range(start + rows.start..start + rows.end) };
    }
    let bias = output.bias.map(|bias| &bias[rows]);
    let write = if add {
        tiles.scatter_add
    } else {
        tiles.scatter
    };
    // SAFETY: an instruction set of this machine.
    unsafe { write(tile, bias, &mut dst[..here.n]) };
}

impl Gated<'_> {
    /// Results `[2][TILE_F32]` of gate and up, of values `rows` and one group of tokens: one tile of the operand.
    fn write(
        &self,
        tiles: &Tiles,
        rows: &Range<usize>,
        group: usize,
        n_groups: usize,
        [gate, up]: [&mut [f32]; 2],
    ) {
        for (results, bias) in [&mut *gate, &mut *up].into_iter().zip(self.biases) {
            let Some(bias) = bias else { continue };
            for (values, bias) in results.chunks_exact_mut(GROUP).zip(&bias[rows.clone()]) {
                for value in values {
                    *value += bias;
                }
            }
        }
        // What is there of rows that are missing may be no number.
        gate[rows.len() * GROUP..].fill(0.0);
        up[rows.len() * GROUP..].fill(0.0);
        let in_parts = matches!(self.kernel, GateKernel::Parts(_));
        let k_tile = rows.start / TILE_K;
        let at = packed_at((self.row_len, in_parts), n_groups, group, k_tile);
        let [high, low] = &self.dst;
        let tile = at..at + TILE;
        // SAFETY: strips cover disjoint values, so each tile is written once. An instruction set of this machine.
        unsafe {
            match self.kernel {
                GateKernel::Rounded(kernel) => kernel(gate, up, high.range(tile)),
                GateKernel::Parts(kernel) => {
                    kernel(gate, up);
                    (tiles.pairs)(gate, [high.range(tile.clone()), low.range(tile)]);
                }
            }
        }
    }
}
