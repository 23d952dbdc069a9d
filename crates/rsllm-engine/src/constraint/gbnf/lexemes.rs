//! Which parts of a grammar become terminals.
//!
//! To begin with, every largest regular part is one. llguidance's lexer takes the longest match of all terminals that it may
//! expect. A terminal that matches `w` is lost, therefore, if the next character could belong to what follows the terminal but
//! also to a longer match of any terminal. Whether that happens is decided on the automaton of all terminals together, with
//! the characters that may follow each. The terminals at fault are taken apart, one level, until there are none. That ends,
//! since terminals of one character are never at fault among themselves. Expecting all terminals everywhere is more than the
//! parser does, so some are taken apart needlessly; never too few.

mod automaton;
mod follow;

use std::collections::BTreeSet;

use self::automaton::{Automaton, Verdict};
use super::charset::CharSet;
use super::check::{Facts, extent};
use super::parser::{Grammar, Node};

/// A rule's body over terminals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// A terminal, by its place in [`Parts::lexemes`].
    Lexeme(usize),
    Sequence(Vec<Self>),
    Choice(Vec<Self>),
    Repeat {
        part: Box<Self>,
        min: u32,
        max: Option<u32>,
    },
    Rule(usize),
}

/// A grammar over terminals.
#[derive(Debug)]
pub(super) struct Parts {
    /// By rule; `None` for those that are not reached except within terminals.
    pub(super) rules: Vec<Option<Part>>,
    /// The terminals. Rules in them are regular. Those taken apart remain in the list, unused.
    pub(super) lexemes: Vec<Node>,
}

/// Chooses the terminals.
pub(super) fn choose(grammar: &Grammar, facts: &Facts) -> Parts {
    let mut chooser = Chooser {
        grammar,
        facts,
        parts: Parts {
            rules: vec![None; grammar.rules.len()],
            lexemes: Vec::new(),
        },
    };
    let root = chooser.coarse(&Node::Rule(grammar.root));
    chooser.parts.rules[grammar.root] = Some(if root == Part::Rule(grammar.root) {
        chooser.coarse(&grammar.rules[grammar.root].body)
    } else {
        root
    });
    chooser.reach();
    for _ in 0..MAX_ROUNDS {
        match chooser.faults() {
            Some(faults) if faults.is_empty() => return chooser.parts,
            Some(faults) => chooser.take_apart(&faults),
            None => break,
        }
    }
    // Too large to decide, or too slow to get there: single characters are right in any case.
    loop {
        let all: BTreeSet<usize> = (0..chooser.parts.lexemes.len())
            .filter(|&lexeme| !chooser.is_one_character(lexeme))
            .collect();
        if !chooser.is_used(&all) {
            return chooser.parts;
        }
        chooser.take_apart(&all);
    }
}

struct Chooser<'g> {
    grammar: &'g Grammar,
    facts: &'g Facts,
    parts: Parts,
}

