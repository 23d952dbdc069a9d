//! The table of kernels: one named field an entry point, one constant table an instruction set.
//!
//! A table lists the kernels its instruction set has and ends with `..` the next slower one, so a missing kernel falls
//! back by construction. Kernels are single-threaded functions over slices; threads exist in `threads.rs` only. They
//! are looked up once an operation.

pub(crate) mod elementwise;
#[cfg(test)]
mod parity;
pub(crate) mod scalar;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

use std::ops::Range;

use rsllm_quant::{ActivationBlock, GgmlType};
use rsllm_tensor::Activation;

use crate::isa::Isa;
use elementwise::Elementwise;

/// Fused dots of packed weight rows with int8 activations, for decode.
///
/// `(rows, row_bytes, x, n_columns, out)`: `rows` holds whole rows of `row_bytes`; `x` holds `n_columns` quantised
/// activation rows behind each other, each of `x.len() / n_columns` blocks; `out` is `[n_columns, n_rows]`,
/// overwritten. A column's result does not depend on `n_columns` nor on which rows share the call.
///
/// # Safety
/// The processor has the features of the table the kernel is in, and the lengths agree:
/// `rows.len() == n_rows * row_bytes`, `out.len() == n_rows * n_columns`, `x.len()` is a multiple of `n_columns`, a
/// row's values fit in `256 * x.len() / n_columns`, and the last argument, scratch of the kernel, has room for
/// [`Prepared::room`]. `bench_support::dot_rows` shows how to check both.
pub(crate) type DotRows =
    unsafe fn(&[u8], usize, &[ActivationBlock], usize, &mut [f32], PreparedColumns<'_>);

/// The columns of a call as its kernel wants them, in scratch of the caller's, because the token loop must not allocate.
pub(crate) struct PreparedColumns<'a> {
    pub(crate) units: &'a mut [Prepared],
    /// The same kernel has filled them for the same columns and rows of the same length, and nobody has written to them since.
    pub(crate) are_filled: bool,
}

/// 256 activations in the order in which a kernel unpacks weights, with what it multiplies per lane of a vector.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Prepared {
    pub(crate) q: [i8; 256],
    /// Where the integer sums start: minus the offset of the weights times the sum of the lane's activations.
    pub(crate) start: [i32; 16],
    /// Scale of each lane's activations.
    pub(crate) scales: [f32; 16],
    /// What minima are multiplied with.
    pub(crate) sums: [f32; 16],
}

impl Prepared {
    /// Scratch of a dot with `n_columns` columns of `n_blocks` blocks: the ends of rows take up to two units a column instead of
    /// one, and the last columns may be computed together with others that are not there.
    pub(crate) const fn room(n_columns: usize, n_blocks: usize) -> usize {
        n_columns * (n_blocks + 1) + 16
    }
}

/// Dots of F32, F16 or BF16 weight rows with f32 activations, for decode: as [`DotRows`] with `x`
/// `[n_columns, row_len]`.
///
/// # Safety
/// As [`DotRows`]; a row holds `x.len() / n_columns` values.
pub(crate) type DotRowsF32 = unsafe fn(&[u8], usize, &[f32], usize, &mut [f32]);

/// Whole packed blocks to f32; `(blocks, out)`, bit-equal with rsllm-quant's `dequantize`.
///
/// # Safety
/// The processor has the features of the table, and `out.len()` is the number of values in `blocks`.
pub(crate) type Unpack = unsafe fn(&[u8], &mut [f32]);

/// Inner product of the blocked matrix product: `c[r][j] += Σ_k a[r][k] · b[k][j]`, k ascending, one fused
/// multiply-add each (a multiply and an add in the scalar table).
///
/// `(a, b, c)`: `a` `[n_rows, k]` row-major, `b` `[k, gemm_columns]`, `c` `[n_rows, gemm_columns]`; the columns are
/// tokens, independent of each other.
///
/// # Safety
/// The processor has the features of the table, and `b.len() == k * gemm_columns`, `c.len() == n_rows * gemm_columns`,
/// `a.len() == n_rows * k`.
pub(crate) type Gemm = unsafe fn(&[f32], &[f32], &mut [f32]);

/// Values of K that share a scale on either side of [`Integers::gemm`].
pub(crate) const SCALED_LEN: usize = 128;

