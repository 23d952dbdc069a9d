//! Q8_0.

use std::arch::x86_64::*;

use rsllm_quant::{ActivationBlock, BlockQ8_0};

use crate::kernels::PreparedColumns;

use super::dot::{Call, Weights, add_groups, dot_rows, ones};
use super::simd::{load256, widen_halves};
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
        |w, x, sums| add_groups::<true>(w, x, sums),
    );
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unpack(blocks: &[u8], out: &mut [f32]) {
    unpack_units::<[BlockQ8_0; 8], 0, 0>(blocks, out, |unit| {
        Values::of_groups(q(unit), scales(unit), _mm256_setzero_ps())
    });
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load(unit: &[BlockQ8_0; 8]) -> Weights {
    Weights {
        q: q(unit),
        inner: ones(),
        scales: scales(unit),
        minima: _mm256_setzero_ps(),
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scales(unit: &[BlockQ8_0; 8]) -> __m256 {
    widen_halves(unit.map(|block| block.d))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q(unit: &[BlockQ8_0; 8]) -> [__m256i; 8] {
    let [a, b, c, d, e, f, g, h] = unit;
    [
        load256::<0, _>(&a.qs),
        load256::<0, _>(&b.qs),
        load256::<0, _>(&c.qs),
        load256::<0, _>(&d.qs),
        load256::<0, _>(&e.qs),
        load256::<0, _>(&f.qs),
        load256::<0, _>(&g.qs),
        load256::<0, _>(&h.qs),
    ]
}
