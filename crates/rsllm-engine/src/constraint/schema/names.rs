//! The property names that a combination of schemas speaks about.

use std::collections::HashSet;

use serde_json::Value;

use super::place::pointer_of;

/// Names in order of appearance, as long as no part says anything else about further properties.
pub(super) struct PropertyNames<'s> {
    root: &'s Value,
    names: Vec<String>,
    known: HashSet<String>,
    /// References that were followed.
    seen: HashSet<String>,
    is_open: bool,
}

impl<'s> PropertyNames<'s> {
    pub(super) fn new(root: &'s Value) -> Self {
        Self {
            root,
            names: Vec::new(),
            known: HashSet::new(),
            seen: HashSet::new(),
            is_open: false,
        }
    }

    /// Adds the names of `schema` and of all its parts.
    pub(super) fn gather(&mut self, schema: &'s Value) {
        let Value::Object(keywords) = schema else {
            return;
        };
        let opens = ["additionalProperties", "patternProperties"]
            .iter()
            .any(|keyword| keywords.contains_key(*keyword))
            || keywords.get("unevaluatedProperties") == Some(&Value::Bool(true));
        self.is_open |= opens;
        if let Some(Value::Object(properties)) = keywords.get("properties") {
            properties.keys().for_each(|name| self.add(name));
        }
        if let Some(Value::Array(required)) = keywords.get("required") {
            required
                .iter()
                .filter_map(Value::as_str)
                .for_each(|name| self.add(name));
        }
        for keyword in ["allOf", "anyOf", "oneOf"] {
            if let Some(Value::Array(parts)) = keywords.get(keyword) {
                for part in parts {
                    self.gather(part);
                }
            }
        }
        let target = keywords
            .get("$ref")
            .and_then(Value::as_str)
            .and_then(|reference| pointer_of(self.root, reference));
        if let Some(pointer) = target
            && self.seen.insert(pointer.clone())
            && let Some(schema) = self.root.pointer(&pointer)
        {
            self.gather(schema);
        }
    }

    /// The names; `None` where others are spoken about, or where there are none.
    pub(super) fn finish(self) -> Option<Vec<String>> {
        (!self.is_open && !self.names.is_empty()).then_some(self.names)
    }

    fn add(&mut self, name: &str) {
        if self.known.insert(name.to_owned()) {
            self.names.push(name.to_owned());
        }
    }
}
