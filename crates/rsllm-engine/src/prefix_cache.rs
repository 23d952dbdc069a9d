//! Which KV pages hold which tokens, so that a new sequence takes over what others have computed.
//!
//! A tree: an entry is a page with the tokens it holds, its parent the page before. Finding a prefix is a walk from the root
//! that compares tokens, so a hash can never mistake one text for another. Whole pages are shared; of a page that is shared in
//! part, or was never filled, the new sequence gets a copy. The cache owns its pages beside the sequences that use them; what
//! it alone owns is evicted when pages are needed, least recently used first, the end of a text before its beginning.
//!
//! Layers with a window see only the last tokens, so a prefix counts if the window pages before its end are still there, and
//! window pages may go while the rest of their entry stays.

use std::cmp::Reverse;

use rsllm_model::{NO_PAGE, PAGE_LEN, PagePools, PageSlot, PageTable};

use crate::TokenId;
use crate::error::EngineError;
use crate::forward::Forward;
use crate::pages::{Pages, first_visible, slots_for};

/// Pages by the tokens they hold.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    entries: Vec<Option<Entry>>,
    /// Vacant places of `entries`.
    vacant: Vec<EntryId>,
    /// First pages, by the adapter that their numbers depend on.
    roots: Vec<(Option<u32>, EntryId)>,
    /// Tokens a windowed layer sees.
    window: Option<usize>,
    /// Counts uses; decides who goes first.
    clock: u64,
    /// The entries of the prefix found last.
    path: Vec<EntryId>,
}

type EntryId = usize;

/// A page and its place in a text.
#[derive(Debug)]
struct Entry {
    /// From one to a page; fewer only at the end of a text.
    tokens: Vec<TokenId>,
    slot: PageSlot,
    /// Pages before this one.
    depth: usize,
    parent: Option<EntryId>,
    adapter: Option<u32>,
    children: Vec<EntryId>,
    used: u64,
    window_used: u64,
}

impl PrefixCache {
    /// An empty cache for a model whose widest windowed layer sees `window` tokens.
    pub(crate) fn new(window: Option<usize>) -> Self {
        Self {
            entries: Vec::new(),
            vacant: Vec::new(),
            roots: Vec::new(),
            window,
            clock: 0,
            path: Vec::new(),
        }
    }

    /// Fills the empty `table` with the longest known prefix of `tokens` but the last, which has to be computed for its
    /// logits. Returns the tokens of that prefix.
    pub(crate) fn adopt(
        &mut self,
        model: &mut impl Forward,
        adapter: Option<u32>,
        tokens: &[TokenId],
        table: &mut PageTable,
    ) -> Result<usize, EngineError> {
        let mut n_tokens = self.find(adapter, tokens);
        self.touch(n_tokens);
        let n_whole = n_tokens / PAGE_LEN;
        for i in 0..n_whole {
            let slot = self.entry(self.path[i]).slot;
            model.pools().share(slot);
            table.push(slot);
        }
        if n_tokens > n_whole * PAGE_LEN {
            let id = self.path[n_whole];
            if let Some(slot) = self.own_copy(model, id)? {
                table.push(slot);
            } else {
                n_tokens = self.longest_visible(n_whole * PAGE_LEN);
            }
        }
        table.truncate(model.pools(), n_tokens);
        table.drop_passed(model.pools(), first_visible(n_tokens, self.window));
        Ok(n_tokens)
    }

    /// Slots at the start of `tokens` that running sequences hold already: sharing them takes no page.
    pub(crate) fn slots_in_use(
        &mut self,
        pools: &PagePools,
        adapter: Option<u32>,
        tokens: &[TokenId],
    ) -> usize {
        let n_whole = self.find(adapter, tokens) / PAGE_LEN;
        self.path[..n_whole]
            .iter()
            .take_while(|&&id| !is_evictable(pools, self.entry(id).slot).0)
            .count()
    }

    /// Tokens at the start of `tokens` that a new sequence would take over.
    pub(crate) fn known(&mut self, adapter: Option<u32>, tokens: &[TokenId]) -> usize {
        self.find(adapter, tokens)
    }

