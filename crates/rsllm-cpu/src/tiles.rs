//! The prefill product on a tile unit: weights unpacked to bf16 meet activations rounded to bf16, sums in f32. F16 weights
//! and their activations are two parts of bf16 each.
//!
//! A thread takes a strip of weight rows. For each block of K it unpacks 32 rows at a time and multiplies them with all
//! tokens, so the activations of the block stay in L2 while the strip passes. Sums go over K in order, through tile
//! registers and across blocks, so a (row, token) result depends on nothing else; the blocks depend on K alone.
//!
//! The inner products of a gated FFN never leave the tiles: two results are gated where they lie, and a tile of them,
//! rounded to bf16, is a tile of the next product's activations.

mod heads;
mod sink;
mod strip;

use std::ops::Range;

use rsllm_tensor::{Activation, BackendError, Op};

use crate::kernels::{PartsMut, TILE, TILE_F32, Tiles};
use crate::matmul::{Matmul, MatmulScratch, Output, Pieces, Target, Vec4};
use crate::memory::{Aligned, Allocator};
use crate::threads::{SharedSlice, ThreadPool, WorkerPanicked};
use crate::weight::CpuWeight;
pub(crate) use heads::{Heads, Kind};
use sink::{GateKernel, Gated, Sink};
use strip::Strip;

/// Tokens of a group, and rows of a tile.
const GROUP: usize = 16;
/// Rows of a panel: two tiles.
const PANEL_ROWS: usize = 32;
/// Rows of a strip: their sums, of 512 tokens, are 256 KiB of L2.
const STRIP_ROWS: usize = 128;
/// Most rows of a strip, where the activations of all blocks together outgrow L2 and come from L3 once a strip.
const MOST_STRIP_ROWS: usize = 256;
/// Activations that leave L2 room for other things: 1 MiB, 1,024 values of 512 tokens in one part.
const RESIDENT: usize = 512 * 1024;
/// Values of K in a block, of all parts of a value together: a panel of it is 32 KiB, which stays in L1 while activations go
/// by. A half of it is a multiple of every block length.
const BLOCK_K: usize = 512;
/// Values of K in a tile.
pub(crate) const TILE_K: usize = 32;
/// Values of K that are unpacked between the products of as many, where there are few tokens. A multiple of every block length.
const FEW_K: usize = 256;

/// What a thread works with.
pub(crate) struct TileScratch {
    /// `[part][2][k tile][TILE]`.
    panel: Aligned<u16>,
    /// `[panel of the strip][group][2][TILE_F32]`.
    accumulators: Aligned<f32>,
    /// Results of 16 tokens, `[token][row of the strip]`.
    staged: Aligned<f32>,
}

impl TileScratch {
    /// For at most `max_rows` tokens.
    pub(crate) fn new(allocator: &mut Allocator, max_rows: usize) -> Result<Self, BackendError> {
        let groups = max_rows.div_ceil(GROUP);
        Ok(Self {
            panel: Aligned::new(allocator, "tile panel", 2 * PANEL_ROWS * BLOCK_K)?,
            accumulators: Aligned::new(
                allocator,
                "tile accumulators",
                MOST_STRIP_ROWS / PANEL_ROWS * groups * 2 * TILE_F32,
            )?,
            staged: Aligned::new(allocator, "tile results", GROUP * MOST_STRIP_ROWS)?,
        })
    }

    /// Values of packed activations of `max_rows` tokens.
    pub(crate) fn packed_len(max_rows: usize, max_row_len: usize) -> usize {
        max_rows.next_multiple_of(GROUP) * max_row_len.next_multiple_of(TILE_K)
    }
}

/// Values of K in a block of operands in one part or in two.
fn block_len(in_parts: bool) -> usize {
    if in_parts { BLOCK_K / 2 } else { BLOCK_K }
}

/// The blocks of a K: each begins where the one before ends.
fn blocks(row_len: usize, in_parts: bool) -> impl Iterator<Item = Range<usize>> + Clone {
    let len = block_len(in_parts);
    (0..row_len)
        .step_by(len)
        .map(move |start| start..row_len.min(start + len))
}

