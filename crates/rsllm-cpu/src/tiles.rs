//! The prefill product on a tile unit: weights unpacked to bf16 meet activations rounded to bf16, sums in f32.
//!
//! A thread takes a strip of weight rows. For each block of K it unpacks 32 rows at a time and multiplies them with all
//! tokens, so the activations of the block stay in L2 while the strip passes. Sums go over K in order, through tile
//! registers and across blocks, so a (row, token) result depends on nothing else; the blocks depend on K alone.

use std::ops::Range;

use rsllm_tensor::BackendError;

use crate::kernels::{TILE, TILE_F32, Tiles, UnpackTiles};
use crate::matmul::{Matmul, Output, Pieces, Target, Vec4};
use crate::memory::{Aligned, Allocator};
use crate::threads::{SharedSlice, WorkerPanicked};

/// Tokens of a group, and rows of a tile.
const GROUP: usize = 16;
/// Rows of a panel: two tiles.
const PANEL_ROWS: usize = 32;
/// Most rows of a strip.
const STRIP_ROWS: usize = 128;
/// A K of up to so many values is one block: a panel of it is 64 KiB.
const WHOLE_K: usize = 1024;
/// A longer one is cut into blocks of so many. A multiple of every block length.
const BLOCK_K: usize = 512;
/// Values of K in a tile.
const TILE_K: usize = 32;
/// Values of K that are unpacked between the products of as many, where there are few tokens. A multiple of every block length.
const FEW_K: usize = 256;

/// What a thread works with.
pub(crate) struct TileScratch {
    panel: Aligned<u16>,
    /// `[panel of the strip][group][2][TILE_F32]`.
    accumulators: Aligned<f32>,
}

impl TileScratch {
    /// For at most `max_rows` tokens.
    pub(crate) fn new(allocator: &mut Allocator, max_rows: usize) -> Result<Self, BackendError> {
        let groups = max_rows.div_ceil(GROUP);
        Ok(Self {
            panel: Aligned::new(allocator, "tile panel", PANEL_ROWS * WHOLE_K)?,
            accumulators: Aligned::new(
                allocator,
                "tile accumulators",
                STRIP_ROWS / PANEL_ROWS * groups * 2 * TILE_F32,
            )?,
        })
    }

    /// Values of packed activations of `max_rows` tokens.
    pub(crate) fn packed_len(max_rows: usize, max_row_len: usize) -> usize {
        max_rows.next_multiple_of(GROUP) * max_row_len.next_multiple_of(TILE_K)
    }
}

/// The blocks of a K: each begins where the one before ends.
fn blocks(row_len: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    let len = if row_len <= WHOLE_K { WHOLE_K } else { BLOCK_K };
    (0..row_len)
        .step_by(len)
        .map(move |start| start..row_len.min(start + len))
}

