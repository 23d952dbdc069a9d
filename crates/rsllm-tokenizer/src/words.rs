//! Words of text in which spaces are written U+2581: stretches that can be encoded one by one, because no token reaches
//! from one into the next. That keeps what is merged short, and lets repeated words be remembered.
//!
//! Nearly all tokens have their spaces in front. The few that have one inside (Gemma: `>▁</`) name the characters after
//! which text may not be cut.

/// Where text may be cut: before a space, unless the character before it is one of these.
#[derive(Debug, Default)]
pub(crate) struct WordBreaks {
    /// Sorted.
    joining: Vec<char>,
}

impl WordBreaks {
    /// Takes note that symbols ending in `c` may be joined with ones that begin with a space.
    pub(crate) fn join_after(&mut self, c: char) {
        if c != SPACE
            && let Err(place) = self.joining.binary_search(&c)
        {
            self.joining.insert(place, c);
        }
    }

    /// Takes note of a token that may be made by joining its characters in any order.
    pub(crate) fn add_token(&mut self, text: &[u8]) {
        // Nearly all tokens are done here, without a look at their characters.
        let after_first = text.get(1..).unwrap_or_default();
        if !after_first
            .windows(SPACE_BYTES.len())
            .any(|part| part == SPACE_BYTES)
        {
            return;
        }
        let Ok(text) = std::str::from_utf8(text) else {
            return;
        };
        let mut rest = text;
        while let Some(at) = rest.find(SPACE) {
            if let Some(before) = rest[..at].chars().next_back() {
                self.join_after(before);
            }
            rest = &rest[at + SPACE.len_utf8()..];
        }
    }

    /// Takes note of a merge of two symbols.
    pub(crate) fn add_merge(&mut self, left: &[u8], right: &[u8]) {
        if right.starts_with(SPACE_BYTES)
            && let Some(before) = std::str::from_utf8(left)
                .ok()
                .and_then(|left| left.chars().next_back())
        {
            self.join_after(before);
        }
    }

    /// The words of `text`; together they are the text.
    pub(crate) fn words<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let mut rest = text;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let (word, after) = rest.split_at(self.word_end(rest));
            rest = after;
            Some(word)
        })
    }

    fn word_end(&self, text: &str) -> usize {
        let mut from = 0;
        loop {
            let start = text.len() - text[from..].trim_start_matches(SPACE).len();
            let Some(index) = text[start..].find(SPACE) else {
                return text.len();
            };
            let end = start + index;
            let may_join = text[..end]
                .chars()
                .next_back()
                .is_some_and(|c| self.joining.binary_search(&c).is_ok());
            if !may_join {
                return end;
            }
            from = end;
        }
    }
}

/// How token texts write a space.
pub(crate) const SPACE: char = '\u{2581}';
const SPACE_BYTES: &[u8] = "\u{2581}".as_bytes();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_begin_at_their_spaces() {
        let mut breaks = WordBreaks::default();
        let words =
            |breaks: &WordBreaks, text| breaks.words(text).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&breaks, "▁▁a▁bc▁"), ["▁▁a", "▁bc", "▁"]);
        assert_eq!(words(&breaks, "a"), ["a"]);
        assert!(words(&breaks, "").is_empty());
        breaks.add_token("▁▁".as_bytes());
        breaks.add_token(">▁</".as_bytes());
        breaks.add_merge("xé".as_bytes(), "▁y".as_bytes());
        breaks.add_merge("z".as_bytes(), b"y");
        assert_eq!(breaks.joining, ['>', 'é']);
        assert_eq!(
            words(&breaks, "a▁>▁b▁é▁▁c▁z▁"),
            ["a", "▁>▁b", "▁é▁▁c", "▁z", "▁"]
        );
    }
}
