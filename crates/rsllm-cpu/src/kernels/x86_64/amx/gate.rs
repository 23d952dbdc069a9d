//! The gate of an FFN between two products on tiles. Its results are rounded to the eight bits of bf16, so exponential and
//! quotient need not be those of the other tables to the bit.

use std::arch::x86_64::*;
use std::f32::consts::LOG2_E;

use super::attend::exp2;
use crate::kernels::x86_64::avx512::simd::{load_f32, store512};

/// `gate * sigmoid(gate) * up`; see [`crate::kernels::Tiles::silu_gate`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
pub(super) fn silu(gate: &[f32], up: &[f32], tile: &mut [u16]) {
    let factor = _mm512_set1_ps(-LOG2_E);
    to_tile(gate, up, tile, |x| _mm512_mul_ps(x, factor));
}

/// `gelu_tanh(gate) * up`: `1 + tanh(y)` is `2 * sigmoid(2 * y)`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
pub(super) fn gelu_tanh(gate: &[f32], up: &[f32], tile: &mut [u16]) {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    let factor = _mm512_set1_ps(-2.0 * LOG2_E * SQRT_2_OVER_PI);
    let cubic = _mm512_set1_ps(-2.0 * LOG2_E * SQRT_2_OVER_PI * 0.044_715);
    to_tile(gate, up, tile, |x| {
        let factor = _mm512_fmadd_ps(_mm512_mul_ps(x, x), cubic, factor);
        _mm512_mul_ps(x, factor)
    });
}

/// `gate / (1 + 2^exponent(gate)) * up`, rows in pairs, rounded.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn to_tile(gate: &[f32], up: &[f32], tile: &mut [u16], exponent: impl Fn(__m512) -> __m512) {
    let (gates, _) = gate.as_chunks::<16>();
    let (ups, _) = up.as_chunks::<16>();
    let (pairs, _) = tile.as_chunks_mut::<32>();
    assert!(
        gates.len() == 32 && ups.len() == 32 && pairs.len() == 16,
        "two tiles each to one"
    );
    let one = _mm512_set1_ps(1.0);
    // Beyond these a share is 0 or 1 as well, and infinite exponents have no power.
    let (least, most) = (_mm512_set1_ps(-126.0), _mm512_set1_ps(126.0));
    let value = |gate: &[f32; 16], up: &[f32; 16]| {
        let gate = load_f32(gate);
        let exponent = _mm512_min_ps(_mm512_max_ps(exponent(gate), least), most);
        let divisor = _mm512_add_ps(exp2(exponent), one);
        // Fourteen bits; those that count are eight.
        let share = _mm512_rcp14_ps(divisor);
        _mm512_mul_ps(_mm512_mul_ps(gate, share), load_f32(up))
    };
    // The low half is the even row's tokens, the high half the odd one's.
    let mut order = [0i16; 32];
    for (i, from) in order.iter_mut().enumerate() {
        *from = (i / 2 + i % 2 * 16) as i16;
    }
    // SAFETY: 64 bytes.
    let order = unsafe { _mm512_loadu_epi16(order.as_ptr()) };
    let (gates, _) = gates.as_chunks::<2>();
    let (ups, _) = ups.as_chunks::<2>();
    for ((pair, gates), ups) in pairs.iter_mut().zip(gates).zip(ups) {
        let (even, odd) = (value(&gates[0], &ups[0]), value(&gates[1], &ups[1]));
        // SAFETY: both are 512 bits without invalid values.
        let both =
            unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(odd, even)) };
        store512(pair, _mm512_permutexvar_epi16(order, both));
    }
}
