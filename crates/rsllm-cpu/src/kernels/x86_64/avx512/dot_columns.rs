//! Dots of rows and few or many columns: which rows share a read of activations, which columns one unpacking, and when sums are
//! completed. A format's two steps come through `dot.rs`, as do the units.

use std::arch::x86_64::*;

use bytemuck::Pod;

use super::dot::{TRANSPOSITION, Weights, add_minima, add_product};
use super::simd::{load_f32, load512, prefetch_behind, store_f32, store_lanes};
use super::sums::{four_lanes, sums_of_four};
use super::tail::{self, Minima};
use crate::kernels::{Dot, Prepared};

/// The body for each `c` below `$n`, at most sixteen, written out: compilers leave sixteen turns a loop, whose sums then lie in
/// memory.
macro_rules! each_column {
    ($c:ident in $n:ident => $body:expr) => {
        each_column!($c in $n => $body; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    };
    ($c:ident in $n:ident => $body:expr; $($value:literal)*) => {
        $(if $value < $n {
            #[allow(non_upper_case_globals)]
            const $c: usize = $value;
            $body;
        })*
    };
}

/// Units of a row up to which sixteen columns of activations stay in the L1 cache.
pub(super) const WIDE_UNITS: usize = 6;

/// Bytes of rows from which on those of a tile are read from places far from each other, unless they are short: the memory
/// system brings more at a time then. But each such stream begins with a wait.
const STREAMED_BYTES: usize = 128 * 1024;

/// Rows, and where the results of some columns go.
pub(super) struct Part<'a> {
    pub(super) rows: &'a [u8],
    pub(super) row_bytes: usize,
    pub(super) n_columns: usize,
    /// Columns from the first of the part on.
    pub(super) n_there: usize,
    /// From it on: unit `i` of column `c` at `i * n_columns + c`. What is read of columns that are not there are any bits.
    pub(super) units: &'a [Prepared],
    pub(super) n_units: usize,
    /// Quarter `k` of the end of column `c`, at `k * n_columns + c`.
    pub(super) rest: &'a [Prepared],
    pub(super) n_quarters: usize,
}

impl<'a> Part<'a> {
    fn n_rows(&self) -> usize {
        self.rows.len() / self.row_bytes
    }

    /// A row, or the last one in place of those behind it.
    fn row(&self, i: usize) -> &'a [u8] {
        &self.rows[i.min(self.n_rows() - 1) * self.row_bytes..][..self.row_bytes]
    }

    /// The quarters at the end of `row` as quarter `place` of a unit each.
    fn put_ends<U: Pod>(&self, row: &[u8], ends: [&mut U; 2], place: usize) {
        let quarter_bytes = size_of::<U>() / 4;
        let end = &row[row.len() - self.n_quarters * quarter_bytes..];
        for (unit, end) in ends.into_iter().zip(end.chunks_exact(quarter_bytes)) {
            bytemuck::bytes_of_mut(unit)[place * quarter_bytes..][..quarter_bytes]
                .copy_from_slice(end);
        }
    }
}

/// All rows times up to `C` of 1, 2 or 4 columns, `R` rows at a time. Sixteen sums are completed together: 16 / C rows of each
/// column. Returns `C`.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn few_columns<
    U: Pod,
    const MINIMA: usize,
    const ORDER: bool,
    const R: usize,
    const C: usize,
>(
    part: &Part<'_>,
    out: &mut [f32],
    load: impl Fn(&U) -> Weights + Copy,
) -> usize {
    let (n_rows, n_at_once) = (part.n_rows(), 16 / C);
    let (n_columns, n_wanted) = (part.n_columns, C.min(part.n_there));
    let streamed_rows =
        if part.rows.len() >= STREAMED_BYTES && part.row_bytes >= Dot::STREAMED_ROW_BYTES {
            n_rows / n_at_once * n_at_once
        } else {
            0
        };
    // Quarters of four rows make a unit.
    let mut ends = [[U::zeroed(); 4]; 2];
    for first in (0..n_rows).step_by(n_at_once) {
        // The first row, and how far it is from there to the next of a tile, and to the next tile's.
        let (start, next_row, next_tile) = if first < streamed_rows {
            (first / R, streamed_rows / R, 1)
        } else {
            (first, 1, R)
        };
        let n_there = n_at_once.min(n_rows - first);
        // Of row `r` and column `c` at `c * n_at_once + r`.
        let mut all = [_mm512_setzero_ps(); 16];
        for t in (0..n_there).step_by(R) {
            let mut row = [&[] as &[u8]; R];
            for (i, row) in row.iter_mut().enumerate() {
                // A tile that sticks out computes the last row again.
                *row = part.row(start + t / R * next_tile + i * next_row);
            }
            let sums = tile::<U, MINIMA, R, C>(row, part.units, n_columns, part.n_units, load);
            for (r, (row, sums)) in row.into_iter().zip(sums).enumerate() {
                for (c, sums) in sums.into_iter().enumerate() {
                    all[c * n_at_once + t + r] = sums;
                }
                let [first, second] = &mut ends;
                let unit = (t + r) / 4;
                part.put_ends(row, [&mut first[unit], &mut second[unit]], (t + r) % 4);
            }
        }
        let mut fours = [_mm512_setzero_ps(); 4];
        for (four, all) in fours.iter_mut().zip(all.as_chunks().0) {
            *four = four_lanes(*all);
        }
        for (k, ends) in ends.iter().enumerate().take(part.n_quarters) {
            let x = &part.rest[k * n_columns..][..C];
            // Units of a column.
            let n_units = n_at_once / 4;
            for (unit, end) in ends.iter().enumerate().take(n_units) {
                let w = tail::quarters_of_rows::<MINIMA>(&load(end));
                for (c, x) in x.iter().enumerate() {
                    let four = &mut fours[c * n_units + unit];
                    *four = tail::step::<MINIMA, ORDER>(&w, x, *four);
                }
            }
        }
        let mut sums = [0.0; 16];
        let in_order = load512::<0, _>(&TRANSPOSITION);
        store_f32(
            &mut sums,
            _mm512_permutexvar_ps(in_order, sums_of_four(&fours)),
        );
        for (c, sums) in sums.chunks_exact(n_at_once).take(n_wanted).enumerate() {
            let out = &mut out[c * n_rows..][..n_rows];
            if next_row == 1 {
                out[first..first + n_there].copy_from_slice(&sums[..n_there]);
                continue;
            }
            for (r, sum) in sums.iter().enumerate() {
                out[start + r / R * next_tile + r % R * next_row] = *sum;
            }
        }
    }
    C
}

