//! Checked calls of single kernels, for the benchmarks and for nobody else: no part of the API, and free to change.

use bytemuck::Zeroable;
use rsllm_quant::{ActivationBlock, ActivationFormat, GgmlType};

use crate::Kernels;
use crate::kernels::{Dot, Prepared, PreparedColumns, SCALED_LEN, ScaledRow, ToTiles};
use crate::memory::{Aligned, Allocator};

/// Columns of activations in the form in which weights of a type meet them.
#[derive(Debug)]
pub struct Activations {
    row_len: usize,
    n_columns: usize,
    /// `[n_columns, row_len]`.
    values: Vec<f32>,
    /// The same, quantised; empty for float weights.
    blocks: Vec<ActivationBlock>,
}

impl Activations {
    /// For weights of type `ty`; `values` is `[n_columns, row_len]`.
    ///
    /// # Panics
    /// If `values` is no whole number of columns.
    pub fn new(kernels: &Kernels, ty: GgmlType, values: Vec<f32>, row_len: usize) -> Self {
        let n_columns = values.len() / row_len;
        assert_eq!(values.len(), n_columns * row_len, "whole columns");
        let row_blocks = row_len.div_ceil(ActivationBlock::LEN);
        let mut blocks = Vec::new();
        if ty.activation_format() == ActivationFormat::Int8 {
            blocks.resize(n_columns * row_blocks, ActivationBlock::zeroed());
            for (values, blocks) in values
                .chunks_exact(row_len)
                .zip(blocks.chunks_exact_mut(row_blocks))
            {
                quantize_activations(kernels, values, blocks);
            }
        }
        Self {
            row_len,
            n_columns,
            values,
            blocks,
        }
    }
}

/// Dots of all `rows` with all columns: `out` is `[n_columns, n_rows]`.
///
/// # Panics
/// If the type has no kernel or the lengths do not fit.
pub fn dot_rows(kernels: &Kernels, ty: GgmlType, rows: &[u8], x: &Activations, out: &mut [f32]) {
    let row_bytes = ty.row_bytes(x.row_len).expect("a row is whole blocks");
    assert_eq!(
        rows.len() / row_bytes * x.n_columns,
        out.len(),
        "a result for each row and column"
    );
    assert_eq!(rows.len() % row_bytes, 0, "whole rows");
    match kernels.dot(ty).expect("a weight type") {
        Dot::Int8(dot) => {
            assert_eq!(
                x.blocks.len(),
                x.n_columns * x.row_len.div_ceil(ActivationBlock::LEN),
                "quantised for this type"
            );
            let room = Prepared::room(x.n_columns, x.blocks.len() / x.n_columns);
            let prepared = PreparedColumns {
                units: &mut vec![Prepared::zeroed(); room],
                are_filled: false,
            };
            // SAFETY: `Kernels::for_isa` gives tables this machine can run; the lengths are checked above.
            unsafe { dot(rows, row_bytes, &x.blocks, x.n_columns, out, prepared) };
        }
        // SAFETY: as above; `Activations::new` checked the length of the values.
        Dot::F32(dot) => unsafe { dot(rows, row_bytes, &x.values, x.n_columns, out) },
    }
}

/// Whole blocks to f32.
///
/// # Panics
/// If the type has no kernel or the lengths do not fit.
pub fn unpack(kernels: &Kernels, ty: GgmlType, blocks: &[u8], out: &mut [f32]) {
    assert_eq!(
        ty.row_bytes(out.len()),
        Some(blocks.len()),
        "a value for each of the blocks"
    );
    let unpack = kernels.unpack(ty).expect("a weight type");
    // SAFETY: `Kernels::for_isa` gives tables this machine can run; the lengths are checked above.
    unsafe { unpack(blocks, out) };
}

/// f32 activations to int8.
///
/// # Panics
/// If the lengths do not fit.
pub fn quantize_activations(kernels: &Kernels, src: &[f32], dst: &mut [ActivationBlock]) {
    assert!(
        src.len().is_multiple_of(32) && dst.len() == ActivationBlock::count(src.len()),
        "groups of 32, their blocks"
    );
    // SAFETY: `Kernels::for_isa` gives tables this machine can run; the lengths are checked above.
    unsafe { (kernels.quantize_activations)(src, dst) };
}

/// Tokens that one call of [`gemm`] works on.
pub fn gemm_columns(kernels: &Kernels) -> usize {
    kernels.gemm_columns
}

/// `c += a · b` with `a` `[n_rows, k]`, `b` `[k, gemm_columns]` and `c` `[n_rows, gemm_columns]`.
///
/// # Panics
/// If the lengths do not fit.
pub fn gemm(kernels: &Kernels, a: &[f32], b: &[f32], c: &mut [f32]) {
    let (n_rows, k) = (
        c.len() / kernels.gemm_columns,
        b.len() / kernels.gemm_columns,
    );
    assert_eq!(
        (c.len(), b.len()),
        (n_rows * kernels.gemm_columns, k * kernels.gemm_columns),
        "whole panels"
    );
    assert_eq!(
        a.len(),
        n_rows * k,
        "a row of weights for each row of results"
    );
    // SAFETY: `Kernels::for_isa` gives tables this machine can run; the lengths are checked above.
    unsafe { (kernels.gemm)(a, b, c) };
}

