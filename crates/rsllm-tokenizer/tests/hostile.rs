//! Files that lie and texts made to be slow.

mod common;

use std::time::{Duration, Instant};

use common::{PARSE, PLAIN, byte_level, characters, pieces, sentence_piece, tokenizer};
use proptest::prelude::*;
use rsllm_gguf::{Metadata, Value};
use rsllm_tokenizer::{DecodeOptions, Tokenizer, TokenizerError, TokenizerWarning};

fn error(metadata: &Metadata) -> TokenizerError {
    Tokenizer::from_metadata(metadata).expect_err("the file is hostile")
}

/// The message with its causes.
fn message(metadata: &Metadata) -> String {
    let error = error(metadata);
    let mut message = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        message = format!("{message}: {cause}");
        source = cause.source();
    }
    message
}

fn with(key: &str, value: impl Into<Value>) -> Metadata {
    let mut metadata = byte_level("gpt-2", &["a b"], &[]);
    metadata.insert(key, value);
    metadata
}

#[test]
fn errors_name_the_key() {
    for key in [
        "tokenizer.ggml.model",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.merges",
    ] {
        let mut metadata = byte_level("gpt-2", &["a b"], &[]);
        metadata.remove(key);
        assert!(message(&metadata).contains(key), "{}", message(&metadata));
    }
    for key in [
        "tokenizer.ggml.model",
        "tokenizer.ggml.pre",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.merges",
        "tokenizer.ggml.scores",
        "tokenizer.ggml.token_type",
        "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.add_bos_token",
    ] {
        let text = message(&with(key, 1.5f64));
        assert!(text.contains(key), "{text}");
    }
}

#[test]
fn each_cause_has_its_error() {
    let none: Vec<&str> = Vec::new();
    assert!(matches!(
        error(&Metadata::new()),
        TokenizerError::Metadata(_)
    ));
    assert!(matches!(
        error(&with("tokenizer.ggml.tokens", none.clone())),
        TokenizerError::EmptyVocabulary
    ));
    assert!(matches!(
        error(&with("tokenizer.ggml.token_type", vec![1, 1])),
        TokenizerError::LengthMismatch {
            expected: 257,
            found: 2,
            ..
        }
    ));
    assert!(matches!(
        error(&with("tokenizer.ggml.scores", vec![1.0f32])),
        TokenizerError::LengthMismatch {
            expected: 257,
            found: 1,
            ..
        }
    ));
    assert!(matches!(
        error(&with("tokenizer.ggml.token_type", vec![7; 257])),
        TokenizerError::BadTokenType { index: 0, value: 7 }
    ));
    assert!(matches!(
        error(&with("tokenizer.ggml.merges", none)),
        TokenizerError::NoMerges { missing: false }
    ));
    for merge in ["ab", "", " ", "a ", " b"] {
        assert!(matches!(
            error(&with("tokenizer.ggml.merges", vec!["a b", merge])),
            TokenizerError::BadMerge { index: 1, .. }
        ));
    }
    assert!(matches!(
        error(&with("tokenizer.ggml.model", "t5")),
        TokenizerError::UnsupportedKind { .. }
    ));
    assert!(matches!(
        error(&with("tokenizer.ggml.model", "abacus")),
        TokenizerError::UnknownKind { .. }
    ));
    let unknown = message(&with("tokenizer.ggml.pre", "no-such"));
    assert!(
        unknown.contains("`no-such`") && unknown.contains("llama-bpe"),
        "{unknown}"
    );
}

#[test]
fn oddities_are_warned_of() {
    let mut metadata = byte_level("gpt-2", &["a b"], &[]);
    metadata.remove("tokenizer.ggml.pre");
    assert_eq!(
        tokenizer(&metadata).warnings(),
        [TokenizerWarning::MissingPreTokenizer]
    );
    for id in [-1i32, 257, i32::MAX] {
        let metadata = with("tokenizer.ggml.eos_token_id", id);
        let tokenizer = tokenizer(&metadata);
        assert!(matches!(
            tokenizer.warnings(),
            [TokenizerWarning::SpecialIdOutOfRange { .. }]
        ));
        assert_eq!(tokenizer.eos(), None);
    }
    let mut metadata = sentence_piece(&["a"], &[]);
    metadata.remove("tokenizer.ggml.scores");
    assert_eq!(
        tokenizer(&metadata).warnings(),
        [TokenizerWarning::MissingScores]
    );
}

