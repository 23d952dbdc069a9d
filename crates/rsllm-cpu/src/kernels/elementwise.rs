//! Elementwise and reduction code in portable Rust, written so that the compiler vectorises it.
//!
//! The functions are inlined into wrappers that carry an instruction set's features (`x86_64/*/elementwise.rs`), so one
//! source serves every table. No fused multiply-adds and fixed orders of summation: every table gives the same bits.

#![expect(
    clippy::excessive_precision,
    reason = "constants as published; the compiler rounds them"
)]

use std::f32::consts::LOG2_E;

use rsllm_tensor::Activation;

/// Partial sums of a reduction; a multiple of every vector width.
const LANES: usize = 16;

/// The entry points of this file for one instruction set.
///
/// # Safety
/// Of every field: the processor has the features of the table it is in. Lengths are the functions' own business
/// (safe slices).
#[derive(Clone, Copy)]
#[expect(
    clippy::type_complexity,
    reason = "signatures are clearer in place than behind names"
)]
pub(crate) struct Elementwise {
    pub(crate) rms_norm: unsafe fn(&mut [f32], &[f32], &[f32], f32),
    pub(crate) rms_norm_in_place: unsafe fn(&mut [f32], &[f32], f32),
    pub(crate) silu_gate: unsafe fn(&mut [f32], &[f32]),
    pub(crate) gelu_gate: unsafe fn(&mut [f32], &[f32]),
    pub(crate) softcap: unsafe fn(&mut [f32], f32),
    pub(crate) add: unsafe fn(&mut [f32], &[f32]),
    pub(crate) scale: unsafe fn(&mut [f32], f32),
    pub(crate) max: unsafe fn(&[f32]) -> f32,
    pub(crate) exp_and_sum: unsafe fn(&mut [f32], f32) -> f32,
    pub(crate) softmax_lanes: unsafe fn(&mut [f32], &mut [f32], &mut [f32], &mut [f32]),
    pub(crate) scale_lanes: unsafe fn(&mut [f32], &[f32]),
    pub(crate) weighted_sum: unsafe fn(&mut [f32], &[f32], &[f32]),
    pub(crate) rope_interleaved: unsafe fn(&mut [f32], &[f32]),
    pub(crate) rope_half_split: unsafe fn(&mut [f32], &[f32]),
    pub(crate) transpose: unsafe fn(&mut Square),
    pub(crate) hadamard: unsafe fn(&mut [f32]),
}

impl Elementwise {
    /// `gate = act(gate) * up`.
    pub(crate) fn gate(&self, activation: Activation) -> unsafe fn(&mut [f32], &[f32]) {
        match activation {
            Activation::Silu => self.silu_gate,
            Activation::GeluTanh => self.gelu_gate,
        }
    }
}

/// Sixteen rows of sixteen values.
pub(crate) type Square = [[f32; 16]; 16];

/// The portable entry points.
pub(crate) const SCALAR: Elementwise = Elementwise {
    rms_norm,
    rms_norm_in_place,
    silu_gate,
    gelu_gate,
    softcap,
    add,
    scale,
    max,
    exp_and_sum,
    softmax_lanes,
    scale_lanes,
    weighted_sum,
    rope_interleaved,
    rope_half_split,
    transpose,
    hadamard,
};

/// The orthonormal Walsh-Hadamard transform of values whose number is a power of two.
#[inline(always)]
pub(crate) fn hadamard(x: &mut [f32]) {
    let mut half = 1;
    while half < x.len() {
        for pair in x.chunks_exact_mut(2 * half) {
            let (left, right) = pair.split_at_mut(half);
            for (a, b) in left.iter_mut().zip(right) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    let factor = (x.len() as f32).sqrt().recip();
    for value in x {
        *value *= factor;
    }
}

/// `exp(x)` to about 2 ulp for x in [-87, 88], 0 below, clamped above; `exp(0)` is exactly 1.
///
/// Cephes' expf: split `x = n·ln2 + r`, a degree-5 polynomial for `exp(r)`, and `2^n` through the exponent bits.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_375;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer without a rounding instruction.
    const ROUND: f32 = 12_582_912.0;
    let clamped = x.clamp(-87.3, 88.0);
    let shifted = clamped * LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_2e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 5.000_000_1e-1;
    let value = (p * r * r + r) + 1.0;
    // The low bits of `shifted` count from those of ROUND; a conversion, which saturates, would not be vectorised.
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits());
    let power = f32::from_bits(n.wrapping_add(127) << 23);
    if x < -87.3 { 0.0 } else { value * power }
}

