//! `Tokenizer`: the vocabulary of a file without its model, and what `Engine` shares with it.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use rsllm_engine::TokenId;
use rsllm_gguf::Gguf;
use rsllm_tokenizer::{DecodeOptions, EncodeOptions, TextPart};

use crate::errors::{engine_error, gguf_error, token_error};

/// The tokenizer of a GGUF file.
#[pyclass(frozen, module = "rsllm._core")]
pub(crate) struct Tokenizer {
    tokenizer: rsllm_tokenizer::Tokenizer,
}

#[pymethods]
impl Tokenizer {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let file = py
            .detach(|| Gguf::open(&path))
            .map_err(|error| gguf_error(py, &error))?;
        let tokenizer = py
            .detach(|| rsllm_tokenizer::Tokenizer::from_metadata(file.metadata()))
            .map_err(|error| engine_error(py, &error.into()))?;
        Ok(Self { tokenizer })
    }

    #[getter]
    fn vocab_size(&self) -> usize {
        self.tokenizer.vocab_size()
    }

    #[pyo3(signature = (text, *, add_special = false, parse_special = false))]
    fn tokenize(
        &self,
        py: Python<'_>,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Vec<TokenId> {
        tokenize(
            py,
            &self.tokenizer,
            text,
            EncodeOptions {
                add_special,
                parse_special,
            },
        )
    }

    #[pyo3(signature = (parts, *, add_special = false))]
    fn tokenize_parts(
        &self,
        py: Python<'_>,
        parts: Vec<(String, bool)>,
        add_special: bool,
    ) -> Vec<TokenId> {
        tokenize_parts(py, &self.tokenizer, &parts, add_special)
    }

    #[pyo3(signature = (ids, *, render_special = true))]
    fn detokenize(
        &self,
        py: Python<'_>,
        ids: Vec<TokenId>,
        render_special: bool,
    ) -> PyResult<String> {
        detokenize(py, &self.tokenizer, &ids, render_special)
    }

    fn token_bytes<'py>(&self, py: Python<'py>, id: TokenId) -> PyResult<Bound<'py, PyBytes>> {
        token_bytes(py, &self.tokenizer, id)
    }

    fn special_tokens<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        special_tokens(py, &self.tokenizer)
    }
}

pub(crate) fn tokenize(
    py: Python<'_>,
    tokenizer: &rsllm_tokenizer::Tokenizer,
    text: &str,
    options: EncodeOptions,
) -> Vec<TokenId> {
    py.detach(|| tokenizer.encode(text, options))
}

pub(crate) fn tokenize_parts(
    py: Python<'_>,
    tokenizer: &rsllm_tokenizer::Tokenizer,
    parts: &[(String, bool)],
    add_special: bool,
) -> Vec<TokenId> {
    py.detach(|| {
        let parts: Vec<TextPart<'_>> = parts
            .iter()
            .map(|(text, trusted)| TextPart {
                text,
                trusted: *trusted,
            })
            .collect();
        tokenizer.encode_parts(&parts, add_special)
    })
}

/// Text that [`tokenize`] would turn into `ids`, as far as there is one.
pub(crate) fn detokenize(
    py: Python<'_>,
    tokenizer: &rsllm_tokenizer::Tokenizer,
    ids: &[TokenId],
    render_special: bool,
) -> PyResult<String> {
    for &id in ids {
        check_id(py, tokenizer, id)?;
    }
    let options = DecodeOptions {
        render_special,
        strip_space_prefix: true,
        clean_up_spaces: false,
    };
    Ok(py.detach(|| tokenizer.decode(ids, options)))
}

pub(crate) fn token_bytes<'py>(
    py: Python<'py>,
    tokenizer: &rsllm_tokenizer::Tokenizer,
    id: TokenId,
) -> PyResult<Bound<'py, PyBytes>> {
    check_id(py, tokenizer, id)?;
    Ok(PyBytes::new(py, &shown_bytes(tokenizer, id)))
}

/// The bytes of a token, control tokens shown by their text.
pub(crate) fn shown_bytes(tokenizer: &rsllm_tokenizer::Tokenizer, id: TokenId) -> Vec<u8> {
    tokenizer.decode_bytes(
        &[id],
        DecodeOptions {
            render_special: true,
            ..DecodeOptions::default()
        },
    )
}

pub(crate) fn special_tokens<'py>(
    py: Python<'py>,
    tokenizer: &rsllm_tokenizer::Tokenizer,
) -> PyResult<Bound<'py, PyDict>> {
    let text_of = |id: Option<TokenId>| {
        let text = tokenizer.token_text(id?)?;
        Some(String::from_utf8_lossy(text).into_owned())
    };
    let dict = PyDict::new(py);
    dict.set_item("bos", tokenizer.bos())?;
    dict.set_item("eos", tokenizer.eos())?;
    dict.set_item("eot", tokenizer.eot())?;
    dict.set_item("add_bos", tokenizer.add_bos())?;
    dict.set_item("add_eos", tokenizer.add_eos())?;
    dict.set_item("bos_text", text_of(tokenizer.bos()))?;
    dict.set_item("eos_text", text_of(tokenizer.eos()))?;
    dict.set_item("end_of_generation", tokenizer.end_of_generation())?;
    Ok(dict)
}

fn check_id(py: Python<'_>, tokenizer: &rsllm_tokenizer::Tokenizer, id: TokenId) -> PyResult<()> {
    if (id as usize) < tokenizer.vocab_size() {
        Ok(())
    } else {
        Err(token_error(py, id, tokenizer.vocab_size()))
    }
}