/// One call of the product on integers, of `n_rows` rows and `k` values: operations done, or `None` where the table has no such
/// product.
///
/// # Panics
/// If `k` is odd or more than 128.
pub fn gemm_integers(
    kernels: &Kernels,
    n_rows: usize,
    k: usize,
) -> Option<impl FnMut() -> usize + use<>> {
    let (integers, columns) = (kernels.integers?, kernels.gemm_columns);
    assert!(k.is_multiple_of(2) && k <= SCALED_LEN, "pairs of one part");
    let a = vec![ScaledRow::zeroed(); n_rows];
    let (b, b_scales) = (vec![1; k * columns], vec![1.0; columns]);
    let mut c = vec![0.0; n_rows * columns];
    Some(move || {
        // SAFETY: `Kernels::for_isa` gives tables this machine can run; the lengths are those of the signature.
        unsafe { (integers.gemm)(&a, 0, &b, &b_scales, &mut c, true) };
        2 * n_rows * k * columns
    })
}

/// Up to 256 packed values of a row to integers; false where the product of the type takes none, or where the table has no short
/// way to them.
///
/// # Panics
/// If `packed` holds more values.
pub fn unpack_integers(kernels: &Kernels, ty: GgmlType, packed: &[u8]) -> bool {
    let Some(unpack) = kernels.integers.and_then(|integers| (integers.unpack)(ty)) else {
        return false;
    };
    assert!(
        packed.len() / ty.block_bytes() * ty.block_len() <= 2 * SCALED_LEN,
        "two parts"
    );
    let mut row = ScaledRow::zeroed();
    // SAFETY: `Kernels::for_isa` gives tables this machine can run; the length is checked above.
    unsafe { unpack(packed, &mut row) };
    std::hint::black_box(&row);
    true
}

/// A packed row to bf16 in the order of tiles; false where the product of the type takes no tiles, or values in two parts.
///
/// # Panics
/// If `tiles` has no room for the row's tiles.
pub fn unpack_tiles(kernels: &Kernels, ty: GgmlType, row: &[u8], tiles: &mut [u16]) -> bool {
    let Some(ToTiles::Rounded(unpack)) = kernels.tiles.and_then(|tiles| (tiles.unpack)(ty)) else {
        return false;
    };
    let n_values = row.len() / ty.block_bytes() * ty.block_len();
    assert!(
        tiles.len() >= n_values.div_ceil(32) * crate::kernels::TILE,
        "a row of every tile"
    );
    // SAFETY: `Kernels::for_isa` gives tables this machine can run; the lengths are checked above.
    unsafe { unpack(row, tiles) };
    true
}

/// Decode attention of `group` query heads over `rows` of K (or V) of type `ty`: scores, then the same rows weighted with
/// them. False where the table unpacks rows of this type first.
///
/// # Panics
/// If the lengths do not fit.
pub fn attend(
    kernels: &Kernels,
    ty: GgmlType,
    rows: &[u8],
    q: &[f32],
    group: usize,
    scores: &mut [f32],
    acc: &mut [f32],
) -> bool {
    let (head_dim, n) = (q.len() / group, scores.len() / group);
    assert!(
        ty.row_bytes(n * head_dim) == Some(rows.len()) && acc.len() == q.len(),
        "a score for each row and head"
    );
    let Some(attend) = kernels.attend(ty, head_dim) else {
        return false;
    };
    // SAFETY: `Kernels::for_isa` gives tables this machine can run; the lengths are checked above.
    unsafe {
        (attend.scores)(rows, &[], q, group, scores);
        (attend.values)(rows, &[], scores, group, acc);
    }
    true
}

/// The products of prefill attention on tiles, `n` positions of `head_dim` values and 32 (token, head) pairs: operations done, or
/// `None` without a tile unit.
///
/// # Panics
/// If `n` or `head_dim` is not a multiple of 32.
pub fn attend_tiles(kernels: &Kernels, n: usize, head_dim: usize) -> Option<impl FnMut() -> usize> {
    use crate::kernels::{Ahead, TILE_F32};
    let tiles = kernels.tiles?;
    assert!(
        n.is_multiple_of(32) && head_dim.is_multiple_of(32),
        "whole tiles"
    );
    let part = |len: usize| Aligned::<u16>::new(&mut Allocator::default(), "bench", len).ok();
    let (keys, queries) = (part(2 * 32 * head_dim)?, part(2 * 32 * head_dim)?);
    let mut sums = Aligned::<f32>::new(&mut Allocator::default(), "bench", 4 * TILE_F32).ok()?;
    Some(move || {
        let (keys, queries) = (keys.as_slice(), queries.as_slice());
        let a = [&keys[..32 * head_dim], &keys[32 * head_dim..]];
        let b = [&queries[..32 * head_dim], &queries[32 * head_dim..]];
        // SAFETY: as above; the tiles are configured in between.
        unsafe {
            (tiles.configure)();
            for _ in 0..n / 32 {
                (tiles.multiply_parts)(a, b, sums.as_mut_slice(), true, &Ahead::default());
            }
            (tiles.release)();
        }
        3 * 2 * n * 32 * head_dim
    })
}
