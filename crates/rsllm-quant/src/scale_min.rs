//! What Q4_K and Q5_K share: eight sub-blocks of 32, each with a 6-bit scale and a 6-bit minimum, packed in 12 bytes.
//!
//! ```text
//! s = scale of a sub-block, m = its minimum; digits: sub-block; upper bits come first
//! byte  0: s4[5:4] s0[5:0]    4: m4[5:4] m0[5:0]     8: m4[3:0] s4[3:0]
//!       1: s5[5:4] s1[5:0]    5: m5[5:4] m1[5:0]     9: m5[3:0] s5[3:0]
//!       2: s6[5:4] s2[5:0]    6: m6[5:4] m2[5:0]    10: m6[3:0] s6[3:0]
//!       3: s7[5:4] s3[5:0]    7: m7[5:4] m3[5:0]    11: m7[3:0] s7[3:0]
//! ```

use crate::search::{ScaleMinSearch, clamped, encode_with_min, fit_scale_and_min};
use crate::{ActivationBlock, F16Le};

/// Unpacks the eight 6-bit scales and eight 6-bit minima of a Q4_K or Q5_K block.
pub fn q4_k_scales(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let scales = std::array::from_fn(|j| match j {
        0..4 => packed[j] & 63,
        _ => packed[j + 4] & 15 | packed[j - 4] >> 6 << 4,
    });
    let mins = std::array::from_fn(|j| match j {
        0..4 => packed[j + 4] & 63,
        _ => packed[j + 4] >> 4 | packed[j] >> 6 << 4,
    });
    (scales, mins)
}

/// Inverse of [`q4_k_scales`]; bits above the sixth are dropped.
pub fn pack_q4_k_scales(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    std::array::from_fn(|byte| match byte {
        0..4 => scales[byte] & 63 | scales[byte + 4] >> 4 << 6,
        4..8 => mins[byte - 4] & 63 | mins[byte] >> 4 << 6,
        _ => scales[byte - 4] & 15 | mins[byte - 4] << 4,
    })
}

/// The scales of a block and its codes in element order.
#[derive(Clone, Copy)]
pub(crate) struct ScaleMinBlock {
    pub(crate) d: F16Le,
    pub(crate) dmin: F16Le,
    pub(crate) scales: [u8; 12],
    pub(crate) codes: [i8; 256],
}

impl ScaleMinBlock {
    /// `y = d * scale * code - dmin * min`, rounding after each operation from the left.
    pub(crate) fn dequantize(&self, dst: &mut [f32]) {
        assert_eq!(dst.len(), self.codes.len());
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        let (scales, mins) = q4_k_scales(&self.scales);
        let sub_blocks = dst.chunks_exact_mut(32).zip(self.codes.chunks_exact(32));
        for ((dst, codes), (scale, min)) in sub_blocks.zip(scales.into_iter().zip(mins)) {
            let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
            for (y, &code) in dst.iter_mut().zip(codes) {
                *y = scale * f32::from(code) - min;
            }
        }
    }

    pub(crate) fn dot(&self, x: &ActivationBlock) -> f64 {
        let (scales, mins) = q4_k_scales(&self.scales);
        let (mut positive, mut negative) = (0f64, 0f64);
        for g in 0..8 {
            positive += f64::from(scales[g]) * x.group_dot(g, &self.codes[32 * g..][..32]);
            negative += f64::from(x.sums[g]) * f64::from(mins[g]);
        }
        f64::from(self.d.to_f32()) * positive - f64::from(self.dmin.to_f32()) * negative
    }

    /// Formula: ggml's reference quantiser. Each sub-block is fitted with weights `sqrt(mean x²) + |x|`; then the scales
    /// and minima are rounded to 6 bits, and the values to the nearest code those leave.
    pub(crate) fn quantize(src: &[f32], search: ScaleMinSearch) -> Self {
        assert_eq!(src.len(), 256);
        let (sub_blocks, _) = src.as_chunks::<32>();
        let (mut fitted_scales, mut fitted_mins) = ([0f32; 8], [0f32; 8]);
        let mut codes = [[0i8; 32]; 8];
        for (j, x) in sub_blocks.iter().enumerate() {
            let mean_square = x.iter().fold(0f32, |sum, x| sum + x * x) / 32.0;
            let typical = mean_square.sqrt();
            let weights = x.map(|x| typical + x.abs());
            (fitted_scales[j], fitted_mins[j]) =
                fit_scale_and_min(x, &weights, search, &mut codes[j]);
        }
        let (d, scales) = round_to_codes(&fitted_scales, 63.0);
        let (dmin, mins) = round_to_codes(&fitted_mins, 63.0);
        for (j, (x, codes)) in sub_blocks.iter().zip(&mut codes).enumerate() {
            let scale = d.to_f32() * f32::from(scales[j]);
            let min = dmin.to_f32() * f32::from(mins[j]);
            encode_with_min(x, scale, min, search.max_code, codes);
        }
        Self {
            d,
            dmin,
            scales: pack_q4_k_scales(&scales, &mins),
            codes: bytemuck::cast(codes),
        }
    }
}

/// Nibbles in element order: of each 32 bytes, the low halves are a sub-block and the high halves the next.
pub(crate) fn unpack_nibble_pairs(qs: &[u8; 128]) -> [u8; 256] {
    let mut codes = [0; 256];
    for (codes, qs) in codes.chunks_exact_mut(64).zip(qs.chunks_exact(32)) {
        let (low, high) = codes.split_at_mut(32);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(qs) {
            (*low, *high) = (byte & 15, byte >> 4);
        }
    }
    codes
}

/// Rounds non-negative `values` to codes `0..=max_code` of a common f16 scale.
pub(crate) fn round_to_codes<const N: usize>(values: &[f32; N], max_code: f32) -> (F16Le, [u8; N]) {
    let max = values.iter().fold(0f32, |max, &value| max.max(value));
    let inverse = if max > 0.0 { max_code / max } else { 0.0 };
    (
        F16Le::from_f32(max / max_code),
        values.map(|value| clamped(inverse * value, 0.0, max_code) as u8),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn packed_scales_round_trip(packed: [u8; 12], scales in prop::array::uniform8(0u8..64), mins in prop::array::uniform8(0u8..64)) {
            let (s, m) = q4_k_scales(&packed);
            prop_assert_eq!(pack_q4_k_scales(&s, &m), packed);
            prop_assert_eq!(q4_k_scales(&pack_q4_k_scales(&scales, &mins)), (scales, mins));
        }
    }

    #[test]
    fn rounding_to_codes_uses_the_whole_range() {
        let (d, codes) = round_to_codes(&[0.0, 31.5, 63.0, 1.4], 63.0);
        assert_eq!((d.to_f32(), codes), (1.0, [0, 32, 63, 1]));
        assert_eq!(round_to_codes(&[0.0; 4], 63.0), (F16Le([0; 2]), [0; 4]));
    }
}
