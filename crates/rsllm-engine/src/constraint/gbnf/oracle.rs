//! What a grammar says, letter by letter, for tests: all stacks of what may come next, as the notation defines it.

use std::collections::BTreeSet;

use super::check::check;
use super::parser::{Grammar, Node, parse};
use crate::constraint::ConstraintError;

/// A grammar to be asked about texts.
pub(in crate::constraint) struct Oracle {
    grammar: Grammar,
    nullable: Vec<bool>,
}

/// What is still to come: the next is the last. A node is known by its address.
type Stack<'g> = Vec<Item<'g>>;

#[derive(Clone, Copy)]
enum Item<'g> {
    Node(&'g Node),
    /// A node that may come so many more times, at least and at most.
    Times(&'g Node, u32, Option<u32>),
}

impl Item<'_> {
    fn key(&self) -> (usize, u32, u32) {
        match self {
            Item::Node(node) => (std::ptr::from_ref(*node) as usize, u32::MAX, u32::MAX),
            Item::Times(node, min, max) => (
                std::ptr::from_ref(*node) as usize,
                *min,
                max.unwrap_or(u32::MAX),
            ),
        }
    }
}

impl Oracle {
    pub(in crate::constraint) fn new(gbnf: &str) -> Result<Self, ConstraintError> {
        let grammar = parse(gbnf)?;
        let nullable = check(&grammar)?.nullable;
        Ok(Self { grammar, nullable })
    }

    /// Whether the text is the beginning of a text of the grammar, and whether it is one.
    pub(in crate::constraint) fn judge(&self, text: &str) -> (bool, bool) {
        let root = &self.grammar.rules[self.grammar.root].body;
        let mut stacks = self.expanded(vec![vec![Item::Node(root)]]);
        for c in text.chars() {
            let next = stacks
                .iter()
                .filter_map(|stack| match stack.split_last() {
                    Some((Item::Node(Node::Chars(chars)), rest)) => {
                        let code = u32::from(c);
                        chars
                            .ranges()
                            .iter()
                            .any(|&(first, last)| (first..=last).contains(&code))
                            .then(|| rest.to_vec())
                    }
                    _ => None,
                })
                .collect();
            stacks = self.expanded(next);
        }
        (!stacks.is_empty(), stacks.iter().any(Vec::is_empty))
    }

    /// The stacks that begin with a character, or are empty, which the given ones come down to. Stacks with a rule that has no
    /// finite text are dropped.
    fn expanded<'g>(&'g self, stacks: Vec<Stack<'g>>) -> Vec<Stack<'g>> {
        let mut done = Vec::new();
        let mut seen = BTreeSet::new();
        let mut pending = stacks;
        while let Some(mut stack) = pending.pop() {
            let key: Vec<_> = stack.iter().map(Item::key).collect();
            if !seen.insert(key) {
                continue;
            }
            match stack.pop() {
                None => done.push(stack),
                Some(item @ Item::Node(Node::Chars(_))) => {
                    stack.push(item);
                    done.push(stack);
                }
                Some(Item::Node(Node::Sequence(nodes))) => {
                    stack.extend(nodes.iter().rev().map(Item::Node));
                    pending.push(stack);
                }
                Some(Item::Node(Node::Choice(nodes))) => {
                    pending.extend(nodes.iter().map(|node| {
                        let mut stack = stack.clone();
                        stack.push(Item::Node(node));
                        stack
                    }));
                }
                Some(Item::Node(Node::Rule(number))) => {
                    stack.push(Item::Node(&self.grammar.rules[*number].body));
                    pending.push(stack);
                }
                Some(Item::Node(Node::Repeat { node, min, max })) => {
                    stack.push(Item::Times(node, *min, *max));
                    pending.push(stack);
                }
                Some(Item::Times(node, min, max)) => {
                    // What may be empty may be so any number of times.
                    let min = if super::check::is_nullable(node, &self.nullable) {
                        0
                    } else {
                        min
                    };
                    if min == 0 {
                        pending.push(stack.clone());
                    }
                    if max != Some(0) {
                        let fewer = max.map(|max| max - 1);
                        stack.push(Item::Times(node, min.saturating_sub(1), fewer));
                        stack.push(Item::Node(node));
                        pending.push(stack);
                    }
                }
            }
        }
        done
    }
}
