//! AVX-512 kernels with VNNI dots.

mod attend;
mod dot;
mod dot_columns;
mod elementwise;
pub(super) mod floats;
mod gemm;
mod halves;
mod integers;
pub(super) mod q2_k;
pub(super) mod q3_k;
pub(super) mod q4_0;
pub(super) mod q4_1;
pub(super) mod q4_k;
pub(super) mod q5_0;
pub(super) mod q5_1;
pub(super) mod q5_k;
pub(super) mod q6_k;
pub(super) mod q8_0;
mod quantize;
pub(super) mod simd;
mod sums;
mod tail;
mod to_integers;
mod unpack;

use crate::isa::Isa;
use crate::kernels::{Kernels, x86_64::avx2};

pub(crate) const AVX512: Kernels = Kernels {
    isa: Isa::Avx512,
    dot_q4_0: q4_0::dot,
    dot_q4_1: q4_1::dot,
    dot_q5_0: q5_0::dot,
    dot_q5_1: q5_1::dot,
    dot_q8_0: q8_0::dot,
    dot_q2_k: q2_k::dot,
    dot_q3_k: q3_k::dot,
    dot_q4_k: q4_k::dot,
    dot_q5_k: q5_k::dot,
    dot_q6_k: q6_k::dot,
    dot_f32: floats::dot_f32,
    dot_f16: floats::dot_f16,
    dot_bf16: floats::dot_bf16,
    unpack_f16: floats::unpack_f16,
    unpack_bf16: floats::unpack_bf16,
    unpack_q4_0: q4_0::unpack,
    unpack_q4_1: q4_1::unpack,
    unpack_q5_0: q5_0::unpack,
    unpack_q5_1: q5_1::unpack,
    unpack_q8_0: q8_0::unpack,
    unpack_q2_k: q2_k::unpack,
    unpack_q3_k: q3_k::unpack,
    unpack_q4_k: q4_k::unpack,
    unpack_q5_k: q5_k::unpack,
    unpack_q6_k: q6_k::unpack,
    quantize_activations: quantize::quantize_activations,
    gemm_columns: gemm::COLUMNS,
    gemm: gemm::gemm,
    gemm_transposed: gemm::gemm_transposed,
    integers: Some(&integers::INTEGERS),
    attend_f32: Some(attend::F32),
    attend_f16: Some(attend::F16),
    attend_bf16: Some(attend::BF16),
    elementwise: elementwise::ELEMENTWISE,
    ..avx2::AVX2
};
