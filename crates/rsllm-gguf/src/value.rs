//! Metadata values as GGUF stores them: thirteen types, of which one is an array of any of the others.
//!
//! GGUF calls its strings UTF-8, yet token texts may be any bytes (a byte of a split character is a token). Strings here
//! keep their bytes; a caller that needs text asks for it and is told when it is not. Array elements lie in one buffer
//! each; strings of an array stay where they are in the file.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::map::Bytes;

/// The type tag of a metadata value, with the numbers of the file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    /// The type with the given number, if there is one.
    pub fn from_id(id: u32) -> Option<Self> {
        Some(match id {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::String,
            9 => Self::Array,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    /// The number the file format gives this type.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// The name used in messages: `u32`, `string`, `array`.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// The least number of bytes a value of this type takes in a file; exact for all but strings and arrays.
    pub(crate) fn min_bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(GgufString),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value {
    /// The type tag of this value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The value of any integer type; `None` for other types. Wide enough for all of them.
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            Self::F32(_) | Self::F64(_) | Self::Bool(_) | Self::String(_) | Self::Array(_) => {
                return None;
            }
        })
    }

    /// The value of a float or integer type as `f64`; `None` for other types.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::F32(v) => Some(v.into()),
            Self::F64(v) => Some(v),
            _ => self.as_integer().map(|v| v as f64),
        }
    }

    /// What this value is, for a message: `u32 7`, `array of 3 string`, `string "llama"`. Long strings are cut.
    pub fn describe(&self) -> String {
        match self {
            Self::U8(v) => format!("u8 {v}"),
            Self::I8(v) => format!("i8 {v}"),
            Self::U16(v) => format!("u16 {v}"),
            Self::I16(v) => format!("i16 {v}"),
            Self::U32(v) => format!("u32 {v}"),
            Self::I32(v) => format!("i32 {v}"),
            Self::F32(v) => format!("f32 {v}"),
            Self::Bool(v) => format!("bool {v}"),
            Self::String(v) => {
                let text = v.to_str_lossy();
                let cut: String = text.chars().take(DESCRIBED_CHARS).collect();
                let ellipsis = if cut.len() < text.len() { "…" } else { "" };
                format!("string {cut:?}{ellipsis}")
            }
            Self::Array(v) => format!("array of {} {}", v.len(), v.element_type()),
            Self::U64(v) => format!("u64 {v}"),
            Self::I64(v) => format!("i64 {v}"),
            Self::F64(v) => format!("f64 {v}"),
        }
    }
}

macro_rules! value_from {
    ($($source:ty => $variant:ident),+ $(,)?) => {
        $(impl From<$source> for Value {
            fn from(value: $source) -> Self {
                Self::$variant(value.into())
            }
        })+
    };
}

value_from! {
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
    f32 => F32, f64 => F64, bool => Bool, &str => String, String => String, Array => Array,
    Vec<u32> => Array, Vec<i32> => Array, Vec<f32> => Array, Vec<bool> => Array, Vec<&str> => Array,
}

