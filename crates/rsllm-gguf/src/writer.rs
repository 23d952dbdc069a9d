//! Writes GGUF version 3: to any [`Write`], or to a file that appears only when it is complete.
//!
//! The tensors are declared first, because the header states all their sizes; then their bytes are asked for one tensor
//! at a time, so that a converter never holds more than it is working on. The writer refuses whatever the reader would.

use std::collections::HashSet;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use rsllm_quant::GgmlType;

use crate::atomic_file::AtomicFile;
use crate::cause::Cause;
use crate::cursor::MAX_STRING_BYTES;
use crate::error::GgufError;
use crate::file::Gguf;
use crate::header::{self, MAGIC};
use crate::layout;
use crate::metadata::Metadata;
use crate::shards;
use crate::tensor::{self, MAX_KEY, MAX_TENSOR_NAME};
use crate::value::{Array, Value};

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// The GGUF name.
    pub name: String,
    /// The type its bytes are packed in.
    pub ty: GgmlType,
    /// Up to four dimensions, row length first.
    pub dims: Vec<u64>,
    pub(crate) n_bytes: u64,
}

impl TensorSpec {
    /// The number of bytes the tensor's type and dimensions ask for.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }
}

/// Metadata and declared tensors, ready to be written any number of times.
///
/// ```
/// use rsllm_gguf::{Gguf, GgufWriter, Metadata};
/// use rsllm_quant::GgmlType;
///
/// let mut metadata = Metadata::new();
/// metadata.insert("general.architecture", "llama");
/// let mut writer = GgufWriter::new(metadata)?;
/// writer.add_tensor("output_norm.weight", GgmlType::F32, &[2])?;
/// let mut file = Vec::new();
/// writer.write_to(&mut file, |_tensor, out| out.write_all(&[0; 8]))?;
/// assert_eq!(Gguf::from_bytes(file, "made here")?.tensors()[0].n_elements(), 2);
/// # Ok::<(), rsllm_gguf::GgufError>(())
/// ```
#[derive(Clone, Debug)]
pub struct GgufWriter {
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorSpec>,
    names: HashSet<String>,
    pub(crate) alignment: u32,
}

impl GgufWriter {
    /// A writer of `metadata`, whose `general.alignment`, if set, is the alignment of the tensors.
    pub fn new(metadata: Metadata) -> Result<Self, GgufError> {
        for (index, (key, value)) in metadata.iter().enumerate() {
            check_entry(index, key, value)?;
        }
        let alignment = header::alignment(&metadata)?;
        Ok(Self {
            metadata,
            tensors: Vec::new(),
            names: HashSet::new(),
            alignment,
        })
    }

    /// A writer of what `model` holds, without the keys that say how it was split.
    pub fn copy_of(model: &Gguf) -> Result<Self, GgufError> {
        let mut metadata = model.metadata().clone();
        for key in shards::KEYS {
            metadata.remove(key);
        }
        let mut writer = Self::new(metadata)?;
        for tensor in model.tensors() {
            writer.add_tensor(&tensor.name, tensor.ty, &tensor.dims)?;
        }
        Ok(writer)
    }

    /// Declares the next tensor.
    pub fn add_tensor(&mut self, name: &str, ty: GgmlType, dims: &[u64]) -> Result<(), GgufError> {
        if name.is_empty() {
            return Err(Cause::EmptyTensorName {
                index: self.tensors.len() as u64,
            }
            .into());
        }
        check_length(name.len(), MAX_TENSOR_NAME as u64, || {
            format!("name of tensor {name}")
        })?;
        let n_bytes = tensor::checked_size(name, ty, dims, i64::MAX as u64)?;
        if !self.names.insert(name.into()) {
            return Err(Cause::DuplicateTensor {
                tensor: name.into(),
            }
            .into());
        }
        self.tensors.push(TensorSpec {
            name: name.into(),
            ty,
            dims: dims.into(),
            n_bytes,
        });
        Ok(())
    }

    /// The declared tensors, in the order they will be written.
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// Writes everything to `out`. `source` is called for each tensor in order and writes exactly its bytes.
    pub fn write_to(
        &self,
        out: impl Write,
        source: impl FnMut(&TensorSpec, &mut dyn Write) -> io::Result<()>,
    ) -> Result<(), GgufError> {
        write_file_contents(out, &self.metadata, &self.tensors, self.alignment, source)
    }

