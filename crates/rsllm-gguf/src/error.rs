//! The error of this crate: a [`Cause`] and the file it was found in.
//!
//! [`GgufError`] adds the path to a cause and answers the questions a user interface asks: which field, what was
//! expected, what was found, what to do. Its text is one line: file, cause and, where there is one, the hint.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::cause::{Cause, ErrorKind};

/// An error found while reading or writing a GGUF file, or while asking its metadata for a value.
pub struct GgufError(Box<Inner>);

struct Inner {
    file: Option<PathBuf>,
    cause: Cause,
}

impl GgufError {
    pub(crate) fn new(cause: Cause) -> Self {
        Self(Box::new(Inner { file: None, cause }))
    }

    /// Names the file, unless one is named already.
    #[must_use]
    pub(crate) fn in_file(mut self, file: &Path) -> Self {
        if self.0.file.is_none() && !file.as_os_str().is_empty() {
            self.0.file = Some(file.into());
        }
        self
    }

    /// The class of the cause, for callers that treat, say, truncated files apart from unsupported ones.
    pub fn kind(&self) -> ErrorKind {
        self.0.cause.kind()
    }

    /// What is wrong.
    pub fn cause(&self) -> &Cause {
        &self.0.cause
    }

    /// The file the error was found in; `None` for metadata that was never in a file.
    pub fn file(&self) -> Option<&Path> {
        self.0.file.as_deref()
    }

    /// The part of the file or the metadata key that is wrong.
    pub fn field(&self) -> Option<String> {
        self.0.cause.details().field
    }

    /// What the field should have been.
    pub fn expected(&self) -> Option<String> {
        self.0.cause.details().expected
    }

    /// What the field was.
    pub fn found(&self) -> Option<String> {
        self.0.cause.details().found
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        self.0.cause.hint(self.file())
    }
}

impl From<Cause> for GgufError {
    fn from(cause: Cause) -> Self {
        Self::new(cause)
    }
}

impl fmt::Display for GgufError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = self.file() {
            write!(f, "{}: ", file.display())?;
        }
        write!(f, "{}", self.0.cause)?;
        match self.hint() {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for GgufError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GgufError")
            .field("file", &self.0.file)
            .field("cause", &self.0.cause)
            .finish()
    }
}

impl std::error::Error for GgufError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.cause {
            Cause::Io(error) => Some(error),
            _ => None,
        }
    }
}
