//! The paged KV cache: which pages belong to whom. The pages' contents live in the backend.
//!
//! A slot of a sequence's table names the pages of one range of positions: one page for all layers that see the whole
//! context, one for all windowed layers, which give theirs back once the window has passed. A page id is good for every
//! layer of its group, on every device. Pages are counted, so sequences may share a prefix.

use rsllm_tensor::{Backend, NO_PAGE, PageGroup, PageId, PageSlot};

use crate::error::ModelError;

/// Tokens of a page. A multiple of every vector width; the split length of decode attention is a multiple of it.
pub const PAGE_LEN: usize = 64;

/// Hands out the pages of one group and takes them back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PagePool {
    /// Owners of each page; 0 for a free one.
    references: Vec<u32>,
    free: Vec<PageId>,
}

impl PagePool {
    /// A pool of `n_pages` free pages.
    pub fn new(n_pages: usize) -> Self {
        Self {
            references: vec![0; n_pages],
            free: (0..n_pages as PageId).rev().collect(),
        }
    }

    /// All pages.
    pub fn n_pages(&self) -> usize {
        self.references.len()
    }

    /// Pages nobody owns.
    pub fn n_free(&self) -> usize {
        self.free.len()
    }

    /// Owners of a page; 0 for a free one.
    pub fn n_owners(&self, page: PageId) -> usize {
        self.references[page as usize] as usize
    }

    /// Take a free page.
    pub fn allocate(&mut self) -> Result<PageId, ModelError> {
        let no_page = ModelError::OutOfPages {
            n_pages: self.references.len(),
            page_len: PAGE_LEN,
        };
        let page = self.free.pop().ok_or(no_page)?;
        self.references[page as usize] = 1;
        Ok(page)
    }

    /// Add an owner to a page in use.
    pub fn share(&mut self, page: PageId) {
        debug_assert!(self.references[page as usize] > 0, "page {page} is free");
        self.references[page as usize] += 1;
    }

    /// Drop one owner; the last one frees the page.
    pub fn release(&mut self, page: PageId) {
        let references = &mut self.references[page as usize];
        debug_assert!(*references > 0, "page {page} is free already");
        *references -= 1;
        if *references == 0 {
            self.free.push(page);
        }
    }

    /// Every page is either free once or owned; for tests.
    pub fn check_integrity(&self) -> bool {
        let mut free = vec![false; self.references.len()];
        self.free
            .iter()
            .all(|&page| !std::mem::replace(&mut free[page as usize], true))
            && free
                .iter()
                .zip(&self.references)
                .all(|(&free, &references)| free == (references == 0))
    }
}

/// The pools of both groups. A model without windowed layers has no window pages, and its slots none either.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PagePools {
    /// Of layers that see everything.
    pub full: PagePool,
    /// Of windowed layers.
    pub window: PagePool,
    has_full: bool,
    has_window: bool,
}

impl PagePools {
    /// Pools of `n_full` and `n_window` pages; 0 when the model has no layer of the group.
    pub fn new(n_full: usize, n_window: usize) -> Self {
        Self {
            full: PagePool::new(n_full),
            window: PagePool::new(n_window),
            has_full: n_full > 0,
            has_window: n_window > 0,
        }
    }

    /// Take a page of each group the model has.
    pub fn allocate(&mut self) -> Result<PageSlot, ModelError> {
        let mut slot = PageSlot::NONE;
        if self.has_full {
            slot.full = self.full.allocate()?;
        }
        if self.has_window {
            match self.window.allocate() {
                Ok(page) => slot.window = page,
                Err(error) => {
                    self.release(slot);
                    return Err(error);
                }
            }
        }
        Ok(slot)
    }

    /// Slots that [`PagePools::allocate`] could still hand out.
    pub fn n_free(&self) -> usize {
        match (self.has_full, self.has_window) {
            (true, true) => self.full.n_free().min(self.window.n_free()),
            (true, false) => self.full.n_free(),
            (false, _) => self.window.n_free(),
        }
    }

    /// Add an owner to the pages of a slot.
    pub fn share(&mut self, slot: PageSlot) {
        if slot.full != NO_PAGE {
            self.full.share(slot.full);
        }
        if slot.window != NO_PAGE {
            self.window.share(slot.window);
        }
    }

    /// Drop one owner of the pages of a slot.
    pub fn release(&mut self, slot: PageSlot) {
        if slot.full != NO_PAGE {
            self.full.release(slot.full);
        }
        if slot.window != NO_PAGE {
            self.window.release(slot.window);
        }
    }

    /// Whether the slot has a page of every group the model has.
    pub fn is_complete(&self, slot: PageSlot) -> bool {
        (!self.has_full || slot.full != NO_PAGE) && (!self.has_window || slot.window != NO_PAGE)
    }

    /// See [`PagePool::check_integrity`].
    pub fn check_integrity(&self) -> bool {
        self.full.check_integrity() && self.window.check_integrity()
    }
}

/// Pages of one sequence, in order of position.
#[derive(Debug, Default)]
pub struct PageTable {
    slots: Vec<PageSlot>,
    /// Slots before this have lost their window page.
    first_window_slot: usize,
}

impl PageTable {
    /// An empty table with room for `n_tokens`, so that growing it never allocates.
    pub fn with_capacity(n_tokens: usize) -> Self {
        Self {
            slots: Vec::with_capacity(n_tokens.div_ceil(PAGE_LEN)),
            first_window_slot: 0,
        }
    }

    /// The slots.
    pub fn slots(&self) -> &[PageSlot] {
        &self.slots
    }

    /// Append a slot whose pages this table now owns.
    pub fn push(&mut self, slot: PageSlot) {
        self.slots.push(slot);
    }