impl Chooser<'_> {
    fn is_regular(&self, node: &Node) -> bool {
        extent(node, &self.facts.extents).is_some()
    }

    fn lexeme(&mut self, node: Node) -> Part {
        if node == Node::empty() {
            return Part::Sequence(Vec::new());
        }
        let known = self.parts.lexemes.iter().position(|other| *other == node);
        Part::Lexeme(known.unwrap_or_else(|| {
            self.parts.lexemes.push(node);
            self.parts.lexemes.len() - 1
        }))
    }

    /// The node with its largest regular parts as terminals.
    fn coarse(&mut self, node: &Node) -> Part {
        if self.is_regular(node) {
            return self.lexeme(node.clone());
        }
        match node {
            Node::Chars(_) => self.lexeme(node.clone()),
            Node::Sequence(nodes) => {
                // Neighbours that are regular are one.
                let mut parts = Vec::new();
                let mut run: Vec<Node> = Vec::new();
                for node in nodes {
                    if self.is_regular(node) {
                        run.push(node.clone());
                    } else {
                        self.end_run(&mut run, &mut parts);
                        parts.push(self.coarse(node));
                    }
                }
                self.end_run(&mut run, &mut parts);
                Part::Sequence(parts)
            }
            Node::Choice(nodes) => {
                Part::Choice(nodes.iter().map(|node| self.coarse(node)).collect())
            }
            Node::Repeat { node, min, max } => Part::Repeat {
                part: Box::new(self.coarse(node)),
                min: *min,
                max: *max,
            },
            Node::Rule(number) => Part::Rule(*number),
        }
    }

    fn end_run(&mut self, run: &mut Vec<Node>, parts: &mut Vec<Part>) {
        let mut nodes = std::mem::take(run);
        match nodes.len() {
            0 => {}
            1 => parts.push(self.lexeme(nodes.swap_remove(0))),
            _ if self.is_regular(&Node::Sequence(nodes.clone())) => {
                parts.push(self.lexeme(Node::Sequence(nodes)));
            }
            _ => {
                for node in nodes {
                    let part = self.lexeme(node);
                    parts.push(part);
                }
            }
        }
    }

    /// Makes the bodies of rules that parts refer to.
    fn reach(&mut self) {
        let mut pending: Vec<usize> = (0..self.parts.rules.len())
            .filter(|&number| self.parts.rules[number].is_some())
            .collect();
        let mut done = vec![false; self.parts.rules.len()];
        while let Some(number) = pending.pop() {
            if std::mem::replace(&mut done[number], true) {
                continue;
            }
            if self.parts.rules[number].is_none() {
                let part = self.coarse(&self.grammar.rules[number].body);
                self.parts.rules[number] = Some(part);
            }
            if let Some(part) = &self.parts.rules[number] {
                part.gather_rules(&mut pending);
            }
        }
    }

    /// The terminals at fault; `None` when that is too much work.
    fn faults(&self) -> Option<BTreeSet<usize>> {
        let used = self.used();
        let follow = follow::Follow::new(self.grammar, self.facts, &self.parts, &used);
        match Automaton::new(self.grammar, &self.parts.lexemes, &used).faults(&follow) {
            Verdict::Faults(pairs) => {
                let mut faults = BTreeSet::new();
                for lexeme in pairs {
                    if !self.is_one_character(lexeme) {
                        faults.insert(lexeme);
                    }
                }
                Some(faults)
            }
            Verdict::TooLarge => None,
        }
    }

    fn is_one_character(&self, lexeme: usize) -> bool {
        matches!(self.parts.lexemes[lexeme], Node::Chars(_))
    }

    /// The terminals that parts refer to.
    fn used(&self) -> BTreeSet<usize> {
        let mut used = BTreeSet::new();
        for part in self.parts.rules.iter().flatten() {
            part.gather_lexemes(&mut used);
        }
        used
    }

    fn is_used(&self, lexemes: &BTreeSet<usize>) -> bool {
        !self.used().is_disjoint(lexemes)
    }

    /// Replaces each of the terminals by what it consists of.
    fn take_apart(&mut self, lexemes: &BTreeSet<usize>) {
        let mut rules = std::mem::take(&mut self.parts.rules);
        for part in rules.iter_mut().flatten() {
            self.take_apart_in(part, lexemes);
        }
        self.parts.rules = rules;
        self.reach();
    }

    fn take_apart_in(&mut self, part: &mut Part, lexemes: &BTreeSet<usize>) {
        match part {
            Part::Lexeme(number) => {
                if lexemes.contains(number) {
                    let node = self.parts.lexemes[*number].clone();
                    *part = self.one_level(node);
                }
            }
            Part::Sequence(parts) | Part::Choice(parts) => {
                for part in parts {
                    self.take_apart_in(part, lexemes);
                }
            }
            Part::Repeat { part, .. } => self.take_apart_in(part, lexemes),
            Part::Rule(_) => {}
        }
    }

    fn one_level(&mut self, node: Node) -> Part {
        match node {
            Node::Chars(_) => self.lexeme(node),
            Node::Sequence(nodes) => {
                Part::Sequence(nodes.into_iter().map(|node| self.lexeme(node)).collect())
            }
            Node::Choice(nodes) => {
                Part::Choice(nodes.into_iter().map(|node| self.lexeme(node)).collect())
            }
            Node::Repeat { node, min, max } => Part::Repeat {
                part: Box::new(self.lexeme(*node)),
                min,
                max,
            },
            Node::Rule(number) => Part::Rule(number),
        }
    }
}

impl Part {
    pub(super) fn gather_rules(&self, rules: &mut Vec<usize>) {
        match self {
            Self::Lexeme(_) => {}
            Self::Sequence(parts) | Self::Choice(parts) => {
                for part in parts {
                    part.gather_rules(rules);
                }
            }
            Self::Repeat { part, .. } => part.gather_rules(rules),
            Self::Rule(number) => rules.push(*number),
        }
    }

    fn gather_lexemes(&self, lexemes: &mut BTreeSet<usize>) {
        match self {
            Self::Lexeme(number) => {
                lexemes.insert(*number);
            }
            Self::Sequence(parts) | Self::Choice(parts) => {
                for part in parts {
                    part.gather_lexemes(lexemes);
                }
            }
            Self::Repeat { part, .. } => part.gather_lexemes(lexemes),
            Self::Rule(_) => {}
        }
    }
}

/// All characters, cut where any class of the terminals begins or ends: within a piece, they make no difference.
#[derive(Debug)]
struct Alphabet {
    /// First code point of each piece.
    starts: Vec<u32>,
}

impl Alphabet {
    fn new<'n>(nodes: impl Iterator<Item = &'n Node>, grammar: &Grammar) -> Self {
        let mut starts = BTreeSet::from([0]);
        let mut seen = vec![false; grammar.rules.len()];
        let mut pending: Vec<&Node> = nodes.collect();
        while let Some(node) = pending.pop() {
            match node {
                Node::Chars(chars) => {
                    for &(first, last) in chars.ranges() {
                        starts.extend([first, last + 1]);
                    }
                }
                Node::Sequence(nodes) | Node::Choice(nodes) => pending.extend(nodes),
                Node::Repeat { node, .. } => pending.push(node),
                Node::Rule(number) => {
                    if !std::mem::replace(&mut seen[*number], true) {
                        pending.push(&grammar.rules[*number].body);
                    }
                }
            }
        }
        Self {
            starts: starts.into_iter().collect(),
        }
    }

    fn len(&self) -> usize {
        self.starts.len()
    }

    /// The pieces that a class consists of.
    fn pieces(&self, chars: &CharSet) -> Vec<usize> {
        chars
            .ranges()
            .iter()
            .flat_map(|&(first, last)| {
                let begin = self.starts.partition_point(|&start| start < first);
                let end = self.starts.partition_point(|&start| start <= last);
                begin..end
            })
            .collect()
    }
}

/// Rounds of taking apart. Each goes one level down, and levels are limited.
const MAX_ROUNDS: usize = 64;
