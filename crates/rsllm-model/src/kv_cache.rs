//! The paged KV cache: which pages belong to whom. The pages' contents live in the backend.
//!
//! A page id names the same token range in the store of every layer, so one table a sequence serves all layers and all
//! devices. Pages are counted, so sequences may share a prefix.

use rsllm_tensor::{Backend, PageId};

use crate::error::ModelError;

/// Tokens of a page. A multiple of every vector width; the split length of decode attention is a multiple of it.
pub const PAGE_LEN: usize = 64;

/// Hands out pages and takes them back.
#[derive(Debug)]
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

/// Pages of one sequence, in order of position.
#[derive(Debug, Default)]
pub struct PageTable {
    pages: Vec<PageId>,
}

impl PageTable {
    /// An empty table with room for `n_tokens`, so that growing it never allocates.
    pub fn with_capacity(n_tokens: usize) -> Self {
        Self {
            pages: Vec::with_capacity(n_tokens.div_ceil(PAGE_LEN)),
        }
    }

    /// The pages.
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }

    /// Make sure there is a page for each of the first `n_tokens` positions.
    pub fn grow(&mut self, pool: &mut PagePool, n_tokens: usize) -> Result<(), ModelError> {
        while self.pages.len() * PAGE_LEN < n_tokens {
            self.pages.push(pool.allocate()?);
        }
        Ok(())
    }

    /// Give back the pages beyond the first `n_tokens` positions.
    pub fn truncate(&mut self, pool: &mut PagePool, n_tokens: usize) {
        let keep = n_tokens.div_ceil(PAGE_LEN);
        for page in self.pages.drain(keep.min(self.pages.len())..) {
            pool.release(page);
        }
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
        let mut pool = PagePool::new(2);
        let mut table = PageTable::with_capacity(128);
        table.grow(&mut pool, 65).unwrap();
        assert_eq!((table.pages().len(), pool.n_free()), (2, 0));
        assert!(matches!(
            table.grow(&mut pool, 129),
            Err(ModelError::OutOfPages { n_pages: 2, .. })
        ));
        table.truncate(&mut pool, 64);
        assert_eq!((table.pages().len(), pool.n_free()), (1, 1));
        table.truncate(&mut pool, 0);
        assert_eq!(pool.n_free(), 2);
    }

    proptest! {
        #[test]
        fn no_page_is_lost_or_owned_twice(steps in prop::collection::vec((0usize..4, 0usize..400, any::<bool>()), 1..60)) {
            let mut pool = PagePool::new(12);
            let mut tables: Vec<PageTable> = (0..4).map(|_| PageTable::default()).collect();
            let mut shared = Vec::new();
            for (which, n_tokens, grow) in steps {
                if grow {
                    // Running out is a legal outcome; what was allocated stays owned.
                    let _ = tables[which].grow(&mut pool, n_tokens);
                    if let Some(&page) = tables[which].pages().first() {
                        pool.share(page);
                        shared.push(page);
                    }
                } else {
                    tables[which].truncate(&mut pool, n_tokens);
                }
                prop_assert!(pool.check_integrity());
            }
            for table in &mut tables {
                table.truncate(&mut pool, 0);
            }
            for page in shared {
                pool.release(page);
            }
            prop_assert!(pool.check_integrity());
            prop_assert_eq!(pool.n_free(), 12);
        }
    }
}