    /// As [`Self::write_to`], to a file that is written beside `path`, synced, and then renamed to it.
    pub fn write_file(
        &self,
        path: impl AsRef<Path>,
        source: impl FnMut(&TensorSpec, &mut dyn Write) -> io::Result<()>,
    ) -> Result<(), GgufError> {
        let path = path.as_ref();
        let write = || {
            let mut file = AtomicFile::create(path).map_err(Cause::Io)?;
            self.write_to(&mut file, source)?;
            Ok(file.commit().map_err(Cause::Io)?)
        };
        write().map_err(|error: GgufError| error.in_file(path))
    }
}

/// One file: header, table and the tensors of `tensors` in order.
pub(crate) fn write_file_contents(
    out: impl Write,
    metadata: &Metadata,
    tensors: &[TensorSpec],
    alignment: u32,
    mut source: impl FnMut(&TensorSpec, &mut dyn Write) -> io::Result<()>,
) -> Result<(), GgufError> {
    let header = encode_header(metadata, tensors, alignment)?;
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, out);
    out.write_all(&header).map_err(Cause::Io)?;
    for tensor in tensors {
        write_tensor(&mut out, tensor, alignment, &mut source)?;
    }
    Ok(out.flush().map_err(Cause::Io)?)
}

fn write_tensor(
    out: &mut dyn Write,
    tensor: &TensorSpec,
    alignment: u32,
    source: &mut impl FnMut(&TensorSpec, &mut dyn Write) -> io::Result<()>,
) -> Result<(), GgufError> {
    let mut sink = TensorSink {
        out,
        expected: tensor.n_bytes,
        written: 0,
    };
    let result = source(tensor, &mut sink);
    let (expected, found) = (tensor.n_bytes, sink.written);
    // Too many bytes first: then the sink itself made the source fail.
    if found > expected || (result.is_ok() && found < expected) {
        return Err(Cause::TensorDataSize {
            tensor: tensor.name.clone(),
            expected,
            found,
        }
        .into());
    }
    result.map_err(Cause::Io)?;
    let padding = padded(expected, alignment)? - expected;
    let zeros = io::copy(&mut io::Read::take(io::repeat(0), padding), out);
    zeros.map_err(Cause::Io)?;
    Ok(())
}

/// Passes bytes on and counts them; refuses more than the tensor has.
struct TensorSink<'a> {
    out: &'a mut dyn Write,
    expected: u64,
    written: u64,
}

