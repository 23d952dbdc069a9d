//! The characters that may follow each terminal.

use std::collections::BTreeSet;

use super::super::check::{Facts, is_nullable};
use super::super::parser::{Grammar, Node};
use super::{Alphabet, Part, Parts};

/// A set of pieces of the alphabet.
type Pieces = BTreeSet<usize>;

/// FIRST and FOLLOW of textbooks, over pieces of the alphabet.
#[derive(Debug)]
pub(super) struct Follow {
    pub(super) alphabet: Alphabet,
    /// By terminal.
    follow: Vec<Pieces>,
}

impl Follow {
    pub(super) fn new(
        grammar: &Grammar,
        facts: &Facts,
        parts: &Parts,
        used: &BTreeSet<usize>,
    ) -> Self {
        let alphabet = Alphabet::new(used.iter().map(|&lexeme| &parts.lexemes[lexeme]), grammar);
        let mut solver = Solver {
            grammar,
            facts,
            parts,
            alphabet: &alphabet,
            lexeme_first: vec![Pieces::new(); parts.lexemes.len()],
            rule_first: vec![Pieces::new(); grammar.rules.len()],
            rule_follow: vec![Pieces::new(); grammar.rules.len()],
            lexeme_follow: vec![Pieces::new(); parts.lexemes.len()],
            changed: true,
        };
        for &lexeme in used {
            let mut first = Pieces::new();
            solver.node_first(&parts.lexemes[lexeme], &mut first);
            solver.lexeme_first[lexeme] = first;
        }
        solver.solve_first();
        solver.solve_follow();
        let follow = solver.lexeme_follow;
        Self { alphabet, follow }
    }

    /// Whether a character of the piece may follow the terminal.
    pub(super) fn may_follow(&self, lexeme: usize, piece: usize) -> bool {
        self.follow[lexeme].contains(&piece)
    }
}

struct Solver<'g> {
    grammar: &'g Grammar,
    facts: &'g Facts,
    parts: &'g Parts,
    alphabet: &'g Alphabet,
    lexeme_first: Vec<Pieces>,
    rule_first: Vec<Pieces>,
    rule_follow: Vec<Pieces>,
    lexeme_follow: Vec<Pieces>,
    changed: bool,
}

impl Solver<'_> {
    fn node_first(&self, node: &Node, first: &mut Pieces) {
        match node {
            Node::Chars(chars) => first.extend(self.alphabet.pieces(chars)),
            Node::Sequence(nodes) => {
                for node in nodes {
                    self.node_first(node, first);
                    if !is_nullable(node, &self.facts.nullable) {
                        break;
                    }
                }
            }
            Node::Choice(nodes) => nodes.iter().for_each(|node| self.node_first(node, first)),
            Node::Repeat { node, .. } => self.node_first(node, first),
            Node::Rule(number) => self.node_first(&self.grammar.rules[*number].body, first),
        }
    }

    fn solve_first(&mut self) {
        while std::mem::take(&mut self.changed) {
            for (number, part) in self.parts.rules.iter().enumerate() {
                if let Some(part) = part {
                    let first = self.part_first(part);
                    self.changed |= grow(&mut self.rule_first[number], &first);
                }
            }
        }
    }

    fn part_first(&self, part: &Part) -> Pieces {
        match part {
            Part::Lexeme(number) => self.lexeme_first[*number].clone(),
            Part::Sequence(parts) => {
                let mut first = Pieces::new();
                for part in parts {
                    first.extend(self.part_first(part));
                    if !self.is_nullable(part) {
                        break;
                    }
                }
                first
            }
            Part::Choice(parts) => parts
                .iter()
                .flat_map(|part| self.part_first(part))
                .collect(),
            Part::Repeat { part, .. } => self.part_first(part),
            Part::Rule(number) => self.rule_first[*number].clone(),
        }
    }

    fn is_nullable(&self, part: &Part) -> bool {
        match part {
            Part::Lexeme(number) => is_nullable(&self.parts.lexemes[*number], &self.facts.nullable),
            Part::Sequence(parts) => parts.iter().all(|part| self.is_nullable(part)),
            Part::Choice(parts) => parts.iter().any(|part| self.is_nullable(part)),
            Part::Repeat { part, min, .. } => *min == 0 || self.is_nullable(part),
            Part::Rule(number) => self.facts.nullable[*number],
        }
    }

    fn solve_follow(&mut self) {
        let parts = self.parts;
        self.changed = true;
        while std::mem::take(&mut self.changed) {
            for (number, part) in parts.rules.iter().enumerate() {
                if let Some(part) = part {
                    let after = self.rule_follow[number].clone();
                    self.spread(part, &after);
                }
            }
        }
    }

    /// Notes that `after` may come after `part`.
    fn spread(&mut self, part: &Part, after: &Pieces) {
        match part {
            Part::Lexeme(number) => {
                self.changed |= grow(&mut self.lexeme_follow[*number], after);
            }
            Part::Sequence(parts) => {
                let mut after = after.clone();
                for part in parts.iter().rev() {
                    self.spread(part, &after);
                    let first = self.part_first(part);
                    if self.is_nullable(part) {
                        after.extend(first);
                    } else {
                        after = first;
                    }
                }
            }
            Part::Choice(parts) => parts.iter().for_each(|part| self.spread(part, after)),
            Part::Repeat { part, max, .. } => {
                let mut after = after.clone();
                if *max != Some(1) {
                    after.extend(self.part_first(part));
                }
                self.spread(part, &after);
            }
            Part::Rule(number) => self.changed |= grow(&mut self.rule_follow[*number], after),
        }
    }
}

/// Adds `more`; true if that changes anything.
fn grow(set: &mut Pieces, more: &Pieces) -> bool {
    let before = set.len();
    set.extend(more);
    set.len() > before
}
