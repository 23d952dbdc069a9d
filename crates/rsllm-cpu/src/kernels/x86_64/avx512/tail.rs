//! The ends of rows that end within a unit. A last unit that overlaps the one before would cost a whole unit for a few runs, so
//! the end is computed in quarters, four runs each, which join the sums of a row when these are down to four lanes. Four columns
//! share a vector where there are many columns, and four rows where there are few.

use std::arch::x86_64::*;

use bytemuck::{Pod, Zeroable};
use rsllm_quant::{ActivationBlock, GROUP_LEN};

use super::dot::{Activations, Weights, unit_sums};
use super::simd::{load512, store128};
use crate::kernels::Prepared;

/// Values of a quarter of a unit.
pub(super) const QUARTER_LEN: usize = ActivationBlock::LEN / 4;

/// The lanes of each quarter of a unit, and for minima those behind two others.
pub(super) struct Quarters {
    pub(super) of: [Quarter; 4],
    /// From the order of a unit to that of quarters, which is that of runs: lane `4q + i` has run `i` of quarter `q`.
    pub(super) order: [i32; 16],
}

pub(super) struct Quarter {
    /// Of the quarter's runs, in every quarter.
    lanes: [i32; 16],
    /// The same in the order of the unit.
    spread: [i32; 16],
    minima: [i32; 16],
}

impl Quarters {
    /// In the order of [`runs`].
    pub(super) const RUNS: Self = Self::new(4, 1);
    /// In the order of [`quads`].
    pub(super) const QUADS: Self = Self::new(1, 4);

    /// Lane `i` of quarter `q` is `q * quarter + i * step`.
    const fn new(quarter: i32, step: i32) -> Self {
        const NONE: Quarter = Quarter {
            lanes: [0; 16],
            spread: [0; 16],
            minima: [0; 16],
        };
        let mut of = [NONE; 4];
        let mut order = [0; 16];
        let mut lane = 0;
        while lane < 16 {
            let (in_quarter, i) = (lane as i32 / 4, lane as i32 % 4);
            order[lane] = in_quarter * quarter + i * step;
            let mut q = 0;
            while q < 4 {
                let source = q as i32 * quarter + i * step;
                of[q].lanes[lane] = source;
                of[q].spread[(in_quarter * quarter + i * step) as usize] = source;
                of[q].minima[lane] = 6 + 2 * q as i32 + i;
                q += 1;
            }
            lane += 1;
        }
        Self { of, order }
    }
}

impl Quarter {
    /// The lanes of the quarter in every quarter.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(super) fn of(&self, w: &Weights) -> Weights {
        let lanes = load512::<0, _>(&self.lanes);
        Weights {
            q: w.q.map(|q| _mm512_permutexvar_epi32(lanes, q)),
            scales: _mm512_permutexvar_ps(lanes, w.scales),
            minima: _mm512_permutexvar_ps(load512::<0, _>(&self.minima), w.minima),
        }
    }
}

/// A vector of [`Prepared`] in quarters.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Lanes([[i32; 4]; 4]);

/// The end of rows that end within a unit: quarters of a unit, which join the sums when these are down to four lanes.
#[derive(Clone, Copy)]
pub(super) struct Tail<'a> {
    pub(super) quarters: &'a [Quarter],
    /// See [`Quarters`].
    pub(super) order: &'a [i32; 16],
}

impl Tail<'_> {
    /// Columns from which on four share a vector, as [`four_lanes`] wants them. Of fewer, four rows do.
    pub(super) const SHARED: usize = 5;

    /// Which [`Prepared`] has quarter `k` of a column, and in which of its quarters, where columns share vectors.
    pub(super) fn place(self, column: usize, k: usize) -> (usize, usize) {
        (
            (column / 16 * self.quarters.len() + k) * 4 + column % 4,
            column / 4 % 4,
        )
    }

    /// Adds the product of a unit made of one quarter of four rows each, whose sums are the quarters of `acc`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(super) fn step<const MINIMA: bool>(self, w: &Weights, x: &Prepared, acc: __m512) -> __m512 {
        let (sums, scales) = unit_sums::<MINIMA>(w, x);
        let order = load512::<0, _>(self.order);
        let sums = _mm512_cvtepi32_ps(_mm512_permutexvar_epi32(order, sums));
        let acc = _mm512_fmadd_ps(sums, _mm512_permutexvar_ps(order, scales), acc);
        if !MINIMA {
            return acc;
        }
        let minima = _mm512_permutexvar_ps(load512::<0, _>(&MINIMA_OF_QUARTERS), w.minima);
        _mm512_fmadd_ps(minima, _mm512_castsi512_ps(load512::<0, _>(&x.sums)), acc)
    }
}

/// The lanes of a quarter to quarter `place` of each vector.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn store_quarter(x: &Activations, quarter: &Quarter, dst: &mut Prepared, place: usize) {
    let lanes = load512::<0, _>(&quarter.lanes);
    let minima = load512::<0, _>(&quarter.minima);
    // The sums of groups are in the lanes of their minima, zeros before them.
    let sums = _mm512_maskz_permutexvar_ps(SUMS_OF_QUARTER, minima, x.sums);
    let scales = _mm512_castps_si512(x.scales);
    let [a, b, c, d] = x.q;
    let all = [a, b, c, d, x.start, scales];
    let dst = bytemuck::cast_mut::<Prepared, [Lanes; 7]>(dst);
    for (dst, all) in dst.iter_mut().zip(all) {
        let four = _mm512_castsi512_si128(_mm512_permutexvar_epi32(lanes, all));
        store128(&mut dst.0[place], four);
    }
    let sums = _mm512_castsi512_si128(_mm512_castps_si512(sums));
    store128(&mut dst[6].0[place], sums);
}

/// A quarter in the place of every quarter, in the order of the unit; but sums in the order of quarters.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn spread_quarter(x: &Activations, quarter: &Quarter, dst: &mut Prepared) {
    let lanes = load512::<0, _>(&quarter.spread);
    let minima = load512::<0, _>(&quarter.minima);
    let spread = Activations {
        q: x.q.map(|q| _mm512_permutexvar_epi32(lanes, q)),
        start: _mm512_permutexvar_epi32(lanes, x.start),
        scales: _mm512_permutexvar_ps(lanes, x.scales),
        sums: _mm512_maskz_permutexvar_ps(SUMS_OF_QUARTER, minima, x.sums),
    };
    spread.store(dst);
}

/// Lanes of minima in a unit of four quarters, in the order of quarters.
const MINIMA_OF_QUARTERS: [i32; 16] = [6, 7, 8, 9, 8, 9, 10, 11, 10, 11, 12, 13, 12, 13, 14, 15];

/// Lanes of a quarter that have minima and sums, of two groups of 32, in every quarter.
const SUMS_OF_QUARTER: u16 = 0b1100_1100_1100_1100;

/// The first `n_values` of a block moved to its end, and zeros before them.
pub(super) fn at_the_end(x: &ActivationBlock, n_values: usize) -> ActivationBlock {
    let mut moved = ActivationBlock::zeroed();
    let n_groups = n_values / GROUP_LEN;
    moved.qs[ActivationBlock::LEN - n_values..].copy_from_slice(&x.qs[..n_values]);
    moved.scales[16 - 2 * n_groups..].copy_from_slice(&x.scales[..2 * n_groups]);
    moved.sums[8 - n_groups..].copy_from_slice(&x.sums[..n_groups]);
    moved
}