    /// Remembers the pages of a sequence: `slots` hold `tokens`. A page that is not full counts only if nothing will be
    /// written to it any more, which `is_final` says.
    pub(crate) fn insert(
        &mut self,
        pools: &mut PagePools,
        adapter: Option<u32>,
        tokens: &[TokenId],
        slots: &[PageSlot],
        is_final: bool,
    ) {
        self.clock += 1;
        let mut parent = None;
        for (depth, (chunk, &slot)) in tokens.chunks(PAGE_LEN).zip(slots).enumerate() {
            if chunk.len() < PAGE_LEN && !is_final {
                return;
            }
            let known = self
                .children(parent, adapter)
                .find(|&id| self.entry(id).tokens.starts_with(chunk));
            let id = match known {
                Some(id) => id,
                None => self.add(pools, parent, adapter, depth, chunk, slot),
            };
            let clock = self.clock;
            let entry = self.entry_mut(id);
            entry.used = clock;
            if entry.slot.window == NO_PAGE && slot.window != NO_PAGE && entry.tokens == chunk {
                pools.window.share(slot.window);
                entry.slot.window = slot.window;
                entry.window_used = clock;
            }
            parent = Some(id);
        }
    }

    /// Evicts until `needed` pages are free; false if there are not so many.
    pub(crate) fn make_room(&mut self, pools: &mut PagePools, needed: Pages) -> bool {
        loop {
            let free = Pages::free_in(pools);
            if free.cover(needed) {
                return true;
            }
            let evicted = if free.full < needed.full {
                self.evict_entry(pools)
            } else {
                self.evict_window_page(pools)
            };
            if !evicted {
                return false;
            }
        }
    }

    /// Pages that are free or would be after evicting everything that can be.
    pub(crate) fn available(&self, pools: &PagePools) -> Pages {
        self.iter()
            .fold(Pages::free_in(pools), |pages, (_, entry)| {
                let (full, window) = is_evictable(pools, entry.slot);
                pages.plus(Pages {
                    full: usize::from(full),
                    window: usize::from(window),
                })
            })
    }

    /// Fills `owned` with the pages of the cache, for telling its share of their owners from that of sequences.
    pub(crate) fn owned(&self, owned: &mut OwnedPages) {
        owned.full.clear();
        owned.window.clear();
        for (_, entry) in self.iter() {
            owned.add(entry.slot);
        }
    }

    /// The links of the tree fit each other, every page is owned and stands in one entry, and no entry could be found twice;
    /// for tests.
    pub(crate) fn check_integrity(&self, pools: &PagePools) -> bool {
        let mut owned = OwnedPages::default();
        self.iter().all(|(id, entry)| {
            let siblings = self.children(entry.parent, entry.adapter);
            let is_linked_once = siblings.clone().filter(|&sibling| sibling == id).count() == 1;
            let is_unique = siblings
                .filter(|&sibling| sibling != id)
                .all(|sibling| self.entry(sibling).tokens != entry.tokens);
            let depth = entry
                .parent
                .map_or(0, |parent| self.entry(parent).depth + 1);
            let is_full = entry.tokens.len() == PAGE_LEN;
            let slot = entry.slot;
            let is_owned = (slot.full == NO_PAGE || pools.full.n_owners(slot.full) > 0)
                && (slot.window == NO_PAGE || pools.window.n_owners(slot.window) > 0);
            is_linked_once
                && is_unique
                && is_owned
                && owned.add(slot)
                && entry.depth == depth
                && (is_full || (!entry.tokens.is_empty() && entry.children.is_empty()))
                && (slot != PageSlot::NONE || !entry.children.is_empty())
        })
    }

    /// Follows `tokens` through the tree, leaves the entries in `path`, and returns how many tokens they hold that a new
    /// sequence may take over.
    fn find(&mut self, adapter: Option<u32>, tokens: &[TokenId]) -> usize {
        let mut path = std::mem::take(&mut self.path);
        path.clear();
        let mut parent = None;
        let mut n_tokens = 0;
        loop {
            let rest = &tokens[n_tokens..];
            let best = self
                .children(parent, adapter)
                .map(|id| (common_len(&self.entry(id).tokens, rest), id))
                .max_by_key(|best| best.0);
            let Some((n_common, id)) = best.filter(|best| best.0 > 0) else {
                break;
            };
            path.push(id);
            n_tokens += n_common;
            parent = Some(id);
            if n_common < PAGE_LEN {
                break;
            }
        }
        self.path = path;
        let n_tokens = self.longest_visible(n_tokens.min(tokens.len().saturating_sub(1)));
        self.path.truncate(slots_for(n_tokens));
        n_tokens
    }

