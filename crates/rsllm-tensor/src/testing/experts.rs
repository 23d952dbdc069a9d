//! Cases of expert routing and expert FFNs.

use rsllm_quant::GgmlType;

use super::matmul::product;
use super::{
    INT8_BOUND, LIMITS, PREFILL_BOUND, assert_close, assert_same, begin_rows, buffer, read, values,
    weight,
};
use crate::{Activation, Backend, ExpertGating, MoeFfn, MoeRouteParams, RowSet};

const EMBED: usize = 256;
const FFN: usize = 256;
const N_EXPERTS: usize = 5;
const N_USED: usize = 2;

pub(super) fn route_and_ffn<B: Backend>(backend: &mut B) {
    let (gate, gates) = weight(backend, GgmlType::Q8_0, 1, [EMBED, FFN, N_EXPERTS]);
    let (up, ups) = weight(backend, GgmlType::Q8_0, 2, [EMBED, FFN, N_EXPERTS]);
    let (down, downs) = weight(backend, GgmlType::Q8_0, 3, [FFN, EMBED, N_EXPERTS]);
    let mut routing = backend
        .alloc_routing(LIMITS.max_rows, N_USED)
        .expect("small");
    backend.prepare(&LIMITS).expect("small");
    let (n_prefill, n_decode) = (9, 4);
    let n = n_prefill + n_decode;
    let logits = values(4, n * N_EXPERTS);
    let data: Vec<f32> = values(5, n * EMBED).iter().map(|x| x * 0.1).collect();
    let router = buffer(backend, &logits, N_EXPERTS);
    let x = buffer(backend, &data, EMBED);
    let mut dst = buffer(backend, &[], EMBED);
    let ffn = MoeFfn {
        gate: &gate,
        up: &up,
        down: &down,
        activation: Activation::Silu,
    };
    for (gating, normalise) in [
        (ExpertGating::Softmax, true),
        (ExpertGating::Softmax, false),
        (ExpertGating::Sigmoid, true),
        (ExpertGating::SoftmaxOfSelected, false),
    ] {
        let params = MoeRouteParams {
            n_experts: N_EXPERTS,
            n_used: N_USED,
            gating,
            normalise,
            scale: 1.5,
        };
        begin_rows(backend, n_prefill, n_decode);
        backend
            .moe_route(&mut routing, &router, &params, RowSet::All)
            .expect("shapes fit");
        backend
            .moe_ffn(&mut dst, &x, &routing, &ffn, RowSet::All)
            .expect("shapes fit");
        let found = read(backend, &dst, n * EMBED);
        let mut expected = Vec::new();
        for (logits, x) in logits.chunks(N_EXPERTS).zip(data.chunks(EMBED)) {
            let mut row = vec![0.0; EMBED];
            for (expert, weight) in choose(logits, &params) {
                let part = |all: &[f64], len: usize| all[expert * len..(expert + 1) * len].to_vec();
                let (g, u) = (
                    product(&part(&gates, EMBED * FFN), x, EMBED),
                    product(&part(&ups, EMBED * FFN), x, EMBED),
                );
                let inner: Vec<f32> = g
                    .iter()
                    .zip(&u)
                    .map(|(g, u)| (g / (1.0 + (-g).exp()) * u) as f32)
                    .collect();
                let result = product(&part(&downs, EMBED * FFN), &inner, FFN);
                row.iter_mut()
                    .zip(result)
                    .for_each(|(y, r)| *y += weight * r);
            }
            expected.extend(row);
        }
        let border = n_prefill * EMBED;
        assert_close(
            &format!("moe prefill {gating:?}"),
            &found[..border],
            &expected[..border],
            PREFILL_BOUND,
        );
        // Two int8 products behind each other.
        assert_close(
            &format!("moe decode {gating:?}"),
            &found[border..],
            &expected[border..],
            3.0 * INT8_BOUND,
        );
        for (row, is_prefill) in [(3, true), (10, false)] {
            let router = buffer(
                backend,
                &logits[row * N_EXPERTS..(row + 1) * N_EXPERTS],
                N_EXPERTS,
            );
            let x = buffer(backend, &data[row * EMBED..(row + 1) * EMBED], EMBED);
            begin_rows(backend, usize::from(is_prefill), usize::from(!is_prefill));
            backend
                .moe_route(&mut routing, &router, &params, RowSet::All)
                .expect("shapes fit");
            backend
                .moe_ffn(&mut dst, &x, &routing, &ffn, RowSet::All)
                .expect("shapes fit");
            assert_same(
                "moe row alone",
                &read(backend, &dst, EMBED),
                &found[row * EMBED..(row + 1) * EMBED],
            );
        }
    }
}

/// Experts and weights of one row.
fn choose(logits: &[f32], params: &MoeRouteParams) -> Vec<(usize, f64)> {
    let logits: Vec<f64> = logits.iter().map(|&l| f64::from(l)).collect();
    let total: f64 = logits.iter().map(|l| l.exp()).sum();
    let mut chosen: Vec<(usize, f64)> = logits
        .iter()
        .map(|l| match params.gating {
            ExpertGating::Softmax => l.exp() / total,
            ExpertGating::Sigmoid => 1.0 / (1.0 + (-l).exp()),
            ExpertGating::SoftmaxOfSelected => l.exp(),
        })
        .enumerate()
        .collect();
    chosen.sort_by(|a, b| b.1.total_cmp(&a.1));
    chosen.truncate(params.n_used);
    let sum: f64 = chosen.iter().map(|c| c.1).sum();
    let divisor = if params.normalise || params.gating == ExpertGating::SoftmaxOfSelected {
        sum
    } else {
        1.0
    };
    chosen
        .into_iter()
        .map(|(e, w)| (e, w / divisor * f64::from(params.scale)))
        .collect()
}
