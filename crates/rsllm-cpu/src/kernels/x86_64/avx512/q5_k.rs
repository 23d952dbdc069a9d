//! Q5_K: Q4_K with a fifth bit.

use std::arch::x86_64::*;

use rsllm_quant::{ActivationBlock, BlockQ5K};

use super::dot::{Call, Weights, dot_rows, step};
use super::q4_k::{LANES, PLACES, nibbles, prepare, scales_and_minima};
use super::simd::load128;
use super::unpack::unpack_units;

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
        |w, x, acc| step::<2, -1>(w, x, &LANES, acc),
    );
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn unpack(blocks: &[u8], out: &mut [f32]) {
    unpack_units::<BlockQ5K, 32, 0, -1>(blocks, out, &PLACES, |unit| load(unit));
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load(block: &BlockQ5K) -> Weights {
    let first = _mm512_broadcast_i32x4(load128::<0, _>(&block.qh));
    let second = _mm512_broadcast_i32x4(load128::<16, _>(&block.qh));
    // Bits 0, 2, 4, 6 belong to the even groups, which lie a quarter of a vector apart, bits 1, 3, 5, 7 to the odd ones.
    // The rotations bring each to bit 4 of its byte.
    let even = _mm512_setr_epi64(4, 4, 2, 2, 0, 0, 62, 62);
    let odd = _mm512_setr_epi64(3, 3, 1, 1, 63, 63, 61, 61);
    let mut q = nibbles(&block.qs);
    for (q, (bits, rotation)) in
        q.iter_mut()
            .zip([(first, even), (second, even), (first, odd), (second, odd)])
    {
        // q | bits & 16
        *q = _mm512_ternarylogic_epi32::<0xf8>(
            *q,
            _mm512_rolv_epi64(bits, rotation),
            _mm512_set1_epi8(16),
        );
    }
    Weights::new(q, scales_and_minima(block))
}
