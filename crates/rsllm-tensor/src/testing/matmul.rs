//! Cases of matrix products.

use rsllm_quant::{ActivationFormat, GgmlType};

use super::{
    INT8_BOUND, LIMITS, PREFILL_BOUND, assert_close, assert_same, begin_rows, buffer, read, values,
    weight,
};
use crate::{Backend, LowRank, Op, Product, RowSet};

const TYPES: [GgmlType; 13] = [
    GgmlType::F32,
    GgmlType::F16,
    GgmlType::BF16,
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q8_0,
    GgmlType::Q2_K,
    GgmlType::Q3_K,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
];

pub(crate) fn product(weights: &[f64], x: &[f32], row_len: usize) -> Vec<f64> {
    x.chunks(row_len)
        .flat_map(|x| {
            weights.chunks(row_len).map(move |row| {
                row.iter()
                    .zip(x)
                    .map(|(w, &x)| w * f64::from(x))
                    .sum::<f64>()
            })
        })
        .collect()
}

pub(super) fn matmul<B: Backend>(backend: &mut B) {
    for ty in TYPES {
        if !backend.supports(Op::Matmul, ty) {
            continue;
        }
        let row_len = if ty.block_len() == 256 { 512 } else { 576 };
        let (w, weights) = weight(backend, ty, 1, [row_len, 50, 1]);
        let (other, other_weights) = weight(backend, GgmlType::F32, 2, [row_len, 7, 1]);
        let (bias, biases) = weight(backend, GgmlType::F32, 3, [50, 1, 1]);
        backend.prepare(&LIMITS).expect("small");
        let (n_prefill, n_decode) = (37, 11);
        let data = values(4, (n_prefill + n_decode) * row_len);
        let x = buffer(backend, &data, row_len);
        let mut dst = buffer(backend, &[], 50);
        let mut second = buffer(backend, &[], 7);
        begin_rows(backend, n_prefill, n_decode);
        let mut products = [
            Product {
                dst: &mut dst,
                weight: &w,
                bias: Some(&bias),
            },
            Product {
                dst: &mut second,
                weight: &other,
                bias: None,
            },
        ];
        backend
            .matmul(&mut products, &x, RowSet::All)
            .expect("shapes fit");
        let found = read(backend, &dst, 50 * (n_prefill + n_decode));
        let mut expected = product(&weights, &data, row_len);
        expected
            .iter_mut()
            .enumerate()
            .for_each(|(i, y)| *y += biases[i % 50]);
        let border = n_prefill * 50;
        let decode_bound = match ty.activation_format() {
            ActivationFormat::F32 => PREFILL_BOUND,
            ActivationFormat::Int8 => INT8_BOUND,
        };
        assert_close(
            &format!("prefill {}", ty.name()),
            &found[..border],
            &expected[..border],
            PREFILL_BOUND,
        );
        assert_close(
            &format!("decode {}", ty.name()),
            &found[border..],
            &expected[border..],
            decode_bound,
        );
        let found_second = read(backend, &second, 7 * (n_prefill + n_decode));
        assert_close(
            "second of a group",
            &found_second,
            &product(&other_weights, &data, row_len),
            PREFILL_BOUND,
        );

        // Rows alone give the same bits as in company.
        for (row, is_prefill) in [(0, true), (36, true), (37, false), (47, false)] {
            let x = buffer(backend, &data[row * row_len..(row + 1) * row_len], row_len);
            begin_rows(backend, usize::from(is_prefill), usize::from(!is_prefill));
            let mut products = [Product {
                dst: &mut dst,
                weight: &w,
                bias: Some(&bias),
            }];
            backend
                .matmul(&mut products, &x, RowSet::All)
                .expect("shapes fit");
            let what = format!("{} row {row} alone", ty.name());
            assert_same(
                &what,
                &read(backend, &dst, 50),
                &found[row * 50..(row + 1) * 50],
            );
        }
        // And the same bits on the host.
        begin_rows(backend, n_prefill, n_decode);
        let mut host = vec![0.0; found.len()];
        let product = Product {
            dst: &mut dst,
            weight: &w,
            bias: Some(&bias),
        };
        backend
            .matmul_to_host(&mut host, product, &x, RowSet::All)
            .expect("shapes fit");
        assert_same(&format!("{} on the host", ty.name()), &host, &found);
        let mut wrong = [Product {
            dst: &mut second,
            weight: &w,
            bias: None,
        }];
        assert!(
            backend.matmul(&mut wrong, &x, RowSet::All).is_err(),
            "a destination of another width is refused"
        );
    }
}

pub(super) fn low_rank_add<B: Backend>(backend: &mut B) {
    let (down, downs) = weight(backend, GgmlType::F32, 1, [48, 4, 1]);
    let (up, ups) = weight(backend, GgmlType::F16, 2, [4, 20, 1]);
    let adapter = LowRank {
        adapter: 7,
        down,
        up,
        scale: 0.5,
    };
    backend.prepare(&LIMITS).expect("small");
    let data = values(3, 3 * 48);
    let x = buffer(backend, &data, 48);
    let start = values(4, 3 * 20);
    let mut dst = buffer(backend, &start, 20);
    // Two prefill rows use adapter 7, the decode row none.
    begin_rows(backend, 2, 1);
    backend
        .low_rank_add(&mut dst, &x, &adapter, RowSet::All)
        .expect("shapes fit");
    let inner: Vec<f32> = product(&downs, &data, 48)
        .iter()
        .map(|&v| v as f32)
        .collect();
    let mut expected = product(&ups, &inner, 4);
    for (i, y) in expected.iter_mut().enumerate() {
        *y = f64::from(start[i]) + if i < 40 { 0.5 * *y } else { 0.0 };
    }
    assert_close(
        "low_rank_add",
        &read(backend, &dst, 60),
        &expected,
        PREFILL_BOUND,
    );
}