#[inline(always)]
fn tanh(x: f32) -> f32 {
    // For large |x| exp saturates and the quotient goes to 0 or 2.
    1.0 - 2.0 / (exp(2.0 * x) + 1.0)
}

/// `dst = x / sqrt(mean(x²) + eps) * weight`; one row.
#[inline(always)]
pub(crate) fn rms_norm(dst: &mut [f32], x: &[f32], weight: &[f32], eps: f32) {
    let scale = 1.0 / (sum_of_squares(x) / x.len() as f32 + eps).sqrt();
    for ((y, &x), &w) in dst.iter_mut().zip(x).zip(weight) {
        *y = x * scale * w;
    }
}

/// As [`rms_norm`], in place.
#[inline(always)]
pub(crate) fn rms_norm_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = 1.0 / (sum_of_squares(x) / x.len() as f32 + eps).sqrt();
    for (x, &w) in x.iter_mut().zip(weight) {
        *x = *x * scale * w;
    }
}

#[inline(always)]
fn sum_of_squares(x: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let mut chunks = x.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (sum, &x) in sums.iter_mut().zip(chunk) {
            *sum += x * x;
        }
    }
    for (sum, &x) in sums.iter_mut().zip(chunks.remainder()) {
        *sum += x * x;
    }
    sums.iter().sum()
}

/// `gate = gate * sigmoid(gate) * up`.
#[inline(always)]
pub(crate) fn silu_gate(gate: &mut [f32], up: &[f32]) {
    for (g, &u) in gate.iter_mut().zip(up) {
        *g = *g / (1.0 + exp(-*g)) * u;
    }
}

/// `gate = gelu_tanh(gate) * up`.
#[inline(always)]
pub(crate) fn gelu_gate(gate: &mut [f32], up: &[f32]) {
    const SQRT_2_OVER_PI: f32 = 0.797_884_56;
    for (g, &u) in gate.iter_mut().zip(up) {
        let x = *g;
        *g = 0.5 * x * (1.0 + tanh(SQRT_2_OVER_PI * x * (1.0 + 0.044715 * x * x))) * u;
    }
}

/// `x = cap * tanh(x / cap)`.
#[inline(always)]
pub(crate) fn softcap(x: &mut [f32], cap: f32) {
    for x in x {
        *x = cap * tanh(*x / cap);
    }
}

/// `dst += x`.
#[inline(always)]
pub(crate) fn add(dst: &mut [f32], x: &[f32]) {
    for (y, &x) in dst.iter_mut().zip(x) {
        *y += x;
    }
}

/// `x *= factor`.
#[inline(always)]
pub(crate) fn scale(x: &mut [f32], factor: f32) {
    for x in x {
        *x *= factor;
    }
}

/// Largest value, `-inf` for none.
#[inline(always)]
pub(crate) fn max(x: &[f32]) -> f32 {
    let mut best = [f32::NEG_INFINITY; LANES];
    let mut chunks = x.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (best, &x) in best.iter_mut().zip(chunk) {
            *best = if x > *best { x } else { *best };
        }
    }
    let rest = chunks.remainder().iter().copied();
    best.into_iter()
        .chain(rest)
        .fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a })
}

/// `x = exp(x - max)`; returns the sum.
#[inline(always)]
pub(crate) fn exp_and_sum(x: &mut [f32], max: f32) -> f32 {
    let mut sums = [0.0f32; LANES];
    let mut chunks = x.chunks_exact_mut(LANES);
    for chunk in &mut chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *x = exp(*x - max);
            *sum += *x;
        }
    }
    for (sum, x) in sums.iter_mut().zip(chunks.into_remainder()) {
        *x = exp(*x - max);
        *sum += *x;
    }
    sums.iter().sum()
}

