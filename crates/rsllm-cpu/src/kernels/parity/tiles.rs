//! The product on tiles against sums of rounded values in double precision.

use bytemuck::Zeroable;
use rsllm_quant::{GgmlType, dequantize};
use rsllm_tensor::Activation;

use super::{Case, Random, WEIGHT_TYPES, tables};
use crate::kernels::{Ahead, Lanes, ScoreTiles, TILE, TILE_F32, ToTiles, Visible};

/// Largest error of a product of bf16 values in units of Σ |a · b|: f32 sums.
const TILE_TOLERANCE: f64 = 1e-6;

/// To bf16 and back, ties to even.
fn rounded(x: f32) -> f32 {
    half::bf16::from_f32(x).to_f32()
}

#[test]
fn tiles_hold_rounded_weights_and_give_their_products() {
    for table in tables() {
        let Some(tiles) = table.tiles else { continue };
        for ty in WEIGHT_TYPES {
            let unpack = match ((tiles.unpack)(ty), ty) {
                (Some(ToTiles::Rounded(unpack)), _) => unpack,
                (Some(ToTiles::Parts(_)), GgmlType::F16) | (None, GgmlType::F32) => {
                    continue;
                }
                _ => panic!("others take tiles, rounded"),
            };
            let row_len = if ty.block_len() == 256 { 512 } else { 96 };
            let (n_rows, n_tokens) = (32, 48);
            let case = Case::new(ty, row_len, n_rows, n_tokens, ty.block_len() > 1);
            let mut weights = vec![0.0; n_rows * row_len];
            dequantize(ty, &case.rows, &mut weights).unwrap();
            let n_tiles = row_len / 32;
            let mut a = vec![0u16; n_rows * row_len];
            for (r, row) in case.rows.chunks_exact(case.row_bytes()).enumerate() {
                let at = r / 16 * n_tiles * TILE + r % 16 * 32;
                // SAFETY: `tables` gives instruction sets this machine has.
                unsafe { unpack(row, &mut a[at..]) };
                for (v, &w) in weights[r * row_len..(r + 1) * row_len].iter().enumerate() {
                    let found = half::bf16::from_bits(a[at + v / 32 * TILE + v % 32]).to_f32();
                    assert_eq!(found, rounded(w), "{} value {v} of row {r}", ty.name());
                }
            }
            let mut b = vec![0u16; n_tokens * row_len];
            for (i, tile) in b.chunks_exact_mut(TILE).enumerate() {
                let (group, t) = (i / n_tiles, i % n_tiles);
                let row = |token: usize| &case.x[(16 * group + token) * row_len + 32 * t..][..32];
                let rows: [&[f32]; 16] = std::array::from_fn(row);
                // SAFETY: as above.
                unsafe { (tiles.pack)(&rows, tile) };
            }
            let mut c = vec![f32::NAN; n_rows * n_tokens];
            let ahead = Ahead {
                activations: [&b, &[]],
                weights: &case.rows,
                row_bytes: case.row_bytes(),
                piece: 0..case.row_bytes(),
            };
            // SAFETY: as above; the tiles are configured in between.
            unsafe {
                (tiles.configure)();
                (tiles.multiply)(&a, &b, &mut c, false, &ahead);
                (tiles.release)();
            }
            let first = c.clone();
            // One group alone, twice.
            let (alone, group_len) = (&mut c[..2 * TILE_F32], n_tiles * TILE);
            // SAFETY: as above.
            unsafe {
                (tiles.configure)();
                (tiles.multiply)(&a, &b[..group_len], alone, false, &Ahead::default());
                assert_eq!(alone, &first[..2 * TILE_F32], "alone and in company");
                (tiles.multiply)(&a, &b[..group_len], alone, true, &ahead);
                (tiles.release)();
            }
            for (i, tile) in first.chunks_exact(TILE_F32).enumerate() {
                for (j, &found) in tile.iter().enumerate() {
                    let (row, token) = (i % 2 * 16 + j / 16, i / 2 * 16 + j % 16);
                    let (mut sum, mut size) = (0.0, 0.0);
                    for k in 0..row_len {
                        let product = f64::from(rounded(weights[row * row_len + k]))
                            * f64::from(rounded(case.x[token * row_len + k]));
                        (sum, size) = (sum + product, size + product.abs());
                    }
                    let error = (f64::from(found) - sum).abs();
                    assert!(
                        error <= TILE_TOLERANCE * size,
                        "{} {row} {token}",
                        ty.name()
                    );
                    if i < 2 {
                        let error = (f64::from(c[i * TILE_F32 + j]) - 2.0 * sum).abs();
                        assert!(error <= 3.0 * TILE_TOLERANCE * size, "{}", ty.name());
                    }
                }
            }
        }
    }
}