/// The whole units of `R` rows and `C` columns, which lie at every `n_columns`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn tile<U: Pod, const MINIMA: usize, const R: usize, const C: usize>(
    row: [&[u8]; R],
    units: &[Prepared],
    n_columns: usize,
    n_units: usize,
    load: impl Fn(&U) -> Weights + Copy,
) -> [[__m512; C]; R] {
    let mut acc = [[_mm512_setzero_ps(); C]; R];
    let mut before = [_mm512_setzero_ps(); R];
    for i in 0..n_units {
        let start = (i * size_of::<U>()).min(row[0].len() - size_of::<U>());
        let unit = |r: usize| bytemuck::from_bytes::<U>(&row[r][start..][..size_of::<U>()]);
        let x: &[Prepared; C] = units[i * n_columns..]
            .first_chunk()
            .expect("a unit has them all");
        let zero = _mm512_setzero_si512();
        let mut weights = [Weights::new([zero; 4], _mm512_setzero_ps()); R];
        for r in 0..R {
            prefetch_behind(unit(r));
            weights[r] = load(unit(r));
            let minima = weights[r].minima;
            weights[r].minima = Minima::of_pair::<MINIMA>(i, before[r], minima);
            before[r] = minima;
            if C == 1 {
                acc[r][0] = add_product::<MINIMA>(&weights[r], &x[0], acc[r][0]);
            }
        }
        if C > 1 {
            each_column!(c in C => {
                for r in 0..R {
                    acc[r][c] = add_product::<MINIMA>(&weights[r], &x[c], acc[r][c]);
                }
            });
        }
        if Minima::are_due::<MINIMA>(i, n_units) {
            each_column!(c in C => {
                for r in 0..R {
                    acc[r][c] = add_minima(weights[r].minima, &x[c], acc[r][c]);
                }
            });
        }
    }
    acc
}

/// All rows times `C` of 8 or 16 columns, or those of them that there are. Sums lie in the L1 cache until four rows of a column,
/// and then sixteen, are completed together. Returns `C`.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
#[expect(
    clippy::needless_range_loop,
    reason = "an index into several arrays at once"
)]
pub(super) fn many_columns<U: Pod, const MINIMA: usize, const ORDER: bool, const C: usize>(
    part: &Part<'_>,
    out: &mut [f32],
    load: impl Fn(&U) -> Weights + Copy,
) -> usize {
    let n_rows = part.n_rows();
    let (n_columns, n_wanted) = (part.n_columns, C.min(part.n_there));
    let (mut all, mut fours) = ([[[0.0; 16]; 4]; C], [[[0.0; 16]; 4]; C]);
    // A unit of the ends of four rows, for each quarter.
    let mut ends = [U::zeroed(); 2];
    for first in (0..n_rows).step_by(16) {
        let n_there = 16.min(n_rows - first);
        for four in 0..n_there.div_ceil(4) {
            for r in 0..4 {
                let row = part.row(first + 4 * four + r);
                let [sums] =
                    tile::<U, MINIMA, 1, C>([row], part.units, n_columns, part.n_units, load);
                each_column!(c in C => store_f32(&mut all[c][r], sums[c]));
                part.put_ends(row, ends.each_mut(), r);
            }
            for (rows, fours) in all.iter().zip(&mut fours) {
                let rows = rows.each_ref().map(|sums| load_f32(sums));
                store_f32(&mut fours[four], four_lanes(rows));
            }
            for (k, end) in ends.iter().enumerate().take(part.n_quarters) {
                let w = tail::quarters_of_rows::<MINIMA>(&load(end));
                let x: &[Prepared; C] = part.rest[k * n_columns..]
                    .first_chunk()
                    .expect("room for columns that are not there");
                for (x, fours) in x.iter().zip(&mut fours) {
                    let four = &mut fours[four];
                    store_f32(four, tail::step::<MINIMA, ORDER>(&w, x, load_f32(four)));
                }
            }
        }
        let in_order = load512::<0, _>(&TRANSPOSITION);
        for (fours, out) in fours
            .iter()
            .take(n_wanted)
            .zip(out.chunks_exact_mut(n_rows))
        {
            let fours = fours.each_ref().map(|sums| load_f32(sums));
            let sums = _mm512_permutexvar_ps(in_order, sums_of_four(&fours));
            store_lanes(&mut out[first..][..n_there], sums);
        }
    }
    C
}
