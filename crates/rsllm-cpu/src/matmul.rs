//! Matrix products: fused dots on packed blocks for decode rows, a blocked product for prefill rows.
//!
//! Decode: activations are quantised once, then every weight row is dotted with all columns; weights are read once and
//! in order. Prompt rows whose logits are wanted take the same path at the end of the model, but with the rest of the
//! rounding as a second term: they are few, and nothing averages their errors any more. Other prompt rows (prefill) go to
//! `tiles.rs` or, without a tile unit, `panels.rs`. In all a (row, token) result is summed over K in one fixed order, so it
//! does not depend on the number of tokens, threads or on the cut into panels.

use std::ops::Range;

use rsllm_quant::{ActivationBlock, GgmlType, dequantize_activations};
use rsllm_tensor::{BackendError, Op};

use crate::kernels::{Dot, Integers, Kernels, Prepared, PreparedColumns, Tiles};
use crate::memory::{Aligned, Allocator};
use crate::panels::{PANEL_K, PANEL_ROWS};
pub(crate) use crate::pieces::{Pieces, Vec4};
use crate::threads::{SharedSlice, ThreadPool, WorkerPanicked};
use crate::tiles::TileScratch;
use crate::weight::CpuWeight;

/// Columns of one fused-dot call; more only repeat the work per column.
const MAX_DOT_COLUMNS: usize = 16;
/// Weight bytes of a decode piece: small enough to balance, large enough to stream.
const DECODE_PIECE_BYTES: Range<usize> = 8 * 1024..64 * 1024;
/// The same where the kernels read a piece from several places at once: pieces that shrink, from these on.
const STREAMED_PIECE_BYTES: Range<usize> = 16 * 1024..1024 * 1024;
/// Columns up to which they do.
const FEW_COLUMNS: usize = 4;
/// Most rows of a piece.
const MAX_DOT_ROWS: usize = 4096;
/// Rows whose sums kernels complete together; threads share out that many at a time.
const SQUARE: usize = 16;

/// Values that a thread quantises at a time.
const QUANTIZED_PIECE: usize = 2 * 1024;

/// One product of a group, as plain slices.
pub(crate) struct Target<'a> {
    /// `[n_rows, weight.n_rows]`.
    pub(crate) dst: &'a mut [f32],
    pub(crate) weight: &'a CpuWeight,
    /// Expert.
    pub(crate) matrix: usize,
    pub(crate) bias: Option<&'a [f32]>,
}

/// A target whose destination several threads write to.
pub(crate) struct Output<'a> {
    pub(crate) dst: SharedSlice<'a, f32>,
    pub(crate) weight: &'a CpuWeight,
    pub(crate) matrix: usize,
    pub(crate) bias: Option<&'a [f32]>,
}

impl<'a> Output<'a> {
    pub(crate) fn new<'t: 'a>(target: &'a mut Target<'t>) -> Self {
        Self {
            dst: SharedSlice::new(target.dst),
            weight: target.weight,
            matrix: target.matrix,
            bias: target.bias,
        }
    }
}

/// Scratch of all products, reserved at load time.
pub(crate) struct MatmulScratch {
    /// Quantised activations of decode rows, `[terms, rows, blocks of a row]`.
    pub(crate) blocks: Aligned<ActivationBlock>,
    /// What the first term leaves of a row.
    rest: Aligned<f32>,
    /// Packed activations of prefill rows; with a tile unit, its gated values, or the second parts of activations.
    pub(crate) packed: Aligned<f32>,
    /// Per thread: unpacked panel, then accumulators.
    pub(crate) threads: Vec<ThreadScratch>,
    /// Products of decode rows so far.
    n_products: u64,
    /// For the product on tiles; empty without a tile unit.
    pub(crate) tile_packed: Aligned<u16>,
    pub(crate) tiles: Vec<TileScratch>,
}

pub(crate) struct ThreadScratch {
    pub(crate) panel: Aligned<f32>,
    pub(crate) accumulators: Aligned<f32>,
    columns: Aligned<f32>,
    /// Activations as the dot kernels want them, and which those are.
    prepared: Aligned<Prepared>,
    prepared_for: Option<PreparedFor>,
}

/// The first columns of a product for weights of a type; their rows are as long in all of the product.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PreparedFor {
    product: u64,
    first: usize,
    ty: GgmlType,
}