#[test]
fn two_parts_hold_all_bits_of_a_half() {
    for tiles in tables().into_iter().filter_map(|table| table.tiles) {
        let Some(ToTiles::Parts(unpack)) = (tiles.unpack)(GgmlType::F16) else {
            panic!("halves go to two parts");
        };
        // Every finite half, and a last row that does not fill its tile.
        let finite = (0..=u16::MAX).filter(|bits| bits & 0x7C00 != 0x7C00);
        let halves: Vec<u16> = finite.collect();
        for row in halves.chunks(1000) {
            let bytes: Vec<u8> = row.iter().flat_map(|bits| bits.to_le_bytes()).collect();
            let [mut high, mut low] = [(); 2].map(|()| vec![0u16; row.len().div_ceil(32) * TILE]);
            // SAFETY: `tables` gives instruction sets this machine has.
            unsafe { unpack(&bytes, [&mut high, &mut low]) };
            for (v, &bits) in row.iter().enumerate() {
                let found = both([&high, &low], v / 32 * TILE + v % 32);
                assert_eq!(found, half::f16::from_bits(bits).to_f64(), "{bits:#x}");
            }
        }
    }
}

#[test]
fn results_reach_rows_of_any_width_and_the_next_operand() {
    for tiles in tables().into_iter().filter_map(|table| table.tiles) {
        let mut random = Random(7);
        let results = random.values(2 * TILE_F32);
        let bias = random.values(16);
        for (n_tokens, width) in [(16, 16), (1, 16), (5, 1), (16, 15)] {
            for bias in [None, Some(&bias[..width])] {
                let mut rows = vec![f32::NAN; n_tokens * width];
                let mut dst: Vec<&mut [f32]> = rows.chunks_mut(width).collect();
                // SAFETY: `tables` gives instruction sets this machine has.
                unsafe { (tiles.scatter)(&results[..TILE_F32], bias, &mut dst) };
                let mut sums = vec![0.25; n_tokens * width];
                let mut dst: Vec<&mut [f32]> = sums.chunks_mut(width).collect();
                // SAFETY: as above.
                unsafe { (tiles.scatter_add)(&results[..TILE_F32], bias, &mut dst) };
                for (sum, row) in sums.iter().zip(&rows) {
                    assert_eq!(*sum, 0.25 + row);
                }
                for (i, found) in rows.into_iter().enumerate() {
                    let (token, row) = (i / width, i % width);
                    let expected = results[row * 16 + token] + bias.map_or(0.0, |bias| bias[row]);
                    assert_eq!(
                        found, expected,
                        "{n_tokens} x {width}, token {token}, row {row}"
                    );
                }
            }
        }
    }
}

#[test]
fn gated_results_become_the_next_operand() {
    for tiles in tables().into_iter().filter_map(|table| table.tiles) {
        let mut random = Random(11);
        let mut gate = random.values(2 * TILE_F32);
        gate[..6].copy_from_slice(&[0.0, -0.5, 30.0, -30.0, 200.0, -200.0]);
        let up = random.values(2 * TILE_F32);
        for activation in [Activation::Silu, Activation::GeluTanh] {
            let mut tile = vec![0u16; TILE];
            // SAFETY: `tables` gives instruction sets this machine has.
            unsafe { (tiles.gate(activation))(&gate, &up, &mut tile) };
            for (i, &bits) in tile.iter().enumerate() {
                let at = (i / 32 * 2 + i % 2) * 16 + i % 32 / 2;
                let (x, up) = (f64::from(gate[at]), f64::from(up[at]));
                let y = match activation {
                    Activation::Silu => x,
                    Activation::GeluTanh => {
                        2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))
                    }
                };
                let expected = x / (1.0 + (-y).exp()) * up;
                let found = f64::from(half::bf16::from_bits(bits).to_f32());
                // Half of the last of eight bits, and what the kernel may be off.
                let most = (2f64.powi(-8) + 1e-4) * expected.abs() + 1e-30;
                assert!(
                    (found - expected).abs() <= most,
                    "{activation:?} of {x}: {found} for {expected}"
                );
            }
        }
    }
}

#[test]
fn results_become_an_operand_in_two_parts() {
    for tiles in tables().into_iter().filter_map(|table| table.tiles) {
        let results = Random(13).values(2 * TILE_F32);
        let [mut high, mut low] = [(); 2].map(|()| vec![0xFFFFu16; TILE]);
        // SAFETY: `tables` gives instruction sets this machine has.
        unsafe { (tiles.pairs)(&results, [&mut high, &mut low]) };
        for i in 0..TILE {
            let expected = f64::from(results[(i / 32 * 2 + i % 2) * 16 + i % 32 / 2]);
            let error = both([&high, &low], i) - expected;
            assert!(error.abs() <= CUT * expected.abs(), "{i} {error}");
        }
    }
}

