//! Cases of row-wise operations and of the set-up.

use rsllm_quant::GgmlType;

use super::{
    F32_BOUND, LIMITS, assert_close, assert_same, begin_rows, buffer, packed, read, values, weight,
};
use crate::{
    Activation, Backend, BackendError, KvLayout, KvType, PageGroup, RopeParams, RopeStyle, RowSet,
    Step, StepInput, WeightSource,
};

pub(super) fn bind_rejects_wrong_bytes<B: Backend>(backend: &mut B) {
    let (bytes, _) = packed(GgmlType::Q8_0, &values(1, 64));
    let source = WeightSource {
        name: "short".into(),
        ty: GgmlType::Q8_0,
        row_len: 64,
        n_rows: 2,
        n_matrices: 1,
        parts: vec![bytes.clone()],
    };
    assert!(matches!(
        backend.bind_weight(source),
        Err(BackendError::WeightBytes { .. })
    ));
    let source = WeightSource {
        name: "ragged".into(),
        ty: GgmlType::Q8_0,
        row_len: 63,
        n_rows: 1,
        n_matrices: 1,
        parts: vec![bytes],
    };
    assert!(matches!(
        backend.bind_weight(source),
        Err(BackendError::WeightBytes { .. })
    ));
}

pub(super) fn alloc_counts_bytes<B: Backend>(backend: &mut B) {
    let before = backend.allocated_bytes();
    let zeroed = backend.alloc("zeroed", 3, 7).expect("small");
    assert_eq!(read(backend, &zeroed, 21), [0.0; 21]);
    let layout = KvLayout {
        n_pages: 2,
        page_len: 4,
        n_kv_heads: 1,
        head_dim: 8,
        kv_type: KvType::F16,
        group: PageGroup::Full,
    };
    backend.alloc_kv(&layout).expect("small");
    assert!(backend.allocated_bytes() >= before + 21 * 4 + layout.bytes());
}

pub(super) fn begin_step_checks_limits<B: Backend>(backend: &mut B) {
    backend.prepare(&LIMITS).expect("small");
    let n = LIMITS.max_rows + 1;
    let positions = vec![0; n];
    let step = Step {
        input: StepInput::Ids(&positions),
        positions: &positions,
        n_prefill: n,
        sequences: &[],
        outputs: &[],
    };
    assert!(matches!(
        backend.begin_step(&step),
        Err(BackendError::StepLimit { what: "rows", .. })
    ));
}

pub(super) fn embed_rows<B: Backend>(backend: &mut B) {
    for ty in [GgmlType::F32, GgmlType::F16, GgmlType::Q4_1, GgmlType::Q6_K] {
        let (table, expected) = weight(backend, ty, 3, [256, 5, 1]);
        backend.prepare(&LIMITS).expect("small");
        let ids = [4, 0, 4];
        let step = Step {
            input: StepInput::Ids(&ids),
            positions: &[0, 1, 2],
            n_prefill: 3,
            sequences: &[],
            outputs: &[],
        };
        backend.begin_step(&step).expect("within limits");
        let mut dst = buffer(backend, &[], 256);
        backend
            .embed_rows(&mut dst, &table, 2.0)
            .expect("ids are in the table");
        let expected: Vec<f64> = ids
            .iter()
            .flat_map(|&id| expected[id as usize * 256..][..256].iter().map(|x| 2.0 * x))
            .collect();
        assert_close(
            "embed_rows",
            &read(backend, &dst, 3 * 256),
            &expected,
            F32_BOUND,
        );
        let step = Step {
            input: StepInput::Ids(&[5]),
            positions: &[0],
            n_prefill: 1,
            sequences: &[],
            outputs: &[],
        };
        backend.begin_step(&step).expect("within limits");
        assert!(matches!(
            backend.embed_rows(&mut dst, &table, 1.0),
            Err(BackendError::TokenOutOfRange {
                id: 5,
                vocab_size: 5
            })
        ));
        let rows = values(9, 512);
        let step = Step {
            input: StepInput::Rows(&rows),
            positions: &[0, 1],
            n_prefill: 2,
            sequences: &[],
            outputs: &[],
        };
        backend.begin_step(&step).expect("within limits");
        backend
            .embed_rows(&mut dst, &table, 2.0)
            .expect("ready rows");
        assert_same(
            "ready rows are not scaled",
            &read(backend, &dst, 512),
            &rows,
        );
    }
}

pub(super) fn upload_and_download<B: Backend>(backend: &mut B) {
    let data = values(5, 15);
    let stored = buffer(backend, &data, 5);
    assert_same("upload", &read(backend, &stored, 15), &data);
    let mut ragged = [0.0; 7];
    assert!(backend.download(&mut ragged, &stored).is_err());
}