impl Matmul<'_> {
    /// As the f32 product, for targets that all have an unpacker to tiles.
    pub(crate) fn prefill_tiles(
        &mut self,
        tiles: &'static Tiles,
        targets: &mut [Target<'_>],
        x: &[f32],
        n_tokens: usize,
    ) -> Result<(), WorkerPanicked> {
        let row_len = targets[0].weight.row_len;
        let n_groups = n_tokens.div_ceil(GROUP);
        self.pack_tiles(tiles, x, n_tokens, row_len)?;
        let packed = &self.scratch.tile_packed.as_slice()
            [..n_groups * GROUP * row_len.next_multiple_of(TILE_K)];
        let total_rows: usize = targets.iter().map(|t| t.weight.n_rows).sum();
        let most_rows = if n_groups <= 2 {
            STRIP_ROWS / 2
        } else {
            STRIP_ROWS
        };
        let strip_rows = (total_rows / (3 * self.pool.n_threads()))
            .next_multiple_of(PANEL_ROWS)
            .clamp(PANEL_ROWS, most_rows);
        let strips = Pieces::with_rows(targets, strip_rows);
        let outputs = targets.iter_mut().map(Output::new).collect::<Vec4<_>>();
        let threads = SharedSlice::new(&mut self.scratch.tiles);
        self.pool.run_pieces(strips.total, 1, |range, thread| {
            // SAFETY: each thread has its own index.
            let scratch = &mut unsafe { threads.range(thread..thread + 1) }[0];
            let _configured = Configured::new(tiles);
            for piece in range {
                let (target, rows) = strips.get(piece);
                let strip = Strip {
                    tiles,
                    output: outputs.get(target),
                    rows,
                    n_tokens,
                };
                if n_groups <= 2 {
                    strip.run_few(packed, scratch);
                } else {
                    strip.run(packed, scratch);
                }
            }
        })
    }

    /// Activations to `[block of K][group][k tile][TILE]`.
    fn pack_tiles(
        &mut self,
        tiles: &'static Tiles,
        x: &[f32],
        n_tokens: usize,
        row_len: usize,
    ) -> Result<(), WorkerPanicked> {
        let n_groups = n_tokens.div_ceil(GROUP);
        let n_tiles = row_len.div_ceil(TILE_K);
        let packed = &mut self.scratch.tile_packed.as_mut_slice()[..n_groups * n_tiles * TILE];
        let packed = SharedSlice::new(packed);
        self.pool.run_pieces(n_groups, 1, |groups, _| {
            for group in groups {
                let tokens = group * GROUP..n_tokens.min((group + 1) * GROUP);
                for block in blocks(row_len) {
                    let block_tiles = block.len().div_ceil(TILE_K);
                    let first = block.start / TILE_K * n_groups + group * block_tiles;
                    // SAFETY: a group's tiles of a block are its own.
                    let dst = unsafe { packed.range(first * TILE..(first + block_tiles) * TILE) };
                    for (t, tile) in dst.chunks_exact_mut(TILE).enumerate() {
                        let start = block.start + t * TILE_K;
                        let values = start..block.end.min(start + TILE_K);
                        let mut rows = [&[] as &[f32]; GROUP];
                        for (row, token) in rows.iter_mut().zip(tokens.clone()) {
                            *row = &x[token * row_len..][values.clone()];
                        }
                        // SAFETY: an instruction set of this machine.
                        unsafe { (tiles.pack)(&rows[..tokens.len()], tile) };
                    }
                }
            }
        })
    }
}

/// Tiles are usable while this lives.
pub(crate) struct Configured(&'static Tiles);

impl Configured {
    pub(crate) fn new(tiles: &'static Tiles) -> Self {
        // SAFETY: an instruction set of this machine, permitted or its table would not have been handed out.
        unsafe { (tiles.configure)() };
        Self(tiles)
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { (self.0.release)() };
    }
}

/// The packed rows of a panel, and of the one behind it.
struct PanelBytes<'a> {
    bytes: &'a [u8],
    ahead: &'a [u8],
    row_bytes: usize,
    unpack: UnpackTiles,
}

impl PanelBytes<'_> {
    /// The `n` values in bytes `piece` of one row to its place in `panel` `[2][k tile][TILE]`, if the panel has the row.
    fn unpack_row(&self, row: usize, piece: &Range<usize>, n: usize, panel: &mut [u16]) {
        let start = row * self.row_bytes;
        let Some(packed) = self.bytes.get(start + piece.start..start + piece.end) else {
            return;
        };
        let half_len = panel.len() / 2;
        let row = &mut panel[row / GROUP * half_len + row % GROUP * TILE_K..];
        if !n.is_multiple_of(TILE_K) {
            // Left-over bits may be no number, and that times the zeros of the other side is none either.
            let last = n / TILE_K * TILE;
            row[last..last + TILE_K].fill(0);
        }
        // SAFETY: an instruction set of this machine; the row's tiles lie within the panel.
        unsafe { (self.unpack)(packed, row) };
    }
}

/// Some values of K of the panel from `first_row` on.
struct Piece {
    first_row: usize,
    k: Range<usize>,
}

/// Rows of one weight times all tokens.
struct Strip<'a, 't> {
    tiles: &'static Tiles,
    output: &'a Output<'t>,
    rows: Range<usize>,
    n_tokens: usize,
}

