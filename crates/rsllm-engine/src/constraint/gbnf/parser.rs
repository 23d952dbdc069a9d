//! GBNF, llama.cpp's notation, read into rules.
//!
//! `name ::= alternatives` with alternatives `|`, groups, literals, character classes, `.`, and the repetitions `* + ? {m}
//! {m,} {m,n}`, which apply to the whole literal before them. A line feed ends a rule but not inside of parentheses nor
//! behind `|` and `::=`. `#` begins a comment.

use std::collections::HashMap;

use super::charset::CharSet;
use crate::constraint::error::{ConstraintError, GrammarError};

/// What a text may consist of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// One character.
    Chars(CharSet),
    /// One after the other; the empty text where there are none.
    Sequence(Vec<Self>),
    /// One of them.
    Choice(Vec<Self>),
    /// From `min` to `max` times.
    Repeat {
        node: Box<Self>,
        min: u32,
        max: Option<u32>,
    },
    /// What the rule of this number says.
    Rule(usize),
}

/// A rule and where it stands.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) name: String,
    pub(super) body: Node,
    pub(super) at: Position,
}

/// A grammar whose references lead to rules.
#[derive(Debug)]
pub(super) struct Grammar {
    pub(super) rules: Vec<Rule>,
    pub(super) root: usize,
}

/// A place in the text, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) line: usize,
    pub(super) column: usize,
}

impl Position {
    pub(super) fn error(self, cause: GrammarError) -> ConstraintError {
        ConstraintError::Grammar {
            line: self.line,
            column: self.column,
            cause,
        }
    }
}

impl Node {
    pub(super) fn empty() -> Self {
        Self::Sequence(Vec::new())
    }
}

/// Reads a grammar.
pub(super) fn parse(text: &str) -> Result<Grammar, ConstraintError> {
    let mut parser = Parser {
        rest: text,
        at: Position { line: 1, column: 1 },
        rules: Vec::new(),
        numbers: HashMap::new(),
        depth: 0,
        n_nodes: 0,
    };
    parser.skip_blanks(true);
    while !parser.rest.is_empty() {
        parser.rule()?;
        parser.skip_blanks(true);
    }
    parser.finish()
}

struct Parser<'t> {
    rest: &'t str,
    at: Position,
    /// By number; the body is `None` as long as the rule was only referred to.
    rules: Vec<(String, Option<Node>, Position)>,
    numbers: HashMap<String, usize>,
    depth: usize,
    n_nodes: usize,
}

impl<'t> Parser<'t> {
    fn finish(self) -> Result<Grammar, ConstraintError> {
        let rules = self
            .rules
            .into_iter()
            .map(|(name, body, at)| match body {
                Some(body) => Ok(Rule { name, body, at }),
                None => Err(at.error(GrammarError::UndefinedRule { name })),
            })
            .collect::<Result<Vec<Rule>, _>>()?;
        match self.numbers.get("root") {
            Some(&root) => Ok(Grammar { rules, root }),
            None => Err(Position { line: 1, column: 1 }.error(GrammarError::NoRoot)),
        }
    }

    fn rule(&mut self) -> Result<(), ConstraintError> {
        let at = self.at;
        let name = self.name("the name of a rule")?;
        self.skip_blanks(false);
        if !self.take("::=") {
            return Err(self.expected("`::=`"));
        }
        self.skip_blanks(true);
        let body = self.choice(false)?;
        let number = self.number(&name, at)?;
        let rule = &mut self.rules[number];
        if rule.1.is_some() {
            return Err(at.error(GrammarError::DefinedTwice { name }));
        }
        (rule.1, rule.2) = (Some(body), at);
        self.skip_blanks(false);
        match self.peek() {
            None | Some('\n' | '\r') => Ok(()),
            Some(_) => {
                Err(self.expected("a literal, a class, a name, `(`, `|` or the end of the line"))
            }
        }
    }

