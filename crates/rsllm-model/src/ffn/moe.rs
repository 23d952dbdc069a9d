//! Mixture of experts: a router picks a few FFNs for each token; their results are added, weighted.

use rsllm_tensor::{Activation, Backend, MoeFfn, MoeRouteParams, Product, RowSet};

use crate::error::ModelError;
use crate::weights::MoeWeights;
use crate::workspace::MoeBuffers;

pub(super) fn forward<B: Backend>(
    backend: &mut B,
    weights: &MoeWeights<B>,
    (activation, route): (Activation, &MoeRouteParams),
    buffers: &mut MoeBuffers<B>,
    dst: &mut B::Buffer,
    x: &B::Buffer,
    rows: RowSet,
) -> Result<(), ModelError> {
    let MoeBuffers { router, routing } = buffers;
    let mut product = [Product {
        dst: &mut *router,
        weight: &weights.ffn_gate_inp.weight,
        bias: None,
    }];
    backend.matmul(&mut product, x, rows)?;
    backend.moe_route(routing, router, route, rows)?;
    let ffn = MoeFfn {
        gate: &weights.ffn_gate_exps,
        up: &weights.ffn_up_exps,
        down: &weights.ffn_down_exps,
        activation,
    };
    backend.moe_ffn(dst, x, routing, &ffn, rows)?;
    Ok(())
}
