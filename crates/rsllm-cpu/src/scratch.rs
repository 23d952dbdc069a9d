//! Memory that steps compute in, reserved once for the largest of them.

use rsllm_tensor::{BackendError, KvLayout, StepLimits};

use crate::attention::AttentionScratch;
use crate::kernels::Kernels;
use crate::matmul::MatmulScratch;
use crate::memory::{Aligned, Allocator};
use crate::moe::MoeScratch;

/// What has been bound and allocated, as far as scratch depends on it.
#[derive(Default)]
pub(crate) struct Sizes {
    pub(crate) layouts: Vec<KvLayout>,
    /// Largest input width of a matrix.
    pub(crate) row_len: usize,
    /// Largest input or output width of a matrix of experts.
    pub(crate) expert_dim: usize,
    /// Most experts that a row uses, 0 without experts.
    pub(crate) n_used_experts: usize,
}

pub(crate) struct Scratch {
    pub(crate) matmul: MatmulScratch,
    pub(crate) attention: AttentionScratch,
    pub(crate) moe: MoeScratch,
    /// A row of router probabilities, or the inner values of an adapter.
    pub(crate) row: Aligned<f32>,
}

impl Scratch {
    /// For steps within `limits` on `n_threads` threads. Fails where memory is short.
    pub(crate) fn new(
        allocator: &mut Allocator,
        kernels: &Kernels,
        n_threads: usize,
        sizes: &Sizes,
        limits: &StepLimits,
    ) -> Result<Self, BackendError> {
        let n_moe_rows = match sizes.n_used_experts {
            0 => 0,
            _ => limits.max_rows,
        };
        Ok(Self {
            matmul: MatmulScratch::new(
                allocator,
                kernels,
                n_threads,
                limits.max_rows,
                sizes.row_len,
            )?,
            attention: AttentionScratch::new(
                allocator,
                kernels,
                n_threads,
                &sizes.layouts,
                limits,
            )?,
            moe: MoeScratch::new(
                allocator,
                n_moe_rows,
                sizes.n_used_experts,
                sizes.expert_dim,
            )?,
            row: Aligned::new(allocator, "row scratch", sizes.row_len.max(4096))?,
        })
    }
}
