//! Writes a grammar over terminals as Lark, one rule or terminal a line. Names are numbers, so that none clashes.

use std::fmt::Write as _;

use super::charset::CharSet;
use super::lexemes::{Part, Parts};
use super::parser::{Grammar, Node};

/// The grammar in Lark.
pub(super) fn lark(grammar: &Grammar, parts: &Parts) -> String {
    let mut writer = Writer {
        grammar,
        text: format!("start: r{}\n", grammar.root),
        lexemes: vec![false; parts.lexemes.len()],
        n_groups: 0,
    };
    for (number, part) in parts.rules.iter().enumerate() {
        if let Some(part) = part {
            let body = writer.body(part);
            writer.line(&format!("r{number}"), &body);
        }
    }
    for (number, node) in parts.lexemes.iter().enumerate() {
        if writer.lexemes[number] {
            let mut regex = String::new();
            writer.regex(node, &mut regex);
            writer.line(&format!("T{number}"), &format!("/{regex}/"));
        }
    }
    writer.text
}

struct Writer<'g> {
    grammar: &'g Grammar,
    text: String,
    /// Whether the terminal is used.
    lexemes: Vec<bool>,
    n_groups: usize,
}

impl Writer<'_> {
    fn line(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.text, "{name}: {body}"); // writing to a string does not fail
    }

    fn body(&mut self, part: &Part) -> String {
        match part {
            Part::Choice(parts) => {
                let alternatives: Vec<String> =
                    parts.iter().map(|part| self.sequence(part)).collect();
                alternatives.join(" | ")
            }
            part => self.sequence(part),
        }
    }

    fn sequence(&mut self, part: &Part) -> String {
        match part {
            Part::Sequence(parts) if !parts.is_empty() => {
                let items: Vec<String> = parts.iter().map(|part| self.item(part)).collect();
                items.join(" ")
            }
            part => self.item(part),
        }
    }

    fn item(&mut self, part: &Part) -> String {
        match part {
            Part::Lexeme(number) => {
                self.lexemes[*number] = true;
                format!("T{number}")
            }
            Part::Rule(number) => format!("r{number}"),
            Part::Sequence(parts) if parts.is_empty() => "\"\"".to_owned(),
            Part::Sequence(_) | Part::Choice(_) => self.group(part),
            Part::Repeat { part, min, max } => {
                let item = match &**part {
                    Part::Repeat { .. } => self.group(part),
                    part => self.item(part),
                };
                match (min, max) {
                    (0, None) => format!("{item}*"),
                    (1, None) => format!("{item}+"),
                    (0, Some(1)) => format!("{item}?"),
                    (min, None) => format!("{item}~{min} {item}*"),
                    (min, Some(max)) => format!("{item}~{min}..{max}"),
                }
            }
        }
    }

    /// A rule of its own for what would be in parentheses, of which the library allows few in each other.
    fn group(&mut self, part: &Part) -> String {
        let body = self.body(part);
        let name = format!("g{}", self.n_groups);
        self.n_groups += 1;
        self.line(&name, &body);
        name
    }

    fn regex(&self, node: &Node, regex: &mut String) {
        match node {
            Node::Chars(chars) => write_class(chars, regex),
            Node::Sequence(nodes) => nodes.iter().for_each(|node| self.regex(node, regex)),
            Node::Choice(nodes) => {
                regex.push_str("(?:");
                for (i, node) in nodes.iter().enumerate() {
                    if i > 0 {
                        regex.push('|');
                    }
                    self.regex(node, regex);
                }
                regex.push(')');
            }
            Node::Repeat { node, min, max } => {
                regex.push_str("(?:");
                self.regex(node, regex);
                regex.push(')');
                let _ = match (min, max) {
                    (0, None) => write!(regex, "*"),
                    (1, None) => write!(regex, "+"),
                    (0, Some(1)) => write!(regex, "?"),
                    (min, None) => write!(regex, "{{{min},}}"),
                    (min, Some(max)) => write!(regex, "{{{min},{max}}}"),
                };
            }
            Node::Rule(number) => {
                regex.push_str("(?:");
                self.regex(&self.grammar.rules[*number].body, regex);
                regex.push(')');
            }
        }
    }
}

/// A class by code points: no character needs an escape of its own.
fn write_class(chars: &CharSet, regex: &mut String) {
    if let [(first, last)] = chars.ranges()
        && first == last
        && let Some(c) = char::from_u32(*first)
        && c.is_ascii_alphanumeric()
    {
        regex.push(c);
        return;
    }
    regex.push('[');
    for (first, last) in chars.ranges() {
        let _ = if first == last {
            write!(regex, "\\x{{{first:X}}}")
        } else {
            write!(regex, "\\x{{{first:X}}}-\\x{{{last:X}}}")
        };
    }
    regex.push(']');
}
