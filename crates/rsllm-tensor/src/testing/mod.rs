//! The suite every backend must pass: each operation against plain double-precision code, and the contract of the
//! numbers (a row's bits do not depend on its company).
//!
//! Bounds are normalised mean square errors, `mse(found, expected) / mse(expected, 0)`.

mod attention;
mod experts;
mod ffn;
mod fused;
mod matmul;
mod rows;

use rsllm_quant::GgmlType;

use crate::{
    Backend, NO_PAGE, Op, PageSlot, SharedBytes, Step, StepInput, StepLimits, StepSequence,
    WeightSource,
};

/// Of operations in f32.
pub(crate) const F32_BOUND: f64 = 1e-11;
/// Of the prefill product: weights exact, activations f32 or bf16.
pub(crate) const PREFILL_BOUND: f64 = 2e-5;
/// Of the decode product on int8 activations.
pub(crate) const INT8_BOUND: f64 = 3e-4;
/// Of attention with f16 K and V.
pub(crate) const F16_KV_BOUND: f64 = 1e-6;

/// Run every case on backends made by `make`. Panics with the operation's name on a failure.
pub fn run_suite<B: Backend>(make: impl Fn() -> B) {
    for op in ALL_OPS {
        case::<B>(*op)(&mut make());
    }
    fused::heads(&mut make());
    fused::residuals(&mut make());
}

/// Every operation; [`case`] does not compile without a case for each.
const ALL_OPS: &[Op] = &[
    Op::Bind,
    Op::Alloc,
    Op::BeginStep,
    Op::EmbedRows,
    Op::Upload,
    Op::Download,
    Op::GatherOutputs,
    Op::Matmul,
    Op::LowRankAdd,
    Op::RmsNorm,
    Op::RmsNormHeads,
    Op::Rope,
    Op::Hadamard,
    Op::KvStore,
    Op::CopyPage,
    Op::ExportPage,
    Op::ImportPage,
    Op::Attention,
    Op::GatedAct,
    Op::GatedFfn,
    Op::Add,
    Op::Scale,
    Op::Softcap,
    Op::MoeRoute,
    Op::MoeFfn,
];

fn case<B: Backend>(op: Op) -> fn(&mut B) {
    match op {
        Op::Bind => rows::bind_rejects_wrong_bytes,
        Op::Alloc => rows::alloc_counts_bytes,
        Op::BeginStep => rows::begin_step_checks_limits,
        Op::EmbedRows => rows::embed_rows,
        Op::Upload | Op::Download => rows::upload_and_download,
        Op::GatherOutputs => rows::gather_outputs,
        Op::Matmul => matmul::matmul,
        Op::LowRankAdd => matmul::low_rank_add,
        Op::RmsNorm => rows::rms_norm,
        Op::RmsNormHeads => rows::rms_norm_heads,
        Op::Rope => rows::rope,
        Op::Hadamard => rows::hadamard,
        Op::KvStore | Op::Attention => attention::attention,
        Op::CopyPage | Op::ExportPage | Op::ImportPage => attention::pages_move,
        Op::GatedAct => rows::gated_act,
        Op::GatedFfn => ffn::gated_ffn,
        Op::Add => rows::add,
        Op::Scale => rows::scale,
        Op::Softcap => rows::softcap,
        Op::MoeRoute | Op::MoeFfn => experts::route_and_ffn,
    }
}

/// Room for every case.
pub(crate) const LIMITS: StepLimits = StepLimits {
    max_rows: 96,
    max_outputs: 96,
    max_sequences: 4,
    max_pages: 64,
    max_sequence_pages: 64,
    max_heads: 8,
    max_query_width: 512,
};

/// Deterministic values of about unit size.
pub(crate) fn values(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32) / (1u64 << 24) as f32
    };
    // A sum of uniforms is near enough to a normal distribution.
    (0..n)
        .map(|_| (next() + next() + next() + next() - 2.0) * 1.7)
        .collect()
}

