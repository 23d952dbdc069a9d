//! The words in which pre-tokenizer rule sets are written, and how each matches.
//!
//! The published rule sets are regular expressions for backtracking engines, with look-ahead. They use few forms; each
//! form is one variant here with a hand-written matcher that looks at every character a bounded number of times, so no
//! input makes splitting slower than linear.

use std::cell::{Cell, OnceCell};

use crate::unicode::{ClassTable, Classes};

/// One pass over the text: what it does to every fragment the passes before have left.
#[derive(Debug)]
pub(crate) enum Stage {
    /// At each position the first rule that matches cuts out its match; what no rule matches forms pieces of its own.
    Rules(&'static [Rule]),
    /// Runs of these digits are cut into groups of three, aligned to the right; the first has one to three. (This is
    /// `\d{1,3}(?=(?:\d{3})*\b)`, but the reference does not look for the word boundary.)
    DigitGroups(CharSet),
}

/// One alternative of a rule set. In the descriptions a set stands for itself, `?`, `+` and `*` are as in regular
/// expressions and greedy.
#[derive(Debug)]
pub(crate) enum Rule {
    /// `'s 't 're 've 'm 'll 'd`, in lower case only or in any.
    Contraction {
        /// Whether capitals count too.
        any_case: bool,
    },
    /// A run of characters of one set.
    Run(Run),
    /// `lead? upper* lower+ | lead? upper+ lower*`, then a contraction if asked and there is one.
    CasedWord(CasedWord),
    /// `lead? (letter mark* (space letter mark*)*)+`: words with single spaces between.
    Phrase {
        /// What may stand before.
        lead: CharSet,
    },
    /// `\s*[\r\n]+`: white space up to the last newline in it.
    ThroughLastNewline,
    /// `\s+(?!\S)`: white space, less its last character where text follows.
    SpacesBeforeText,
    /// `\s{n}(?!\S)`: this many white-space characters, not directly before text.
    SpacesExactly(u32),
    /// `set+$`: characters of the set at the end of the fragment. Only one such rule a stage.
    Trailing(CharSet),
    /// This text.
    Literal(&'static str),
    /// This text, then characters of the set (at least one, at most `max`), then `after`.
    Bracketed {
        /// Text before.
        before: &'static str,
        /// Characters between.
        body: CharSet,
        /// Their greatest number.
        max: u32,
        /// Text after.
        after: &'static str,
    },
}

/// `lead body{min,max} tail* contraction?`.
#[derive(Debug)]
pub(crate) struct Run {
    lead: Lead,
    body: CharSet,
    min: u32,
    max: u32,
    tail: CharSet,
    tail_max: u32,
    contraction: bool,
}

/// What stands before the body of a run.
#[derive(Debug)]
enum Lead {
    None,
    Optional(CharSet),
    Required(CharSet),
}

impl Run {
    /// `body+`.
    pub(crate) const fn of(body: CharSet) -> Self {
        let lead = Lead::None;
        Self {
            lead,
            body,
            min: 1,
            max: u32::MAX,
            tail: CharSet::EMPTY,
            tail_max: u32::MAX,
            contraction: false,
        }
    }

    /// Preceded by one character of the set, if there is one there and the run still has its least length.
    pub(crate) const fn after_optional(mut self, lead: CharSet) -> Self {
        self.lead = Lead::Optional(lead);
        self
    }

    /// Preceded by one character of the set.
    pub(crate) const fn after(mut self, lead: CharSet) -> Self {
        self.lead = Lead::Required(lead);
        self
    }

    /// At least `min` and at most `max` characters.
    pub(crate) const fn times(mut self, min: u32, max: u32) -> Self {
        self.min = min;
        self.max = max;
        self
    }

    /// With at most `max` characters of the set behind it.
    pub(crate) const fn then(mut self, tail: CharSet, max: u32) -> Self {
        self.tail = tail;
        self.tail_max = max;
        self
    }

