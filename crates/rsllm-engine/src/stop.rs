//! Stop strings over a stream of text pieces. Matching is on text, never on tokens: a stop string may begin and end anywhere
//! within a token.
//!
//! The matcher holds back exactly the longest suffix of the text that is still a beginning of some stop string, and lets
//! everything before it go at once. Which stop wins does not depend on how the text was cut into pieces: the one that is
//! complete first, and of those complete at the same byte the longest. It is the automaton of Aho and Corasick (1975), so time
//! is linear in the text, whatever the stop strings.
//!
//! Pieces are whole characters (`str`). The automaton works on bytes, yet cuts fall between characters: a suffix that begins
//! like a stop string begins with the first byte of a character.

use crate::sampling::OptionError;

/// Looks for the stop strings of one sequence.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// Node 0 is the root: nothing matched. With no stop strings it is the only one.
    nodes: Vec<Node>,
    /// The longest beginning of a stop string that the text so far ends in.
    state: usize,
    /// Text not yet let go: as many bytes as `state` is deep.
    held: String,
    /// Set once a stop string is complete; no text leaves after that.
    found: Option<usize>,
}

/// A beginning of at least one stop string.
#[derive(Clone, Debug)]
struct Node {
    /// By the next byte, in order.
    children: Vec<(u8, usize)>,
    /// The node of the longest proper suffix that is a beginning as well.
    suffix: usize,
    /// Length of the beginning in bytes.
    depth: usize,
    /// The longest stop string that this beginning ends in, if any.
    stop: Option<usize>,
}

/// The most stop strings of a sequence. Clients send four or so; the limit bounds memory.
pub const MAX_STOPS: usize = 256;
/// The most bytes of all stop strings of a sequence together.
pub const MAX_STOP_BYTES: usize = 64 * 1024;

impl StopMatcher {
    /// A matcher for `stops`, of which none may be empty. No stop strings at all is fine: then nothing is held back.
    pub fn new(stops: Vec<String>) -> Result<Self, OptionError> {
        if stops.len() > MAX_STOPS {
            return Err(OptionError::new(
                "stop",
                format!("at most {MAX_STOPS} strings"),
                stops.len(),
            ));
        }
        let n_bytes: usize = stops.iter().map(String::len).sum();
        if n_bytes > MAX_STOP_BYTES {
            let expected = format!("strings of at most {MAX_STOP_BYTES} bytes together");
            return Err(OptionError::new(
                "stop",
                expected,
                format!("{n_bytes} bytes"),
            ));
        }
        if stops.iter().any(String::is_empty) {
            return Err(OptionError::new(
                "stop",
                "strings that are not empty",
                "an empty string",
            ));
        }
        let longest = stops.iter().map(String::len).max().unwrap_or(0);
        let nodes = build_nodes(&stops);
        Ok(Self {
            stops,
            nodes,
            state: 0,
            held: String::with_capacity(longest),
            found: None,
        })
    }

    /// Takes the next piece of text and appends to `out` what may leave. Returns true when a stop string is complete; it and
    /// all text after it never leave.
    pub fn push(&mut self, piece: &str, out: &mut String) -> bool {
        if self.found.is_some() {
            return true;
        }
        for (position, byte) in piece.bytes().enumerate() {
            self.state = self.next_state(byte);
            if let Some(stop) = self.nodes[self.state].stop {
                self.found = Some(stop);
                let n_read = self.held.len() + position + 1;
                self.release(piece, n_read - self.stops[stop].len(), out);
                self.held.clear();
                return true;
            }
        }
        let n_kept = self.nodes[self.state].depth;
        let n_free = self.held.len() + piece.len() - n_kept;
        self.release(piece, n_free, out);
        false
    }

