//! The ends of rows that end within a unit. A last unit that overlaps the one before would cost a whole unit for a few runs, so
//! the end is computed in quarters, four runs each, which join the sums of a row when these are down to four lanes. Four columns
//! share a vector where there are many columns; fewer compute a whole vector each and take from it what they need.

use std::arch::x86_64::*;

use bytemuck::{Pod, Zeroable};
use rsllm_quant::{ActivationBlock, GROUP_LEN};

use super::dot::{Activations, Weights, unit_sums};
use super::simd::{load512, store128};
use crate::kernels::Prepared;

/// Values of a quarter of a unit.
pub(super) const QUARTER_LEN: usize = ActivationBlock::LEN / 4;

/// The lanes of each quarter of a unit, four times, and for minima those behind two others.
pub(super) struct Quarters(pub(super) [Quarter; 4]);

pub(super) struct Quarter {
    lanes: [i32; 16],
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
            minima: [0; 16],
        };
        let mut all = [NONE; 4];
        let mut q = 0;
        while q < 4 {
            let mut i = 0;
            while i < 16 {
                all[q].lanes[i] = q as i32 * quarter + (i % 4) as i32 * step;
                all[q].minima[i] = 6 + 2 * q as i32 + (i % 4) as i32;
                i += 1;
            }
            q += 1;
        }
        Self(all)
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

/// The end of rows that end within a unit: quarters of a unit, which join the sums when these are down to four lanes. Four
/// columns share a vector where there are many columns.
#[derive(Clone, Copy)]
pub(super) struct Tail {
    pub(super) n_quarters: usize,
}

impl Tail {
    /// Columns from which on they share vectors, as [`four_lanes`] wants them.
    pub(super) const SHARED: usize = 5;

    /// Which [`Prepared`] has quarter `k` of a column, and in which of its quarters, where columns share vectors. Fewer have the
    /// whole last unit each, in order.
    pub(super) fn place(self, column: usize, k: usize) -> (usize, usize) {
        (
            (column / 16 * self.n_quarters + k) * 4 + column % 4,
            column / 4 % 4,
        )
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

/// The products of the quarters of one column, as `step` adds them where columns share vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn step_quarters<const MINIMA: bool>(
    w: &Weights,
    x: &Prepared,
    quarters: &[Quarter],
    mut acc: __m128,
) -> __m128 {
    let (sums, scales) = unit_sums::<MINIMA>(w, x);
    for quarter in quarters {
        let lanes = load512::<0, _>(&quarter.lanes);
        let sums = _mm512_castsi512_si128(_mm512_permutexvar_epi32(lanes, sums));
        let scales = _mm512_castps512_ps128(_mm512_permutexvar_ps(lanes, scales));
        acc = _mm_fmadd_ps(_mm_cvtepi32_ps(sums), scales, acc);
        if MINIMA {
            let lanes = load512::<0, _>(&quarter.minima);
            let sums = _mm512_castsi512_ps(load512::<0, _>(&x.sums));
            let sums = _mm512_maskz_permutexvar_ps(SUMS_OF_QUARTER, lanes, sums);
            let minima = _mm512_permutexvar_ps(lanes, w.minima);
            acc = _mm_fmadd_ps(
                _mm512_castps512_ps128(minima),
                _mm512_castps512_ps128(sums),
                acc,
            );
        }
    }
    acc
}

/// Lanes of a quarter that have minima and sums, of two groups of 32.
const SUMS_OF_QUARTER: u16 = 0b1100;

/// The first `n_values` of a block moved to its end, and zeros before them.
pub(super) fn at_the_end(x: &ActivationBlock, n_values: usize) -> ActivationBlock {
    let mut moved = ActivationBlock::zeroed();
    let n_groups = n_values / GROUP_LEN;
    moved.qs[ActivationBlock::LEN - n_values..].copy_from_slice(&x.qs[..n_values]);
    moved.scales[16 - 2 * n_groups..].copy_from_slice(&x.scales[..2 * n_groups]);
    moved.sums[8 - n_groups..].copy_from_slice(&x.sums[..n_groups]);
    moved
}
