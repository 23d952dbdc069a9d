//! Q5_1: Q5_0 with a minimum.

use rsllm_quant::{ActivationBlock, BlockQ5_1};

use super::dot::{
    Activations, Call, LANES_OF_32, Weights, dot_rows, quants, scales_and_sums, step,
};
use super::halves;
use super::q5_0::five_bits;
use super::simd::load512;
use super::unpack::{IN_ORDER, unpack_units};

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
        |w, x, acc| step::<4, 1>(w, x, &LANES_OF_32, acc),
    );
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn unpack(blocks: &[u8], out: &mut [f32]) {
    unpack_units::<[BlockQ5_1; 8], 32, 0, 1>(blocks, out, &IN_ORDER, |unit| load(unit));
}

const SCALES: halves::Places<3> = halves::Places::new(size_of::<BlockQ5_1>(), 1, [0, 72, 128]);

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load(unit: &[BlockQ5_1; 8]) -> Weights {
    let [a, b, c, d, e, f, g, h] = unit;
    let q = [
        five_bits(&a.qs, &b.qs, a.qh, b.qh),
        five_bits(&c.qs, &d.qs, c.qh, d.qh),
        five_bits(&e.qs, &f.qs, e.qh, f.qh),
        five_bits(&g.qs, &h.qs, g.qh, h.qh),
    ];
    let scales = SCALES.gather([
        load512::<0, _>(unit),
        load512::<72, _>(unit),
        load512::<128, _>(unit),
    ]);
    Weights::new(q, scales)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn prepare(x: &ActivationBlock) -> Activations<4> {
    Activations::new::<0>(quants(x), scales_and_sums(x))
}
