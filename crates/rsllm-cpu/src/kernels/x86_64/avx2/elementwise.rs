//! The portable elementwise code compiled for AVX2, FMA and F16C.

use crate::kernels::elementwise::{self as portable, Elementwise, Square};

pub(super) const ELEMENTWISE: Elementwise = Elementwise {
    rms_norm,
    rms_norm_in_place,
    silu_gate,
    gelu_gate,
    softcap,
    add,
    scale,
    max,
    exp_and_sum,
    softmax_lanes,
    scale_lanes,
    weighted_sum,
    rope_interleaved,
    rope_half_split,
    transpose,
    hadamard,
};

#[target_feature(enable = "avx2,fma,f16c")]
fn rms_norm(dst: &mut [f32], x: &[f32], weight: &[f32], eps: f32) {
    portable::rms_norm(dst, x, weight, eps);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn rms_norm_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
    portable::rms_norm_in_place(x, weight, eps);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn silu_gate(gate: &mut [f32], up: &[f32]) {
    portable::silu_gate(gate, up);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn gelu_gate(gate: &mut [f32], up: &[f32]) {
    portable::gelu_gate(gate, up);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn softcap(x: &mut [f32], cap: f32) {
    portable::softcap(x, cap);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn add(dst: &mut [f32], x: &[f32]) {
    portable::add(dst, x);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn scale(x: &mut [f32], factor: f32) {
    portable::scale(x, factor);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn max(x: &[f32]) -> f32 {
    portable::max(x)
}

#[target_feature(enable = "avx2,fma,f16c")]
fn exp_and_sum(x: &mut [f32], max: f32) -> f32 {
    portable::exp_and_sum(x, max)
}

#[target_feature(enable = "avx2,fma,f16c")]
fn softmax_lanes(
    scores: &mut [f32],
    maxima: &mut [f32],
    sums: &mut [f32],
    corrections: &mut [f32],
) {
    portable::softmax_lanes(scores, maxima, sums, corrections);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn scale_lanes(acc: &mut [f32], factors: &[f32]) {
    portable::scale_lanes(acc, factors);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn rope_interleaved(head: &mut [f32], cos_sin: &[f32]) {
    portable::rope_interleaved(head, cos_sin);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn rope_half_split(head: &mut [f32], cos_sin: &[f32]) {
    portable::rope_half_split(head, cos_sin);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn hadamard(x: &mut [f32]) {
    portable::hadamard(x);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn weighted_sum(acc: &mut [f32], rows: &[f32], weights: &[f32]) {
    portable::weighted_sum(acc, rows, weights);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn transpose(square: &mut Square) {
    portable::transpose(square);
}