/// The prefill product on integers of 16 bits, twice as fast as the one on f32 and far more exact than one on int8. Both sides
/// have a scale for each [`SCALED_LEN`] values; the limits are such that as many products add up within 32 bits.
#[derive(Clone, Copy)]
pub(crate) struct Integers {
    /// `(src, limit, dst)`: values to integers of at most `limit`, rounded to nearest. Returns what they are multiplied with to be
    /// values again: NaN or infinite where a value is, zero where all are below 1e-30.
    ///
    /// # Safety
    /// The processor has the features of the table; the lengths are equal, multiples of 32 and at most [`SCALED_LEN`].
    pub(crate) quantize: unsafe fn(&[f32], f32, &mut [i16]) -> f32,
    /// The short way for weights of a type; without one they are unpacked to f32 and quantised.
    pub(crate) unpack: fn(GgmlType) -> Option<UnpackIntegers>,
    pub(crate) gemm: GemmIntegers,
}

/// Up to 256 values of a row of weights as integers of at most [`Integers::WEIGHT_LIMIT`].
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub(crate) struct ScaledRow {
    pub(crate) q: [[i16; SCALED_LEN]; 2],
    /// Of either part.
    pub(crate) scales: [f32; 2],
    /// Up to a whole line.
    rest: [f32; 14],
}

/// Packed values of a row, up to 256, to integers; what lies beyond them is left alone.
///
/// # Safety
/// The processor has the features of the table.
pub(crate) type UnpackIntegers = unsafe fn(&[u8], &mut ScaledRow);

impl Integers {
    pub(crate) const WEIGHT_LIMIT: f32 = 2047.0;
    pub(crate) const ACTIVATION_LIMIT: f32 = 8191.0;
    /// Where no value is as large as that, all count as zero.
    pub(crate) const LEAST: f32 = 1e-30;

    /// The scale of values of at most `most`, and what they are multiplied with to become integers.
    #[inline]
    pub(crate) fn scale(most: f32, limit: f32) -> (f32, f32) {
        if most < Self::LEAST {
            (0.0, 0.0)
        } else {
            (most / limit, limit / most)
        }
    }
}

const _: () = assert!(
    (Integers::WEIGHT_LIMIT as u64) * (Integers::ACTIVATION_LIMIT as u64) * (SCALED_LEN as u64)
        < 1 << 31
);

/// `(a, part, b, b_scales, c, add)`: `c[r][j] += a_scale[r] · b_scales[j] · Σ_k a[r][k] · b[k][j]`, one fused multiply-add of the
/// product of the scales; or without `add`, `c[r][j]` becomes that. `a` has the rows, of which the first `k` values of part `part` count, `b` is
/// `[k / 2, gemm_columns, 2]`, `c` `[n_rows, gemm_columns]`.
///
/// # Safety
/// The processor has the features of the table; `k` is even, and the lengths are as said.
pub(crate) type GemmIntegers = unsafe fn(&[ScaledRow], usize, &[i16], &[f32], &mut [f32], bool);

/// Scores of one query token: `(keys, ahead, q, group, scores)`.
///
/// `keys` holds `n` packed rows of one K/V head, `q` `[group, head_dim]` the query heads that share it, `scores`
/// `[group, n]` is overwritten with their dots. `ahead` is what will be read next, for prefetching.
///
/// # Safety
/// The processor has the features of the table.
pub(crate) type AttendScores = unsafe fn(&[u8], &[u8], &[f32], usize, &mut [f32]);

/// `(values, ahead, weights, group, acc)`: adds `Σ_t weights[g][t] · values[t]`, t ascending, to each row of `acc`
/// `[group, head_dim]`; the rest as [`AttendScores`].
///
/// # Safety
/// The processor has the features of the table.
pub(crate) type AttendValues = unsafe fn(&[u8], &[u8], &[f32], usize, &mut [f32]);

/// Decode attention straight from packed rows of one KV type. Heads are multiples of 16 values, at most
/// [`Attend::MAX_HEAD_DIM`]; for others, and in tables without it, rows are unpacked first.
#[derive(Clone, Copy)]
pub(crate) struct Attend {
    pub(crate) scores: AttendScores,
    pub(crate) values: AttendValues,
}

impl Attend {
    pub(crate) const MAX_HEAD_DIM: usize = 256;
}

/// Values of a tile of bf16: 16 rows of 32 values, or 16 pairs of values of 16 tokens.
pub(crate) const TILE: usize = 512;
/// Values of a tile of results: 16 rows of 16 tokens.
pub(crate) const TILE_F32: usize = 256;

/// Packed values of a row to bf16, rounded to nearest: value `v` goes to `tiles[v / 32 * TILE + v % 32]`, so the row is one
/// row of every tile. The last tile's part beyond the values is left alone, up to the next multiple of 16.
///
/// # Safety
/// The processor has the features of the table.
pub(crate) type UnpackTiles = unsafe fn(&[u8], &mut [u16]);

