//! What is wrong with a grammar whose references all lead somewhere, and what has to be known of its rules.

use super::parser::{Grammar, Node};
use crate::constraint::error::{ConstraintError, GrammarError};

/// By rule.
#[derive(Debug)]
pub(super) struct Facts {
    /// Whether it may be the empty text.
    pub(super) nullable: Vec<bool>,
    /// The rule with all rules it refers to written out; `None` where that has no end, or is too large for a terminal.
    pub(super) extents: Vec<Option<Extent>>,
}

/// How large a node is when all rules it refers to are written out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    nodes: usize,
    depth: usize,
}

/// Refuses left recursion, and rules that never end; returns the facts.
pub(super) fn check(grammar: &Grammar) -> Result<Facts, ConstraintError> {
    let nullable = least(grammar, is_nullable);
    if let Some(number) = left_recursive(grammar, &nullable) {
        let rule = &grammar.rules[number];
        return Err(rule.at.error(GrammarError::LeftRecursion {
            name: rule.name.clone(),
        }));
    }
    let finite = least(grammar, is_finite);
    if !finite[grammar.root] {
        return Err(ConstraintError::Unsatisfiable {
            kind: "grammar",
            reason: "the rule `root` requires itself without end".to_owned(),
        });
    }
    Ok(Facts {
        extents: extents(grammar),
        nullable,
    })
}

/// Whether the node may be the empty text.
pub(super) fn is_nullable(node: &Node, rules: &[bool]) -> bool {
    match node {
        Node::Chars(_) => false,
        Node::Sequence(nodes) => nodes.iter().all(|node| is_nullable(node, rules)),
        Node::Choice(nodes) => nodes.iter().any(|node| is_nullable(node, rules)),
        Node::Repeat { node, min, .. } => *min == 0 || is_nullable(node, rules),
        Node::Rule(number) => rules[*number],
    }
}

/// The extent of `node`; `None` where it has no end, or is too large for a terminal.
pub(super) fn extent(node: &Node, rules: &[Option<Extent>]) -> Option<Extent> {
    let extent = match node {
        Node::Chars(_) => Extent { nodes: 1, depth: 0 },
        Node::Sequence(nodes) | Node::Choice(nodes) => {
            let mut sum = Extent { nodes: 1, depth: 0 };
            for node in nodes {
                let part = extent(node, rules)?;
                sum.nodes += part.nodes;
                sum.depth = sum.depth.max(part.depth + 1);
            }
            sum
        }
        Node::Repeat { node, min, max } => {
            let times = max.unwrap_or(*min).max(1) as usize;
            let part = extent(node, rules)?;
            Extent {
                nodes: 1 + part.nodes.saturating_mul(times),
                depth: part.depth + 1,
            }
        }
        Node::Rule(number) => {
            let body = rules[*number]?;
            Extent {
                nodes: 1 + body.nodes,
                depth: 1 + body.depth,
            }
        }
    };
    (extent.nodes <= MAX_NODES && extent.depth <= MAX_DEPTH).then_some(extent)
}

fn is_finite(node: &Node, rules: &[bool]) -> bool {
    match node {
        Node::Chars(_) => true,
        Node::Sequence(nodes) => nodes.iter().all(|node| is_finite(node, rules)),
        Node::Choice(nodes) => nodes.iter().any(|node| is_finite(node, rules)),
        Node::Repeat { node, min, .. } => *min == 0 || is_finite(node, rules),
        Node::Rule(number) => rules[*number],
    }
}

/// The least fixed point of a property that bodies have because of rules that have it.
fn least(grammar: &Grammar, holds: impl Fn(&Node, &[bool]) -> bool) -> Vec<bool> {
    let mut known = vec![false; grammar.rules.len()];
    loop {
        let mut changed = false;
        for (number, rule) in grammar.rules.iter().enumerate() {
            if !known[number] && holds(&rule.body, &known) {
                known[number] = true;
                changed = true;
            }
        }
        if !changed {
            return known;
        }
    }
}

/// A rule that can begin with itself.
fn left_recursive(grammar: &Grammar, nullable: &[bool]) -> Option<usize> {
    let beginnings: Vec<Vec<usize>> = grammar
        .rules
        .iter()
        .map(|rule| {
            let mut rules = Vec::new();
            gather_beginnings(&rule.body, nullable, &mut rules);
            rules
        })
        .collect();
    on_a_circle(&beginnings)
}

/// The rules with which a text of `node` may begin.
fn gather_beginnings(node: &Node, nullable: &[bool], rules: &mut Vec<usize>) {
    match node {
        Node::Chars(_) => {}
        Node::Sequence(nodes) => {
            for node in nodes {
                gather_beginnings(node, nullable, rules);
                if !is_nullable(node, nullable) {
                    break;
                }
            }
        }
        Node::Choice(nodes) => nodes
            .iter()
            .for_each(|node| gather_beginnings(node, nullable, rules)),
        Node::Repeat { node, .. } => gather_beginnings(node, nullable, rules),
        Node::Rule(number) => rules.push(*number),
    }
}

/// A node of the graph from which a path leads back to it. Without recursion, because a path may be as long as the grammar.
fn on_a_circle(edges: &[Vec<usize>]) -> Option<usize> {
    // 0 not seen, 1 on the path, 2 done.
    let mut state = vec![0_u8; edges.len()];
    for start in 0..edges.len() {
        if state[start] != 0 {
            continue;
        }
        let mut path = vec![(start, 0)];
        state[start] = 1;
        while let Some((node, next)) = path.last_mut() {
            if let Some(&target) = edges[*node].get(*next) {
                *next += 1;
                match state[target] {
                    0 => {
                        state[target] = 1;
                        path.push((target, 0));
                    }
                    1 => return Some(target),
                    _ => {}
                }
            } else {
                state[*node] = 2;
                path.pop();
            }
        }
    }
    None
}

/// Extents by rule: known once those of all rules referred to are.
fn extents(grammar: &Grammar) -> Vec<Option<Extent>> {
    let mut extents = vec![None; grammar.rules.len()];
    loop {
        let mut changed = false;
        for (number, rule) in grammar.rules.iter().enumerate() {
            if extents[number].is_none()
                && let Some(extent) = extent(&rule.body, &extents)
            {
                extents[number] = Some(extent);
                changed = true;
            }
        }
        if !changed {
            return extents;
        }
    }
}

/// Nodes of a terminal. More than any grammar for people has; a repetition of 2000 characters fits.
const MAX_NODES: usize = 20_000;
/// Levels of a terminal; regular expressions may be nested 250 deep.
const MAX_DEPTH: usize = 100;
