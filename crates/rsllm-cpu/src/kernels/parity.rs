//! Every table against the scalar one: integer work and unpacking bit for bit, floating-point sums within a named bound.
//! One machine tests all instruction sets it has in one run and names those it lacks.

mod attend;
mod integers;
mod streams;
mod tiles;

use bytemuck::Zeroable;
use proptest::prelude::*;
use rsllm_quant::{
    ActivationBlock, ActivationFormat, GgmlType, dequantize, dequantize_activations, quantize,
    quantize_activations,
};

use super::{Dot, Kernels, Prepared, PreparedColumns};
use crate::isa::Isa;

/// Largest error of a dot in units of Σ |weight · activation|: some tens of f32 roundings, and a few bits lost where
/// a minimum cancels most of a product.
const DOT_TOLERANCE: f64 = 1e-5;

/// Largest error of an element of the matrix product in units of Σ |a · b|.
const GEMM_TOLERANCE: f64 = 1e-6;

const WEIGHT_TYPES: [GgmlType; 13] = [
    GgmlType::F32,
    GgmlType::F16,
    GgmlType::BF16,
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q8_0,
    GgmlType::Q2_K,
    GgmlType::Q3_K,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
];

#[expect(
    clippy::print_stdout,
    reason = "a table that was not tested must not pass for one that was"
)]
fn tables() -> Vec<&'static Kernels> {
    let tables: Vec<_> = Isa::ALL.into_iter().filter_map(Kernels::for_isa).collect();
    for isa in Isa::ALL {
        if tables.iter().all(|table| table.isa != isa) {
            println!("skipped: this machine lacks {isa}");
        }
    }
    tables
}

/// Row lengths around the vector widths, the unit of 256 and the unrolled loops.
fn row_lens(ty: GgmlType) -> Vec<usize> {
    match ty.block_len() {
        1 => (0..=35)
            .chain([47, 48, 49, 63, 64, 65, 127, 128, 129, 300])
            .collect(),
        32 => (1..=9)
            .chain([16, 18, 25])
            .map(|blocks| 32 * blocks)
            .collect(),
        _ => (1..=3).map(|blocks| 256 * blocks).collect(),
    }
}

/// A small generator, so that a case is its seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// In -1.0..1.0.
    fn value(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 8_388_608.0 - 1.0
    }

    fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }

    /// Encoded values, then blocks of any bits that decode to finite numbers.
    fn weights(&mut self, ty: GgmlType, n_values: usize, any_bits: bool) -> Vec<u8> {
        let mut bytes = vec![0; ty.row_bytes(n_values).unwrap()];
        if !any_bits {
            quantize(ty, &self.values(n_values), &mut bytes).unwrap();
            return bytes;
        }
        let mut values = vec![0.0; ty.block_len()];
        for block in bytes.chunks_exact_mut(ty.block_bytes()) {
            loop {
                block.fill_with(|| (self.next() >> 56) as u8);
                dequantize(ty, block, &mut values).unwrap();
                // Bits of floats as such: nothing so large that products overflow.
                if values.iter().all(|v| v.is_finite() && v.abs() < 1e15) {
                    break;
                }
            }
        }
        bytes
    }
}

/// A kernel's inputs.
struct Case {
    ty: GgmlType,
    row_len: usize,
    n_rows: usize,
    n_columns: usize,
    rows: Vec<u8>,
    /// `[n_columns, row_len]`.
    x: Vec<f32>,
    /// The same, quantised.
    blocks: Vec<ActivationBlock>,
}

impl Case {
    fn new(ty: GgmlType, row_len: usize, n_rows: usize, n_columns: usize, any_bits: bool) -> Self {
        let seed = 1
            + row_len as u64
            + ((n_rows as u64) << 20)
            + ((n_columns as u64) << 32)
            + (u64::from(ty.id()) << 40);
        let mut random = Random(seed);
        let rows = random.weights(ty, n_rows * row_len, any_bits);
        let x = random.values(n_columns * row_len);
        let blocks = match ty.activation_format() {
            ActivationFormat::Int8 => quantized(&x, row_len),
            ActivationFormat::F32 => Vec::new(),
        };
        Self {
            ty,
            row_len,
            n_rows,
            n_columns,
            rows,
            x,
            blocks,
        }
    }

    fn row_bytes(&self) -> usize {
        self.ty.row_bytes(self.row_len).unwrap()
    }

