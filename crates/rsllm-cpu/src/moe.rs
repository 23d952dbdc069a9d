//! Mixture of experts: choosing experts, and the products of the chosen ones.
//!
//! Prefill rows are grouped by expert, so each expert's weights are unpacked once for all its tokens; decode rows run
//! the dots of their own experts. The sum over a row's experts always goes in the order of choice, so company in the
//! step does not change a row's result.

use rsllm_tensor::{BackendError, ExpertGating, MoeRouteParams, Op};

use crate::kernels::Kernels;
use crate::matmul::{Matmul, MatmulScratch};
use crate::memory::{Aligned, Allocator};
use crate::ops::for_rows;
use crate::threads::{ThreadPool, WorkerPanicked};
use crate::tiles::{Inner, Source, Tokens};
use crate::weight::CpuWeight;

/// Experts chosen for each row, best first, and their weights: `[rows, n_used]`.
pub struct CpuRouting {
    pub(crate) n_used: usize,
    pub(crate) experts: Vec<u32>,
    pub(crate) weights: Vec<f32>,
}

/// The reference does not divide by less than this (2^-14).
const MIN_WEIGHT_SUM: f32 = 6.103_515_6e-5;

impl CpuRouting {
    pub(crate) fn new(n_rows: usize, n_used: usize) -> Self {
        Self {
            n_used,
            experts: vec![0; n_rows * n_used],
            weights: vec![0.0; n_rows * n_used],
        }
    }

    /// Route the rows of `logits` `[rows, n_experts]`; `probabilities` is scratch of one row.
    pub(crate) fn route(
        &mut self,
        logits: &[f32],
        params: &MoeRouteParams,
        probabilities: &mut [f32],
    ) {
        let rows = logits.chunks_exact(params.n_experts);
        let chosen = self
            .experts
            .chunks_exact_mut(self.n_used)
            .zip(self.weights.chunks_exact_mut(self.n_used));
        for (logits, (experts, weights)) in rows.zip(chosen) {
            let probabilities = &mut probabilities[..params.n_experts];
            match params.gating {
                ExpertGating::Softmax => softmax(probabilities, logits),
                ExpertGating::Sigmoid => {
                    for (p, &logit) in probabilities.iter_mut().zip(logits) {
                        *p = 1.0 / (1.0 + (-logit).exp());
                    }
                }
                ExpertGating::SoftmaxOfSelected => probabilities.copy_from_slice(logits),
            }
            choose(probabilities, experts, weights);
            if params.gating == ExpertGating::SoftmaxOfSelected {
                softmax_in_place(weights);
            }
            if params.normalise {
                let sum = weights.iter().sum::<f32>().max(MIN_WEIGHT_SUM);
                for weight in &mut *weights {
                    *weight /= sum;
                }
            }
            for weight in weights {
                *weight *= params.scale;
            }
        }
    }
}

/// The `experts.len()` largest values, largest first, lower index first on ties.
fn choose(values: &[f32], experts: &mut [u32], weights: &mut [f32]) {
    let mut filled = 0;
    for (index, &value) in values.iter().enumerate() {
        if filled == experts.len() && value <= weights[filled - 1] {
            continue;
        }
        let mut at = filled.min(experts.len() - 1);
        while at > 0 && weights[at - 1] < value {
            weights[at] = weights[at - 1];
            experts[at] = experts[at - 1];
            at -= 1;
        }
        weights[at] = value;
        experts[at] = index as u32;
        filled = experts.len().min(filled + 1);
    }
}

fn softmax(dst: &mut [f32], logits: &[f32]) {
    dst.copy_from_slice(logits);
    softmax_in_place(dst);
}

fn softmax_in_place(x: &mut [f32]) {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for x in &mut *x {
        *x = (*x - max).exp();
    }
    let sum: f32 = x.iter().sum();
    for x in x {
        *x /= sum;
    }
}

/// Scratch of the expert products, reserved at load time.
pub(crate) struct MoeScratch {
    /// Rows of one expert, gathered: `[max_rows, embed_dim]`, and its results.
    gathered: Aligned<f32>,
    results: Aligned<f32>,
    /// `[max_rows or n_used, expert_ffn_dim]`.
    gate: Aligned<f32>,
    up: Aligned<f32>,
    /// Result of every (row, slot): `[max_rows * n_used, embed_dim]`, summed in the end in slot order.
    parts: Aligned<f32>,
    /// Rows that chose the running expert, and the parts that its results are.
    rows: Vec<u32>,
    places: Vec<u32>,
}