/// Whether the activations of all blocks stay in L2 while strips go by.
fn are_resident(n_tokens: usize, row_len: usize, in_parts: bool) -> bool {
    let n_parts = if in_parts { 2 } else { 1 };
    n_tokens.next_multiple_of(GROUP) * row_len * n_parts <= RESIDENT
}

/// A weight of a product, without its destination.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) weight: &'a CpuWeight,
    /// Expert.
    pub(crate) matrix: usize,
    pub(crate) bias: Option<&'a [f32]>,
}

impl<'a> Source<'a> {
    /// A weight that has one matrix, and its bias, `[n_rows]` of the weight. A bias of another length is an error of `op`.
    pub(crate) fn bound(
        op: Op,
        (weight, bias): (&'a CpuWeight, Option<&'a CpuWeight>),
    ) -> Result<Self, BackendError> {
        let bias = bias
            .map(|bias| bias.vector(op, weight.n_rows))
            .transpose()?;
        Ok(Self {
            weight,
            matrix: 0,
            bias,
        })
    }

    /// The product to `dst`.
    pub(crate) fn to<'t>(self, dst: &'t mut [f32]) -> Target<'t>
    where
        'a: 't,
    {
        Target {
            dst,
            weight: self.weight,
            matrix: self.matrix,
            bias: self.bias,
        }
    }
}

/// The inner products of a gated FFN, `act(gate · x) * (up · x)`.
pub(crate) struct Inner<'a> {
    pub(crate) gate: Source<'a>,
    pub(crate) up: Source<'a>,
    pub(crate) activation: Activation,
}

/// Rows of activations: the tokens of a product.
#[derive(Clone, Copy)]
pub(crate) struct Tokens<'a> {
    /// `[rows, row_len]`.
    pub(crate) x: &'a [f32],
    pub(crate) n: usize,
    /// Which row a token is; without it they follow each other.
    pub(crate) rows: Option<&'a [u32]>,
}

