//! Cutting special tokens out of a text before the rest is encoded.
//!
//! The order is that of the reference: the longest token texts are looked for first, in all of the text, then shorter
//! ones in what is left. A single left-to-right search that prefers longer matches gives the same result unless one
//! token's end is a longer token's beginning; whether a vocabulary has such a pair is found out once, and only those
//! that do pay for a search a token.

use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, AhoCorasickBuilder, Input, MatchKind};

use crate::TokenId;

/// A token whose text is to be found.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    pub(crate) id: TokenId,
    pub(crate) text: String,
    /// White space before the token goes with it.
    pub(crate) strip_left: bool,
    /// White space after the token goes with it.
    pub(crate) strip_right: bool,
}

/// Finds a set of token texts. How is prepared by the first search: few programs need all finders of a vocabulary.
#[derive(Debug)]
pub(crate) struct Finder {
    /// Longest first, then by id.
    patterns: Vec<Pattern>,
    search: OnceLock<Search>,
}

#[derive(Debug)]
enum Search {
    /// There is nothing to find.
    Nothing,
    /// All at once, leftmost and longest first.
    Together(AhoCorasick),
    /// Pattern after pattern.
    OneByOne,
}

/// A stretch of text and what it is. Parts tile what was cut, in order; none is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// First byte.
    pub(crate) start: usize,
    /// One past the last byte.
    pub(crate) end: usize,
    /// The special token that this is, stripped white space included; `None` for text.
    pub(crate) token: Option<TokenId>,
}

impl Part {
    fn text(start: usize, end: usize) -> Self {
        Self {
            start,
            end,
            token: None,
        }
    }
}

impl Finder {
    /// A finder for `patterns`. Texts are not empty.
    pub(crate) fn new(mut patterns: Vec<Pattern>) -> Self {
        patterns.sort_by(|a, b| b.text.len().cmp(&a.text.len()).then(a.id.cmp(&b.id)));
        Self {
            patterns,
            search: OnceLock::new(),
        }
    }

    fn search(&self) -> &Search {
        self.search.get_or_init(|| {
            if self.patterns.is_empty() {
                return Search::Nothing;
            }
            if self.strips() || may_overlap(&self.patterns) {
                return Search::OneByOne;
            }
            // It refuses more patterns than it can number; searching for each finds the same.
            AhoCorasickBuilder::new()
                .match_kind(MatchKind::LeftmostLongest)
                .build(self.patterns.iter().map(|pattern| &pattern.text))
                .map_or(Search::OneByOne, Search::Together)
        })
    }

    /// Cuts the stretch `start..end` of `text` and hands on its parts in order, none of them empty.
    pub(crate) fn cut(&self, text: &str, start: usize, end: usize, emit: &mut dyn FnMut(Part)) {
        match self.search() {
            Search::Nothing if start < end => emit(Part::text(start, end)),
            Search::Nothing => {}
            Search::Together(automaton) => {
                let mut done = start;
                for found in automaton.find_iter(Input::new(text).span(start..end)) {
                    if done < found.start() {
                        emit(Part::text(done, found.start()));
                    }
                    let token = Some(self.patterns[found.pattern().as_usize()].id);
                    emit(Part {
                        start: found.start(),
                        end: found.end(),
                        token,
                    });
                    done = found.end();
                }
                if done < end {
                    emit(Part::text(done, end));
                }
            }
            Search::OneByOne if start == end => {}
            Search::OneByOne => self
                .cut_one_by_one(text, start, end)
                .into_iter()
                .for_each(emit),
        }
    }

    /// `token` grown by the white space that goes with it in all of `text`, of which only a stretch has been cut.
    pub(crate) fn grow(&self, text: &str, token: Part) -> Part {
        match self
            .patterns
            .iter()
            .find(|pattern| Some(pattern.id) == token.token)
        {
            Some(pattern) => {
                let (start, end) = pattern.strip(text, (0, text.len()), (token.start, token.end));
                Part {
                    start,
                    end,
                    ..token
                }
            }
            None => token,
        }
    }

    /// Whether any token takes white space with it.
    pub(crate) fn strips(&self) -> bool {
        self.patterns
            .iter()
            .any(|pattern| pattern.strip_left || pattern.strip_right)
    }

    fn cut_one_by_one(&self, text: &str, start: usize, end: usize) -> Vec<Part> {
        let mut parts = vec![Part::text(start, end)];
        for pattern in &self.patterns {
            if !text[start..end].contains(&pattern.text) {
                continue;
            }
            let mut next = Vec::with_capacity(parts.len());
            for part in parts {
                if part.token.is_some() {
                    next.push(part);
                } else {
                    pattern.cut(text, part.start, part.end, &mut next);
                }
            }
            parts = next;
        }
        parts
    }
}

impl Pattern {
    fn cut(&self, text: &str, start: usize, end: usize, parts: &mut Vec<Part>) {
        let mut rest = start;
        while let Some(index) = text[rest..end].find(&self.text) {
            let found = rest + index;
            let (token_start, token_end) =
                self.strip(text, (rest, end), (found, found + self.text.len()));
            if rest < token_start {
                parts.push(Part::text(rest, token_start));
            }
            parts.push(Part {
                start: token_start,
                end: token_end,
                token: Some(self.id),
            });
            rest = token_end;
        }
        if rest < end {
            parts.push(Part::text(rest, end));
        }
    }

