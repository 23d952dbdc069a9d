//! Search for the scale (and minimum) with which a sub-block loses least, shared by the K-quant encoders.
//!
//! Rounding with the scale that maps the range onto the codes is rarely the best fit. Each routine here tries some
//! scales around that one; a scale gives codes, and for fixed codes the best scale in the weighted least-squares sense
//! has a closed form. Candidates, weights, error measures and the order of float operations are those of ggml's reference
//! quantisers, so files come out identical. Codes are handed back for sub-blocks whose scale then rounds to 0: any code
//! stands for the same value there, and these are the ones ggml leaves.

use crate::activation::nearest_int;

/// Sub-blocks whose magnitudes stay below this are zero (ggml's `GROUP_MAX_EPS`).
pub(crate) const VANISHING: f32 = 1e-15;

/// Candidates and error measure of [`fit_scale_and_min`].
#[derive(Clone, Copy)]
pub(crate) struct ScaleMinSearch {
    /// Largest code.
    pub(crate) max_code: f32,
    /// First candidate: this many codes more than the range needs.
    pub(crate) first: f32,
    /// Distance between candidates, in codes.
    pub(crate) step: f32,
    /// Candidates besides the plain scale, less one.
    pub(crate) n_steps: u32,
    /// Weighs absolute deviations instead of squares.
    pub(crate) absolute_error: bool,
}

/// Finds `(scale, min)`, both at least 0, for `x ≈ scale * code - min` with codes `0..=max_code`, and the codes.
pub(crate) fn fit_scale_and_min<const N: usize>(
    x: &[f32; N],
    weights: &[f32; N],
    search: ScaleMinSearch,
    best_codes: &mut [i8; N],
) -> (f32, f32) {
    let (min, max) = crate::block::min_max(x);
    // Zero stays representable: the offset only ever lowers the range.
    let mut offset = if min > 0.0 { 0.0 } else { min };
    if max <= offset {
        best_codes.fill(0);
        return (0.0, -offset);
    }
    let error_of = |codes: &[f32; N], scale: f32, offset: f32| {
        x.iter()
            .zip(weights)
            .zip(codes)
            .fold(0f32, |sum, ((&x, &w), &code)| {
                let deviation = scale * code + offset - x;
                sum + w * if search.absolute_error {
                    deviation.abs()
                } else {
                    deviation * deviation
                }
            })
    };
    let sum_w: f32 = weights.iter().fold(0.0, |sum, w| sum + w);
    let sum_x = x.iter().zip(weights).fold(0f32, |sum, (x, w)| sum + w * x);

    let plain = search.max_code / (max - offset);
    let mut scale = 1.0 / plain;
    let codes = encode(x, plain, offset, search.max_code);
    *best_codes = codes.map(|code| code as i8);
    let mut best = error_of(&codes, scale, offset);

    for step in 0..=search.n_steps {
        // The range is measured from the best offset so far, as the reference does.
        let inverse = (search.first + search.step * step as f32 + search.max_code) / (max - offset);
        let codes = encode(x, inverse, offset, search.max_code);
        let (mut sum_c, mut sum_cc, mut sum_cx) = (0f32, 0f32, 0f32);
        for ((&x, &w), &code) in x.iter().zip(weights).zip(&codes) {
            sum_c += w * code;
            sum_cc += w * code * code;
            sum_cx += w * code * x;
        }
        let determinant = sum_w * sum_cc - sum_c * sum_c;
        if determinant > 0.0 {
            let mut candidate = (sum_w * sum_cx - sum_x * sum_c) / determinant;
            let mut candidate_offset = (sum_cc * sum_x - sum_c * sum_cx) / determinant;
            if candidate_offset > 0.0 {
                candidate_offset = 0.0;
                candidate = sum_cx / sum_cc;
            }
            let error = error_of(&codes, candidate, candidate_offset);
            if error < best {
                (best, scale, offset) = (error, candidate, candidate_offset);
                *best_codes = codes.map(|code| code as i8);
            }
        }
    }
    (scale, -offset)
}

