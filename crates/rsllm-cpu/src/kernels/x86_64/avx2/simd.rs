//! What all AVX2 kernels share: loads and stores whose bounds the compiler checks, prefetch, horizontal sums.
//!
//! Everything else in the kernels is safe code: the intrinsics that touch no memory are safe in functions with the right
//! `target_feature`.

use std::arch::x86_64::*;

use bytemuck::Pod;
use rsllm_quant::F16Le;

/// 32 bytes from byte `AT` of `src` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn load256<const AT: usize, T: Pod>(src: &T) -> __m256i {
    const { assert!(AT + 32 <= size_of::<T>()) };
    // SAFETY: the 32 bytes lie within `src`, by the line above; `loadu` has no alignment duty.
    unsafe { _mm256_loadu_si256(std::ptr::from_ref(src).byte_add(AT).cast()) }
}

/// 16 bytes from byte `AT` of `src` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn load128<const AT: usize, T: Pod>(src: &T) -> __m128i {
    const { assert!(AT + 16 <= size_of::<T>()) };
    // SAFETY: the 16 bytes lie within `src`, by the line above; `loadu` has no alignment duty.
    unsafe { _mm_loadu_si128(std::ptr::from_ref(src).byte_add(AT).cast()) }
}

/// 32 bytes to `dst`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn store256<T: Pod>(dst: &mut T, value: __m256i) {
    const { assert!(size_of::<T>() == 32) };
    // SAFETY: `dst` is 32 bytes long, by the line above; `storeu` has no alignment duty.
    unsafe { _mm256_storeu_si256(std::ptr::from_mut(dst).cast(), value) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn load_f32(src: &[f32; 8]) -> __m256 {
    // SAFETY: `src` is 32 bytes long; `loadu` has no alignment duty.
    unsafe { _mm256_loadu_ps(src.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn store_f32(dst: &mut [f32; 8], values: __m256) {
    // SAFETY: `dst` is 32 bytes long; `storeu` has no alignment duty.
    unsafe { _mm256_storeu_ps(dst.as_mut_ptr(), values) }
}

/// How far ahead of the read position weights are asked for: enough to cover a memory latency at full bandwidth. Into L2,
/// which can have more lines under way than L1.
const PREFETCH_BYTES: usize = 4096;

/// Asks for every cache line [`PREFETCH_BYTES`] behind `src`. A line left out would cost a whole memory latency.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
#[allow(
    unused_unsafe,
    reason = "later versions of Rust than the oldest supported one declare prefetches safe"
)]
pub(super) fn prefetch_behind<T>(src: &T) {
    let start = std::ptr::from_ref(src)
        .cast::<i8>()
        .wrapping_add(PREFETCH_BYTES);
    for line in 0..size_of::<T>().div_ceil(64) {
        // SAFETY: a prefetch reads nothing; an address outside the weights, or unmapped, has no effect.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(64 * line)) };
    }
}

/// Asks for every cache line of `len` bytes from `start` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
#[allow(
    unused_unsafe,
    reason = "later versions of Rust than the oldest supported one declare prefetches safe"
)]
pub(super) fn prefetch_row(src: &[u8], start: usize, len: usize) {
    let Some(row) = src.get(start..start + len) else {
        return;
    };
    for line in row.chunks(64) {
        // SAFETY: a prefetch reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
    }
}

/// A half as f32 in all lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn broadcast_half(half: F16Le) -> __m256 {
    _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(half.to_bits()))))
}

/// Eight halves as f32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn widen_halves(halves: [F16Le; 8]) -> __m256 {
    let [a, b, c, d, e, f, g, h] = halves.map(|half| half.to_bits() as i16);
    _mm256_cvtph_ps(_mm_setr_epi16(a, b, c, d, e, f, g, h))
}

/// The sum of all lanes. The order of additions is fixed, so equal vectors have equal sums wherever they occur.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn horizontal_sum(v: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}
