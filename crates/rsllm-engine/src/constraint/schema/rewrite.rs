//! What a schema means beyond its letter: closed objects, joined alternatives, missing types.

use serde_json::{Map, Value, json};

use super::keywords::{ARRAY_KEYWORDS, NUMBER_KEYWORDS, OBJECT_KEYWORDS, STRING_KEYWORDS};

/// Whether several parts of the schema speak about the same object.
pub(super) fn is_combination(keywords: &Map<String, Value>) -> bool {
    let n_parts = ["allOf", "anyOf", "oneOf", "$ref"]
        .iter()
        .filter(|keyword| keywords.contains_key(**keyword))
        .count();
    let speaks_of_objects = OBJECT_KEYWORDS
        .iter()
        .any(|keyword| keywords.contains_key(*keyword));
    let all_of = keywords
        .get("allOf")
        .and_then(Value::as_array)
        .map_or(0, Vec::len);
    n_parts >= 2 || n_parts == 1 && speaks_of_objects || all_of >= 2
}

pub(super) fn says_what_else_there_may_be(keywords: &Map<String, Value>) -> bool {
    keywords.contains_key("additionalProperties")
        || keywords.get("unevaluatedProperties") == Some(&Value::Bool(true))
}

/// Forbids properties beyond those given or required.
pub(super) fn close(out: &mut Map<String, Value>) {
    let required: Vec<String> = out
        .get("required")
        .and_then(Value::as_array)
        .map(|names| {
            names
                .iter()
                .filter_map(|name| name.as_str().map(str::to_owned))
                .collect()
        })
        .unwrap_or_default();
    let has_patterns = out.contains_key("patternProperties");
    let Some(Value::Object(properties)) = out.get_mut("properties") else {
        return;
    };
    if !has_patterns {
        for name in required {
            properties.entry(name).or_insert(Value::Bool(true));
        }
    }
    out.insert("additionalProperties".to_owned(), false.into());
}

/// Adds the alternatives of `anyOf`, `oneOf` or `allOf`. Where there are alternatives already, both must hold.
pub(super) fn add_alternatives(keyword: &str, schemas: Value, out: &mut Map<String, Value>) {
    if keyword == "allOf" {
        let Value::Array(schemas) = schemas else {
            return;
        };
        let all_of = out
            .entry("allOf")
            .or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(all_of) = all_of {
            all_of.extend(schemas);
        }
    } else if out.contains_key("anyOf") {
        add_alternatives("allOf", json!([{ "anyOf": schemas }]), out);
    } else {
        out.insert("anyOf".to_owned(), schemas);
    }
}

/// Gives a schema without a type the one that its keywords are about.
pub(super) fn infer_type(out: &mut Map<String, Value>) {
    let has_its_own = ["type", "enum", "const", "allOf", "anyOf", "$ref"]
        .iter()
        .any(|keyword| out.contains_key(*keyword));
    if has_its_own {
        return;
    }
    for (kind, keywords) in [
        ("object", OBJECT_KEYWORDS),
        ("array", ARRAY_KEYWORDS),
        ("string", STRING_KEYWORDS),
        ("number", NUMBER_KEYWORDS),
    ] {
        if keywords.iter().any(|keyword| out.contains_key(*keyword)) {
            out.insert("type".to_owned(), kind.into());
            return;
        }
    }
}
