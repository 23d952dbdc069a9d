use std::time::{Duration, Instant};

use rsllm_gguf::Metadata;
use rsllm_tokenizer::Tokenizer;

use super::*;

/// A byte-level vocabulary: all bytes, some longer pieces (one of them twice), a control token, and the end.
fn tokenizer() -> Tokenizer {
    let mut tokens: Vec<String> = Vec::new();
    for code in (0x21..=0x7E)
        .chain(0xA1..=0xAC)
        .chain(0xAE..=0xFF)
        .chain(0x100..=0x143_u32)
    {
        tokens.push(char::from_u32(code).unwrap().to_string());
    }
    for piece in [
        "ab", "abc", "ba", "aa", "{\"", "\":", "\",", "\"}", "tr", "true", "false", "nu", "null", "12", "123", "0.",
        "],", "[]", "{}", "ĠĠ", "Ġ\"", "ĊĠĠ", "na", "name", "name\":", "Ċ", "ĊĊ", "Ã©", "Ã", "ab",
    ] {
        tokens.push(piece.to_owned());
    }
    let mut types = vec![1; tokens.len()];
    for (text, kind) in [("<|tool|>", 3), ("<|end|>", 3), ("", 1), ("unused", 5)] {
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

#[test]
fn smoke() {
    let tokenizer = tokenizer();
    let start = Instant::now();
    let grammars = Grammars::new(&tokenizer).unwrap();
    println!("env {:?} end {:?}", start.elapsed(), tokenizer.end_of_generation());
    for spec in [
        ConstraintSpec::Regex("a{2,4}|b".to_owned()),
        ConstraintSpec::Regex("a*".to_owned()),
        ConstraintSpec::Json,
        ConstraintSpec::JsonSchema("{\"enum\": [\"a\", \"é\", 12, null]}".to_owned()),
        ConstraintSpec::Gbnf("root ::= \"a\" | \"b\" root".to_owned()),
        ConstraintSpec::Lark("start: /a/ start | \"b\"".to_owned()),
    ] {
        let start = Instant::now();
        let mut constraint = match grammars.compile(&spec) { Ok(c) => c, Err(e) => { println!("{spec:?}: {e}"); continue } };
        let compiled = start.elapsed();
        let ids: Vec<String> = (0..tokenizer.vocab_size() as u32).filter(|&id| constraint.allowed().unwrap().allows(id)).map(|id| String::from_utf8_lossy(tokenizer.token_text(id).unwrap()).into_owned()).collect();
        println!("{spec:?}: {compiled:?} {ids:?} complete {:?} end {:?}", constraint.is_complete(), constraint.may_end());
    }
    assert!(start.elapsed() < Duration::from_secs(10));
}
