//! Decode attention on packed rows against sums in double precision.

use rsllm_quant::{GgmlType, dequantize};

use super::{Random, tables};

/// Largest error of a score or an accumulated value in units of Σ |a · b|.
const ATTEND_TOLERANCE: f64 = 1e-6;

#[test]
fn attention_reads_packed_rows_as_their_values_say() {
    for table in tables() {
        for ty in [GgmlType::F32, GgmlType::F16, GgmlType::BF16] {
            for (head_dim, group) in [(16, 1), (64, 3), (80, 2), (128, 4), (256, 5), (256, 9)] {
                let Some(attend) = table.attend(ty, head_dim) else {
                    continue;
                };
                let mut random = Random(7 + head_dim as u64);
                let whole = random.weights(ty, 70 * head_dim, false);
                let mut values = vec![0.0; 70 * head_dim];
                dequantize(ty, &whole, &mut values).unwrap();
                let q = random.values(group * head_dim);
                let row_bytes = ty.row_bytes(head_dim).unwrap();
                let mut alone = vec![0.0; 70 * group];
                // SAFETY: `tables` gives instruction sets this machine has.
                unsafe { (attend.scores)(&whole, &[], &q, group, &mut alone) };
                for n in [1, 2, 15, 16, 17, 63, 64] {
                    let rows = &whole[..n * row_bytes];
                    let mut scores = vec![f32::NAN; n * group];
                    // SAFETY: as above.
                    unsafe { (attend.scores)(rows, &whole, &q, group, &mut scores) };
                    let mut acc = random.values(group * head_dim);
                    let before = acc.clone();
                    // SAFETY: as above.
                    unsafe { (attend.values)(rows, &whole, &scores, group, &mut acc) };
                    for g in 0..group {
                        for t in 0..n {
                            let (mut sum, mut size) = (0.0, 0.0);
                            for d in 0..head_dim {
                                let product = f64::from(values[t * head_dim + d])
                                    * f64::from(q[g * head_dim + d]);
                                (sum, size) = (sum + product, size + product.abs());
                            }
                            let score = scores[g * n + t];
                            assert!((f64::from(score) - sum).abs() <= ATTEND_TOLERANCE * size);
                            assert_eq!(score.to_bits(), alone[g * 70 + t].to_bits(), "cut at {n}");
                        }
                        for d in 0..head_dim {
                            let mut sum = f64::from(before[g * head_dim + d]);
                            let mut size = sum.abs();
                            for t in 0..n {
                                let product = f64::from(values[t * head_dim + d])
                                    * f64::from(scores[g * n + t]);
                                (sum, size) = (sum + product, size + product.abs());
                            }
                            let error = (f64::from(acc[g * head_dim + d]) - sum).abs();
                            assert!(error <= ATTEND_TOLERANCE * size, "{error} of {size}");
                        }
                    }
                }
            }
        }
    }
}
