//! The loop of all dots with int8 activations. A format supplies its `load` and `step`; rows, columns and tails are here.
//!
//! Both sides meet in units of 256 values: one block of a K format, or eight blocks of 32 values. `load` unpacks the
//! weights of a unit in element order, a vector for each group of 32; `step` adds their product with one column to its
//! accumulators. Up to four columns share each `load`. Every pair of a row and a column has accumulators of its own and
//! goes through the same operations in the same order in whatever company, hence equal bits.
//!
//! The steps are closures, which inherit the instruction set of the function they stand in. Each has one call site in
//! each shape of tile, because a step that the compiler does not inline costs more than it does.

use std::arch::x86_64::*;
use std::mem::offset_of;

use bytemuck::{Pod, Zeroable};
use rsllm_quant::{ActivationBlock, GROUP_LEN};

use super::simd::{horizontal_sum, load256, prefetch_behind};

/// The arguments of a `DotRows` kernel.
pub(super) struct Call<'a> {
    /// Whole rows.
    pub(super) rows: &'a [u8],
    pub(super) row_bytes: usize,
    /// `[n_columns, blocks of a row]`.
    pub(super) x: &'a [ActivationBlock],
    pub(super) n_columns: usize,
    /// `[n_columns, n_rows]`.
    pub(super) out: &'a mut [f32],
}

/// 256 weights as integers and float factors.
#[derive(Clone, Copy)]
pub(super) struct Weights {
    /// Bytes in element order, unsigned or signed as [`add_groups`] is told.
    pub(super) q: [__m256i; 8],
    /// Integer scales of pairs of products, for formats with a scale for each 16 values.
    pub(super) inner: [__m256i; 8],
    /// A float scale for each 32 values.
    pub(super) scales: __m256,
    /// What is added to each value, for each 32 values.
    pub(super) minima: __m256,
}

/// The accumulators of a row and a column: two, so that the additions of one group do not wait for those of the last.
pub(super) type Sums = [__m256; 2];

/// Adds the products of all groups but not the minima. `SIGNED` tells how the bytes are meant.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add_groups<const SIGNED: bool>(
    w: &Weights,
    x: &ActivationBlock,
    mut sums: Sums,
) -> Sums {
    let factors = run_factors(w.scales, x);
    let quants = quants(x);
    for g in 0..8 {
        // Two products of at most 128 * 127, or 63 * 127 unsigned: no sum of two saturates i16.
        let pairs = if SIGNED {
            _mm256_maddubs_epi16(_mm256_abs_epi8(w.q[g]), _mm256_sign_epi8(quants[g], w.q[g]))
        } else {
            _mm256_maddubs_epi16(w.q[g], quants[g])
        };
        let products = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, w.inner[g]));
        sums[g % 2] = _mm256_fmadd_ps(products, lanes_of_group(factors, g), sums[g % 2]);
    }
    sums
}

/// [`add_groups`] of unsigned bytes, and the minima.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add_groups_and_minima(w: &Weights, x: &ActivationBlock, sums: Sums) -> Sums {
    let [even, odd] = add_groups::<false>(w, x, sums);
    let x_sums = _mm256_castsi256_ps(load256::<{ offset_of!(ActivationBlock, sums) }, _>(x));
    [_mm256_fmadd_ps(w.minima, x_sums, even), odd]
}

/// Values for the groups of 32 weights times the scales of the runs of 16 activations: of runs 0 to 7, then 8 to 15.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn run_factors(groups: __m256, x: &ActivationBlock) -> [__m256; 2] {
    const SCALES: usize = offset_of!(ActivationBlock, scales);
    let twice = |lanes| _mm256_permutevar8x32_ps(groups, lanes);
    [
        _mm256_mul_ps(
            twice(_mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
            _mm256_castsi256_ps(load256::<SCALES, _>(x)),
        ),
        _mm256_mul_ps(
            twice(_mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)),
            _mm256_castsi256_ps(load256::<{ SCALES + 32 }, _>(x)),
        ),
    ]
}

