//! The loop of all unpackers: a format's `load` step, which its dot shares, then scale and minimum a value.

use std::arch::x86_64::*;

use bytemuck::Pod;

use super::simd::store_f32;

/// 256 weights: value = scale · (byte - offset), plus or minus a minimum; in element order.
#[derive(Clone, Copy)]
pub(super) struct Values {
    /// Bytes, signed or below 128.
    pub(super) q: [__m256i; 8],
    /// A scale for each 16 values.
    pub(super) scales: [__m256; 2],
    /// A minimum for each 16 values.
    pub(super) minima: [__m256; 2],
}

impl Values {
    /// From a scale and a minimum for each 32 values.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn of_groups(q: [__m256i; 8], scales: __m256, minima: __m256) -> Self {
        Self {
            q,
            scales: double(scales),
            minima: double(minima),
        }
    }
}

/// Each lane twice.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn double(v: __m256) -> [__m256; 2] {
    [
        _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
        _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)),
    ]
}

/// Unpacks units of 256 values. `OFFSET` is what bytes are above their value; with a `SIGN` of 1 or -1 the minima are
/// added or subtracted.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unpack_units<U: Pod, const OFFSET: i32, const SIGN: i8>(
    blocks: &[u8],
    out: &mut [f32],
    load: impl Fn(&U) -> Values + Copy,
) {
    let n_units = blocks.len() / size_of::<U>();
    let (units, tail) = blocks.split_at(n_units * size_of::<U>());
    let (out, out_tail) = out.as_chunks_mut::<256>();
    assert!(
        out.len() == n_units && tail.is_empty() == out_tail.is_empty(),
        "a destination of the blocks' size"
    );
    for (unit, out) in bytemuck::cast_slice(units).iter().zip(out) {
        unpack_unit::<OFFSET, SIGN>(&load(unit), out);
    }
    if !tail.is_empty() {
        let mut unit = U::zeroed();
        bytemuck::bytes_of_mut(&mut unit)[..tail.len()].copy_from_slice(tail);
        let mut values = [0.0; 256];
        unpack_unit::<OFFSET, SIGN>(&load(&unit), &mut values);
        out_tail.copy_from_slice(&values[..out_tail.len()]);
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn unpack_unit<const OFFSET: i32, const SIGN: i8>(w: &Values, out: &mut [f32; 256]) {
    let (groups, _) = out.as_chunks_mut::<32>();
    for (g, (&q, out)) in w.q.iter().zip(groups).enumerate() {
        let (low, high) = (_mm256_castsi256_si128(q), _mm256_extracti128_si256::<1>(q));
        let eights = [
            low,
            _mm_srli_si128::<8>(low),
            high,
            _mm_srli_si128::<8>(high),
        ];
        let (out, _) = out.as_chunks_mut::<8>();
        for (i, (eight, out)) in eights.into_iter().zip(out).enumerate() {
            let q = _mm256_sub_epi32(_mm256_cvtepi8_epi32(eight), _mm256_set1_epi32(OFFSET));
            let lane = _mm256_set1_epi32((g % 4 * 2 + i / 2) as i32);
            let scale = _mm256_permutevar8x32_ps(w.scales[g / 4], lane);
            // Two roundings, as in the scalar code: no fused multiply-add.
            let mut values = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(q));
            if SIGN != 0 {
                let min = _mm256_permutevar8x32_ps(w.minima[g / 4], lane);
                values = if SIGN > 0 {
                    _mm256_add_ps(values, min)
                } else {
                    _mm256_sub_ps(values, min)
                };
            }
            store_f32(out, values);
        }
    }
}
