//! Queries, keys and values of a layer: prompt rows on a tile unit in one piece, all others product by product.

use rsllm_tensor::{BackendError, HeadProducts, Op};

use crate::backend::check;
use crate::kv::CpuKv;
use crate::matmul::Matmul;
use crate::memory::CpuBuffer;
use crate::ops;
use crate::step_state::StepState;
use crate::threads::{SharedSlice, WorkerPanicked};
use crate::tiles::{Heads, Source, Tokens};
use crate::weight::CpuWeight;

/// See [`rsllm_tensor::Backend::project_heads`]. Errors name what has the wrong shape.
pub(crate) fn run(
    matmul: &mut Matmul<'_>,
    step: &StepState,
    q: &mut CpuBuffer,
    kv: &mut CpuKv,
    x: &CpuBuffer,
    heads: &HeadProducts<'_, CpuWeight>,
    [k, v]: [&mut CpuBuffer; 2],
) -> Result<(), BackendError> {
    let (op, head_dim) = (Op::Matmul, heads.head_dim);
    let layout = kv.layout;
    let kv_width = layout.n_kv_heads * layout.head_dim;
    for ((weight, _), buffer) in [heads.q, heads.k, heads.v].into_iter().zip([&*q, k, v]) {
        check(op, "input width", weight.row_len, x.width)?;
        check(op, "output width", weight.n_rows, buffer.width)?;
        check(op, "partial head width", 0, weight.n_rows % head_dim)?;
    }
    check(Op::KvStore, "width of a head", layout.head_dim, head_dim)?;
    check(Op::KvStore, "width of K", kv_width, k.width)?;
    check(Op::KvStore, "width of V", kv_width, v.width)?;
    let rope = &step.ropes[heads.rope.0];
    let n_rot = rope.n_rot.min(head_dim);
    check(Op::Rope, "rotated dimensions", n_rot, rope.n_rot)?;
    if let Some(block) = heads.mixed_block {
        check_block(block, head_dim)?;
    }
    let [of_q, of_k] = heads.norms;
    let norms = [norm(of_q, head_dim)?, norm(of_k, head_dim)?];
    let source = |product| Source::bound(Op::Matmul, product);
    let sources = [source(heads.q)?, source(heads.k)?, source(heads.v)?];
    let weights = sources.map(|source| source.weight);
    let (n_rows, n_prefill) = (step.counts.n_rows, step.counts.n_prefill);
    let x = x.rows(n_rows);
    let mut n_done = 0;
    if n_prefill > 0
        && let Some(tiles) = matmul.head_tiles(weights, head_dim)
    {
        let of_tiles = Heads {
            elementwise: &matmul.kernels.elementwise,
            step,
            head_dim,
            biases: sources.map(|source| source.bias),
            norms,
            norm_eps: heads.norm_eps,
            rope,
            mixed_block: heads.mixed_block,
            query_width: q.width,
            queries: SharedSlice::new(q.rows_mut(n_prefill)),
            layout: &layout,
            keys: SharedSlice::new(kv.k.as_mut_slice()),
            values: SharedSlice::new(kv.v.as_mut_slice()),
        };
        let tokens = Tokens {
            x,
            n: n_prefill,
            rows: None,
        };
        matmul
            .heads_tiles(tiles, weights, &of_tiles, tokens)
            .map_err(|WorkerPanicked| BackendError::WorkerPanicked { op })?;
        n_done = n_prefill;
    }
    if n_done == n_rows {
        return Ok(());
    }
    let x = &x[n_done * weights[0].row_len..];
    let q_width = q.width;
    let q = &mut q.rows_mut(n_rows)[n_done * q_width..];
    let (k, v) = (k.rows_mut(n_rows - n_done), v.rows_mut(n_rows - n_done));
    let [of_q, of_k, of_v] = sources;
    let mut targets = [of_q.to(&mut *q), of_k.to(&mut *k), of_v.to(&mut *v)];
    matmul.run(&mut targets, x, n_rows - n_done, n_prefill - n_done)?;
    let (kernels, pool) = (matmul.kernels, &mut *matmul.pool);
    for ((x, width), norm) in [(&mut *q, q_width), (&mut *k, kv_width)]
        .into_iter()
        .zip(norms)
    {
        if let Some(norm) = norm {
            ops::norm_in_place(
                kernels,
                pool,
                Op::RmsNormHeads,
                x,
                width,
                norm,
                heads.norm_eps,
            )?;
        }
        ops::rope(kernels, pool, (x, n_done), width, head_dim, rope)?;
    }
    if let Some(block) = heads.mixed_block {
        for (x, width) in [(&mut *q, q_width), (&mut *k, kv_width), (&mut *v, kv_width)] {
            ops::hadamard(kernels, pool, x, width, block)?;
        }
    }
    ops::kv_store(pool, step, kv, [k, v], n_done)
}

/// A block of values that can be mixed, of rows of `width` values.
pub(crate) fn check_block(block: usize, width: usize) -> Result<(), BackendError> {
    let ones = block.count_ones() as usize;
    check(Op::Hadamard, "ones in the block's length", 1, ones)?;
    check(Op::Hadamard, "partial block", 0, width % block)
}

fn norm(weight: Option<&CpuWeight>, head_dim: usize) -> Result<Option<&[f32]>, BackendError> {
    weight
        .map(|weight| weight.vector(Op::RmsNormHeads, head_dim))
        .transpose()
}
