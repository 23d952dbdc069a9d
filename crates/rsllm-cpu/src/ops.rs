//! Elementwise and per-row operations over the rows of a step.

use rsllm_tensor::{Activation, BackendError, Op, RopeStyle};

use crate::kernels::Kernels;
use crate::kv::CpuKv;
use crate::step_state::{RopeState, StepState};
use crate::threads::{SharedSlice, ThreadPool, WorkerPanicked};
use crate::weight::CpuWeight;

/// Values below which waking another thread costs more than it saves.
const PARALLEL_MIN: usize = 32 * 1024;

/// The same where a value takes an exponential.
const PARALLEL_MIN_SLOW: usize = 4 * 1024;

/// Run `job(first_row, rows)` over rows of `width` values, on one thread when there is little to do.
pub(crate) fn for_rows(
    pool: &mut ThreadPool,
    op: Op,
    data: &mut [f32],
    width: usize,
    job: impl Fn(usize, &mut [f32]) + Sync,
) -> Result<(), BackendError> {
    for_rows_in_pieces(pool, op, data, (width, PARALLEL_MIN), job)
}

/// [`for_rows`] with about `n_values` values at a time, of rows of `width`.
fn for_rows_in_pieces(
    pool: &mut ThreadPool,
    op: Op,
    data: &mut [f32],
    (width, n_values): (usize, usize),
    job: impl Fn(usize, &mut [f32]) + Sync,
) -> Result<(), BackendError> {
    let n_rows = data.len() / width.max(1);
    let piece = (n_values / width.max(1)).max(1);
    let shared = SharedSlice::new(data);
    pool.run_pieces(n_rows, piece, |rows, _| {
        // SAFETY: pieces are disjoint ranges of rows.
        let part = unsafe { shared.range(rows.start * width..rows.end * width) };
        job(rows.start, part);
    })
    .map_err(|WorkerPanicked| BackendError::WorkerPanicked { op })
}

/// RMSNorm of every `weight.len()` values of rows of `width`, in place.
pub(crate) fn norm_in_place(
    kernels: &Kernels,
    pool: &mut ThreadPool,
    op: Op,
    data: &mut [f32],
    width: usize,
    weight: &[f32],
    eps: f32,
) -> Result<(), BackendError> {
    let kernel = kernels.elementwise.rms_norm_in_place;
    for_rows(pool, op, data, width, |_, rows| {
        for values in rows.chunks_exact_mut(weight.len()) {
            // SAFETY: the table belongs to an instruction set this machine has.
            unsafe { kernel(values, weight, eps) };
        }
    })
}

/// `dst += x`, rows of `width` values.
pub(crate) fn add(
    kernels: &Kernels,
    pool: &mut ThreadPool,
    dst: &mut [f32],
    x: &[f32],
    width: usize,
) -> Result<(), BackendError> {
    let kernel = kernels.elementwise.add;
    for_rows(pool, Op::Add, dst, width, |first, rows| {
        // SAFETY: the table belongs to an instruction set this machine has.
        unsafe { kernel(rows, &x[first * width..]) };
    })
}

/// `gate = act(gate) * up`, rows of `width` values.
pub(crate) fn gate(
    kernels: &Kernels,
    pool: &mut ThreadPool,
    activation: Activation,
    gate: &mut [f32],
    up: &[f32],
    width: usize,
) -> Result<(), BackendError> {
    let kernel = kernels.elementwise.gate(activation);
    for_rows_in_pieces(
        pool,
        Op::GatedAct,
        gate,
        (width, PARALLEL_MIN_SLOW),
        |first, rows| {
            // SAFETY: the table belongs to an instruction set this machine has.
            unsafe { kernel(rows, &up[first * width..]) };
        },
    )
}

