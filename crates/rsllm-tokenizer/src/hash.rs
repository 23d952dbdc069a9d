//! Hash tables made for vocabularies: text → id and pair of texts → merge. Both are built once, never grow, and are read
//! millions of times, so they are flat arrays with linear probing at a load of two thirds.
//!
//! A slot is four bytes: the number of a text, which stays where it is in the file, and as much of its hash as fits.
//! Building a table is one pass over the texts with one write a text; nothing is looked up and nothing copied. What part of
//! a hash says is checked against the text itself.
//!
//! The hash is a folded multiplication (as in wyhash), not keyed: lookups with hostile text do not insert, so they cannot
//! lengthen probe runs, and a hostile vocabulary harms nobody but whoever chose to load it.

use std::convert::Infallible;
use std::ops::Range;

use rsllm_gguf::StringArray;

use crate::TokenId;

/// Text → id over the texts of a vocabulary. Of equal texts the last id wins.
#[derive(Debug)]
pub(crate) struct TextIndex {
    slots: Slots,
}

impl TextIndex {
    /// Indexes all of `texts`; there are at most 2³⁰.
    pub(crate) fn new(texts: &StringArray) -> Self {
        let mut slots = Slots::with_capacity(texts.len());
        let Ok(()) = slots.fill(texts, OfEquals::Last, |_, text| {
            Ok::<_, Infallible>(text.hash())
        });
        Self { slots }
    }

    /// The id of the token with exactly this text.
    pub(crate) fn get(&self, texts: &StringArray, text: &[u8]) -> Option<TokenId> {
        let same = |id: u32| texts.get(id as usize) == Some(text);
        let slot = self.slots.find(hash_bytes(text), same).ok()?;
        Some(self.slots.number(slot))
    }
}

/// The number of a merge that is not two texts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadMerge {
    pub(crate) index: usize,
}

/// Pair of texts → rank of their merge, over the merges of a vocabulary: two texts with a space between, which is the
/// first that does not begin the merge. Of equal merges the first wins.
#[derive(Debug)]
pub(crate) struct MergeIndex {
    slots: Slots,
    merges: StringArray,
}

impl MergeIndex {
    /// Indexes all of `merges`, of which there are at most 2³⁰, and shows their texts to `see`. An error if one is not two
    /// texts.
    pub(crate) fn new(
        merges: &StringArray,
        mut see: impl FnMut(&[u8], &[u8]),
    ) -> Result<Self, BadMerge> {
        let mut slots = Slots::with_capacity(merges.len());
        slots.fill(merges, OfEquals::First, |index, merge| {
            let (left, right) = merge.split().ok_or(BadMerge { index })?;
            see(left.bytes(), right.bytes());
            Ok(hash_pair(left, right))
        })?;
        Ok(Self {
            slots,
            merges: merges.clone(),
        })
    }

    /// The rank of the merge of two texts, if there is one.
    pub(crate) fn get(&self, left: Text<'_>, right: Text<'_>) -> Option<u32> {
        Some(self.slots.number(self.find(left, right)?))
    }

    /// Forgets the merge of two texts.
    pub(crate) fn remove(&mut self, left: &[u8], right: &[u8]) {
        let (left, right) = (left.into(), right.into());
        if let Some(slot) = self.find(left, right) {
            self.slots.forget(slot);
        }
    }

    /// Forgets the merges of more than `n_bytes` for which `keep` is false; it is shown both texts in one.
    pub(crate) fn retain_longer(&mut self, n_bytes: usize, keep: impl Fn(&[u8]) -> bool) {
        let merges = self.merges.clone();
        // The space is one more.
        for merge in all(&merges).filter(|merge| merge.len() > n_bytes + 1) {
            if let Some((left, right)) = merge.split()
                && !keep(&[left.bytes(), right.bytes()].concat())
            {
                self.remove(left.bytes(), right.bytes());
            }
        }
    }

    fn find(&self, left: Text<'_>, right: Text<'_>) -> Option<usize> {
        let (left_bytes, right_bytes) = (left.bytes(), right.bytes());
        let same = |rank: u32| {
            let parts = text_at(&self.merges, rank as usize).and_then(Text::split);
            parts.is_some_and(|(left, right)| {
                left.bytes() == left_bytes && right.bytes() == right_bytes
            })
        };
        self.slots.find(hash_pair(left, right), same).ok()
    }
}

fn text_at(texts: &StringArray, index: usize) -> Option<Text<'_>> {
    Some(Text::new(texts.buffer(), texts.range(index)?))
}

fn all(texts: &StringArray) -> impl Iterator<Item = Text<'_>> {
    (0..texts.len()).filter_map(|index| text_at(texts, index))
}