impl Write for TensorSink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.expected.saturating_sub(self.written) {
            self.written = self.written.saturating_add(bytes.len() as u64);
            return Err(io::ErrorKind::WriteZero.into());
        }
        let n_written = self.out.write(bytes)?;
        self.written += n_written as u64;
        Ok(n_written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Everything up to the first tensor's bytes.
fn encode_header(
    metadata: &Metadata,
    tensors: &[TensorSpec],
    alignment: u32,
) -> Result<Vec<u8>, GgufError> {
    let mut out = Vec::new();
    out.extend(MAGIC);
    out.extend(VERSION.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata.iter() {
        put_string(&mut out, key.as_bytes());
        put_u32(&mut out, value.value_type().id());
        put_value(&mut out, value);
    }
    let mut offset = 0_u64;
    for tensor in tensors {
        put_string(&mut out, tensor.name.as_bytes());
        put_u32(&mut out, tensor.dims.len() as u32);
        tensor
            .dims
            .iter()
            .for_each(|dim| out.extend(dim.to_le_bytes()));
        put_u32(&mut out, tensor.ty.id());
        out.extend(offset.to_le_bytes());
        let end = offset.checked_add(padded(tensor.n_bytes, alignment)?);
        offset = end.ok_or_else(|| too_large(tensor))?;
    }
    if !tensors.is_empty() {
        let length = padded(out.len() as u64, alignment)?;
        out.resize(
            usize::try_from(length).map_err(|_| Cause::Io(io::ErrorKind::FileTooLarge.into()))?,
            0,
        );
    }
    Ok(out)
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.extend(v.to_le_bytes()),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::String(v) => put_string(out, v.as_bytes()),
        Value::Array(v) => put_array(out, v),
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    put_u32(out, array.element_type().id());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::U8(v) => out.extend(v),
        Array::I8(v) => v.iter().for_each(|e| out.extend(e.to_le_bytes())),
        Array::U16(v) => v.iter().for_each(|e| out.extend(e.to_le_bytes())),
        Array::I16(v) => v.iter().for_each(|e| out.extend(e.to_le_bytes())),
        Array::U32(v) => v.iter().for_each(|e| out.extend(e.to_le_bytes())),
        Array::I32(v) => v.iter().for_each(|e| out.extend(e.to_le_bytes())),
        Array::F32(v) => v.iter().for_each(|e| out.extend(e.to_le_bytes())),
        Array::Bool(v) => out.extend(v.iter().map(|&e| u8::from(e))),
        Array::String(v) => v.iter().for_each(|e| put_string(out, e)),
        Array::U64(v) => v.iter().for_each(|e| out.extend(e.to_le_bytes())),
        Array::I64(v) => v.iter().for_each(|e| out.extend(e.to_le_bytes())),
        Array::F64(v) => v.iter().for_each(|e| out.extend(e.to_le_bytes())),
    }
}

fn put_string(out: &mut Vec<u8>, string: &[u8]) {
    out.extend((string.len() as u64).to_le_bytes());
    out.extend(string);
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend(value.to_le_bytes());
}

fn check_entry(index: usize, key: &str, value: &Value) -> Result<(), GgufError> {
    if key.is_empty() {
        return Err(Cause::EmptyKey {
            index: index as u64,
        }
        .into());
    }
    check_length(key.len(), MAX_KEY as u64, || {
        format!("key of metadata entry {index}")
    })?;
    let longest = match value {
        Value::String(text) => text.as_bytes().len(),
        Value::Array(Array::String(strings)) => strings.iter().map(<[u8]>::len).max().unwrap_or(0),
        _ => 0,
    };
    check_length(longest, MAX_STRING_BYTES, || key.into())
}

fn check_length(
    length: usize,
    limit: u64,
    field: impl FnOnce() -> String,
) -> Result<(), GgufError> {
    let value = length as u64;
    if value > limit {
        let field = format!("length of {}", field());
        return Err(Cause::LimitExceeded {
            field,
            value,
            limit,
        }
        .into());
    }
    Ok(())
}

pub(crate) fn padded(n_bytes: u64, alignment: u32) -> Result<u64, GgufError> {
    Ok(layout::align_up(n_bytes, alignment)
        .ok_or_else(|| Cause::Io(io::ErrorKind::FileTooLarge.into()))?)
}

fn too_large(tensor: &TensorSpec) -> Cause {
    let (ty, dims, needed) = (
        tensor.ty,
        tensor.dims.clone(),
        Some(u128::from(tensor.n_bytes)),
    );
    Cause::SizeOverflow {
        tensor: tensor.name.clone(),
        ty,
        dims,
        needed,
        available: 0,
    }
}

/// The version written; version 2 differs in nothing but the number.
const VERSION: u32 = 3;
/// Fewer, larger writes for sources that write row by row.
const BUFFER_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn writer() -> GgufWriter {
        let mut writer = GgufWriter::new(Metadata::new()).unwrap();
        writer.add_tensor("t", GgmlType::F32, &[2, 2]).unwrap();
        writer
    }

    #[test]
    fn sources_that_write_too_little_or_too_much_are_refused() {
        for n_bytes in [15, 17, 0] {
            let error = writer()
                .write_to(Vec::new(), |_, out| out.write_all(&vec![0; n_bytes]))
                .unwrap_err();
            assert!(
                matches!(error.cause(), Cause::TensorDataSize { expected: 16, .. }),
                "{error}"
            );
        }
    }

    #[test]
    fn a_failing_source_keeps_its_own_error() {
        let error = writer()
            .write_to(Vec::new(), |_, _| Err(io::Error::other("disk on fire")))
            .unwrap_err();
        assert!(matches!(error.cause(), Cause::Io(cause) if cause.to_string() == "disk on fire"));
    }

    #[test]
    fn what_the_reader_refuses_is_not_declared() {
        let mut writer = writer();
        assert!(writer.add_tensor("t", GgmlType::F32, &[1]).is_err());
        assert!(writer.add_tensor("", GgmlType::F32, &[1]).is_err());
        assert!(writer.add_tensor("zero", GgmlType::F32, &[1, 0]).is_err());
        assert!(writer.add_tensor("rows", GgmlType::Q4_0, &[33]).is_err());
        assert!(
            writer
                .add_tensor(&"n".repeat(64), GgmlType::F32, &[1])
                .is_err()
        );
        assert!(
            writer
                .add_tensor(&"n".repeat(63), GgmlType::F32, &[1])
                .is_ok()
        );
        assert!(GgufWriter::new([("", 1_u32)].into_iter().collect()).is_err());
        assert!(GgufWriter::new([("general.alignment", 3_u32)].into_iter().collect()).is_err());
    }

    #[test]
    fn a_failed_write_leaves_no_file_behind() {
        let folder = std::env::temp_dir().join(format!("rsllm-gguf-writer-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("m.gguf");
        assert!(
            writer()
                .write_file(&path, |_, out| out.write_all(&[0; 3]))
                .is_err()
        );
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        writer()
            .write_file(&path, |_, out| out.write_all(&[0; 16]))
            .unwrap();
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
