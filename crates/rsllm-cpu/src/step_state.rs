//! The inputs of the running step, copied into memory reserved at load time, and the rotary tables made from them.

use rsllm_tensor::{
    BackendError, PageSlot, RopeParams, RopeStyle, RowSet, Step, StepInput, StepLimits,
};

/// Rows and page table of one sequence of the step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SequenceState {
    pub(crate) first_row: usize,
    pub(crate) n_rows: usize,
    pub(crate) first_index: usize,
    pub(crate) adapter: Option<u32>,
    first_page: usize,
    n_pages: usize,
}

impl SequenceState {
    pub(crate) fn rows(&self) -> std::ops::Range<usize> {
        self.first_row..self.first_row + self.n_rows
    }
}

/// How many rows an operation works on, and how many of them take the prefill product.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RowCounts {
    pub(crate) n_rows: usize,
    pub(crate) n_prefill: usize,
}

/// A rotary embedding and its cosines and sines for the rows of the step.
pub(crate) struct RopeState {
    pub(crate) style: RopeStyle,
    pub(crate) n_rot: usize,
    /// Angle of each pair at position 1, `[n_rot / 2]`.
    frequencies: Vec<f64>,
    /// `[rows, n_rot]`: for each row the cosines, then the sines.
    pub(crate) cos_sin: Vec<f32>,
}

#[derive(Default)]
pub(crate) struct StepState {
    pub(crate) counts: RowCounts,
    pub(crate) n_output_prefill: usize,
    pub(crate) ids: Vec<u32>,
    /// Ready embedding rows, empty when ids are given.
    pub(crate) embeddings: Vec<f32>,
    pub(crate) outputs: Vec<u32>,
    pub(crate) sequences: Vec<SequenceState>,
    pages: Vec<PageSlot>,
    pub(crate) ropes: Vec<RopeState>,
    limits: Option<StepLimits>,
}

impl StepState {
    pub(crate) fn bind_rope(&mut self, params: &RopeParams) -> usize {
        let pairs = params.n_rot / 2;
        let frequencies = (0..pairs)
            .map(|i| {
                let exponent = -2.0 * i as f64 / params.n_rot as f64;
                let factor = params.factors.get(i).copied().map_or(1.0, f64::from);
                f64::from(params.freq_base).powf(exponent) * f64::from(params.frequency_scale)
                    / factor
            })
            .collect();
        let state = RopeState {
            style: params.style,
            n_rot: params.n_rot,
            frequencies,
            cos_sin: Vec::new(),
        };
        self.ropes.push(state);
        self.ropes.len() - 1
    }

    pub(crate) fn prepare(&mut self, limits: &StepLimits) {
        self.ids.reserve(limits.max_rows);
        self.outputs.reserve(limits.max_outputs);
        self.sequences.reserve(limits.max_sequences);
        self.pages.reserve(limits.max_pages);
        for rope in &mut self.ropes {
            rope.cos_sin.reserve(limits.max_rows * rope.n_rot);
        }
        self.limits = Some(*limits);
    }

    /// Take the inputs of `step`, checking them against the limits.
    pub(crate) fn begin(&mut self, step: &Step<'_>) -> Result<(), BackendError> {
        let n_rows = step.n_rows();
        let n_pages = step.sequences.iter().map(|s| s.pages.len()).sum();
        if let Some(limits) = &self.limits {
            check_limit("rows", limits.max_rows, n_rows)?;
            check_limit("output rows", limits.max_outputs, step.outputs.len())?;
            check_limit("sequences", limits.max_sequences, step.sequences.len())?;
            check_limit("pages", limits.max_pages, n_pages)?;
        }
        self.counts = RowCounts {
            n_rows,
            n_prefill: step.n_prefill,
        };
        self.n_output_prefill = step
            .outputs
            .partition_point(|&row| (row as usize) < step.n_prefill);
        self.ids.clear();
        self.embeddings.clear();
        match step.input {
            StepInput::Ids(ids) => self.ids.extend_from_slice(ids),
            StepInput::Rows(rows) => self.embeddings.extend_from_slice(rows),
        }
        self.outputs.clear();
        self.outputs.extend_from_slice(step.outputs);
        self.sequences.clear();
        self.pages.clear();
        for sequence in step.sequences {
            self.sequences.push(SequenceState {
                first_row: sequence.first_row,
                n_rows: sequence.n_rows,
                first_index: sequence.first_index,
                adapter: sequence.adapter,
                first_page: self.pages.len(),
                n_pages: sequence.pages.len(),
            });
            self.pages.extend_from_slice(sequence.pages);
        }
        for rope in &mut self.ropes {
            rope.fill(step.positions);
        }
        Ok(())
    }

    /// Row counts of a set.
    pub(crate) fn counts_of(&self, rows: RowSet) -> RowCounts {
        match rows {
            RowSet::All => self.counts,
            RowSet::Outputs => RowCounts {
                n_rows: self.outputs.len(),
                n_prefill: self.n_output_prefill,
            },
        }
    }

    /// Page table of a sequence.
    pub(crate) fn pages_of(&self, sequence: &SequenceState) -> &[PageSlot] {
        &self.pages[sequence.first_page..sequence.first_page + sequence.n_pages]
    }
}

impl RopeState {
    fn fill(&mut self, positions: &[u32]) {
        self.cos_sin.clear();
        for &position in positions {
            // In double precision: at position 100,000 an f32 angle is off by up to 0.004 radians.
            self.cos_sin.extend(
                self.frequencies
                    .iter()
                    .map(|f| (f64::from(position) * f).cos() as f32),
            );
            self.cos_sin.extend(
                self.frequencies
                    .iter()
                    .map(|f| (f64::from(position) * f).sin() as f32),
            );
        }
    }
}

fn check_limit(what: &'static str, limit: usize, found: usize) -> Result<(), BackendError> {
    if found > limit {
        Err(BackendError::StepLimit { what, limit, found })
    } else {
        Ok(())
    }
}