/// Finds the scale for `x ≈ scale * quant` with quants `-max_quant..max_quant`, weighing errors by x², and the quants. Its
/// sign is such that the value of largest magnitude gets a negative quant, where there is one more.
pub(crate) fn fit_signed_scale<const N: usize>(
    x: &[f32; N],
    max_quant: f32,
    quants: &mut [i8; N],
) -> f32 {
    let max = crate::block::signed_abs_max(x);
    if max.abs() < VANISHING {
        quants.fill(-max_quant as i8);
        return 0.0;
    }
    let quantize = |inverse: f32| x.map(|x| clamped(inverse * x, -max_quant, max_quant - 1.0));
    // For the best scale s of given quants, Σ w (x - s q)² = Σ w x² - (Σ w x q)² / Σ w q²: the last term decides.
    let sums = |quants: &[f32; N]| {
        x.iter()
            .zip(quants)
            .fold((0f32, 0f32), |(qx, qq), (&x, &q)| {
                let w = x * x;
                (qx + w * x * q, qq + w * q * q)
            })
    };
    let plain = quantize(-max_quant / max);
    *quants = plain.map(|q| q as i8);
    let (qx, qq) = sums(&plain);
    let mut scale = if qq > 0.0 { qx / qq } else { 0.0 };
    let mut best = scale * qx;
    for step in (-9i8..=9).filter(|&step| step != 0) {
        let candidate = quantize(-(max_quant + 0.1 * f32::from(step)) / max);
        let (qx, qq) = sums(&candidate);
        if qq > 0.0 && qx * qx > best * qq {
            scale = qx / qq;
            best = scale * qx;
            *quants = candidate.map(|q| q as i8);
        }
    }
    finite_or_plain(scale, max, max_quant)
}

/// Like [`fit_signed_scale`], but improves the quants one at a time, each to the value that is best given the others, in
/// at most five passes; pays for few codes (Q3_K).
pub(crate) fn fit_signed_scale_by_descent<const N: usize>(
    x: &[f32; N],
    max_quant: f32,
    best_quants: &mut [i8; N],
) -> f32 {
    let max = crate::block::signed_abs_max(x);
    if max.abs() < VANISHING {
        best_quants.fill(-max_quant as i8);
        return 0.0;
    }
    let inverse = -max_quant / max;
    let mut quants = x.map(|x| clamped(inverse * x, -max_quant, max_quant - 1.0));
    let (mut qx, mut qq) = (0f32, 0f32);
    for (&x, &q) in x.iter().zip(&quants) {
        let w = x * x;
        qx += w * x * q;
        qq += w * q * q;
    }
    for _ in 0..5 {
        let mut changed = false;
        for (&x, q) in x.iter().zip(&mut quants) {
            let w = x * x;
            let qx_rest = qx - w * x * *q;
            if qx_rest <= 0.0 {
                continue;
            }
            let qq_rest = qq - w * *q * *q;
            let new = clamped(x * qq_rest / qx_rest, -max_quant, max_quant - 1.0);
            if new == *q {
                continue;
            }
            let (qx_new, qq_new) = (qx_rest + w * x * new, qq_rest + w * new * new);
            if qq_new > 0.0 && qx_new * qx_new * qq > qx * qx * qq_new {
                (*q, qx, qq, changed) = (new, qx_new, qq_new, true);
            }
        }
        if !changed {
            break;
        }
    }
    *best_quants = quants.map(|q| q as i8);
    finite_or_plain(if qq > 0.0 { qx / qq } else { 0.0 }, max, max_quant)
}

/// The third powers in the sums overflow from about 1e12 on, long after the f16 scale would; the plain scale then lets the
/// caller see that, where NaN would be taken for nothing.
fn finite_or_plain(scale: f32, max: f32, max_quant: f32) -> f32 {
    if scale.is_finite() && scale != 0.0 {
        scale
    } else {
        -max / max_quant
    }
}

