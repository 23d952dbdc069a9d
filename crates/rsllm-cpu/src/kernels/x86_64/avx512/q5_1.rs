//! Q5_1: Q5_0 with a minimum.

use std::arch::x86_64::*;

use rsllm_quant::{ActivationBlock, BlockQ5_1};

use crate::kernels::PreparedColumns;

use super::dot::{Activations, Call, Weights, dot_rows, groups_to_quads, quads};
use super::halves;
use super::q5_0::five_bits;
use super::simd::load512;
use super::tail::{Minima, Order};
use super::unpack::{IN_ORDER, unpack_units};

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
    dot_rows::<[BlockQ5_1; 8], { Minima::OF_GROUPS }, { Order::QUADS }>(
        call,
        |x| Activations::in_quads::<0, 1>(x),
        |unit| load_quads(unit),
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
    Weights::new(q, scales_and_minima(unit))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(in crate::kernels::x86_64) fn scales_and_minima(unit: &[BlockQ5_1; 8]) -> __m512 {
    SCALES.gather([
        load512::<0, _>(unit),
        load512::<72, _>(unit),
        load512::<128, _>(unit),
    ])
}

/// For dots, in the order of `quads`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load_quads(unit: &[BlockQ5_1; 8]) -> Weights {
    let Weights { q, scales, .. } = load(unit);
    Weights {
        q: quads(q),
        scales: groups_to_quads(scales),
        minima: scales,
    }
}
