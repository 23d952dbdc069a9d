//! The loop of all dots with int8 activations. A format supplies three steps and the rest is here: rows, columns, tails.
//!
//! Both sides meet in units of 256 values: one block of a K format, or eight blocks of 32 values. `load` unpacks the
//! weights of a unit to unsigned bytes and float scales; `prepare` brings the activations into the same order; `step`
//! adds their product to the accumulator. Four rows share each `prepare`, or up to four columns share each `load`. Every
//! pair of a row and a column has an accumulator of its own and goes through the same operations in the same order in
//! whatever company, hence equal bits.
//!
//! The steps are closures, which inherit the instruction set of the function they stand in. Each has one call site in
//! each shape of tile, and there are few shapes, because a step that the compiler does not inline costs more than it
//! does.

use std::arch::x86_64::*;
use std::mem::offset_of;

use bytemuck::{Pod, Zeroable};
use rsllm_quant::{ActivationBlock, GROUP_LEN};

use super::simd::{horizontal_sum, load512, prefetch_behind};

/// The arguments of a `DotRows` kernel.
pub(super) struct Call<'a> {
    /// Whole rows.
    pub(super) rows: &'a [u8],
    pub(super) row_bytes: usize,
    /// `[n_columns, blocks of a row]`.
    pub(super) x: &'a [ActivationBlock],
    pub(super) n_columns: usize,
    /// `[n_rows, n_columns]`.
    pub(super) out: &'a mut [f32],
}

/// 256 weights as integers and float scales: value = scale · (byte - offset) + minimum, the offset being the format's.
#[derive(Clone, Copy)]
pub(super) struct Weights {
    /// Unsigned bytes, in the format's order.
    pub(super) q: [__m512i; 4],
    /// Eight scales and eight minima, or sixteen scales.
    pub(super) scales: __m512,
    /// Sixteen minima, for the format that has them.
    pub(super) minima: __m512,
}

impl Weights {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(super) fn new(q: [__m512i; 4], scales: __m512) -> Self {
        Self {
            q,
            scales,
            minima: _mm512_setzero_ps(),
        }
    }
}

/// 256 activations in the order of the weights, for a format that sums them in `N` integer vectors.
#[derive(Clone, Copy)]
pub(super) struct Activations<const N: usize> {
    pub(super) q: [__m512i; 4],
    /// Where the integer sums start: minus the offset of the weights times the sum of the activations of the lane.
    pub(super) start: [__m512i; N],
    /// What [`Weights::scales`] is multiplied with.
    pub(super) scales: __m512,
    /// What [`Weights::minima`] is multiplied with.
    pub(super) sums: __m512,
}

impl<const N: usize> Activations<N> {
    /// For weights `OFFSET` less than their byte. Vector `i` of quants belongs to sum `i * N / 4`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(super) fn new<const OFFSET: u8>(q: [__m512i; 4], scales: __m512) -> Self {
        let zero = _mm512_setzero_si512();
        let mut start = [zero; N];
        if OFFSET != 0 {
            for (sum, &q) in sums_of_products([_mm512_set1_epi8(OFFSET as i8); 4], q, [zero; N])
                .iter()
                .enumerate()
            {
                start[sum] = _mm512_sub_epi32(zero, q);
            }
        }
        Self {
            q,
            start,
            scales,
            sums: _mm512_setzero_ps(),
        }
    }
}

/// Sums of the products of four bytes with four quants; vector `i` goes to sum `i * N / 4`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn sums_of_products<const N: usize>(
    bytes: [__m512i; 4],
    q: [__m512i; 4],
    mut sums: [__m512i; N],
) -> [__m512i; N] {
    for i in 0..4 {
        sums[i * N / 4] = _mm512_dpbusd_epi32(sums[i * N / 4], bytes[i], q[i]);
    }
    sums
}

/// The four vectors of quants of a block, in order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn quants(x: &ActivationBlock) -> [__m512i; 4] {
    [
        load512::<0, _>(x),
        load512::<64, _>(x),
        load512::<128, _>(x),
        load512::<192, _>(x),
    ]
}