    /// The text has ended: what was held back leaves, unless a stop string is complete.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
        self.state = 0;
    }

    /// The stop string that was found.
    pub fn found(&self) -> Option<&str> {
        self.found.map(|stop| self.stops[stop].as_str())
    }

    /// Text that waits for a decision.
    pub fn held(&self) -> &str {
        &self.held
    }

    /// Moves the first `n_free` bytes of the held text and `piece`, taken together, to `out`; the rest is held.
    fn release(&mut self, piece: &str, n_free: usize, out: &mut String) {
        if n_free >= self.held.len() {
            let (free, kept) = piece.split_at(n_free - self.held.len());
            out.push_str(&self.held);
            out.push_str(free);
            self.held.clear();
            self.held.push_str(kept);
        } else {
            out.push_str(&self.held[..n_free]);
            self.held.drain(..n_free);
            self.held.push_str(piece);
        }
    }

    fn next_state(&self, byte: u8) -> usize {
        let mut state = self.state;
        loop {
            if let Some(child) = self.nodes[state].child(byte) {
                return child;
            }
            if state == 0 {
                return 0;
            }
            // Each step up undoes at least one step down, so the loop costs no more than the text is long.
            state = self.nodes[state].suffix;
        }
    }
}

impl Node {
    fn new(depth: usize) -> Self {
        Self {
            children: Vec::new(),
            suffix: 0,
            depth,
            stop: None,
        }
    }

    fn child(&self, byte: u8) -> Option<usize> {
        let position = self
            .children
            .binary_search_by_key(&byte, |&(byte, _)| byte)
            .ok()?;
        Some(self.children[position].1)
    }
}

