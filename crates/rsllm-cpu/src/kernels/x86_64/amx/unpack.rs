//! Weights to bf16 in the order of tiles. What a format's bytes mean stands in the AVX-512 files; here is where values go.

use std::arch::x86_64::*;

use rsllm_quant::GgmlType;

use crate::kernels::x86_64::avx512::{
    floats, q2_k, q3_k, q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0,
};
use crate::kernels::{TILE, UnpackTiles};

/// The kernel for weights of type `ty`; `None` for f32, whose product must stay exact.
pub(super) fn of_type(ty: GgmlType) -> Option<UnpackTiles> {
    Some(match ty {
        GgmlType::F16 => f16,
        GgmlType::BF16 => bf16,
        GgmlType::Q4_0 => q4_0,
        GgmlType::Q4_1 => q4_1,
        GgmlType::Q5_0 => q5_0,
        GgmlType::Q5_1 => q5_1,
        GgmlType::Q8_0 => q8_0,
        GgmlType::Q2_K => q2_k,
        GgmlType::Q3_K => q3_k,
        GgmlType::Q4_K => q4_k,
        GgmlType::Q5_K => q5_k,
        GgmlType::Q6_K => q6_k,
        _ => return None,
    })
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q4_0(row: &[u8], tiles: &mut [u16]) {
    q4_0::each(row, |at, values| put(tiles, at, values));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q4_1(row: &[u8], tiles: &mut [u16]) {
    q4_1::each(row, |at, values| put(tiles, at, values));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q5_0(row: &[u8], tiles: &mut [u16]) {
    q5_0::each(row, |at, values| put(tiles, at, values));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q5_1(row: &[u8], tiles: &mut [u16]) {
    q5_1::each(row, |at, values| put(tiles, at, values));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q8_0(row: &[u8], tiles: &mut [u16]) {
    q8_0::each(row, |at, values| put(tiles, at, values));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q2_k(row: &[u8], tiles: &mut [u16]) {
    q2_k::each(row, |at, values| put(tiles, at, values));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q3_k(row: &[u8], tiles: &mut [u16]) {
    q3_k::each(row, |at, values| put(tiles, at, values));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q4_k(row: &[u8], tiles: &mut [u16]) {
    q4_k::each(row, |at, values| put(tiles, at, values));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q5_k(row: &[u8], tiles: &mut [u16]) {
    q5_k::each(row, |at, values| put(tiles, at, values));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn q6_k(row: &[u8], tiles: &mut [u16]) {
    q6_k::each(row, |at, values| put(tiles, at, values));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn f16(row: &[u8], tiles: &mut [u16]) {
    floats::each_f16(row, |at, values| put(tiles, at, values));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn bf16(row: &[u8], tiles: &mut [u16]) {
    floats::each_bf16(row, |at, values| put(tiles, at, values));
}

/// Values `at` to `at + 16` of a row, which have 32 values a tile.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn put(tiles: &mut [u16], at: usize, values: __m512) {
    let dst = tiles[at / 32 * TILE + at % 32..]
        .first_chunk_mut::<16>()
        .expect("places are multiples of 16 within the tiles");
    // SAFETY: both are 256 bits without invalid values.
    let rounded = unsafe { std::mem::transmute::<__m256bh, [u16; 16]>(_mm512_cvtneps_pbh(values)) };
    *dst = rounded;
}
