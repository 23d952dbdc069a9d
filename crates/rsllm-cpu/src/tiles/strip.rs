//! A strip of weight rows times all tokens.

use std::ops::Range;

use super::sink::Sink;
use super::{
    FEW_K, GROUP, PANEL_ROWS, Source, TILE_K, TileScratch, are_resident, block_len, blocks,
    packed_at,
};
use crate::kernels::{Ahead, Parts, PartsMut, TILE, TILE_F32, Tiles, ToTiles};

/// Groups of tokens from which on weights in two parts are asked for while products run.
const LONG: usize = 16;

/// The packed rows of a panel, and of the one behind it.
struct PanelBytes<'a> {
    bytes: &'a [u8],
    ahead: &'a [u8],
    row_bytes: usize,
    to_tiles: ToTiles,
}

impl PanelBytes<'_> {
    /// The `n` values in bytes `piece` of one row to its place in each part of `panel` `[2][k tile][TILE]`, if the panel has the
    /// row.
    fn unpack_row(&self, row: usize, piece: &Range<usize>, n: usize, panel: PartsMut<'_>) {
        let start = row * self.row_bytes;
        let Some(packed) = self.bytes.get(start + piece.start..start + piece.end) else {
            return;
        };
        let first = row % GROUP * TILE_K;
        let [high, low] = panel.map(|part| {
            let half = part.len() / 2;
            let row = &mut part[row / GROUP * half..];
            if half > 0 && !n.is_multiple_of(TILE_K) {
                // Left-over bits may be no number, and that times the zeros of the other side is none either.
                let last = first + n / TILE_K * TILE;
                row[last..last + TILE_K].fill(0);
            }
            row
        });
        // SAFETY: an instruction set of this machine; the row's tiles lie within the panel.
        unsafe {
            match self.to_tiles {
                ToTiles::Rounded(unpack) => unpack(packed, &mut high[first..]),
                ToTiles::Parts(unpack) => {
                    unpack(packed, [&mut high[first..], &mut low[first..]]);
                }
            }
        }
    }
}

/// Rows of one weight: what is unpacked and multiplied at once.
#[derive(Clone)]
struct Panel<'a> {
    source: Source<'a>,
    rows: Range<usize>,
}

impl Panel<'_> {
    fn bytes(&self) -> Option<PanelBytes<'_>> {
        let weight = self.source.weight;
        let behind = self.rows.end..weight.n_rows.min(self.rows.end + PANEL_ROWS);
        Some(PanelBytes {
            bytes: weight.rows(self.source.matrix, self.rows.clone()),
            ahead: weight.rows(self.source.matrix, behind),
            row_bytes: weight.row_bytes,
            to_tiles: weight.to_tiles?,
        })
    }

    /// The bytes within a packed row that hold some of its values.
    fn piece(&self, values: &Range<usize>) -> Range<usize> {
        let ty = self.source.weight.ty;
        let (len, bytes) = (ty.block_len(), ty.block_bytes());
        values.start / len * bytes..values.end / len * bytes
    }
}

/// Some values of K of a panel.
struct Piece {
    /// Number of the panel.
    panel: usize,
    k: Range<usize>,
}

/// The same rows of one weight, or of two, times all tokens.
pub(super) struct Strip<'a, 't> {
    pub(super) tiles: &'static Tiles,
    pub(super) sources: [Option<Source<'a>>; 2],
    pub(super) sink: Sink<'a, 't>,
    pub(super) rows: Range<usize>,
    pub(super) n_tokens: usize,
}

impl Strip<'_, '_> {
    /// Tiles of this thread must be configured.
    pub(super) fn run(&self, packed: Parts<'_>, scratch: &mut TileScratch) {
        let n_groups = self.n_tokens.div_ceil(GROUP);
        if n_groups <= 2 && packed[1].is_empty() {
            self.multiply_few(packed[0], scratch);
        } else {
            self.multiply(packed, scratch);
        }
        let n_results = self.panels().count() * n_groups * 2 * TILE_F32;
        let results = &mut scratch.accumulators.as_mut_slice()[..n_results];
        let staged = scratch.staged.as_mut_slice();
        self.sink
            .write(self.tiles, &self.rows, self.n_tokens, results, staged);
    }

