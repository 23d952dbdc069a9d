//! The inputs of one step of the model, gathered from any number of sequences. Their memory is kept from step to step.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use rsllm_model::{ModelError, PageSlot, Step, StepInput, StepSequence, Wanted};

use crate::TokenId;
use crate::forward::{Forward, Phase};

/// A step in the making. Prefilled parts are added before decoded ones.
#[derive(Default)]
pub(crate) struct Batch {
    parts: Vec<Part>,
    ids: Vec<TokenId>,
    positions: Vec<u32>,
    outputs: Vec<u32>,
    n_prefill: usize,
    /// Empty; its memory is that of the step before.
    spare: Vec<StepSequence<'static>>,
}

/// Consecutive tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// The caller's number of the sequence.
    pub(crate) sequence: usize,
    /// Index in the sequence of the first token.
    pub(crate) first_index: usize,
    pub(crate) n_rows: usize,
    /// Rows of output, from the last token backwards.
    pub(crate) n_outputs: usize,
    /// Tokens at the end that are guesses.
    pub(crate) n_drafted: usize,
    first_row: usize,
}

impl Batch {
    /// Forgets the last step.
    pub(crate) fn clear(&mut self) {
        self.parts.clear();
        self.ids.clear();
        self.positions.clear();
        self.outputs.clear();
        self.n_prefill = 0;
    }

    /// Adds the tokens `ids` of a sequence, the first of them at `first_index`. The last `n_outputs` give a row of output.
    pub(crate) fn add(
        &mut self,
        sequence: usize,
        phase: Phase,
        first_index: usize,
        ids: &[TokenId],
        n_outputs: usize,
    ) {
        let (first_row, n_rows) = (self.ids.len(), ids.len());
        if phase == Phase::Prefill {
            debug_assert_eq!(self.n_prefill, first_row, "prompts come first");
            self.n_prefill += n_rows;
        }
        self.ids.extend_from_slice(ids);
        let indices = first_index..first_index + n_rows;
        self.positions.extend(indices.map(|index| index as u32));
        let last_rows = first_row + n_rows - n_outputs..first_row + n_rows;
        self.outputs.extend(last_rows.map(|row| row as u32));
        self.parts.push(Part {
            sequence,
            first_index,
            n_rows,
            n_outputs,
            n_drafted: 0,
            first_row,
        });
    }

    /// Adds guesses behind the tokens added last, each with a row of output.
    pub(crate) fn add_draft(&mut self, ids: &[TokenId]) {
        let Some(part) = self.parts.last_mut() else {
            return;
        };
        let first_row = self.ids.len() as u32;
        let first_position = (part.first_index + part.n_rows) as u32;
        self.ids.extend_from_slice(ids);
        let n = ids.len() as u32;
        self.positions.extend(first_position..first_position + n);
        self.outputs.extend(first_row..first_row + n);
        part.n_rows += ids.len();
        part.n_outputs += ids.len();
        part.n_drafted = ids.len();
    }

    /// What was added, in order.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Renumbers the sequences of the parts; false if `number_of` does not know one.
    pub(crate) fn renumber(&mut self, mut number_of: impl FnMut(usize) -> Option<usize>) -> bool {
        self.parts
            .iter_mut()
            .enumerate()
            .all(|(i, part)| number_of(i).map(|number| part.sequence = number).is_some())
    }

    /// Tokens of the step.
    pub(crate) fn n_rows(&self) -> usize {
        self.ids.len()
    }

    /// Those of them that take the prefill product.
    pub(crate) fn n_prefill(&self) -> usize {
        self.n_prefill
    }

    /// Rows of output, in the order of the parts.
    pub(crate) fn n_outputs(&self) -> usize {
        self.outputs.len()
    }

    /// Evaluates the step. `pages` finds the page table of a sequence.
    pub(crate) fn run<'t>(
        &mut self,
        model: &mut impl Forward,
        pages: impl Fn(usize) -> &'t [PageSlot],
        wanted: Wanted<'_>,
        abort: &AtomicBool,
    ) -> Result<(), ModelError> {
        let layers = 0..model.limits().n_layers;
        self.run_layers(model, layers, pages, wanted, abort)
    }

    /// Evaluates some layers of the step.
    pub(crate) fn run_layers<'t>(
        &mut self,
        model: &mut impl Forward,
        layers: Range<usize>,
        pages: impl Fn(usize) -> &'t [PageSlot],
        wanted: Wanted<'_>,
        abort: &AtomicBool,
    ) -> Result<(), ModelError> {
        let mut sequences: Vec<StepSequence<'_>> = std::mem::take(&mut self.spare);
        sequences.extend(self.parts.iter().map(|part| StepSequence {
            first_row: part.first_row,
            n_rows: part.n_rows,
            first_index: part.first_index,
            pages: pages(part.sequence),
            adapter: None,
        }));
        let step = Step {
            input: StepInput::Ids(&self.ids),
            positions: &self.positions,
            n_prefill: self.n_prefill,
            sequences: &sequences,
            outputs: &self.outputs,
        };
        let result = if layers == (0..model.limits().n_layers) {
            model.forward(&step, wanted, abort)
        } else {
            model.forward_part(&step, layers, wanted, abort)
        };
        self.spare = emptied(sequences);
        result
    }
}

/// The memory of a vector without its elements, for elements that borrow something else. The standard library collects into
/// the memory it takes from when sizes agree; if it ever does not, a step allocates once.
fn emptied(mut sequences: Vec<StepSequence<'_>>) -> Vec<StepSequence<'static>> {
    sequences.clear();
    let none = |_| -> StepSequence<'static> { unreachable!("the vector is empty") };
    sequences.into_iter().map(none).collect()
}
