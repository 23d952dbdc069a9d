//! Generation options from a dict. A name that does not exist and a value of the wrong type are errors that name the option; the
//! ranges are the engine's.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};
use rsllm_engine::constraint::ConstraintSpec;
use rsllm_engine::sampling::{MAX_COUNT, OptionError, RepeatWindow};
use rsllm_engine::{GenerateOptions, TokenId};
use rsllm_tokenizer::{EncodeOptions, Tokenizer};

use crate::errors::{option_error, unknown_option_error};

/// Options of a generation; those not given are at their defaults. Texts in `logit_bias` need the `tokenizer`.
pub(crate) fn generate_options(
    py: Python<'_>,
    dict: &Bound<'_, PyDict>,
    tokenizer: Option<&Tokenizer>,
) -> PyResult<GenerateOptions> {
    let mut options = GenerateOptions::default();
    let (mut shift, mut num_keep) = (false, 0);
    for (name, value) in dict {
        let name: String = name.extract()?;
        if name == "logit_bias" {
            let value = OptionValue { py, value: &value };
            options.sampling.logit_bias = value.biases(tokenizer)?;
        } else if name == "shift" {
            shift = OptionValue { py, value: &value }.switch("shift")?;
        } else if name == "num_keep" {
            num_keep = OptionValue { py, value: &value }.count("num_keep")?;
        } else {
            set_option(py, &mut options, &name, &value)?;
        }
    }
    options.shift = shift.then_some(num_keep);
    Ok(options)
}

fn set_option(
    py: Python<'_>,
    options: &mut GenerateOptions,
    name: &str,
    value: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let value = OptionValue { py, value };
    let sampling = &mut options.sampling;
    match name {
        "max_tokens" => options.max_tokens = value.optional_count("max_tokens")?,
        "temperature" => sampling.temperature = value.number("temperature")?,
        "top_k" => sampling.top_k = value.count("top_k")?,
        "top_p" => sampling.top_p = value.number("top_p")?,
        "min_p" => sampling.min_p = value.number("min_p")?,
        "typical_p" => sampling.typical_p = value.number("typical_p")?,
        "repeat_penalty" => sampling.repeat_penalty = value.number("repeat_penalty")?,
        "repeat_last_n" => sampling.repeat_last_n = value.repeat_window()?,
        "presence_penalty" => sampling.presence_penalty = value.number("presence_penalty")?,
        "frequency_penalty" => sampling.frequency_penalty = value.number("frequency_penalty")?,
        "seed" => sampling.seed = value.seed()?,
        "stop" => options.stop = value.texts("stop")?,
        "logprobs" => options.logprobs = value.optional_count("logprobs")?,
        "max_draft" => options.max_draft = value.count("max_draft")?,
        "ignore_eos" => options.ignore_eos = value.switch("ignore_eos")?,
        "schema" => set_constraint(options, &value, "schema", |text| {
            if text == "json" {
                ConstraintSpec::Json
            } else {
                ConstraintSpec::JsonSchema(text)
            }
        })?,
        "regex" => set_constraint(options, &value, "regex", ConstraintSpec::Regex)?,
        "grammar" => set_constraint(options, &value, "grammar", ConstraintSpec::grammar)?,
        _ => return Err(unknown_option_error(py, name)),
    }
    Ok(())
}

/// Sets the constraint unless the value is `None`. There can be one.
fn set_constraint(
    options: &mut GenerateOptions,
    value: &OptionValue<'_, '_>,
    name: &'static str,
    spec: impl FnOnce(String) -> ConstraintSpec,
) -> PyResult<()> {
    if value.value.is_none() {
        return Ok(());
    }
    let text = value
        .value
        .extract()
        .map_err(|_| value.wrong(name, "None or a str"))?;
    if options.constraint.is_some() {
        let error = OptionError::new(name, "the only one of schema, regex and grammar", text);
        return Err(option_error(value.py, &error));
    }
    options.constraint = Some(spec(text));
    Ok(())
}

