//! Q6_K: 256 weights in 210 bytes. Sixteen sub-blocks of 16, each with a signed 8-bit scale, share one f16 scale, which
//! stands at the end. Layout as in ggml; scalar code here is the reference, fast code lives in rsllm-cpu.
//!
//! ```text
//! byte  0 ............ 127   128 ........ 191   192 ...... 207   208 209
//!       [ ql: low 4 bits ]   [ qh: 2 high bits ] [ scales: i8 ]   [ d ]     y = d * scale * (code - 32)
//! half h (elements 128h .. 128h + 128) uses ql[64h ..], qh[32h ..], scales[8h ..]; for l in 0..32 within it
//!   element l      : low half of ql[l],       bits 1-0 of qh[l]
//!   element l + 32 : low half of ql[l + 32],  bits 3-2
//!   element l + 64 : high half of ql[l],      bits 5-4
//!   element l + 96 : high half of ql[l + 32], bits 7-6
//! ```

use bytemuck::{Pod, Zeroable};

use crate::block::signed_abs_max;
use crate::search::{VANISHING, clamped, encode_signed, fit_signed_scale};
use crate::{ActivationBlock, Block, F16Le, GgmlType, WeightBlock};

/// 256 weights of 6 bits.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ6K {
    /// Low four bits.
    pub ql: [u8; 128],
    /// High two bits.
    pub qh: [u8; 64],
    /// A scale for each 16 elements.
    pub scales: [i8; 16],
    /// Scale of the scales.
    pub d: F16Le,
}

const _: () = assert!(size_of::<BlockQ6K>() == 210 && align_of::<BlockQ6K>() == 1);

impl BlockQ6K {
    /// The 256 quants in element order, -32..=31.
    pub fn quants(&self) -> [i8; 256] {
        let mut quants = [0; 256];
        for (half, quants) in quants.chunks_exact_mut(128).enumerate() {
            let high = &self.qh[32 * half..][..32];
            for (quarter, quants) in quants.chunks_exact_mut(32).enumerate() {
                let low = &self.ql[64 * half + quarter % 2 * 32..][..32];
                for ((q, low), high) in quants.iter_mut().zip(low).zip(high) {
                    let code = low >> (quarter / 2 * 4) & 15 | (high >> (2 * quarter) & 3) << 4;
                    *q = code as i8 - 32;
                }
            }
        }
        quants
    }

    fn from_quants(quants: &[i8; 256], scales: [i8; 16], d: F16Le) -> Self {
        let mut block = Self {
            ql: [0; 128],
            qh: [0; 64],
            scales,
            d,
        };
        for (e, &quant) in quants.iter().enumerate() {
            let (half, quarter, l) = (e / 128, e % 128 / 32, e % 32);
            let code = (quant + 32) as u8;
            block.ql[64 * half + quarter % 2 * 32 + l] |= (code & 15) << (quarter / 2 * 4);
            block.qh[32 * half + l] |= code >> 4 << (2 * quarter);
        }
        block
    }
}

impl Block for BlockQ6K {
    const TYPE: GgmlType = GgmlType::Q6_K;
    const LEN: usize = 256;

    fn dequantize(&self, dst: &mut [f32]) {
        assert_eq!(dst.len(), Self::LEN);
        let d = self.d.to_f32();
        let quants = self.quants();
        for ((dst, quants), scale) in dst
            .chunks_exact_mut(16)
            .zip(quants.chunks_exact(16))
            .zip(self.scales)
        {
            let scale = d * f32::from(scale);
            for (y, &q) in dst.iter_mut().zip(quants) {
                *y = scale * f32::from(q);
            }
        }
    }

    /// Formula: ggml's reference quantiser. Each sub-block is fitted with weights x²; then the scales are rounded to 8
    /// bits, the one of largest magnitude to -128, and the values to the nearest quant those leave.
    fn quantize(src: &[f32]) -> Self {
        assert_eq!(src.len(), Self::LEN);
        let (sub_blocks, _) = src.as_chunks::<16>();
        let mut fitted = [0f32; 16];
        let mut quants = [[0i8; 16]; 16];
        for (k, x) in sub_blocks.iter().enumerate() {
            fitted[k] = fit_signed_scale(x, 32.0, &mut quants[k]);
        }
        let max = signed_abs_max(&fitted);
        if max.abs() < VANISHING {
            return Self::zeroed();
        }
        let inverse = -128.0 / max;
        let d = F16Le::from_f32(1.0 / inverse);
        let scales = fitted.map(|scale| clamped(inverse * scale, -128.0, 127.0) as i8);
        for ((quants, x), scale) in quants.iter_mut().zip(sub_blocks).zip(scales) {
            encode_signed(x, d.to_f32() * f32::from(scale), 32.0, quants);
        }
        Self::from_quants(&bytemuck::cast(quants), scales, d)
    }

    fn has_finite_scales(&self) -> bool {
        self.d.is_finite()
    }
}

impl WeightBlock for BlockQ6K {
    fn dot(&self, x: &ActivationBlock, _first_group: usize) -> f64 {
        let quants = self.quants();
        let mut total = 0f64;
        for (k, &scale) in self.scales.iter().enumerate() {
            total += f64::from(scale) * x.run_dot(k, &quants[16 * k..][..16]);
        }
        f64::from(self.d.to_f32()) * total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn codes_lie_in_drawn_order() {
        let mut block = BlockQ6K::zeroed();
        block.d = F16Le::from_f32(0.5);
        block.scales[8] = 2;
        block.scales[15] = -4;
        block.ql[64 + 1] = 0x05;
        block.qh[32 + 1] = 0b11;
        block.ql[64 + 32 + 31] = 0xF0;
        block.qh[32 + 31] = 0b10 << 6;
        let mut y = [0.0; 256];
        block.dequantize(&mut y);
        assert_eq!((y[128 + 1], y[255], y[128]), (21.0, -30.0, -32.0));
    }

    #[test]
    fn quants_round_trip() {
        let quants = std::array::from_fn(|e| (e * 37 % 64) as i8 - 32);
        let block = BlockQ6K::from_quants(&quants, [1; 16], F16Le::from_f32(1.0));
        assert_eq!(block.quants(), quants);
    }

    #[test]
    fn quantiser_keeps_its_error_bound() {
        testing::check_quantize_error::<BlockQ6K>(0.04);
    }

    #[test]
    fn dot_matches_decoding() {
        testing::check_vec_dot::<BlockQ6K>();
    }
}