    /// The most tokens of the path, at most `n_tokens`, behind which all that the next token sees is there.
    fn longest_visible(&self, mut n_tokens: usize) -> usize {
        let Some(window) = self.window else {
            return n_tokens;
        };
        while n_tokens > 0 {
            let first = first_visible(n_tokens, Some(window)) / PAGE_LEN;
            let needed = first..slots_for(n_tokens);
            let missing = needed
                .rev()
                .find(|&i| self.entry(self.path[i]).slot.window == NO_PAGE);
            match missing {
                Some(i) => n_tokens = i * PAGE_LEN,
                None => break,
            }
        }
        n_tokens
    }

    /// Marks the path as used just now; of its window pages those that `n_tokens` tokens leave in sight.
    fn touch(&mut self, n_tokens: usize) {
        self.clock += 1;
        let first = first_visible(n_tokens, self.window) / PAGE_LEN;
        for i in 0..self.path.len() {
            let (id, clock) = (self.path[i], self.clock);
            let entry = self.entry_mut(id);
            entry.used = clock;
            if i >= first {
                entry.window_used = clock;
            }
        }
    }

    /// A page that the caller alone owns, with the contents of entry `id`: a copy or, where there is no room for one, the
    /// entry's own page, which the cache then gives up. `None` if others use it.
    fn own_copy(
        &mut self,
        model: &mut impl Forward,
        id: EntryId,
    ) -> Result<Option<PageSlot>, EngineError> {
        let source = self.entry(id).slot;
        let (full, window) = is_evictable(model.pools(), source);
        let is_unused = (full || source.full == NO_PAGE) && (window || source.window == NO_PAGE);
        // As long as we own it too it is not evicted.
        model.pools().share(source);
        let needed = Pages::of_slot(source);
        if self.make_room(model.pools(), needed) {
            let copied = model.pools().allocate().and_then(|slot| {
                let copied = model.copy_slot(source, slot);
                if copied.is_err() {
                    model.pools().release(slot);
                }
                copied.map(|()| slot)
            });
            model.pools().release(source);
            return Ok(Some(copied?));
        }
        if is_unused {
            self.remove(model.pools(), id);
            return Ok(Some(source));
        }
        model.pools().release(source);
        Ok(None)
    }

    fn add(
        &mut self,
        pools: &mut PagePools,
        parent: Option<EntryId>,
        adapter: Option<u32>,
        depth: usize,
        tokens: &[TokenId],
        slot: PageSlot,
    ) -> EntryId {
        // A page that was inserted before it was full is contained in this one.
        let shorter = self
            .children(parent, adapter)
            .find(|&id| tokens.starts_with(&self.entry(id).tokens));
        pools.share(slot);
        let entry = Entry {
            tokens: tokens.to_vec(),
            slot,
            depth,
            parent,
            adapter,
            children: Vec::new(),
            used: self.clock,
            window_used: self.clock,
        };
        let id = self.vacant.pop().unwrap_or(self.entries.len());
        if id == self.entries.len() {
            self.entries.push(None);
        }
        self.entries[id] = Some(entry);
        match parent {
            Some(parent) => self.entry_mut(parent).children.push(id),
            None => self.roots.push((adapter, id)),
        }
        if let Some(shorter) = shorter {
            self.remove(pools, shorter);
        }
        id
    }

    /// Gives up the entry that was used longest ago, with all behind it.
    fn evict_entry(&mut self, pools: &mut PagePools) -> bool {
        let oldest = self
            .iter()
            .filter(|(_, entry)| is_evictable(pools, entry.slot).0)
            .min_by_key(|(_, entry)| (entry.used, Reverse(entry.depth)))
            .map(|(id, _)| id);
        oldest.map(|id| self.remove(pools, id)).is_some()
    }