    /// Rows of each weight in turn.
    fn panels(&self) -> impl Iterator<Item = Panel<'_>> {
        self.rows.clone().step_by(PANEL_ROWS).flat_map(|first| {
            let rows = first..self.rows.end.min(first + PANEL_ROWS);
            self.sources.iter().flatten().map(move |&source| Panel {
                source,
                rows: rows.clone(),
            })
        })
    }

    fn row_len(&self) -> usize {
        self.sources[0].map_or(0, |source| source.weight.row_len)
    }

    /// Each block of K of each panel. Where the activations of all blocks stay in L2, the blocks of one panel follow each
    /// other, so that its results stay near and its weights are read in the order in which they lie; otherwise all panels
    /// meet one block before the next.
    fn multiply(&self, packed: Parts<'_>, scratch: &mut TileScratch) {
        let (row_len, in_parts) = (self.row_len(), !packed[1].is_empty());
        if are_resident(self.n_tokens, row_len, in_parts) {
            for (number, panel) in self.panels().enumerate() {
                for block in blocks(row_len, in_parts) {
                    self.multiply_panel(&panel, number, block, packed, [&[]; 2], scratch);
                }
            }
            return;
        }
        for block in blocks(row_len, in_parts) {
            let mut ahead = self.ahead(&block, packed);
            for (number, panel) in self.panels().enumerate() {
                let ahead = ahead.next().unwrap_or_default();
                self.multiply_panel(&panel, number, block.clone(), packed, ahead, scratch);
            }
        }
    }

    /// One block of K of one panel.
    fn multiply_panel(
        &self,
        panel: &Panel<'_>,
        number: usize,
        block: Range<usize>,
        packed: Parts<'_>,
        ahead: Parts<'_>,
        scratch: &mut TileScratch,
    ) {
        let in_parts = !packed[1].is_empty();
        let n_groups = self.n_tokens.div_ceil(GROUP);
        let panel_results = n_groups * 2 * TILE_F32;
        let results = &mut scratch.accumulators.as_mut_slice()[number * panel_results..];
        let results = &mut results[..panel_results];
        let n_tiles = block.len().div_ceil(TILE_K);
        let start = block.start / TILE_K * n_groups * TILE;
        let of_block = start..start + n_groups * n_tiles * TILE;
        let len = 2 * n_tiles * TILE;
        let (high, low) = scratch.panel.as_mut_slice().split_at_mut(len);
        let low = &mut low[..if in_parts { len } else { 0 }];
        let accumulate = block.start > 0;
        let Some(bytes) = panel.bytes() else {
            return;
        };
        // The same piece of the panel behind it, as the processor's own prefetching stops at every row. Where reading bounds unpacking
        // and products are long, it is asked for during those.
        let while_unpacking = !in_parts || n_groups < LONG;
        let ahead = Ahead {
            activations: ahead,
            weights: if while_unpacking { &[] } else { bytes.ahead },
            row_bytes: bytes.row_bytes,
            piece: panel.piece(&block),
        };
        for row in 0..panel.rows.len() {
            let start = row * bytes.row_bytes;
            let of_row = start + ahead.piece.start..start + ahead.piece.end;
            if while_unpacking && let Some(behind) = bytes.ahead.get(of_row) {
                // SAFETY: an instruction set of this machine.
                unsafe { (self.tiles.prefetch)(behind) };
            }
            // Rows that are missing keep what was there: their results are not looked at.
            bytes.unpack_row(row, &ahead.piece, block.len(), [&mut *high, &mut *low]);
        }
        // SAFETY: configured by the caller; the slices carry their lengths.
        unsafe {
            if in_parts {
                let b = packed.map(|part| &part[of_block.clone()]);
                (self.tiles.multiply_parts)([high, low], b, results, accumulate, &ahead);
            } else {
                let b = &packed[0][of_block];
                (self.tiles.multiply)(high, b, results, accumulate, &ahead);
            }
        }
    }