    /// With a contraction in any case behind it, if there is one.
    pub(crate) const fn then_contraction(mut self) -> Self {
        self.contraction = true;
        self
    }

    /// As a rule.
    pub(crate) const fn rule(self) -> Rule {
        Rule::Run(self)
    }
}

/// See [`Rule::CasedWord`].
#[derive(Debug)]
pub(crate) struct CasedWord {
    /// What may stand before.
    pub(crate) lead: CharSet,
    /// Characters of the first part.
    pub(crate) upper: CharSet,
    /// Characters of the second part; may share some with the first.
    pub(crate) lower: CharSet,
    /// Whether a contraction may follow.
    pub(crate) contraction: bool,
}

/// A set of characters: those of some classes and ranges, less those of others; or all but these.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CharSet {
    classes: Classes,
    ranges: &'static [(char, char)],
    except_classes: Classes,
    except_ranges: &'static [(char, char)],
    negated: bool,
}

impl CharSet {
    /// No character.
    pub(crate) const EMPTY: Self = Self::of(Classes::NONE);

    /// The characters of any of the classes.
    pub(crate) const fn of(classes: Classes) -> Self {
        Self {
            classes,
            ranges: &[],
            except_classes: Classes::NONE,
            except_ranges: &[],
            negated: false,
        }
    }

    /// The characters of none of the classes.
    pub(crate) const fn none_of(classes: Classes) -> Self {
        let mut set = Self::of(classes);
        set.negated = true;
        set
    }

    /// The characters of the ranges, ends included.
    pub(crate) const fn ranges(ranges: &'static [(char, char)]) -> Self {
        Self::of(Classes::NONE).with(ranges)
    }

    /// With the ranges added (before a negation).
    pub(crate) const fn with(mut self, ranges: &'static [(char, char)]) -> Self {
        self.ranges = ranges;
        self
    }

    /// Without the characters of the classes.
    pub(crate) const fn except(mut self, classes: Classes) -> Self {
        self.except_classes = classes;
        self
    }

    /// Without the characters of the ranges.
    pub(crate) const fn except_range(mut self, ranges: &'static [(char, char)]) -> Self {
        self.except_ranges = ranges;
        self
    }

    fn contains(&self, c: char, classes: Classes) -> bool {
        let listed = self.classes.meets(classes) || in_ranges(self.ranges, c);
        let excepted = self.except_classes.meets(classes) || in_ranges(self.except_ranges, c);
        (listed && !excepted) != self.negated
    }
}

fn in_ranges(ranges: &[(char, char)], c: char) -> bool {
    ranges.iter().any(|&(first, last)| first <= c && c <= last)
}

/// A fragment being split.
pub(crate) struct Fragment<'t> {
    pub(crate) text: &'t str,
    pub(crate) table: &'static ClassTable,
    /// The run of white space looked at last: rules that match only a part of a run would measure it again and again.
    spaces: Cell<SpaceRun>,
    /// Where the white space at the end of the fragment begins, once asked for.
    trailing: OnceCell<usize>,
}

/// A run of white space.
#[derive(Clone, Copy, Default)]
struct SpaceRun {
    start: usize,
    end: usize,
    /// Where its last newline ends; `start` if there is none.
    newline_end: usize,
}

impl<'t> Fragment<'t> {
    pub(crate) fn new(text: &'t str, table: &'static ClassTable) -> Self {
        Self {
            text,
            table,
            spaces: Cell::default(),
            trailing: OnceCell::new(),
        }
    }

    /// The rest, from `at` on, of the run of white space there; empty if there is none.
    fn spaces(&self, at: usize) -> SpaceRun {
        let mut run = self.spaces.get();
        if !(run.start <= at && at < run.end) {
            let end = self.run_end(&SPACE, at);
            let newline = self.text[at..end].rfind(['\r', '\n']);
            run = SpaceRun {
                start: at,
                end,
                newline_end: newline.map_or(at, |index| at + index + 1),
            };
            self.spaces.set(run);
        }
        SpaceRun {
            start: at,
            newline_end: run.newline_end.max(at),
            ..run
        }
    }

