//! Q5_0, and the fifth bits that Q5_1 shares.

use std::arch::x86_64::*;

use rsllm_quant::{ActivationBlock, BlockQ5_0};

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
    unpack_units::<[BlockQ5_0; 8], OFFSET, 0>(blocks, out, |unit| {
        Values::of_groups(q(unit), scales(unit), _mm256_setzero_ps())
    });
}

/// What a code is above its value.
const OFFSET: i32 = 16;

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load(unit: &[BlockQ5_0; 8]) -> Weights {
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
fn scales(unit: &[BlockQ5_0; 8]) -> __m256 {
    widen_halves(unit.map(|block| block.d))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q(unit: &[BlockQ5_0; 8]) -> [__m256i; 8] {
    let [a, b, c, d, e, f, g, h] = unit;
    [
        five_bits(&a.qs, a.qh),
        five_bits(&b.qs, b.qh),
        five_bits(&c.qs, c.qh),
        five_bits(&d.qs, d.qh),
        five_bits(&e.qs, e.qh),
        five_bits(&f.qs, f.qh),
        five_bits(&g.qs, g.qh),
        five_bits(&h.qs, h.qh),
    ]
}

/// 32 codes in element order.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn five_bits(qs: &[u8; 16], qh: [u8; 4]) -> __m256i {
    // Each byte gets the byte of `qh` with its bit, then the bit alone.
    let bytes = _mm256_setr_epi64x(
        0,
        0x0101_0101_0101_0101,
        0x0202_0202_0202_0202,
        0x0303_0303_0303_0303,
    );
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    let spread = _mm256_shuffle_epi8(_mm256_set1_epi32(i32::from_le_bytes(qh)), bytes);
    let is_set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
    _mm256_or_si256(nibbles(qs), _mm256_and_si256(is_set, _mm256_set1_epi8(16)))
}