/// The eight scales of a block, then its eight sums.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn scales_and_sums(x: &ActivationBlock) -> __m512 {
    const { assert!(offset_of!(ActivationBlock, sums) == offset_of!(ActivationBlock, scales) + 32) };
    _mm512_castsi512_ps(load512::<{ offset_of!(ActivationBlock, scales) }, _>(x))
}

/// Adds the product of one unit. `lanes[i]` names the scale of each lane of sum `i`. With a `SIGN` of 1 or -1 the upper
/// eight scales are minima to be added or subtracted, and the upper eight of the activations their sums.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn step<const N: usize, const SIGN: i8>(
    w: &Weights,
    x: &Activations<N>,
    lanes: &[[i32; 16]; N],
    mut acc: __m512,
) -> __m512 {
    let scales = _mm512_mul_ps(w.scales, x.scales);
    let sums = sums_of_products(w.q, x.q, x.start);
    for i in 0..N {
        let scale = _mm512_permutexvar_ps(load512::<0, _>(&lanes[i]), scales);
        acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[i]), scale, acc);
    }
    if SIGN == 0 {
        return acc;
    }
    // A product with 0 or ±1 instead of a masked addition, which the compiler turns into an addition and a shuffle.
    let sign = _mm512_maskz_mov_ps(0xff00, _mm512_set1_ps(f32::from(SIGN)));
    _mm512_fmadd_ps(scales, sign, acc)
}

/// Where a lane of the sums finds its scale, for vectors in element order and a scale for each 32 elements.
pub(super) const LANES_OF_32: [[i32; 16]; 4] = lanes_in_order(32);
/// The same for a scale for each 16 elements.
pub(super) const LANES_OF_16: [[i32; 16]; 4] = lanes_in_order(16);

/// 64 elements a vector, four a lane.
const fn lanes_in_order(group_len: usize) -> [[i32; 16]; 4] {
    let mut lanes = [[0; 16]; 4];
    let mut i = 0;
    while i < 64 {
        lanes[i / 16][i % 16] = (4 * i / group_len) as i32;
        i += 1;
    }
    lanes
}

/// Runs a kernel over all rows and columns. `U` is the unit.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn dot_rows<U: Pod, const N: usize>(
    call: Call<'_>,
    prepare: impl Fn(&ActivationBlock) -> Activations<N> + Copy,
    load: impl Fn(&U) -> Weights + Copy,
    step: impl Fn(&Weights, &Activations<N>, __m512) -> __m512 + Copy,
) {
    let Call {
        rows,
        row_bytes,
        x,
        n_columns,
        out,
    } = call;
    let n_rows = rows.len() / row_bytes;
    let column_blocks = x.len() / n_columns;
    assert!(
        rows.len() == n_rows * row_bytes && out.len() == n_rows * n_columns,
        "whole rows, a result each"
    );
    assert!(
        x.len() == n_columns * column_blocks && row_bytes <= column_blocks * size_of::<U>(),
        "whole columns"
    );
    if row_bytes < size_of::<U>() {
        // Blocks that are missing count as zero, as do the groups of activations there.
        for (row, out) in rows
            .chunks_exact(row_bytes)
            .zip(out.chunks_exact_mut(n_columns))
        {
            let mut unit = U::zeroed();
            bytemuck::bytes_of_mut(&mut unit)[..row_bytes].copy_from_slice(row);
            let rows = bytemuck::bytes_of(&unit);
            dot_rows(
                Call {
                    rows,
                    row_bytes: rows.len(),
                    x,
                    n_columns,
                    out,
                },
                prepare,
                load,
                step,
            );
        }
        return;
    }
    let column = |c: usize| &x[c * column_blocks..][..column_blocks];
    let mut c = 0;
    while c < n_columns {
        let call = Call {
            rows,
            row_bytes,
            x,
            n_columns,
            out: &mut out[c..],
        };
        match n_columns - c {
            1 => {
                dot_columns::<U, N, 4, 1>(call, [column(c)], prepare, load, step);
                c += 1;
            }
            2 | 3 => {
                dot_columns::<U, N, 2, 2>(call, [column(c), column(c + 1)], prepare, load, step);
                c += 2;
            }
            _ => {
                let x = [column(c), column(c + 1), column(c + 2), column(c + 3)];
                dot_columns::<U, N, 2, 4>(call, x, prepare, load, step);
                c += 4;
            }
        }
    }
}

