//! The ends of rows that end within a unit. A last unit that overlaps the one before would cost a whole unit for a few runs, so
//! the end is computed in quarters, four runs each: the same quarter of four rows makes a unit, whose sums join those of the rows
//! when these are down to four lanes.

use std::arch::x86_64::*;

use bytemuck::Zeroable;
use rsllm_quant::{ActivationBlock, GROUP_LEN};

use super::dot::{Activations, Weights, unit_sums};
use super::simd::load512;
use crate::kernels::Prepared;

/// Values of a quarter of a unit.
pub(super) const QUARTER_LEN: usize = ActivationBlock::LEN / 4;

/// How a format orders the lanes of a unit.
pub(super) struct Order;

impl Order {
    /// As [`runs`](super::dot) does.
    pub(super) const RUNS: bool = false;
    /// As [`quads`](super::dot::quads) does.
    pub(super) const QUADS: bool = true;
}

/// How minima lie in the lanes of a unit.
pub(super) struct Minima;

impl Minima {
    pub(super) const NONE: usize = 0;
    /// One for each group of 32, in the upper half: those of two units are multiplied at once.
    pub(super) const OF_GROUPS: usize = 8;
    /// One for each run, in all lanes.
    pub(super) const OF_RUNS: usize = 16;

    /// The minima of unit `i`, or their sums: of an odd one also those of the unit before, in the lower half.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(super) fn of_pair<const MINIMA: usize>(i: usize, before: __m512, own: __m512) -> __m512 {
        if MINIMA == Self::OF_GROUPS && i % 2 == 1 {
            _mm512_shuffle_f32x4::<0b11_10_11_10>(before, own)
        } else {
            own
        }
    }

    /// Whether they are added behind unit `i`.
    #[inline]
    pub(super) fn are_due<const MINIMA: usize>(i: usize, n_units: usize) -> bool {
        match MINIMA {
            Self::NONE => false,
            Self::OF_GROUPS => i % 2 == 1 || i + 1 == n_units,
            _ => true,
        }
    }
}

/// The lanes of each quarter of a unit, and for minima those behind two others.
pub(super) struct Quarters {
    pub(super) of: [Quarter; 4],
    /// From the order of a unit to that of quarters, which is that of runs: lane `4q + i` has run `i` of quarter `q`.
    order: [i32; 16],
}

pub(super) struct Quarter {
    /// Of the quarter's runs, in the place of every quarter's.
    lanes: [i32; 16],
    minima: [i32; 16],
}

impl Quarters {
    /// In an [`Order`].
    pub(super) const fn of(order: bool) -> &'static Self {
        const RUNS: &Quarters = &Quarters::new(4, 1);
        const QUADS: &Quarters = &Quarters::new(1, 4);
        if order == Order::QUADS { QUADS } else { RUNS }
    }

    /// Lane `i` of quarter `q` is `q * quarter + i * step`.
    const fn new(quarter: i32, step: i32) -> Self {
        const NONE: Quarter = Quarter {
            lanes: [0; 16],
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
                of[q].lanes[order[lane] as usize] = q as i32 * quarter + i * step;
                of[q].minima[lane] = 6 + 2 * q as i32 + i;
                q += 1;
            }
            lane += 1;
        }
        Self { of, order }
    }
}

/// Weights of a unit made of one quarter of four rows each, as [`step`] wants them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn quarters_of_rows<const MINIMA: usize>(w: &Weights) -> Weights {
    if MINIMA == Minima::NONE {
        return *w;
    }
    let minima = _mm512_permutexvar_ps(load512::<0, _>(&MINIMA_OF_QUARTERS), w.minima);
    Weights { minima, ..*w }
}

/// Adds the product of such a unit, whose sums are the quarters of `acc`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn step<const MINIMA: usize, const ORDER: bool>(
    w: &Weights,
    x: &Prepared,
    acc: __m512,
) -> __m512 {
    let (mut sums, mut scales) = unit_sums::<MINIMA>(w, x);
    if ORDER != Order::RUNS {
        let order = load512::<0, _>(&Quarters::of(ORDER).order);
        sums = _mm512_permutexvar_epi32(order, sums);
        scales = _mm512_permutexvar_ps(order, scales);
    }
    let acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), scales, acc);
    if MINIMA == Minima::NONE {
        return acc;
    }
    _mm512_fmadd_ps(w.minima, _mm512_castsi512_ps(load512::<0, _>(&x.sums)), acc)
}

/// A quarter in the place of every quarter, in the order of the unit; but sums in the order of quarters.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn spread_quarter(x: &Activations, quarter: &Quarter, dst: &mut Prepared) {
    let lanes = load512::<0, _>(&quarter.lanes);
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
