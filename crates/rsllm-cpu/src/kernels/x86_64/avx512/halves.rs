//! Scales of eight blocks of 32 values, which lie a block apart.

use std::arch::x86_64::*;

/// Where the sixteen lanes of a vector, scales and minima, are in `N` vectors loaded from eight blocks.
pub(super) struct Places<const N: usize> {
    words: [[i16; 32]; N],
    lanes: [u32; N],
}

impl<const N: usize> Places<N> {
    /// For blocks of `block_bytes` whose first word is the scale and whose word `min_word` is the minimum, seen through
    /// loads of 64 bytes at `loads`.
    pub(super) const fn new(block_bytes: usize, min_word: usize, loads: [usize; N]) -> Self {
        let mut starts = [0; 16];
        let mut lane = 0;
        while lane < 16 {
            starts[lane] = lane % 8 * block_bytes + lane / 8 * min_word * 2;
            lane += 1;
        }
        Self::from_starts(starts, loads)
    }

    /// As [`Places::new`] without a minimum, the scale of each run of sixteen values in its lane. `order` says which run a lane has.
    pub(super) const fn of_runs(block_bytes: usize, order: &[i32; 16], loads: [usize; N]) -> Self {
        let mut starts = [0; 16];
        let mut lane = 0;
        while lane < 16 {
            starts[lane] = order[lane] as usize / 2 * block_bytes;
            lane += 1;
        }
        Self::from_starts(starts, loads)
    }

    /// For lanes whose words begin at byte `starts`.
    const fn from_starts(starts: [usize; 16], loads: [usize; N]) -> Self {
        let (mut words, mut lanes) = ([[0; 32]; N], [0; N]);
        let mut lane = 0;
        while lane < 16 {
            let at = starts[lane];
            let mut n = 0;
            while at < loads[n] || at + 2 > loads[n] + 64 {
                n += 1;
            }
            words[n][lane] = ((at - loads[n]) / 2) as i16;
            lanes[n] |= 1 << lane;
            lane += 1;
        }
        Self { words, lanes }
    }

    /// The values of the lanes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(super) fn gather(&self, loads: [__m512i; N]) -> __m512 {
        let mut halves = _mm512_setzero_si512();
        for (n, load) in loads.into_iter().enumerate() {
            let words = super::simd::load512::<0, _>(&self.words[n]);
            halves = if n == 0 {
                _mm512_permutexvar_epi16(words, load)
            } else {
                _mm512_mask_permutexvar_epi16(halves, self.lanes[n], words, load)
            };
        }
        _mm512_cvtph_ps(_mm512_castsi512_si256(halves))
    }
}