    /// The character at byte `at`, or `None` at the end.
    pub(crate) fn char_at(&self, at: usize) -> Option<char> {
        let byte = *self.text.as_bytes().get(at)?;
        if byte.is_ascii() {
            Some(byte as char)
        } else {
            self.text[at..].chars().next()
        }
    }

    /// Where the character at `at` ends, if it is in `set`.
    fn one(&self, set: &CharSet, at: usize) -> Option<usize> {
        let c = self.char_at(at)?;
        set.contains(c, self.table.classes(c))
            .then(|| at + c.len_utf8())
    }

    /// Where a run of at most `max` characters of `set` from `at` on ends, and how many there are.
    fn run(&self, set: &CharSet, at: usize, max: u32) -> (usize, u32) {
        let (mut end, mut n) = (at, 0);
        while n < max {
            let Some(next) = self.one(set, end) else {
                break;
            };
            end = next;
            n += 1;
        }
        (end, n)
    }

    pub(crate) fn run_end(&self, set: &CharSet, at: usize) -> usize {
        self.run(set, at, u32::MAX).0
    }

    /// The start of the character that ends at `end`, which is not the start of the fragment.
    fn char_before(&self, end: usize) -> (usize, char) {
        let c = self.text[..end]
            .chars()
            .next_back()
            .expect("not at the start");
        (end - c.len_utf8(), c)
    }
}

impl Rule {
    /// Where a match from `at` on ends; matches are not empty. `at` is a character boundary before the end.
    pub(crate) fn match_at(&self, fragment: &Fragment<'_>, at: usize) -> Option<usize> {
        match self {
            Self::Contraction { any_case } => contraction(fragment, at, *any_case),
            Self::Run(run) => run.match_at(fragment, at),
            Self::CasedWord(word) => word.match_at(fragment, at),
            Self::Phrase { lead } => phrase(fragment, at, lead),
            Self::ThroughLastNewline => through_last_newline(fragment, at),
            Self::SpacesBeforeText => spaces_before_text(fragment, at),
            Self::SpacesExactly(n) => {
                let (end, found) = fragment.run(&SPACE, at, *n);
                let before_text =
                    fragment.char_at(end).is_some() && fragment.one(&SPACE, end).is_none();
                (found == *n && !before_text).then_some(end)
            }
            Self::Trailing(set) => trailing_spaces(fragment, at, set),
            Self::Literal(text) => fragment.text[at..]
                .starts_with(text)
                .then(|| at + text.len()),
            Self::Bracketed {
                before,
                body,
                max,
                after,
            } => {
                if !fragment.text[at..].starts_with(before) {
                    return None;
                }
                let (end, found) = fragment.run(body, at + before.len(), *max);
                (found > 0 && fragment.text[end..].starts_with(after)).then(|| end + after.len())
            }
        }
    }
}

impl Run {
    fn match_at(&self, fragment: &Fragment<'_>, at: usize) -> Option<usize> {
        let body_end = match &self.lead {
            Lead::None => self.body_end(fragment, at),
            Lead::Required(lead) => self.body_end(fragment, fragment.one(lead, at)?),
            Lead::Optional(lead) => fragment
                .one(lead, at)
                .and_then(|after| self.body_end(fragment, after))
                .or_else(|| self.body_end(fragment, at)),
        }?;
        let end = fragment.run(&self.tail, body_end, self.tail_max).0;
        Some(if self.contraction {
            contraction(fragment, end, true).unwrap_or(end)
        } else {
            end
        })
    }

    fn body_end(&self, fragment: &Fragment<'_>, at: usize) -> Option<usize> {
        let (end, n) = fragment.run(&self.body, at, self.max);
        (n >= self.min).then_some(end)
    }
}

