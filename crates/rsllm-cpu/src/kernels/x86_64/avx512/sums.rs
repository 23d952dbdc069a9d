//! Horizontal sums of sixteen vectors, in two steps: down to four lanes, where ends of rows join them, and to one.

use std::arch::x86_64::*;

/// What each of four vectors has left in the middle of a horizontal sum: lanes `l`, `l + 4`, `l + 8` and `l + 12` added, those of
/// vector `q` in quarter `q`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn four_lanes([a, b, c, d]: [__m512; 4]) -> __m512 {
    let halves = |a: __m512, b: __m512| {
        _mm512_add_ps(
            _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b),
            _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b),
        )
    };
    let (low, high) = (halves(a, b), halves(c, d));
    _mm512_add_ps(
        _mm512_shuffle_f32x4::<0b10_00_10_00>(low, high),
        _mm512_shuffle_f32x4::<0b11_01_11_01>(low, high),
    )
}

/// The rest of these sums: of the vector that was quarter `q` of result `j` in lane `4q + j`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn sums_of_four(fours: &[__m512; 4]) -> __m512 {
    let pairs = |a: __m512, b: __m512| {
        let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
        _mm512_add_ps(
            _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
            _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)),
        )
    };
    let (a, b) = (pairs(fours[0], fours[1]), pairs(fours[2], fours[3]));
    _mm512_add_ps(
        _mm512_shuffle_ps::<0b10_00_10_00>(a, b),
        _mm512_shuffle_ps::<0b11_01_11_01>(a, b),
    )
}
