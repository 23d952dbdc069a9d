//! The prefill product on 16-bit integers: sums are exact, so results have one value, whatever the instruction set.

use bytemuck::Zeroable;

use super::{Random, WEIGHT_TYPES, row_lens, tables};
use crate::kernels::{Integers, Kernels, SCALED_LEN, ScaledRow};
use rsllm_quant::dequantize;

fn integers() -> impl Iterator<Item = (&'static Kernels, &'static Integers)> {
    tables()
        .into_iter()
        .filter_map(|table| table.integers.map(|integers| (table, integers)))
}

fn check_quantized(x: &[f32], limit: f32) {
    let most = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    for (table, integers) in integers() {
        let mut q = vec![0; x.len()];
        // SAFETY: `tables` gives instruction sets this machine has; the lengths are equal multiples of 32.
        let scale = unsafe { (integers.quantize)(x, limit, &mut q) };
        if !x.iter().all(|x| x.is_finite()) {
            assert!(!scale.is_finite(), "{}: {scale}", table.isa);
            continue;
        }
        let factor = if most < 1e-30 { 0.0 } else { limit / most };
        assert_eq!(
            scale.to_bits(),
            if factor == 0.0 { 0.0 } else { most / limit }.to_bits(),
            "{}",
            table.isa
        );
        for (&q, x) in q.iter().zip(x) {
            let expected = (x * factor).round_ties_even();
            assert_eq!(f32::from(q), expected, "{}: {x} of {most}", table.isa);
        }
    }
}

#[test]
fn values_become_the_nearest_integers() {
    let mut random = Random(11);
    for n in [32, 64, 96, 128] {
        for limit in [Integers::WEIGHT_LIMIT, Integers::ACTIVATION_LIMIT] {
            for _ in 0..50 {
                check_quantized(&random.values(n), limit);
            }
            // Ties, as the largest is the limit itself.
            let mut ties: Vec<f32> = (0..n).map(|i| i as f32 + 0.5).collect();
            ties[n - 1] = -limit;
            check_quantized(&ties, limit);
            for value in [0.0, -0.0, 1e-30, 9.9e-31, f32::MIN_POSITIVE, f32::MAX] {
                check_quantized(&vec![value; n], limit);
            }
            for fault in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for at in [0, 15, 16, n - 1] {
                    let mut x = random.values(n);
                    x[at] = fault;
                    check_quantized(&x, limit);
                }
            }
        }
    }
}

#[test]
fn weights_become_integers_within_half_a_step() {
    let mut n_checked = 0;
    for (table, integers) in integers() {
        for ty in WEIGHT_TYPES {
            let Some(unpack) = (integers.unpack)(ty) else {
                continue;
            };
            for n in row_lens(ty).into_iter().filter(|&n| n <= 256) {
                for (seed, any_bits) in (1..20).flat_map(|seed| [(seed, false), (seed, true)]) {
                    let packed = Random(seed).weights(ty, n, any_bits);
                    let mut values = vec![0.0; n];
                    dequantize(ty, &packed, &mut values).unwrap();
                    let mut row = ScaledRow::zeroed();
                    // SAFETY: as above.
                    unsafe { unpack(&packed, &mut row) };
                    let parts = values.chunks(SCALED_LEN).zip(row.q).zip(row.scales);
                    for ((values, q), scale) in parts {
                        let what = format!("{} {} of {n}", table.isa, ty.name());
                        let most = values.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                        // What could be is no more than what is, times the range of a code.
                        let could_be = scale * Integers::WEIGHT_LIMIT;
                        assert!(could_be >= 0.999_999 * most, "{what}: {could_be}, {most}");
                        assert!(
                            any_bits || could_be <= 1.3 * most,
                            "{what}: {could_be}, {most}"
                        );
                        for (&q, value) in q.iter().zip(values) {
                            assert!(f32::from(q).abs() <= Integers::WEIGHT_LIMIT, "{what}: {q}");
                            let error = (f32::from(q) * scale - value).abs();
                            assert!(error <= 0.501 * scale, "{what}: {q} for {value}");
                        }
                        n_checked += 1;
                    }
                }
            }
        }
    }
    let is_there = integers().any(|(_, integers)| {
        WEIGHT_TYPES
            .iter()
            .any(|&ty| (integers.unpack)(ty).is_some())
    });
    assert_eq!(n_checked > 0, is_there);
}