impl Strip<'_, '_> {
    /// Tiles of this thread must be configured.
    fn run(&self, packed: &[u16], scratch: &mut TileScratch) {
        let row_len = self.output.weight.row_len;
        let n_groups = self.n_tokens.div_ceil(GROUP);
        let panel_results = n_groups * 2 * TILE_F32;
        for block in blocks(row_len) {
            let n_tiles = block.len().div_ceil(TILE_K);
            let start = block.start / TILE_K * n_groups * TILE;
            let b = &packed[start..start + n_groups * n_tiles * TILE];
            let panels = self.rows.clone().step_by(PANEL_ROWS);
            let results = scratch
                .accumulators
                .as_mut_slice()
                .chunks_exact_mut(panel_results);
            for (first_row, results) in panels.zip(results) {
                let rows = first_row..self.rows.end.min(first_row + PANEL_ROWS);
                let panel = &mut scratch.panel.as_mut_slice()[..2 * n_tiles * TILE];
                self.unpack(rows, block.clone(), panel);
                // SAFETY: configured by the caller; the slices carry their lengths.
                unsafe { (self.tiles.multiply)(panel, b, results, block.start > 0) };
            }
        }
        let panels = self.rows.clone().step_by(PANEL_ROWS);
        let results = scratch
            .accumulators
            .as_mut_slice()
            .chunks_exact_mut(panel_results);
        for (first_row, results) in panels.zip(results) {
            self.write_panel(first_row, results);
        }
    }

    /// The same for one or two groups of tokens, where unpacking is most of the work: the products of one piece of a panel run
    /// between the rows of the next one that are being unpacked. Sums go over K in the same order.
    fn run_few(&self, packed: &[u16], scratch: &mut TileScratch) {
        let row_len = self.output.weight.row_len;
        let n_groups = self.n_tokens.div_ceil(GROUP);
        let results = &mut scratch.accumulators.as_mut_slice()[..n_groups * 2 * TILE_F32];
        let mut halves = scratch
            .panel
            .as_mut_slice()
            .chunks_exact_mut(2 * FEW_K / TILE_K * TILE);
        let (Some(mut filling), Some(mut filled)) = (halves.next(), halves.next()) else {
            return;
        };
        let mut before: Option<Piece> = None;
        for first_row in self.rows.clone().step_by(PANEL_ROWS) {
            let rows = first_row..self.rows.end.min(first_row + PANEL_ROWS);
            let Some(bytes) = self.bytes(rows.clone()) else {
                return;
            };
            // The next panel is asked for in equal parts.
            let n_parts = row_len.div_ceil(FEW_K) * PANEL_ROWS;
            let mut ahead = bytes
                .ahead
                .chunks(bytes.ahead.len().div_ceil(n_parts).max(1));
            for start in (0..row_len).step_by(FEW_K) {
                let piece = Piece {
                    first_row,
                    k: start..row_len.min(start + FEW_K),
                };
                let in_row = self.piece(&piece.k);
                for row in 0..PANEL_ROWS {
                    if let Some(ahead) = ahead.next() {
                        // SAFETY: an instruction set of this machine.
                        unsafe { (self.tiles.prefetch)(ahead) };
                    }
                    bytes.unpack_row(row, &in_row, piece.k.len(), filling);
                    if row % 4 == 3
                        && let Some(before) = &before
                    {
                        self.step(before, row / 4, packed, filled);
                    }
                }
                if let Some(before) = &before {
                    self.finish(before, row_len, results);
                }
                std::mem::swap(&mut filling, &mut filled);
                before = Some(piece);
            }
        }
        if let Some(before) = &before {
            for t in 0..FEW_K / TILE_K {
                self.step(before, t, packed, filled);
            }
            self.finish(before, row_len, results);
        }
    }

    /// The products of the `t`-th k tile of a piece, if it has so many.
    fn step(&self, piece: &Piece, t: usize, packed: &[u16], panel: &[u16]) {
        if t * TILE_K >= piece.k.len() {
            return;
        }
        if piece.k.start + t == 0 {
            // SAFETY: configured by the caller, as below.
            unsafe { (self.tiles.clear)() };
        }
        let row_len = self.output.weight.row_len;
        let n_groups = self.n_tokens.div_ceil(GROUP);
        let tile = piece.k.start / TILE_K + t;
        // Where the block of K begins that the tile is in, and how many tiles it has.
        let block = blocks(row_len)
            .find(|block| block.end > tile * TILE_K)
            .expect("the tile is one of the row's");
        let (first, n_tiles) = (block.start / TILE_K, block.len().div_ceil(TILE_K));
        let group =
            |g: usize| &packed[(first * n_groups + g * n_tiles + tile - first) * TILE..][..TILE];
        let (a0, a1) = panel.split_at(panel.len() / 2);
        let a = [&a0[t * TILE..], &a1[t * TILE..]];
        // SAFETY: configured by the caller.
        unsafe {
            match n_groups {
                1 => (self.tiles.step)(a, &[group(0)]),
                _ => (self.tiles.step)(a, &[group(0), group(1)]),
            }
        }
    }

