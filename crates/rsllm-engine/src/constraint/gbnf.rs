//! From GBNF, llama.cpp's notation, to llguidance's Lark.
//!
//! GBNF has no lexer: a grammar is about characters. llguidance has one, which always takes the longest match, so that
//! terminals put together carelessly accept less than the grammar says. On the other hand single characters as terminals are
//! slow: each costs a step of the parser for every token of the vocabulary. So what is regular becomes one terminal where that
//! provably changes nothing, and is taken apart where it might (`lexemes.rs`).

mod charset;
mod check;
mod lexemes;
#[cfg(test)]
pub(super) mod oracle;
mod parser;
mod write;

use super::error::ConstraintError;

/// The grammar in Lark, one rule or terminal a line.
pub(super) fn to_lark(text: &str) -> Result<String, ConstraintError> {
    if text.len() > MAX_BYTES {
        return Err(ConstraintError::TooLarge {
            kind: "grammar",
            what: "bytes",
            found: text.len() as u64,
            limit: MAX_BYTES as u64,
        });
    }
    let grammar = parser::parse(text)?;
    let facts = check::check(&grammar)?;
    let parts = lexemes::choose(&grammar, &facts);
    Ok(write::lark(&grammar, &parts))
}

const MAX_BYTES: usize = 128 << 10;

#[cfg(test)]
mod tests;
