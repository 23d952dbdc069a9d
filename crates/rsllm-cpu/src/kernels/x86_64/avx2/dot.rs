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

use bytemuck::Pod;
use rsllm_quant::ActivationBlock;

use super::simd::{horizontal_sum, load256, prefetch_behind};

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
    let scales = _mm256_mul_ps(w.scales, activation_scales(x));
    let quants = quants(x);
    for g in 0..8 {
        // Two products of at most 128 * 127, or 63 * 127 unsigned: no sum of two saturates i16.
        let pairs = if SIGNED {
            _mm256_maddubs_epi16(_mm256_abs_epi8(w.q[g]), _mm256_sign_epi8(quants[g], w.q[g]))
        } else {
            _mm256_maddubs_epi16(w.q[g], quants[g])
        };
        let products = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, w.inner[g]));
        sums[g % 2] = _mm256_fmadd_ps(products, broadcast_lane(scales, g), sums[g % 2]);
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

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn activation_scales(x: &ActivationBlock) -> __m256 {
    _mm256_castsi256_ps(load256::<{ offset_of!(ActivationBlock, scales) }, _>(x))
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

/// Lane `g` in all lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn broadcast_lane(v: __m256, g: usize) -> __m256 {
    _mm256_permutevar8x32_ps(v, _mm256_set1_epi32(g as i32))
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
    let column_blocks = x.len() / n_columns;
    let n_rows = rows.len() / row_bytes;
    assert!(
        rows.len() == n_rows * row_bytes && out.len() == n_rows * n_columns,
        "whole rows, a result each"
    );
    assert!(
        x.len() == n_columns * column_blocks && row_bytes <= column_blocks * size_of::<U>(),
        "whole columns"
    );
    let column = |c: usize| &x[c * column_blocks..][..column_blocks];
    for (row, out) in rows
        .chunks_exact(row_bytes)
        .zip(out.chunks_exact_mut(n_columns))
    {
        let (fours, rest) = out.as_chunks_mut::<4>();
        let (twos, rest) = rest.as_chunks_mut::<2>();
        let mut c = 0;
        for out in fours {
            *out = tile(
                row,
                [column(c), column(c + 1), column(c + 2), column(c + 3)],
                load,
                step,
            );
            c += 4;
        }
        for out in twos {
            *out = tile(row, [column(c), column(c + 1)], load, step);
            c += 2;
        }
        for out in rest {
            [*out] = tile(row, [column(c)], load, step);
        }
    }
}

/// A row times `C` columns.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn tile<U: Pod, const C: usize>(
    row: &[u8],
    x: [&[ActivationBlock]; C],
    load: impl Fn(&U) -> Weights + Copy,
    step: impl Fn(&Weights, &ActivationBlock, Sums) -> Sums + Copy,
) -> [f32; C] {
    let n_whole = row.len() / size_of::<U>();
    let (units, tail) = row.split_at(n_whole * size_of::<U>());
    let mut sums = [[_mm256_setzero_ps(); 2]; C];
    add_products(bytemuck::cast_slice(units), x, &mut sums, load, step);
    if !tail.is_empty() {
        // Blocks that are missing in the last unit count as zero, as do the groups of activations there.
        let mut unit = U::zeroed();
        bytemuck::bytes_of_mut(&mut unit)[..tail.len()].copy_from_slice(tail);
        let mut last = x;
        for x in &mut last {
            *x = &x[n_whole..];
        }
        add_products(std::slice::from_ref(&unit), last, &mut sums, load, step);
    }
    let mut results = [0.0; C];
    for (result, [even, odd]) in results.iter_mut().zip(sums) {
        *result = horizontal_sum(_mm256_add_ps(even, odd));
    }
    results
}

/// Adds the products of all units, which no column has fewer of.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_products<U: Pod, const C: usize>(
    units: &[U],
    x: [&[ActivationBlock]; C],
    results: &mut [Sums; C],
    load: impl Fn(&U) -> Weights + Copy,
    step: impl Fn(&Weights, &ActivationBlock, Sums) -> Sums + Copy,
) {
    let mut columns = [&[] as &[ActivationBlock]; C];
    for c in 0..C {
        columns[c] = &x[c][..units.len()];
    }
    let mut sums = *results;
    for (i, unit) in units.iter().enumerate() {
        prefetch_behind(unit);
        let weights = load(unit);
        for c in 0..C {
            sums[c] = step(&weights, &columns[c][i], sums[c]);
        }
    }
    *results = sums;
}