impl MoeScratch {
    /// `dim` is the largest width of an expert's matrix, on either side.
    pub(crate) fn new(
        allocator: &mut Allocator,
        max_rows: usize,
        n_used: usize,
        dim: usize,
    ) -> Result<Self, BackendError> {
        Ok(Self {
            gathered: Aligned::new(allocator, "expert inputs", max_rows * dim)?,
            results: Aligned::new(allocator, "expert results", max_rows * dim)?,
            gate: Aligned::new(allocator, "expert gates", max_rows * dim)?,
            up: Aligned::new(allocator, "expert ups", max_rows * dim)?,
            parts: Aligned::new(allocator, "expert parts", max_rows * n_used * dim)?,
            rows: Vec::with_capacity(max_rows * n_used),
            places: Vec::with_capacity(max_rows * n_used),
        })
    }
}

/// The parts of the backend the experts work with.
pub(crate) struct Experts<'a> {
    pub(crate) kernels: &'a Kernels,
    pub(crate) pool: &'a mut ThreadPool,
    pub(crate) matmul: &'a mut MatmulScratch,
    pub(crate) scratch: &'a mut MoeScratch,
    pub(crate) gate: &'a CpuWeight,
    pub(crate) up: &'a CpuWeight,
    pub(crate) down: &'a CpuWeight,
    pub(crate) activation: rsllm_tensor::Activation,
}

impl<'a> Experts<'a> {
    /// `dst` and `x` `[n_rows, embed_dim]`; the first `n_prefill` rows take the prefill product.
    pub(crate) fn run(
        &mut self,
        dst: &mut [f32],
        x: &[f32],
        routing: &CpuRouting,
        n_rows: usize,
        n_prefill: usize,
    ) -> Result<(), BackendError> {
        for expert in 0..self.gate.n_matrices {
            self.expert_rows(expert, x, routing, 0..n_prefill, true)?;
            self.expert_rows(expert, x, routing, n_prefill..n_rows, false)?;
        }
        let (embed_dim, n_used) = (self.down.n_rows, routing.n_used);
        let parts = self.scratch.parts.as_slice();
        let dst = &mut dst[..n_rows * embed_dim];
        for_rows(self.pool, Op::MoeFfn, dst, embed_dim, |first, rows| {
            let parts = parts[first * n_used * embed_dim..].chunks_exact(n_used * embed_dim);
            let weights = routing.weights[first * n_used..].chunks_exact(n_used);
            for ((dst, parts), weights) in rows.chunks_exact_mut(embed_dim).zip(parts).zip(weights)
            {
                dst.fill(0.0);
                for (part, &weight) in parts.chunks_exact(embed_dim).zip(weights) {
                    dst.iter_mut()
                        .zip(part)
                        .for_each(|(y, &p)| *y += weight * p);
                }
            }
        })
    }

    /// All rows of `rows` that chose `expert`, in one product of their phase.
    fn expert_rows(
        &mut self,
        expert: usize,
        x: &[f32],
        routing: &CpuRouting,
        rows: std::ops::Range<usize>,
        prefill: bool,
    ) -> Result<(), BackendError> {
        let sources = self.sources(expert);
        let MoeScratch {
            rows: chosen,
            places,
            parts,
            ..
        } = &mut *self.scratch;
        chosen.clear();
        places.clear();
        for row in rows {
            for slot in 0..routing.n_used {
                let place = row * routing.n_used + slot;
                if routing.experts[place] as usize == expert {
                    chosen.push(row as u32);
                    places.push(place as u32);
                }
            }
        }
        let n = chosen.len();
        if n == 0 {
            return Ok(());
        }
        let mut matmul = Matmul {
            kernels: self.kernels,
            pool: self.pool,
            scratch: self.matmul,
            outputs: false,
        };
        let weights = [self.gate, self.up, self.down];
        if prefill && let Some(tiles) = matmul.gated_tiles(weights, n) {
            let [gate, up, down] = sources;
            let inner = Inner {
                gate,
                up,
                activation: self.activation,
            };
            let target = down.to(parts.as_mut_slice());
            let tokens = Tokens {
                x,
                n,
                rows: Some(chosen),
            };
            return matmul
                .gated_ffn_tiles(tiles, &inner, target, tokens, Some(places), false)
                .map_err(|WorkerPanicked| BackendError::WorkerPanicked { op: Op::MoeFfn });
        }
        self.gathered(expert, x, if prefill { n } else { 0 })
    }

