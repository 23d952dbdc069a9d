//! Q4_0, and the nibbles that Q4_1 shares.

use std::arch::x86_64::*;

use rsllm_quant::{ActivationBlock, BlockQ4_0};

use crate::kernels::PreparedColumns;

use super::dot::{Call, Weights, add_groups_and_minima, dot_rows, ones};
use super::simd::{load128, widen_halves};
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
    unpack_units::<[BlockQ4_0; 8], OFFSET, 0>(blocks, out, |unit| {
        Values::of_groups(q(unit), scales(unit), _mm256_setzero_ps())
    });
}

/// What a code is above its value.
const OFFSET: i32 = 8;

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load(unit: &[BlockQ4_0; 8]) -> Weights {
    let scales = scales(unit);
    // The offset of the codes, as a minimum.
    let minima = _mm256_mul_ps(scales, _mm256_set1_ps(-(OFFSET as f32)));
    Weights {
        q: q(unit),
        inner: ones(),
        scales,
        minima,
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scales(unit: &[BlockQ4_0; 8]) -> __m256 {
    widen_halves(unit.map(|block| block.d))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q(unit: &[BlockQ4_0; 8]) -> [__m256i; 8] {
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

/// 32 codes in element order.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn nibbles(qs: &[u8; 16]) -> __m256i {
    let packed = load128::<0, _>(qs);
    let both = _mm256_set_m128i(_mm_srli_epi16::<4>(packed), packed);
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}
