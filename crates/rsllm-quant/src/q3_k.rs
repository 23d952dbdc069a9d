//! Q3_K: 256 weights in 110 bytes. Sixteen sub-blocks of 16, each with a 6-bit scale about 32, share one f16 scale, which
//! stands at the end. Layout as in ggml; scalar code here is the reference, fast code lives in rsllm-cpu.
//!
//! ```text
//! byte  0 ....... 31   32 ........ 95   96 .... 107   108 109
//!       [ hmask     ]  [ qs: low 2 bits ] [ scales ]   [ d ]    y = d * (scale - 32) * quant
//! half h (elements 128h .. 128h + 128) uses qs[32h .. 32h + 32]: element 32t + l is bits 2t+1..2t of byte l,
//! less 4 if bit 4h + t of hmask[l] is clear
//! scales: scale j, low 4 bits: j < 8: low half of byte j, else high half of byte j - 8;
//!         high 2 bits: bits 2(j/4)+1..2(j/4) of byte 8 + j % 4
//! ```

use bytemuck::{Pod, Zeroable};

use crate::block::signed_abs_max;
use crate::q2_k::{pack_two_bits, unpack_two_bits};
use crate::search::{clamped, encode_signed, fit_signed_scale_by_descent};
use crate::{ActivationBlock, Block, F16Le, GgmlType, WeightBlock};

/// 256 weights of 3 bits.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ3K {
    /// High bits, inverted sign: clear means 4 less. Bit 4h + t of byte l belongs to element 128h + 32t + l.
    pub hmask: [u8; 32],
    /// Low two bits, four elements a byte.
    pub qs: [u8; 64],
    /// 6-bit scales; see [`q3_k_scales`].
    pub scales: [u8; 12],
    /// Scale of the scales.
    pub d: F16Le,
}

const _: () = assert!(size_of::<BlockQ3K>() == 110 && align_of::<BlockQ3K>() == 1);

/// Unpacks the sixteen scales of a Q3_K block, -32..=31.
pub fn q3_k_scales(packed: &[u8; 12]) -> [i8; 16] {
    std::array::from_fn(|j| {
        let low = packed[j % 8] >> (j / 8 * 4) & 15;
        let high = packed[8 + j % 4] >> (j / 4 * 2) & 3;
        (low | high << 4) as i8 - 32
    })
}

/// Inverse of [`q3_k_scales`], for scales in -32..=31.
pub fn pack_q3_k_scales(scales: &[i8; 16]) -> [u8; 12] {
    let codes = scales.map(|scale| scale.wrapping_add(32) as u8);
    std::array::from_fn(|byte| match byte {
        0..8 => codes[byte] & 15 | codes[byte + 8] << 4,
        _ => (0..4).fold(0, |bits, k| {
            bits | (codes[byte - 8 + 4 * k] >> 4 & 3) << (2 * k)
        }),
    })
}

impl BlockQ3K {
    /// The 256 quants in element order, -4..=3.
    pub fn quants(&self) -> [i8; 256] {
        let mut codes = unpack_two_bits(&self.qs);
        for (bit, codes) in codes.chunks_exact_mut(32).enumerate() {
            for (code, mask) in codes.iter_mut().zip(self.hmask) {
                *code |= (mask >> bit & 1) << 2;
            }
        }
        codes.map(|code| code as i8 - 4)
    }
}

impl Block for BlockQ3K {
    const TYPE: GgmlType = GgmlType::Q3_K;
    const LEN: usize = 256;

    fn dequantize(&self, dst: &mut [f32]) {
        assert_eq!(dst.len(), Self::LEN);
        let d = self.d.to_f32();
        let quants = self.quants();
        let scales = q3_k_scales(&self.scales);
        for ((dst, quants), scale) in dst
            .chunks_exact_mut(16)
            .zip(quants.chunks_exact(16))
            .zip(scales)
        {
            let scale = d * f32::from(scale);
            for (y, &q) in dst.iter_mut().zip(quants) {
                *y = scale * f32::from(q);
            }
        }
    }

    /// Formula: ggml's reference quantiser. Each sub-block is fitted by coordinate descent with weights x²; then the
    /// scales are rounded to 6 bits, the one of largest magnitude to -32, and the values to the nearest quant those leave.
    fn quantize(src: &[f32]) -> Self {
        assert_eq!(src.len(), Self::LEN);
        let (sub_blocks, _) = src.as_chunks::<16>();
        let mut fitted = [0f32; 16];
        let mut quants = [[0i8; 16]; 16];
        for (k, x) in sub_blocks.iter().enumerate() {
            fitted[k] = fit_signed_scale_by_descent(x, 4.0, &mut quants[k]);
        }
        let max = signed_abs_max(&fitted);
        if max == 0.0 {
            return Self::zeroed();
        }
        let inverse = -32.0 / max;
        let d = F16Le::from_f32(1.0 / inverse);
        let scales = fitted.map(|scale| clamped(inverse * scale, -32.0, 31.0) as i8);
        for ((quants, x), scale) in quants.iter_mut().zip(sub_blocks).zip(scales) {
            encode_signed(x, d.to_f32() * f32::from(scale), 4.0, quants);
        }
        let quants: [i8; 256] = bytemuck::cast(quants);
        let codes = quants.map(|quant| quant + 4);
        let hmask = std::array::from_fn(|l| {
            (0..8).fold(0, |bits, t| bits | (codes[32 * t + l] as u8 >> 2) << t)
        });
        Self {
            hmask,
            qs: pack_two_bits(&codes),
            scales: pack_q3_k_scales(&scales),
            d,
        }
    }

    fn has_finite_scales(&self) -> bool {
        self.d.is_finite()
    }
}

impl WeightBlock for BlockQ3K {
    fn dot(&self, x: &ActivationBlock, _first_group: usize) -> f64 {
        let quants = self.quants();
        let scales = q3_k_scales(&self.scales);
        let mut total = 0f64;
        for (k, &scale) in scales.iter().enumerate() {
            total += f64::from(scale) * x.run_dot(k, &quants[16 * k..][..16]);
        }
        f64::from(self.d.to_f32()) * total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn packed_scales_round_trip(packed: [u8; 12], scales in prop::array::uniform16(-32i8..32)) {
            prop_assert_eq!(pack_q3_k_scales(&q3_k_scales(&packed)), packed);
            prop_assert_eq!(q3_k_scales(&pack_q3_k_scales(&scales)), scales);
        }
    }

    #[test]
    fn codes_lie_in_drawn_order() {
        let mut block = BlockQ3K::zeroed();
        block.d = F16Le::from_f32(0.5);
        let mut scales = [0; 16];
        scales[2] = 10;
        scales[15] = -32;
        block.scales = pack_q3_k_scales(&scales);
        block.qs[5] = 0b11 << 2;
        block.hmask[5] = 1 << 1;
        block.qs[63] = 0b10 << 6;
        let mut y = [0.0; 256];
        block.dequantize(&mut y);
        assert_eq!((y[32 + 5], y[32], y[255]), (15.0, -20.0, 32.0));
    }

    #[test]
    fn quantiser_keeps_its_error_bound() {
        testing::check_quantize_error::<BlockQ3K>(0.28);
    }

    #[test]
    fn dot_matches_decoding() {
        testing::check_vec_dot::<BlockQ3K>();
    }
}
