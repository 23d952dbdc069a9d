//! Schemas by the documents they take and refuse, among them the field cases of structured output.

use serde_json::{Value, json};

use super::*;

fn check(schema: &Value, good: &[&str], bad: &[&str]) {
    let setup = Setup::new();
    let spec = ConstraintSpec::JsonSchema(schema.to_string());
    for text in good {
        assert!(setup.takes(&spec, text), "{schema} must take {text}");
    }
    for text in bad {
        assert!(!setup.takes(&spec, text), "{schema} must not take {text}");
    }
}

/// STR-01, STR-03.
#[test]
fn patterns_are_searched_for_and_superfluous_escapes_mean_nothing() {
    check(
        &json!({"type": "object", "properties": {"s": {"type": "string", "pattern": r"^hello there indeed\!$"}}, "required": ["s"]}),
        &[r#"{"s": "hello there indeed!"}"#],
        &[r#"{"s": "hello there indeed"}"#, r#"{"s": "x"}"#],
    );
    check(
        &json!({"type": "string", "pattern": "[0-9]"}),
        &[r#""5""#, r#""ab5ab""#, r#""\n5""#],
        &[r#""ab""#, r#""""#],
    );
    check(
        &json!({"type": "string", "pattern": "^(ab|c)d?$"}),
        &[r#""ab""#, r#""cd""#],
        &[r#""abc""#, r#""xab""#],
    );
}

/// STR-02.
#[test]
fn an_array_may_have_to_be_empty() {
    check(
        &json!({"properties": {"colours": {"items": {"type": "string"}, "maxItems": 0, "type": "array"}}, "required": ["colours"], "type": "object"}),
        &[r#"{"colours": []}"#],
        &[r#"{"colours": ["a"]}"#, "{}"],
    );
}

/// STR-04.
#[test]
fn long_texts_are_allowed_to_be_long() {
    let long = format!("{{\"a\": {{\"b\": \"{}\"}}}}", "x".repeat(2500));
    let too_long = format!("{{\"a\": {{\"b\": \"{}\"}}}}", "x".repeat(3001));
    check(
        &json!({"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "string", "maxLength": 3000}}}}}),
        &[&long],
        &[&too_long],
    );
}

/// STR-05.
#[test]
fn an_enumeration_behind_references_is_enforced() {
    let talk = |who: &str| format!(r#"{{"character": "{who}"}}"#);
    let list = |who: &str, n: usize| format!("[{}]", vec![talk(who); n].join(", "));
    check(
        &json!({
            "type": "array", "items": {"$ref": "#/$defs/TALK"}, "minItems": 15, "maxItems": 15,
            "$defs": {
                "TALK": {"type": "object", "properties": {"character": {"$ref": "#/$defs/WHO"}}, "required": ["character"]},
                "WHO": {"enum": ["Alice", "Biff"]},
            },
        }),
        &[&list("Alice", 15), &list("Biff", 15)],
        &[&list("Bob", 15), &list("Alice", 14), &list("Alice", 16)],
    );
}

/// STR-06.
#[test]
fn the_order_of_definitions_does_not_matter() {
    let a = json!({"type": "object", "properties": {"payload": {"$ref": "#/$defs/B"}}, "required": ["payload"]});
    let b =
        json!({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]});
    let c = json!({"type": "object", "properties": {"payload": {"$ref": "#/$defs/A"}}, "required": ["payload"]});
    for definitions in [
        json!({"C": c, "A": a, "B": b}),
        json!({"A": a, "B": b, "C": c}),
    ] {
        check(
            &json!({"$ref": "#/$defs/C", "$defs": definitions}),
            &[r#"{"payload": {"payload": {"text": "x"}}}"#],
            &[
                r#"{"payload": {"text": "x"}}"#,
                r#"{"payload": {"payload": {}}}"#,
            ],
        );
    }
}

/// STR-07, STR-08: properties come in the schema's order, those that are optional too.
#[test]
fn properties_come_in_the_order_of_the_schema() {
    check(
        &json!({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "a_summary": {"type": "string"}},
            "required": ["name", "age", "a_summary"]}),
        &[r#"{"name": "n", "age": 3, "a_summary": "s"}"#],
        &[r#"{"a_summary": "s", "name": "n", "age": 3}"#],
    );
    check(
        &json!({"type": "object", "properties": {"end_line": {"type": "integer"}, "start_line": {"type": "integer"}}}),
        &[
            "{}",
            r#"{"start_line": 1}"#,
            r#"{"end_line": 2, "start_line": 1}"#,
        ],
        &[r#"{"start_line": 1, "end_line": 2}"#],
    );
}

/// STR-09.
#[test]
fn integers_keep_their_bounds() {
    check(
        &json!({"type": "integer", "minimum": 3}),
        &["3", "10", "123"],
        &["01", "2", "-3", "03", "3.5"],
    );
    check(
        &json!({"type": "integer", "minimum": -123, "maximum": 42}),
        &["-123", "-1", "0", "42"],
        &["-124", "43", "007", "-0007"],
    );
    check(
        &json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1.5}),
        &["0.1", "1.5", "1"],
        &["0", "1.6", "-1", "2"],
    );
}

/// STR-10.
#[test]
fn white_space_is_bounded() {
    let blanks = |n| format!("{{\n{}\"a\": 1}}", " ".repeat(n));
    check(
        &json!({"type": "object"}),
        &[
            "{}",
            "{ \"a\" : 1 }",
            "{\n\n  \"a\": [\n  1\n]}",
            &blanks(20),
        ],
        &[
            "{  \"a\": 1}",
            "{\n\n\n\"a\": 1}",
            "{\t\"a\": 1}",
            "{\r\n\"a\": 1}",
            "\n{}",
            &blanks(21),
        ],
    );
}

/// STR-11.
#[test]
fn what_pydantic_writes_is_enforced() {
    check(
        &json!({
            "$defs": {"Pet": {"properties": {"kind": {"const": "cat", "title": "Kind"}, "name": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null}},
                "required": ["kind"], "title": "Pet", "type": "object"}},
            "properties": {"pet": {"$ref": "#/$defs/Pet"}, "pair": {"maxItems": 2, "minItems": 2, "prefixItems": [{"type": "integer"}, {"type": "boolean"}], "type": "array"}},
            "required": ["pet", "pair"], "title": "Owner", "type": "object",
        }),
        &[
            r#"{"pet": {"kind": "cat", "name": null}, "pair": [1, true]}"#,
            r#"{"pet": {"kind": "cat"}, "pair": [-7, false]}"#,
        ],
        &[
            r#"{"pet": {"kind": "dog"}, "pair": [1, true]}"#,
            r#"{"pet": {"kind": "cat", "name": 5}, "pair": [1, true]}"#,
            r#"{"pet": {"kind": "cat", "more": 5}, "pair": [1, true]}"#,
            r#"{"pet": {"kind": "cat"}, "pair": [1]}"#,
        ],
    );
}

#[test]
fn combinations_hold_together() {
    check(
        &json!({
            "allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"b": {"type": "integer"}}, "required": ["b"]}],
            "$defs": {"Base": {"properties": {"a": {"type": "boolean"}}, "required": ["a"]}},
        }),
        &[r#"{"a": true, "b": 1}"#],
        &[
            r#"{"a": true}"#,
            r#"{"b": 1}"#,
            r#"{"a": true, "b": 1, "c": 2}"#,
            r#"{"a": 1, "b": 1}"#,
        ],
    );
    check(
        &json!({"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
        &[r#"{"a": 1}"#, r#"{"b": 1}"#, r#"{"a": 1, "b": 1}"#],
        &["{}", r#"{"c": 1}"#],
    );
    check(
        &json!({"oneOf": [{"type": "string", "maxLength": 2}, {"type": "integer"}, {"properties": {"x": {"type": "null"}}, "required": ["x"]}]}),
        &[r#""ab""#, "5", r#"{"x": null}"#],
        &[r#""abc""#, "5.5", "{}", r#"{"x": null, "y": 1}"#],
    );
    check(
        &json!({"type": ["string", "integer"], "enum": ["a", 2, 3.5, null]}),
        &[r#""a""#, "2"],
        &["null", "3.5", r#""b""#],
    );
}

#[test]
fn recursive_schemas_nest() {
    check(
        &json!({"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["v", "next"]}),
        &[
            r#"{"v": 1, "next": null}"#,
            r#"{"v": 1, "next": {"v": 2, "next": {"v": 3, "next": null}}}"#,
        ],
        &[r#"{"v": 1, "next": {}}"#, r#"{"v": 1}"#],
    );
}

#[test]
fn open_objects_stay_open_and_keep_what_is_said() {
    check(
        &json!({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}}),
        &[r#"{"a": 1, "b": true}"#, "{}", r#"{"b": false}"#],
        &[r#"{"a": true}"#, r#"{"b": 1}"#],
    );
    check(
        &json!({"type": "object", "patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": false}),
        &[r#"{"ab": 1}"#],
        &[r#"{"ba": 1}"#, r#"{"ab": "x"}"#],
    );
    check(&json!(true), &["1", "[1, {\"a\": null}]"], &["x"]);
    check(&json!({}), &["\"x\"", "{}"], &["'x'"]);
}

#[test]
fn formats_are_enforced() {
    check(
        &json!({"type": "string", "format": "date"}),
        &[r#""2024-02-29""#],
        &[r#""2024-13-01""#, r#""x""#],
    );
    check(
        &json!({"type": "string", "format": "uuid"}),
        &[r#""123e4567-e89b-12d3-a456-426614174000""#],
        &[r#""123""#],
    );
}

#[test]
fn any_object_is_json_and_an_object() {
    let setup = Setup::new();
    for (text, expected) in [
        ("{}", true),
        ("{\"a\": [1, 2.5e3, \"\\u0001\", {}]}", true),
        ("[]", false),
        ("1", false),
    ] {
        assert_eq!(setup.takes(&ConstraintSpec::Json, text), expected, "{text}");
    }
}