impl<'a> Tokens<'a> {
    fn row(&self, token: usize, row_len: usize) -> &'a [f32] {
        let row = self.rows.map_or(token, |rows| rows[token] as usize);
        &self.x[row * row_len..(row + 1) * row_len]
    }
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
        let tokens = Tokens {
            x,
            n: n_tokens,
            rows: None,
        };
        let alike = |a: &Target<'_>, b: &Target<'_>| a.weight.in_parts() == b.weight.in_parts();
        for targets in targets.chunk_by_mut(alike) {
            self.product(tiles, targets[0].weight, tokens)?
                .run(targets, None, false)?;
        }
        Ok(())
    }

    /// A product of these tokens, packed for `weight`.
    fn product<'s>(
        &'s mut self,
        tiles: &'static Tiles,
        weight: &CpuWeight,
        tokens: Tokens<'_>,
    ) -> Result<Product<'s>, WorkerPanicked> {
        let MatmulScratch {
            tiles: threads,
            tile_packed,
            packed,
            ..
        } = &mut *self.scratch;
        // What the f32 product would pack to; it has no part in this one.
        let low = weight
            .in_parts()
            .then(|| bytemuck::cast_slice_mut(packed.as_mut_slice()));
        Product::of(
            tiles,
            self.pool,
            threads,
            [Some(tile_packed.as_mut_slice()), low],
            tokens,
            weight.row_len,
        )
    }

    /// `target.dst += target.weight · x` of prompt rows, for a weight that [`Self::adding_tiles`] lets pass.
    pub(crate) fn add_tiles(
        &mut self,
        tiles: &'static Tiles,
        target: Target<'_>,
        tokens: Tokens<'_>,
    ) -> Result<(), WorkerPanicked> {
        self.product(tiles, target.weight, tokens)?
            .run(&mut [target], None, true)
    }

    /// The tile unit, if prompt rows of these products go there, all in the same form.
    pub(crate) fn adding_tiles(&self, weights: &[&CpuWeight]) -> Option<&'static Tiles> {
        self.kernels
            .tiles
            .filter(|_| !self.outputs && weights.iter().all(|weight| weight.takes_tiles()))
            .filter(|_| {
                weights
                    .iter()
                    .all(|weight| weight.in_parts() == weights[0].in_parts())
            })
    }

    /// The tile unit, if products with these weights can go from there to heads of `head_dim`.
    pub(crate) fn head_tiles(
        &self,
        weights: [&CpuWeight; 3],
        head_dim: usize,
    ) -> Option<&'static Tiles> {
        let fits = head_dim.is_multiple_of(PANEL_ROWS) && head_dim <= MOST_STRIP_ROWS;
        self.adding_tiles(&weights).filter(|_| fits)
    }

    /// Queries, keys and values of prompt rows, made by these weights.
    pub(crate) fn heads_tiles(
        &mut self,
        tiles: &'static Tiles,
        weights: [&CpuWeight; 3],
        heads: &Heads<'_>,
        tokens: Tokens<'_>,
    ) -> Result<(), WorkerPanicked> {
        self.product(tiles, weights[0], tokens)?
            .run_heads(weights, heads)
    }

    /// The tile unit and whether a gated FFN of prompt rows fits it as one operation.
    pub(crate) fn gated_tiles(
        &self,
        weights: [&CpuWeight; 3],
        n_tokens: usize,
    ) -> Option<&'static Tiles> {
        let n_parts = if weights[0].in_parts() { 2 } else { 1 };
        let [x, hidden] =
            [weights[0], weights[2]].map(|weight| n_parts * packed_len(n_tokens, weight.row_len));
        let fits = x <= self.scratch.tile_packed.as_slice().len()
            && hidden <= size_of_val(self.scratch.packed.as_slice()) / size_of::<u16>();
        self.adding_tiles(&weights).filter(|_| fits)
    }

    /// `target = down · (act(gate · x) * (up · x))` of prompt rows, down being the target's weight. `places` are the rows of the
    /// target that tokens' results go to; without it they follow each other. With `add` they are added to what is there. For
    /// weights that [`Self::gated_tiles`] lets pass.
    pub(crate) fn gated_ffn_tiles(
        &mut self,
        tiles: &'static Tiles,
        inner: &Inner<'_>,
        target: Target<'_>,
        tokens: Tokens<'_>,
        places: Option<&[u32]>,
        add: bool,
    ) -> Result<(), WorkerPanicked> {
        let row_len = inner.gate.weight.row_len;
        let in_parts = target.weight.in_parts();
        let kernel = if in_parts {
            GateKernel::Parts(self.kernels.elementwise.gate(inner.activation))
        } else {
            GateKernel::Rounded(tiles.gate(inner.activation))
        };
        let (threads, packed) = (&mut self.scratch.tiles, &mut self.scratch.tile_packed);
        let (packed, low) = packed
            .as_mut_slice()
            .split_at_mut(packed_len(tokens.n, row_len));
        // As above.
        let hidden: &mut [u16] = bytemuck::cast_slice_mut(self.scratch.packed.as_mut_slice());
        let (hidden, hidden_low) = hidden.split_at_mut(packed_len(tokens.n, target.weight.row_len));
        let n_low = if in_parts { hidden.len() } else { 0 };
        let mut hidden = [hidden, &mut hidden_low[..n_low]];
        let room = [Some(packed), in_parts.then_some(low)];
        let mut product = Product::of(tiles, self.pool, threads, room, tokens, row_len)?;
        product.run_gated(inner, kernel, hidden.each_mut().map(|part| &mut **part))?;
        product.packed = hidden.map(|part| &*part);
        product.run(&mut [target], places, add)
    }
}

/// Asks for the cache line of a value that will be written soon.
pub(crate) fn prefetch_to_write(values: &SharedSlice<'_, f32>, index: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, of an address that is not looked at; a processor of 64 bits that does not know it does nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) values.address(index), options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (values, index);
}

/// Values of packed activations.
fn packed_len(n_tokens: usize, row_len: usize) -> usize {
    n_tokens.next_multiple_of(GROUP) * row_len.next_multiple_of(TILE_K)
}

