//! Cases of KV stores and attention: several sequences, page borders, windows, chunks.

use super::{F16_KV_BOUND, F32_BOUND, LIMITS, assert_close, assert_same, buffer, read, values};
use crate::{
    AttentionParams, Backend, BackendError, KvLayout, KvType, NO_PAGE, PageGroup, PageId, PageSlot,
    Step, StepInput, StepSequence,
};

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
        group: if params.window.is_some() {
            PageGroup::Window
        } else {
            PageGroup::Full
        },
    };
    let mut kv = backend.alloc_kv(&layout).expect("small");
    backend.prepare(&LIMITS).expect("small");
    let bound = match kv_type {
        KvType::F32 => F32_BOUND,
        KvType::F16 => F16_KV_BOUND,
        KvType::BF16 => 64.0 * F16_KV_BOUND,
        KvType::Q8_0 => 1e-4,
        KvType::Q4_0 => 3e-2,
    };
    let what = format!("{params:?} {kv_type:?} {n_kv_heads}");
    let (q_width, kv_width) = (params.n_heads * HEAD_DIM, n_kv_heads * HEAD_DIM);
    // Two sequences of 45 and 70 tokens with pages in no order.
    let lengths = [45, 70];
    let slot = |page| match layout.group {
        PageGroup::Full => PageSlot {
            full: page,
            window: NO_PAGE,
        },
        PageGroup::Window => PageSlot {
            full: NO_PAGE,
            window: page,
        },
    };
    let slots = |pages: &[PageId]| pages.iter().map(|&page| slot(page)).collect::<Vec<_>>();
    let pages = [slots(&[9, 2, 30]), slots(&[0, 31, 5, 4, 17])];
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
    if let Some(window) = params.window {
        // Pages that the window has passed may be gone.
        let mut kept = pages.clone();
        let first_visible = lengths[1] - window;
        kept[1][..first_visible / PAGE_LEN].fill(PageSlot::NONE);
        let rows = Rows {
            sequences: &[(0, 0), (69, 1)],
            n_prefill: 0,
        };
        let widths = [q_width, kv_width];
        let found = run_step(backend, &mut kv, params, &rows, &data, &kept, widths);
        assert_same(&what, &found, &last[q_width..]);
    }
}

pub(super) fn pages_move<B: Backend>(backend: &mut B) {
    for kv_type in KvType::ALL {
        let layout = KvLayout {
            n_pages: 4,
            page_len: PAGE_LEN,
            n_kv_heads: 2,
            head_dim: HEAD_DIM,
            kv_type,
            group: PageGroup::Full,
        };
        let mut kv = backend.alloc_kv(&layout).expect("small");
        let mut other = backend.alloc_kv(&layout).expect("small");
        backend.prepare(&LIMITS).expect("small");
        let width = 2 * HEAD_DIM;
        let pages = [PageSlot {
            full: 1,
            window: NO_PAGE,
        }];
        let ids = vec![0; PAGE_LEN];
        let sequence = StepSequence {
            first_row: 0,
            n_rows: PAGE_LEN,
            first_index: 0,
            pages: &pages,
            adapter: None,
        };
        let step = Step {
            input: StepInput::Ids(&ids),
            positions: &ids,
            n_prefill: PAGE_LEN,
            sequences: &[sequence],
            outputs: &[],
        };
        backend.begin_step(&step).expect("within limits");
        let k = buffer(backend, &values(1, PAGE_LEN * width), width);
        let v = buffer(backend, &values(2, PAGE_LEN * width), width);
        backend.kv_store(&mut kv, &k, &v).expect("shapes fit");
        let mut original = Vec::new();
        backend.export_page(&mut original, &kv, 1).expect("a page");
        assert_eq!(original.len(), 2 * layout.page_bytes());
        assert!(original.iter().any(|&byte| byte != 0));
        backend.copy_page(&mut kv, 1, 3).expect("two pages");
        backend
            .import_page(&mut other, 2, &original)
            .expect("the same layout");
        for (store, page) in [(&kv, 3), (&other, 2)] {
            let mut moved = Vec::new();
            backend
                .export_page(&mut moved, store, page)
                .expect("a page");
            assert_eq!(moved, original, "{kv_type:?}");
        }
        assert!(backend.import_page(&mut other, 2, &original[1..]).is_err());
        assert!(backend.copy_page(&mut kv, 0, 4).is_err(), "no such page");
    }
    let odd = KvLayout {
        n_pages: 1,
        page_len: PAGE_LEN,
        n_kv_heads: 1,
        head_dim: 40,
        kv_type: KvType::Q8_0,
        group: PageGroup::Full,
    };
    assert!(matches!(
        backend.alloc_kv(&odd),
        Err(BackendError::UnsupportedKvType { head_dim: 40, .. })
    ));
}

fn run_step<B: Backend>(
    backend: &mut B,
    kv: &mut B::Kv,
    params: &AttentionParams,
    rows: &Rows<'_>,
    data: &[[Vec<f32>; 3]],
    pages: &[Vec<PageSlot>; 2],
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
