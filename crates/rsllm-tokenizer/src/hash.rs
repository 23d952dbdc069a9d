//! Two hash tables made for vocabularies: text → id and pair of ids → merge. Both are built once, never shrink, and are
//! read millions of times, so they are flat arrays with linear probing at a load of at most one half. The hash is a
//! folded multiplication (as in wyhash), not keyed: lookups with hostile text do not insert, so they cannot lengthen
//! probe runs, and a hostile vocabulary harms nobody but whoever chose to load it.

use rsllm_gguf::StringArray;

use crate::TokenId;

/// Text → id over the texts of a vocabulary, which stay where they are. Of equal texts the last id wins.
///
/// Most tokens are short; a text of up to eight bytes is its own key, and finding it touches one cache line.
#[derive(Debug)]
pub(crate) struct TextIndex {
    /// A power of two in number.
    slots: Vec<TextSlot>,
    has_equals: bool,
}

#[derive(Clone, Copy, Debug)]
struct TextSlot {
    /// The bytes of a text of up to eight, the hash of a longer one.
    key: u64,
    len: u32,
    id: TokenId,
}

impl TextIndex {
    /// Indexes all of `texts`; there are fewer than 2³¹.
    pub(crate) fn new(texts: &StringArray) -> Self {
        let empty = TextSlot {
            key: 0,
            len: 0,
            id: NO_TOKEN,
        };
        let mut index = Self {
            slots: vec![empty; table_len(texts.len())],
            has_equals: false,
        };
        for (id, text) in texts.iter().enumerate() {
            let key = text_key(text);
            let slot = index.find(texts, text, key);
            index.has_equals |= index.slots[slot].id != NO_TOKEN;
            index.slots[slot] = TextSlot {
                key,
                len: text.len() as u32,
                id: id as TokenId,
            };
        }
        index
    }

    /// The id of the token with exactly this text.
    pub(crate) fn get(&self, texts: &StringArray, text: &[u8]) -> Option<TokenId> {
        let slot = self.find(texts, text, text_key(text));
        Some(self.slots[slot].id).filter(|&id| id != NO_TOKEN)
    }

    /// Reads what [`Self::get`] will read first.
    pub(crate) fn touch(&self, texts: &StringArray, text: &[u8]) -> u64 {
        let entry = &self.slots[self.home(text_key(text))];
        let text = if text.len() > 8 {
            texts.get(entry.id as usize).and_then(<[u8]>::last)
        } else {
            None
        };
        entry.key ^ text.map_or(0, |&byte| byte.into())
    }

    fn home(&self, key: u64) -> usize {
        fold(key ^ SEED, FACTOR) as usize & (self.slots.len() - 1)
    }

    /// Whether some texts are equal.
    pub(crate) fn has_equals(&self) -> bool {
        self.has_equals
    }

    /// The slot of the text, or the free one where it would go.
    fn find(&self, texts: &StringArray, text: &[u8], key: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = self.home(key);
        loop {
            let entry = &self.slots[slot];
            let same = || text.len() <= 8 || texts.get(entry.id as usize) == Some(text);
            if entry.id == NO_TOKEN
                || (entry.key == key && entry.len == text.len() as u32 && same())
            {
                return slot;
            }
            slot = (slot + 1) & mask;
        }
    }
}

/// See [`TextSlot::key`].
fn text_key(text: &[u8]) -> u64 {
    if text.len() > 8 {
        return hash_bytes(text);
    }
    let mut word = [0; 8];
    word[..text.len()].copy_from_slice(text);
    u64::from_le_bytes(word)
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

    /// Reads what [`Self::insert`] will read first; the result means nothing.
    pub(crate) fn touch(&self, left: u32, right: u32) -> u64 {
        self.slots[self.home(pair_key(left, right))].pair
    }

    fn home(&self, pair: u64) -> usize {
        fold(pair ^ SEED, FACTOR) as usize & (self.slots.len() - 1)
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
        let mut slot = self.home(pair);
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
pub(crate) fn hash_bytes(bytes: &[u8]) -> u64 {
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

/// The id in a free slot: ids stay below 2³¹.
const NO_TOKEN: TokenId = TokenId::MAX;
/// Never a pair: ids stay below 2³¹.
const EMPTY_PAIR: u64 = u64::MAX;
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
        // Equal as padded words, not as texts.
        assert_eq!(index.get(&texts, b"a\0"), None);
        assert!(index.has_equals());
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