    /// Gate, up and down of an expert.
    fn sources(&self, expert: usize) -> [Source<'a>; 3] {
        [self.gate, self.up, self.down].map(|weight| Source {
            weight,
            matrix: expert,
            bias: None,
        })
    }

    /// The rows that chose `expert`, gathered, product by product.
    fn gathered(&mut self, expert: usize, x: &[f32], n_prefill: usize) -> Result<(), BackendError> {
        let (embed_dim, ffn_dim) = (self.gate.row_len, self.gate.n_rows);
        let [gate_source, up_source, down_source] = self.sources(expert);
        let MoeScratch {
            gathered,
            results,
            gate: gates,
            up: ups,
            parts,
            rows,
            places,
        } = &mut *self.scratch;
        let n = rows.len();
        let gathered = &mut gathered.as_mut_slice()[..n * embed_dim];
        for (dst, &row) in gathered.chunks_exact_mut(embed_dim).zip(&*rows) {
            dst.copy_from_slice(&x[row as usize * embed_dim..][..embed_dim]);
        }
        let gates = &mut gates.as_mut_slice()[..n * ffn_dim];
        let ups = &mut ups.as_mut_slice()[..n * ffn_dim];
        let mut matmul = Matmul {
            kernels: self.kernels,
            pool: self.pool,
            scratch: self.matmul,
            outputs: false,
        };
        matmul.gated(
            [gate_source, up_source],
            self.activation,
            [&mut *gates, ups],
            gathered,
            n,
            n_prefill,
        )?;
        let results = &mut results.as_mut_slice()[..n * embed_dim];
        matmul.run(&mut [down_source.to(results)], gates, n, n_prefill)?;
        let parts = parts.as_mut_slice();
        for (result, &place) in results.chunks_exact(embed_dim).zip(&*places) {
            parts[place as usize * embed_dim..][..embed_dim].copy_from_slice(result);
        }
        Ok(())
    }
}

/// Check the three stacked matrices against each other and the row widths.
pub(crate) fn check_shapes(
    gate: &CpuWeight,
    up: &CpuWeight,
    down: &CpuWeight,
    embed_dim: usize,
) -> Result<(), BackendError> {
    let check = |what, found, expected| {
        if found == expected {
            Ok(())
        } else {
            Err(BackendError::Shape {
                op: Op::MoeFfn,
                what,
                expected,
                found,
            })
        }
    };
    check("input width of the experts", gate.row_len, embed_dim)?;
    check("input width of the up experts", up.row_len, embed_dim)?;
    check("output width of the up experts", up.n_rows, gate.n_rows)?;
    check("input width of the down experts", down.row_len, gate.n_rows)?;
    check("output width of the down experts", down.n_rows, embed_dim)?;
    check("number of up experts", up.n_matrices, gate.n_matrices)?;
    check("number of down experts", down.n_matrices, gate.n_matrices)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(gating: ExpertGating, normalise: bool) -> MoeRouteParams {
        MoeRouteParams {
            n_experts: 4,
            n_used: 2,
            gating,
            normalise,
            scale: 1.0,
        }
    }

    #[test]
    fn the_best_experts_come_first_and_ties_go_to_the_lower_index() {
        let mut routing = CpuRouting::new(2, 2);
        let logits = [0.0, 2.0, 1.0, 2.0, 5.0, 5.0, 5.0, 5.0];
        routing.route(&logits, &params(ExpertGating::Softmax, true), &mut [0.0; 4]);
        assert_eq!(routing.experts, [1, 3, 0, 1]);
        assert!(routing.weights.iter().all(|w| (w - 0.5).abs() < 1e-6));
    }

    #[test]
    fn unnormalised_softmax_keeps_the_probabilities() {
        let mut routing = CpuRouting::new(1, 2);
        routing.route(
            &[0.0, 0.0, 0.0, 0.0],
            &params(ExpertGating::Softmax, false),
            &mut [0.0; 4],
        );
        assert_eq!(routing.weights, [0.25, 0.25]);
    }

    #[test]
    fn softmax_of_selected_sums_to_one() {
        let mut routing = CpuRouting::new(1, 2);
        routing.route(
            &[1.0, 3.0, 2.0, -1.0],
            &params(ExpertGating::SoftmaxOfSelected, false),
            &mut [0.0; 4],
        );
        assert_eq!(routing.experts, [1, 2]);
        assert!((routing.weights[0] - 1.0 / (1.0 + (-1.0f32).exp())).abs() < 1e-6);
    }
}
