//! The product on tiles against sums of rounded values in double precision.

use rsllm_quant::{GgmlType, dequantize};

use super::{Case, WEIGHT_TYPES, tables};
use crate::kernels::{TILE, TILE_F32};

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
            let Some(unpack) = (tiles.unpack)(ty) else {
                assert!(
                    matches!(ty, GgmlType::F32 | GgmlType::F16),
                    "others take tiles"
                );
                continue;
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
            // SAFETY: as above; the tiles are configured in between.
            unsafe {
                (tiles.configure)();
                (tiles.multiply)(&a, &b, &mut c, false);
                (tiles.release)();
            }
            let first = c.clone();
            // One group alone, twice.
            let (alone, group_len) = (&mut c[..2 * TILE_F32], n_tiles * TILE);
            // SAFETY: as above.
            unsafe {
                (tiles.configure)();
                (tiles.multiply)(&a, &b[..group_len], alone, false);
                assert_eq!(alone, &first[..2 * TILE_F32], "alone and in company");
                (tiles.multiply)(&a, &b[..group_len], alone, true);
                (tiles.release)();
            }
            for (i, tile) in first.chunks_exact(TILE_F32).enumerate() {
                let mut transposed = tile.to_vec();
                // SAFETY: as above.
                unsafe { (tiles.transpose)(&mut transposed) };
                for (j, &found) in tile.iter().enumerate() {
                    assert_eq!(transposed[j % 16 * 16 + j / 16], found);
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