/// As [`UnpackTiles`], in two parts, which hold all bits of a value.
///
/// # Safety
/// The processor has the features of the table.
pub(crate) type UnpackParts = unsafe fn(&[u8], PartsMut<'_>);

/// How weights become left-hand tiles.
#[derive(Clone, Copy)]
pub(crate) enum ToTiles {
    /// Rounded to bf16; so are the activations that they meet.
    Rounded(UnpackTiles),
    /// In two parts, as the activations are.
    Parts(UnpackParts),
}

/// The prefill product on a tile unit. Between [`Tiles::configure`] and [`Tiles::release`], which every thread calls, tiles
/// must not be used by anybody else.
///
/// # Safety
/// Of every field: the processor has the features of the table, and the system has permitted the use of tiles.
pub(crate) struct Tiles {
    /// `None` for types that take the f32 product.
    pub(crate) unpack: fn(GgmlType) -> Option<ToTiles>,
    pub(crate) configure: unsafe fn(),
    pub(crate) release: unsafe fn(),
    /// `(rows, tile)`: values of at most 16 tokens, 32 each or fewer, to one right-hand tile; the rest is zero.
    pub(crate) pack: unsafe fn(&[&[f32]], &mut [u16]),
    /// Asks for bytes that will be read soon.
    pub(crate) prefetch: unsafe fn(&[u8]),
    /// `(a, b, c, accumulate, ahead)`: `c` `[group of tokens][2][TILE_F32]` is the product of `a` `[2][k tile][TILE]` and `b`
    /// `[group of tokens][k tile][TILE]`, or is increased by it. `ahead` is asked for meanwhile.
    pub(crate) multiply: MultiplyTiles,
    /// The same one step at a time, for one or two groups of tokens, to be mixed with other work: `clear`, then a `step(a, b)` for
    /// each k tile, with the tiles of the two halves and of the groups, then `finish(c)`.
    pub(crate) clear: unsafe fn(),
    pub(crate) step: unsafe fn([&[u16]; 2], &[&[u16]]),
    pub(crate) finish: unsafe fn(&mut [f32]),
    /// `(tile, bias, dst)`: a result tile's weight rows, plus `bias` where given, to the rows of at most 16 tokens. Those are of one
    /// length, at most 16, and so is `bias`.
    pub(crate) scatter: Scatter,
    /// The same, added to what is there.
    pub(crate) scatter_add: Scatter,
    /// `(gate, up, tile)`: two result tiles each, 32 rows of 16 tokens, to one right-hand tile of `act(gate) * up`. Before it
    /// is rounded to bf16, a value is off by no more than 1e-4 of it.
    pub(crate) silu_gate: GateTiles,
    pub(crate) gelu_gate: GateTiles,
    /// As `multiply`, of operands in two parts of bf16, `[high, low]`: all products but that of the low parts. An empty low part
    /// of `a` is zero. Halves of `a` may have more k tiles than `b` has: those do not count.
    pub(crate) multiply_parts: MultiplyParts,
    /// As `pack`, in two parts.
    pub(crate) queries: unsafe fn(&[&[f32]], PartsMut<'_>),
    /// Two result tiles, 32 rows of 16 tokens, to one right-hand tile in two parts.
    pub(crate) pairs: unsafe fn(&[f32], PartsMut<'_>),
    /// `(rows, head_dim, tiles)`: `[n, head_dim]` to left-hand tiles `[32 rows][2][k tile][TILE]`, in two parts. Values beyond the
    /// head are zero; rows beyond `n` keep what was there.
    pub(crate) keys: unsafe fn(&[f32], usize, PartsMut<'_>),
    /// `(rows, head_dim, tiles)`: `[n, head_dim]` transposed to left-hand tiles `[16 dimensions][k tile of rows][TILE]`, in two
    /// parts; what is beyond either is zero.
    pub(crate) values: unsafe fn(&[f32], usize, PartsMut<'_>),
    /// `(page, visible, lanes, weights)`: one page's step of the running softmax of sixteen lanes. `weights` are right-hand tiles
    /// `[k tile of positions][TILE]` of `2^(score * factor - maximum)`, in two parts, zero for positions that a lane may not see.
    /// The maximum may lag behind by a little. Returns whether a correction differs from 1. A lane that sees nothing stays as it was.
    pub(crate) softmax: SoftmaxTiles,
}

impl Tiles {
    /// `act(gate) * up`.
    pub(crate) fn gate(&self, activation: Activation) -> GateTiles {
        match activation {
            Activation::Silu => self.silu_gate,
            Activation::GeluTanh => self.gelu_gate,
        }
    }
}

pub(crate) type GateTiles = unsafe fn(&[f32], &[f32], &mut [u16]);

pub(crate) type MultiplyTiles = unsafe fn(&[u16], &[u16], &mut [f32], bool, &Ahead<'_>);

pub(crate) type MultiplyParts = unsafe fn(Parts<'_>, Parts<'_>, &mut [f32], bool, &Ahead<'_>);

/// What lies beyond L2 and will be read soon.
#[derive(Clone, Default)]
pub(crate) struct Ahead<'a> {
    /// Of activations, whole tiles.
    pub(crate) activations: Parts<'a>,
    /// Packed rows of `row_bytes` each.
    pub(crate) weights: &'a [u8],
    pub(crate) row_bytes: usize,
    /// The bytes of each row that count.
    pub(crate) piece: Range<usize>,
}

pub(crate) type Scatter = unsafe fn(&[f32], Option<&[f32]>, &mut [&mut [f32]]);

/// Operands in two parts of bf16, high and low, which add up to them.
pub(crate) type Parts<'a> = [&'a [u16]; 2];
/// The same, to be written.
pub(crate) type PartsMut<'a> = [&'a mut [u16]; 2];

pub(crate) type SoftmaxTiles =
    unsafe fn(&ScoreTiles<'_>, Option<&Visible>, &mut Lanes, PartsMut<'_>) -> bool;

/// Scores of one page for sixteen lanes.
pub(crate) struct ScoreTiles<'a> {
    /// Two result tiles for each 32 positions, `[32 positions][16 lanes]`, every `stride` values.
    pub(crate) scores: &'a [f32],
    pub(crate) stride: usize,
    /// Positions.
    pub(crate) n: usize,
    /// What scores are multiplied with, above zero: their scale and the base 2.
    pub(crate) factor: f32,
}

/// The positions of a page that each lane may see: `from..to`.
#[derive(Clone, Copy)]
pub(crate) struct Visible {
    pub(crate) from: [i32; 16],
    pub(crate) to: [i32; 16],
}

/// The running softmax of sixteen lanes.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Lanes {
    /// Of the base 2.
    pub(crate) maxima: [f32; 16],
    pub(crate) sums: [f32; 16],
    /// What everything accumulated before the last page must be multiplied with.
    pub(crate) corrections: [f32; 16],
}

/// Quantise f32 activations; must equal `rsllm_quant::quantize_activations` bit for bit.
///
/// # Safety
/// The processor has the features of the table; `src.len()` is a multiple of 32 and
/// `dst.len() == src.len().div_ceil(256)`.
pub(crate) type QuantizeActivations = unsafe fn(&[f32], &mut [ActivationBlock]);

/// All kernels of one instruction set.
#[derive(Clone, Copy)]
pub struct Kernels {
    /// What the table is for.
    pub isa: Isa,
    pub(crate) dot_q4_0: DotRows,
    pub(crate) dot_q4_1: DotRows,
    pub(crate) dot_q5_0: DotRows,
    pub(crate) dot_q5_1: DotRows,
    pub(crate) dot_q8_0: DotRows,
    pub(crate) dot_q2_k: DotRows,
    pub(crate) dot_q3_k: DotRows,
    pub(crate) dot_q4_k: DotRows,
    pub(crate) dot_q5_k: DotRows,
    pub(crate) dot_q6_k: DotRows,
    pub(crate) dot_f32: DotRowsF32,
    pub(crate) dot_f16: DotRowsF32,
    pub(crate) dot_bf16: DotRowsF32,
    pub(crate) unpack_f32: Unpack,
    pub(crate) unpack_f16: Unpack,
    pub(crate) unpack_bf16: Unpack,
    pub(crate) unpack_q4_0: Unpack,
    pub(crate) unpack_q4_1: Unpack,
    pub(crate) unpack_q5_0: Unpack,
    pub(crate) unpack_q5_1: Unpack,
    pub(crate) unpack_q8_0: Unpack,
    pub(crate) unpack_q2_k: Unpack,
    pub(crate) unpack_q3_k: Unpack,
    pub(crate) unpack_q4_k: Unpack,
    pub(crate) unpack_q5_k: Unpack,
    pub(crate) unpack_q6_k: Unpack,
    pub(crate) quantize_activations: QuantizeActivations,
    /// Tokens that one call of `gemm` works on.
    pub(crate) gemm_columns: usize,
    pub(crate) gemm: Gemm,
    /// The same with `a` `[k, n_rows]`; equal to [`Self::gemm`] bit for bit.
    pub(crate) gemm_transposed: Gemm,
    /// Where they are faster than f32.
    pub(crate) integers: Option<&'static Integers>,
    /// Where there is a tile unit.
    pub(crate) tiles: Option<&'static Tiles>,
    pub(crate) attend_f32: Option<Attend>,
    pub(crate) attend_f16: Option<Attend>,
    pub(crate) attend_bf16: Option<Attend>,
    pub(crate) elementwise: Elementwise,
}

/// The decode kernel of a weight type.
#[derive(Clone, Copy)]
pub(crate) enum Dot {
    /// On int8 activations.
    Int8(DotRows),
    /// On f32 activations.
    F32(DotRowsF32),
}

impl Dot {
    /// Bytes of a row from which on kernels for few columns read many rows from several places at once. Shorter ones gain nothing.
    pub(crate) const STREAMED_ROW_BYTES: usize = 512;
}

impl Kernels {
    /// The table of an instruction set this machine has; `None` for one it lacks.
    pub fn for_isa(isa: Isa) -> Option<&'static Self> {
        if !isa.is_available() {
            return None;
        }
        match isa {
            Isa::Scalar => Some(&scalar::SCALAR),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Some(&x86_64::avx2::AVX2),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Some(&x86_64::avx512::AVX512),
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Some(&x86_64::amx::AMX),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 | Isa::Amx => None,
        }
    }

    /// The decode kernel for weights of type `ty`.
    pub(crate) fn dot(&self, ty: GgmlType) -> Option<Dot> {
        Some(match ty {
            GgmlType::F32 => Dot::F32(self.dot_f32),
            GgmlType::F16 => Dot::F32(self.dot_f16),
            GgmlType::BF16 => Dot::F32(self.dot_bf16),
            GgmlType::Q4_0 => Dot::Int8(self.dot_q4_0),
            GgmlType::Q4_1 => Dot::Int8(self.dot_q4_1),
            GgmlType::Q5_0 => Dot::Int8(self.dot_q5_0),
            GgmlType::Q5_1 => Dot::Int8(self.dot_q5_1),
            GgmlType::Q8_0 => Dot::Int8(self.dot_q8_0),
            GgmlType::Q2_K => Dot::Int8(self.dot_q2_k),
            GgmlType::Q3_K => Dot::Int8(self.dot_q3_k),
            GgmlType::Q4_K => Dot::Int8(self.dot_q4_k),
            GgmlType::Q5_K => Dot::Int8(self.dot_q5_k),
            GgmlType::Q6_K => Dot::Int8(self.dot_q6_k),
            _ => return None,
        })
    }

    /// Decode attention on KV of type `ty` with heads of `head_dim`.
    pub(crate) fn attend(&self, ty: GgmlType, head_dim: usize) -> Option<Attend> {
        if !head_dim.is_multiple_of(16) || head_dim > Attend::MAX_HEAD_DIM {
            return None;
        }
        match ty {
            GgmlType::F32 => self.attend_f32,
            GgmlType::F16 => self.attend_f16,
            GgmlType::BF16 => self.attend_bf16,
            _ => None,
        }
    }

    /// What prefill products with weights of type `ty` multiply: `f32`, `int16`, `bf16`, or two parts of the latter.
    pub fn prefill_operands(&self, ty: GgmlType) -> &'static str {
        match self.tiles.and_then(|tiles| (tiles.unpack)(ty)) {
            Some(ToTiles::Rounded(_)) => "bf16",
            Some(ToTiles::Parts(_)) => "two-part bf16",
            None => match (self.dot(ty), self.integers) {
                (Some(Dot::Int8(_)), Some(_)) => "int16",
                _ => "f32",
            },
        }
    }

    /// The unpacking kernel for weights of type `ty`.
    pub(crate) fn unpack(&self, ty: GgmlType) -> Option<Unpack> {
        Some(match ty {
            GgmlType::F32 => self.unpack_f32,
            GgmlType::F16 => self.unpack_f16,
            GgmlType::BF16 => self.unpack_bf16,
            GgmlType::Q4_0 => self.unpack_q4_0,
            GgmlType::Q4_1 => self.unpack_q4_1,
            GgmlType::Q5_0 => self.unpack_q5_0,
            GgmlType::Q5_1 => self.unpack_q5_1,
            GgmlType::Q8_0 => self.unpack_q8_0,
            GgmlType::Q2_K => self.unpack_q2_k,
            GgmlType::Q3_K => self.unpack_q3_k,
            GgmlType::Q4_K => self.unpack_q4_k,
            GgmlType::Q5_K => self.unpack_q5_k,
            GgmlType::Q6_K => self.unpack_q6_k,
            _ => return None,
        })
    }
}