    /// Writes a panel whose last piece this was.
    fn finish(&self, piece: &Piece, row_len: usize, results: &mut [f32]) {
        if piece.k.end == row_len {
            // SAFETY: configured by the caller.
            unsafe { (self.tiles.finish)(results) };
            self.write_panel(piece.first_row, results);
        }
    }

    /// Results `[group][2][TILE_F32]` of the panel from `first_row` on.
    fn write_panel(&self, first_row: usize, results: &mut [f32]) {
        for (group, results) in results.chunks_exact_mut(2 * TILE_F32).enumerate() {
            for (half, tile) in results.chunks_exact_mut(TILE_F32).enumerate() {
                self.write(first_row + half * GROUP, group * GROUP, tile);
            }
        }
    }

    /// Values `block` of `rows` to `panel` `[2][k tile][TILE]`. Rows that are missing keep what was there: their results are not
    /// looked at.
    fn unpack(&self, rows: Range<usize>, block: Range<usize>, panel: &mut [u16]) {
        let Some(bytes) = self.bytes(rows.clone()) else {
            return;
        };
        let piece = self.piece(&block);
        for row in 0..rows.len() {
            // The same piece of the next panel: the processor's own prefetching stops at every row.
            let start = row * bytes.row_bytes;
            if let Some(ahead) = bytes.ahead.get(start + piece.start..start + piece.end) {
                // SAFETY: an instruction set of this machine.
                unsafe { (self.tiles.prefetch)(ahead) };
            }
            bytes.unpack_row(row, &piece, block.len(), panel);
        }
    }

    fn bytes(&self, rows: Range<usize>) -> Option<PanelBytes<'_>> {
        let weight = self.output.weight;
        let behind = rows.end..weight.n_rows.min(rows.end + PANEL_ROWS);
        Some(PanelBytes {
            bytes: weight.rows(self.output.matrix, rows),
            ahead: weight.rows(self.output.matrix, behind),
            row_bytes: weight.row_bytes,
            unpack: weight.unpack_tiles?,
        })
    }

    /// The bytes within a packed row that hold some of its values.
    fn piece(&self, values: &Range<usize>) -> Range<usize> {
        let ty = self.output.weight.ty;
        let (len, bytes) = (ty.block_len(), ty.block_bytes());
        values.start / len * bytes..values.end / len * bytes
    }

    /// A result tile, rows from `first_row` and tokens from `first_token` on, to the destination.
    fn write(&self, first_row: usize, first_token: usize, tile: &mut [f32]) {
        let output = self.output;
        let n_rows = GROUP.min(self.rows.end.saturating_sub(first_row));
        if n_rows == 0 {
            return;
        }
        // SAFETY: an instruction set of this machine; one tile.
        unsafe { (self.tiles.transpose)(tile) };
        let n_tokens = GROUP.min(self.n_tokens - first_token);
        for (token, sums) in tile.chunks_exact(GROUP).enumerate().take(n_tokens) {
            let start = (first_token + token) * output.weight.n_rows + first_row;
            // SAFETY: strips cover disjoint rows of the weight, so these ranges are disjoint.
            let dst = unsafe { output.dst.range(start..start + n_rows) };
            match output.bias {
                Some(bias) => {
                    let bias = &bias[first_row..first_row + n_rows];
                    for ((y, &sum), &b) in dst.iter_mut().zip(sums).zip(bias) {
                        *y = sum + b;
                    }
                }
                None => match (dst.first_chunk_mut::<GROUP>(), sums.first_chunk::<GROUP>()) {
                    (Some(dst), Some(sums)) => *dst = *sums,
                    _ => dst.copy_from_slice(&sums[..n_rows]),
                },
            }
        }
    }
}