/// Which of equal texts is found.
#[derive(Clone, Copy)]
enum OfEquals {
    First,
    Last,
}

/// What both tables are: numbers, found by hash.
#[derive(Debug)]
struct Slots {
    /// Part of a hash above a number plus one, which is 0 in free slots. Pages of memory never used before cost more than
    /// all else here, hence the small slots.
    slots: Vec<u32>,
    /// The bits of the number.
    mask: u32,
}

impl Slots {
    /// Half as many slots again as entries, so that probe runs stay short and always end.
    fn with_capacity(n_entries: usize) -> Self {
        // Above all numbers is one of no text, for what is forgotten.
        let mask = (n_entries + 2).next_power_of_two() as u32 - 1;
        Self {
            // Not zero: the system would hand out its pages one by one, in the order of the first texts.
            slots: vec![!mask; n_entries + n_entries / 2 + 4],
            mask,
        }
    }

    /// Adds the numbers of all `texts` under what `hash` gives for each.
    ///
    /// Where a text goes is all over the table, and waiting for memory would take most of the time; looking at all places
    /// of a batch first lets the processor wait for them at once.
    fn fill<E>(
        &mut self,
        texts: &StringArray,
        of_equals: OfEquals,
        mut hash: impl FnMut(usize, Text<'_>) -> Result<u64, E>,
    ) -> Result<(), E> {
        let mut hashes = [0; BATCH];
        let mut all = all(texts).enumerate();
        for start in (0..texts.len()).step_by(BATCH) {
            for (place, (index, text)) in hashes.iter_mut().zip(&mut all) {
                *place = hash(index, text)?;
            }
            let touched = hashes.map(|hash| self.slots[self.home(hash)]);
            std::hint::black_box(touched);
            for (index, hash) in (start..texts.len()).zip(hashes) {
                let text = texts.get(index);
                let found = self.find(hash, |other| texts.get(other as usize) == text);
                match (found, of_equals) {
                    (Ok(_), OfEquals::First) => {}
                    (Ok(slot), OfEquals::Last) | (Err(slot), _) => {
                        self.set(slot, hash, index as u32);
                    }
                }
            }
        }
        Ok(())
    }

    /// Where the search for a hash begins: not by the bits that slots are compared by.
    fn home(&self, hash: u64) -> usize {
        (((hash >> 32) * self.slots.len() as u64) >> 32) as usize
    }

    /// The slot with this hash and a number that is the `same`, or else the free one where it would go.
    fn find(&self, hash: u64, same: impl Fn(u32) -> bool) -> Result<usize, usize> {
        let n_slots = self.slots.len();
        let mut slot = self.home(hash);
        loop {
            let entry = self.slots[slot];
            if entry & self.mask == 0 {
                return Err(slot);
            }
            if (entry ^ hash as u32) & !self.mask == 0 && same((entry & self.mask) - 1) {
                return Ok(slot);
            }
            slot += 1;
            if slot == n_slots {
                slot = 0;
            }
        }
    }

    fn number(&self, slot: usize) -> u32 {
        (self.slots[slot] & self.mask) - 1
    }

    /// Makes the slot find nothing, and not end a search.
    fn forget(&mut self, slot: usize) {
        self.slots[slot] |= self.mask;
    }

    fn set(&mut self, slot: usize, hash: u64, number: u32) {
        self.slots[slot] = (hash as u32 & !self.mask) | (number + 1);
    }
}

fn hash_pair(left: Text<'_>, right: Text<'_>) -> u64 {
    fold(left.hash().rotate_left(32), right.hash() ^ FACTOR)
}

/// Hash of a short text.
pub(crate) fn hash_bytes(bytes: &[u8]) -> u64 {
    Text::from(bytes).hash()
}

/// A stretch of a buffer. Short texts are read at once, with what follows them in the buffer, and then cut: no step
/// depends on their length, which the processor could not foresee.
#[derive(Clone, Copy)]
pub(crate) struct Text<'b> {
    buffer: &'b [u8],
    start: usize,
    end: usize,
}

impl<'b> From<&'b [u8]> for Text<'b> {
    fn from(bytes: &'b [u8]) -> Self {
        Self::new(bytes, 0..bytes.len())
    }
}

impl<'b> Text<'b> {
    pub(crate) fn new(buffer: &'b [u8], range: Range<usize>) -> Self {
        Self {
            buffer,
            start: range.start,
            end: range.end,
        }
    }