/// A value on its way to its type.
struct OptionValue<'a, 'py> {
    py: Python<'py>,
    value: &'a Bound<'py, PyAny>,
}

impl OptionValue<'_, '_> {
    fn number(&self, name: &'static str) -> PyResult<f32> {
        if self.is_bool() {
            return Err(self.wrong(name, "a number"));
        }
        let number: f64 = self
            .value
            .extract()
            .map_err(|_| self.wrong(name, "a number"))?;
        Ok(number as f32)
    }

    fn count(&self, name: &'static str) -> PyResult<usize> {
        let expected = format!("a whole number from 0 to {MAX_COUNT}");
        if self.is_bool() {
            return Err(self.wrong(name, &expected));
        }
        self.value
            .extract()
            .map_err(|_| self.wrong(name, &expected))
    }

    fn optional_count(&self, name: &'static str) -> PyResult<Option<usize>> {
        if self.value.is_none() {
            Ok(None)
        } else {
            self.count(name).map(Some)
        }
    }

    fn repeat_window(&self) -> PyResult<RepeatWindow> {
        match self.value.extract::<i64>() {
            Ok(-1) => Ok(RepeatWindow::Context),
            Ok(n) if n >= 0 && !self.is_bool() => {
                Ok(RepeatWindow::Last(usize::try_from(n).unwrap_or(usize::MAX)))
            }
            _ => Err(self.wrong(
                "repeat_last_n",
                &format!("a whole number from -1 to {MAX_COUNT}"),
            )),
        }
    }

    fn seed(&self) -> PyResult<Option<u64>> {
        if self.value.is_none() {
            return Ok(None);
        }
        let expected = format!("None or a whole number from 0 to {}", u64::MAX);
        if self.is_bool() {
            return Err(self.wrong("seed", &expected));
        }
        self.value
            .extract()
            .map(Some)
            .map_err(|_| self.wrong("seed", &expected))
    }

    fn texts(&self, name: &'static str) -> PyResult<Vec<String>> {
        self.value
            .extract()
            .map_err(|_| self.wrong(name, "a list of str"))
    }

    fn switch(&self, name: &'static str) -> PyResult<bool> {
        self.value
            .extract()
            .map_err(|_| self.wrong(name, "True or False"))
    }

    /// Pairs of an id, or of a text all of whose tokens are meant, and a number, or False for a ban.
    fn biases(&self, tokenizer: Option<&Tokenizer>) -> PyResult<Vec<(TokenId, f32)>> {
        let wrong = || {
            self.wrong(
                "logit_bias",
                "a list of pairs of a token id or a text and a number or False",
            )
        };
        let mut biases = Vec::new();
        for pair in self.value.try_iter().map_err(|_| wrong())? {
            let pair = pair?;
            let (key, bias) = match pair.len() {
                Ok(2) => (pair.get_item(0)?, pair.get_item(1)?),
                _ => return Err(wrong()),
            };
            let bias = match bias.extract::<bool>() {
                Ok(false) => f32::NEG_INFINITY,
                Ok(true) => return Err(wrong()),
                Err(_) => bias.extract::<f64>().map_err(|_| wrong())? as f32,
            };
            if let Ok(id) = key.extract::<TokenId>() {
                biases.push((id, bias));
            } else if let (Ok(text), Some(tokenizer)) = (key.extract::<String>(), tokenizer) {
                let options = EncodeOptions {
                    add_special: false,
                    parse_special: true,
                };
                let ids = tokenizer.encode(&text, options);
                biases.extend(ids.into_iter().map(|id| (id, bias)));
            } else {
                return Err(wrong());
            }
        }
        Ok(biases)
    }

    /// `True` is a number to Python, but not meant as one.
    fn is_bool(&self) -> bool {
        self.value.is_instance_of::<PyBool>()
    }

    fn wrong(&self, name: &'static str, expected: &str) -> PyErr {
        let found = self
            .value
            .repr()
            .map_or_else(|_| "something else".to_owned(), |text| text.to_string());
        option_error(self.py, &OptionError::new(name, expected, found))
    }
}
