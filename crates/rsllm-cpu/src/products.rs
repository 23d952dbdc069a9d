//! The products of one input with several weights, in groups that share its packing and one pass of the threads.

use rsllm_tensor::{BackendError, Op, Product};

use crate::backend::{CpuBackend, check};
use crate::matmul::{Matmul, Target};
use crate::memory::CpuBuffer;
use crate::ops;
use crate::step_state::RowCounts;
use crate::threads::WorkerPanicked;
use crate::tiles::{Source, Tokens};

/// Each `product.dst` `[rows, weight.n_rows]` from `x` `[rows, weight.row_len]`. Errors name what has the wrong shape.
pub(crate) fn run(
    matmul: &mut Matmul<'_>,
    products: &mut [Product<'_, CpuBackend>],
    x: &CpuBuffer,
    counts: RowCounts,
) -> Result<(), BackendError> {
    for group in products.chunks_mut(4) {
        let mut targets = [const { None }; 4];
        for (slot, product) in targets.iter_mut().zip(group.iter_mut()) {
            check(
                Op::Matmul,
                "output width",
                product.weight.n_rows,
                product.dst.width,
            )?;
            let bias = product
                .bias
                .map(|b| b.vector(Op::Matmul, product.weight.n_rows))
                .transpose()?;
            let dst = product.dst.rows_mut(counts.n_rows);
            *slot = Some(Target {
                dst,
                weight: product.weight,
                matrix: 0,
                bias,
            });
        }
        let x = x.rows(counts.n_rows);
        // The group on the stack, without the empty slots.
        match targets {
            [Some(a), Some(b), Some(c), Some(d)] => {
                matmul.run(&mut [a, b, c, d], x, counts.n_rows, counts.n_prefill)?;
            }
            [Some(a), Some(b), Some(c), None] => {
                matmul.run(&mut [a, b, c], x, counts.n_rows, counts.n_prefill)?;
            }
            [Some(a), Some(b), ..] => {
                matmul.run(&mut [a, b], x, counts.n_rows, counts.n_prefill)?;
            }
            [Some(a), ..] => {
                matmul.run(&mut [a], x, counts.n_rows, counts.n_prefill)?;
            }
            [None, ..] => {}
        }
    }
    Ok(())
}

/// `dst += x · weightᵀ (+ bias)`, with the product's destination as scratch.
pub(crate) fn add(
    matmul: &mut Matmul<'_>,
    dst: &mut CpuBuffer,
    product: Product<'_, CpuBackend>,
    x: &CpuBuffer,
    counts: RowCounts,
) -> Result<(), BackendError> {
    let Product {
        dst: branch,
        weight,
        bias,
    } = product;
    let (op, width, row_len) = (Op::Matmul, weight.n_rows, weight.row_len);
    check(op, "output width", width, dst.width)?;
    check(op, "width of the branch", width, branch.width)?;
    check(op, "input width", row_len, x.width)?;
    let source = Source::bound(op, (weight, bias))?;
    let RowCounts { n_rows, n_prefill } = counts;
    let (x, dst) = (x.rows(n_rows), dst.rows_mut(n_rows));
    let mut n_done = 0;
    if n_prefill > 0
        && let Some(tiles) = matmul.adding_tiles(&[weight])
    {
        let tokens = Tokens {
            x,
            n: n_prefill,
            rows: None,
        };
        matmul
            .add_tiles(tiles, source.to(&mut dst[..n_prefill * width]), tokens)
            .map_err(|WorkerPanicked| BackendError::WorkerPanicked { op })?;
        n_done = n_prefill;
    }
    let (n_rows, n_prefill) = (n_rows - n_done, n_prefill - n_done);
    if n_rows == 0 {
        return Ok(());
    }
    let branch = branch.rows_mut(n_rows);
    let x = &x[n_done * row_len..];
    matmul.run(&mut [source.to(&mut *branch)], x, n_rows, n_prefill)?;
    let dst = &mut dst[n_done * width..];
    ops::add(matmul.kernels, matmul.pool, dst, branch, width)
}

/// One product straight to `dst`, which is the host's memory as all here is: logits of many sequences are megabytes.
pub(crate) fn to_host(
    matmul: &mut Matmul<'_>,
    dst: &mut [f32],
    product: &Product<'_, CpuBackend>,
    x: &CpuBuffer,
    counts: RowCounts,
) -> Result<(), BackendError> {
    let weight = product.weight;
    let bias = product
        .bias
        .map(|b| b.vector(Op::Matmul, weight.n_rows))
        .transpose()?;
    let mut target = [Target {
        dst,
        weight,
        matrix: 0,
        bias,
    }];
    let x = x.rows(counts.n_rows);
    matmul.run(&mut target, x, counts.n_rows, counts.n_prefill)
}