#[test]
fn a_weight_that_is_no_number_makes_its_row_none() {
    for (table, integers) in integers() {
        for ty in WEIGHT_TYPES {
            let Some(unpack) = (integers.unpack)(ty) else {
                continue;
            };
            for fault in [f32::NAN, f32::INFINITY] {
                let mut packed = Random(3).weights(ty, 256, false);
                let bytes = half::f16::from_f32(fault).to_le_bytes();
                // The scale stands first, but last in Q6_K.
                let at = if ty == rsllm_quant::GgmlType::Q6_K {
                    packed.len() - 2
                } else {
                    0
                };
                packed[at..at + 2].copy_from_slice(&bytes);
                let mut row = ScaledRow::zeroed();
                // SAFETY: as above.
                unsafe { unpack(&packed, &mut row) };
                assert!(!row.scales[0].is_finite(), "{} {}", table.isa, ty.name());
            }
        }
    }
}

#[test]
fn products_of_integers_are_exact_at_odd_shapes() {
    let shapes = [2, 4, 30, 32, 64, 126, 128]
        .into_iter()
        .map(|k| (13, k))
        .chain((0..=29).map(|n_rows| (n_rows, 10)));
    for (n_rows, k) in shapes {
        for is_extreme in [false, true] {
            let mut random = Random(5 + k as u64);
            let mut integer = |limit: f32| {
                if is_extreme {
                    limit as i16
                } else {
                    (random.value() * limit) as i16
                }
            };
            let mut rows = vec![ScaledRow::zeroed(); n_rows];
            for row in &mut rows {
                for q in row.q.as_flattened_mut() {
                    *q = integer(Integers::WEIGHT_LIMIT);
                }
            }
            let widest = 32;
            let b: Vec<i16> = (0..k * widest)
                .map(|_| -integer(Integers::ACTIVATION_LIMIT))
                .collect();
            let mut random = Random(9);
            for row in &mut rows {
                row.scales = [random.value(), random.value()];
            }
            let b_scales = random.values(widest);
            let c = random.values(n_rows * widest);
            for ((table, integers), (part, add)) in integers()
                .flat_map(|table| [(0, true), (1, false), (0, false)].map(|way| (table, way)))
            {
                let columns = table.gemm_columns;
                // Pair by pair, the first columns of the widest panel.
                let pairs: Vec<i16> = (0..k / 2)
                    .flat_map(|i| {
                        (0..columns)
                            .flat_map(move |j| [2 * i * widest + j, (2 * i + 1) * widest + j])
                    })
                    .map(|at| b[at])
                    .collect();
                let mut found: Vec<f32> = c
                    .chunks_exact(widest)
                    .flat_map(|row| &row[..columns])
                    .copied()
                    .collect();
                // SAFETY: as above; the lengths are those of the signature.
                unsafe {
                    (integers.gemm)(&rows, part, &pairs, &b_scales[..columns], &mut found, add);
                };
                for (r, row) in rows.iter().enumerate() {
                    for j in 0..columns {
                        let sum: i64 = (0..k)
                            .map(|i| i64::from(row.q[part][i]) * i64::from(b[i * widest + j]))
                            .sum();
                        let scale = row.scales[part] * b_scales[j];
                        let start = if add { c[r * widest + j] } else { 0.0 };
                        let expected = (sum as f32).mul_add(scale, start);
                        // Not by bits, as a product that is zero may have either sign.
                        assert_eq!(
                            found[r * columns + j],
                            expected,
                            "{} {n_rows} x {k}: {r}, {j}",
                            table.isa
                        );
                    }
                }
            }
        }
    }
}
