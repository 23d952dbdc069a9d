//! The gated FFN: prompt rows on a tile unit in one piece, all others product by product.

use rsllm_tensor::{BackendError, GatedFfn, Op};

use crate::backend::check;
use crate::matmul::Matmul;
use crate::memory::CpuBuffer;
use crate::ops;
use crate::step_state::RowCounts;
use crate::threads::WorkerPanicked;
use crate::tiles::{Inner, Source, Tokens};
use crate::weight::CpuWeight;

/// `dst = down · (act(gate · x) * (up · x))`, with `inner` as scratch; with a `branch` as more of it, `dst += …`. Errors name what has
/// the wrong shape.
pub(crate) fn run(
    matmul: &mut Matmul<'_>,
    dst: &mut CpuBuffer,
    branch: Option<&mut CpuBuffer>,
    x: &CpuBuffer,
    ffn: &GatedFfn<'_, CpuWeight>,
    inner: [&mut CpuBuffer; 2],
    counts: RowCounts,
) -> Result<(), BackendError> {
    let op = Op::GatedFfn;
    let (embed_dim, ffn_dim) = (ffn.down.0.n_rows, ffn.down.0.row_len);
    check(op, "output width", embed_dim, dst.width)?;
    if let Some(branch) = &branch {
        check(op, "width of the branch", embed_dim, branch.width)?;
    }
    for (weight, buffer) in [ffn.gate.0, ffn.up.0].into_iter().zip(&inner) {
        check(op, "input width", weight.row_len, x.width)?;
        check(op, "inner width", ffn_dim, weight.n_rows)?;
        check(op, "width of the scratch", ffn_dim, buffer.width)?;
    }
    let [gate, up] = [Source::bound(op, ffn.gate)?, Source::bound(op, ffn.up)?];
    let down = Source::bound(op, ffn.down)?;
    let RowCounts { n_rows, n_prefill } = counts;
    let x = x.rows(n_rows);
    let dst = dst.rows_mut(n_rows);
    let weights = [gate.weight, up.weight, down.weight];
    let mut n_done = 0;
    if n_prefill > 0
        && let Some(tiles) = matmul.gated_tiles(weights, n_prefill)
    {
        let inner = Inner {
            gate,
            up,
            activation: ffn.activation,
        };
        let tokens = Tokens {
            x,
            n: n_prefill,
            rows: None,
        };
        matmul
            .gated_ffn_tiles(
                tiles,
                &inner,
                down.to(&mut dst[..n_prefill * embed_dim]),
                tokens,
                None,
                branch.is_some(),
            )
            .map_err(|WorkerPanicked| BackendError::WorkerPanicked { op })?;
        n_done = n_prefill;
    }
    if n_done == n_rows {
        return Ok(());
    }
    let (n_rows, n_prefill) = (n_rows - n_done, n_prefill - n_done);
    let x = &x[n_done * gate.weight.row_len..];
    let [gates, ups] = inner.map(|buffer| buffer.rows_mut(n_rows));
    matmul.gated(
        [gate, up],
        ffn.activation,
        [&mut *gates, ups],
        x,
        n_rows,
        n_prefill,
    )?;
    let dst = &mut dst[n_done * embed_dim..];
    let Some(branch) = branch else {
        return matmul.run(&mut [down.to(dst)], gates, n_rows, n_prefill);
    };
    let branch = branch.rows_mut(n_rows);
    matmul.run(&mut [down.to(&mut *branch)], gates, n_rows, n_prefill)?;
    ops::add(matmul.kernels, matmul.pool, dst, branch, embed_dim)
}
