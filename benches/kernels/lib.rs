//! What the kernel benchmarks share: weights and activations of plausible size, and the tables to compare.
//!
//! `cargo bench -p rsllm-benches` runs them all, `--bench dot` one file, and a further word only the benchmarks whose name
//! contains it, as in `--bench dot -- q4_k/avx512`. Dots and unpackers report bytes of weights a second, the matrix
//! product floating-point operations ("elements") a second.

use rsllm_cpu::{Isa, Kernels};
use rsllm_quant::{GgmlType, quantize};

/// Every type that weights come in.
pub const WEIGHT_TYPES: [GgmlType; 13] = [
    GgmlType::F32,
    GgmlType::F16,
    GgmlType::BF16,
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q8_0,
    GgmlType::Q2_K,
    GgmlType::Q3_K,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
];

/// The tables of kernels this machine can run.
pub fn tables() -> impl Iterator<Item = &'static Kernels> {
    Isa::available().into_iter().filter_map(Kernels::for_isa)
}

/// `n` values between -1 and 1, the same in every run.
pub fn values(n: usize) -> Vec<f32> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    };
    std::iter::repeat_with(next).take(n).collect()
}

/// At least `n_bytes` of encoded weights, whole rows of `row_len`. The same few rows over and over, because encoding is
/// slow and kernels do not look at the values.
pub fn weights(ty: GgmlType, row_len: usize, n_bytes: usize) -> Vec<u8> {
    const DISTINCT_ROWS: usize = 4;
    let row_bytes = ty.row_bytes(row_len).expect("a row is whole blocks");
    let mut rows = vec![0; DISTINCT_ROWS * row_bytes];
    quantize(ty, &values(DISTINCT_ROWS * row_len), &mut rows).expect("the lengths fit");
    rows.repeat(n_bytes.div_ceil(rows.len()))
}
