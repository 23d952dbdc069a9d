//! The merging loop that byte-pair encoding and SentencePiece share: of all adjacent pairs that may merge, the one of
//! least rank does, the leftmost of equals, until none is left.
//!
//! Short pieces, nearly all there are, are searched for their least pair each time; long ones use a heap, so that a
//! megabyte without a break costs n log n.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What two neighbours give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Merge {
    /// Merges of lower rank are done first.
    pub(crate) rank: u32,
    /// What is known of the symbol that the two become.
    pub(crate) merged: u32,
}

/// A stretch of the text that is one symbol so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol {
    /// What is known of the symbol; its meaning is the caller's.
    pub(crate) id: u32,
    /// Its first byte in the text.
    pub(crate) start: usize,
    /// Its length in bytes.
    pub(crate) len: usize,
}

/// Memory reused from piece to piece.
#[derive(Debug, Default)]
pub(crate) struct Merger {
    /// In: the symbols of a piece. Out: those left after merging.
    pub(crate) symbols: Vec<Symbol>,
    /// What symbol `i` and the one after it give; rank [`NO_MERGE`] for nothing.
    pairs: Vec<Merge>,
    /// Links of the long form; `NO_LINK` at the ends.
    previous: Vec<usize>,
    next: Vec<usize>,
    heap: BinaryHeap<Reverse<(u32, usize)>>,
}

/// Not the rank of any merge.
pub(crate) const NO_MERGE: u32 = u32::MAX;
const NO_LINK: usize = usize::MAX;
/// Up to so many symbols the quadratic search is faster.
const SHORT: usize = 48;

impl Merger {
    /// Merges `symbols` as far as `pair` allows. `pair` tells what two neighbours give.
    pub(crate) fn merge(&mut self, pair: impl Fn(&Symbol, &Symbol) -> Option<Merge>) {
        if self.symbols.len() < 2 {
            return;
        }
        let pair = |left: &Symbol, right: &Symbol| pair(left, right).unwrap_or(NOTHING);
        self.pairs.clear();
        self.pairs
            .extend(self.symbols.windows(2).map(|two| pair(&two[0], &two[1])));
        self.pairs.push(NOTHING);
        if self.symbols.len() <= SHORT {
            self.merge_short(pair);
        } else {
            self.merge_long(pair);
        }
    }

    fn merge_short(&mut self, pair: impl Fn(&Symbol, &Symbol) -> Merge) {
        loop {
            let (mut at, mut least) = (0, NO_MERGE);
            for (index, merge) in self.pairs.iter().enumerate() {
                if merge.rank < least {
                    (at, least) = (index, merge.rank);
                }
            }
            if least == NO_MERGE {
                return;
            }
            let right = self.symbols.remove(at + 1);
            let merge = self.pairs.remove(at);
            let left = &mut self.symbols[at];
            *left = Symbol {
                id: merge.merged,
                start: left.start,
                len: left.len + right.len,
            };
            if at > 0 {
                self.pairs[at - 1] = pair(&self.symbols[at - 1], &self.symbols[at]);
            }
            if let Some(after) = self.symbols.get(at + 1) {
                self.pairs[at] = pair(&self.symbols[at], after);
            }
        }
    }

    fn merge_long(&mut self, pair: impl Fn(&Symbol, &Symbol) -> Merge) {
        let n = self.symbols.len();
        self.previous.clear();
        self.previous.push(NO_LINK);
        self.previous.extend(0..n - 1);
        self.next.clear();
        self.next.extend(1..n);
        self.next.push(NO_LINK);
        let mut entries = std::mem::take(&mut self.heap).into_vec();
        entries.clear();
        entries.extend(
            self.pairs
                .iter()
                .enumerate()
                .filter(|(_, merge)| merge.rank != NO_MERGE)
                .map(|(index, merge)| Reverse((merge.rank, index))),
        );
        self.heap = BinaryHeap::from(entries);

        // `pairs[i]` is current; a heap entry that disagrees with it is stale.
        while let Some(Reverse((rank, at))) = self.heap.pop() {
            if self.pairs[at].rank != rank {
                continue;
            }
            let gone = self.next[at];
            let after = self.next[gone];
            let left = self.symbols[at];
            self.symbols[at] = Symbol {
                id: self.pairs[at].merged,
                start: left.start,
                len: left.len + self.symbols[gone].len,
            };
            self.symbols[gone].len = 0;
            self.pairs[gone] = NOTHING;
            self.next[at] = after;
            if after == NO_LINK {
                self.pairs[at] = NOTHING;
            } else {
                self.previous[after] = at;
                self.renew(at, after, &pair);
            }
            let before = self.previous[at];
            if before != NO_LINK {
                self.renew(before, at, &pair);
            }
        }
        self.symbols.retain(|symbol| symbol.len > 0);
    }

    fn renew(&mut self, left: usize, right: usize, pair: &impl Fn(&Symbol, &Symbol) -> Merge) {
        let merge = pair(&self.symbols[left], &self.symbols[right]);
        self.pairs[left] = merge;
        if merge.rank != NO_MERGE {
            self.heap.push(Reverse((merge.rank, left)));
        }
    }
}

const NOTHING: Merge = Merge {
    rank: NO_MERGE,
    merged: 0,
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Two equal ids below 12 merge to the next; 3 and 1 merge to 5 before all else.
    fn pair(left: &Symbol, right: &Symbol) -> Option<Merge> {
        match (left.id, right.id) {
            (3, 1) => Some(Merge { rank: 0, merged: 5 }),
            (a, b) if a == b && a < 12 => Some(Merge {
                rank: 1 + a,
                merged: a + 1,
            }),
            _ => None,
        }
    }

    fn symbols(ids: &[u32]) -> Vec<Symbol> {
        ids.iter()
            .enumerate()
            .map(|(start, &id)| Symbol { id, start, len: 1 })
            .collect()
    }

    proptest! {
        #[test]
        fn long_form_equals_short_form(ids in prop::collection::vec(0u32..5, 2..200)) {
            let prepared = || {
                let mut merger = Merger { symbols: symbols(&ids), ..Merger::default() };
                merger.pairs = merger.symbols.windows(2).map(|two| pair(&two[0], &two[1]).unwrap_or(NOTHING)).collect();
                merger.pairs.push(NOTHING);
                merger
            };
            let total = |left: &Symbol, right: &Symbol| pair(left, right).unwrap_or(NOTHING);
            let (mut short, mut long) = (prepared(), prepared());
            short.merge_short(total);
            long.merge_long(total);
            let plain = |merger: &Merger| merger.symbols.iter().map(|s| (s.id, s.start, s.len)).collect::<Vec<_>>();
            prop_assert_eq!(plain(&short), plain(&long));
        }
    }

    #[test]
    fn equal_pairs_merge_from_the_left() {
        let mut merger = Merger {
            symbols: symbols(&[0, 0, 0]),
            ..Merger::default()
        };
        merger.merge(|left, right| pair(left, right).filter(|merge| merge.merged == 1));
        assert_eq!(
            merger.symbols.iter().map(|s| s.id).collect::<Vec<_>>(),
            [1, 0]
        );
    }
}
