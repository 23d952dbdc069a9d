//! Block formats of GGUF tensors with plain, portable, safe code: the oracle for everything faster.
//!
//! [`GgmlType`] lists all tensor types; the 13 usual weight types and ggml's two activation types also have code here.
//! Each format is one file: a block struct with a drawing of its layout, a decoder that is bit-equal with the `gguf`
//! Python package, an encoder, and a scalar dot product with [`ActivationBlock`]s. [`quantize`], [`dequantize`] and
//! [`vec_dot`] choose the format at run time; code that knows its type uses the [`Block`] and [`WeightBlock`] traits.
//!
//! There are no threads, no SIMD and no `unsafe` in this crate; fast kernels live in rsllm-cpu and read the same structs.
#![forbid(unsafe_code)]

mod activation;
mod bf16;
mod block;
mod dispatch;
mod error;
mod f16;
mod f32;
mod float;
mod ggml_type;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod q8_1;
mod q8_k;
mod scale_min;
mod search;
#[cfg(test)]
mod testing;

pub use activation::{
    ActivationBlock, GROUP_LEN, RUN_LEN, dequantize_activations, quantize_activations,
};
pub use bf16::Bf16Le;
pub use block::{Block, WeightBlock, as_blocks, try_as_blocks, try_as_blocks_mut};
pub use dispatch::{dequantize, find_non_finite_block, quantize, vec_dot, vec_dot_f32};
pub use error::QuantError;
pub use f16::F16Le;
pub use f32::F32Le;
pub use float::FloatBlock;
pub use ggml_type::{ActivationFormat, GgmlType, UnknownGgmlType};
pub use q2_k::BlockQ2K;
pub use q3_k::{BlockQ3K, pack_q3_k_scales, q3_k_scales};
pub use q4_0::BlockQ4_0;
pub use q4_1::BlockQ4_1;
pub use q4_k::BlockQ4K;
pub use q5_0::BlockQ5_0;
pub use q5_1::BlockQ5_1;
pub use q5_k::BlockQ5K;
pub use q6_k::BlockQ6K;
pub use q8_0::BlockQ8_0;
pub use q8_1::BlockQ8_1;
pub use q8_k::BlockQ8K;
pub use scale_min::{pack_q4_k_scales, q4_k_scales};
