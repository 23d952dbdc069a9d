//! Low-rank adapters: a row's product with two thin matrices, unpacked a row at a time. Few rows, little work.

use rsllm_tensor::{BackendError, LowRank, Op, RowSet};

use crate::memory::CpuBuffer;
use crate::step_state::StepState;
use crate::weight::CpuWeight;

/// Adds `scale · up · down · x` to the rows of `dst` whose sequences name the adapter.
pub(crate) fn add_rows(
    step: &StepState,
    dst: &mut CpuBuffer,
    x: &CpuBuffer,
    adapter: &LowRank<CpuWeight>,
    rows: RowSet,
    scratch: &mut [f32],
) -> Result<(), BackendError> {
    let n_rows = step.counts_of(rows).n_rows;
    let uses = |row: usize| {
        let row = match rows {
            RowSet::All => row,
            RowSet::Outputs => step.outputs[row] as usize,
        };
        let sequence = step.sequences.iter().find(|s| s.rows().contains(&row));
        sequence.is_some_and(|s| s.adapter == Some(adapter.adapter))
    };
    let width = dst.width;
    let x = x.rows(n_rows).chunks_exact(x.width);
    let dst = dst.rows_mut(n_rows).chunks_exact_mut(width);
    for (row, (dst, x)) in dst.zip(x).enumerate() {
        if uses(row) {
            add_row(dst, x, adapter, scratch)?;
        }
    }
    Ok(())
}

/// Adds `scale · up · down · x` to `dst`. `scratch` holds the inner values and one unpacked row of either matrix.
fn add_row(
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
