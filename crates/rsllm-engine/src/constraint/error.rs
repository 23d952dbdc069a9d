//! Why a constraint was refused, or could not go on.

use crate::TokenId;

/// One variant a cause. `path` is a JSON pointer into the schema; the schema itself is `#`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// The schema is not JSON.
    #[error("the schema is not JSON: {reason}")]
    SchemaSyntax {
        /// What the parser said, with line and column.
        reason: String,
    },
    /// A part of the schema has another type than its place asks for.
    #[error("`{keyword}` at {path} must be {expected}")]
    SchemaValue {
        /// Where.
        path: String,
        /// The keyword.
        keyword: String,
        /// What it must be.
        expected: &'static str,
    },
    /// A keyword that would have to be ignored.
    #[error("the keyword `{keyword}` at {path} is not supported")]
    UnsupportedKeyword {
        /// Where.
        path: String,
        /// The keyword.
        keyword: String,
    },
    /// A `format` that is not known.
    #[error("the format {format:?} at {path} is not supported; known are {known}")]
    UnsupportedFormat {
        /// Where.
        path: String,
        /// The format.
        format: String,
        /// Those that are.
        known: &'static str,
    },
    /// A `$ref` that leads nowhere, or out of the schema.
    #[error(
        "the reference {reference:?} at {path} leads nowhere; references begin with `#` and stay in the schema"
    )]
    UnresolvedReference {
        /// Where.
        path: String,
        /// The reference.
        reference: String,
    },
    /// A `$ref` that leads to itself without anything in between.
    #[error("the reference {reference:?} at {path} leads back to itself")]
    CircularReference {
        /// Where.
        path: String,
        /// The reference.
        reference: String,
    },
    /// No text could ever satisfy it.
    #[error("nothing can satisfy the {kind}: {reason}")]
    Unsatisfiable {
        /// `schema`, `regex` or `grammar`.
        kind: &'static str,
        /// Why.
        reason: String,
    },
    /// A regular expression that is not one, or uses what cannot be enforced.
    #[error("the regular expression {pattern:?} at {path} cannot be enforced: {reason}")]
    Pattern {
        /// Where: a path in the schema, or `regex`.
        path: String,
        /// The expression, cut where it is long.
        pattern: String,
        /// Why not.
        reason: String,
    },
    /// Beyond a limit.
    #[error("{what} of the {kind}: {found}, the limit is {limit}")]
    TooLarge {
        /// `schema`, `regex` or `grammar`.
        kind: &'static str,
        /// What is limited.
        what: &'static str,
        /// How much there is.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// A GBNF grammar with a mistake.
    #[error("line {line}, column {column} of the grammar: {cause}")]
    Grammar {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// The mistake.
        cause: GrammarError,
    },
    /// Refused by the library that enforces it.
    #[error("the {kind} cannot be enforced: {reason}")]
    Refused {
        /// `schema`, `regex` or `grammar`.
        kind: &'static str,
        /// What the library said.
        reason: String,
    },
    /// The work for one token exceeds its limit.
    #[error("the {kind} is too complex to go on: {reason}")]
    TooComplex {
        /// `schema`, `regex` or `grammar`.
        kind: &'static str,
        /// What the library said.
        reason: String,
    },
    /// A token that the constraint forbids was drawn all the same.
    #[error("token {id} is not allowed here by the constraint")]
    TokenNotAllowed {
        /// The token.
        id: TokenId,
    },
    /// The vocabulary cannot be used with constraints.
    #[error("constraints cannot be used with this vocabulary: {reason}")]
    Vocabulary {
        /// Why.
        reason: String,
    },
    /// The thread that compiles could not be started.
    #[error("cannot start the thread that compiles the constraint: {reason}")]
    Thread {
        /// What the system said.
        reason: String,
    },
}

/// A mistake in a GBNF grammar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// Something else was expected.
    #[error("expected {expected}, found {found}")]
    Expected {
        /// What.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// A name without a rule.
    #[error("there is no rule `{name}`")]
    UndefinedRule {
        /// The name.
        name: String,
    },
    /// No rule `root`.
    #[error("there is no rule `root`, where a grammar begins")]
    NoRoot,
    /// Two rules of one name.
    #[error("the rule `{name}` is defined twice")]
    DefinedTwice {
        /// The name.
        name: String,
    },
    /// A rule that begins with itself.
    #[error("the rule `{name}` is left-recursive")]
    LeftRecursion {
        /// The name.
        name: String,
    },
    /// A terminal that stands for a token.
    #[error("the token terminal `{text}` is not supported; write the text of the token")]
    TokenTerminal {
        /// The terminal.
        text: String,
    },
    /// An escape that does not exist.
    #[error("unknown escape `{text}`")]
    Escape {
        /// As written.
        text: String,
    },
    /// A number in an escape that is no character.
    #[error("`{text}` is no character")]
    NoCharacter {
        /// As written.
        text: String,
    },
    /// A character range that runs backwards.
    #[error("the range {from:?} to {to:?} is empty")]
    EmptyRange {
        /// First.
        from: char,
        /// Last.
        to: char,
    },
    /// A repetition that is too large or runs backwards.
    #[error("the repetition `{text}` is not from 0 to {limit} with the smaller number first")]
    Repetition {
        /// As written.
        text: String,
        /// The largest count.
        limit: u32,
    },
    /// Beyond a limit.
    #[error("{what}: {found}, the limit is {limit}")]
    TooLarge {
        /// What is limited.
        what: &'static str,
        /// How much there is.
        found: usize,
        /// The limit.
        limit: usize,
    },
}

impl ConstraintError {
    /// An error of llguidance while a text is being generated.
    pub(super) fn failed(kind: &'static str, error: &impl ToString) -> Self {
        Self::TooComplex {
            kind,
            reason: tidy(&error.to_string()),
        }
    }

    /// An error of llguidance about what it was asked to compile.
    pub(super) fn refused(kind: &'static str, error: &impl ToString) -> Self {
        let reason = tidy(&error.to_string());
        match reason.strip_prefix("Unsatisfiable schema: ") {
            Some(reason) => Self::Unsatisfiable {
                kind,
                reason: reason.to_owned(),
            },
            None => Self::Refused { kind, reason },
        }
    }
}

/// The message without markup and backtraces, and not longer than a caller would read.
fn tidy(message: &str) -> String {
    let end = ["\n<non-verbose/>", "\n<state>", "\n<backtrace>"]
        .iter()
        .filter_map(|mark| message.find(mark))
        .min()
        .unwrap_or(message.len());
    shortened(message[..end].trim_end(), 500)
}

/// `text`, cut behind `limit` characters.
pub(super) fn shortened(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
