//! Operations that a device may do in one piece: the same bits as one after the other.

use rsllm_quant::GgmlType;

use super::{LIMITS, assert_same, begin_rows, buffer, read, values, weight};
use crate::{
    Activation, Backend, GatedFfn, HeadProducts, KvLayout, KvType, NO_PAGE, PageGroup, PageSlot,
    Product, RopeParams, RopeStyle, RopeTable, RowSet, Step, StepInput, StepSequence,
};

const EMBED: usize = 256;
const PAGE_LEN: usize = 16;
/// Prompt rows of two sequences, then decode rows of as many. More prompt rows than one pass of few rows takes, and fewer.
const STEPS: [[usize; 4]; 4] = [[53, 11, 1, 1], [5, 2, 0, 1], [17, 0, 0, 0], [0, 0, 1, 1]];

pub(super) fn heads<B: Backend>(backend: &mut B) {
    let rope = |backend: &mut B, style, n_rot| {
        let params = RopeParams {
            style,
            n_rot,
            freq_base: 1e4,
            frequency_scale: 1.0,
            factors: Vec::new(),
        };
        backend.bind_rope(params).expect("no factors")
    };
    // Heads that fill whole panels of a tile unit and heads that do not.
    for (head_dim, ty, kv_type, style) in [
        (64, GgmlType::Q8_0, KvType::F16, RopeStyle::HalfSplit),
        (128, GgmlType::Q4_K, KvType::Q8_0, RopeStyle::Interleaved),
        (256, GgmlType::Q8_0, KvType::F32, RopeStyle::HalfSplit),
        (128, GgmlType::F16, KvType::F16, RopeStyle::HalfSplit),
        (48, GgmlType::Q8_0, KvType::BF16, RopeStyle::Interleaved),
        (64, GgmlType::F32, KvType::Q4_0, RopeStyle::HalfSplit),
    ] {
        for with_norms in [false, true] {
            let table = rope(backend, style, head_dim / 2);
            let case = HeadCase {
                head_dim,
                ty,
                kv_type,
                with_norms,
                table,
            };
            case.run(backend);
        }
    }
}

struct HeadCase {
    head_dim: usize,
    ty: GgmlType,
    kv_type: KvType,
    with_norms: bool,
    table: RopeTable,
}

impl HeadCase {
    fn run<B: Backend>(&self, backend: &mut B) {
        const KV_HEADS: usize = 2;
        let head_dim = self.head_dim;
        let (q_width, kv_width) = (2 * KV_HEADS * head_dim, KV_HEADS * head_dim);
        let layout = KvLayout {
            n_pages: 16,
            page_len: PAGE_LEN,
            n_kv_heads: KV_HEADS,
            head_dim,
            kv_type: self.kv_type,
            group: PageGroup::Full,
        };
        let mut stores = [0, 1].map(|_| backend.alloc_kv(&layout).expect("small"));
        let (q, _) = weight(backend, self.ty, 1, [EMBED, q_width, 1]);
        let (k, _) = weight(backend, self.ty, 2, [EMBED, kv_width, 1]);
        let (v, _) = weight(backend, self.ty, 3, [EMBED, kv_width, 1]);
        let (bias, _) = weight(backend, GgmlType::F32, 4, [kv_width, 1, 1]);
        let (norm, _) = weight(backend, GgmlType::F32, 5, [head_dim, 1, 1]);
        backend.prepare(&LIMITS).expect("small");
        let heads = HeadProducts {
            q: (&q, None),
            k: (&k, Some(&bias)),
            v: (&v, Some(&bias)),
            norms: [self.with_norms.then_some(&norm); 2],
            norm_eps: 1e-5,
            head_dim,
            rope: self.table,
            mixed_block: self.kv_type.mixed_block(head_dim),
        };
        for rows in STEPS {
            let n: usize = rows.iter().sum();
            begin(backend, rows);
            let x = buffer(backend, &values(6, n * EMBED), EMBED);
            let mut found = [(); 2].map(|()| Vec::new());
            for ((fused, found), kv) in [false, true].into_iter().zip(&mut found).zip(&mut stores) {
                let mut q = buffer(backend, &[], q_width);
                let [mut k, mut v] = [0, 1].map(|_| buffer(backend, &[], kv_width));
                if fused {
                    let scratch = [&mut k, &mut v];
                    backend.project_heads(&mut q, kv, &x, &heads, scratch)
                } else {
                    let mut products = [
                        Product::new(&mut q, heads.q),
                        Product::new(&mut k, heads.k),
                        Product::new(&mut v, heads.v),
                    ];
                    let done = backend.matmul(&mut products, &x, RowSet::All);
                    done.and_then(|()| backend.finish_heads([&mut q, &mut k, &mut v], kv, &heads))
                }
                .expect("shapes fit");
                *found = read(backend, &q, n * q_width);
            }
            let what = format!(
                "heads of {head_dim}, {}, {:?}, {rows:?}",
                self.ty.name(),
                self.kv_type
            );
            assert_same(&what, &found[1], &found[0]);
            for page in 0..layout.n_pages as u32 {
                let mut bytes = [(); 2].map(|()| Vec::new());
                for (bytes, kv) in bytes.iter_mut().zip(&stores) {
                    backend.export_page(bytes, kv, page).expect("a page");
                }
                assert!(bytes[0] == bytes[1], "{what}: page {page} differs");
            }
        }
    }
}

