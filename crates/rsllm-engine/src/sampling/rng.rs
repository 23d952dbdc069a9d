//! The generator behind random draws: xoshiro256++ of Blackman and Vigna, its state filled by SplitMix64 as its authors advise.
//!
//! Twenty lines of our own rather than a crate, because a seed printed today must draw the same tokens after every update, and
//! the crates reserve the right to change their streams. Seeds reproduce within rsllm, on one platform and one build: they are
//! not meant to match another engine's, whose draws differ in generator and in candidate order.

use std::hash::{BuildHasher, Hasher, RandomState};

/// xoshiro256++; period 2^256 - 1. Not for secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The generator that `seed` stands for.
    pub fn new(seed: u64) -> Self {
        let mut counter = seed;
        Self {
            state: std::array::from_fn(|_| split_mix(&mut counter)),
        }
    }

    /// The next number of [0, 1), with 53 random bits.
    pub fn next_unit(&mut self) -> f64 {
        const STEP: f64 = 1.0 / (1_u64 << 53) as f64;
        (self.next_u64() >> 11) as f64 * STEP
    }

    fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let shifted = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= shifted;
        s[3] = s[3].rotate_left(45);
        result
    }
}

/// A seed from the operating system. It fits 32 bits, so that it survives JSON readers that hold numbers as doubles and clients
/// whose seeds are 32-bit.
pub fn random_seed() -> u64 {
    // The standard library keys its hash maps from the system's random source and moves on with each `RandomState`; an empty
    // hash under such a key is as unpredictable as the key.
    RandomState::new().build_hasher().finish() >> 32
}

fn split_mix(counter: &mut u64) -> u64 {
    *counter = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *counter;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xoshiro_matches_the_authors_program() {
        let mut rng = Rng {
            state: [1, 2, 3, 4],
        };
        let expected = [
            41943041,
            58720359,
            3588806011781223,
            3591011842654386,
            9228616714210784205,
        ];
        for value in expected {
            assert_eq!(rng.next_u64(), value);
        }
    }

    #[test]
    fn split_mix_matches_the_authors_program() {
        let mut counter = 0;
        assert_eq!(split_mix(&mut counter), 0xe220_a839_7b1d_cdaf);
        assert_eq!(split_mix(&mut counter), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn units_fill_the_interval_evenly() {
        let mut rng = Rng::new(7);
        let mut bins = [0_u32; 16];
        for _ in 0..160_000 {
            let unit = rng.next_unit();
            assert!((0.0..1.0).contains(&unit));
            bins[(unit * 16.0) as usize] += 1;
        }
        // Standard deviation of a bin is about 97.
        assert!(bins.iter().all(|&n| n.abs_diff(10_000) < 500), "{bins:?}");
    }

    #[test]
    fn random_seeds_differ() {
        let seeds: std::collections::HashSet<u64> = (0..32).map(|_| random_seed()).collect();
        assert!(seeds.len() > 30);
        assert!(seeds.iter().all(|&seed| u32::try_from(seed).is_ok()));
    }
}