/// One page of online softmax with queries in lanes, the prefill form.
///
/// `scores` `[n_positions, lanes]` becomes `exp(score - new maximum)`. `maxima` and `sums` `[lanes]` are the running
/// maximum and denominator; `corrections` `[lanes]` receives the factor for what was accumulated before. A lane with
/// all scores `-inf` is left as it was, with a correction of exactly 1.
#[inline(always)]
pub(crate) fn softmax_lanes(
    scores: &mut [f32],
    maxima: &mut [f32],
    sums: &mut [f32],
    corrections: &mut [f32],
) {
    let lanes = maxima.len();
    let whole = lanes / LANES * LANES;
    // Vectors of LANES lanes at a time keep the running values in registers.
    for first in (0..whole).step_by(LANES) {
        softmax_part::<LANES>(scores, lanes, first, maxima, sums, corrections);
    }
    for first in whole..lanes {
        softmax_part::<1>(scores, lanes, first, maxima, sums, corrections);
    }
}

/// Lanes `first` to `first + N` of [`softmax_lanes`].
#[inline(always)]
fn softmax_part<const N: usize>(
    scores: &mut [f32],
    lanes: usize,
    first: usize,
    maxima: &mut [f32],
    sums: &mut [f32],
    corrections: &mut [f32],
) {
    const WITHIN: &str = "the part lies within the lanes";
    let maxima: &mut [f32; N] = maxima[first..].first_chunk_mut().expect(WITHIN);
    let mut new = *maxima;
    for row in scores.chunks_exact(lanes) {
        let row: &[f32; N] = row[first..].first_chunk().expect(WITHIN);
        for (new, &s) in new.iter_mut().zip(row) {
            *new = if s > *new { s } else { *new };
        }
    }
    let mut added = [0.0f32; N];
    for row in scores.chunks_exact_mut(lanes) {
        let row: &mut [f32; N] = row[first..].first_chunk_mut().expect(WITHIN);
        for i in 0..N {
            row[i] = exp(row[i] - new[i]);
            added[i] += row[i];
        }
    }
    for i in 0..N {
        let correction = exp(maxima[i] - new[i]);
        corrections[first + i] = correction;
        sums[first + i] = sums[first + i] * correction + added[i];
        maxima[i] = new[i];
    }
}

/// Multiply each row of `acc` `[n, lanes]` by `factors` `[lanes]`.
#[inline(always)]
pub(crate) fn scale_lanes(acc: &mut [f32], factors: &[f32]) {
    for row in acc.chunks_exact_mut(factors.len()) {
        for (y, &f) in row.iter_mut().zip(factors) {
            *y *= f;
        }
    }
}

/// `acc += Σ_t weights[t] · rows[t]`, t ascending; rows `[n, acc.len()]`.
#[inline(always)]
pub(crate) fn weighted_sum(acc: &mut [f32], rows: &[f32], weights: &[f32]) {
    for (row, &w) in rows.chunks_exact(acc.len()).zip(weights) {
        for (y, &x) in acc.iter_mut().zip(row) {
            *y += w * x;
        }
    }
}

/// Rotate pairs `(2i, 2i+1)`; `cos_sin` holds `n_rot/2` cosines, then as many sines.
#[inline(always)]
pub(crate) fn rope_interleaved(head: &mut [f32], cos_sin: &[f32]) {
    let (cos, sin) = cos_sin.split_at(cos_sin.len() / 2);
    for ((pair, &c), &s) in head.chunks_exact_mut(2).zip(cos).zip(sin) {
        let (a, b) = (pair[0], pair[1]);
        pair[0] = a * c - b * s;
        pair[1] = a * s + b * c;
    }
}

/// Rotate pairs `(i, i + n_rot/2)`; `cos_sin` as in [`rope_interleaved`].
#[inline(always)]
pub(crate) fn rope_half_split(head: &mut [f32], cos_sin: &[f32]) {
    let half = cos_sin.len() / 2;
    let (cos, sin) = cos_sin.split_at(half);
    let (low, rest) = head.split_at_mut(half);
    for (((a, b), &c), &s) in low.iter_mut().zip(&mut rest[..half]).zip(cos).zip(sin) {
        let (x, y) = (*a, *b);
        *a = x * c - y * s;
        *b = x * s + y * c;
    }
}

