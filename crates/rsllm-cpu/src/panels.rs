//! Products of prompt rows without a tile unit: a panel of weight rows is unpacked into cache and multiplied with all tokens, whose
//! activations were packed tokens-in-lanes. Float weights are multiplied as f32; the values of quantised ones and their
//! activations become integers of 16 bits first, where the instruction set multiplies these faster.

use std::ops::Range;

use rsllm_tensor::{Activation, BackendError};

use crate::kernels::{Integers, Kernels, SCALED_LEN, ScaledRow};
use crate::matmul::{Matmul, Output, Path, Target, check_shapes, worker_panicked};
use crate::memory::prefetch_line;
use crate::ops;
use crate::pieces::{Pieces, Vec4};
use crate::threads::{SharedSlice, WorkerPanicked};
use crate::tiles::{Source, prefetch_to_write};

/// Values of K that one unpacked panel covers: 48 rows of it fill an L1 cache, the tokens' part stays in L2.
/// A multiple of every block length.
pub(crate) const PANEL_K: usize = 256;
/// Weight rows that kernels take at a time, or a multiple of those.
const TILE_ROWS: usize = 12;
/// Weight rows of a panel; a multiple of these.
pub(crate) const PANEL_ROWS: usize = 48;
/// Values of a cache line.
const LINE: usize = 16;
/// Side of a square of results.
pub(crate) const SQUARE: usize = 16;

/// What a panel of weights meets.
#[derive(Clone, Copy)]
enum Packed<'a> {
    /// `[K part][panel of tokens][k][token]`, parts of [`PANEL_K`].
    Floats(&'a [f32]),
    Integers {
        kernels: &'a Integers,
        /// `[K part][panel of tokens][k / 2][token][2]`, parts of [`SCALED_LEN`].
        values: &'a [i16],
        /// `[K part][token]`.
        scales: &'a [f32],
    },
}

