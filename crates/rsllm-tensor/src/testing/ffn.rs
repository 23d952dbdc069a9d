//! Cases of the gated FFN.

use rsllm_quant::GgmlType;

use super::matmul::product;
use super::{
    INT8_BOUND, LIMITS, PREFILL_BOUND, assert_close, assert_same, begin_rows, buffer, read, values,
    weight,
};
use crate::{Activation, Backend, GatedFfn, RowSet};

const EMBED: usize = 256;

/// Widths within one piece of the prefill product, over several, and with a piece that is not full. Weights of two types, so
/// that the products of one FFN may take different paths.
pub(super) fn gated_ffn<B: Backend>(backend: &mut B) {
    let types = [GgmlType::Q8_0, GgmlType::F32];
    let cases: Vec<_> = [64, 1312]
        .into_iter()
        .flat_map(|ffn_dim| types.map(|ty| (ffn_dim, ty)))
        .map(|(ffn_dim, ty)| {
            let bias = weight(backend, GgmlType::F32, 4, [ffn_dim, 1, 1]);
            let gate = weight(backend, GgmlType::Q8_0, 1, [EMBED, ffn_dim, 1]);
            let up = weight(backend, GgmlType::Q8_0, 2, [EMBED, ffn_dim, 1]);
            let down = weight(backend, ty, 3, [ffn_dim, EMBED, 1]);
            (ffn_dim, ty, gate, up, down, bias)
        })
        .collect();
    backend.prepare(&LIMITS).expect("small");
    let data: Vec<f32> = values(5, 60 * EMBED).iter().map(|x| x * 0.1).collect();
    for (ffn_dim, ty, (gate, gates), (up, ups), (down, downs), (bias, biases)) in &cases {
        let ffn = GatedFfn {
            gate: (gate, Some(bias)),
            up: (up, None),
            down: (down, None),
            activation: Activation::Silu,
        };
        let mut expected = Vec::new();
        for x in data.chunks(EMBED) {
            let (g, u) = (product(gates, x, EMBED), product(ups, x, EMBED));
            let inner: Vec<f32> = g
                .iter()
                .zip(biases)
                .zip(&u)
                .map(|((g, b), u)| ((g + b) / (1.0 + (-(g + b)).exp()) * u) as f32)
                .collect();
            expected.extend(product(downs, &inner, *ffn_dim));
        }
        let mut run = |first: usize, n_prefill: usize, n_decode: usize| {
            let n = n_prefill + n_decode;
            let x = buffer(backend, &data[first * EMBED..(first + n) * EMBED], EMBED);
            let mut dst = buffer(backend, &[], EMBED);
            let mut inner = [
                buffer(backend, &[], *ffn_dim),
                buffer(backend, &[], *ffn_dim),
            ];
            let [gate, up] = &mut inner;
            begin_rows(backend, n_prefill, n_decode);
            backend
                .gated_ffn(&mut dst, &x, &ffn, [gate, up], RowSet::All)
                .expect("shapes fit");
            read(backend, &dst, n * EMBED)
        };
        let (n_prefill, n_decode) = (53, 7);
        let found = run(0, n_prefill, n_decode);
        let border = n_prefill * EMBED;
        let what = format!("gated ffn {ffn_dim} {}", ty.name());
        assert_close(&what, &found[..border], &expected[..border], PREFILL_BOUND);
        // Two int8 products behind each other.
        assert_close(
            &what,
            &found[border..],
            &expected[border..],
            3.0 * INT8_BOUND,
        );
        for (first, n_prefill, n_decode) in [(0, 1, 0), (16, 32, 0), (52, 1, 3), (55, 0, 1)] {
            let n = n_prefill + n_decode;
            assert_same(
                &format!("{what}, rows from {first} in other company"),
                &run(first, n_prefill, n_decode),
                &found[first * EMBED..(first + n) * EMBED],
            );
        }
    }
}