impl MatmulScratch {
    /// For inputs of at most `max_rows` rows of `max_row_len` values.
    pub(crate) fn new(
        allocator: &mut Allocator,
        kernels: &Kernels,
        n_threads: usize,
        max_rows: usize,
        max_row_len: usize,
    ) -> Result<Self, BackendError> {
        let padded_rows = max_rows.next_multiple_of(kernels.gemm_columns);
        let threads = (0..n_threads)
            .map(|_| {
                Ok(ThreadScratch {
                    panel: Aligned::new(allocator, "matmul panel", PANEL_ROWS * PANEL_K)?,
                    accumulators: Aligned::new(
                        allocator,
                        "matmul accumulators",
                        PANEL_ROWS * padded_rows,
                    )?,
                    columns: Aligned::new(
                        allocator,
                        "matmul columns",
                        MAX_DOT_ROWS * MAX_DOT_COLUMNS,
                    )?,
                    prepared: Aligned::new(
                        allocator,
                        "prepared activations",
                        Prepared::room(MAX_DOT_COLUMNS, max_row_len.div_ceil(256)),
                    )?,
                    prepared_for: None,
                })
            })
            .collect::<Result<_, BackendError>>()?;
        Ok(Self {
            blocks: Aligned::new(
                allocator,
                "quantised activations",
                max_rows.max(2) * max_row_len.div_ceil(256),
            )?,
            rest: Aligned::new(allocator, "rest of a row", max_row_len)?,
            packed: Aligned::new(allocator, "packed activations", padded_rows * max_row_len)?,
            threads,
            n_products: 0,
            tile_packed: Aligned::new(
                allocator,
                "packed activations",
                match kernels.tiles {
                    Some(_) => TileScratch::packed_len(max_rows, max_row_len),
                    None => 0,
                },
            )?,
            tiles: match kernels.tiles {
                Some(_) => (0..n_threads)
                    .map(|_| TileScratch::new(allocator, max_rows))
                    .collect::<Result<_, _>>()?,
                None => Vec::new(),
            },
        })
    }
}

/// The parts of the backend a product works with.
pub(crate) struct Matmul<'a> {
    pub(crate) kernels: &'a Kernels,
    pub(crate) pool: &'a mut ThreadPool,
    pub(crate) scratch: &'a mut MatmulScratch,
    /// The rows are those whose logits are wanted.
    pub(crate) outputs: bool,
}