/// `values` packed as `ty`, with what they are after packing.
pub(crate) fn packed(ty: GgmlType, values: &[f32]) -> (SharedBytes, Vec<f64>) {
    let n_bytes = ty.row_bytes(values.len()).expect("cases use whole blocks");
    let mut bytes = vec![0; n_bytes];
    rsllm_quant::quantize(ty, values, &mut bytes).expect("finite values");
    let mut back = vec![0.0; values.len()];
    rsllm_quant::dequantize(ty, &bytes, &mut back).expect("what was just packed");
    (bytes.into(), back.into_iter().map(f64::from).collect())
}

/// A weight `[n_matrices, n_rows, row_len]` of `ty`, with its values.
pub(crate) fn weight<B: Backend>(
    backend: &mut B,
    ty: GgmlType,
    seed: u64,
    [row_len, n_rows, n_matrices]: [usize; 3],
) -> (B::Weight, Vec<f64>) {
    let (bytes, expected) = packed(ty, &values(seed, row_len * n_rows * n_matrices));
    let name = format!("{} {row_len}x{n_rows}x{n_matrices}", ty.name());
    let source = WeightSource {
        name,
        ty,
        row_len,
        n_rows,
        n_matrices,
        parts: vec![bytes],
    };
    (
        backend
            .bind_weight(source)
            .expect("a well-formed weight binds"),
        expected,
    )
}

/// A buffer holding `data`.
pub(crate) fn buffer<B: Backend>(backend: &mut B, data: &[f32], width: usize) -> B::Buffer {
    let mut buffer = backend
        .alloc("test", LIMITS.max_rows, width)
        .expect("small buffers");
    backend.upload(&mut buffer, data).expect("whole rows");
    buffer
}

/// The first `n` values of a buffer.
pub(crate) fn read<B: Backend>(backend: &mut B, buffer: &B::Buffer, n: usize) -> Vec<f32> {
    let mut out = vec![0.0; n];
    backend.download(&mut out, buffer).expect("whole rows");
    out
}

/// Begin a step of `n_prefill` and `n_decode` rows, one sequence each row group, whose rows are all outputs.
pub(crate) fn begin_rows<B: Backend>(backend: &mut B, n_prefill: usize, n_decode: usize) {
    let n = n_prefill + n_decode;
    let ids = vec![0; n];
    let positions: Vec<u32> = (0..n as u32).collect();
    let outputs = positions.clone();
    let pages: Vec<PageSlot> = (0..8)
        .map(|page| PageSlot {
            full: page,
            window: NO_PAGE,
        })
        .collect();
    let sequence = |first_row, n_rows, adapter| StepSequence {
        first_row,
        n_rows,
        first_index: 0,
        pages: &pages,
        adapter,
    };
    let sequences = [
        sequence(0, n_prefill, Some(7)),
        sequence(n_prefill, n_decode, None),
    ];
    let step = Step {
        input: StepInput::Ids(&ids),
        positions: &positions,
        n_prefill,
        sequences: &sequences,
        outputs: &outputs,
    };
    backend.begin_step(&step).expect("within limits");
}

/// Panics unless `found` is within `bound` of `expected`.
#[track_caller]
pub(crate) fn assert_close(what: &str, found: &[f32], expected: &[f64], bound: f64) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    let error: f64 = found
        .iter()
        .zip(expected)
        .map(|(&f, &e)| (f64::from(f) - e).powi(2))
        .sum();
    let power: f64 = expected.iter().map(|e| e * e).sum::<f64>().max(1e-30);
    assert!(
        error / power <= bound,
        "{what}: normalised error {:.3e} above {bound:.1e}",
        error / power
    );
}

/// Panics unless the two agree in every bit (zeros of either sign are equal).
#[track_caller]
pub(crate) fn assert_same(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!(f == e, "{what}: value {i} is {f:e}, expected {e:e}");
    }
}
