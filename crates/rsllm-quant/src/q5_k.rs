//! Q5_K: 256 weights in 176 bytes. Q4_K with a fifth bit: eight sub-blocks of 32 share one f16 scale and one f16
//! minimum, each with its own 6-bit pair. Layout as in ggml; scalar code here is the reference, fast code lives in
//! rsllm-cpu.
//!
//! ```text
//! byte  0 1   2 3      4 .... 15   16 ...... 47   48 ................. 175
//!       [ d ] [ dmin ] [ scales ]  [ qh       ]   [ qs: 4 x 32 x 2 nibbles ]    y = d * scale * code - dmin * min
//! scales: 8 scales and 8 minima of 6 bits, packed as q4_k_scales draws them
//! qs[32g .. 32g + 32]: low halves are sub-block 2g, high halves sub-block 2g + 1
//! qh[l]: bit j is the fifth bit of element l of sub-block j
//! ```

use bytemuck::{Pod, Zeroable};

use crate::scale_min::{ScaleMinBlock, unpack_nibble_pairs};
use crate::search::ScaleMinSearch;
use crate::{ActivationBlock, Block, F16Le, GgmlType, WeightBlock};

/// 256 weights of 5 bits.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ5K {
    /// Scale of the scales.
    pub d: F16Le,
    /// Scale of the minima.
    pub dmin: F16Le,
    /// 6-bit scales and minima; see [`q4_k_scales`](crate::q4_k_scales).
    pub scales: [u8; 12],
    /// Fifth bits: bit j of byte l belongs to element l of sub-block j.
    pub qh: [u8; 32],
    /// Low four bits: 32 bytes for each pair of sub-blocks, the even one in the low halves.
    pub qs: [u8; 128],
}

const _: () = assert!(size_of::<BlockQ5K>() == 176 && align_of::<BlockQ5K>() == 1);

impl BlockQ5K {
    /// The 256 codes in element order, 0..=31.
    pub fn quants(&self) -> [i8; 256] {
        let mut codes = unpack_nibble_pairs(&self.qs);
        for (sub_block, codes) in codes.chunks_exact_mut(32).enumerate() {
            for (code, high) in codes.iter_mut().zip(self.qh) {
                *code |= (high >> sub_block & 1) << 4;
            }
        }
        codes.map(|code| code as i8)
    }

    fn unpack(&self) -> ScaleMinBlock {
        ScaleMinBlock {
            d: self.d,
            dmin: self.dmin,
            scales: self.scales,
            codes: self.quants(),
        }
    }
}

impl Block for BlockQ5K {
    const TYPE: GgmlType = GgmlType::Q5_K;
    const LEN: usize = 256;

    fn dequantize(&self, dst: &mut [f32]) {
        self.unpack().dequantize(dst);
    }

    fn quantize(src: &[f32]) -> Self {
        let ScaleMinBlock {
            d,
            dmin,
            scales,
            codes,
        } = ScaleMinBlock::quantize(src, SEARCH);
        let qh = std::array::from_fn(|l| {
            (0..8).fold(0, |bits, sub_block| {
                bits | (codes[32 * sub_block + l] as u8 >> 4) << sub_block
            })
        });
        let qs = std::array::from_fn(|i| {
            let low = i / 32 * 64 + i % 32;
            codes[low] as u8 & 15 | (codes[low + 32] as u8) << 4
        });
        Self {
            d,
            dmin,
            scales,
            qh,
            qs,
        }
    }

    fn has_finite_scales(&self) -> bool {
        self.d.is_finite() && self.dmin.is_finite()
    }
}

impl WeightBlock for BlockQ5K {
    fn dot(&self, x: &ActivationBlock, _first_group: usize) -> f64 {
        self.unpack().dot(x)
    }
}

const SEARCH: ScaleMinSearch = ScaleMinSearch {
    max_code: 31.0,
    first: -0.5,
    step: 0.1,
    n_steps: 15,
    absolute_error: false,
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{pack_q4_k_scales, testing};

    #[test]
    fn codes_lie_in_drawn_order() {
        let mut block = BlockQ5K::zeroed();
        block.d = F16Le::from_f32(0.5);
        block.scales = pack_q4_k_scales(&[0, 0, 10, 63, 0, 0, 0, 1], &[0; 8]);
        block.qs[32 + 5] = 0x43;
        block.qh[5] = 1 << 2;
        block.qh[31] = 1 << 7;
        let mut y = [0.0; 256];
        block.dequantize(&mut y);
        assert_eq!((y[64 + 5], y[96 + 5], y[255]), (95.0, 126.0, 8.0));
    }

    #[test]
    fn quantiser_keeps_its_error_bound() {
        testing::check_quantize_error::<BlockQ5K>(0.06);
    }

    #[test]
    fn dot_matches_decoding() {
        testing::check_vec_dot::<BlockQ5K>();
    }
}