    fn choice(&mut self, nested: bool) -> Result<Node, ConstraintError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.at.error(GrammarError::TooLarge {
                what: "nested groups",
                found: self.depth,
                limit: MAX_DEPTH,
            }));
        }
        let mut alternatives = vec![self.sequence(nested)?];
        while self.take("|") {
            self.skip_blanks(true);
            let alternative = self.sequence(nested)?;
            // Twice the same costs and means nothing.
            if !alternatives.contains(&alternative) {
                alternatives.push(alternative);
            }
        }
        self.depth -= 1;
        Ok(if alternatives.len() == 1 {
            alternatives.swap_remove(0)
        } else {
            Node::Choice(alternatives)
        })
    }

    fn sequence(&mut self, nested: bool) -> Result<Node, ConstraintError> {
        let mut nodes: Vec<Node> = Vec::new();
        loop {
            let node = match self.peek() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('(') => {
                    self.advance();
                    self.skip_blanks(true);
                    let node = self.choice(true)?;
                    if !self.take(")") {
                        return Err(self.expected("`)`"));
                    }
                    node
                }
                Some('.') => {
                    self.advance();
                    Node::Chars(CharSet::all())
                }
                Some('<' | '!') => return Err(self.token_terminal()),
                Some(c) if is_name_char(c) => {
                    let at = self.at;
                    let name = self.name("a name")?;
                    Node::Rule(self.number(&name, at)?)
                }
                _ => break,
            };
            self.count()?;
            self.skip_blanks(nested);
            nodes.push(self.repetitions(node, nested)?);
        }
        Ok(if nodes.len() == 1 {
            nodes.swap_remove(0)
        } else {
            Node::Sequence(nodes)
        })
    }

    /// `node`, repeated as what follows says.
    fn repetitions(&mut self, mut node: Node, nested: bool) -> Result<Node, ConstraintError> {
        loop {
            let (min, max) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => self.bounds()?,
                _ => return Ok(node),
            };
            self.advance();
            self.skip_blanks(nested);
            self.depth += 1;
            if self.depth > MAX_DEPTH {
                return Err(self.at.error(GrammarError::TooLarge {
                    what: "nested repetitions",
                    found: self.depth,
                    limit: MAX_DEPTH,
                }));
            }
            node = self.repeated(node, min, max)?;
            self.depth -= 1;
        }
    }

    fn repeated(&self, node: Node, min: u32, max: Option<u32>) -> Result<Node, ConstraintError> {
        if node == Node::empty() || max == Some(0) {
            return Ok(Node::empty());
        }
        if depth_of(&node) > MAX_DEPTH {
            return Err(self.at.error(GrammarError::TooLarge {
                what: "nested repetitions",
                found: depth_of(&node),
                limit: MAX_DEPTH,
            }));
        }
        Ok(Node::Repeat {
            node: Box::new(node),
            min,
            max,
        })
    }

    /// The bounds of `{m}`, `{m,}` or `{m,n}`, up to but without the closing brace.
    fn bounds(&mut self) -> Result<(u32, Option<u32>), ConstraintError> {
        let (at, whole) = (self.at, self.rest);
        self.advance();
        self.skip_blanks(false);
        let min = self.digits();
        self.skip_blanks(false);
        let has_comma = self.take(",");
        self.skip_blanks(false);
        let max = self.digits();
        self.skip_blanks(false);
        if self.peek() != Some('}') {
            return Err(self.expected("`}`"));
        }
        let text = &whole[..=whole.len() - self.rest.len()];
        let error = || {
            at.error(GrammarError::Repetition {
                text: text.chars().take(40).collect(),
                limit: MAX_REPETITION,
            })
        };
        let number = |digits: &str| {
            digits
                .parse()
                .ok()
                .filter(|&number: &u32| number <= MAX_REPETITION)
                .ok_or_else(error)
        };
        let min = number(min)?;
        let max = match (has_comma, max) {
            (false, "") => Some(min),
            (true, "") => None,
            (true, digits) => Some(number(digits)?),
            (false, _) => return Err(error()),
        };
        if max.is_some_and(|max| max < min) {
            return Err(error());
        }
        Ok((min, max))
    }

    fn literal(&mut self) -> Result<Node, ConstraintError> {
        self.advance();
        let mut nodes = Vec::new();
        loop {
            match self.peek() {
                None | Some('\n' | '\r') => return Err(self.expected("a closing `\"`")),
                Some('"') => {
                    self.advance();
                    break;
                }
                Some(_) => {
                    self.count()?;
                    nodes.push(Node::Chars(CharSet::one(self.character()?)));
                }
            }
        }
        Ok(if nodes.len() == 1 {
            nodes.swap_remove(0)
        } else {
            Node::Sequence(nodes)
        })
    }

    fn class(&mut self) -> Result<Node, ConstraintError> {
        let at = self.at;
        self.advance();
        let negated = self.take("^");
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                None | Some('\n' | '\r') => return Err(self.expected("a closing `]`")),
                Some(']') => {
                    self.advance();
                    break;
                }
                Some(_) => {}
            }
            let from = self.character()?;
            let is_range = self.peek() == Some('-') && !self.rest.starts_with("-]");
            let to = if is_range {
                self.advance();
                match self.peek() {
                    None | Some('\n' | '\r') => return Err(self.expected("a closing `]`")),
                    Some(_) => self.character()?,
                }
            } else {
                from
            };
            if from > to {
                return Err(at.error(GrammarError::EmptyRange { from, to }));
            }
            ranges.push((from, to));
        }
        let set = CharSet::new(ranges);
        let set = if negated { set.negated() } else { set };
        if set.is_empty() {
            return Err(at.error(GrammarError::Expected {
                expected: "a class with a character",
                found: "one without".to_owned(),
            }));
        }
        Ok(Node::Chars(set))
    }

    /// A character of a literal or a class, which may be escaped.
    fn character(&mut self) -> Result<char, ConstraintError> {
        let (at, whole) = (self.at, self.rest);
        let first = self.advance().unwrap_or_default();
        if first != '\\' {
            return Ok(first);
        }
        let kind = self.advance().unwrap_or(' ');
        let n_digits = match kind {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            '\\' | '"' | '[' | ']' | '-' | '^' | '/' => return Ok(kind),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => {
                return Err(at.error(GrammarError::Escape {
                    text: whole.chars().take(2).collect(),
                }));
            }
        };
        let text: String = whole.chars().take(2 + n_digits).collect();
        let digits: String = self
            .rest
            .chars()
            .take(n_digits)
            .take_while(char::is_ascii_hexdigit)
            .collect();
        if digits.len() < n_digits {
            return Err(at.error(GrammarError::Escape { text }));
        }
        for _ in 0..n_digits {
            self.advance();
        }
        u32::from_str_radix(&digits, 16)
            .ok()
            .and_then(char::from_u32)
            .ok_or_else(|| at.error(GrammarError::NoCharacter { text }))
    }

    fn token_terminal(&self) -> ConstraintError {
        let end = self
            .rest
            .find(['>', '\n', ' '])
            .map_or(self.rest.len(), |end| {
                end + usize::from(self.rest[end..].starts_with('>'))
            });
        self.at.error(GrammarError::TokenTerminal {
            text: self.rest[..end].chars().take(40).collect(),
        })
    }

    fn name(&mut self, expected: &'static str) -> Result<String, ConstraintError> {
        let end = self
            .rest
            .find(|c| !is_name_char(c))
            .unwrap_or(self.rest.len());
        if end == 0 {
            return Err(self.expected(expected));
        }
        let name = self.rest[..end].to_owned();
        self.take(&name);
        Ok(name)
    }

    /// The number of the rule called `name`.
    fn number(&mut self, name: &str, at: Position) -> Result<usize, ConstraintError> {
        if let Some(&number) = self.numbers.get(name) {
            return Ok(number);
        }
        let number = self.rules.len();
        if number >= MAX_RULES {
            return Err(at.error(GrammarError::TooLarge {
                what: "rules",
                found: number + 1,
                limit: MAX_RULES,
            }));
        }
        self.rules.push((name.to_owned(), None, at));
        self.numbers.insert(name.to_owned(), number);
        Ok(number)
    }

    fn count(&mut self) -> Result<(), ConstraintError> {
        self.n_nodes += 1;
        if self.n_nodes > MAX_NODES {
            return Err(self.at.error(GrammarError::TooLarge {
                what: "characters, classes and names",
                found: self.n_nodes,
                limit: MAX_NODES,
            }));
        }
        Ok(())
    }

    fn digits(&mut self) -> &'t str {
        let end = self
            .rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.at.column += end;
        self.rest = rest;
        digits
    }

    /// Skips blanks and comments, and line feeds if they mean nothing here.
    fn skip_blanks(&mut self, line_feeds: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => {
                    self.advance();
                }
                '#' => {
                    while self.peek().is_some_and(|c| c != '\n' && c != '\r') {
                        self.advance();
                    }
                }
                '\n' | '\r' if line_feeds => {
                    self.advance();
                }
                _ => return,
            }
        }
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn advance(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.rest = &self.rest[c.len_utf8()..];
        if c == '\n' {
            self.at.line += 1;
            self.at.column = 1;
        } else {
            self.at.column += 1;
        }
        Some(c)
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.rest.starts_with(text);
        if found {
            for _ in text.chars() {
                self.advance();
            }
        }
        found
    }

    fn expected(&self, expected: &'static str) -> ConstraintError {
        let found = match self.peek() {
            None => "the end".to_owned(),
            Some('\n' | '\r') => "the end of the line".to_owned(),
            Some(c) => format!("`{c}`"),
        };
        self.at.error(GrammarError::Expected { expected, found })
    }
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

/// Levels of a node: what walks it recurses as deep.
fn depth_of(node: &Node) -> usize {
    1 + match node {
        Node::Chars(_) | Node::Rule(_) => 0,
        Node::Sequence(nodes) | Node::Choice(nodes) => {
            nodes.iter().map(depth_of).max().unwrap_or(0)
        }
        Node::Repeat { node, .. } => depth_of(node),
    }
}

/// Groups and repetitions in each other.
const MAX_DEPTH: usize = 200;
/// As in llama.cpp, which takes more for no limit at all.
const MAX_REPETITION: u32 = 2000;
const MAX_RULES: usize = 1000;
/// Characters, classes and names in all rules. The largest of llama.cpp's examples has some hundred.
const MAX_NODES: usize = 5000;

#[cfg(test)]
mod tests;