impl Matmul<'_> {
    /// `gates = act(gate · x) * (up · x)`, all of `n_rows` rows, of which the first `n_prefill` are prompt rows. What `ups` holds
    /// afterwards is not said.
    pub(crate) fn gated(
        &mut self,
        [gate, up]: [Source<'_>; 2],
        activation: Activation,
        [gates, ups]: [&mut [f32]; 2],
        x: &[f32],
        n_rows: usize,
        n_prefill: usize,
    ) -> Result<(), BackendError> {
        let width = gate.weight.n_rows;
        check_shapes(&[gate.to(gates), up.to(ups)], x, n_rows)?;
        let path = |weight| Path::of(weight, self.kernels, self.outputs);
        let integers = match (path(gate.weight), path(up.weight)) {
            (Path::Integers(integers), Path::Integers(_)) => Some(Some(integers)),
            (Path::Floats, Path::Floats) => Some(None),
            _ => None,
        };
        let mut n_done = 0;
        if let Some(integers) = integers.filter(|_| n_prefill > 0) {
            let (gates, ups) = (
                &mut gates[..n_prefill * width],
                &mut ups[..n_prefill * width],
            );
            let x = &x[..n_prefill * gate.weight.row_len];
            let mut targets = [gate.to(gates), up.to(ups)];
            self.prefill(integers, &mut targets, Some(activation), x, n_prefill)
                .map_err(worker_panicked)?;
            n_done = n_prefill;
        }
        let (gates, ups) = (&mut gates[n_done * width..], &mut ups[n_done * width..]);
        let x = &x[n_done * gate.weight.row_len..];
        let mut targets = [gate.to(gates), up.to(ups)];
        self.run(&mut targets, x, n_rows - n_done, n_prefill - n_done)?;
        ops::gate(self.kernels, self.pool, activation, gates, ups, width)
    }

    /// The product of `n_tokens` prompt rows, with `integers` by that. With a `gating` the first of two targets gets
    /// `act(first) * second`, and the second nothing.
    pub(crate) fn prefill(
        &mut self,
        integers: Option<&Integers>,
        targets: &mut [Target<'_>],
        gating: Option<Activation>,
        x: &[f32],
        n_tokens: usize,
    ) -> Result<(), WorkerPanicked> {
        let row_len = targets[0].weight.row_len;
        let lanes = self.kernels.gemm_columns;
        let n_panels = n_tokens.div_ceil(lanes);
        match integers {
            Some(integers) => self.pack_integers(integers, x, n_tokens, row_len)?,
            None => self.pack_floats(x, n_tokens, row_len)?,
        }
        let packed = self.scratch.packed.as_slice();
        let packed = match integers {
            Some(kernels) => {
                let n_scales = row_len.div_ceil(SCALED_LEN) * n_panels * lanes;
                let (scales, values) = packed.split_at(n_scales);
                let values = &bytemuck::cast_slice(values)[..n_panels * lanes * row_len];
                Packed::Integers {
                    kernels,
                    values,
                    scales,
                }
            }
            None => Packed::Floats(&packed[..n_panels * lanes * row_len]),
        };
        let kernels = self.kernels;
        let gate = gating.map(|activation| kernels.elementwise.gate(activation));
        // Pieces of both are as many as of one.
        let to_cut = match gate {
            None => &*targets,
            Some(_) => &targets[..1],
        };
        let total_rows: usize = to_cut.iter().map(|t| t.weight.n_rows).sum();
        // Small products still give every thread some pieces, so many that the last do not keep the others waiting.
        let piece_rows = (total_rows / (8 * self.pool.n_threads()))
            .next_multiple_of(TILE_ROWS)
            .clamp(TILE_ROWS, PANEL_ROWS);
        let jobs = Pieces::with_rows(to_cut, piece_rows);
        let outputs = targets.iter_mut().map(Output::new).collect::<Vec4<_>>();
        let threads = SharedSlice::new(&mut self.scratch.threads);
        self.pool.run_pieces(jobs.total, 1, |range, thread| {
            // SAFETY: each thread has its own index.
            let scratch = &mut unsafe { threads.range(thread..thread + 1) }[0];
            let unpacked = scratch.panel.as_mut_slice();
            let accumulators = scratch.accumulators.as_mut_slice();
            for piece in range {
                let (target, rows) = jobs.get(piece);
                let first = outputs.get(target);
                let accumulators = &mut accumulators[..rows.len() * n_panels * lanes];
                let mut multiply = |output, finish| {
                    let panel = Panel {
                        kernels,
                        output,
                        dst: &first.dst,
                        rows: rows.clone(),
                        n_panels,
                    };
                    match packed {
                        Packed::Floats(x) => panel.multiply(x, unpacked, accumulators),
                        Packed::Integers {
                            kernels,
                            values,
                            scales,
                        } => {
                            panel.multiply_integers(
                                kernels,
                                values,
                                scales,
                                unpacked,
                                accumulators,
                            );
                        }
                    }
                    panel.write(accumulators, n_tokens, finish);
                };
                multiply(first, None);
                if gate.is_some() {
                    multiply(outputs.get(1), gate);
                }
            }
        })
    }

    /// Activations `[n_tokens, row_len]` as [`Packed::Floats`], missing tokens zero.
    fn pack_floats(
        &mut self,
        x: &[f32],
        n_tokens: usize,
        row_len: usize,
    ) -> Result<(), WorkerPanicked> {
        let lanes = self.kernels.gemm_columns;
        let n_panels = n_tokens.div_ceil(lanes);
        let packed =
            SharedSlice::new(&mut self.scratch.packed.as_mut_slice()[..n_panels * lanes * row_len]);
        let n_parts = row_len.div_ceil(PANEL_K);
        self.pool.run_pieces(n_panels * n_parts, 4, |range, _| {
            for job in range {
                let (part, panel) = (job / n_panels, job % n_panels);
                let k = part * PANEL_K..row_len.min((part + 1) * PANEL_K);
                let start = (k.start * n_panels + panel * k.len()) * lanes;
                // SAFETY: each (part, panel) pair is one job and owns this range.
                let dst = unsafe { packed.range(start..start + k.len() * lanes) };
                for lane in 0..lanes {
                    let token = panel * lanes + lane;
                    let column = dst.iter_mut().skip(lane).step_by(lanes);
                    if token < n_tokens {
                        let row = &x[token * row_len..][k.clone()];
                        column.zip(row).for_each(|(y, &x)| *y = x);
                    } else {
                        column.for_each(|y| *y = 0.0);
                    }
                }
            }
        })
    }

    /// Activations `[n_tokens, row_len]` as [`Packed::Integers`], missing tokens zero.
    fn pack_integers(
        &mut self,
        integers: &Integers,
        x: &[f32],
        n_tokens: usize,
        row_len: usize,
    ) -> Result<(), WorkerPanicked> {
        let lanes = self.kernels.gemm_columns;
        let n_panels = n_tokens.div_ceil(lanes);
        let n_parts = row_len.div_ceil(SCALED_LEN);
        let packed = self.scratch.packed.as_mut_slice();
        let (scales, pairs) = packed.split_at_mut(n_parts * n_panels * lanes);
        let scales = SharedSlice::new(scales);
        let pairs = &mut bytemuck::cast_slice_mut::<f32, [i16; 2]>(pairs);
        let pairs = SharedSlice::new(&mut pairs[..n_panels * lanes * row_len / 2]);
        self.pool.run_pieces(n_panels * n_parts, 4, |range, _| {
            for job in range {
                let (part, panel) = (job / n_panels, job % n_panels);
                let k = part * SCALED_LEN..row_len.min((part + 1) * SCALED_LEN);
                let start = (k.start * n_panels + panel * k.len()) * lanes / 2;
                // SAFETY: each (part, panel) pair is one job and owns this range.
                let dst = unsafe { pairs.range(start..start + k.len() * lanes / 2) };
                // SAFETY: and this one.
                let scales = unsafe { scales.range(job * lanes..(job + 1) * lanes) };
                let mut values = [0; SCALED_LEN];
                let values = &mut values[..k.len()];
                for (lane, scale) in scales.iter_mut().enumerate() {
                    let token = panel * lanes + lane;
                    if token < n_tokens {
                        let row = &x[token * row_len..][k.clone()];
                        // What comes next lies in another page, where no processor looks for it.
                        let next = (token + 2) * row_len;
                        if let Some(next) = x.get(next + k.start..next + k.end) {
                            for line in next.as_chunks::<LINE>().0 {
                                prefetch_line(bytemuck::bytes_of(line));
                            }
                        }
                        // SAFETY: an instruction set of this machine; the lengths are equal, and multiples of 32 as
                        // the rows of quantised weights are.
                        *scale =
                            unsafe { (integers.quantize)(row, Integers::ACTIVATION_LIMIT, values) };
                    } else {
                        *scale = 0.0;
                        values.fill(0);
                    }
                    let column = dst.iter_mut().skip(lane).step_by(lanes);
                    column
                        .zip(values.as_chunks().0)
                        .for_each(|(y, pair)| *y = *pair);
                }
            }
        })
    }
}

/// Some rows of a weight, for all tokens.
struct Panel<'a, 't> {
    kernels: &'a Kernels,
    /// The weight and its bias.
    output: &'a Output<'t>,
    dst: &'a SharedSlice<'t, f32>,
    rows: Range<usize>,
    /// Panels of tokens.
    n_panels: usize,
}

impl Panel<'_, '_> {
    /// Calls `multiply` with the place in K of each part of the rows and with the bytes of every row there. The bytes of the next
    /// part are asked for, because rows lie too far from each other for the processor to guess them.
    fn each_part<'w>(
        &'w self,
        mut multiply: impl FnMut(Range<usize>, &mut dyn Iterator<Item = &'w [u8]>),
    ) {
        let weight = self.output.weight;
        let bytes_of = |k: usize| k / weight.ty.block_len() * weight.ty.block_bytes();
        for start in (0..weight.row_len).step_by(PANEL_K) {
            let end = weight.row_len.min(start + PANEL_K);
            let next = bytes_of(end)..bytes_of(weight.row_len.min(end + PANEL_K));
            let mut rows = self.rows.clone().map(|row| {
                let bytes = weight.rows(self.output.matrix, row..row + 1);
                bytes[next.clone()].chunks(64).for_each(prefetch_line);
                &bytes[bytes_of(start)..bytes_of(end)]
            });
            multiply(start..end, &mut rows);
        }
    }

    /// Accumulators become `[panel of tokens][row][token]`; `x` as [`Packed::Floats`].
    fn multiply(&self, x: &[f32], panel: &mut [f32], accumulators: &mut [f32]) {
        accumulators.fill(0.0);
        let lanes = self.kernels.gemm_columns;
        let (n_rows, n_panels) = (self.rows.len(), self.n_panels);
        self.each_part(|k, rows| {
            for (bytes, dst) in rows.zip(panel.chunks_exact_mut(k.len())) {
                // SAFETY: an instruction set of this machine; the part is a multiple of the block length (PANEL_K is, and
                // so is a row), so the bytes hold exactly `dst.len()` values.
                unsafe { (self.output.weight.unpack)(bytes, dst) };
            }
            let a = &panel[..n_rows * k.len()];
            let b_part = &x[k.start * n_panels * lanes..k.end * n_panels * lanes];
            let c_parts = accumulators.chunks_exact_mut(n_rows * lanes);
            for (b, c) in b_part.chunks_exact(k.len() * lanes).zip(c_parts) {
                // SAFETY: an instruction set of this machine; the lengths are those of the signature by construction.
                unsafe { (self.kernels.gemm)(a, b, c) };
            }
        });
    }

    /// The same with `x` and `x_scales` as [`Packed::Integers`].
    fn multiply_integers(
        &self,
        kernels: &Integers,
        x: &[i16],
        x_scales: &[f32],
        panel: &mut [f32],
        accumulators: &mut [f32],
    ) {
        let lanes = self.kernels.gemm_columns;
        let (n_rows, n_panels) = (self.rows.len(), self.n_panels);
        let weight = self.output.weight;
        // Values of a row, where they are unpacked to f32 first.
        let (values, rows_of_panel) = panel.split_at_mut(PANEL_K);
        let n_floats = n_rows * size_of::<ScaledRow>() / size_of::<f32>();
        let a: &mut [ScaledRow] = bytemuck::cast_slice_mut(&mut rows_of_panel[..n_floats]);
        self.each_part(|k, rows| {
            for (bytes, row) in rows.zip(&mut *a) {
                if let Some(unpack) = weight.to_integers {
                    // SAFETY: an instruction set of this machine.
                    unsafe { unpack(bytes, row) };
                    continue;
                }
                let values = &mut values[..k.len()];
                // SAFETY: as in `multiply`.
                unsafe { (weight.unpack)(bytes, values) };
                let parts = values
                    .chunks(SCALED_LEN)
                    .zip(&mut row.q)
                    .zip(&mut row.scales);
                for ((values, q), scale) in parts {
                    let q = &mut q[..values.len()];
                    // SAFETY: an instruction set of this machine; the lengths are equal multiples of 32.
                    *scale = unsafe { (kernels.quantize)(values, Integers::WEIGHT_LIMIT, q) };
                }
            }
            for (part, start) in k.clone().step_by(SCALED_LEN).enumerate() {
                let len = SCALED_LEN.min(k.end - start);
                let b_part = &x[start * n_panels * lanes..(start + len) * n_panels * lanes];
                let b_scales = &x_scales[start / SCALED_LEN * n_panels * lanes..];
                for ((b, b_scales), c) in b_part
                    .chunks_exact(len * lanes)
                    .zip(b_scales.chunks_exact(lanes))
                    .zip(accumulators.chunks_exact_mut(n_rows * lanes))
                {
                    // SAFETY: an instruction set of this machine; the lengths are those of the signature by construction.
                    unsafe { (kernels.gemm)(a, part, b, b_scales, c, start > 0) };
                }
            }
        });
    }

    /// Accumulators to rows of the destination, with the bias. Each token's results lie in a page of its own, so the lines of the
    /// next tokens are asked for ahead. With a `finish` what stands there becomes `finish(there, result)`.
    fn write(&self, accumulators: &[f32], n_tokens: usize, finish: Option<Finish>) {
        let lanes = self.kernels.gemm_columns;
        let n_rows = self.rows.len();
        let width = self.output.weight.n_rows;
        let side = SQUARE.min(lanes);
        let mut square = [[0.0; SQUARE]; SQUARE];
        let mut staged = [[0.0; PANEL_ROWS]; SQUARE];
        for (panel, part) in accumulators.chunks_exact(n_rows * lanes).enumerate() {
            let first_token = panel * lanes;
            for lane in (0..lanes.min(n_tokens - first_token)).step_by(side) {
                let tokens = first_token + lane..n_tokens.min(first_token + lane + side);
                for next in tokens.end..n_tokens.min(tokens.end + side) {
                    for row in self.rows.clone().step_by(SQUARE) {
                        prefetch_to_write(self.dst, next * width + row);
                    }
                }
                for (i, rows) in part.chunks(SQUARE * lanes).enumerate() {
                    for (dst, row) in square.iter_mut().zip(rows.chunks_exact(lanes)) {
                        copy(dst, &row[lane..]);
                    }
                    // SAFETY: an instruction set of this machine.
                    unsafe { (self.kernels.elementwise.transpose)(&mut square) };
                    for (staged, sums) in staged.iter_mut().zip(&square[..tokens.len()]) {
                        copy(&mut staged[i * SQUARE..], sums);
                    }
                }
                for (token, sums) in tokens.zip(&mut staged) {
                    self.put(token, &mut sums[..n_rows], finish);
                }
            }
        }
    }

    /// Results of all rows.
    fn put(&self, token: usize, sums: &mut [f32], finish: Option<Finish>) {
        let start = token * self.output.weight.n_rows + self.rows.start;
        // SAFETY: pieces cover disjoint rows of the weight, so these column ranges are disjoint.
        let dst = unsafe { self.dst.range(start..start + sums.len()) };
        if let Some(bias) = self.output.bias {
            for (sum, bias) in sums.iter_mut().zip(&bias[self.rows.start..]) {
                *sum += bias;
            }
        }
        match finish {
            // SAFETY: an instruction set of this machine; the lengths are equal.
            Some(finish) => unsafe { finish(dst, sums) },
            None => match (dst.first_chunk_mut(), sums.first_chunk::<PANEL_ROWS>()) {
                (Some(dst), Some(sums)) => *dst = *sums,
                _ => dst.copy_from_slice(sums),
            },
        }
    }
}

/// `(there, results)`.
type Finish = unsafe fn(&mut [f32], &[f32]);

/// As many values as both have. Of a square's side they are a few moves; of a length that only the call knows, a call.
pub(crate) fn copy(dst: &mut [f32], src: &[f32]) {
    match (dst.first_chunk_mut::<SQUARE>(), src.first_chunk()) {
        (Some(dst), Some(src)) => *dst = *src,
        _ => dst.iter_mut().zip(src).for_each(|(y, &x)| *y = x),
    }
}
