//! Q4_1: Q4_0 with a minimum.

use std::arch::x86_64::*;

use rsllm_quant::{ActivationBlock, BlockQ4_1};

use crate::kernels::PreparedColumns;

use super::dot::{Activations, Call, Weights, dot_rows, groups_to_runs};
use super::halves;
use super::q4_0::{PLACES, join, nibbles, nibbles_of_qwords};
use super::simd::load512;
use super::tail::{Minima, Order};
use super::unpack::unpack_units;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn dot(
    rows: &[u8],
    row_bytes: usize,
    x: &[ActivationBlock],
    n_columns: usize,
    out: &mut [f32],
    prepared: PreparedColumns<'_>,
) {
    let call = Call {
        rows,
        row_bytes,
        x,
        n_columns,
        out,
        prepared,
    };
    dot_rows::<[BlockQ4_1; 8], { Minima::OF_GROUPS }, { Order::RUNS }>(
        call,
        |x| Activations::in_runs::<0, 1>(x),
        |unit| load_runs(unit),
    );
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn unpack(blocks: &[u8], out: &mut [f32]) {
    unpack_units::<[BlockQ4_1; 8], 32, 0, 1>(blocks, out, &PLACES, |unit| load(unit));
}

const SCALES: halves::Places<2> = halves::Places::new(size_of::<BlockQ4_1>(), 1, [0, 80]);

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load(unit: &[BlockQ4_1; 8]) -> Weights {
    let [a, b, c, d, e, f, g, h] = unit;
    let q = nibbles(
        join(&a.qs, &b.qs, &c.qs, &d.qs),
        join(&e.qs, &f.qs, &g.qs, &h.qs),
    );
    Weights::new(q, scales_and_minima(unit))
}

/// For dots, in the order of `runs`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load_runs(unit: &[BlockQ4_1; 8]) -> Weights {
    let (a, b) = (load512::<0, _>(unit), load512::<48, _>(unit));
    let c = load512::<96, _>(unit);
    let eight_bytes = |of: &EightBytes| {
        let most = _mm512_permutex2var_epi32(a, load512::<0, _>(&of.in_first_two), b);
        let last = load512::<0, _>(&of.in_third);
        _mm512_mask_permutexvar_epi32(most, EightBytes::FROM_THIRD, last, c)
    };
    let minima = scales_and_minima(unit);
    Weights {
        q: nibbles_of_qwords(eight_bytes(&FIRST), eight_bytes(&SECOND)),
        scales: groups_to_runs(minima),
        minima,
    }
}

/// Eight bytes of codes of each block, whose double words are in three loads of 64 bytes at 0, 48 and 96.
struct EightBytes {
    in_first_two: [i32; 16],
    in_third: [i32; 16],
}

const FIRST: EightBytes = EightBytes::new(1);
const SECOND: EightBytes = EightBytes::new(3);

impl EightBytes {
    /// Lanes of blocks 5 to 7.
    const FROM_THIRD: u16 = 0xfc00;

    /// From double word `at` of each block on.
    const fn new(at: usize) -> Self {
        let (mut in_first_two, mut in_third) = ([0; 16], [0; 16]);
        let mut lane = 0;
        while lane < 16 {
            let word = lane / 2 * (size_of::<BlockQ4_1>() / 4) + at + lane % 2;
            if word < 16 {
                in_first_two[lane] = word as i32;
            } else if word < 12 + 16 && lane < 10 {
                in_first_two[lane] = 16 + (word - 12) as i32;
            } else {
                in_third[lane] = (word - 24) as i32;
            }
            lane += 1;
        }
        Self {
            in_first_two,
            in_third,
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(in crate::kernels::x86_64) fn scales_and_minima(unit: &[BlockQ4_1; 8]) -> __m512 {
    SCALES.gather([load512::<0, _>(unit), load512::<80, _>(unit)])
}
