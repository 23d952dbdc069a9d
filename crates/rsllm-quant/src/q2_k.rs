//! Q2_K: 256 weights in 84 bytes. Sixteen sub-blocks of 16, each with a 4-bit scale and a 4-bit minimum, share one f16
//! scale and one f16 minimum. Layout as in ggml; scalar code here is the reference, fast code lives in rsllm-cpu.
//!
//! ```text
//! byte  0 .............. 15   16 .......... 79   80 81   82 83
//!       [ scales: min|scale ] [ qs: 64 x 4 codes ] [ d ]   [ dmin ]    y = d * scale * code - dmin * min
//! scales[k]: low half is the scale of elements 16k .. 16k + 16, high half their minimum
//! half h (elements 128h .. 128h + 128) uses qs[32h .. 32h + 32]: element 32t + l is bits 2t+1..2t of byte l
//! ```

use bytemuck::{Pod, Zeroable};

use crate::block::sum_i8;
use crate::scale_min::round_to_codes;
use crate::search::{ScaleMinSearch, encode_with_min, fit_scale_and_min};
use crate::{ActivationBlock, Block, F16Le, GgmlType, WeightBlock};

/// 256 weights of 2 bits.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ2K {
    /// For each 16 elements: scale in the low half, minimum in the high half.
    pub scales: [u8; 16],
    /// Codes, four a byte.
    pub qs: [u8; 64],
    /// Scale of the scales.
    pub d: F16Le,
    /// Scale of the minima.
    pub dmin: F16Le,
}

const _: () = assert!(size_of::<BlockQ2K>() == 84 && align_of::<BlockQ2K>() == 1);

impl BlockQ2K {
    /// The 256 codes in element order, 0..=3.
    pub fn quants(&self) -> [i8; 256] {
        unpack_two_bits(&self.qs).map(|code| code as i8)
    }
}

impl Block for BlockQ2K {
    const TYPE: GgmlType = GgmlType::Q2_K;
    const LEN: usize = 256;

    fn dequantize(&self, dst: &mut [f32]) {
        assert_eq!(dst.len(), Self::LEN);
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        let codes = self.quants();
        for ((dst, codes), packed) in dst
            .chunks_exact_mut(16)
            .zip(codes.chunks_exact(16))
            .zip(self.scales)
        {
            let (scale, min) = (d * f32::from(packed & 15), dmin * f32::from(packed >> 4));
            for (y, &code) in dst.iter_mut().zip(codes) {
                *y = scale * f32::from(code) - min;
            }
        }
    }

    /// Formula: ggml's reference quantiser. Each sub-block is fitted with weights |x| by absolute deviation, which suits
    /// so few codes better than squares; then scales and minima are rounded to 4 bits, and the values to the nearest code
    /// those leave.
    fn quantize(src: &[f32]) -> Self {
        assert_eq!(src.len(), Self::LEN);
        let (sub_blocks, _) = src.as_chunks::<16>();
        let (mut fitted_scales, mut fitted_mins) = ([0f32; 16], [0f32; 16]);
        let mut codes = [[0i8; 16]; 16];
        for (k, x) in sub_blocks.iter().enumerate() {
            (fitted_scales[k], fitted_mins[k]) =
                fit_scale_and_min(x, &x.map(f32::abs), SEARCH, &mut codes[k]);
        }
        let (d, scales) = round_to_codes(&fitted_scales, 15.0);
        let (dmin, mins) = round_to_codes(&fitted_mins, 15.0);
        for (k, (x, codes)) in sub_blocks.iter().zip(&mut codes).enumerate() {
            let scale = d.to_f32() * f32::from(scales[k]);
            let min = dmin.to_f32() * f32::from(mins[k]);
            encode_with_min(x, scale, min, SEARCH.max_code, codes);
        }
        let scales = std::array::from_fn(|k| scales[k] | mins[k] << 4);
        Self {
            scales,
            qs: pack_two_bits(&bytemuck::cast(codes)),
            d,
            dmin,
        }
    }

    fn has_finite_scales(&self) -> bool {
        self.d.is_finite() && self.dmin.is_finite()
    }
}

impl WeightBlock for BlockQ2K {
    fn dot(&self, x: &ActivationBlock, _first_group: usize) -> f64 {
        let codes = self.quants();
        let (mut positive, mut negative) = (0f64, 0f64);
        for (k, &scale) in self.scales.iter().enumerate() {
            positive += f64::from(scale & 15) * x.run_dot(k, &codes[16 * k..][..16]);
            // Minima change every 16 elements, sums of activations every 32: the quants are summed here instead.
            let sum = f64::from(x.scales[k]) * f64::from(sum_i8(&x.qs[16 * k..][..16]));
            negative += f64::from(scale >> 4) * sum;
        }
        f64::from(self.d.to_f32()) * positive - f64::from(self.dmin.to_f32()) * negative
    }
}

const SEARCH: ScaleMinSearch = ScaleMinSearch {
    max_code: 3.0,
    first: -0.5,
    step: 0.1,
    n_steps: 15,
    absolute_error: true,
};

/// Codes of 2 bits in element order, from the layout that Q2_K and Q3_K share.
pub(crate) fn unpack_two_bits(qs: &[u8; 64]) -> [u8; 256] {
    let mut codes = [0; 256];
    for (codes, qs) in codes.chunks_exact_mut(128).zip(qs.chunks_exact(32)) {
        for (codes, shift) in codes.chunks_exact_mut(32).zip([0, 2, 4, 6]) {
            for (code, byte) in codes.iter_mut().zip(qs) {
                *code = byte >> shift & 3;
            }
        }
    }
    codes
}

/// Inverse of [`unpack_two_bits`]; takes the low two bits of each code.
pub(crate) fn pack_two_bits(codes: &[i8; 256]) -> [u8; 64] {
    std::array::from_fn(|i| {
        let (half, l) = (i / 32, i % 32);
        (0..4).fold(0, |bits, t| {
            bits | (codes[128 * half + 32 * t + l] as u8 & 3) << (2 * t)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn codes_lie_in_drawn_order() {
        let mut block = BlockQ2K::zeroed();
        block.d = F16Le::from_f32(0.5);
        block.dmin = F16Le::from_f32(2.0);
        block.scales[2] = 0x1A;
        block.scales[15] = 0xF1;
        block.qs[5] = 0b11 << 2;
        block.qs[63] = 0b10 << 6;
        let mut y = [0.0; 256];
        block.dequantize(&mut y);
        assert_eq!((y[32 + 5], y[32], y[255], y[0]), (13.0, -2.0, -29.0, 0.0));
    }

    #[test]
    fn codes_round_trip() {
        let codes: [i8; 256] = std::array::from_fn(|e| (e * 7 / 5 % 4) as i8);
        assert_eq!(
            unpack_two_bits(&pack_two_bits(&codes)).map(|code| code as i8),
            codes
        );
    }

    #[test]
    fn quantiser_keeps_its_error_bound() {
        testing::check_quantize_error::<BlockQ2K>(0.75);
    }

    #[test]
    fn dot_matches_decoding() {
        testing::check_vec_dot::<BlockQ2K>();
    }
}
