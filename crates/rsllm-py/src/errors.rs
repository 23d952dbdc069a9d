//! From Rust errors to the classes of `rsllm.errors`, by name, and to Python's own `OSError` tree. The classes are imported when
//! an error is raised, not before: `rsllm.errors` is a plain module, and importing the core must not depend on it.

use std::error::Error;
use std::fmt::Write as _;
use std::io;
use std::path::Path;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rsllm_engine::sampling::OptionError;
use rsllm_engine::{EngineError, ErrorClass};
use rsllm_gguf::{Cause, GgufError};
use rsllm_quant::QuantError;

/// The exception for an engine error.
pub(crate) fn engine_error(py: Python<'_>, error: &EngineError) -> PyErr {
    match error.class() {
        ErrorClass::File(cause) => gguf_error(py, cause),
        ErrorClass::Tokenizer => raise(py, "TokenizerError", &with_causes(error), &[]),
        ErrorClass::Model => raise(py, "ModelError", &with_causes(error), &[]),
        ErrorClass::Backend => raise(py, "BackendError", &with_causes(error), &[]),
        ErrorClass::Option { name } => raise(
            py,
            "OptionError",
            &with_causes(error),
            &[("name", name.into())],
        ),
        ErrorClass::ContextLength {
            prompt_tokens,
            context,
        } => raise(
            py,
            "ContextLengthError",
            &with_causes(error),
            &[
                ("prompt_tokens", prompt_tokens.into()),
                ("context", context.into()),
            ],
        ),
        ErrorClass::Closed => raise(py, "EngineClosedError", &with_causes(error), &[]),
    }
}

/// The exception for a model file: `OSError` where the system refused, `GgufError` where the file is wrong.
pub(crate) fn gguf_error(py: Python<'_>, error: &GgufError) -> PyErr {
    let file = error.file().map(|path| path.to_string_lossy().into_owned());
    if let Cause::Io(cause) = error.cause() {
        return os_error(cause, error.file());
    }
    let message = match &file {
        Some(file) => format!("{file}: {}", error.cause()),
        None => error.cause().to_string(),
    };
    raise(
        py,
        "GgufError",
        &message,
        &[
            ("file", file.into()),
            ("field", error.field().into()),
            ("expected", error.expected().into()),
            ("found", error.found().into()),
            ("hint", error.hint().into()),
        ],
    )
}

/// The exception for bytes that are no blocks of their type.
pub(crate) fn quant_error(py: Python<'_>, error: &QuantError) -> PyErr {
    raise(py, "GgufError", &error.to_string(), &[])
}

/// The exception for a type name that does not exist.
pub(crate) fn unknown_type_error(py: Python<'_>, name: &str) -> PyErr {
    let message = format!("unknown tensor type {name:?}");
    raise(
        py,
        "GgufError",
        &message,
        &[("field", "type".into()), ("found", name.into())],
    )
}

/// The exception for an option.
pub(crate) fn option_error(py: Python<'_>, error: &OptionError) -> PyErr {
    raise(
        py,
        "OptionError",
        &error.to_string(),
        &[("name", error.name.into())],
    )
}

/// The exception for an option that does not exist.
pub(crate) fn unknown_option_error(py: Python<'_>, name: &str) -> PyErr {
    raise(
        py,
        "OptionError",
        &format!("unknown option {name:?}"),
        &[("name", name.into())],
    )
}

/// The exception for token ids that mean nothing.
pub(crate) fn token_error(py: Python<'_>, id: u32, vocab_size: usize) -> PyErr {
    raise(
        py,
        "TokenizerError",
        &format!("token id {id} is outside the vocabulary of {vocab_size}"),
        &[],
    )
}

/// A value of an exception's attribute.
enum Attribute {
    Text(Option<String>),
    Count(usize),
}

/// `rsllm.errors.<class>(message, **attributes)`; if that fails, why it failed.
fn raise(py: Python<'_>, class: &str, message: &str, attributes: &[(&str, Attribute)]) -> PyErr {
    let build = || -> PyResult<PyErr> {
        let keywords = PyDict::new(py);
        for (name, value) in attributes {
            match value {
                Attribute::Text(text) => keywords.set_item(name, text)?,
                Attribute::Count(count) => keywords.set_item(name, count)?,
            }
        }
        let class = py.import("rsllm.errors")?.getattr(class)?;
        Ok(PyErr::from_value(class.call((message,), Some(&keywords))?))
    };
    build().unwrap_or_else(|error| error)
}

/// `OSError(errno, text, file)`, of which Python makes `FileNotFoundError` and its kin.
fn os_error(error: &io::Error, file: Option<&Path>) -> PyErr {
    let text = error.to_string();
    // Rust appends what Python shows by itself.
    let text = text
        .split(" (os error")
        .next()
        .unwrap_or_default()
        .to_owned();
    let file = file.map(|path| path.to_string_lossy().into_owned());
    // Errors that the standard library or the reader made up have a kind but no number.
    let number = error.raw_os_error().or_else(|| errno_of(error.kind()));
    match (number, file) {
        (Some(number), Some(file)) => PyOSError::new_err((number, text, file)),
        (Some(number), None) => PyOSError::new_err((number, text)),
        (None, Some(file)) => PyOSError::new_err(format!("{file}: {text}")),
        (None, None) => PyOSError::new_err(text),
    }
}

/// The numbers, the same on every Unix and in Python on Windows, of the kinds that have a Python class.
fn errno_of(kind: io::ErrorKind) -> Option<i32> {
    match kind {
        io::ErrorKind::NotFound => Some(2),
        io::ErrorKind::PermissionDenied => Some(13),
        io::ErrorKind::NotADirectory => Some(20),
        io::ErrorKind::IsADirectory => Some(21),
        _ => None,
    }
}

/// The message, with those of the causes that it does not repeat.
fn with_causes(error: &EngineError) -> String {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if !message.contains(&text) {
            let _ = write!(message, ": {text}"); // writing to a string does not fail
        }
        source = cause.source();
    }
    message
}

impl From<Option<String>> for Attribute {
    fn from(text: Option<String>) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Attribute {
    fn from(text: &str) -> Self {
        Self::Text(Some(text.to_owned()))
    }
}

impl From<usize> for Attribute {
    fn from(count: usize) -> Self {
        Self::Count(count)
    }
}
