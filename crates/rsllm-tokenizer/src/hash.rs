//! Two hash tables made for vocabularies: text → id and pair of ids → merge. Both are built once, never shrink, and are
//! read millions of times, so they are flat arrays with linear probing at a load of at most one half. The hash is a
//! folded multiplication (as in wyhash), not keyed: lookups with hostile text do not insert, so they cannot lengthen
//! probe runs, and a hostile vocabulary harms nobody but whoever chose to load it.

use rsllm_gguf::StringArray;

use crate::TokenId;

/// Text → id over the texts of a vocabulary, which stay where they are. Of equal texts the last id wins.
#[derive(Debug)]
pub(crate) struct TextIndex {
    /// High half: upper bits of the hash, low half: id. A power of two in number.
    slots: Vec<u64>,
}

impl TextIndex {
    /// Indexes all of `texts`; there are fewer than 2³¹.
    pub(crate) fn new(texts: &StringArray) -> Self {
        let mut index = Self {
            slots: vec![EMPTY_TEXT; table_len(texts.len())],
        };
        for (id, text) in texts.iter().enumerate() {
            let hash = hash_bytes(text);
            let slot = index.find(texts, text, hash).unwrap_or_else(|free| free);
            index.slots[slot] = (hash & TAG) | id as u64;
        }
        index
    }

    /// The id of the token with exactly this text.
    pub(crate) fn get(&self, texts: &StringArray, text: &[u8]) -> Option<TokenId> {
        let slot = self.find(texts, text, hash_bytes(text)).ok()?;
        Some(self.slots[slot] as u32)
    }

    /// `Ok` is the slot of the text, `Err` the free slot where it would go.
    fn find(&self, texts: &StringArray, text: &[u8], hash: u64) -> Result<usize, usize> {
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let entry = self.slots[slot];
            if entry == EMPTY_TEXT {
                return Err(slot);
            }
            if entry & TAG == hash & TAG && texts.get(entry as u32 as usize) == Some(text) {
                return Ok(slot);
            }
            slot = (slot + 1) & mask;
        }
    }
}

/// What a merge gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Merge {
    /// Merges of lower rank are done first.
    pub(crate) rank: u32,
    /// The symbol that the two become.
    pub(crate) merged: u32,
}

/// Pair of symbols → merge.
#[derive(Debug)]
pub(crate) struct MergeTable {
    slots: Vec<MergeSlot>,
}

#[derive(Clone, Copy, Debug)]
struct MergeSlot {
    pair: u64,
    merge: Merge,
}

impl MergeTable {
    /// An empty table with room for `n_merges`.
    pub(crate) fn with_capacity(n_merges: usize) -> Self {
        let empty = MergeSlot {
            pair: EMPTY_PAIR,
            merge: Merge { rank: 0, merged: 0 },
        };
        Self {
            slots: vec![empty; table_len(n_merges)],
        }
    }

    /// Adds a merge unless the pair has one already. No more may be added than there is room for.
    pub(crate) fn insert(&mut self, left: u32, right: u32, merge: Merge) {
        let pair = pair_key(left, right);
        let slot = self.find(pair);
        if self.slots[slot].pair == EMPTY_PAIR {
            self.slots[slot] = MergeSlot { pair, merge };
        }
    }

    /// The merge of two symbols, if there is one.
    pub(crate) fn get(&self, left: u32, right: u32) -> Option<Merge> {
        let pair = pair_key(left, right);
        let slot = &self.slots[self.find(pair)];
        (slot.pair == pair).then_some(slot.merge)
    }

    /// The slot of `pair`, or the free one where it would go.
    fn find(&self, pair: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = fold(pair ^ SEED, FACTOR) as usize & mask;
        while self.slots[slot].pair != pair && self.slots[slot].pair != EMPTY_PAIR {
            slot = (slot + 1) & mask;
        }
        slot
    }
}

fn pair_key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// At least twice the number of entries, so that probe runs stay short and always end.
fn table_len(n_entries: usize) -> usize {
    (n_entries * 2).next_power_of_two().max(4)
}

/// Hash of a short text.
fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut hash = SEED ^ bytes.len() as u64;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let word = u64::from_le_bytes(chunk.try_into().expect("chunks of eight"));
        hash = fold(hash ^ word, FACTOR);
    }
    let mut tail = 0;
    for &byte in chunks.remainder() {
        tail = tail << 8 | u64::from(byte);
    }
    fold(fold(hash ^ tail, FACTOR), FACTOR)
}

/// Both halves of the 128-bit product, xored.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Never an entry: ids stay below 2³¹.
const EMPTY_TEXT: u64 = u64::MAX;
/// Never a pair: ids stay below 2³¹.
const EMPTY_PAIR: u64 = u64::MAX;
const TAG: u64 = 0xFFFF_FFFF_0000_0000;
/// Odd constants without structure: digits of π.
const SEED: u64 = 0x243F_6A88_85A3_08D3;
const FACTOR: u64 = 0x1319_8A2E_0370_7345;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_of_equal_texts_wins() {
        let texts: StringArray = ["a", "b", "a", ""].into_iter().collect();
        let index = TextIndex::new(&texts);
        assert_eq!(index.get(&texts, b"a"), Some(2));
        assert_eq!(index.get(&texts, b"b"), Some(1));
        assert_eq!(index.get(&texts, b""), Some(3));
        assert_eq!(index.get(&texts, b"c"), None);
    }

    #[test]
    fn text_index_finds_every_text_of_a_large_vocabulary() {
        let texts: StringArray = (0..5000).map(|i| format!("token number {i}")).collect();
        let index = TextIndex::new(&texts);
        for id in 0..5000 {
            assert_eq!(
                index.get(&texts, format!("token number {id}").as_bytes()),
                Some(id)
            );
        }
        assert_eq!(index.get(&texts, b"token number 5000"), None);
    }

    #[test]
    fn first_of_equal_merges_wins() {
        let mut table = MergeTable::with_capacity(2);
        table.insert(1, 2, Merge { rank: 0, merged: 9 });
        table.insert(1, 2, Merge { rank: 1, merged: 8 });
        assert_eq!(table.get(1, 2), Some(Merge { rank: 0, merged: 9 }));
        assert_eq!(table.get(2, 1), None);
    }
}