/// Largest relative error of a value in two parts: sixteen bits, the rest cut off (and some for `exp2`).
const CUT: f64 = 3.2e-5;

/// Largest error of a product of operands in two parts, in units of Σ |a · b|: theirs, and the product of the low parts.
const PARTS_TOLERANCE: f64 = 4.0 * CUT;

/// A value of tiles in two parts.
fn both(parts: [&[u16]; 2], at: usize) -> f64 {
    parts
        .into_iter()
        .map(|part| f64::from(half::bf16::from_bits(part[at]).to_f32()))
        .sum()
}

#[test]
fn parts_of_keys_queries_and_values_add_up_to_them() {
    for tiles in tables().into_iter().filter_map(|table| table.tiles) {
        for head_dim in [1, 16, 31, 32, 33, 64, 80, 256] {
            for (n, n_lanes) in [(1, 1), (15, 16), (16, 15), (17, 16), (33, 7), (64, 16)] {
                let mut random = Random((head_dim * 100 + n) as u64);
                let (rows, q) = (
                    random.values(n * head_dim),
                    random.values(n_lanes * head_dim),
                );
                let n_tiles = head_dim.div_ceil(32);
                let depth = n.next_multiple_of(32);
                // What is not written must not be seen.
                let [mut high, mut low] = [(); 2].map(|()| vec![0xFFFFu16; depth * n_tiles * 32]);
                // SAFETY: `tables` gives instruction sets this machine has.
                unsafe { (tiles.keys)(&rows, head_dim, [&mut high, &mut low]) };
                let [mut b, mut b_low] = [(); 2].map(|()| vec![0xFFFFu16; n_tiles * TILE]);
                for t in 0..n_tiles {
                    let values = 32 * t..head_dim.min(32 * t + 32);
                    let rows: Vec<&[f32]> =
                        q.chunks(head_dim).map(|row| &row[values.clone()]).collect();
                    let tile = t * TILE..(t + 1) * TILE;
                    // SAFETY: as above.
                    unsafe { (tiles.queries)(&rows, [&mut b[tile.clone()], &mut b_low[tile]]) };
                }
                let mut scores = vec![f32::NAN; depth * 16];
                for (chunk, scores) in scores.chunks_mut(2 * TILE_F32).enumerate() {
                    let left = chunk * 2 * n_tiles * TILE..(chunk + 1) * 2 * n_tiles * TILE;
                    let a = [&high[left.clone()], &low[left]];
                    // SAFETY: as above; the tiles are configured in between.
                    unsafe {
                        (tiles.configure)();
                        (tiles.multiply_parts)(a, [&b, &b_low], scores, false, &Ahead::default());
                        (tiles.release)();
                    }
                }
                for (position, row) in rows.chunks(head_dim).enumerate() {
                    for (lane, q) in q.chunks(head_dim).enumerate() {
                        let products = row
                            .iter()
                            .zip(q)
                            .map(|(&a, &b)| f64::from(a) * f64::from(b));
                        let size: f64 = products.clone().map(f64::abs).sum();
                        let error = f64::from(scores[position * 16 + lane]) - products.sum::<f64>();
                        assert!(
                            error.abs() <= PARTS_TOLERANCE * size,
                            "{head_dim} {n} {error}"
                        );
                    }
                }
                let [mut high, mut low] = [(); 2].map(|()| vec![0xFFFFu16; depth * n_tiles * 32]);
                // SAFETY: as above.
                unsafe { (tiles.values)(&rows, head_dim, [&mut high, &mut low]) };
                for d in 0..n_tiles * 32 {
                    for position in 0..depth {
                        let tile = d / 16 * (depth / 32) + position / 32;
                        let at = tile * TILE + d % 16 * 32 + position % 32;
                        let expected = if d < head_dim && position < n {
                            f64::from(rows[position * head_dim + d])
                        } else {
                            0.0
                        };
                        let error = (both([&high, &low], at) - expected).abs();
                        assert!(error <= CUT * expected.abs(), "{head_dim} {n} {error}");
                    }
                }
            }
        }
    }
}

