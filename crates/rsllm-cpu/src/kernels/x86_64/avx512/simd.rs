//! What all AVX-512 kernels share: loads and stores whose bounds the compiler checks, prefetch, horizontal sums.
//!
//! Everything else in the kernels is safe code: the intrinsics that touch no memory are safe in functions with the right
//! `target_feature`.

use std::arch::asm;
use std::arch::x86_64::*;

use bytemuck::Pod;

/// 64 bytes from byte `AT` of `src` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(in crate::kernels::x86_64) fn load512<const AT: usize, T: Pod>(src: &T) -> __m512i {
    const { assert!(AT + 64 <= size_of::<T>()) };
    // SAFETY: the 64 bytes lie within `src`, by the line above; `loadu` has no alignment duty.
    unsafe { _mm512_loadu_si512(std::ptr::from_ref(src).byte_add(AT).cast()) }
}

/// 32 bytes from byte `AT` of `src` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(in crate::kernels::x86_64) fn load256<const AT: usize, T: Pod>(src: &T) -> __m256i {
    const { assert!(AT + 32 <= size_of::<T>()) };
    // SAFETY: the 32 bytes lie within `src`, by the line above; `loadu` has no alignment duty.
    unsafe { _mm256_loadu_si256(std::ptr::from_ref(src).byte_add(AT).cast()) }
}

/// 16 bytes from byte `AT` of `src` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(in crate::kernels::x86_64) fn load128<const AT: usize, T: Pod>(src: &T) -> __m128i {
    const { assert!(AT + 16 <= size_of::<T>()) };
    // SAFETY: the 16 bytes lie within `src`, by the line above; `loadu` has no alignment duty.
    unsafe { _mm_loadu_si128(std::ptr::from_ref(src).byte_add(AT).cast()) }
}

/// Sixteen bytes from byte `AT` of `src` on and from every `STRIDE` bytes behind. Written out, because compilers replace the four
/// loads by fewer of them and more shuffles, which are what bounds the kernels.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(in crate::kernels::x86_64) fn load_four<const AT: usize, const STRIDE: usize, T: Pod>(
    src: &T,
) -> __m512i {
    const { assert!(AT + 3 * STRIDE + 16 <= size_of::<T>()) };
    let all: __m512i;
    // SAFETY: the bytes lie within `src`, by the line above; the loads have no alignment duty.
    unsafe {
        asm!(
            "vbroadcasti32x4 {all}, xmmword ptr [{src} + {first}]",
            "vinserti32x4 {all}, {all}, xmmword ptr [{src} + {second}], 1",
            "vinserti32x4 {all}, {all}, xmmword ptr [{src} + {third}], 2",
            "vinserti32x4 {all}, {all}, xmmword ptr [{src} + {fourth}], 3",
            all = out(zmm_reg) all,
            src = in(reg) std::ptr::from_ref(src),
            first = const AT,
            second = const AT + STRIDE,
            third = const AT + 2 * STRIDE,
            fourth = const AT + 3 * STRIDE,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    all
}

/// 64 bytes to `dst`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(in crate::kernels::x86_64) fn store512<T: Pod>(dst: &mut T, value: __m512i) {
    const { assert!(size_of::<T>() == 64) };
    // SAFETY: `dst` is 64 bytes long, by the line above; `storeu` has no alignment duty.
    unsafe { _mm512_storeu_si512(std::ptr::from_mut(dst).cast(), value) }
}

/// 32 bytes to `dst`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn store256<T: Pod>(dst: &mut T, value: __m256i) {
    const { assert!(size_of::<T>() == 32) };
    // SAFETY: `dst` is 32 bytes long, by the line above; `storeu` has no alignment duty.
    unsafe { _mm256_storeu_si256(std::ptr::from_mut(dst).cast(), value) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(in crate::kernels::x86_64) fn load_f32(src: &[f32; 16]) -> __m512 {
    // SAFETY: `src` is 64 bytes long; `loadu` has no alignment duty.
    unsafe { _mm512_loadu_ps(src.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(in crate::kernels::x86_64) fn store_f32(dst: &mut [f32; 16], values: __m512) {
    // SAFETY: `dst` is 64 bytes long; `storeu` has no alignment duty.
    unsafe { _mm512_storeu_ps(dst.as_mut_ptr(), values) }
}

/// The first lanes, as many as `dst` is long. A copy of so few values would be a call.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn store_lanes(dst: &mut [f32], values: __m512) {
    assert!(dst.len() <= 16, "a vector has sixteen lanes");
    let lanes = ((1u32 << dst.len()) - 1) as u16;
    // SAFETY: only lanes within `dst` are written.
    unsafe { _mm512_mask_storeu_ps(dst.as_mut_ptr(), lanes, values) };
}

/// How far ahead of the read position weights are asked for, into L2: far enough to cover a memory latency at full bandwidth.
const PREFETCH_BYTES: usize = 6144;
/// And from there into L1, which holds fewer lines under way.
const PREFETCH_NEAR_BYTES: usize = 512;

/// Asks for every cache line [`PREFETCH_BYTES`] behind `src`, and again shortly before it is read. A line left out would cost a
/// whole memory latency.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
#[allow(
    unused_unsafe,
    reason = "later versions of Rust than the oldest supported one declare prefetches safe"
)]
pub(super) fn prefetch_behind<T>(src: &T) {
    let start = std::ptr::from_ref(src).cast::<i8>();
    for line in (0..size_of::<T>()).step_by(64) {
        // SAFETY: a prefetch reads nothing; an address outside the weights, or unmapped, has no effect.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(PREFETCH_BYTES + line)) };
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(PREFETCH_NEAR_BYTES + line)) };
    }
}

