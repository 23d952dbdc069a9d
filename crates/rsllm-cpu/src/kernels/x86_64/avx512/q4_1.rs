//! Q4_1: Q4_0 with a minimum.

use std::arch::x86_64::*;

use rsllm_quant::{ActivationBlock, BlockQ4_1};

use crate::kernels::Prepared;

use super::dot::{Activations, Call, Weights, dot_rows, groups_to_runs};
use super::halves;
use super::q4_0::{PLACES, join, nibble_runs, nibbles};
use super::simd::load512;
use super::tail::Quarters;
use super::unpack::unpack_units;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn dot(
    rows: &[u8],
    row_bytes: usize,
    x: &[ActivationBlock],
    n_columns: usize,
    out: &mut [f32],
    prepared: &mut [Prepared],
) {
    let call = Call {
        rows,
        row_bytes,
        x,
        n_columns,
        out,
        prepared,
    };
    dot_rows::<[BlockQ4_1; 8], true>(
        call,
        &Quarters::RUNS,
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
    let [a, b, c, d, e, f, g, h] = unit;
    let q = nibble_runs(
        join(&a.qs, &b.qs, &c.qs, &d.qs),
        join(&e.qs, &f.qs, &g.qs, &h.qs),
    );
    let minima = scales_and_minima(unit);
    Weights {
        q,
        scales: groups_to_runs(minima),
        minima,
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(in crate::kernels::x86_64) fn scales_and_minima(unit: &[BlockQ4_1; 8]) -> __m512 {
    SCALES.gather([load512::<0, _>(unit), load512::<80, _>(unit)])
}
