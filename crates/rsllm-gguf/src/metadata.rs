//! The key-value part of a GGUF file, in file order, with typed access.
//!
//! Converters disagree about integer widths, so the getters take any integer type whose value fits the one asked for;
//! the reference engine insists on the exact type. A float is never taken for an integer, nor a string for a number.
//! Each getter has an `opt_` twin that is `None` where the key is missing; a key of the wrong type is an error in both.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cause::Cause;
use crate::error::GgufError;
use crate::value::{Array, StringArray, Value};

/// Metadata keys and values, in file order; keys are unique.
#[derive(Clone, Default)]
pub struct Metadata {
    entries: Vec<(Arc<str>, Value)>,
    index: HashMap<Arc<str>, usize>,
    /// Named in errors; empty for metadata made by hand.
    file: PathBuf,
}

impl Metadata {
    /// Metadata without entries, to be filled and written.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn in_file(file: &Path) -> Self {
        Self {
            file: file.into(),
            ..Self::default()
        }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (&**key, value))
    }

    /// The value of `key`, whatever its type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&index| &self.entries[index].1)
    }

    /// Whether there is such a key.
    pub fn contains(&self, key: &str) -> bool {
        self.index.contains_key(key)
    }

    /// Sets `key`, at its old place if it has one, else at the end. Returns the old value.
    pub fn insert(&mut self, key: &str, value: impl Into<Value>) -> Option<Value> {
        let value = value.into();
        if let Some(&index) = self.index.get(key) {
            return Some(std::mem::replace(&mut self.entries[index].1, value));
        }
        let key: Arc<str> = key.into();
        self.index.insert(Arc::clone(&key), self.entries.len());
        self.entries.push((key, value));
        None
    }

    /// Removes `key`; the order of the others stays.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let removed = self.index.remove(key)?;
        for index in self.index.values_mut() {
            *index -= usize::from(*index > removed);
        }
        Some(self.entries.remove(removed).1)
    }

    /// `general.architecture`, the prefix of the model's own keys.
    pub fn architecture(&self) -> Result<&str, GgufError> {
        self.str("general.architecture")
    }

    /// A string that is UTF-8.
    pub fn str(&self, key: &str) -> Result<&str, GgufError> {
        self.required(key, STRING, self.opt_str(key))
    }

    /// As [`Self::str`], `None` if missing.
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.opt(key, STRING, |value| match value {
            Value::String(text) => text.to_str().ok_or(Mismatch::Type),
            _ => Err(Mismatch::Type),
        })
    }

    /// The bytes of a string, UTF-8 or not.
    pub fn opt_bytes(&self, key: &str) -> Result<Option<&[u8]>, GgufError> {
        self.opt(key, "a string", |value| match value {
            Value::String(text) => Ok(text.as_bytes()),
            _ => Err(Mismatch::Type),
        })
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<bool, GgufError> {
        self.required(key, BOOL, self.opt_bool(key))
    }

    /// As [`Self::bool`], `None` if missing.
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.opt(key, BOOL, |value| match value {
            Value::Bool(v) => Ok(*v),
            _ => Err(Mismatch::Type),
        })
    }

    /// Any integer that fits `u32`.
    pub fn u32(&self, key: &str) -> Result<u32, GgufError> {
        self.required(key, U32, self.opt_u32(key))
    }

    /// As [`Self::u32`], `None` if missing.
    pub fn opt_u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.opt(key, U32, integer)
    }

    /// Any integer that fits `i32`.
    pub fn i32(&self, key: &str) -> Result<i32, GgufError> {
        self.required(key, I32, self.opt_i32(key))
    }

    /// As [`Self::i32`], `None` if missing.
    pub fn opt_i32(&self, key: &str) -> Result<Option<i32>, GgufError> {
        self.opt(key, I32, integer)
    }

    /// Any integer that fits `u64`.
    pub fn u64(&self, key: &str) -> Result<u64, GgufError> {
        self.required(key, U64, self.opt_u64(key))
    }

    /// As [`Self::u64`], `None` if missing.
    pub fn opt_u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.opt(key, U64, integer)
    }

    /// A float of either width, or an integer; rounded to `f32`.
    pub fn f32(&self, key: &str) -> Result<f32, GgufError> {
        self.required(key, F32, self.opt_f32(key))
    }

    /// As [`Self::f32`], `None` if missing.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.opt(key, F32, |value| {
            value.as_f64().map(|v| v as f32).ok_or(Mismatch::Type)
        })
    }

    /// An array of strings, which may not be UTF-8.
    pub fn str_array(&self, key: &str) -> Result<&StringArray, GgufError> {
        self.required(key, STRINGS, self.opt_str_array(key))
    }

    /// As [`Self::str_array`], `None` if missing.
    pub fn opt_str_array(&self, key: &str) -> Result<Option<&StringArray>, GgufError> {
        self.opt(key, STRINGS, |value| match value {
            Value::Array(Array::String(strings)) => Ok(strings),
            _ => Err(Mismatch::Type),
        })
    }

    /// An array of any integer type, or of booleans as 0 and 1, whose values all fit `u32`.
    pub fn u32_array(&self, key: &str) -> Result<Cow<'_, [u32]>, GgufError> {
        self.required(key, U32_ARRAY, self.opt_u32_array(key))
    }

    /// As [`Self::u32_array`], `None` if missing.
    pub fn opt_u32_array(&self, key: &str) -> Result<Option<Cow<'_, [u32]>>, GgufError> {
        self.opt(key, U32_ARRAY, |value| match value {
            Value::Array(Array::U32(elements)) => Ok(Cow::Borrowed(elements.as_slice())),
            _ => integers(value).map(Cow::Owned),
        })
    }

    /// An array of any integer type, or of booleans as 0 and 1, whose values all fit `i32`.
    pub fn i32_array(&self, key: &str) -> Result<Cow<'_, [i32]>, GgufError> {
        self.required(key, I32_ARRAY, self.opt_i32_array(key))
    }

    /// As [`Self::i32_array`], `None` if missing.
    pub fn opt_i32_array(&self, key: &str) -> Result<Option<Cow<'_, [i32]>>, GgufError> {
        self.opt(key, I32_ARRAY, |value| match value {
            Value::Array(Array::I32(elements)) => Ok(Cow::Borrowed(elements.as_slice())),
            _ => integers(value).map(Cow::Owned),
        })
    }

    /// An array of floats of either width, rounded to `f32`.
    pub fn f32_array(&self, key: &str) -> Result<Cow<'_, [f32]>, GgufError> {
        self.required(key, F32_ARRAY, self.opt_f32_array(key))
    }

    /// As [`Self::f32_array`], `None` if missing.
    pub fn opt_f32_array(&self, key: &str) -> Result<Option<Cow<'_, [f32]>>, GgufError> {
        self.opt(key, F32_ARRAY, |value| match value {
            Value::Array(Array::F32(elements)) => Ok(Cow::Borrowed(elements.as_slice())),
            Value::Array(Array::F64(elements)) => Ok(elements.iter().map(|&v| v as f32).collect()),
            _ => Err(Mismatch::Type),
        })
    }

    /// An error about `key` with this metadata's file, for callers that check more than types.
    pub fn range_error(&self, key: &str, expected: &'static str) -> GgufError {
        let found = self
            .get(key)
            .map_or_else(|| "missing".into(), Value::describe);
        GgufError::new(Cause::KeyRange {
            key: key.into(),
            expected,
            found,
        })
        .in_file(&self.file)
    }

    fn opt<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&'a Value) -> Result<T, Mismatch>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        read(value).map(Some).map_err(|mismatch| {
            let (key, found) = (key.to_string(), value.describe());
            GgufError::new(match mismatch {
                Mismatch::Type => Cause::KeyType {
                    key,
                    expected,
                    found,
                },
                Mismatch::Range => Cause::KeyRange {
                    key,
                    expected,
                    found,
                },
            })
            .in_file(&self.file)
        })
    }

    fn required<T>(
        &self,
        key: &str,
        expected: &'static str,
        value: Result<Option<T>, GgufError>,
    ) -> Result<T, GgufError> {
        value?.ok_or_else(|| {
            GgufError::new(Cause::KeyMissing {
                key: key.into(),
                expected,
            })
            .in_file(&self.file)
        })
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl PartialEq for Metadata {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

impl<K: AsRef<str>, V: Into<Value>> FromIterator<(K, V)> for Metadata {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut metadata = Self::new();
        for (key, value) in entries {
            metadata.insert(key.as_ref(), value);
        }
        metadata
    }
}

/// Why a value is not what was asked for.
enum Mismatch {
    Type,
    Range,
}

fn integer<T: TryFrom<i128>>(value: &Value) -> Result<T, Mismatch> {
    let wide = value.as_integer().ok_or(Mismatch::Type)?;
    T::try_from(wide).map_err(|_| Mismatch::Range)
}

fn integers<T: TryFrom<i128>>(value: &Value) -> Result<Vec<T>, Mismatch> {
    fn narrow<T: TryFrom<i128>, S: Copy + Into<i128>>(elements: &[S]) -> Result<Vec<T>, Mismatch> {
        elements
            .iter()
            .map(|&v| T::try_from(v.into()).map_err(|_| Mismatch::Range))
            .collect()
    }
    let Value::Array(array) = value else {
        return Err(Mismatch::Type);
    };
    match array {
        Array::U8(v) => narrow(v),
        Array::I8(v) => narrow(v),
        Array::U16(v) => narrow(v),
        Array::I16(v) => narrow(v),
        Array::U32(v) => narrow(v),
        Array::I32(v) => narrow(v),
        Array::U64(v) => narrow(v),
        Array::I64(v) => narrow(v),
        Array::Bool(v) => narrow(v),
        Array::F32(_) | Array::F64(_) | Array::String(_) => Err(Mismatch::Type),
    }
}

const STRING: &str = "a UTF-8 string";
const BOOL: &str = "bool";
const U32: &str = "u32";
const I32: &str = "i32";
const U64: &str = "u64";
const F32: &str = "f32";
const STRINGS: &str = "array of string";
const U32_ARRAY: &str = "array of u32";
const I32_ARRAY: &str = "array of i32";
const F32_ARRAY: &str = "array of f32";

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Metadata {
        let mut metadata = Metadata::in_file(Path::new("m.gguf"));
        metadata.insert("s", "text");
        metadata.insert("small", 7_u8);
        metadata.insert("negative", -1_i64);
        metadata.insert("large", u64::MAX);
        metadata.insert("half", 0.5_f64);
        metadata.insert("bools", vec![true, false]);
        metadata.insert("raw", Value::String(crate::GgufString::from_bytes(b"\xff")));
        metadata
    }

    #[test]
    fn integers_of_any_width_are_taken_where_they_fit() {
        let metadata = sample();
        assert_eq!(metadata.u32("small").unwrap(), 7);
        assert_eq!(metadata.i32("negative").unwrap(), -1);
        assert_eq!(metadata.u64("large").unwrap(), u64::MAX);
        assert_eq!(&*metadata.u32_array("bools").unwrap(), [1, 0]);
        assert_eq!(metadata.f32("small").unwrap(), 7.0);
        for key in ["negative", "large"] {
            let error = metadata.u32(key).unwrap_err();
            assert!(
                matches!(
                    error.cause(),
                    Cause::KeyRange {
                        expected: "u32",
                        ..
                    }
                ),
                "{error}"
            );
        }
    }

    #[test]
    fn wrong_types_name_file_key_expected_and_found() {
        let metadata = sample();
        let error = metadata.opt_u32("half").unwrap_err();
        assert_eq!(error.file(), Some(Path::new("m.gguf")));
        assert_eq!(error.field().as_deref(), Some("half"));
        assert_eq!(error.expected().as_deref(), Some("u32"));
        assert_eq!(error.found().as_deref(), Some("f64 0.5"));
        assert!(metadata.bool("small").is_err());
        assert!(metadata.str("raw").is_err());
        assert_eq!(metadata.opt_bytes("raw").unwrap(), Some(&b"\xff"[..]));
    }

    #[test]
    fn missing_keys_are_none_or_an_error_that_names_them() {
        let metadata = sample();
        assert_eq!(metadata.opt_u32("absent").unwrap(), None);
        let error = metadata.architecture().unwrap_err();
        assert_eq!(
            error.to_string(),
            "m.gguf: metadata key `general.architecture` is missing (expected a UTF-8 string)"
        );
    }

    #[test]
    fn insert_replaces_in_place_and_remove_keeps_order() {
        let mut metadata: Metadata = [("a", 1_u32), ("b", 2), ("c", 3)].into_iter().collect();
        assert_eq!(metadata.insert("a", 9_u32), Some(Value::U32(1)));
        assert_eq!(metadata.remove("b"), Some(Value::U32(2)));
        assert_eq!(metadata.remove("b"), None);
        assert_eq!(
            metadata.iter().map(|(key, _)| key).collect::<Vec<_>>(),
            ["a", "c"]
        );
        assert_eq!(metadata.u32("c").unwrap(), 3);
    }
}