/// Where the tile of values `k_tile * TILE_K..` of a group of tokens lies in packed activations
/// `[block of K][group][k tile][TILE]`.
fn packed_at(
    (row_len, in_parts): (usize, bool),
    n_groups: usize,
    group: usize,
    k_tile: usize,
) -> usize {
    let most_tiles = block_len(in_parts) / TILE_K;
    let first = k_tile / most_tiles * most_tiles;
    let n_tiles = (row_len.div_ceil(TILE_K) - first).min(most_tiles);
    (first * n_groups + group * n_tiles + k_tile - first) * TILE
}

/// Activations to `[block of K][group][k tile][TILE]`, rounded, or in two parts where there is room for the second.
fn pack(
    pool: &mut ThreadPool,
    tiles: &'static Tiles,
    tokens: Tokens<'_>,
    row_len: usize,
    packed: [&mut [u16]; 2],
) -> Result<(), WorkerPanicked> {
    let n_groups = tokens.n.div_ceil(GROUP);
    let in_parts = !packed[1].is_empty();
    let packed = packed.map(SharedSlice::new);
    pool.run_pieces(n_groups, 1, |groups, _| {
        for group in groups {
            let of_group = group * GROUP..tokens.n.min((group + 1) * GROUP);
            for block in blocks(row_len, in_parts) {
                let block_tiles = block.len().div_ceil(TILE_K);
                let first = block.start / TILE_K * n_groups + group * block_tiles;
                for t in 0..block_tiles {
                    let tile = (first + t) * TILE..(first + t + 1) * TILE;
                    let start = block.start + t * TILE_K;
                    let values = start..block.end.min(start + TILE_K);
                    let mut rows = [&[] as &[f32]; GROUP];
                    for (row, token) in rows.iter_mut().zip(of_group.clone()) {
                        *row = &tokens.row(token, row_len)[values.clone()];
                    }
                    let rows = &rows[..of_group.len()];
                    // SAFETY: a group's tiles of a block are its own. An instruction set of this machine.
                    unsafe {
                        let high = packed[0].range(tile.clone());
                        if in_parts {
                            (tiles.queries)(rows, [high, packed[1].range(tile)]);
                        } else {
                            (tiles.pack)(rows, high);
                        }
                    }
                }
            }
        }
    })
}

/// Products of packed activations.
struct Product<'a> {
    tiles: &'static Tiles,
    pool: &'a mut ThreadPool,
    threads: &'a mut [TileScratch],
    /// The second is empty unless there are two.
    packed: [&'a [u16]; 2],
    n_tokens: usize,
}

