//! The products of one input with several weights, in groups that share its packing and one pass of the threads.

use rsllm_tensor::{BackendError, Op, Product};

use crate::backend::{CpuBackend, check};
use crate::matmul::{Matmul, Target};
use crate::memory::CpuBuffer;
use crate::step_state::RowCounts;

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