/// A step of these rows; every sequence has pages of its own, and begins within one.
fn begin<B: Backend>(backend: &mut B, rows: [usize; 4]) {
    let n: usize = rows.iter().sum();
    let ids = vec![0; n];
    let (mut positions, mut firsts) = (Vec::new(), Vec::new());
    for n_rows in rows {
        firsts.push(positions.len());
        positions.extend(3..3 + n_rows as u32);
    }
    let pages: Vec<PageSlot> = (0..16)
        .map(|page| PageSlot {
            full: 15 - page,
            window: NO_PAGE,
        })
        .collect();
    let parts = [&pages[..8], &pages[8..12], &pages[12..14], &pages[14..]];
    let sequences: Vec<StepSequence<'_>> = (0..4)
        .filter(|&i| rows[i] > 0)
        .map(|i| StepSequence {
            first_row: firsts[i],
            n_rows: rows[i],
            first_index: 3,
            pages: parts[i],
            adapter: None,
        })
        .collect();
    let step = Step {
        input: StepInput::Ids(&ids),
        positions: &positions,
        n_prefill: rows[0] + rows[1],
        sequences: &sequences,
        outputs: &[],
    };
    backend.begin_step(&step).expect("within limits");
}

/// What is added to a residual stream.
pub(super) fn residuals<B: Backend>(backend: &mut B) {
    const FFN: usize = 320;
    for ty in [GgmlType::Q8_0, GgmlType::F16, GgmlType::F32] {
        let (gate, _) = weight(backend, GgmlType::Q8_0, 1, [EMBED, FFN, 1]);
        let (up, _) = weight(backend, GgmlType::Q8_0, 2, [EMBED, FFN, 1]);
        let (down, _) = weight(backend, ty, 3, [FFN, EMBED, 1]);
        let (square, _) = weight(backend, ty, 4, [EMBED, EMBED, 1]);
        let (bias, _) = weight(backend, GgmlType::F32, 5, [EMBED, 1, 1]);
        backend.prepare(&LIMITS).expect("small");
        let ffn = GatedFfn {
            gate: (&gate, None),
            up: (&up, None),
            down: (&down, Some(&bias)),
            activation: Activation::Silu,
        };
        for (n_prefill, n_decode) in [(53, 7), (16, 0), (1, 1), (0, 2)] {
            let n = n_prefill + n_decode;
            begin_rows(backend, n_prefill, n_decode);
            for rows in [RowSet::All, RowSet::Outputs] {
                let x = buffer(backend, &values(6, n * EMBED), EMBED);
                let mut found = Vec::new();
                for fused in [false, true] {
                    let mut dst = buffer(backend, &values(7, n * EMBED), EMBED);
                    let mut branch = buffer(backend, &[], EMBED);
                    let [mut a, mut b] = [0, 1].map(|_| buffer(backend, &[], FFN));
                    let inner = [&mut a, &mut b];
                    let product = Product::new(&mut branch, (&square, Some(&bias)));
                    if fused {
                        backend
                            .matmul_add(&mut dst, product, &x, rows)
                            .and_then(|()| {
                                backend.gated_ffn_add(&mut dst, &mut branch, &x, &ffn, inner, rows)
                            })
                            .expect("shapes fit");
                    } else {
                        let products = &mut [product];
                        backend.matmul(products, &x, rows).expect("shapes fit");
                        backend.add(&mut dst, &branch, rows).expect("same shape");
                        backend
                            .gated_ffn(&mut branch, &x, &ffn, inner, rows)
                            .expect("shapes fit");
                        backend.add(&mut dst, &branch, rows).expect("same shape");
                    }
                    found.push(read(backend, &dst, n * EMBED));
                }
                let what = format!("residual, {}, {n_prefill} and {n_decode} rows", ty.name());
                assert_same(&what, &found[1], &found[0]);
            }
        }
    }
}
