//! Q4_1: Q4_0 with a minimum.

use rsllm_quant::{ActivationBlock, BlockQ4_1};

use super::dot::{Activations, Call, Weights, dot_rows, scales_and_sums, step};
use super::halves;
use super::q4_0::{LANES, PLACES, join, nibbles, quants_by_halves};
use super::simd::load512;
use super::unpack::unpack_units;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn dot(
    rows: &[u8],
    row_bytes: usize,
    x: &[ActivationBlock],
    n_columns: usize,
    out: &mut [f32],
) {
    let call = Call {
        rows,
        row_bytes,
        x,
        n_columns,
        out,
    };
    dot_rows(
        call,
        |x| prepare(x),
        |unit| load(unit),
        |w, x, acc| step::<2, 1>(w, x, &LANES, acc),
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
    let scales = SCALES.gather([load512::<0, _>(unit), load512::<80, _>(unit)]);
    Weights::new(q, scales)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn prepare(x: &ActivationBlock) -> Activations<2> {
    Activations::new::<0>(quants_by_halves(x), scales_and_sums(x))
}