#[test]
fn merges_never_yield_a_control_token_however_long() {
    let merges: Vec<String> = (0..7)
        .map(|n| "a".repeat(1 << n))
        .map(|half| format!("{half} {half}"))
        .collect();
    let merges: Vec<&str> = merges.iter().map(String::as_str).collect();
    for length in [2, 16, 64, 128] {
        let text = "a".repeat(length);
        let tokenizer = tokenizer(&byte_level("gpt-2", &merges, &[(&text, 3)]));
        let half = "a".repeat(length / 2);
        assert_eq!(
            pieces(&tokenizer, &text, PLAIN),
            [half.as_str(), &half],
            "{length}"
        );
        assert_eq!(pieces(&tokenizer, &text, PARSE), [text.as_str()]);
    }
}

#[test]
fn tokens_may_be_empty_equal_or_no_text() {
    let mut metadata = byte_level("gpt-2", &["a b"], &[]);
    let tokens: rsllm_gguf::StringArray = [&b""[..], b"", b"a", b"a", b"b", b"\xFF\xFE"]
        .into_iter()
        .collect();
    metadata.insert("tokenizer.ggml.tokens", rsllm_gguf::Array::String(tokens));
    metadata.insert("tokenizer.ggml.token_type", vec![3, 4, 1, 3, 4, 3]);
    let tokenizer = tokenizer(&metadata);
    assert_eq!(tokenizer.token_text(1), Some(&b"[EMPTY_1]"[..]));
    assert_eq!(tokenizer.token_text(6), None);
    // Token 3 is the last of text "a", and control.
    assert_eq!(tokenizer.encode("ab", PARSE), [3, 4]);
    assert_eq!(
        tokenizer.decode(&[0, 1, 2, 3, 4, 5, 6], DecodeOptions::default()),
        "[EMPTY_1]ab"
    );
}

/// Texts of 64 KiB, each with a reason to be slow: one long piece, one long run of white space, look-ahead at every
/// step, matches that give back what they took, special tokens that nearly match.
fn slow_texts() -> Vec<String> {
    let long = |unit: &str| unit.repeat((64 << 10) / unit.len());
    let mut texts: Vec<String> = [
        "a", "A", "1", " ", "\n", " \n", "\t ", "🦙", "\u{301}", "中", "é", "éA", "'", "'S", "!",
        "<|", "<|x", "\u{3000}", "a\u{301}", " a", "．", "\0", "ab",
    ]
    .map(long)
    .into();
    texts.push(format!("é{}", long("A")));
    texts.push(format!("{}x", long(" ")));
    texts.push(format!("{}1", long(" ")));
    texts.push(format!("{}{}", long("x "), long(" ")));
    texts.push(format!("\n{}x", long(" ")));
    texts
}

