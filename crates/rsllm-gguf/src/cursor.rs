//! Reading little-endian fields from untrusted bytes: every read is checked against what is left.
//!
//! Nothing here allocates more than a constant factor of the bytes that are really there, whatever lengths the file
//! claims: a length is compared with the remaining bytes before it is used.

use crate::cause::Cause;
use crate::error::GgufError;
use crate::map::Bytes;
use crate::value::{Array, GgufString, StringArray, Value, ValueType};

/// A position in the bytes of one file.
pub(crate) struct Cursor<'a> {
    owner: &'a Bytes,
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(owner: &'a Bytes) -> Self {
        Self {
            owner,
            bytes: owner.as_slice(),
            offset: 0,
        }
    }

    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len() - self.offset
    }

    pub(crate) fn u32(&mut self, field: impl FnOnce() -> String) -> Result<u32, GgufError> {
        self.take_array(field).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, field: impl FnOnce() -> String) -> Result<u64, GgufError> {
        self.take_array(field).map(u64::from_le_bytes)
    }

    /// A count of records that take at least `min_bytes` each; an error if the file cannot hold so many.
    pub(crate) fn count(
        &mut self,
        min_bytes: usize,
        limit: u64,
        field: impl Fn() -> String,
    ) -> Result<usize, GgufError> {
        let value = self.u64(&field)?;
        let count = self.check_length(value, min_bytes, &field)?;
        if value > limit {
            return Err(Cause::LimitExceeded {
                field: field(),
                value,
                limit,
            }
            .into());
        }
        Ok(count)
    }

    /// A string: u64 length, bytes.
    pub(crate) fn string(&mut self, field: impl Fn() -> String) -> Result<&'a [u8], GgufError> {
        let length = self.count(1, MAX_STRING_BYTES, || format!("length of {}", field()))?;
        self.take(length, field)
    }

    /// A metadata value of the given type; `key` names it in errors.
    pub(crate) fn value(&mut self, ty: ValueType, key: &str) -> Result<Value, GgufError> {
        let field = || key.to_string();
        Ok(match ty {
            ValueType::U8 => Value::U8(u8::from_le_bytes(self.take_array(field)?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(self.take_array(field)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(self.take_array(field)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(self.take_array(field)?)),
            ValueType::U32 => Value::U32(u32::from_le_bytes(self.take_array(field)?)),
            ValueType::I32 => Value::I32(i32::from_le_bytes(self.take_array(field)?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(self.take_array(field)?)),
            ValueType::Bool => Value::Bool(u8::from_le_bytes(self.take_array(field)?) != 0),
            ValueType::String => Value::String(GgufString::from_bytes(self.string(field)?)),
            ValueType::Array => Value::Array(self.array(key)?),
            ValueType::U64 => Value::U64(u64::from_le_bytes(self.take_array(field)?)),
            ValueType::I64 => Value::I64(i64::from_le_bytes(self.take_array(field)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(self.take_array(field)?)),
        })
    }

    fn array(&mut self, key: &str) -> Result<Array, GgufError> {
        let id = self.u32(|| format!("element type of {key}"))?;
        let ty = ValueType::from_id(id).ok_or_else(|| Cause::UnknownValueType {
            key: key.into(),
            id,
        })?;
        if ty == ValueType::Array {
            return Err(Cause::NestedArray { key: key.into() }.into());
        }
        let count = self.count(ty.min_bytes(), MAX_ELEMENTS, || format!("length of {key}"))?;
        Ok(match ty {
            ValueType::U8 => Array::U8(self.elements(count, key, u8::from_le_bytes)?),
            ValueType::I8 => Array::I8(self.elements(count, key, i8::from_le_bytes)?),
            ValueType::U16 => Array::U16(self.elements(count, key, u16::from_le_bytes)?),
            ValueType::I16 => Array::I16(self.elements(count, key, i16::from_le_bytes)?),
            ValueType::U32 => Array::U32(self.elements(count, key, u32::from_le_bytes)?),
            ValueType::I32 => Array::I32(self.elements(count, key, i32::from_le_bytes)?),
            ValueType::F32 => Array::F32(self.elements(count, key, f32::from_le_bytes)?),
            ValueType::Bool => Array::Bool(self.elements(count, key, |[byte]| byte != 0)?),
            ValueType::String => Array::String(self.strings(count, key)?),
            ValueType::U64 => Array::U64(self.elements(count, key, u64::from_le_bytes)?),
            ValueType::I64 => Array::I64(self.elements(count, key, i64::from_le_bytes)?),
            ValueType::F64 => Array::F64(self.elements(count, key, f64::from_le_bytes)?),
            ValueType::Array => return Err(Cause::NestedArray { key: key.into() }.into()),
        })
    }

    /// `count` elements of `N` bytes each. The caller has compared `count` with the remaining bytes.
    fn elements<T, const N: usize>(
        &mut self,
        count: usize,
        key: &str,
        decode: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, GgufError> {
        let bytes = self.take(count.saturating_mul(N), || key.to_string())?;
        Ok(bytes
            .as_chunks::<N>()
            .0
            .iter()
            .map(|chunk| decode(*chunk))
            .collect())
    }

    /// `count` strings, left where they are.
    fn strings(&mut self, count: usize, key: &str) -> Result<StringArray, GgufError> {
        let start = self.offset;
        let mut ends = Vec::with_capacity(count);
        for index in 0..count {
            self.string(|| format!("{key}[{index}]"))?;
            let n_bytes = self.offset - start;
            ends.push(u32::try_from(n_bytes).map_err(|_| Cause::LimitExceeded {
                field: format!("bytes of {key}"),
                value: n_bytes as u64,
                limit: u32::MAX.into(),
            })?);
        }
        Ok(StringArray::in_bytes(
            self.owner.clone(),
            start,
            STRING_LENGTH_BYTES,
            ends,
        ))
    }

    fn check_length(
        &self,
        length: u64,
        min_bytes: usize,
        field: impl FnOnce() -> String,
    ) -> Result<usize, GgufError> {
        let needed = u128::from(length) * min_bytes as u128;
        let available = self.remaining() as u64;
        match usize::try_from(length) {
            Ok(length) if needed <= u128::from(available) => Ok(length),
            _ => Err(Cause::LengthBeyondFile {
                field: field(),
                length,
                needed,
                available,
            }
            .into()),
        }
    }

    fn take(
        &mut self,
        n_bytes: usize,
        field: impl FnOnce() -> String,
    ) -> Result<&'a [u8], GgufError> {
        let end = self.offset.checked_add(n_bytes);
        let Some(taken) = end.and_then(|end| self.bytes.get(self.offset..end)) else {
            return Err(Cause::EndOfFile {
                field: field(),
                offset: self.offset as u64,
                needed: n_bytes as u64,
                available: self.remaining() as u64,
            }
            .into());
        };
        self.offset += n_bytes;
        Ok(taken)
    }

    fn take_array<const N: usize>(
        &mut self,
        field: impl FnOnce() -> String,
    ) -> Result<[u8; N], GgufError> {
        let taken = self.take(N, field)?;
        Ok(*taken
            .first_chunk()
            .expect("take returns as many bytes as asked for"))
    }
}

/// Before each string.
const STRING_LENGTH_BYTES: usize = 8;
/// The reference engine's limit on one array.
const MAX_ELEMENTS: u64 = 1 << 30;
/// The reference engine's limit on one string.
pub(crate) const MAX_STRING_BYTES: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_stop_at_the_end_and_say_where() {
        let bytes = Bytes::from_vec(vec![1, 0, 0, 0, 2]);
        let mut cursor = Cursor::new(&bytes);
        assert_eq!(cursor.u32(|| "a".into()).unwrap(), 1);
        let error = cursor.u32(|| "b".into()).unwrap_err();
        assert!(
            matches!(error.cause(), Cause::EndOfFile { field, offset: 4, needed: 4, available: 1 } if field == "b")
        );
    }

    #[test]
    fn string_array_whose_last_string_lies_is_an_error_naming_the_index() {
        let mut bytes = Vec::new();
        bytes.extend(8_u32.to_le_bytes());
        bytes.extend(2_u64.to_le_bytes());
        bytes.extend(1_u64.to_le_bytes());
        bytes.push(b'x');
        bytes.extend(u64::MAX.to_le_bytes());
        let error = Cursor::new(&Bytes::from_vec(bytes))
            .value(ValueType::Array, "k")
            .unwrap_err();
        assert_eq!(error.field().as_deref(), Some("length of k[1]"));
    }

    #[test]
    fn any_non_zero_byte_is_true() {
        let value = Cursor::new(&Bytes::from_vec(vec![7]))
            .value(ValueType::Bool, "k")
            .unwrap();
        assert_eq!(value, Value::Bool(true));
    }
}