    fn bytes(self) -> &'b [u8] {
        &self.buffer[self.start..self.end]
    }

    fn len(self) -> usize {
        self.end - self.start
    }

    fn part(self, from: usize, to: usize) -> Self {
        Self {
            buffer: self.buffer,
            start: self.start + from,
            end: self.start + to,
        }
    }

    /// The first 16 bytes as a number, followed by zeros if there are less.
    fn word(self) -> u128 {
        let word = match self.buffer[self.start..].first_chunk() {
            Some(bytes) => u128::from_le_bytes(*bytes),
            None => word_of(&self.buffer[self.start..]),
        };
        if self.len() < WORD {
            word & ((1 << (8 * self.len())) - 1)
        } else {
            word
        }
    }

    fn hash(self) -> u64 {
        let word = self.word();
        let hash = fold(word as u64 ^ SEED, (word >> 64) as u64 ^ FACTOR);
        let mut hash = fold(hash ^ self.len() as u64, FACTOR);
        if self.len() > WORD {
            let (chunks, rest) = self.bytes()[WORD..].as_chunks::<WORD>();
            for word in chunks
                .iter()
                .map(|chunk| u128::from_le_bytes(*chunk))
                .chain([word_of(rest)])
            {
                hash = fold(hash ^ word as u64, (word >> 64) as u64 ^ FACTOR);
            }
        }
        hash
    }

    /// The two texts of a merge.
    fn split(self) -> Option<(Self, Self)> {
        // The lowest byte that is a space becomes the lowest that has its highest bit set.
        let differences = (self.word() >> 8) ^ (EVERY_BYTE * u128::from(b' '));
        let spaces = differences.wrapping_sub(EVERY_BYTE) & !differences & (EVERY_BYTE << 7);
        let mut space = 1 + spaces.trailing_zeros() as usize / 8;
        if space >= WORD {
            space = WORD
                + self
                    .bytes()
                    .get(WORD..)?
                    .iter()
                    .position(|&byte| byte == b' ')?;
        }
        (space + 1 < self.len()).then(|| (self.part(0, space), self.part(space + 1, self.len())))
    }
}

/// Less than 16 bytes, as [`Text::word`].
fn word_of(bytes: &[u8]) -> u128 {
    let mut word = [0; WORD];
    word[..bytes.len()].copy_from_slice(bytes);
    u128::from_le_bytes(word)
}

/// Both halves of the 128-bit product, xored.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Texts whose places are looked at together.
const BATCH: usize = 64;
/// Bytes in a word.
const WORD: usize = 16;
const EVERY_BYTE: u128 = u128::from_le_bytes([1; WORD]);
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
        assert_eq!(index.get(&texts, b"a\0"), None);
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
    fn merges_are_found_by_their_texts() {
        let merges: StringArray = ["a b", "b c", "a b", "  c", "d e f"].into_iter().collect();
        let mut seen = Vec::new();
        let get =
            |index: &MergeIndex, left: &[u8], right: &[u8]| index.get(left.into(), right.into());
        let mut index =
            MergeIndex::new(&merges, |left, right| seen.push([left, right].concat())).unwrap();
        assert_eq!(
            seen,
            ["ab", "bc", "ab", " c", "de f"].map(|text| text.as_bytes().to_vec())
        );
        // The first of equals.
        assert_eq!(get(&index, b"a", b"b"), Some(0));
        assert_eq!(get(&index, b"b", b"a"), None);
        // The space may begin the merge, and only the first other parts it.
        assert_eq!(get(&index, b" ", b"c"), Some(3));
        assert_eq!(get(&index, b"d", b"e f"), Some(4));
        assert_eq!(get(&index, b"d e", b"f"), None);
        index.remove(b"a", b"b");
        index.remove(b"a", b"z");
        index.retain_longer(2, |joined| joined != b"de f");
        assert_eq!(get(&index, b"d", b"e f"), None);
        assert_eq!(get(&index, b"a", b"b"), None);
        assert_eq!(get(&index, b"b", b"c"), Some(1));
    }

    #[test]
    fn what_is_not_two_texts_is_named() {
        for bad in ["ab", "", " ", "a ", " a"] {
            let merges: StringArray = ["a b", bad].into_iter().collect();
            assert_eq!(
                MergeIndex::new(&merges, |_, _| {}).unwrap_err(),
                BadMerge { index: 1 },
                "{bad:?}"
            );
        }
    }

    #[test]
    fn texts_of_any_length_differ_in_hash() {
        let text = b"the quick brown fox jumps over the lazy dog";
        let mut hashes = std::collections::HashSet::new();
        for len in 0..=text.len() {
            assert!(hashes.insert(hash_bytes(&text[..len])));
            for at in 0..len {
                let mut other = text[..len].to_vec();
                other[at] ^= 1;
                assert!(hashes.insert(hash_bytes(&other)), "{len} {at}");
            }
        }
    }
}
