//! The gated FFN: `down(act(gate·x) * up·x)`.

use rsllm_tensor::{Activation, Backend, GatedFfn, Product, RowSet};

use crate::decoder::apply_adapters;
use crate::error::ModelError;
use crate::weights::DenseWeights;
use crate::workspace::DenseBuffers;

/// The whole of it as one operation, unless an adapter adds to a product before the next operation reads it.
pub(super) fn fused<B: Backend>(
    weights: &DenseWeights<B>,
    activation: Activation,
) -> Option<GatedFfn<'_, B::Weight>> {
    let linears = [&weights.ffn_gate, &weights.ffn_up, &weights.ffn_down];
    if linears.iter().any(|linear| !linear.adapters.is_empty()) {
        return None;
    }
    let [gate, up, down] = linears.map(|linear| (&linear.weight, linear.bias.as_ref()));
    Some(GatedFfn {
        gate,
        up,
        down,
        activation,
    })
}

pub(super) fn forward<B: Backend>(
    backend: &mut B,
    weights: &DenseWeights<B>,
    activation: Activation,
    buffers: &mut DenseBuffers<B>,
    dst: &mut B::Buffer,
    x: &B::Buffer,
    rows: RowSet,
) -> Result<(), ModelError> {
    let DenseWeights {
        ffn_gate,
        ffn_up,
        ffn_down,
    } = weights;
    let DenseBuffers { gate, up } = buffers;
    if let Some(ffn) = fused(weights, activation) {
        return Ok(backend.gated_ffn(dst, x, &ffn, [gate, up], rows)?);
    }
    backend.matmul(
        &mut [
            Product {
                dst: gate,
                weight: &ffn_gate.weight,
                bias: ffn_gate.bias.as_ref(),
            },
            Product {
                dst: up,
                weight: &ffn_up.weight,
                bias: ffn_up.bias.as_ref(),
            },
        ],
        x,
        rows,
    )?;
    apply_adapters(backend, ffn_gate, gate, x, rows)?;
    apply_adapters(backend, ffn_up, up, x, rows)?;
    backend.gated_act(gate, up, activation, rows)?;
    let mut down = [Product {
        dst: &mut *dst,
        weight: &ffn_down.weight,
        bias: ffn_down.bias.as_ref(),
    }];
    backend.matmul(&mut down, gate, rows)?;
    apply_adapters(backend, ffn_down, dst, gate, rows)?;
    Ok(())
}