fn build_nodes(stops: &[String]) -> Vec<Node> {
    let mut nodes = vec![Node::new(0)];
    for (index, stop) in stops.iter().enumerate() {
        let mut node = 0;
        for byte in stop.bytes() {
            node = match nodes[node]
                .children
                .binary_search_by_key(&byte, |&(byte, _)| byte)
            {
                Ok(position) => nodes[node].children[position].1,
                Err(position) => {
                    let child = nodes.len();
                    let depth = nodes[node].depth + 1;
                    nodes[node].children.insert(position, (byte, child));
                    nodes.push(Node::new(depth));
                    child
                }
            };
        }
        nodes[node].stop.get_or_insert(index);
    }
    // Breadth first, so that a node's suffix, which is shorter, is complete before the node.
    let mut queue: std::collections::VecDeque<usize> =
        nodes[0].children.iter().map(|&(_, child)| child).collect();
    while let Some(node) = queue.pop_front() {
        for (byte, child) in nodes[node].children.clone() {
            let mut above = nodes[node].suffix;
            while above != 0 && nodes[above].child(byte).is_none() {
                above = nodes[above].suffix;
            }
            let suffix = nodes[above].child(byte).unwrap_or(0);
            nodes[child].suffix = suffix;
            // The node's own stop string is longer than any that ends in its suffix.
            nodes[child].stop = nodes[child].stop.or(nodes[suffix].stop);
            queue.push_back(child);
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matcher(stops: &[&str]) -> StopMatcher {
        StopMatcher::new(stops.iter().map(ToString::to_string).collect()).unwrap()
    }

    /// What leaves after each piece, what leaves at the end, and the stop found.
    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, String, Option<String>) {
        let mut matcher = matcher(stops);
        let mut left = Vec::new();
        for piece in pieces {
            let mut out = String::new();
            let found = matcher.push(piece, &mut out);
            assert_eq!(found, matcher.found().is_some());
            left.push(out);
        }
        let mut rest = String::new();
        matcher.finish(&mut rest);
        (left, rest, matcher.found().map(str::to_owned))
    }

    #[test]
    fn a_stop_inside_a_token_cuts_it() {
        assert_eq!(
            run(&["ot"], &["is", " not", " it"]),
            (
                vec!["is".into(), " n".into(), String::new()],
                String::new(),
                Some("ot".into())
            )
        );
    }

    #[test]
    fn a_stop_over_several_tokens_never_leaks() {
        let (left, rest, found) = run(&["\nUser:"], &["Hi", "\n", "Us", "er", ":", " x"]);
        assert_eq!(left.concat(), "Hi");
        assert_eq!((rest.as_str(), found.as_deref()), ("", Some("\nUser:")));
    }

    #[test]
    fn a_false_alarm_is_released_at_once_or_at_the_end() {
        let (left, rest, found) = run(&["\nUser:"], &["a\nUs", "es", "\nUs"]);
        assert_eq!(left, ["a", "\nUses", ""]);
        assert_eq!((rest.as_str(), found), ("\nUs", None));
    }

    #[test]
    fn only_the_part_that_may_still_match_is_held() {
        // After "aab" + "aa", the longest suffix that begins the stop is "aabaa", then with "a" only "aa".
        let (left, ..) = run(&["aabaac"], &["aabaa", "a", "b"]);
        assert_eq!(left, ["", "aaba", ""]);
    }

    #[test]
    fn the_stop_complete_first_wins_and_then_the_longest() {
        assert_eq!(
            run(&["abcd", "bc"], &["xabcd"]),
            (vec!["xa".into()], String::new(), Some("bc".into()))
        );
        assert_eq!(
            run(&["bc", "abc"], &["xabc"]),
            (vec!["x".into()], String::new(), Some("abc".into()))
        );
    }

    #[test]
    fn characters_that_share_bytes_stay_whole() {
        // U+4E2D and U+4E2E differ in the last byte only.
        let (left, rest, _) = run(&["\u{4e2d}\u{6587}"], &["\u{4e2e}", "\u{4e2d}", "\u{4e2d}"]);
        assert_eq!(left, ["\u{4e2e}", "", "\u{4e2d}"]);
        assert_eq!(rest, "\u{4e2d}");
    }

    #[test]
    fn without_stops_everything_leaves() {
        assert_eq!(
            run(&[], &["a", "", "b"]),
            (
                vec!["a".into(), String::new(), "b".into()],
                String::new(),
                None
            )
        );
    }

    #[test]
    fn bad_stops_are_refused() {
        let message = |stops: Vec<String>| StopMatcher::new(stops).unwrap_err().to_string();
        assert_eq!(
            message(vec!["a".into(), String::new()]),
            "option `stop` must be strings that are not empty, not an empty string"
        );
        assert!(message(vec!["a".into(); 257]).contains("at most 256 strings"));
        assert!(message(vec!["a".repeat(65_537)]).contains("65537 bytes"));
    }

    #[test]
    fn hostile_repetition_is_linear() {
        // Quadratic work would take minutes.
        let mut matcher = matcher(&[&("a".repeat(60_000) + "b")]);
        let mut out = String::new();
        let piece = "a".repeat(1000);
        for _ in 0..500 {
            matcher.push(&piece, &mut out);
        }
        matcher.finish(&mut out);
        assert_eq!(out.len(), 500_000);
    }

    /// Few letters, one of them two bytes long, so that matches and near misses are common.
    fn text(length: std::ops::Range<usize>) -> impl Strategy<Value = String> {
        prop::collection::vec(prop::sample::select(vec!['a', 'b', 'é', 'è']), length)
            .prop_map(String::from_iter)
    }

    /// Where the text is cut by definition: the stop that ends first, the longest of those.
    fn cut_by_definition<'t>(text: &'t str, stops: &[String]) -> (&'t str, Option<String>) {
        for end in 1..=text.len() {
            let ending = stops
                .iter()
                .filter(|stop| text.as_bytes()[..end].ends_with(stop.as_bytes()));
            if let Some(stop) = ending.max_by_key(|stop| stop.len()) {
                return (&text[..end - stop.len()], Some(stop.clone()));
            }
        }
        (text, None)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn streamed_pieces_add_up_to_the_text_cut_at_the_first_stop(
            text in text(0..40),
            stops in prop::collection::vec(text(1..6), 0..4),
            sizes in prop::collection::vec(0_usize..6, 40),
        ) {
            let (expected, expected_stop) = cut_by_definition(&text, &stops);
            let mut matcher = StopMatcher::new(stops.clone()).unwrap();
            let mut chars = text.chars();
            let (mut out, mut read) = (String::new(), String::new());
            for size in sizes.into_iter().chain([text.len()]) {
                let piece: String = chars.by_ref().take(size).collect();
                read.push_str(&piece);
                if matcher.push(&piece, &mut out) {
                    break;
                }
                // Exactly the longest suffix that may still become a stop string is held.
                let longest = (0..=read.len())
                    .find(|&start| stops.iter().any(|stop| stop.as_bytes().starts_with(&read.as_bytes()[start..])))
                    .map_or(0, |start| read.len() - start);
                prop_assert_eq!(matcher.held().len(), longest);
                prop_assert_eq!(out.clone() + matcher.held(), read.clone());
            }
            matcher.finish(&mut out);
            prop_assert_eq!(out, expected);
            prop_assert_eq!(matcher.found().map(str::to_owned), expected_stop);
        }
    }
}
