//! Q5_K: Q4_K with a fifth bit.

use std::arch::x86_64::*;

use rsllm_quant::{ActivationBlock, BlockQ5K};

use crate::kernels::PreparedColumns;

use super::dot::{Activations, Call, Weights, dot_rows, groups_to_runs};
use super::q4_k::{PLACES, nibble_runs, nibbles, scales_and_minima};
use super::simd::{load128, load256};
use super::tail::{Minima, Order};
use super::unpack::unpack_units;

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
    dot_rows::<BlockQ5K, { Minima::OF_GROUPS }, { Order::RUNS }>(
        call,
        |x| Activations::in_runs::<0, -1>(x),
        |unit| load_runs(unit),
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

/// For dots, in the order of `runs`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load_runs(block: &BlockQ5K) -> Weights {
    let bits = _mm512_broadcast_i64x4(load256::<0, _>(&block.qh));
    // Bit `g` of a byte belongs to group `g`; the rotations bring it to bit 4.
    let rotations = _mm512_setr_epi64(4, 3, 2, 1, 0, 63, 62, 61);
    let mut q = nibble_runs(&block.qs);
    // Four bytes of the first and four of the second run, for every group.
    let quarters = [0, 1, 2, 3].map(|v| {
        let places = _mm512_set1_epi64((v + 4) << 32 | v);
        _mm512_permutexvar_epi32(places, bits)
    });
    for (q, bits) in q.iter_mut().zip(quarters) {
        // q | bits & 16
        *q = _mm512_ternarylogic_epi32::<0xf8>(
            *q,
            _mm512_rolv_epi64(bits, rotations),
            _mm512_set1_epi8(16),
        );
    }
    let minima = scales_and_minima(block);
    Weights {
        q,
        scales: groups_to_runs(minima),
        minima,
    }
}
