//! Counts of KV pages, one a group of layers. Groups that a model lacks never run out.

use rsllm_model::{NO_PAGE, PAGE_LEN, PagePools, PageSlot};

/// So many pages of each group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pages {
    /// Of layers that see everything.
    pub(crate) full: usize,
    /// Of windowed layers.
    pub(crate) window: usize,
}

/// Pages of a group that the model does not have: more than anyone takes, with room to add to.
const PLENTY: usize = usize::MAX / 4;

impl Pages {
    /// None.
    pub(crate) const ZERO: Self = Self { full: 0, window: 0 };

    /// As many of each.
    pub(crate) fn both(n: usize) -> Self {
        Self { full: n, window: n }
    }

    /// Pages of `pools` that nobody owns.
    pub(crate) fn free_in(pools: &PagePools) -> Self {
        let of = |n_pages, n_free| if n_pages == 0 { PLENTY } else { n_free };
        Self {
            full: of(pools.full.n_pages(), pools.full.n_free()),
            window: of(pools.window.n_pages(), pools.window.n_free()),
        }
    }

    /// Those of `slot`.
    pub(crate) fn of_slot(slot: PageSlot) -> Self {
        Self {
            full: usize::from(slot.full != NO_PAGE),
            window: usize::from(slot.window != NO_PAGE),
        }
    }

    /// True when `needed` can be taken.
    pub(crate) fn cover(self, needed: Self) -> bool {
        self.full >= needed.full && self.window >= needed.window
    }

    /// What is left without `taken`; none where that is more than there are.
    pub(crate) fn less(self, taken: Self) -> Self {
        Self {
            full: self.full.saturating_sub(taken.full),
            window: self.window.saturating_sub(taken.window),
        }
    }

    /// The sum.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            full: self.full + other.full,
            window: self.window + other.window,
        }
    }

    /// Slots, which take a page of each group, that can be made of them.
    pub(crate) fn slots(self) -> usize {
        self.full.min(self.window)
    }
}

/// Slots that hold the first `n_tokens` positions.
pub(crate) fn slots_for(n_tokens: usize) -> usize {
    n_tokens.div_ceil(PAGE_LEN)
}

/// First position that the token at `index` sees.
pub(crate) fn first_visible(index: usize, window: Option<usize>) -> usize {
    window.map_or(0, |window| (index + 1).saturating_sub(window))
}