impl<'a> Product<'a> {
    /// Of these tokens, which are packed for it.
    fn of(
        tiles: &'static Tiles,
        pool: &'a mut ThreadPool,
        threads: &'a mut [TileScratch],
        room: [Option<&'a mut [u16]>; 2],
        tokens: Tokens<'_>,
        row_len: usize,
    ) -> Result<Self, WorkerPanicked> {
        let n = packed_len(tokens.n, row_len);
        let mut packed = room.map(|part| part.map_or(&mut [] as &mut [u16], |part| &mut part[..n]));
        pack(
            pool,
            tiles,
            tokens,
            row_len,
            packed.each_mut().map(|part| &mut **part),
        )?;
        let packed = packed.map(|part| &*part);
        Ok(Self {
            tiles,
            pool,
            threads,
            packed,
            n_tokens: tokens.n,
        })
    }

    fn run(
        &mut self,
        targets: &mut [Target<'_>],
        places: Option<&[u32]>,
        add: bool,
    ) -> Result<(), WorkerPanicked> {
        let total_rows: usize = targets.iter().map(|t| t.weight.n_rows).sum();
        let strips = Pieces::with_rows(
            targets,
            self.strip_rows(total_rows, targets[0].weight.row_len, 1),
        );
        let outputs = targets.iter_mut().map(Output::new).collect::<Vec4<_>>();
        self.run_strips(strips.total, |piece| {
            let (target, rows) = strips.get(piece);
            let output = outputs.get(target);
            let source = Source {
                weight: output.weight,
                matrix: output.matrix,
                bias: output.bias,
            };
            let sink = Sink::Rows {
                output,
                places,
                add,
            };
            (sink, [Some(source), None], rows)
        })
    }

    /// To heads.
    fn run_heads(
        &mut self,
        weights: [&CpuWeight; 3],
        heads: &Heads<'_>,
    ) -> Result<(), WorkerPanicked> {
        let total_rows: usize = weights.iter().map(|weight| weight.n_rows).sum();
        let most = self.strip_rows(total_rows, weights[0].row_len, 1);
        let strip_rows = (most / heads.head_dim).max(1) * heads.head_dim;
        let kinds = [Kind::Query, Kind::Key, Kind::Value];
        let n_strips = weights.map(|weight| weight.n_rows.div_ceil(strip_rows));
        self.run_strips(n_strips.iter().sum(), |piece| {
            let (mut target, mut piece) = (0, piece);
            while piece >= n_strips[target] {
                piece -= n_strips[target];
                target += 1;
            }
            let weight = weights[target];
            let source = Source {
                weight,
                matrix: 0,
                bias: None,
            };
            let rows = piece * strip_rows..weight.n_rows.min((piece + 1) * strip_rows);
            let kind = kinds[target];
            (Sink::Heads { heads, kind }, [Some(source), None], rows)
        })
    }

    /// To packed activations `hidden`.
    fn run_gated(
        &mut self,
        inner: &Inner<'_>,
        kernel: GateKernel,
        hidden: PartsMut<'_>,
    ) -> Result<(), WorkerPanicked> {
        let ffn_dim = inner.gate.weight.n_rows;
        let strip_rows = self.strip_rows(ffn_dim, inner.gate.weight.row_len, 2);
        let gated = Gated {
            dst: hidden.map(SharedSlice::new),
            row_len: ffn_dim,
            biases: [inner.gate.bias, inner.up.bias],
            kernel,
        };
        self.run_strips(ffn_dim.div_ceil(strip_rows), |piece| {
            let rows = piece * strip_rows..ffn_dim.min((piece + 1) * strip_rows);
            (
                Sink::Gated(&gated),
                [Some(inner.gate), Some(inner.up)],
                rows,
            )
        })
    }

    /// Rows of a strip, so that every thread gets a few.
    fn strip_rows(&self, total_rows: usize, row_len: usize, n_sources: usize) -> usize {
        let resident = are_resident(self.n_tokens, row_len, !self.packed[1].is_empty());
        let most_rows = if self.n_tokens <= 2 * GROUP {
            STRIP_ROWS / 2
        } else if resident {
            STRIP_ROWS
        } else {
            MOST_STRIP_ROWS
        };
        // Where activations come from L3, wide strips are worth more than even shares.
        let each = if resident { 3 } else { 2 };
        (total_rows / (each * self.pool.n_threads()))
            .next_multiple_of(PANEL_ROWS)
            .clamp(PANEL_ROWS, most_rows / n_sources)
    }

    fn run_strips<'s, 't: 's>(
        &mut self,
        n_strips: usize,
        strip: impl Fn(usize) -> (Sink<'s, 't>, [Option<Source<'s>>; 2], Range<usize>) + Sync,
    ) -> Result<(), WorkerPanicked> {
        let (tiles, packed, n_tokens) = (self.tiles, self.packed, self.n_tokens);
        let threads = SharedSlice::new(&mut *self.threads);
        self.pool.run_pieces(n_strips, 1, |pieces, thread| {
            // SAFETY: each thread has its own index.
            let scratch = &mut unsafe { threads.range(thread..thread + 1) }[0];
            let _configured = Configured::new(tiles);
            for piece in pieces {
                let (sink, sources, rows) = strip(piece);
                Strip {
                    tiles,
                    sources,
                    sink,
                    rows,
                    n_tokens,
                }
                .run(packed, scratch);
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