pub(super) fn gather_outputs<B: Backend>(backend: &mut B) {
    backend.prepare(&LIMITS).expect("small");
    let data = values(6, 4 * 3);
    let src = buffer(backend, &data, 3);
    let mut dst = buffer(backend, &[], 3);
    let step = Step {
        input: StepInput::Ids(&[0; 4]),
        positions: &[0, 1, 2, 3],
        n_prefill: 4,
        sequences: &[],
        outputs: &[1, 3],
    };
    backend.begin_step(&step).expect("within limits");
    backend.gather_outputs(&mut dst, &src).expect("same width");
    assert_same(
        "gather",
        &read(backend, &dst, 6),
        &[&data[3..6], &data[9..12]].concat(),
    );
}

fn norm(x: &[f32], weight: &[f64], eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / x.len() as f64;
    x.iter()
        .zip(weight)
        .map(|(&x, w)| f64::from(x) / (mean + eps).sqrt() * w)
        .collect()
}

pub(super) fn rms_norm<B: Backend>(backend: &mut B) {
    for width in [1, 15, 16, 17, 576] {
        let (w, weights) = weight(backend, GgmlType::F32, 1, [width, 1, 1]);
        backend.prepare(&LIMITS).expect("small");
        let data = values(2, 5 * width);
        let x = buffer(backend, &data, width);
        let mut dst = buffer(backend, &[], width);
        begin_rows(backend, 3, 2);
        backend
            .rms_norm(&mut dst, &x, &w, 1e-5, RowSet::All)
            .expect("same width");
        let expected: Vec<f64> = data
            .chunks(width)
            .flat_map(|row| norm(row, &weights, 1e-5))
            .collect();
        let found = read(backend, &dst, 5 * width);
        assert_close("rms_norm", &found, &expected, F32_BOUND);
        let mut x = x;
        backend
            .rms_norm_in_place(&mut x, &w, 1e-5, RowSet::All)
            .expect("same width");
        assert_same("rms_norm in place", &read(backend, &x, 5 * width), &found);
    }
}

pub(super) fn rms_norm_heads<B: Backend>(backend: &mut B) {
    let (w, weights) = weight(backend, GgmlType::F32, 1, [64, 1, 1]);
    backend.prepare(&LIMITS).expect("small");
    let data = values(2, 2 * 3 * 64);
    let mut x = buffer(backend, &data, 3 * 64);
    begin_rows(backend, 1, 1);
    backend
        .rms_norm_heads(&mut x, &w, 1e-6)
        .expect("whole heads");
    let expected: Vec<f64> = data
        .chunks(64)
        .flat_map(|head| norm(head, &weights, 1e-6))
        .collect();
    assert_close(
        "rms_norm_heads",
        &read(backend, &x, data.len()),
        &expected,
        F32_BOUND,
    );
}

pub(super) fn hadamard<B: Backend>(backend: &mut B) {
    backend.prepare(&LIMITS).expect("small");
    begin_rows(backend, 2, 1);
    for block in [1, 2, 16, 64] {
        let data = values(9, 3 * 128);
        let mut x = buffer(backend, &data, 128);
        backend.hadamard(&mut x, block).expect("whole blocks");
        let mut expected = vec![0.0; data.len()];
        for (dst, src) in expected.chunks_mut(block).zip(data.chunks(block)) {
            for (i, sum) in dst.iter_mut().enumerate() {
                for (j, &value) in src.iter().enumerate() {
                    let is_negative = (i & j).count_ones() % 2 == 1;
                    *sum += f64::from(if is_negative { -value } else { value });
                }
                *sum /= (block as f64).sqrt();
            }
        }
        assert_close(
            "hadamard",
            &read(backend, &x, data.len()),
            &expected,
            F32_BOUND,
        );
        // A row alone has the bits that it has in company.
        begin_rows(backend, 0, 1);
        let mut alone = buffer(backend, &data[..128], 128);
        backend.hadamard(&mut alone, block).expect("whole blocks");
        assert_same(
            "hadamard",
            &read(backend, &alone, 128),
            &read(backend, &x, 128),
        );
        begin_rows(backend, 2, 1);
    }
    let mut x = buffer(backend, &values(1, 3 * 96), 96);
    assert!(
        backend.hadamard(&mut x, 64).is_err(),
        "rows of half a block"
    );
    assert!(backend.hadamard(&mut x, 3).is_err(), "no power of two");
}