/// Asks for every cache line of `len` bytes from `start` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
#[allow(
    unused_unsafe,
    reason = "later versions of Rust than the oldest supported one declare prefetches safe"
)]
pub(in crate::kernels::x86_64) fn prefetch_row(src: &[u8], start: usize, len: usize) {
    let Some(row) = src.get(start..start + len) else {
        return;
    };
    for line in row.chunks(64) {
        // SAFETY: a prefetch reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
    }
}

/// The sum of all lanes. The order of additions is fixed, so equal vectors have equal sums wherever they occur.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn horizontal_sum(v: __m512) -> f32 {
    let eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
    let four = _mm_add_ps(
        _mm256_castps256_ps128(eight),
        _mm256_extractf128_ps::<1>(eight),
    );
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

/// Sixteen vectors of sixteen 32-bit values, rows to columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(in crate::kernels::x86_64) fn transposed(v: &[__m512i; 16]) -> [__m512i; 16] {
    let zero = _mm512_setzero_si512();
    // In quarters: pairs of rows, then fours.
    let mut fours = [zero; 16];
    for i in 0..4 {
        let [a, b, c, d] = [v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]];
        let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
        let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
        fours[i] = _mm512_unpacklo_epi64(ab, cd);
        fours[4 + i] = _mm512_unpackhi_epi64(ab, cd);
        fours[8 + i] = _mm512_unpacklo_epi64(ab_high, cd_high);
        fours[12 + i] = _mm512_unpackhi_epi64(ab_high, cd_high);
    }
    // `fours[4c + i]`, quarter q: column 4q + c of rows 4i to 4i + 3.
    let mut out = [zero; 16];
    for c in 0..4 {
        let [a, b, d, e] = [
            fours[4 * c],
            fours[4 * c + 1],
            fours[4 * c + 2],
            fours[4 * c + 3],
        ];
        let even_low = _mm512_shuffle_i64x2::<0b10_00_10_00>(a, b);
        let odd_low = _mm512_shuffle_i64x2::<0b11_01_11_01>(a, b);
        let even_high = _mm512_shuffle_i64x2::<0b10_00_10_00>(d, e);
        let odd_high = _mm512_shuffle_i64x2::<0b11_01_11_01>(d, e);
        out[c] = _mm512_shuffle_i64x2::<0b10_00_10_00>(even_low, even_high);
        out[8 + c] = _mm512_shuffle_i64x2::<0b11_01_11_01>(even_low, even_high);
        out[4 + c] = _mm512_shuffle_i64x2::<0b10_00_10_00>(odd_low, odd_high);
        out[12 + c] = _mm512_shuffle_i64x2::<0b11_01_11_01>(odd_low, odd_high);
    }
    out
}