    /// Gives up the window page that was in sight longest ago.
    fn evict_window_page(&mut self, pools: &mut PagePools) -> bool {
        let oldest = self
            .iter()
            .filter(|(_, entry)| is_evictable(pools, entry.slot).1)
            .min_by_key(|(_, entry)| (entry.window_used, entry.depth))
            .map(|(id, _)| id);
        let Some(id) = oldest else {
            return false;
        };
        let entry = self.entry_mut(id);
        pools.window.release(entry.slot.window);
        entry.slot.window = NO_PAGE;
        if entry.slot == PageSlot::NONE && entry.children.is_empty() {
            self.remove(pools, id);
        }
        true
    }

    /// Removes an entry and all behind it, and those before it that then hold nothing.
    fn remove(&mut self, pools: &mut PagePools, id: EntryId) {
        let entry = self.take(id);
        match entry.parent {
            None => self.roots.retain(|root| root.1 != id),
            Some(parent) => {
                let before = self.entry_mut(parent);
                before.children.retain(|&child| child != id);
                if before.slot == PageSlot::NONE && before.children.is_empty() {
                    self.remove(pools, parent);
                }
            }
        }
        pools.release(entry.slot);
        let mut behind = entry.children;
        while let Some(id) = behind.pop() {
            let entry = self.take(id);
            pools.release(entry.slot);
            behind.extend(entry.children);
        }
    }

    fn take(&mut self, id: EntryId) -> Entry {
        self.vacant.push(id);
        self.entries[id]
            .take()
            .expect("links lead to entries that exist")
    }

    /// Entries behind `parent`, or the first ones of a text.
    fn children(
        &self,
        parent: Option<EntryId>,
        adapter: Option<u32>,
    ) -> impl Iterator<Item = EntryId> + Clone + '_ {
        let behind = parent.map_or(&[][..], |id| &self.entry(id).children);
        let roots = if parent.is_none() {
            &self.roots[..]
        } else {
            &[]
        };
        let roots = roots.iter().filter(move |root| root.0 == adapter);
        behind.iter().copied().chain(roots.map(|root| root.1))
    }

    fn iter(&self) -> impl Iterator<Item = (EntryId, &Entry)> {
        let entries = self.entries.iter().enumerate();
        entries.filter_map(|(id, entry)| Some((id, entry.as_ref()?)))
    }

    fn entry(&self, id: EntryId) -> &Entry {
        self.entries[id]
            .as_ref()
            .expect("links lead to entries that exist")
    }

    fn entry_mut(&mut self, id: EntryId) -> &mut Entry {
        self.entries[id]
            .as_mut()
            .expect("links lead to entries that exist")
    }
}

/// A set of pages.
#[derive(Debug, Default)]
pub(crate) struct OwnedPages {
    full: Vec<bool>,
    window: Vec<bool>,
}

impl OwnedPages {
    /// Adds the pages of `slot`; false if one was there.
    fn add(&mut self, slot: PageSlot) -> bool {
        let add = |set: &mut Vec<bool>, page| {
            if page == NO_PAGE {
                return true;
            }
            let page = page as usize;
            if set.len() <= page {
                set.resize(page + 1, false);
            }
            !std::mem::replace(&mut set[page], true)
        };
        let full = add(&mut self.full, slot.full);
        add(&mut self.window, slot.window) && full
    }

    /// Pages of `slot` that nobody but the caller and this set owns.
    pub(crate) fn reclaimable(&self, pools: &PagePools, slot: PageSlot) -> Pages {
        let has = |set: &[bool], page| set.get(page as usize).copied().unwrap_or(false);
        let full = slot.full != NO_PAGE
            && pools.full.n_owners(slot.full) == 1 + usize::from(has(&self.full, slot.full));
        let window = slot.window != NO_PAGE
            && pools.window.n_owners(slot.window)
                == 1 + usize::from(has(&self.window, slot.window));
        Pages {
            full: usize::from(full),
            window: usize::from(window),
        }
    }
}

/// Which pages of an entry's slot have no owner but the cache.
fn is_evictable(pools: &PagePools, slot: PageSlot) -> (bool, bool) {
    (
        slot.full != NO_PAGE && pools.full.n_owners(slot.full) == 1,
        slot.window != NO_PAGE && pools.window.n_owners(slot.window) == 1,
    )
}

pub(crate) fn common_len(ours: &[TokenId], theirs: &[TokenId]) -> usize {
    ours.iter()
        .zip(theirs)
        .take_while(|(ours, theirs)| ours == theirs)
        .count()
}