/// The elements of an array value, packed.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(StringArray),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Array {
    /// The type of the elements; never [`ValueType::Array`].
    pub fn element_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::String(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F64(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element at `index` as a value of its own.
    pub fn get(&self, index: usize) -> Option<Value> {
        Some(match self {
            Self::U8(v) => Value::U8(*v.get(index)?),
            Self::I8(v) => Value::I8(*v.get(index)?),
            Self::U16(v) => Value::U16(*v.get(index)?),
            Self::I16(v) => Value::I16(*v.get(index)?),
            Self::U32(v) => Value::U32(*v.get(index)?),
            Self::I32(v) => Value::I32(*v.get(index)?),
            Self::F32(v) => Value::F32(*v.get(index)?),
            Self::Bool(v) => Value::Bool(*v.get(index)?),
            Self::String(v) => Value::String(GgufString::from_bytes(v.get(index)?)),
            Self::U64(v) => Value::U64(*v.get(index)?),
            Self::I64(v) => Value::I64(*v.get(index)?),
            Self::F64(v) => Value::F64(*v.get(index)?),
        })
    }
}

macro_rules! array_from {
    ($($element:ty => $variant:ident),+ $(,)?) => {
        $(impl From<Vec<$element>> for Array {
            fn from(elements: Vec<$element>) -> Self {
                Self::$variant(elements)
            }
        })+
    };
}

array_from! {
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
    f32 => F32, f64 => F64, bool => Bool,
}

impl From<Vec<&str>> for Array {
    fn from(elements: Vec<&str>) -> Self {
        Self::String(elements.into_iter().collect())
    }
}

/// A string of the file: bytes that are usually, but not always, UTF-8. May hold NUL bytes.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct GgufString(Box<[u8]>);

impl GgufString {
    /// A copy of `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    /// The bytes as stored.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text, or `None` when the bytes are not UTF-8.
    pub fn to_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// The text for people to read, with U+FFFD where the bytes are not UTF-8.
    pub fn to_str_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

impl fmt::Debug for GgufString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl From<&str> for GgufString {
    fn from(text: &str) -> Self {
        Self::from_bytes(text.as_bytes())
    }
}

impl From<String> for GgufString {
    fn from(text: String) -> Self {
        Self(text.into_bytes().into())
    }
}

/// An array of strings, the bytes of which stay in the file they were read from; clones share all. A vocabulary of 262,144
/// tokens is one allocation of a megabyte.
#[derive(Clone)]
pub struct StringArray {
    bytes: Bytes,
    /// Where the array begins in `bytes`.
    start: usize,
    /// Bytes before each string that are not its own.
    gap: usize,
    /// End of string `i` from `start`; it begins a gap after the one before ends.
    ends: Arc<[u32]>,
}

impl StringArray {
    /// The array of strings that lie in `bytes` from `start`, `gap` bytes before each; their ends count from `start`.
    pub(crate) fn in_bytes(bytes: Bytes, start: usize, gap: usize, ends: Vec<u32>) -> Self {
        Self {
            bytes,
            start,
            gap,
            ends: ends.into(),
        }
    }

    /// The number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The bytes of all strings together.
    pub fn total_bytes(&self) -> usize {
        self.ends.last().map_or(0, |&end| end as usize) - self.gap * self.len()
    }

    /// The bytes of the string at `index`.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        self.range(index).map(|range| &self.buffer()[range])
    }

    /// What the strings lie in, with other bytes before, between and after them; see [`Self::range`].
    pub fn buffer(&self) -> &[u8] {
        self.bytes.as_slice()
    }

    /// Where the string at `index` lies in [`Self::buffer`].
    pub fn range(&self, index: usize) -> Option<Range<usize>> {
        let end = *self.ends.get(index)? as usize;
        let before = index.checked_sub(1).map_or(0, |before| self.ends[before]) as usize;
        Some(self.start + before + self.gap..self.start + end)
    }

    /// The text of the string at `index`; `None` past the end and for bytes that are not UTF-8.
    pub fn get_str(&self, index: usize) -> Option<&str> {
        std::str::from_utf8(self.get(index)?).ok()
    }

    /// The bytes of each string, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        let buffer = self.buffer();
        let mut from = self.start;
        self.ends.iter().map(move |&end| {
            let end = self.start + end as usize;
            let string = &buffer[from + self.gap..end];
            from = end;
            string
        })
    }
}

impl Default for StringArray {
    fn default() -> Self {
        Self::in_bytes(Bytes::from_vec(Vec::new()), 0, 0, Vec::new())
    }
}

impl PartialEq for StringArray {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for StringArray {}

impl fmt::Debug for StringArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.iter().map(|s| s.escape_ascii().to_string()))
            .finish()
    }
}

/// A copy of strings made by hand.
///
/// # Panics
/// If they are 4 GiB or more together.
impl<S: AsRef<[u8]>> FromIterator<S> for StringArray {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for string in strings {
            bytes.extend_from_slice(string.as_ref());
            ends.push(u32::try_from(bytes.len()).expect("less than 4 GiB of strings"));
        }
        Self::in_bytes(Bytes::from_vec(bytes), 0, 0, ends)
    }
}

/// How much of a string a message quotes.
const DESCRIBED_CHARS: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_type_ids_round_trip_and_end_at_twelve() {
        for id in 0..=12 {
            assert_eq!(ValueType::from_id(id).unwrap().id(), id);
        }
        assert_eq!(ValueType::from_id(13), None);
        assert_eq!(ValueType::from_id(u32::MAX), None);
    }

    #[test]
    fn string_array_keeps_order_empties_and_bytes_that_are_not_utf8() {
        let strings: [&[u8]; 4] = [b"", b"ab", b"\xff\x00", b""];
        let array: StringArray = strings.into_iter().collect();
        assert_eq!(array.len(), 4);
        assert_eq!(array.iter().collect::<Vec<_>>(), strings);
        assert_eq!(array.get(2), Some(strings[2]));
        assert_eq!(array.get_str(2), None);
        assert_eq!(array.get_str(1), Some("ab"));
        assert_eq!(array.get(4), None);
        assert_eq!(array.total_bytes(), 4);
        assert_eq!(array.range(2), Some(2..4));
        assert_eq!(&array.buffer()[2..4], strings[2]);
        assert_eq!(array.range(4), None);
    }

    #[test]
    fn describe_cuts_long_strings_between_characters() {
        let long = "é".repeat(100);
        let described = Value::from(long.as_str()).describe();
        assert_eq!(described, format!("string \"{}\"…", "é".repeat(40)));
        assert_eq!(Value::from(vec![1_u32, 2]).describe(), "array of 2 u32");
    }
}
