//! Constraints on a small vocabulary: masks against brute force, documents that must and must not pass, hostile input.

mod hostile;
mod masks;
mod schemas;

use rsllm_gguf::Metadata;
use rsllm_tokenizer::{DecodeOptions, Tokenizer};

use super::*;

/// A byte-level vocabulary: all bytes, some longer pieces (one of them twice), control tokens, an unused one, and the end.
fn tokenizer() -> Tokenizer {
    let mut tokens: Vec<String> = Vec::new();
    for code in (0x21..=0x7E)
        .chain(0xA1..=0xAC)
        .chain(0xAE..=0xFF)
        .chain(0x100..=0x143_u32)
    {
        tokens.push(char::from_u32(code).unwrap().to_string());
    }
    let pieces = [
        "ab", "abc", "ba", "aa", "{\"", "\":", "\",", "\"}", "tr", "true", "false", "nu", "null",
        "12", "123", "0.", "],", "[]", "{}", "ĠĠ", "Ġ\"", "ĊĠĠ", "na", "name", "name\":", "Ċ",
        "ĊĊ", "Ã©", "Ã©\"", "ab", "b\"", "b,a", "aĊ",
    ];
    tokens.extend(pieces.map(str::to_owned));
    let mut types = vec![1; tokens.len()];
    for (text, kind) in [
        ("<|tool|>", 3),
        ("<|end|>", 3),
        ("", 1),
        ("unused", 5),
        ("<|x|>", 4),
    ] {
        tokens.push(text.to_owned());
        types.push(kind);
    }
    let mut metadata = Metadata::new();
    metadata.insert("tokenizer.ggml.model", "gpt2");
    metadata.insert("tokenizer.ggml.pre", "default");
    metadata.insert(
        "tokenizer.ggml.tokens",
        tokens.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    metadata.insert("tokenizer.ggml.token_type", types);
    metadata.insert("tokenizer.ggml.merges", vec!["a b"]);
    Tokenizer::from_metadata(&metadata).unwrap()
}

/// A vocabulary with what compiles constraints for it.
struct Setup {
    tokenizer: Tokenizer,
    grammars: Grammars,
    /// The token of each byte.
    byte_tokens: Vec<TokenId>,
}

impl Setup {
    fn new() -> Self {
        let tokenizer = tokenizer();
        let grammars = Grammars::new(&tokenizer).unwrap();
        let byte_tokens = (0..=255_u8)
            .map(|byte| {
                (0..256)
                    .find(|&id| tokenizer.token_bytes(id) == [byte])
                    .unwrap()
            })
            .collect();
        Self {
            tokenizer,
            grammars,
            byte_tokens,
        }
    }

    fn compile(&self, spec: &ConstraintSpec) -> Constraint {
        self.grammars
            .compile(spec)
            .unwrap_or_else(|error| panic!("{spec:?}: {error}"))
    }

    /// What the token adds to a text, or nothing where it adds nothing to any.
    fn text_bytes(&self, id: TokenId) -> Vec<u8> {
        match self.tokenizer.token_text(id) {
            Some(b"<|x|>") | None => Vec::new(),
            Some(_) => self.tokenizer.decode_bytes(&[id], DecodeOptions::default()),
        }
    }

    fn token_ids(&self) -> std::ops::Range<TokenId> {
        0..self.tokenizer.vocab_size() as TokenId
    }

    /// Whether `text`, byte by byte, is a beginning that the constraint allows, and whether it may end there.
    fn feed(&self, constraint: &Constraint, text: &[u8]) -> Option<bool> {
        let mut constraint = constraint.twin();
        for &byte in text {
            constraint.accept(self.byte_tokens[byte as usize]).ok()?;
        }
        Some(constraint.may_end().unwrap())
    }

    fn takes(&self, spec: &ConstraintSpec, text: &str) -> bool {
        self.feed(&self.compile(spec), text.as_bytes()) == Some(true)
    }
}

impl Constraint {
    /// An independent copy.
    fn twin(&self) -> Self {
        Self {
            matcher: self.matcher.deep_clone(),
            mask: self.mask.clone(),
            end_tokens: self.end_tokens.clone(),
            kind: self.kind,
            warnings: self.warnings.clone(),
        }
    }
}

#[test]
fn a_grammar_is_told_from_its_notation() {
    for lark in [
        "start: \"a\"",
        "%llguidance {}\nstart: \"a\"",
        "// x\nA: \"a\"\nstart : A",
    ] {
        let spec = ConstraintSpec::grammar(lark.to_owned());
        assert_eq!(spec, ConstraintSpec::Lark(lark.to_owned()));
    }
    for gbnf in [
        "root ::= \"a\"",
        "start ::= \"start:\"",
        "",
        "root ::= start\nstart ::= \"a\"",
    ] {
        let spec = ConstraintSpec::grammar(gbnf.to_owned());
        assert_eq!(spec, ConstraintSpec::Gbnf(gbnf.to_owned()));
    }
}

#[test]
fn a_token_that_is_not_allowed_is_an_error_and_changes_nothing() {
    let setup = Setup::new();
    let mut constraint = setup.compile(&ConstraintSpec::Regex("ab".to_owned()));
    let (a, b) = (
        setup.byte_tokens[b'a' as usize],
        setup.byte_tokens[b'b' as usize],
    );
    for id in [b, 5000, TokenId::MAX] {
        assert_eq!(
            constraint.accept(id),
            Err(ConstraintError::TokenNotAllowed { id })
        );
    }
    assert_eq!(constraint.forced(), Ok(None)); // `ab` is a token, twice
    constraint.accept(a).unwrap();
    assert_eq!(constraint.forced(), Ok(Some(b)));
    assert_eq!(constraint.is_complete(), Ok(false));
    constraint.accept(b).unwrap();
    assert_eq!(constraint.is_complete(), Ok(true));
    assert_eq!(constraint.may_end(), Ok(true));
    let end = setup.tokenizer.end_of_generation()[0];
    assert_eq!(constraint.forced(), Ok(Some(end)));
}

#[test]
fn the_end_is_allowed_exactly_when_the_text_may_end() {
    let setup = Setup::new();
    let mut constraint = setup.compile(&ConstraintSpec::Regex("a(b+)?".to_owned()));
    let end = setup.tokenizer.end_of_generation()[0];
    for (byte, may_end) in [(b'a', true), (b'b', true), (b'b', true)] {
        constraint.accept(setup.byte_tokens[byte as usize]).unwrap();
        assert_eq!(constraint.allowed().unwrap().allows(end), may_end);
        assert_eq!(constraint.may_end(), Ok(may_end));
        assert_eq!(constraint.is_complete(), Ok(false));
    }
    let mut logits = vec![0.0; setup.tokenizer.vocab_size()];
    constraint.mask(&mut logits).unwrap();
    let left: Vec<TokenId> = setup
        .token_ids()
        .filter(|&id| logits[id as usize] == 0.0)
        .collect();
    assert_eq!(left, [setup.byte_tokens[b'b' as usize], end]);
}