    /// Dots of some rows with some columns, `[row][column]`. Columns are prepared for the first rows, up to `cut`, and serve the
    /// others, too.
    fn dots_in_two(
        &self,
        table: &Kernels,
        rows: std::ops::Range<usize>,
        columns: std::ops::Range<usize>,
        cut: usize,
    ) -> Vec<f32> {
        let (n, row_bytes) = (self.row_len.div_ceil(256), self.row_bytes());
        let mut units = vec![Prepared::zeroed(); Prepared::room(columns.len(), n)];
        let mut dots = vec![f32::NAN; rows.len() * columns.len()];
        for part in [rows.start..cut, cut..rows.end] {
            let packed = &self.rows[part.start * row_bytes..part.end * row_bytes];
            let mut out = vec![f32::NAN; part.len() * columns.len()];
            match table.dot(self.ty).unwrap() {
                _ if part.is_empty() => continue,
                Dot::Int8(dot) => {
                    let x = &self.blocks[columns.start * n..columns.end * n];
                    let prepared = PreparedColumns {
                        units: &mut units,
                        are_filled: part.start == cut && cut > rows.start,
                    };
                    // SAFETY: `tables` gives instruction sets this machine has; the lengths are those of the signature.
                    unsafe { dot(packed, row_bytes, x, columns.len(), &mut out, prepared) };
                }
                Dot::F32(dot) => {
                    let x = &self.x[columns.start * self.row_len..columns.end * self.row_len];
                    // SAFETY: as above.
                    unsafe { dot(packed, row_bytes, x, columns.len(), &mut out) };
                }
            }
            for (c, out) in out.chunks_exact(part.len()).enumerate() {
                for (row, dot) in part.clone().zip(out) {
                    dots[(row - rows.start) * columns.len() + c] = *dot;
                }
            }
        }
        dots
    }

    fn dots(
        &self,
        table: &Kernels,
        rows: std::ops::Range<usize>,
        columns: std::ops::Range<usize>,
    ) -> Vec<f32> {
        let end = rows.end;
        self.dots_in_two(table, rows, columns, end)
    }

    fn all_dots(&self, table: &Kernels) -> Vec<f32> {
        self.dots(table, 0..self.n_rows, 0..self.n_columns)
    }

    /// Σ |weight · activation| of each dot.
    fn magnitudes(&self) -> Vec<f64> {
        let mut weights = vec![0.0; self.n_rows * self.row_len];
        dequantize(self.ty, &self.rows, &mut weights).unwrap();
        let mut x = self.x.clone();
        if self.ty.activation_format() == ActivationFormat::Int8 {
            let blocks = self.blocks.chunks_exact(self.row_len.div_ceil(256));
            for (x, blocks) in x.chunks_exact_mut(self.row_len).zip(blocks) {
                dequantize_activations(blocks, x);
            }
        }
        let mut magnitudes = Vec::new();
        for row in weights.chunks_exact(self.row_len) {
            for column in x.chunks_exact(self.row_len) {
                magnitudes.push(
                    row.iter()
                        .zip(column)
                        .map(|(&w, &x)| (f64::from(w) * f64::from(x)).abs())
                        .sum(),
                );
            }
        }
        magnitudes
    }
}

fn quantized(x: &[f32], row_len: usize) -> Vec<ActivationBlock> {
    let row_blocks = row_len.div_ceil(256);
    let mut blocks = vec![ActivationBlock::zeroed(); x.len() / row_len * row_blocks];
    for (x, blocks) in x
        .chunks_exact(row_len)
        .zip(blocks.chunks_exact_mut(row_blocks))
    {
        quantize_activations(x, blocks);
    }
    blocks
}

fn check_dots(case: &Case) {
    let expected = case.all_dots(Kernels::for_isa(Isa::Scalar).unwrap());
    let magnitudes = case.magnitudes();
    for table in tables() {
        let found = case.all_dots(table);
        for (i, ((&found, &expected), magnitude)) in
            found.iter().zip(&expected).zip(&magnitudes).enumerate()
        {
            let error = (f64::from(found) - f64::from(expected)).abs();
            assert!(
                error <= DOT_TOLERANCE * magnitude,
                "{} on {}: result {i} of {} x {} at row length {} is {found}, expected {expected} (magnitude {magnitude})",
                case.ty.name(),
                table.isa,
                case.n_rows,
                case.n_columns,
                case.row_len,
            );
        }
    }
}

#[test]
fn dots_match_scalar_at_every_length_and_shape() {
    for ty in WEIGHT_TYPES {
        for row_len in row_lens(ty).into_iter().filter(|&n| n > 0) {
            for any_bits in [false, true] {
                check_dots(&Case::new(ty, row_len, 5, 3, any_bits));
            }
        }
        let row_len = if ty.block_len() == 256 { 512 } else { 320 };
        for n_columns in (1..=9).chain([15, 16, 19]) {
            for n_rows in [1, 2, 3, 4, 7, 8] {
                check_dots(&Case::new(ty, row_len, n_rows, n_columns, true));
            }
        }
    }
}