/// Rotate every head of the rows of `x`, which are the step's from `first_row` on.
pub(crate) fn rope(
    kernels: &Kernels,
    pool: &mut ThreadPool,
    (x, first_row): (&mut [f32], usize),
    width: usize,
    head_dim: usize,
    rope: &RopeState,
) -> Result<(), BackendError> {
    let kernel = match rope.style {
        RopeStyle::Interleaved => kernels.elementwise.rope_interleaved,
        RopeStyle::HalfSplit => kernels.elementwise.rope_half_split,
    };
    for_rows(pool, Op::Rope, x, width, |first, rows| {
        let tables = &rope.cos_sin[(first_row + first) * rope.n_rot..];
        for (row, tables) in rows
            .chunks_exact_mut(width)
            .zip(tables.chunks_exact(rope.n_rot))
        {
            for head in row.chunks_exact_mut(head_dim) {
                // SAFETY: the table belongs to an instruction set this machine has.
                unsafe { kernel(head, tables) };
            }
        }
    })
}

/// Mix each `block` values of each row.
pub(crate) fn hadamard(
    kernels: &Kernels,
    pool: &mut ThreadPool,
    x: &mut [f32],
    width: usize,
    block: usize,
) -> Result<(), BackendError> {
    let kernel = kernels.elementwise.hadamard;
    for_rows(pool, Op::Hadamard, x, width, |_, rows| {
        for values in rows.chunks_exact_mut(block) {
            // SAFETY: the table belongs to an instruction set this machine has.
            unsafe { kernel(values) };
        }
    })
}

/// Write K and V rows to the pages of their sequences: `k` and `v` are those of the step's rows from `first_row` on, where a
/// sequence begins.
pub(crate) fn kv_store(
    pool: &mut ThreadPool,
    step: &StepState,
    kv: &mut CpuKv,
    [k, v]: [&[f32]; 2],
    first_row: usize,
) -> Result<(), BackendError> {
    let layout = kv.layout;
    let row_bytes = layout.row_bytes();
    let width = layout.n_kv_heads * layout.head_dim;
    let (k_store, v_store) = (
        SharedSlice::new(kv.k.as_mut_slice()),
        SharedSlice::new(kv.v.as_mut_slice()),
    );
    let rest = step.sequences.partition_point(|s| s.first_row < first_row);
    for sequence in &step.sequences[rest..] {
        let pages = step.pages_of(sequence);
        pool.run_pieces(sequence.n_rows, (PARALLEL_MIN / width).max(1), |rows, _| {
            for i in rows {
                let index = sequence.first_index + i;
                let page = pages[index / layout.page_len].of(layout.group) as usize;
                let row = (sequence.first_row - first_row + i) * width;
                for head in 0..layout.n_kv_heads {
                    let at = CpuKv::row_offset(&layout, page, head, index % layout.page_len);
                    let from = row + head * layout.head_dim;
                    // SAFETY: each (sequence, position, head) has its own slot: pages being written belong to one
                    // sequence.
                    let (k_slot, v_slot) = unsafe {
                        (
                            k_store.range(at..at + row_bytes),
                            v_store.range(at..at + row_bytes),
                        )
                    };
                    CpuKv::encode(layout.kv_type, k_slot, &k[from..from + layout.head_dim]);
                    CpuKv::encode(layout.kv_type, v_slot, &v[from..from + layout.head_dim]);
                }
            }
        })
        .map_err(|WorkerPanicked| BackendError::WorkerPanicked { op: Op::KvStore })?;
    }
    Ok(())
}

/// Look up embedding rows and scale them.
pub(crate) fn embed_rows(
    kernels: &Kernels,
    pool: &mut ThreadPool,
    dst: &mut [f32],
    table: &CpuWeight,
    ids: &[u32],
    factor: f32,
) -> Result<(), BackendError> {
    if let Some(&id) = ids.iter().find(|&&id| id as usize >= table.n_rows) {
        return Err(BackendError::TokenOutOfRange {
            id,
            vocab_size: table.n_rows,
        });
    }
    let width = table.row_len;
    for_rows(pool, Op::EmbedRows, dst, width, |first, rows| {
        for (row, &id) in rows.chunks_exact_mut(width).zip(&ids[first..]) {
            let packed = table.rows(0, id as usize..id as usize + 1);
            // SAFETY: an instruction set of this machine; a packed row holds `width` values.
            unsafe {
                (table.unpack)(packed, row);
                if factor != 1.0 {
                    (kernels.elementwise.scale)(row, factor);
                }
            }
        }
    })
}