#[test]
fn two_parts_meet_two_groups_as_one() {
    for tiles in tables().into_iter().filter_map(|table| table.tiles) {
        let mut random = Random(5);
        let mut bits = |n: usize| -> Vec<u16> {
            let values = random.values(n).into_iter();
            values.map(|x| half::bf16::from_f32(x).to_bits()).collect()
        };
        let n_tiles = 3;
        let (a, low) = (bits(2 * n_tiles * TILE), bits(2 * n_tiles * TILE));
        let (b, b_low) = (bits(3 * n_tiles * TILE), bits(3 * n_tiles * TILE));
        let (group, bytes) = (n_tiles * TILE, [0; 500]);
        for low in [&low[..], &[]] {
            let before: Vec<f32> = (0..3 * 2 * TILE_F32).map(|i| i as f32).collect();
            let (mut together, mut alone) = (before.clone(), before);
            // Three groups of three tiles are nine steps for five rows of two lines.
            let ahead = Ahead {
                activations: [&b, low],
                weights: &bytes,
                row_bytes: 100,
                piece: 0..100,
            };
            // SAFETY: `tables` gives instruction sets this machine has; the tiles are configured in between.
            unsafe {
                (tiles.configure)();
                (tiles.multiply_parts)([&a, low], [&b, &b_low], &mut together, true, &ahead);
                for (g, alone) in alone.chunks_exact_mut(2 * TILE_F32).enumerate() {
                    let b = [&b[g * group..][..group], &b_low[g * group..][..group]];
                    (tiles.multiply_parts)([&a, low], b, alone, true, &Ahead::default());
                }
                (tiles.release)();
            }
            assert_eq!(together, alone);
        }
    }
}

#[test]
fn a_step_of_the_softmax_weights_what_is_visible() {
    for tiles in tables().into_iter().filter_map(|table| table.tiles) {
        for n in [1usize, 2, 15, 16, 17, 31, 32, 33, 63, 64] {
            let mut random = Random(n as u64);
            let depth = n.next_multiple_of(32);
            let scores: Vec<f32> = random.values(depth * 16).iter().map(|x| 9.0 * x).collect();
            let mut visible = Visible {
                from: [0; 16],
                to: [n as i32; 16],
            };
            for lane in 0..16 {
                let at = (lane * n / 16) as i32;
                if lane % 2 == 0 {
                    visible.from[lane] = at;
                } else {
                    visible.to[lane] = at;
                }
            }
            for visible in [None, Some(visible)] {
                let page = ScoreTiles {
                    scores: &scores,
                    stride: 2 * TILE_F32,
                    n,
                    factor: 0.7,
                };
                let mut lanes = Lanes::zeroed();
                lanes.maxima = std::array::from_fn(|lane| lane as f32 - 8.0);
                lanes.sums = [2.0; 16];
                let before = lanes;
                let [mut high, mut low] = [(); 2].map(|()| vec![0xFFFFu16; depth * 16]);
                // SAFETY: `tables` gives instruction sets this machine has.
                let corrected = unsafe {
                    (tiles.softmax)(&page, visible.as_ref(), &mut lanes, [&mut high, &mut low])
                };
                assert_eq!(corrected, lanes.corrections.iter().any(|&c| c != 1.0));
                for lane in 0..16 {
                    let sees = |p: usize| {
                        p < n
                            && visible
                                .is_none_or(|v| (v.from[lane]..v.to[lane]).contains(&(p as i32)))
                    };
                    let score = |p: usize| f64::from(scores[p * 16 + lane] * 0.7);
                    let seen = (0..n).filter(|&p| sees(p));
                    let most = seen
                        .clone()
                        .map(score)
                        .fold(f64::from(before.maxima[lane]), f64::max);
                    // It lags behind what is seen, by so much that weights stay below 2^8.
                    let maximum = f64::from(lanes.maxima[lane]);
                    assert!(most - maximum <= 8.0 + 1e-5, "{n} {lane}");
                    if maximum != f64::from(before.maxima[lane]) {
                        assert!((maximum - most).abs() < 1e-5, "{n} {lane}");
                    }
                    let correction = (f64::from(before.maxima[lane]) - maximum).exp2();
                    assert!((f64::from(lanes.corrections[lane]) - correction).abs() < 1e-5);
                    let mut sum = 2.0 * correction;
                    for p in 0..depth {
                        let expected = if sees(p) {
                            (score(p) - maximum).exp2()
                        } else {
                            0.0
                        };
                        sum += expected;
                        let at = p / 32 * TILE + p % 32 / 2 * 32 + 2 * lane + p % 2;
                        let error = both([&high, &low], at) - expected;
                        assert!(error.abs() <= CUT * expected, "{n} {p} {error}");
                    }
                    assert!(
                        (f64::from(lanes.sums[lane]) - sum).abs() < 1e-5 * sum,
                        "{n} {lane}"
                    );
                    if seen.count() == 0 {
                        assert_eq!(lanes.corrections[lane], 1.0);
                        assert_eq!(lanes.sums[lane], before.sums[lane]);
                        assert_eq!(lanes.maxima[lane], before.maxima[lane]);
                    }
                }
            }
        }
    }
}