#[test]
fn extreme_quants_and_activations_do_not_saturate() {
    for ty in WEIGHT_TYPES
        .into_iter()
        .filter(|ty| ty.activation_format() == ActivationFormat::Int8)
    {
        for fill in [0x00, 0xff, 0x80, 0x7f] {
            for sign in [1.0, -1.0] {
                let mut case = Case::new(ty, 256, 4, 2, false);
                // The scales stay those of encoded values; every other byte is an extreme.
                let mut values = vec![0.0; ty.block_len()];
                for block in case.rows.chunks_exact_mut(ty.block_bytes()) {
                    let n = block.len();
                    let codes = match ty {
                        GgmlType::Q2_K => 0..n - 4,
                        GgmlType::Q3_K | GgmlType::Q6_K => 0..n - 2,
                        GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4_K | GgmlType::Q5_K => 4..n,
                        _ => 2..n,
                    };
                    block[codes].fill(fill);
                    dequantize(ty, block, &mut values).unwrap();
                    assert!(values.iter().all(|v| v.is_finite()));
                }
                case.x.fill(sign);
                case.blocks = quantized(&case.x, case.row_len);
                check_dots(&case);
            }
        }
    }
}

#[test]
fn a_dot_has_the_same_bits_alone_and_in_company() {
    for table in tables() {
        for ty in WEIGHT_TYPES {
            // Rows that end with a unit, and in each of its quarters.
            let row_lens: &[usize] = match ty.block_len() {
                256 => &[512],
                _ => &[512, 576, 608, 640, 704],
            };
            for &row_len in row_lens {
                check_company(table, &Case::new(ty, row_len, 7, 18, true));
            }
        }
    }
}

/// Bits of dots alone, and with some columns.
fn check_company(table: &Kernels, case: &Case) {
    let name = case.ty.name();
    let all = case.all_dots(table);
    for r in 0..case.n_rows {
        for c in 0..case.n_columns {
            let alone = case.dots(table, r..r + 1, c..c + 1)[0];
            let together = all[r * case.n_columns + c];
            assert_eq!(
                alone.to_bits(),
                together.to_bits(),
                "{name} of {} on {}: {r}, {c}",
                case.row_len,
                table.isa
            );
        }
    }
    for columns in [0..2, 1..4, 3..7, 2..8, 4..9, 5..16, 1..17, 2..18] {
        let some = case.dots_in_two(table, 1..6, columns.clone(), 3);
        for (i, value) in some.into_iter().enumerate() {
            let (r, c) = (1 + i / columns.len(), columns.start + i % columns.len());
            assert_eq!(
                value.to_bits(),
                all[r * case.n_columns + c].to_bits(),
                "{name} of {} on {}: {columns:?}",
                case.row_len,
                table.isa
            );
        }
    }
}

#[test]
fn a_fault_in_an_activation_reaches_every_result_of_its_column() {
    for table in tables() {
        for ty in WEIGHT_TYPES {
            let mut case = Case::new(ty, 512, 5, 3, false);
            case.x[512 + 300] = f32::NAN;
            case.blocks = quantized(&case.x, case.row_len);
            for (i, dot) in case.all_dots(table).into_iter().enumerate() {
                assert_eq!(dot.is_nan(), i % 3 == 1, "{} on {}", ty.name(), table.isa);
            }
        }
    }
}

#[test]
fn unpacking_is_bit_equal() {
    for table in tables() {
        for ty in WEIGHT_TYPES {
            let unpack = table.unpack(ty).unwrap();
            for n_values in row_lens(ty).into_iter().chain([0, 512 * 7]) {
                for any_bits in [false, true] {
                    let bytes = Random(1 + n_values as u64).weights(ty, n_values, any_bits);
                    let (mut found, mut expected) = (vec![f32::NAN; n_values], vec![0.0; n_values]);
                    dequantize(ty, &bytes, &mut expected).unwrap();
                    // SAFETY: `tables` gives instruction sets this machine has; `found` has a value for each of `bytes`.
                    unsafe { unpack(&bytes, &mut found) };
                    assert_bits(
                        &found,
                        &expected,
                        &format!("{} x {n_values} on {}", ty.name(), table.isa),
                    );
                }
            }
        }
    }
}

fn assert_bits(found: &[f32], expected: &[f32], what: &str) {
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(
            found.to_bits(),
            expected.to_bits(),
            "{what}: value {i} is {found}, expected {expected}"
        );
    }
}