/// A vector for each group.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn quants(x: &ActivationBlock) -> [__m256i; 8] {
    [
        load256::<0, _>(x),
        load256::<32, _>(x),
        load256::<64, _>(x),
        load256::<96, _>(x),
        load256::<128, _>(x),
        load256::<160, _>(x),
        load256::<192, _>(x),
        load256::<224, _>(x),
    ]
}

/// The factor of the first run of group `g` in the lower half, that of the second in the upper one.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn lanes_of_group(factors: [__m256; 2], g: usize) -> __m256 {
    let first = 2 * (g as i32 % 4);
    let lanes = _mm256_set_m128i(_mm_set1_epi32(first + 1), _mm_set1_epi32(first));
    _mm256_permutevar8x32_ps(factors[g / 4], lanes)
}

/// [`Weights::inner`] of formats whose scales are all float.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn ones() -> [__m256i; 8] {
    [_mm256_set1_epi16(1); 8]
}

/// Runs a kernel over all rows and columns. `U` is the unit.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot_rows<U: Pod>(
    call: Call<'_>,
    load: impl Fn(&U) -> Weights + Copy,
    step: impl Fn(&Weights, &ActivationBlock, Sums) -> Sums + Copy,
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
        for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
            let mut unit = U::zeroed();
            bytemuck::bytes_of_mut(&mut unit)[..row_bytes].copy_from_slice(row);
            let rows = bytemuck::bytes_of(&unit);
            for (c, x) in x.chunks_exact(column_blocks).enumerate() {
                let out = &mut out[c * n_rows + r..][..1];
                let call = Call {
                    rows,
                    row_bytes: rows.len(),
                    x,
                    n_columns: 1,
                    out,
                };
                dot_rows(call, load, step);
            }
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
            out: &mut out[c * n_rows..],
        };
        match n_columns - c {
            1 => {
                dot_columns::<U, 1>(call, [column(c)], load, step);
                c += 1;
            }
            2 | 3 => {
                dot_columns::<U, 2>(call, [column(c), column(c + 1)], load, step);
                c += 2;
            }
            _ => {
                let x = [column(c), column(c + 1), column(c + 2), column(c + 3)];
                dot_columns::<U, 4>(call, x, load, step);
                c += 4;
            }
        }
    }
}

/// All rows times `C` columns. The results are the first `C` columns of `call.out`.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
#[expect(
    clippy::needless_range_loop,
    reason = "an index into several arrays at once, and all registers in the end"
)]
fn dot_columns<U: Pod, const C: usize>(
    call: Call<'_>,
    x: [&[ActivationBlock]; C],
    load: impl Fn(&U) -> Weights + Copy,
    step: impl Fn(&Weights, &ActivationBlock, Sums) -> Sums + Copy,
) {
    let Call {
        rows,
        row_bytes,
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
    for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
        let mut sums = [[_mm256_setzero_ps(); 2]; C];
        for i in 0..n_units {
            let start = (i * size_of::<U>()).min(row_bytes - size_of::<U>());
            let unit = bytemuck::from_bytes::<U>(&row[start..][..size_of::<U>()]);
            prefetch_behind(unit);
            let weights = load(unit);
            for c in 0..C {
                let x = if i < n_whole { &whole[c][i] } else { &last[c] };
                sums[c] = step(&weights, x, sums[c]);
            }
        }
        for (c, [even, odd]) in sums.into_iter().enumerate() {
            out[c * n_rows + r] = horizontal_sum(_mm256_add_ps(even, odd));
        }
    }
}

/// The first `n_values` of a block moved to its end, and zeros before them.
fn at_the_end(x: &ActivationBlock, n_values: usize) -> ActivationBlock {
    let mut moved = ActivationBlock::zeroed();
    let n_groups = n_values / GROUP_LEN;
    moved.qs[ActivationBlock::LEN - n_values..].copy_from_slice(&x.qs[..n_values]);
    moved.scales[16 - 2 * n_groups..].copy_from_slice(&x.scales[..2 * n_groups]);
    moved.sums[8 - n_groups..].copy_from_slice(&x.sums[..n_groups]);
    moved
}