/// Rounds each x to the nearest code of `scale * code - min`; leaves the codes for a scale of 0, which tells none apart.
pub(crate) fn encode_with_min<const N: usize>(
    x: &[f32; N],
    scale: f32,
    min: f32,
    max_code: f32,
    codes: &mut [i8; N],
) {
    if scale != 0.0 {
        *codes = x.map(|x| clamped((x + min) / scale, 0.0, max_code) as i8);
    }
}

/// Rounds each x to the nearest quant of `scale * quant`; leaves the quants for a scale of 0, which tells none apart.
pub(crate) fn encode_signed<const N: usize>(
    x: &[f32; N],
    scale: f32,
    max_quant: f32,
    quants: &mut [i8; N],
) {
    if scale != 0.0 {
        *quants = x.map(|x| clamped(x / scale, -max_quant, max_quant - 1.0) as i8);
    }
}

/// Nearest integer of `x` within bounds, ties to even; the lower bound for NaN.
pub(crate) fn clamped(x: f32, low: f32, high: f32) -> f32 {
    // Bounds first: far outside them nearest_int is not defined. max before min sends NaN to `low`.
    nearest_int(x.max(low).min(high)) as f32
}

fn encode<const N: usize>(x: &[f32; N], inverse: f32, offset: f32, max_code: f32) -> [f32; N] {
    x.map(|x| clamped(inverse * (x - offset), 0.0, max_code))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEARCH: ScaleMinSearch = ScaleMinSearch {
        max_code: 15.0,
        first: -1.0,
        step: 0.1,
        n_steps: 20,
        absolute_error: false,
    };

    #[test]
    fn exact_grids_are_found() {
        let x: [f32; 16] = std::array::from_fn(|i| 0.5 * i as f32 - 3.0);
        let (scale, min) = fit_scale_and_min(&x, &[1.0; 16], SEARCH, &mut [0; 16]);
        assert!(
            (scale - 0.5).abs() < 1e-6 && (min - 3.0).abs() < 1e-5,
            "{scale} {min}"
        );

        let x: [f32; 16] = std::array::from_fn(|i| 0.25 * (i as f32 - 4.0).clamp(-4.0, 3.0));
        assert!((fit_signed_scale(&x, 4.0, &mut [0; 16]) - 0.25).abs() < 1e-6);
        assert!((fit_signed_scale_by_descent(&x, 4.0, &mut [0; 16]) - 0.25).abs() < 1e-6);
    }

    #[test]
    fn constant_and_vanishing_blocks_have_no_scale() {
        let mut codes = [9; 16];
        assert_eq!(
            fit_scale_and_min(&[-2.0; 16], &[1.0; 16], SEARCH, &mut codes),
            (0.0, 2.0)
        );
        assert_eq!(codes, [0; 16]);
        assert_eq!(
            fit_scale_and_min(&[0.0; 16], &[0.0; 16], SEARCH, &mut codes),
            (0.0, 0.0)
        );
        assert_eq!(fit_signed_scale(&[1e-16; 16], 32.0, &mut codes), 0.0);
        assert_eq!(codes, [-32; 16]);
        assert_eq!(
            fit_signed_scale_by_descent(&[-1e-16; 16], 4.0, &mut codes),
            0.0
        );
        assert_eq!(codes, [-4; 16]);
    }

    #[test]
    fn positive_blocks_keep_zero_as_minimum() {
        let x: [f32; 16] = std::array::from_fn(|i| 3.0 + i as f32 / 16.0);
        let (scale, min) = fit_scale_and_min(&x, &[1.0; 16], SEARCH, &mut [0; 16]);
        assert!(scale > 0.0 && min == 0.0);
    }

    #[test]
    fn clamping_is_defined_everywhere() {
        assert_eq!(clamped(f32::INFINITY, -4.0, 3.0), 3.0);
        assert_eq!(clamped(f32::NEG_INFINITY, -4.0, 3.0), -4.0);
        assert_eq!(clamped(f32::NAN, -4.0, 3.0), -4.0);
        assert_eq!(clamped(2.5, -4.0, 3.0), 2.0);
    }
}