#[test]
fn hostile_texts_are_linear() {
    let special = [("<|x|>", 3), ("<|xyz|>", 4), ("\n\n\n", 4), ("\n\n", 4)];
    let mut vocabularies: Vec<(String, Tokenizer)> = [
        "default",
        "llama-bpe",
        "gpt-4o",
        "deepseek-llm",
        "jais-2",
        "tiny_aya",
        "kimi-k2",
    ]
    .into_iter()
    .map(|pre| {
        let merges = [
            "a a",
            "aa aa",
            "aaaa aaaa",
            "Ġ Ġ",
            "ĠĠ ĠĠ",
            "Ċ Ċ",
            "Ì ģ",
            "ðŁ ¦",
        ];
        (
            pre.to_owned(),
            tokenizer(&byte_level(pre, &merges, &special)),
        )
    })
    .collect();
    let runs = ["a", "aa", "aaaa", "aaaaaaaa", "▁", "▁▁", "▁▁▁▁", "a▁", "é"];
    vocabularies.push(("llama".into(), tokenizer(&sentence_piece(&runs, &special))));
    vocabularies.push((
        "gemma4".into(),
        tokenizer(&characters(&["a a", "aa aa", "▁ ▁", "▁▁ ▁▁", "a ▁"])),
    ));
    for (name, tokenizer) in &vocabularies {
        for text in slow_texts() {
            let started = Instant::now();
            let ids = tokenizer.encode(&text, PARSE);
            let decoded = tokenizer.decode(
                &ids,
                DecodeOptions {
                    strip_space_prefix: true,
                    render_special: true,
                    ..DecodeOptions::default()
                },
            );
            let head: String = text.chars().take(4).collect();
            // Ten times what a busy machine needs; a quadratic pass takes longer.
            assert!(
                started.elapsed() < Duration::from_secs(2),
                "{name}: {head:?} took {:?}",
                started.elapsed()
            );
            assert!(decoded == text, "{name}: {head:?} did not come back");
        }
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f32>().prop_map(Value::from),
        "\\PC{0,6}".prop_map(Value::from),
        prop::sample::select(vec![
            "gpt2",
            "llama",
            "gemma4",
            "default",
            "llama-bpe",
            "qwen2"
        ])
        .prop_map(Value::from),
        prop::collection::vec(-2i32..8, 0..6).prop_map(Value::from),
        prop::collection::vec(any::<f32>(), 0..6).prop_map(Value::from),
        prop::collection::vec("[ab▁Ġ<> \n]{0,4}", 0..6)
            .prop_map(|texts| Value::from(texts.iter().map(String::as_str).collect::<Vec<_>>())),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_metadata_never_panics(
        kind in prop::sample::select(vec!["gpt2", "llama", "gemma4"]),
        texts in prop::collection::vec("[ab▁Ġ<>x0-9A-F \n]{0,6}", 1..8),
        types in prop::collection::vec(1i32..=6, 8),
        scores in prop::collection::vec(any::<f32>(), 8),
        merges in prop::collection::vec("[ab▁Ġ]{1,3} [ab▁Ġ]{1,3}", 1..6),
        other in prop::collection::vec((prop::sample::select(KEYS), any_value()), 0..3),
        text in "\\PC{0,20}|[ab \n▁<>]{0,20}",
    ) {
        let mut metadata = Metadata::new();
        metadata.insert("tokenizer.ggml.model", kind);
        metadata.insert("tokenizer.ggml.pre", "gpt-2");
        metadata.insert("tokenizer.ggml.token_type", types[..texts.len()].to_vec());
        metadata.insert("tokenizer.ggml.scores", scores[..texts.len()].to_vec());
        metadata.insert("tokenizer.ggml.tokens", texts.iter().map(String::as_str).collect::<Vec<_>>());
        metadata.insert("tokenizer.ggml.merges", merges.iter().map(String::as_str).collect::<Vec<_>>());
        for (key, value) in other {
            metadata.insert(key, value);
        }
        if let Ok(tokenizer) = Tokenizer::from_metadata(&metadata) {
            let ids = tokenizer.encode(&text, PARSE);
            prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
            tokenizer.decode(&ids, DecodeOptions::default());
            for id in tokenizer.encode(&text, PLAIN) {
                prop_assert!(tokenizer.kind(id) != rsllm_tokenizer::TokenKind::Control);
            }
        }
    }
}

const KEYS: &[&str] = &[
    "general.name",
    "tokenizer.ggml.model",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.scores",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.add_space_prefix",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_comes_back(text in any::<String>(), more in "[ a-z\n\u{301}🦙<|x>1-9]{0,40}") {
        let text = text + &more;
        let options = DecodeOptions { strip_space_prefix: true, render_special: true, ..DecodeOptions::default() };
        let special = [("<|x|>", 3), ("<x>", 4)];
        for metadata in [
            byte_level("gpt-2", &["a b", "Ġ a"], &special),
            byte_level("llama-bpe", &["a b", "Ġ a"], &special),
            sentence_piece(&["▁", "a", "▁a", "▁▁"], &special),
        ] {
            // In SentencePiece vocabularies U+2581 is the space.
            let text = text.replace('▁', "_");
            let tokenizer = tokenizer(&metadata);
            for encoding in [PLAIN, PARSE] {
                let ids = tokenizer.encode(&text, encoding);
                prop_assert_eq!(&tokenizer.decode(&ids, options), &text);
                let mut stream = tokenizer.stream_decoder_with(options);
                let mut streamed = String::new();
                for id in ids {
                    streamed.push_str(stream.push(id));
                }
                streamed.push_str(stream.finish());
                prop_assert_eq!(&streamed, &text);
            }
        }
    }

    #[test]
    fn stream_of_any_ids_equals_the_whole(ids in prop::collection::vec(0u32..262, 0..40)) {
        let tokenizer = tokenizer(&byte_level("gpt-2", &["a b", "Ġ a"], &[("<|x|>", 3)]));
        let mut stream = tokenizer.stream_decoder();
        let mut streamed = String::new();
        for &id in &ids {
            streamed.push_str(stream.push(id));
        }
        streamed.push_str(stream.finish());
        prop_assert_eq!(streamed, tokenizer.decode(&ids, DecodeOptions::default()));
    }
}