    /// The stretch `found` grown by the white space that goes with it, not beyond `within`.
    fn strip(&self, text: &str, within: (usize, usize), found: (usize, usize)) -> (usize, usize) {
        let (from, to) = within;
        let (start, end) = found;
        let start = if self.strip_left {
            from + text[from..start].trim_end_matches(is_stripped).len()
        } else {
            start
        };
        let end = if self.strip_right {
            to - text[end..to].trim_start_matches(is_stripped).len()
        } else {
            end
        };
        (start, end)
    }
}

/// White space that goes with a token: the ASCII kinds.
fn is_stripped(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r')
}

/// Whether the two orders of search may differ.
///
/// Let the left-to-right search take pattern M at p, the leftmost place where any begins. The other order takes M too
/// unless a longer pattern O overlaps M; O then begins inside M and ends beyond it. If the text that M and O cover
/// together also begins with a pattern longer than O (or with O itself, as runs of one character do), then M was not
/// the longest at p after all. So without such pairs M and O, save those, both orders agree, from left to right.
fn may_overlap(patterns: &[Pattern]) -> bool {
    let mut sorted: Vec<&[u8]> = patterns
        .iter()
        .map(|pattern| pattern.text.as_bytes())
        .collect();
    sorted.sort_unstable();
    let mut begins = [false; 256];
    for text in &sorted {
        begins[usize::from(text[0])] = true;
    }
    let mut n_pairs = 0;
    for &shorter in &sorted {
        for from in (1..shorter.len()).filter(|&from| begins[usize::from(shorter[from])]) {
            let suffix = &shorter[from..];
            let first = sorted.partition_point(|text| *text < suffix);
            for longer in sorted[first..]
                .iter()
                .take_while(|text| text.starts_with(suffix))
            {
                n_pairs += 1;
                if n_pairs > MAX_PAIRS {
                    return true;
                }
                if longer.len() > shorter.len() && may_lose(shorter, longer, suffix.len(), &sorted)
                {
                    return true;
                }
            }
        }
    }
    false
}

/// Whether `longer`, the first `n_shared` bytes of which end `shorter`, is found by one order of search only.
fn may_lose(shorter: &[u8], longer: &[u8], n_shared: usize, sorted: &[&[u8]]) -> bool {
    let rest = &longer[n_shared..];
    let n_more = longer.len() - shorter.len();
    if longer.strip_prefix(shorter) == Some(&rest[..n_more]) {
        return false;
    }
    let union = [shorter, rest].concat();
    (longer.len() + 1..=union.len()).all(|len| sorted.binary_search(&&union[..len]).is_err())
}

/// How many pairs of patterns are compared before giving up; Gemma 3 has some 45,000, for its runs of
/// spaces, tabs and line feeds.
const MAX_PAIRS: usize = 500_000;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn finder(texts: &[&str]) -> Finder {
        let patterns = (0..).zip(texts).map(|(id, &text)| Pattern {
            id,
            text: text.to_owned(),
            strip_left: false,
            strip_right: false,
        });
        Finder::new(patterns.collect())
    }

    fn cut(finder: &Finder, text: &str) -> Vec<Part> {
        let mut parts = Vec::new();
        finder.cut(text, 0, text.len(), &mut |part| parts.push(part));
        parts
    }

    fn token(id: TokenId, start: usize, end: usize) -> Part {
        Part {
            start,
            end,
            token: Some(id),
        }
    }

    #[test]
    fn a_longer_token_further_right_wins() {
        let finder = finder(&["abc", "bcdef"]);
        assert!(matches!(finder.search(), Search::OneByOne));
        assert_eq!(cut(&finder, "abcdef"), [Part::text(0, 1), token(1, 1, 6)]);
    }

    #[test]
    fn runs_and_brackets_need_one_search_only() {
        for texts in [
            &["\n", "\n\n", "\n\n\n"][..],
            &["<a>", "<ab>", "</a>"],
            &["[INST]", "[/INST]"],
        ] {
            assert!(
                matches!(finder(texts).search(), Search::Together(_)),
                "{texts:?}"
            );
        }
        assert!(matches!(finder(&[]).search(), Search::Nothing));
    }

    #[test]
    fn stripping_takes_white_space_of_the_neighbours() {
        let pattern = Pattern {
            id: 7,
            text: "<m>".into(),
            strip_left: true,
            strip_right: true,
        };
        let finder = Finder::new(vec![pattern]);
        let text = "a \t<m>\n b<m>";
        let parts = cut(&finder, text);
        assert_eq!(
            parts,
            [
                Part::text(0, 1),
                token(7, 1, 8),
                Part::text(8, 9),
                token(7, 9, 12)
            ]
        );
    }

    proptest! {
        #[test]
        fn both_searches_agree(
            texts in prop::collection::hash_set("[ab]{1,4}", 1..6),
            text in "[abc]{0,30}",
        ) {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let finder = finder(&texts);
            // Of equally long overlapping tokens either may come first; leave those vocabularies out.
            if matches!(finder.search(), Search::Together(_)) && !equals_overlap(&texts) {
                let mut one_by_one = finder.cut_one_by_one(&text, 0, text.len());
                one_by_one.retain(|part| part.start < part.end);
                prop_assert_eq!(cut(&finder, &text), one_by_one);
            }
        }
    }

    fn equals_overlap(texts: &[&str]) -> bool {
        texts.iter().any(|a| {
            texts.iter().any(|b| {
                a != b && a.len() == b.len() && (1..a.len()).any(|from| b.starts_with(&a[from..]))
            })
        })
    }
}