    /// Make sure there is a page for each of the first `n_tokens` positions. What was allocated before running out
    /// stays in the table.
    pub fn grow(&mut self, pools: &mut PagePools, n_tokens: usize) -> Result<(), ModelError> {
        while self.slots.len() * PAGE_LEN < n_tokens {
            self.slots.push(pools.allocate()?);
        }
        Ok(())
    }

    /// Give back the pages beyond the first `n_tokens` positions.
    pub fn truncate(&mut self, pools: &mut PagePools, n_tokens: usize) {
        let keep = n_tokens.div_ceil(PAGE_LEN).min(self.slots.len());
        for slot in self.slots.drain(keep..) {
            pools.release(slot);
        }
        self.first_window_slot = self.first_window_slot.min(keep);
    }

    /// Give back the window pages of positions before `first_visible`.
    pub fn drop_passed(&mut self, pools: &mut PagePools, first_visible: usize) {
        let end = (first_visible / PAGE_LEN).min(self.slots.len());
        for slot in &mut self.slots[self.first_window_slot.min(end)..end] {
            if slot.window != NO_PAGE {
                pools.window.release(slot.window);
                slot.window = NO_PAGE;
            }
        }
        self.first_window_slot = self.first_window_slot.max(end);
    }
}

/// What a layer remembers of its sequences.
pub enum LayerState<B: Backend> {
    /// K and V of every token, by page.
    Pages(B::Kv),
    /// As [`LayerState::Pages`], but only the last `window` tokens count; pages before them may be dropped.
    Window {
        /// The store.
        kv: B::Kv,
        /// Tokens that count.
        window: usize,
    },
    /// A fixed-size state a sequence with snapshots at page borders (state-space and delta-net layers).
    Recurrent(RecurrentState<B>),
}

/// States of recurrent layers: one row a live sequence, and saved rows.
pub struct RecurrentState<B: Backend> {
    /// `[n_sequences, state_width]`.
    pub live: B::Buffer,
    /// `[n_snapshots, state_width]`.
    pub snapshots: B::Buffer,
}

impl<B: Backend> LayerState<B> {
    /// Name of the kind, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Pages(_) => "paged",
            Self::Window { .. } => "windowed",
            Self::Recurrent(_) => "recurrent",
        }
    }

    /// Which page of a slot this layer reads.
    pub fn group(&self) -> PageGroup {
        match self {
            Self::Pages(_) | Self::Recurrent(_) => PageGroup::Full,
            Self::Window { .. } => PageGroup::Window,
        }
    }

    /// The store of an attention layer.
    pub fn kv_mut(&mut self, layer: usize) -> Result<&mut B::Kv, ModelError> {
        match self {
            Self::Pages(kv) | Self::Window { kv, .. } => Ok(kv),
            Self::Recurrent(_) => Err(ModelError::LayerState {
                layer,
                expected: "paged",
                found: "recurrent",
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pages_come_back_and_the_pool_says_when_it_is_empty() {
        let mut pools = PagePools::new(2, 0);
        let mut table = PageTable::with_capacity(128);
        table.grow(&mut pools, 65).unwrap();
        assert_eq!((table.slots().len(), pools.n_free()), (2, 0));
        assert!(matches!(
            table.grow(&mut pools, 129),
            Err(ModelError::OutOfPages { n_pages: 2, .. })
        ));
        table.truncate(&mut pools, 64);
        assert_eq!((table.slots().len(), pools.n_free()), (1, 1));
        table.truncate(&mut pools, 0);
        assert_eq!(pools.n_free(), 2);
    }

    #[test]
    fn windowed_layers_give_back_what_the_window_has_passed() {
        let mut pools = PagePools::new(8, 3);
        let mut table = PageTable::with_capacity(8 * PAGE_LEN);
        table.grow(&mut pools, 3 * PAGE_LEN).unwrap();
        assert!(table.grow(&mut pools, 3 * PAGE_LEN + 1).is_err());
        assert_eq!(
            pools.full.n_free(),
            5,
            "a slot is taken whole or not at all"
        );
        table.drop_passed(&mut pools, 2 * PAGE_LEN - 1);
        assert_eq!((pools.window.n_free(), pools.full.n_free()), (1, 5));
        table.grow(&mut pools, 4 * PAGE_LEN).unwrap();
        table.drop_passed(&mut pools, 100 * PAGE_LEN);
        assert_eq!(pools.window.n_free(), 3);
        table.truncate(&mut pools, 0);
        assert_eq!((pools.window.n_free(), pools.full.n_free()), (3, 8));
    }

    proptest! {
        #[test]
        fn no_page_is_lost_or_owned_twice(
            steps in prop::collection::vec((0usize..4, 0usize..400, 0u8..3), 1..60)
        ) {
            let mut pools = PagePools::new(12, 7);
            let mut tables: Vec<PageTable> = (0..4).map(|_| PageTable::default()).collect();
            let mut shared = Vec::new();
            for (which, n_tokens, action) in steps {
                match action {
                    0 => {
                        // Running out is a legal outcome; what was allocated stays owned.
                        let _ = tables[which].grow(&mut pools, n_tokens);
                        if let Some(&slot) = tables[which].slots().first() {
                            pools.share(slot);
                            shared.push(slot);
                        }
                    }
                    1 => tables[which].truncate(&mut pools, n_tokens),
                    _ => tables[which].drop_passed(&mut pools, n_tokens),
                }
                prop_assert!(pools.check_integrity());
            }
            for table in &mut tables {
                table.truncate(&mut pools, 0);
            }
            for slot in shared {
                pools.release(slot);
            }
            prop_assert!(pools.check_integrity());
            prop_assert_eq!((pools.full.n_free(), pools.window.n_free()), (12, 7));
        }
    }
}