pub(super) fn rope<B: Backend>(backend: &mut B) {
    for style in [RopeStyle::Interleaved, RopeStyle::HalfSplit] {
        for (n_rot, factors) in [(16, vec![]), (8, vec![1.0, 2.0, 4.0, 8.0])] {
            let params = RopeParams {
                style,
                n_rot,
                freq_base: 500.0,
                frequency_scale: 0.25,
                factors: factors.clone(),
            };
            let table = backend.bind_rope(params).expect("matching factors");
            backend.prepare(&LIMITS).expect("small");
            let data = values(3, 3 * 2 * 16);
            let mut x = buffer(backend, &data, 32);
            let positions = [0, 7, 100_000];
            let step = Step {
                input: StepInput::Ids(&[0; 3]),
                positions: &positions,
                n_prefill: 3,
                sequences: &[],
                outputs: &[],
            };
            backend.begin_step(&step).expect("within limits");
            backend.rope(&mut x, 16, table).expect("whole heads");
            let mut expected: Vec<f64> = data.iter().map(|&x| f64::from(x)).collect();
            for (row, position) in expected.chunks_mut(32).zip(positions) {
                for head in row.chunks_mut(16) {
                    for i in 0..n_rot / 2 {
                        let frequency = 500f64.powf(-2.0 * i as f64 / n_rot as f64) * 0.25;
                        let angle = f64::from(position) * frequency
                            / f64::from(*factors.get(i).unwrap_or(&1.0));
                        let (a, b) = match style {
                            RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                            RopeStyle::HalfSplit => (i, i + n_rot / 2),
                        };
                        let (x, y) = (head[a], head[b]);
                        head[a] = x * angle.cos() - y * angle.sin();
                        head[b] = x * angle.sin() + y * angle.cos();
                    }
                }
            }
            assert_close(
                &format!("rope {style:?} {n_rot}"),
                &read(backend, &x, data.len()),
                &expected,
                F32_BOUND,
            );
        }
    }
}

pub(super) fn gated_act<B: Backend>(backend: &mut B) {
    backend.prepare(&LIMITS).expect("small");
    let (gates, ups) = (values(1, 5 * 33), values(2, 5 * 33));
    for activation in [Activation::Silu, Activation::GeluTanh] {
        let mut gate = buffer(backend, &gates, 33);
        let up = buffer(backend, &ups, 33);
        begin_rows(backend, 3, 2);
        backend
            .gated_act(&mut gate, &up, activation, RowSet::All)
            .expect("same width");
        let act = |x: f64| match activation {
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::GeluTanh => {
                0.5 * x * (1.0 + (0.797_884_560_802_865_4 * x * (1.0 + 0.044_715 * x * x)).tanh())
            }
        };
        let expected: Vec<f64> = gates
            .iter()
            .zip(&ups)
            .map(|(&g, &u)| act(f64::from(g)) * f64::from(u))
            .collect();
        assert_close(
            &format!("{activation:?}"),
            &read(backend, &gate, 5 * 33),
            &expected,
            F32_BOUND,
        );
    }
}

pub(super) fn add<B: Backend>(backend: &mut B) {
    backend.prepare(&LIMITS).expect("small");
    let (a, b) = (values(1, 4 * 17), values(2, 4 * 17));
    let mut dst = buffer(backend, &a, 17);
    let x = buffer(backend, &b, 17);
    begin_rows(backend, 1, 2);
    backend.add(&mut dst, &x, RowSet::All).expect("same width");
    let mut expected: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
    // The fourth row is not part of the step.
    expected[3 * 17..].copy_from_slice(&a[3 * 17..]);
    assert_same("add", &read(backend, &dst, 4 * 17), &expected);
}

pub(super) fn scale<B: Backend>(backend: &mut B) {
    backend.prepare(&LIMITS).expect("small");
    let data = values(1, 2 * 17);
    let mut x = buffer(backend, &data, 17);
    begin_rows(backend, 2, 0);
    backend.scale(&mut x, -3.0, RowSet::All).expect("any width");
    assert_same(
        "scale",
        &read(backend, &x, 34),
        &data.iter().map(|x| x * -3.0).collect::<Vec<_>>(),
    );
}

pub(super) fn softcap<B: Backend>(backend: &mut B) {
    backend.prepare(&LIMITS).expect("small");
    let data: Vec<f32> = values(1, 2 * 17).iter().map(|x| x * 40.0).collect();
    let mut x = buffer(backend, &data, 17);
    begin_rows(backend, 0, 2);
    backend
        .softcap(&mut x, 30.0, RowSet::All)
        .expect("any width");
    let expected: Vec<f64> = data
        .iter()
        .map(|&x| 30.0 * (f64::from(x) / 30.0).tanh())
        .collect();
    assert_close("softcap", &read(backend, &x, 34), &expected, F32_BOUND);
}
