//! Prompt tokens whose KV is still there from the request before. Only prefilled tokens count, and only up to the first that
//! differs: prefill numbers do not depend on how a prompt was cut into steps, so a reused prefix gives the same logits, bit for
//! bit, as computing it again. Tokens that were decoded have other numbers and are computed anew.

use crate::TokenId;

/// What the pages hold, from position 0 on.
#[derive(Debug, Default)]
pub(crate) struct PrefilledPrefix {
    tokens: Vec<TokenId>,
}

impl PrefilledPrefix {
    /// How many tokens of `prompt` need not be computed. At least one always is, for its logits.
    pub(crate) fn shared_with(&self, prompt: &[TokenId]) -> usize {
        let same = self
            .tokens
            .iter()
            .zip(prompt)
            .take_while(|(ours, theirs)| ours == theirs)
            .count();
        same.min(prompt.len().saturating_sub(1))
    }

    /// The first `n_kept` positions are about to stay as they are, all others to be overwritten.
    pub(crate) fn truncate(&mut self, n_kept: usize) {
        self.tokens.truncate(n_kept);
    }

    /// `tokens` were prefilled behind what is there.
    pub(crate) fn extend(&mut self, tokens: &[TokenId]) {
        self.tokens.extend_from_slice(tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_part_is_found_and_one_token_is_left_to_compute() {
        let mut prefix = PrefilledPrefix::default();
        assert_eq!(prefix.shared_with(&[1, 2]), 0);
        prefix.extend(&[1, 2, 3]);
        assert_eq!(prefix.shared_with(&[1, 2, 3]), 2);
        assert_eq!(prefix.shared_with(&[1, 2, 3, 4]), 3);
        assert_eq!(prefix.shared_with(&[1, 9, 3]), 1);
        assert_eq!(prefix.shared_with(&[]), 0);
        prefix.truncate(1);
        assert_eq!(prefix.shared_with(&[1, 2, 3]), 1);
    }
}