impl Matmul<'_> {
    /// Products of the first `n_prefill` rows of `x` by the prefill path and of the rest by the decode path.
    pub(crate) fn run(
        &mut self,
        targets: &mut [Target<'_>],
        x: &[f32],
        n_rows: usize,
        n_prefill: usize,
    ) -> Result<(), BackendError> {
        let Some(first) = targets.first() else {
            return Ok(());
        };
        // A prefill chunk whose logits nobody wants has no output rows.
        if n_rows == 0 {
            return Ok(());
        }
        let row_len = first.weight.row_len;
        check_shapes(targets, x, n_rows)?;
        if n_prefill > 0 {
            let (kernels, outputs) = (self.kernels, self.outputs);
            let path = |weight: &CpuWeight| Path::of(weight, kernels, outputs);
            let kind = |weight| std::mem::discriminant(&path(weight));
            for targets in targets.chunk_by_mut(|a, b| kind(a.weight) == kind(b.weight)) {
                let x = &x[..n_prefill * row_len];
                match path(targets[0].weight) {
                    Path::TwoTerms => self.decode_in_two_terms(targets, x, n_prefill),
                    Path::Tiles(tiles) => self.prefill_tiles(tiles, targets, x, n_prefill),
                    Path::Integers(integers) => {
                        self.prefill(Some(integers), targets, None, x, n_prefill)
                    }
                    Path::Floats => self.prefill(None, targets, None, x, n_prefill),
                }
                .map_err(worker_panicked)?;
            }
        }
        if n_prefill < n_rows {
            self.decode(targets, &x[n_prefill * row_len..], n_prefill..n_rows, 1)
                .map_err(worker_panicked)?;
        }
        Ok(())
    }

    /// Quantise rows of `x` into the shared blocks, in one term or two: the second is what the first leaves.
    fn quantize(&mut self, x: &[f32], row_len: usize, terms: usize) -> Result<(), WorkerPanicked> {
        let row_blocks = row_len.div_ceil(256);
        let quantize = |row: &[f32], blocks: &mut [ActivationBlock]| {
            // SAFETY: the table belongs to an instruction set this machine has; a quantised weight's rows are
            // multiples of 32 long, and `blocks` holds their whole number of 256.
            unsafe { (self.kernels.quantize_activations)(row, blocks) };
        };
        let n_blocks = x.len() / row_len * row_blocks;
        let (first, second) = self.scratch.blocks.as_mut_slice().split_at_mut(n_blocks);
        if terms == 1 {
            let first = SharedSlice::new(first);
            let piece = QUANTIZED_PIECE.div_ceil(row_len);
            return self.pool.run_pieces(x.len() / row_len, piece, |rows, _| {
                for i in rows {
                    // SAFETY: each row has its own blocks.
                    let blocks = unsafe { first.range(i * row_blocks..(i + 1) * row_blocks) };
                    quantize(&x[i * row_len..(i + 1) * row_len], blocks);
                }
            });
        }
        let rest = &mut self.scratch.rest.as_mut_slice()[..row_len];
        for (i, row) in x.chunks_exact(row_len).enumerate() {
            let range = i * row_blocks..(i + 1) * row_blocks;
            quantize(row, &mut first[range.clone()]);
            if terms == 2 {
                dequantize_activations(&first[range.clone()], rest);
                for (rest, x) in rest.iter_mut().zip(row) {
                    *rest = x - *rest;
                }
                quantize(rest, &mut second[range]);
            }
        }
        Ok(())
    }

    /// The first `n_rows` rows, as [`Self::decode`] does but to sixteen bits of their activations.
    fn decode_in_two_terms(
        &mut self,
        targets: &mut [Target<'_>],
        x: &[f32],
        n_rows: usize,
    ) -> Result<(), WorkerPanicked> {
        let row_len = targets[0].weight.row_len;
        // What the blocks have room for: at least one row, usually all.
        let at_once = self.scratch.blocks.as_slice().len() / (2 * row_len.div_ceil(256));
        for start in (0..n_rows).step_by(at_once) {
            let rows = start..n_rows.min(start + at_once);
            let x = &x[rows.start * row_len..rows.end * row_len];
            self.decode(targets, x, rows, 2)?;
        }
        Ok(())
    }

    /// `x` holds the decode rows; they are rows `columns` of each destination.
    fn decode(
        &mut self,
        targets: &mut [Target<'_>],
        x: &[f32],
        columns: Range<usize>,
        terms: usize,
    ) -> Result<(), WorkerPanicked> {
        let row_len = targets[0].weight.row_len;
        if targets.iter().any(|t| matches!(t.weight.dot, Dot::Int8(_))) {
            self.quantize(x, row_len, terms)?;
        }
        let n_blocks = terms * columns.len() * row_len.div_ceil(256);
        let blocks = &self.scratch.blocks.as_slice()[..n_blocks];
        let total_bytes: usize = targets
            .iter()
            .map(|t| t.weight.n_rows * t.weight.row_bytes)
            .sum();
        let row_bytes = targets.iter().map(|t| t.weight.row_bytes).max();
        let row_bytes = row_bytes.unwrap_or(1);
        let part_bytes = total_bytes / (4 * self.pool.n_threads());
        let n_dots = terms * columns.len();
        let most = part_bytes.clamp(DECODE_PIECE_BYTES.start, DECODE_PIECE_BYTES.end);
        let piece_bytes = if n_dots > FEW_COLUMNS {
            // A row takes so long that nobody should wait for the last rows of another thread.
            [1, most]
        } else if row_bytes >= Dot::STREAMED_ROW_BYTES {
            let Range { start, end } = STREAMED_PIECE_BYTES;
            [start, part_bytes.clamp(start, end)]
        } else {
            [most; 2]
        };
        // The scratch for several columns holds MAX_DOT_ROWS rows.
        let piece_sizes = piece_bytes.map(|bytes| (bytes / row_bytes).min(MAX_DOT_ROWS) / SQUARE);
        let squares = Pieces::with_rows(targets, SQUARE);
        self.scratch.n_products += 1;
        let product = self.scratch.n_products;
        let outputs = targets.iter_mut().map(Output::new).collect::<Vec4<_>>();
        let threads = SharedSlice::new(&mut self.scratch.threads);
        self.pool
            .run_shrinking(squares.total, piece_sizes, |mut range, thread| {
                // SAFETY: each thread has its own index.
                let scratch = &mut unsafe { threads.range(thread..thread + 1) }[0];
                while !range.is_empty() {
                    let (target, rows, rest) = squares.first_of(range);
                    range = rest;
                    let output = outputs.get(target);
                    dot_piece(product, output, rows, x, blocks, columns.clone(), scratch);
                }
            })
    }
}

/// How a product of prompt rows is done.
pub(crate) enum Path {
    TwoTerms,
    Tiles(&'static Tiles),
    Integers(&'static Integers),
    Floats,
}

impl Path {
    /// A product's path is its weight's own, whatever company it has in a group. `outputs` are rows whose logits are wanted.
    pub(crate) fn of(weight: &CpuWeight, kernels: &Kernels, outputs: bool) -> Self {
        match (weight.dot, kernels.tiles, kernels.integers) {
            (Dot::Int8(_), ..) if outputs => Self::TwoTerms,
            (_, Some(tiles), _) if weight.takes_tiles() => Self::Tiles(tiles),
            (Dot::Int8(_), _, Some(integers)) => Self::Integers(integers),
            _ => Self::Floats,
        }
    }
}

/// Dots of weight rows `rows` with all columns of a product, in groups. Where `blocks` hold two terms, the second is added.
fn dot_piece(
    product: u64,
    output: &Output<'_>,
    rows: Range<usize>,
    x: &[f32],
    blocks: &[ActivationBlock],
    columns: Range<usize>,
    scratch: &mut ThreadScratch,
) {
    let weight = output.weight;
    let packed = weight.rows(output.matrix, rows.clone());
    let row_len = weight.row_len;
    let row_blocks = row_len.div_ceil(256);
    let n_dots = match weight.dot {
        Dot::Int8(_) => blocks.len() / row_blocks,
        Dot::F32(_) => columns.len(),
    };
    let mut first = 0;
    while first < n_dots {
        let n = MAX_DOT_COLUMNS.min(n_dots - first);
        let dots = &mut scratch.columns.as_mut_slice()[..rows.len() * n];
        match weight.dot {
            Dot::Int8(dot) => {
                let room = Prepared::room(n, row_blocks);
                let wanted = Some(PreparedFor {
                    product,
                    first,
                    ty: weight.ty,
                });
                let prepared = PreparedColumns {
                    units: &mut scratch.prepared.as_mut_slice()[..room],
                    are_filled: scratch.prepared_for == wanted,
                };
                let x = &blocks[first * row_blocks..(first + n) * row_blocks];
                // SAFETY: the kernel belongs to an instruction set this machine has; `packed` holds whole rows, `dots` one value
                // a row and column, and the columns are `row_len` values each, rounded up to whole blocks.
                unsafe { dot(packed, weight.row_bytes, x, n, dots, prepared) };
                scratch.prepared_for = wanted;
            }
            // SAFETY: as above, with columns of exactly `row_len` values.
            Dot::F32(dot) => unsafe {
                dot(
                    packed,
                    weight.row_bytes,
                    &x[first * row_len..(first + n) * row_len],
                    n,
                    dots,
                );
            },
        }
        for (column, dots) in (first..).zip(dots.chunks_exact(rows.len())) {
            let start = (columns.start + column % columns.len()) * weight.n_rows + rows.start;
            // SAFETY: pieces cover disjoint rows of a destination, so these ranges are disjoint.
            let dst = unsafe { output.dst.range(start..start + rows.len()) };
            if column >= columns.len() {
                dst.iter_mut().zip(dots).for_each(|(y, dot)| *y += dot);
            } else if let Some(bias) = output.bias {
                for ((y, dot), bias) in dst.iter_mut().zip(dots).zip(&bias[rows.clone()]) {
                    *y = dot + bias;
                }
            } else {
                dst.copy_from_slice(dots);
            }
        }
        first += n;
    }
}

/// Whether `x` and the destinations have `n_rows` rows of the weights' widths.
pub(crate) fn check_shapes(
    targets: &[Target<'_>],
    x: &[f32],
    n_rows: usize,
) -> Result<(), BackendError> {
    for target in targets {
        let weight = target.weight;
        check("input width", x.len() / n_rows.max(1), weight.row_len)?;
        check("output length", target.dst.len(), n_rows * weight.n_rows)?;
    }
    Ok(())
}

fn check(what: &'static str, found: usize, expected: usize) -> Result<(), BackendError> {
    if found == expected {
        Ok(())
    } else {
        Err(BackendError::Shape {
            op: Op::Matmul,
            what,
            expected,
            found,
        })
    }
}

pub(crate) fn worker_panicked(WorkerPanicked: WorkerPanicked) -> BackendError {
    BackendError::WorkerPanicked { op: Op::Matmul }
}
