//! The classification head of rerankers: from the normed hidden state of a text's last token to the score of the pair of query
//! and document that the text holds.
//!
//! `cls.weight` with its bias and tanh comes first where the file has it, then `cls.output.weight` with its bias gives a value
//! for each label. The score is the first of them; Qwen3 has two, "yes" and "no", and makes them probabilities before. The head
//! is small, so it is kept as floats and computed in double precision.

use rsllm_gguf::{Gguf, TensorInfo};

use crate::error::EngineError;

/// The head of one file.
#[derive(Debug)]
pub(crate) struct Classifier {
    hidden: Option<Dense>,
    output: Option<Dense>,
    is_probability: bool,
}

/// A linear layer.
#[derive(Debug)]
struct Dense {
    /// `[outputs, inputs]`.
    weight: Vec<f32>,
    /// `[outputs]`; empty for none.
    bias: Vec<f32>,
    n_inputs: usize,
}

impl Classifier {
    /// The head of `file`, whose rows have `embed_dim` values.
    ///
    /// # Errors
    /// [`EngineError::NoClassifier`] without a head, or with one of a kind that is not known.
    pub(crate) fn of_file(file: &Gguf, embed_dim: usize) -> Result<Self, EngineError> {
        let hidden = Dense::of_file(file, "cls", embed_dim)?;
        let n_inputs = hidden.as_ref().map_or(embed_dim, Dense::n_outputs);
        let output = Dense::of_file(file, "cls.output", n_inputs)?;
        let is_known = file.tensor("cls.norm.weight").is_none();
        if !is_known || hidden.is_none() && output.is_none() {
            return Err(EngineError::NoClassifier {
                unknown: (!is_known).then_some("cls.norm.weight"),
            });
        }
        let architecture = file.metadata().architecture().unwrap_or_default();
        Ok(Self {
            hidden,
            output,
            is_probability: architecture.starts_with("qwen3"),
        })
    }

    /// The score of a row.
    pub(crate) fn score(&self, row: &[f32]) -> f32 {
        let mut values: Vec<f64> = row.iter().map(|&value| value.into()).collect();
        if let Some(hidden) = &self.hidden {
            values = hidden.apply(&values);
            for value in &mut values {
                *value = value.tanh();
            }
        }
        if let Some(output) = &self.output {
            values = output.apply(&values);
        }
        if self.is_probability {
            let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = values.iter().map(|value| (value - most).exp()).sum();
            return ((values[0] - most).exp() / sum) as f32;
        }
        values[0] as f32
    }
}

impl Dense {
    fn of_file(file: &Gguf, name: &str, n_inputs: usize) -> Result<Option<Self>, EngineError> {
        let Some(tensor) = file.tensor(&format!("{name}.weight")) else {
            return Ok(None);
        };
        let n_values = tensor.n_elements();
        if tensor.row_len() != n_inputs as u64 || n_values == 0 {
            return Err(EngineError::ClassifierShape {
                tensor: tensor.name.clone(),
                expected: n_inputs as u64,
                found: tensor.row_len(),
            });
        }
        let n_outputs = n_values / n_inputs as u64;
        let bias = match file.tensor(&format!("{name}.bias")) {
            Some(bias) if bias.n_elements() != n_outputs => {
                return Err(EngineError::ClassifierShape {
                    tensor: bias.name.clone(),
                    expected: n_outputs,
                    found: bias.n_elements(),
                });
            }
            Some(bias) => floats(file, bias)?,
            None => Vec::new(),
        };
        Ok(Some(Self {
            weight: floats(file, tensor)?,
            bias,
            n_inputs,
        }))
    }

    fn n_outputs(&self) -> usize {
        self.weight.len() / self.n_inputs
    }

    fn apply(&self, x: &[f64]) -> Vec<f64> {
        let bias = self.bias.iter().copied().chain(std::iter::repeat(0.0));
        self.weight
            .chunks_exact(self.n_inputs)
            .zip(bias)
            .map(|(row, bias)| {
                let dot: f64 = row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum();
                dot + f64::from(bias)
            })
            .collect()
    }
}

fn floats(file: &Gguf, tensor: &TensorInfo) -> Result<Vec<f32>, EngineError> {
    let mut values = vec![0.0; tensor.n_elements() as usize];
    rsllm_quant::dequantize(tensor.ty, file.tensor_bytes(tensor), &mut values).map_err(
        |error| EngineError::ClassifierType {
            tensor: tensor.name.clone(),
            source: error,
        },
    )?;
    Ok(values)
}

#[cfg(test)]
mod tests {
    use rsllm_gguf::{GgufWriter, Metadata};
    use rsllm_quant::GgmlType;

    use super::*;

    /// A file of 32-bit float tensors.
    fn file(architecture: &str, tensors: &[(&str, &[u64], &[f32])]) -> Gguf {
        let mut metadata = Metadata::new();
        metadata.insert("general.architecture", architecture);
        let mut writer = GgufWriter::new(metadata).unwrap();
        for (name, dims, _) in tensors {
            writer.add_tensor(name, GgmlType::F32, dims).unwrap();
        }
        let mut bytes = Vec::new();
        writer
            .write_to(&mut bytes, |spec, out| {
                let (_, _, values) = tensors.iter().find(|t| t.0 == spec.name).unwrap();
                values
                    .iter()
                    .try_for_each(|value| out.write_all(&value.to_le_bytes()))
            })
            .unwrap();
        Gguf::from_bytes(bytes, "head").unwrap()
    }

    #[test]
    fn the_score_is_the_first_label() {
        let output: (&str, &[u64], &[f32]) = ("cls.output.weight", &[2, 2], &[1.0, 2.0, 0.5, -1.0]);
        let bias: (&str, &[u64], &[f32]) = ("cls.output.bias", &[2], &[0.25, 0.0]);
        let score = |file: &Gguf| Classifier::of_file(file, 2).unwrap().score(&[3.0, -1.0]);
        assert_eq!(score(&file("llama", &[output])), 1.0);
        assert_eq!(score(&file("llama", &[output, bias])), 1.25);
        // Labels 1.25 and 2.5 as probabilities.
        let expected = 1.0 / (1.0 + f64::exp(1.25));
        assert!((f64::from(score(&file("qwen3", &[output, bias]))) - expected).abs() < 1e-7);
        let hidden: (&str, &[u64], &[f32]) = ("cls.weight", &[2, 1], &[0.25, 0.25]);
        let single: (&str, &[u64], &[f32]) = ("cls.output.weight", &[1, 1], &[2.0]);
        let expected = 2.0 * f64::tanh(0.5);
        assert!((f64::from(score(&file("llama", &[hidden, single]))) - expected).abs() < 1e-7);
    }

    #[test]
    fn what_is_no_head_is_named() {
        let error = |tensors: &[(&str, &[u64], &[f32])]| {
            Classifier::of_file(&file("llama", tensors), 2)
                .unwrap_err()
                .to_string()
        };
        assert!(error(&[]).contains("no classification head"));
        assert!(error(&[("cls.norm.weight", &[2], &[1.0, 1.0])]).contains("cls.norm.weight"));
        let wide = error(&[("cls.output.weight", &[3], &[1.0; 3])]);
        assert!(
            wide.contains("cls.output.weight") && wide.contains('3'),
            "{wide}"
        );
    }
}
