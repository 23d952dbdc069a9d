//! Keywords where they stand, their values as the types they must have, and the JSON pointers that lead to them.

use serde_json::{Map, Value};

use crate::constraint::ConstraintError;

/// A keyword where it stands.
#[derive(Clone, Copy)]
pub(super) struct Place<'p, 's> {
    pub(super) path: &'p str,
    pub(super) keyword: &'s str,
    pub(super) value: &'s Value,
}

impl<'s> Place<'_, 's> {
    pub(super) fn expected(self, expected: &'static str) -> ConstraintError {
        ConstraintError::SchemaValue {
            path: self.path.to_owned(),
            keyword: self.keyword.to_owned(),
            expected,
        }
    }

    pub(super) fn str(self) -> Result<&'s str, ConstraintError> {
        self.value.as_str().ok_or_else(|| self.expected("a string"))
    }

    pub(super) fn array(self) -> Result<&'s Vec<Value>, ConstraintError> {
        self.value
            .as_array()
            .ok_or_else(|| self.expected("an array"))
    }

    pub(super) fn object(self) -> Result<&'s Map<String, Value>, ConstraintError> {
        self.value
            .as_object()
            .ok_or_else(|| self.expected("an object"))
    }

    /// A count; 3.0 is one, too.
    pub(super) fn count(self) -> Result<u64, ConstraintError> {
        let count = self.value.as_u64().or_else(|| {
            self.value
                .as_f64()
                .filter(|number| number.fract() == 0.0 && (0.0..=MAX_COUNT as f64).contains(number))
                .map(|number| number as u64)
        });
        match count {
            Some(count) if count <= MAX_COUNT => Ok(count),
            Some(count) => Err(ConstraintError::TooLarge {
                kind: "schema",
                what: "a count",
                found: count,
                limit: MAX_COUNT,
            }),
            None => Err(self.expected("a whole number that is not negative")),
        }
    }

    /// The JSON pointer that a reference stands for.
    pub(super) fn resolve(self, root: &Value) -> Result<String, ConstraintError> {
        let reference = self.str()?;
        pointer_of(root, reference).ok_or_else(|| ConstraintError::UnresolvedReference {
            path: self.path.to_owned(),
            reference: reference.to_owned(),
        })
    }
}

/// The JSON pointer of a reference into `root`; `None` where it leads out or nowhere.
pub(super) fn pointer_of(root: &Value, reference: &str) -> Option<String> {
    let fragment = reference.strip_prefix('#')?;
    let pointer = percent_decoded(fragment)?;
    // Some generators write `#/` for the whole.
    let pointer = if pointer == "/" && root.pointer("/").is_none() {
        String::new()
    } else {
        pointer
    };
    root.pointer(&pointer).map(|_| pointer)
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        if *first == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

/// A name as part of a JSON pointer.
pub(super) fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Largest count, as everywhere in the protocols.
const MAX_COUNT: u64 = i32::MAX as u64;
