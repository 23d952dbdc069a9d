//! A set of tokens, one bit each.

use llguidance::toktrie::SimpleVob;

use crate::TokenId;

/// The tokens that may come next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenMask {
    bits: SimpleVob,
}

impl TokenMask {
    pub(super) fn new(bits: SimpleVob) -> Self {
        Self { bits }
    }

    /// The set of `ids` in a vocabulary of `vocab_size`; for tests.
    #[cfg(test)]
    pub(crate) fn of(vocab_size: usize, ids: impl IntoIterator<Item = TokenId>) -> Self {
        let mut bits = SimpleVob::alloc(vocab_size);
        ids.into_iter().for_each(|id| bits.allow_token(id));
        Self { bits }
    }

    /// Whether the token may come next.
    pub fn allows(&self, id: TokenId) -> bool {
        (id as usize) < self.bits.len() && self.bits.is_allowed(id)
    }

    /// How many tokens may come next.
    pub fn count(&self) -> usize {
        self.bits.num_set()
    }

    /// The token of a set of one.
    pub fn only(&self) -> Option<TokenId> {
        let mut ids = self.bits.iter();
        let first = ids.next();
        if ids.next().is_none() { first } else { None }
    }

    /// Sets the logits (`[vocab_size]`) of all other tokens to negative infinity.
    pub fn apply(&self, logits: &mut [f32]) {
        let words = self.bits.as_slice();
        for (chunk, index) in logits.chunks_mut(32).zip(0..) {
            let word = words.get(index).copied().unwrap_or_default();
            for (bit, logit) in chunk.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }

    /// Whether `holds` is true of every token in the set.
    pub(super) fn all_within(&self, holds: impl Fn(TokenId) -> bool) -> bool {
        self.bits.iter().all(holds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_the_set_goes_to_negative_infinity() {
        let mask = TokenMask::of(70, [0, 31, 32, 69]);
        let mut logits = [1.0; 70];
        mask.apply(&mut logits);
        for (id, logit) in (0..).zip(logits) {
            assert_eq!(logit == 1.0, mask.allows(id), "{id}");
        }
        assert_eq!((mask.count(), mask.only()), (4, None));
        assert!(!mask.allows(70) && !mask.allows(TokenId::MAX));
    }

    #[test]
    fn a_set_of_one_names_its_token() {
        assert_eq!(TokenMask::of(33, [32]).only(), Some(32));
    }
}