    /// The activations of the next block of K, or of the next strip, in a part for each panel.
    fn ahead<'p>(
        &self,
        block: &Range<usize>,
        packed: Parts<'p>,
    ) -> impl Iterator<Item = Parts<'p>> + use<'p> {
        let (row_len, len) = (self.row_len(), block_len(!packed[1].is_empty()));
        let next = if block.end < row_len {
            block.end..row_len.min(block.end + len)
        } else {
            0..row_len.min(len)
        };
        let tile_of = |k: usize| k.div_ceil(TILE_K) * self.n_tokens.div_ceil(GROUP) * TILE;
        let next = tile_of(next.start)..tile_of(next.end);
        let of_panel = next.len().div_ceil(self.panels().count()).max(1);
        let of_panel = of_panel.next_multiple_of(TILE);
        let of_part = |part: &'p [u16]| part.get(next.clone()).unwrap_or_default().chunks(of_panel);
        let [high, mut low] = packed.map(of_part);
        high.map(move |high| [high, low.next().unwrap_or_default()])
    }

    /// The same for one or two groups of tokens, where unpacking is most of the work: the products of one piece of a panel run
    /// between the rows of the next one that are being unpacked. Sums go over K in the same order.
    fn multiply_few(&self, packed: &[u16], scratch: &mut TileScratch) {
        let row_len = self.row_len();
        let n_groups = self.n_tokens.div_ceil(GROUP);
        let results = scratch.accumulators.as_mut_slice();
        let mut halves = scratch
            .panel
            .as_mut_slice()
            .chunks_exact_mut(2 * FEW_K / TILE_K * TILE);
        let (Some(mut filling), Some(mut filled)) = (halves.next(), halves.next()) else {
            return;
        };
        let mut before: Option<Piece> = None;
        for (number, panel) in self.panels().enumerate() {
            let Some(bytes) = panel.bytes() else {
                return;
            };
            // The next panel is asked for in equal parts.
            let n_parts = row_len.div_ceil(FEW_K) * PANEL_ROWS;
            let mut ahead = bytes
                .ahead
                .chunks(bytes.ahead.len().div_ceil(n_parts).max(1));
            for start in (0..row_len).step_by(FEW_K) {
                let piece = Piece {
                    panel: number,
                    k: start..row_len.min(start + FEW_K),
                };
                let in_row = panel.piece(&piece.k);
                for row in 0..PANEL_ROWS {
                    if let Some(ahead) = ahead.next() {
                        // SAFETY: an instruction set of this machine.
                        unsafe { (self.tiles.prefetch)(ahead) };
                    }
                    bytes.unpack_row(row, &in_row, piece.k.len(), [filling, &mut []]);
                    if row % 4 == 3
                        && let Some(before) = &before
                    {
                        self.step(before, row / 4, packed, filled);
                    }
                }
                if let Some(before) = &before {
                    self.finish(before, results);
                }
                std::mem::swap(&mut filling, &mut filled);
                before = Some(piece);
            }
        }
        if let Some(before) = &before {
            for t in 0..FEW_K / TILE_K {
                self.step(before, t, packed, filled);
            }
            self.finish(before, results);
        }
        debug_assert!(n_groups <= 2, "the registers hold the sums of two groups");
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
        let n_groups = self.n_tokens.div_ceil(GROUP);
        let tile = piece.k.start / TILE_K + t;
        let group =
            |g: usize| &packed[packed_at((self.row_len(), false), n_groups, g, tile)..][..TILE];
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

    /// Keeps the results of a panel whose last piece this was.
    fn finish(&self, piece: &Piece, results: &mut [f32]) {
        if piece.k.end == self.row_len() {
            let n = self.n_tokens.div_ceil(GROUP) * 2 * TILE_F32;
            // SAFETY: configured by the caller.
            unsafe { (self.tiles.finish)(&mut results[piece.panel * n..(piece.panel + 1) * n]) };
        }
    }
}
