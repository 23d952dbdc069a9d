//! Values that the grammar could not hold exactly, and sizes that it could not hold at all.

use serde_json::Value;

use super::keywords::TYPES;
use super::place::Place;
use super::{MAX_DEPTH, MAX_EXACT_INTEGER, too_large};
use crate::constraint::error::ConstraintError;

pub(super) fn check_type(place: Place<'_, '_>) -> Result<(), ConstraintError> {
    let is_known = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    let fits = match place.value {
        Value::Array(names) => !names.is_empty() && names.iter().all(is_known),
        value => is_known(value),
    };
    if fits {
        Ok(())
    } else {
        Err(place
            .expected("one or a list of object, array, string, number, integer, boolean and null"))
    }
}

/// Values in a constant, itself included.
pub(super) fn count_values(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count_values).sum(),
        Value::Object(members) => members.values().map(count_values).sum(),
        _ => 0,
    }
}

/// Constants are compared as doubles.
pub(super) fn check_integers(
    value: &Value,
    path: &str,
    keyword: &str,
) -> Result<(), ConstraintError> {
    match value {
        Value::Number(number) => {
            let magnitude = number
                .as_i64()
                .map(i64::unsigned_abs)
                .or_else(|| number.as_u64());
            if magnitude.is_some_and(|magnitude| magnitude > MAX_EXACT_INTEGER) {
                return Err(ConstraintError::SchemaValue {
                    path: path.to_owned(),
                    keyword: keyword.to_owned(),
                    expected: "within ±2^53 where it is a number",
                });
            }
            Ok(())
        }
        Value::Array(items) => items
            .iter()
            .try_for_each(|item| check_integers(item, path, keyword)),
        Value::Object(members) => members
            .values()
            .try_for_each(|member| check_integers(member, path, keyword)),
        _ => Ok(()),
    }
}

/// The library recurses through definitions, one in another.
pub(super) fn check_depth(definitions: &[Value]) -> Result<(), ConstraintError> {
    fn depth(value: &Value) -> usize {
        1 + match value {
            Value::Array(items) => items.iter().map(depth).max().unwrap_or(0),
            Value::Object(members) => members.values().map(depth).max().unwrap_or(0),
            _ => 0,
        }
    }
    let depth: usize = definitions.iter().map(depth).sum();
    if depth > MAX_DEPTH {
        return Err(too_large("levels of all definitions", depth, MAX_DEPTH));
    }
    Ok(())
}
