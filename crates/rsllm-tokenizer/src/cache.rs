//! Memory kept while one text is encoded. Words repeat: within a long text, the ids of pieces met before are copied instead
//! of merged anew.

use crate::TokenId;
use crate::hash::hash_bytes;
use crate::merge::Merger;

/// What encoding one text needs, piece after piece.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) merger: Merger,
    /// A piece or line as token texts write it.
    pub(crate) text: String,
    pub(crate) cache: PieceCache,
}

/// Pieces of one text and their ids: direct-mapped, later pieces displace earlier ones. Off until enabled.
#[derive(Debug, Default)]
pub(crate) struct PieceCache {
    slots: Vec<Slot>,
    texts: Vec<u8>,
    ids: Vec<TokenId>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    hash: u64,
    text_start: u32,
    ids_start: u32,
    text_len: u32,
    n_ids: u32,
}

impl PieceCache {
    /// Starts caching.
    pub(crate) fn enable(&mut self) {
        self.slots.resize(N_SLOTS, Slot::default());
    }

    /// Appends the ids of `piece`, from the cache or else from `encode`, which appends them to `out`.
    pub(crate) fn get_or_encode(
        &mut self,
        piece: &str,
        out: &mut Vec<TokenId>,
        encode: impl FnOnce(&mut Vec<TokenId>),
    ) {
        if self.slots.is_empty() || piece.len() > MAX_TEXT {
            return encode(out);
        }
        let hash = hash_bytes(piece.as_bytes());
        let index = hash as usize % N_SLOTS;
        let slot = self.slots[index];
        if slot.hash == hash && self.text(slot) == piece.as_bytes() {
            let start = slot.ids_start as usize;
            out.extend_from_slice(&self.ids[start..start + slot.n_ids as usize]);
            return;
        }
        let n_before = out.len();
        encode(out);
        if self.texts.len() > MAX_BYTES {
            self.texts.clear();
            self.ids.clear();
            self.slots.fill(Slot::default());
        }
        // At most `MAX_BYTES` and a piece: the offsets fit 32 bits.
        self.slots[index] = Slot {
            hash,
            text_start: self.texts.len() as u32,
            ids_start: self.ids.len() as u32,
            text_len: piece.len() as u32,
            n_ids: (out.len() - n_before) as u32,
        };
        self.texts.extend_from_slice(piece.as_bytes());
        self.ids.extend_from_slice(&out[n_before..]);
    }

    fn text(&self, slot: Slot) -> &[u8] {
        let start = slot.text_start as usize;
        &self.texts[start..start + slot.text_len as usize]
    }
}

/// From this length in bytes on a text repeats its words often enough.
pub(crate) const MIN_TEXT: usize = 2048;
const N_SLOTS: usize = 4096;
/// The longest piece worth keeping.
const MAX_TEXT: usize = 48;
/// When the texts take so much, the cache starts over.
const MAX_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_encoded_once() {
        let mut cache = PieceCache::default();
        cache.enable();
        let mut n_encoded = 0;
        for _ in 0..3 {
            for piece in ["a", "bc", ""] {
                let mut out = vec![7];
                cache.get_or_encode(piece, &mut out, |out| {
                    n_encoded += 1;
                    out.extend(piece.bytes().map(u32::from));
                });
                assert_eq!(out.len(), 1 + piece.len());
            }
        }
        assert_eq!(n_encoded, 3);
    }

    #[test]
    fn overflow_starts_over() {
        let mut cache = PieceCache::default();
        cache.enable();
        for number in 0..100_000u32 {
            let mut out = Vec::new();
            cache.get_or_encode(&format!("piece {}", number % 30_000), &mut out, |out| {
                out.push(number % 30_000);
            });
            assert_eq!(out, [number % 30_000]);
        }
        assert!(cache.texts.len() <= MAX_BYTES + MAX_TEXT);
    }
}
