//! Low-rank adapters: a row's product with two thin matrices, unpacked a row at a time. Few rows, little work.

use rsllm_tensor::{BackendError, LowRank, Op};

use crate::weight::CpuWeight;

/// Adds `scale · up · down · x` to `dst`. `scratch` holds the inner values and one unpacked row of either matrix.
pub(crate) fn add_row(
    dst: &mut [f32],
    x: &[f32],
    adapter: &LowRank<CpuWeight>,
    scratch: &mut [f32],
) -> Result<(), BackendError> {
    let rank = adapter.up.row_len;
    let width = rank.max(adapter.down.row_len);
    let Some((inner, weights)) = scratch
        .split_at_mut_checked(rank)
        .filter(|(_, weights)| weights.len() >= width)
    else {
        return Err(BackendError::Shape {
            op: Op::LowRankAdd,
            what: "room for a weight row",
            expected: rank + width,
            found: scratch.len(),
        });
    };
    for (r, value) in inner.iter_mut().enumerate() {
        *value = row_product(&adapter.down, r, x, weights) * adapter.scale;
    }
    for (r, y) in dst.iter_mut().enumerate() {
        *y += row_product(&adapter.up, r, inner, weights);
    }
    Ok(())
}

/// Row `row` of `weight` times `x`. `values` has room for the row.
fn row_product(weight: &CpuWeight, row: usize, x: &[f32], values: &mut [f32]) -> f32 {
    let values = &mut values[..weight.row_len];
    // SAFETY: an instruction set of this machine; a packed row holds `row_len` values.
    unsafe { (weight.unpack)(weight.rows(0, row..row + 1), values) };
    values.iter().zip(x).map(|(w, x)| w * x).sum()
}