fn check_quantizers(x: &[f32]) {
    let mut expected = vec![ActivationBlock::zeroed(); x.len().div_ceil(256)];
    quantize_activations(x, &mut expected);
    for table in tables() {
        let mut found = vec![
            ActivationBlock {
                qs: [1; 256],
                scales: [2.0; 16],
                sums: [3.0; 8]
            };
            expected.len()
        ];
        // SAFETY: `tables` gives instruction sets this machine has; the lengths are those of the signature.
        unsafe { (table.quantize_activations)(x, &mut found) };
        // Bytes, so that NaN equals itself and 0 does not equal -0.
        let bytes: &[u8] = bytemuck::cast_slice(&found);
        assert!(
            bytes == bytemuck::cast_slice::<_, u8>(&expected),
            "{}: {found:?}, expected {expected:?}",
            table.isa
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn quantizers_are_bit_equal(bits in prop::collection::vec(any::<u32>(), 0..600), magnitude in -30i32..30, any_bits: bool) {
        let mut x: Vec<f32> = if any_bits {
            bits.into_iter().map(f32::from_bits).collect()
        } else {
            bits.into_iter().map(|b| (f64::from(b) / 2f64.powi(31) - 1.0) as f32 * 10f32.powi(magnitude)).collect()
        };
        x.truncate(x.len() / 32 * 32);
        check_quantizers(&x);
    }
}

#[test]
fn quantizers_agree_on_ties_faults_and_tiny_values() {
    // With a largest magnitude of 127 the factor is 1, so halves are exact ties.
    let ties: Vec<f32> = (0..256)
        .map(|i| {
            if i % 32 == 0 {
                -127.0
            } else {
                i as f32 / 2.0 - 60.5
            }
        })
        .collect();
    check_quantizers(&ties);
    for value in [
        0.0,
        -0.0,
        1e-30,
        9.9e-31,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        f32::MAX,
        f32::MIN,
    ] {
        check_quantizers(&[value; 96]);
    }
    for fault in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 15, 16, 31, 40, 95] {
            let mut x = [0.5; 96];
            x[at] = fault;
            check_quantizers(&x);
        }
    }
}

#[test]
fn matrix_products_match_at_odd_shapes() {
    let shapes = (0..=9)
        .chain([15, 16, 17, 31, 32, 33])
        .map(|k| (13, k))
        .chain((0..=29).map(|n_rows| (n_rows, 5)));
    for (n_rows, k) in shapes {
        let mut random = Random(7 + k as u64);
        let a = random.values(n_rows * k);
        // The columns of the widest panel; narrower ones take the first.
        let widest = 32;
        let b = random.values(k * widest);
        let c = random.values(n_rows * widest);
        for table in tables() {
            let columns = table.gemm_columns;
            let narrow = |wide: &[f32]| -> Vec<f32> {
                wide.chunks_exact(widest)
                    .flat_map(|row| &row[..columns])
                    .copied()
                    .collect()
            };
            let (b, mut found) = (narrow(&b), narrow(&c));
            // SAFETY: `tables` gives instruction sets this machine has; the lengths are those of the signature.
            unsafe { (table.gemm)(&a, &b, &mut found) };
            let mut columns_first = vec![0.0; a.len()];
            for (i, &value) in a.iter().enumerate() {
                columns_first[i % k * n_rows + i / k] = value;
            }
            let mut same = narrow(&c);
            // SAFETY: as above.
            unsafe { (table.gemm_transposed)(&columns_first, &b, &mut same) };
            assert_eq!(same, found, "{} transposed", table.isa);
            for r in 0..n_rows {
                for j in 0..columns {
                    let start = c[r * widest + j];
                    let products = (0..k).map(|i| (a[r * k + i], b[i * columns + j]));
                    let found = found[r * columns + j];
                    let fused = products
                        .clone()
                        .fold(start, |sum, (a, b)| a.mul_add(b, sum));
                    if table.isa != Isa::Scalar {
                        assert_eq!(
                            found.to_bits(),
                            fused.to_bits(),
                            "{} {n_rows} x {k}: {r}, {j}",
                            table.isa
                        );
                    }
                    let magnitude: f64 = products
                        .map(|(a, b)| (f64::from(a) * f64::from(b)).abs())
                        .sum();
                    let bound = GEMM_TOLERANCE * (magnitude + f64::from(start).abs());
                    let error = (f64::from(found) - f64::from(fused)).abs();
                    assert!(
                        error <= bound,
                        "{} {n_rows} x {k}: {r}, {j}: {found}, expected {fused}",
                        table.isa
                    );
                }
            }
        }
    }
}
