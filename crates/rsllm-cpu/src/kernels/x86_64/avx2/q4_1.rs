//! Q4_1: Q4_0 with a minimum.

use std::arch::x86_64::*;

use rsllm_quant::{ActivationBlock, BlockQ4_1};

use crate::kernels::PreparedColumns;

use super::dot::{Call, Weights, add_groups_and_minima, dot_rows, ones};
use super::q4_0::nibbles;
use super::simd::widen_halves;
use super::unpack::{Values, unpack_units};

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot(
    rows: &[u8],
    row_bytes: usize,
    x: &[ActivationBlock],
    n_columns: usize,
    out: &mut [f32],
    _: PreparedColumns<'_>,
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
        |unit| load(unit),
        |w, x, sums| add_groups_and_minima(w, x, sums),
    );
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unpack(blocks: &[u8], out: &mut [f32]) {
    unpack_units::<[BlockQ4_1; 8], 0, 1>(blocks, out, |unit| {
        Values::of_groups(q(unit), scales(unit), minima(unit))
    });
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load(unit: &[BlockQ4_1; 8]) -> Weights {
    Weights {
        q: q(unit),
        inner: ones(),
        scales: scales(unit),
        minima: minima(unit),
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scales(unit: &[BlockQ4_1; 8]) -> __m256 {
    widen_halves(unit.map(|block| block.d))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn minima(unit: &[BlockQ4_1; 8]) -> __m256 {
    widen_halves(unit.map(|block| block.m))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q(unit: &[BlockQ4_1; 8]) -> [__m256i; 8] {
    let [a, b, c, d, e, f, g, h] = unit;
    [
        nibbles(&a.qs),
        nibbles(&b.qs),
        nibbles(&c.qs),
        nibbles(&d.qs),
        nibbles(&e.qs),
        nibbles(&f.qs),
        nibbles(&g.qs),
        nibbles(&h.qs),
    ]
}
