//! The largest of many values, as a sampler asks it of logits: a pass over all of them for each token of each sequence, hence
//! with the instructions that this machine has.

/// The largest of `values`, minus infinity for none, and whether one of them is not a number; those do not count.
pub fn largest(values: &[f32]) -> (f32, bool) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has the features.
            return unsafe { with_avx512(values) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has the features.
            return unsafe { with_avx2(values) };
        }
    }
    portable(values)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn with_avx512(values: &[f32]) -> (f32, bool) {
    portable(values)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2(values: &[f32]) -> (f32, bool) {
    portable(values)
}

/// Lanes of the loop: enough that no maximum waits for the one before.
const LANES: usize = 64;

/// Compiled once for each of the above.
#[inline(always)]
fn portable(values: &[f32]) -> (f32, bool) {
    let mut max = [f32::NEG_INFINITY; LANES];
    let mut nan = [0_u32; LANES];
    let (chunks, tail) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            max[lane] = if chunk[lane] > max[lane] {
                chunk[lane]
            } else {
                max[lane]
            };
            nan[lane] |= u32::from(chunk[lane].is_nan());
        }
    }
    let has_nan = nan.iter().any(|&nan| nan != 0) || tail.iter().any(|value| value.is_nan());
    let max = max
        .iter()
        .chain(tail)
        .fold(f32::NEG_INFINITY, |max, &value| max.max(value));
    (max, has_nan)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn expected(values: &[f32]) -> (f32, bool) {
        let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        (max, values.iter().any(|value| value.is_nan()))
    }

    proptest! {
        #[test]
        fn every_instruction_set_finds_the_largest(mut values in prop::collection::vec(any::<f32>(), 0..300), at: usize, fault: bool) {
            if fault && !values.is_empty() {
                let at = at % values.len();
                values[at] = f32::NAN;
            }
            let expected = expected(&values);
            prop_assert_eq!(largest(&values), expected);
            prop_assert_eq!(portable(&values), expected);
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has the features.
                prop_assert_eq!(unsafe { with_avx2(&values) }, expected);
            }
        }
    }
}