/// All rows times `C` columns, `R` rows at a time. The results are the first `C` of each row of `call.out`.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
#[expect(
    clippy::needless_range_loop,
    reason = "an index into several arrays at once, and all registers in the end"
)]
fn dot_columns<U: Pod, const N: usize, const R: usize, const C: usize>(
    call: Call<'_>,
    x: [&[ActivationBlock]; C],
    prepare: impl Fn(&ActivationBlock) -> Activations<N> + Copy,
    load: impl Fn(&U) -> Weights + Copy,
    step: impl Fn(&Weights, &Activations<N>, __m512) -> __m512 + Copy,
) {
    let Call {
        rows,
        row_bytes,
        n_columns,
        out,
        ..
    } = call;
    let n_rows = rows.len() / row_bytes;
    let n_whole = row_bytes / size_of::<U>();
    let n_units = row_bytes.div_ceil(size_of::<U>());
    // The last unit of a row ends with it; if it begins within the one before, those activations count as zero.
    let mut last = [ActivationBlock::zeroed(); C];
    let mut whole = [&[] as &[ActivationBlock]; C];
    for c in 0..C {
        whole[c] = &x[c][..n_whole];
        if n_units > n_whole {
            let n_values = (row_bytes % size_of::<U>()) * ActivationBlock::LEN / size_of::<U>();
            last[c] = at_the_end(&x[c][n_whole], n_values);
        }
    }
    for (r, out) in (0..n_rows).step_by(R).zip(out.chunks_mut(R * n_columns)) {
        let mut row = [&[] as &[u8]; R];
        for (i, row) in row.iter_mut().enumerate() {
            // A tile that sticks out computes the last row again.
            *row = &rows[(r + i).min(n_rows - 1) * row_bytes..][..row_bytes];
        }
        let mut acc = [[_mm512_setzero_ps(); C]; R];
        for i in 0..n_units {
            let start = (i * size_of::<U>()).min(row_bytes - size_of::<U>());
            let unit = |r: usize| bytemuck::from_bytes::<U>(&row[r][start..][..size_of::<U>()]);
            let activations = |c: usize| if i < n_whole { &whole[c][i] } else { &last[c] };
            // The side that stays in registers is the one with more reuse.
            if C == 1 {
                let x = prepare(activations(0));
                for r in 0..R {
                    prefetch_behind(unit(r));
                    acc[r][0] = step(&load(unit(r)), &x, acc[r][0]);
                }
            } else {
                let mut weights =
                    [Weights::new([_mm512_setzero_si512(); 4], _mm512_setzero_ps()); R];
                for r in 0..R {
                    prefetch_behind(unit(r));
                    weights[r] = load(unit(r));
                }
                for c in 0..C {
                    let x = prepare(activations(c));
                    for r in 0..R {
                        acc[r][c] = step(&weights[r], &x, acc[r][c]);
                    }
                }
            }
        }
        for (out, acc) in out.chunks_mut(n_columns).zip(acc) {
            for (out, acc) in out.iter_mut().zip(acc) {
                *out = horizontal_sum(acc);
            }
        }
    }
}

/// The first `n_values` of a block moved to its end, and zeros before them.
fn at_the_end(x: &ActivationBlock, n_values: usize) -> ActivationBlock {
    let mut moved = ActivationBlock::zeroed();
    let n_groups = n_values / GROUP_LEN;
    moved.qs[ActivationBlock::LEN - n_values..].copy_from_slice(&x.qs[..n_values]);
    moved.scales[8 - n_groups..].copy_from_slice(&x.scales[..n_groups]);
    moved.sums[8 - n_groups..].copy_from_slice(&x.sums[..n_groups]);
    moved
}
