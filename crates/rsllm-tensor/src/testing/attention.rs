//! Cases of KV stores and attention: several sequences, page borders, windows, chunks.

use super::{F16_KV_BOUND, F32_BOUND, LIMITS, assert_close, assert_same, buffer, read, values};
use crate::{AttentionParams, Backend, KvLayout, KvType, PageId, Step, StepInput, StepSequence};

const HEAD_DIM: usize = 32;
const PAGE_LEN: usize = 16;

/// Rows of a step: (first index, rows) of each sequence; prefill sequences come first.
struct Rows<'a> {
    sequences: &'a [(usize, usize)],
    n_prefill: usize,
}

pub(super) fn attention<B: Backend>(backend: &mut B) {
    for (n_heads, n_kv_heads) in [(6, 2), (4, 4), (5, 1)] {
        for kv_type in KvType::ALL {
            for (window, softcap) in [(None, None), (Some(20), None), (None, Some(2.0))] {
                let params = AttentionParams {
                    n_heads,
                    scale: 0.2,
                    softcap,
                    window,
                };
                run(backend, &params, n_kv_heads, kv_type);
            }
        }
    }
}

fn run<B: Backend>(backend: &mut B, params: &AttentionParams, n_kv_heads: usize, kv_type: KvType) {
    let layout = KvLayout {
        n_pages: 32,
        page_len: PAGE_LEN,
        n_kv_heads,
        head_dim: HEAD_DIM,
        kv_type,
    };
    let mut kv = backend.alloc_kv(&layout).expect("small");
    backend.prepare(&LIMITS).expect("small");
    let bound = match kv_type {
        KvType::F32 => F32_BOUND,
        KvType::F16 => F16_KV_BOUND,
        KvType::BF16 => 64.0 * F16_KV_BOUND,
    };
    let what = format!("{params:?} {kv_type:?} {n_kv_heads}");
    let (q_width, kv_width) = (params.n_heads * HEAD_DIM, n_kv_heads * HEAD_DIM);
    // Two sequences of 45 and 70 tokens with pages in no order.
    let (lengths, pages): ([usize; 2], [Vec<PageId>; 2]) =
        ([45, 70], [vec![9, 2, 30], vec![0, 31, 5, 4, 17]]);
    let data: Vec<[Vec<f32>; 3]> = (0..2)
        .map(|s| {
            [
                values(s + 1, lengths[s as usize] * q_width),
                values(s + 11, lengths[s as usize] * kv_width),
                values(s + 21, lengths[s as usize] * kv_width),
            ]
        })
        .collect();
    let mut step = |backend: &mut B, rows: &Rows<'_>| {
        run_step(
            backend,
            &mut kv,
            params,
            rows,
            &data,
            &pages,
            [q_width, kv_width],
        )
    };
    // Whole prompts at once but for the last token, which is decoded.
    let whole = step(
        backend,
        &Rows {
            sequences: &[(0, 44), (0, 0)],
            n_prefill: 44,
        },
    );
    let second = step(
        backend,
        &Rows {
            sequences: &[(0, 0), (0, 69)],
            n_prefill: 69,
        },
    );
    let last = step(
        backend,
        &Rows {
            sequences: &[(44, 1), (69, 1)],
            n_prefill: 0,
        },
    );
    for (s, found) in [
        (0, [&whole[..], &last[..q_width]].concat()),
        (1, [&second[..], &last[q_width..]].concat()),
    ] {
        let expected = reference(&data[s], params, n_kv_heads);
        assert_close(&what, &found, &expected, bound);
    }
    // Chunks, together and with decode rows in the step, give the same bits.
    let first = step(
        backend,
        &Rows {
            sequences: &[(0, 7), (0, 30)],
            n_prefill: 37,
        },
    );
    assert_same(&what, &first[..7 * q_width], &whole[..7 * q_width]);
    assert_same(&what, &first[7 * q_width..], &second[..30 * q_width]);
    let next = step(
        backend,
        &Rows {
            sequences: &[(7, 37), (30, 39)],
            n_prefill: 76,
        },
    );
    assert_same(&what, &next[..37 * q_width], &whole[7 * q_width..]);
    assert_same(&what, &next[37 * q_width..], &second[30 * q_width..]);
    let alone = step(
        backend,
        &Rows {
            sequences: &[(0, 0), (69, 1)],
            n_prefill: 0,
        },
    );
    assert_same(&what, &alone, &last[q_width..]);
}

fn run_step<B: Backend>(
    backend: &mut B,
    kv: &mut B::Kv,
    params: &AttentionParams,
    rows: &Rows<'_>,
    data: &[[Vec<f32>; 3]],
    pages: &[Vec<PageId>; 2],
    [q_width, kv_width]: [usize; 2],
) -> Vec<f32> {
    let mut sequences = Vec::new();
    let mut n_rows = 0;
    let mut inputs = [Vec::new(), Vec::new(), Vec::new()];
    for (s, &(first_index, n)) in rows.sequences.iter().enumerate() {
        sequences.push(StepSequence {
            first_row: n_rows,
            n_rows: n,
            first_index,
            pages: &pages[s],
            adapter: None,
        });
        n_rows += n;
        for (input, (all, width)) in inputs
            .iter_mut()
            .zip(data[s].iter().zip([q_width, kv_width, kv_width]))
        {
            input.extend_from_slice(&all[first_index * width..(first_index + n) * width]);
        }
    }
    let ids = vec![0; n_rows];
    let step = Step {
        input: StepInput::Ids(&ids),
        positions: &ids,
        n_prefill: rows.n_prefill,
        sequences: &sequences,
        outputs: &[],
    };
    backend.begin_step(&step).expect("within limits");
    let q = buffer(backend, &inputs[0], q_width);
    let k = buffer(backend, &inputs[1], kv_width);
    let v = buffer(backend, &inputs[2], kv_width);
    let mut dst = buffer(backend, &[], q_width);
    backend.kv_store(kv, &k, &v).expect("shapes fit");
    backend
        .attention(&mut dst, &q, kv, params)
        .expect("shapes fit");
    read(backend, &dst, n_rows * q_width)
}

fn reference([q, k, v]: &[Vec<f32>; 3], params: &AttentionParams, n_kv_heads: usize) -> Vec<f64> {
    let (q_width, kv_width) = (params.n_heads * HEAD_DIM, n_kv_heads * HEAD_DIM);
    let mut out = Vec::with_capacity(q.len());
    for (index, q_row) in q.chunks(q_width).enumerate() {
        let first = params
            .window
            .map_or(0, |window| (index + 1).saturating_sub(window));
        for (head, q_head) in q_row.chunks(HEAD_DIM).enumerate() {
            let offset = head / (params.n_heads / n_kv_heads) * HEAD_DIM;
            let of = |rows: &[f32], t: usize, d: usize| f64::from(rows[t * kv_width + offset + d]);
            let scores: Vec<f64> = (first..=index)
                .map(|t| {
                    let score = (0..HEAD_DIM)
                        .map(|d| f64::from(q_head[d]) * of(k, t, d))
                        .sum::<f64>()
                        * f64::from(params.scale);
                    params.softcap.map_or(score, |cap| {
                        f64::from(cap) * (score / f64::from(cap)).tanh()
                    })
                })
                .collect();
            let max = scores.iter().copied().fold(f64::MIN, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
            out.extend((0..HEAD_DIM).map(|d| {
                scores
                    .iter()
                    .zip(first..)
                    .map(|(s, t)| (s - max).exp() / sum * of(v, t, d))
                    .sum::<f64>()
            }));
        }
    }
    out
}
