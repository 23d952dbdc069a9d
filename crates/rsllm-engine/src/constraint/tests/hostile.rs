//! Input made to exhaust time, memory or the stack: an error, or a constraint that works, within seconds.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::*;

/// Compiles, takes a few steps, and returns whether it was an error. Sanitisers and other tests slow it down, so the limit is
/// generous; without limits of ours these take minutes, or the process.
fn is_refused(setup: &Setup, spec: &ConstraintSpec) -> bool {
    let start = Instant::now();
    let refused = match setup.grammars.compile(spec) {
        Ok(mut constraint) => {
            for _ in 0..5 {
                let Ok(mask) = constraint.allowed() else {
                    break;
                };
                let Some(id) = setup
                    .token_ids()
                    .find(|&id| mask.allows(id) && !setup.tokenizer.is_end_of_generation(id))
                else {
                    break;
                };
                match constraint.accept(id) {
                    Ok(()) => {}
                    Err(ConstraintError::TooComplex { .. }) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            false
        }
        Err(error) => {
            assert!(error.to_string().len() < 2000, "{error}");
            true
        }
    };
    let elapsed = start.elapsed();
    assert!(elapsed < Duration::from_secs(20), "{elapsed:?}");
    refused
}

fn lines(numbers: std::ops::Range<usize>, line: impl Fn(usize) -> String) -> String {
    numbers.map(line).collect::<Vec<_>>().concat()
}

fn schema(schema: &Value) -> ConstraintSpec {
    ConstraintSpec::JsonSchema(schema.to_string())
}

#[test]
fn schemas() {
    let setup = Setup::new();
    let refused = |value: &Value| is_refused(&setup, &schema(value));
    let nested = |inner: &str, n: usize| format!("{}{{}}{}", inner.repeat(n), "}".repeat(n));
    for text in [
        nested(r#"{"items": "#, 100_000),
        nested(r#"{"properties": {"a": "#, 1000) + &"}".repeat(1000),
        "[".repeat(100_000),
        String::new(),
        "null".to_owned(),
    ] {
        assert!(is_refused(&setup, &ConstraintSpec::JsonSchema(text)));
    }
    assert!(!is_refused(
        &setup,
        &ConstraintSpec::JsonSchema(nested(r#"{"items": "#, 60))
    ));
    assert!(refused(
        &json!({"enum": (0..100_000).map(|i| i.to_string()).collect::<Vec<_>>()})
    ));
    // A chain of definitions, each in the next.
    let chain = |n: usize, link: &dyn Fn(usize) -> Value| {
        let definitions: serde_json::Map<String, Value> = (0..=n)
            .map(|i| {
                (
                    i.to_string(),
                    if i == n {
                        json!({"type": "null"})
                    } else {
                        link(i + 1)
                    },
                )
            })
            .collect();
        json!({"$ref": "#/$defs/0", "$defs": definitions})
    };
    let array = |i: usize| json!({"type": "array", "items": {"$ref": format!("#/$defs/{i}")}});
    let bare = |i: usize| json!({"$ref": format!("#/$defs/{i}")});
    let twice = |i: usize| {
        let next = json!({"$ref": format!("#/$defs/{i}")});
        json!({"type": "object", "properties": {"a": next, "b": next}, "required": ["a", "b"]})
    };
    let both = |i: usize| json!({"allOf": [{"$ref": format!("#/$defs/{i}")}, {"$ref": format!("#/$defs/{i}")}]});
    refused(&chain(1900, &array));
    refused(&chain(1900, &bare));
    refused(&chain(300, &twice));
    refused(&chain(30, &both));
    assert!(refused(&chain(5000, &array)));
    let many = |keyword: &str, n: usize| {
        let all: Vec<Value> = (0..n)
            .map(
                |i| json!({"type": "object", "properties": {format!("p{i}"): {"type": "integer"}}}),
            )
            .collect();
        json!({keyword: all})
    };
    for keyword in ["allOf", "anyOf", "oneOf"] {
        refused(&many(keyword, 50));
        refused(&many(keyword, 3000));
    }
    refused(&json!({"allOf": [many("anyOf", 100), many("oneOf", 100), many("anyOf", 100)]}));
    let properties: serde_json::Map<String, Value> = (0..1000)
        .map(|i| (format!("p{i}"), json!({"type": "integer"})))
        .collect();
    refused(&json!({"properties": properties, "additionalProperties": true}));
    refused(&json!({"properties": properties, "maxProperties": 3}));
    for (keyword, count) in [
        ("minItems", 2_000_000_000_u64),
        ("maxItems", 2_000_000_000),
        ("minItems", 1 << 40),
    ] {
        refused(&json!({"type": "array", "items": {"type": "integer"}, keyword: count}));
    }
    for (keyword, count) in [
        ("minLength", 2_000_000_000_u64),
        ("maxLength", 2_000_000_000),
    ] {
        refused(&json!({"type": "string", keyword: count}));
        refused(&json!({"type": "string", "pattern": "(a|b)*c", keyword: count}));
    }
    refused(&json!({"type": "object", "minProperties": 1_000_000}));
    refused(&json!({"type": "number", "multipleOf": 1e-300, "minimum": -1e300}));
    refused(&json!({"type": "integer", "multipleOf": 999_999_937}));
    refused(&json!({"type": "integer", "minimum": -1e308, "maximum": 1e308}));
    refused(
        &json!({"patternProperties": {"(a|b)*a(a|b){18}": {}, "(a|b)*b(a|b){18}": {}}, "type": "object"}),
    );
}

#[test]
fn regular_expressions() {
    let setup = Setup::new();
    for pattern in [
        "(a*)*b".to_owned(),
        "(a|aa)+$".to_owned(),
        "(a|b)*a(a|b){30}".to_owned(),
        "((a{0,100}){0,100}){0,100}b".to_owned(),
        "a{1000000000}".to_owned(),
        "(?:a?){500}a{500}".to_owned(),
        r"\p{L}{0,1000}(\p{L}|\d){0,1000}x".to_owned(),
        "(".repeat(100_000),
        "a|".repeat(30_000),
        "[a-z]".repeat(10_000),
        format!("{}a{}", "(?:".repeat(90), "){0,9}".repeat(90)),
        "x".repeat(1 << 20),
    ] {
        is_refused(&setup, &ConstraintSpec::Regex(pattern.clone()));
        is_refused(
            &setup,
            &schema(&json!({"type": "string", "pattern": pattern})),
        );
    }
    for pattern in ["*", "{2}", "(?<=x)*", "(?=x)y", r"(a)\1", "[z-a]"] {
        assert!(
            is_refused(&setup, &ConstraintSpec::Regex(pattern.to_owned())),
            "{pattern}"
        );
    }
    // Nothing matches.
    for pattern in ["[^\\s\\S]", "a[^\\s\\S]"] {
        assert!(
            is_refused(&setup, &ConstraintSpec::Regex(pattern.to_owned())),
            "{pattern}"
        );
    }
}

#[test]
fn grammars() {
    let setup = Setup::new();
    let chain = |n: usize, link: &dyn Fn(usize) -> String, last: &str| {
        let mut text = String::from("root ::= r0\n");
        for i in 0..n {
            writeln!(text, "r{i} ::= {}", link(i + 1)).unwrap();
        }
        text + &format!("r{n} ::= {last}\n")
    };
    for gbnf in [
        chain(990, &|i| format!("r{i}"), "\"a\""),
        chain(990, &|i| format!("\"(\" r{i} | \"x\" root"), "\"a\""),
        chain(60, &|i| format!("r{i} r{i}"), "\"a\""),
        chain(
            60,
            &|i| format!("(r{i} | r{i} \"b\" | root? \"c\")"),
            "\"a\"",
        ),
        chain(20, &|i| format!("\"x\" (r{i}){{0,2000}}"), "\"a\""),
        "root ::= [ab]* \"a\" [ab]{20} root?".to_owned(),
        "root ::= ([^x]{0,2000} | \"x\" root){0,2000}".to_owned(),
        "root ::= (((((\"a\"*)*)*)*)*)* \"b\" root?".to_owned(),
        format!(
            "root ::= {}\"a\"{} root?",
            "(".repeat(150),
            ")*".repeat(150)
        ),
        format!("root ::= \"{}\" root?", "a".repeat(100_000)),
        format!("root ::= [a]{}", " | [b] root".repeat(500)),
        format!(
            "root ::= [a]{}",
            lines(1..60, |i| format!(" | {} root", "[b]".repeat(i)))
        ),
        format!(
            "root ::= {}",
            "\"ab\" | ".repeat(15_000) + "root2\nroot2 ::= \"x\" root"
        ),
    ] {
        is_refused(&setup, &ConstraintSpec::Gbnf(gbnf));
    }
    for gbnf in [
        "(".repeat(1_000_000),
        format!("root ::= {}", "(".repeat(100_000)),
        "root ::= root \"a\" | \"a\"".to_owned(),
        "root ::= x\nx ::= \"\" x \"a\"".to_owned(),
        "root ::= \"a\" root".to_owned(),
        "root ::= x\nx ::= y \"a\"\ny ::= \"b\"? x".to_owned(),
        "%llguidance {}".to_owned(),
    ] {
        assert!(is_refused(&setup, &ConstraintSpec::Gbnf(gbnf)));
    }
    for lark in [
        "%llguidance {}".to_owned(),
        "start: ".to_owned() + &"(".repeat(100_000),
        "start: start \"a\" | \"a\"".to_owned(),
        "start: a\na: b\nb: a".to_owned(),
        "start: \"a\"~1..1000000000".to_owned(),
        "start: (\"a\"~0..100000 \"b\")~0..100000".to_owned(),
        format!(
            "start: r0\n{}r2900: \"a\"\n",
            lines(0..2900, |i| format!("r{i}: r{}\n", i + 1))
        ),
        format!(
            "start: T0\n{}T2900: \"a\"\n",
            lines(0..2900, |i| format!("T{i}: T{}\n", i + 1))
        ),
        format!(
            "start: T0\n{}T40: \"a\"\n",
            lines(0..40, |i| format!("T{i}: T{} T{}\n", i + 1, i + 1))
        ),
        format!("start: {}", "\"a\" | ".repeat(9000) + "\"b\""),
        format!("start: %json {{\"minItems\": {}}}", "9".repeat(30)),
        "start: %json {\"type\": \"object\", \"x-guidance\": {\"lenient\": true}, \"not\": {}}"
            .to_owned(),
        "start: %regex {\"substring_chars\": \"".to_owned() + &"ab".repeat(50_000) + "\"}",
        "start: <[0-4000000000]>".to_owned(),
        "start: @other".to_owned(),
        "start: /(/".to_owned(),
        "\u{0}".to_owned(),
    ] {
        is_refused(&setup, &ConstraintSpec::Lark(lark));
    }
}
