//! Bit-equality with the reference implementations, without them: hashes of decoded values and encoded blocks.
//!
//! `make_goldens.py` beside this file prints both tables, from the `gguf` package (decoders) and ggml (encoders). It
//! generates the same inputs: bytes of a linear congruential generator as blocks, sums of four such bytes as weights.

use rsllm_quant::{GgmlType, dequantize, quantize};

const N_BLOCKS: usize = 64;

const DECODED: [(GgmlType, u64); 13] = [
    (GgmlType::F32, 0xa92ed555e090f8c0),
    (GgmlType::F16, 0xbea3449bc0970f37),
    (GgmlType::BF16, 0xa7ca3e543a83a783),
    (GgmlType::Q4_0, 0x9a6ebf96a3a5a38e),
    (GgmlType::Q4_1, 0x10c0fc125a2b9238),
    (GgmlType::Q5_0, 0x2f2b6a84497a81ba),
    (GgmlType::Q5_1, 0x04d5bac09142cd92),
    (GgmlType::Q8_0, 0xbf01f829e702757e),
    (GgmlType::Q2_K, 0x8806d61fb00833e2),
    (GgmlType::Q3_K, 0x97c4e48d5bf3b6a0),
    (GgmlType::Q4_K, 0x6004664af71fa20e),
    (GgmlType::Q5_K, 0x6626c8b3999d95b8),
    (GgmlType::Q6_K, 0x963f2a2e0a781def),
];

const ENCODED: [(GgmlType, u64); 13] = [
    (GgmlType::F32, 0xcfce634f26b4c2fd),
    (GgmlType::F16, 0x14a586f4e704595c),
    (GgmlType::BF16, 0x4af75288824dc7a2),
    (GgmlType::Q4_0, 0xaeabc63d82010aa0),
    (GgmlType::Q4_1, 0xd508135ecfe32edf),
    (GgmlType::Q5_0, 0x6a1592c74432a0e3),
    (GgmlType::Q5_1, 0x5b5d8e53065d4ed8),
    (GgmlType::Q8_0, 0x08322331d4cb340c),
    (GgmlType::Q2_K, 0x68ad2998c9013f34),
    (GgmlType::Q3_K, 0xc90a306eb7871aa0),
    (GgmlType::Q4_K, 0x868455011b1758ec),
    (GgmlType::Q5_K, 0xa49620743b71428f),
    (GgmlType::Q6_K, 0x4e1abe03c7189dc4),
];

#[test]
fn decoders_are_bit_equal_with_gguf() {
    for (ty, expected) in DECODED {
        let bytes: Vec<u8> = random_bytes(1).take(N_BLOCKS * ty.block_bytes()).collect();
        let mut values = vec![0f32; N_BLOCKS * ty.block_len()];
        dequantize(ty, &bytes, &mut values).unwrap();
        let bits = values
            .iter()
            .map(|y| if y.is_nan() { 0x7FC0_0000 } else { y.to_bits() });
        assert_eq!(fnv1a(bits.flat_map(u32::to_le_bytes)), expected, "{ty}");
    }
}

#[test]
fn encoders_are_byte_equal_with_ggml() {
    for (ty, expected) in ENCODED {
        let mut blocks = vec![0; N_BLOCKS * ty.block_bytes()];
        quantize(ty, &weights(N_BLOCKS * ty.block_len()), &mut blocks).unwrap();
        assert_eq!(fnv1a(blocks), expected, "{ty}");
    }
}

/// The upper bytes of a 32-bit linear congruential generator.
fn random_bytes(seed: u32) -> impl Iterator<Item = u8> {
    std::iter::successors(Some(seed), |state| {
        Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223))
    })
    .skip(1)
    .map(|state| (state >> 24) as u8)
}

/// Bell-shaped numbers, exact in f32; each 256 have another power of two, from 1/8 to 16.
fn weights(n: usize) -> Vec<f32> {
    let bytes: Vec<u8> = random_bytes(7).take(4 * n).collect();
    let sums = bytes
        .chunks_exact(4)
        .map(|four| four.iter().map(|&b| i32::from(b)).sum::<i32>() - 510);
    sums.enumerate()
        .map(|(i, sum)| sum as f32 / 1024.0 * 2f32.powi((i / 256 % 8) as i32 - 3))
        .collect()
}

/// 64-bit FNV-1a.
fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes
        .into_iter()
        .fold(0xcbf2_9ce4_8422_2325, |digest, byte| {
            (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
}
