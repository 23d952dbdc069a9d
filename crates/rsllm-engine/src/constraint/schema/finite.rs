//! Whether anything finite can satisfy a prepared schema. A required property that requires itself never ends.

use serde_json::{Map, Value};

use super::reference;
use crate::constraint::ConstraintError;

/// An error when nothing finite satisfies definition `root`.
pub(super) fn check(definitions: &[Value], root: usize) -> Result<(), ConstraintError> {
    // The least fixed point: a definition is finite once what it needs is known to be.
    let mut finite = vec![false; definitions.len()];
    loop {
        let mut changed = false;
        for (number, definition) in definitions.iter().enumerate() {
            if !finite[number] && is_finite(definition, &finite) {
                finite[number] = true;
                changed = true;
            }
        }
        if finite[root] {
            return Ok(());
        }
        if !changed {
            return Err(ConstraintError::Unsatisfiable {
                kind: "schema",
                reason: "it is false, or requires itself without end".to_owned(),
            });
        }
    }
}

fn is_finite(schema: &Value, finite: &[bool]) -> bool {
    let keywords = match schema {
        Value::Bool(allowed) => return *allowed,
        Value::Object(keywords) => keywords,
        _ => return true,
    };
    if let Some(target) = keywords.get("$ref").and_then(Value::as_str)
        && !is_reference_finite(target, finite)
    {
        return false;
    }
    let parts = |keyword: &str| keywords.get(keyword).and_then(Value::as_array);
    if let Some(all) = parts("allOf")
        && !all.iter().all(|part| is_finite(part, finite))
    {
        return false;
    }
    if let Some(any) = parts("anyOf")
        && !any.iter().any(|part| is_finite(part, finite))
    {
        return false;
    }
    match keywords.get("type").and_then(Value::as_str) {
        Some("object") => is_object_finite(keywords, finite),
        Some("array") => is_array_finite(keywords, finite),
        _ => true,
    }
}

fn is_reference_finite(target: &str, finite: &[bool]) -> bool {
    target
        .strip_prefix(&reference(0)[..reference(0).len() - 1])
        .and_then(|number| number.parse::<usize>().ok())
        .and_then(|number| finite.get(number).copied())
        .unwrap_or(true)
}

fn is_object_finite(keywords: &Map<String, Value>, finite: &[bool]) -> bool {
    let required = keywords.get("required").and_then(Value::as_array);
    let properties = keywords.get("properties").and_then(Value::as_object);
    required
        .into_iter()
        .flatten()
        .filter_map(|name| properties?.get(name.as_str()?))
        .all(|property| is_finite(property, finite))
}

fn is_array_finite(keywords: &Map<String, Value>, finite: &[bool]) -> bool {
    let n_items = keywords
        .get("minItems")
        .and_then(Value::as_u64)
        .unwrap_or_default();
    let first = keywords.get("prefixItems").and_then(Value::as_array);
    let n_first = first.map_or(0, Vec::len) as u64;
    let first_are = first
        .into_iter()
        .flatten()
        .zip(0..n_items)
        .all(|(item, _)| is_finite(item, finite));
    first_are
        && (n_items <= n_first
            || keywords
                .get("items")
                .is_none_or(|items| is_finite(items, finite)))
}