/// Rows to columns. Each of four rounds interleaves the upper half of the rows with the lower one, which compilers know as a
/// shuffle of two vectors.
#[inline]
pub(crate) fn transpose(square: &mut Square) {
    for _ in 0..4 {
        let rows = *square;
        let (upper, lower) = rows.split_at(8);
        for ((upper, lower), pair) in upper.iter().zip(lower).zip(square.chunks_exact_mut(2)) {
            let values = pair.as_flattened_mut();
            for (i, (&a, &b)) in upper.iter().zip(lower).enumerate() {
                (values[2 * i], values[2 * i + 1]) = (a, b);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_exact_at_zero_and_close_elsewhere() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        let mut x = -87.0f32;
        while x < 87.0 {
            let expected = f64::from(x).exp();
            assert!(
                (f64::from(exp(x)) / expected - 1.0).abs() < 3e-7,
                "exp({x})"
            );
            x += 0.037;
        }
    }

    #[test]
    fn gelu_and_silu_match_double_precision() {
        for i in -200..200 {
            let x = i as f32 * 0.07;
            let mut silu = [x];
            silu_gate(&mut silu, &[1.0]);
            let xd = f64::from(x);
            assert!(
                (f64::from(silu[0]) - xd / (1.0 + (-xd).exp())).abs() < 2e-6,
                "silu({x})"
            );
            let mut gelu = [x];
            gelu_gate(&mut gelu, &[1.0]);
            let inner = 0.797_884_560_802_865_4 * xd * (1.0 + 0.044715 * xd * xd);
            assert!(
                (f64::from(gelu[0]) - 0.5 * xd * (1.0 + inner.tanh())).abs() < 3e-6,
                "gelu({x})"
            );
        }
    }

    #[test]
    fn a_fully_masked_page_changes_nothing_in_its_lane() {
        let mut scores = [1.0, f32::NEG_INFINITY, 2.0, f32::NEG_INFINITY];
        let (mut maxima, mut sums, mut corrections) = ([0.5, 0.25], [3.0, 4.0], [0.0, 0.0]);
        softmax_lanes(&mut scores, &mut maxima, &mut sums, &mut corrections);
        assert_eq!((maxima[1], sums[1], corrections[1]), (0.25, 4.0, 1.0));
        assert_eq!((scores[1], scores[3]), (0.0, 0.0));
        assert_eq!(maxima[0], 2.0);
    }

    #[test]
    fn norms_divide_by_the_root_mean_square() {
        let x = [3.0, -4.0, 0.0, 0.0, 0.0];
        let mut y = [0.0; 5];
        rms_norm(&mut y, &x, &[1.0, 2.0, 1.0, 1.0, 1.0], 0.0);
        let rms = (25.0f32 / 5.0).sqrt();
        assert!((y[0] - 3.0 / rms).abs() < 1e-6 && (y[1] + 8.0 / rms).abs() < 1e-6);
    }

    #[test]
    fn rotations_keep_lengths_and_pairings() {
        let cos_sin = [0.0, 1.0, 1.0, 0.0]; // a quarter turn for pair 0, none for pair 1
        let mut head = [1.0, 2.0, 3.0, 4.0, 9.0];
        rope_interleaved(&mut head, &cos_sin);
        assert_eq!(head, [-2.0, 1.0, 3.0, 4.0, 9.0]);
        let mut head = [1.0, 2.0, 3.0, 4.0, 9.0];
        rope_half_split(&mut head, &cos_sin);
        assert_eq!(head, [-3.0, 2.0, 1.0, 4.0, 9.0]);
    }

    #[test]
    fn transposing_makes_rows_columns() {
        let mut square = [[0.0; 16]; 16];
        for (i, value) in square.as_flattened_mut().iter_mut().enumerate() {
            *value = i as f32;
        }
        transpose(&mut square);
        for (r, row) in square.iter().enumerate() {
            for (c, &value) in row.iter().enumerate() {
                assert_eq!(value, (16 * c + r) as f32);
            }
        }
    }
}
