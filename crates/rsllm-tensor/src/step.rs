//! What changes with every step: token ids, positions, page tables, rows whose logits are wanted.
//!
//! A backend receives this once a step in [`crate::Backend::begin_step`] and keeps (or uploads) what it needs;
//! operations then take no per-token scalars, so a GPU backend can record them once and replay them.

/// Names the same range of token positions in the KV store of every layer of its group.
pub type PageId = u32;

/// No page: the window has passed these positions, or no layer of the group exists.
pub const NO_PAGE: PageId = PageId::MAX;

/// Layers that keep their pages alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PageGroup {
    /// Layers that see the whole context keep all pages.
    Full,
    /// Windowed layers give pages back once the window has passed them.
    Window,
}

/// The pages that hold one range of positions, one a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageSlot {
    /// Of layers that see everything.
    pub full: PageId,
    /// Of windowed layers.
    pub window: PageId,
}

impl PageSlot {
    /// Without pages.
    pub const NONE: Self = Self {
        full: NO_PAGE,
        window: NO_PAGE,
    };

    /// The page of a group.
    pub fn of(self, group: PageGroup) -> PageId {
        match group {
            PageGroup::Full => self.full,
            PageGroup::Window => self.window,
        }
    }
}

/// What enters the first layer.
#[derive(Debug, Clone, Copy)]
pub enum StepInput<'a> {
    /// Token ids `[n_rows]`, looked up in `token_embd`.
    Ids(&'a [u32]),
    /// Ready embedding rows `[n_rows, embed_dim]` (images, audio).
    Rows(&'a [f32]),
}

impl StepInput<'_> {
    /// Number of rows, given the width of one.
    pub fn n_rows(&self, embed_dim: usize) -> usize {
        match self {
            Self::Ids(ids) => ids.len(),
            Self::Rows(rows) => rows.len() / embed_dim.max(1),
        }
    }
}

/// The rows of one sequence in a step: a prefill chunk, one decoded token, or several drafted ones.
#[derive(Debug, Clone, Copy)]
pub struct StepSequence<'a> {
    /// First row of this sequence; its rows are contiguous.
    pub first_row: usize,
    /// How many rows.
    pub n_rows: usize,
    /// Index in the sequence of the first row's token; row `i` may see tokens `0..=first_index + i`.
    pub first_index: usize,
    /// Pages in order of position; slot `i` holds tokens `i * page_len..`. Covers the last row.
    pub pages: &'a [PageSlot],
    /// Low-rank adapter used by all rows of this sequence.
    pub adapter: Option<u32>,
}

/// All per-step inputs. Rows are ordered: prefill rows first, then decode rows.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// Token ids or embedding rows.
    pub input: StepInput<'a>,
    /// Rotary position of each row `[n_rows]`.
    pub positions: &'a [u32],
    /// Rows `0..n_prefill` belong to prompts and take the prefill product; the rest take the decode product.
    pub n_prefill: usize,
    /// Row ranges and page tables of the sequences.
    pub sequences: &'a [StepSequence<'a>],
    /// Rows whose logits are wanted, ascending.
    pub outputs: &'a [u32],
}

impl Step<'_> {
    /// Number of rows of the step.
    pub fn n_rows(&self) -> usize {
        self.positions.len()
    }
}