impl CasedWord {
    fn match_at(&self, fragment: &Fragment<'_>, at: usize) -> Option<usize> {
        let after_lead = fragment.one(&self.lead, at);
        let end = after_lead
            .and_then(|start| self.upper_then_lower(fragment, start))
            .or_else(|| self.upper_then_lower(fragment, at))
            .or_else(|| after_lead.and_then(|start| self.upper_only(fragment, start)))
            .or_else(|| self.upper_only(fragment, at))?;
        Some(if self.contraction {
            contraction(fragment, end, true).unwrap_or(end)
        } else {
            end
        })
    }

    /// `upper* lower+`.
    fn upper_then_lower(&self, fragment: &Fragment<'_>, at: usize) -> Option<usize> {
        let mut upper_end = fragment.run_end(&self.upper, at);
        let end = fragment.run_end(&self.lower, upper_end);
        if end > upper_end {
            return Some(end);
        }
        // Give back characters until one is of both sets. What follows it is not of the second, so the match ends there.
        while upper_end > at {
            let (start, c) = fragment.char_before(upper_end);
            if self.lower.contains(c, fragment.table.classes(c)) {
                return Some(upper_end);
            }
            upper_end = start;
        }
        None
    }

    /// `upper+`; a second part would have matched before.
    fn upper_only(&self, fragment: &Fragment<'_>, at: usize) -> Option<usize> {
        let end = fragment.run_end(&self.upper, at);
        (end > at).then_some(end)
    }
}

fn contraction(fragment: &Fragment<'_>, at: usize, any_case: bool) -> Option<usize> {
    let bytes = fragment.text.as_bytes();
    if *bytes.get(at)? != b'\'' {
        return None;
    }
    let letter = |index: usize| {
        let byte = bytes.get(at + index).copied().unwrap_or(0);
        if any_case {
            byte.to_ascii_lowercase()
        } else {
            byte
        }
    };
    match (letter(1), letter(2)) {
        (b's' | b't' | b'm' | b'd', _) => Some(at + 2),
        (b'r' | b'v', b'e') | (b'l', b'l') => Some(at + 3),
        _ => None,
    }
}

fn phrase(fragment: &Fragment<'_>, at: usize, lead: &CharSet) -> Option<usize> {
    let word = |start: usize| {
        fragment
            .one(&LETTER, start)
            .map(|end| fragment.run_end(&MARK, end))
    };
    let words = |start: usize| {
        let mut end = word(start)?;
        loop {
            let after_space = if fragment.char_at(end) == Some(' ') {
                end + 1
            } else {
                end
            };
            match word(after_space) {
                Some(next) => end = next,
                None => return Some(end),
            }
        }
    };
    fragment.one(lead, at).and_then(words).or_else(|| words(at))
}

fn through_last_newline(fragment: &Fragment<'_>, at: usize) -> Option<usize> {
    let run = fragment.spaces(at);
    (run.newline_end > at).then_some(run.newline_end)
}

fn spaces_before_text(fragment: &Fragment<'_>, at: usize) -> Option<usize> {
    let run = fragment.spaces(at);
    if run.end == at || run.end == fragment.text.len() {
        return (run.end > at).then_some(run.end);
    }
    let (shorter, _) = fragment.char_before(run.end);
    (shorter > at).then_some(shorter)
}

fn trailing_spaces(fragment: &Fragment<'_>, at: usize, set: &CharSet) -> Option<usize> {
    fragment.one(set, at)?;
    let start = *fragment.trailing.get_or_init(|| {
        let text = fragment
            .text
            .trim_end_matches(|c| set.contains(c, fragment.table.classes(c)));
        text.len()
    });
    (at >= start).then_some(fragment.text.len())
}

const SPACE: CharSet = CharSet::of(Classes::SPACE);
const LETTER: CharSet = CharSet::of(Classes::LETTER);
const MARK: CharSet = CharSet::of(Classes::MARK);
