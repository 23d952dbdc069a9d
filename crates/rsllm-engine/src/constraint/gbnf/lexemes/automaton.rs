//! The automaton of all terminals together, and the search for terminals at fault.

use std::collections::{BTreeSet, HashSet};

use super::super::parser::{Grammar, Node};
use super::follow::Follow;

/// What the search found.
pub(super) enum Verdict {
    /// The terminals at fault.
    Faults(BTreeSet<usize>),
    /// The automaton is beyond its limits.
    TooLarge,
}

/// A nondeterministic automaton (Thompson's construction). State 0 leads to the beginnings of all terminals.
pub(super) struct Automaton<'g> {
    grammar: &'g Grammar,
    lexemes: &'g [Node],
    states: Vec<State<'g>>,
    used: &'g BTreeSet<usize>,
    is_too_large: bool,
}

#[derive(Default)]
struct State<'g> {
    /// Where it leads without a character.
    silent: Vec<usize>,
    /// Where it leads with a character of a class.
    step: Option<(&'g Node, usize)>,
    /// The terminal that ends here.
    ends: Option<usize>,
    /// The terminal it belongs to.
    lexeme: usize,
}

impl<'g> Automaton<'g> {
    pub(super) fn new(
        grammar: &'g Grammar,
        lexemes: &'g [Node],
        used: &'g BTreeSet<usize>,
    ) -> Self {
        let mut automaton = Self {
            grammar,
            lexemes,
            states: vec![State::default()],
            used,
            is_too_large: false,
        };
        for &lexeme in used {
            let begin = automaton.state(lexeme);
            automaton.states[0].silent.push(begin);
            let end = automaton.add(&lexemes[lexeme], begin, lexeme);
            automaton.states[end].ends = Some(lexeme);
        }
        automaton
    }

    fn state(&mut self, lexeme: usize) -> usize {
        self.states.push(State {
            lexeme,
            ..State::default()
        });
        self.is_too_large |= self.states.len() > MAX_STATES;
        self.states.len() - 1
    }

    /// Adds states for `node` behind state `begin`; returns the one at its end.
    fn add(&mut self, node: &'g Node, begin: usize, lexeme: usize) -> usize {
        if self.is_too_large {
            return begin;
        }
        match node {
            Node::Chars(_) => {
                // A state has one step at most.
                let from = self.silent_step(begin, lexeme);
                let end = self.state(lexeme);
                self.states[from].step = Some((node, end));
                end
            }
            Node::Sequence(nodes) => nodes
                .iter()
                .fold(begin, |at, node| self.add(node, at, lexeme)),
            Node::Choice(nodes) => {
                let end = self.state(lexeme);
                for node in nodes {
                    let from = self.silent_step(begin, lexeme);
                    let to = self.add(node, from, lexeme);
                    self.states[to].silent.push(end);
                }
                end
            }
            Node::Repeat { node, min, max } => {
                let mut at = begin;
                for _ in 0..*min {
                    at = self.add(node, at, lexeme);
                }
                let end = self.state(lexeme);
                match max {
                    None => {
                        let again = self.silent_step(at, lexeme);
                        let to = self.add(node, again, lexeme);
                        self.states[to].silent.push(again);
                        self.states[again].silent.push(end);
                    }
                    Some(max) => {
                        for _ in *min..*max {
                            self.states[at].silent.push(end);
                            at = self.add(node, at, lexeme);
                        }
                        self.states[at].silent.push(end);
                    }
                }
                end
            }
            Node::Rule(number) => {
                let grammar = self.grammar;
                self.add(&grammar.rules[*number].body, begin, lexeme)
            }
        }
    }

    /// A new state behind `begin`.
    fn silent_step(&mut self, begin: usize, lexeme: usize) -> usize {
        let next = self.state(lexeme);
        self.states[begin].silent.push(next);
        next
    }

    /// Looks at every set of states that some text leads to. Where one terminal ends and others go on with a character that may
    /// follow the first, all of these are at fault.
    pub(super) fn faults(&self, follow: &Follow) -> Verdict {
        if self.is_too_large {
            return Verdict::TooLarge;
        }
        let mut faults = BTreeSet::new();
        let mut seen: HashSet<Vec<usize>> = HashSet::new();
        let mut pending = vec![self.closure(vec![0])];
        let mut work = 0;
        let mut is_start = true;
        // By piece of the alphabet; kept to save its allocation.
        let mut next: Vec<Vec<usize>> = vec![Vec::new(); follow.alphabet.len()];
        while let Some(set) = pending.pop() {
            for &state in &set {
                if let Some((Node::Chars(chars), to)) = self.states[state].step {
                    for piece in follow.alphabet.pieces(chars) {
                        next[piece].push(to);
                        work += 1;
                    }
                }
            }
            let ends: Vec<usize> = set
                .iter()
                .filter_map(|&state| self.states[state].ends)
                .filter(|_| !is_start)
                .collect();
            is_start = false;
            for (piece, targets) in next.iter_mut().enumerate() {
                if targets.is_empty() {
                    continue;
                }
                let targets = std::mem::take(targets);
                for &lexeme in &ends {
                    if follow.may_follow(lexeme, piece) {
                        faults.insert(lexeme);
                        faults.extend(targets.iter().map(|&state| self.states[state].lexeme));
                    }
                }
                let targets = self.closure(targets);
                work += targets.len();
                if seen.insert(targets.clone()) {
                    pending.push(targets);
                }
            }
            if work > MAX_WORK {
                return Verdict::TooLarge;
            }
        }
        debug_assert!(
            faults
                .iter()
                .all(|fault| self.used.contains(fault) && *fault < self.lexemes.len())
        );
        Verdict::Faults(faults)
    }

    /// The states, sorted, with those they lead to without a character.
    fn closure(&self, states: Vec<usize>) -> Vec<usize> {
        let mut closed = BTreeSet::new();
        let mut pending = states;
        while let Some(state) = pending.pop() {
            if closed.insert(state) {
                pending.extend(&self.states[state].silent);
            }
        }
        closed.into_iter().collect()
    }
}

const MAX_STATES: usize = 100_000;
/// Steps of the search; some ten milliseconds. JSON takes some thousand.
const MAX_WORK: usize = 300_000;
