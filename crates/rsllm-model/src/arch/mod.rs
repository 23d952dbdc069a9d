//! Families: one file each, which turns metadata into a [`DecoderConfig`].

mod gemma3;
mod keys;
mod llama;
mod qwen2;
mod qwen3;
mod qwen3moe;
#[cfg(test)]
mod tests;

use rsllm_gguf::Metadata;

use crate::config::DecoderConfig;
use crate::error::ModelError;
use keys::Keys;

/// A family.
pub struct Arch {
    /// `general.architecture`.
    pub name: &'static str,
    config: fn(&Keys<'_>) -> Result<DecoderConfig, ModelError>,
}

/// Every family this version runs.
pub static ARCHES: &[&Arch] = &[
    &llama::ARCH,
    &qwen2::ARCH,
    &qwen3::ARCH,
    &qwen3moe::ARCH,
    &gemma3::ARCH,
];

/// The decoder a file describes. `n_layers` is the number of layers its tensors belong to.
pub fn decoder_config(metadata: &Metadata, n_layers: u64) -> Result<DecoderConfig, ModelError> {
    let name = metadata.architecture()?;
    let arch = ARCHES
        .iter()
        .find(|arch| arch.name == name)
        .ok_or_else(|| ModelError::UnsupportedArchitecture {
            found: name.to_owned(),
            known: ARCHES.iter().map(|arch| arch.name).collect(),
        })?;
    (arch.config)(&Keys::new(arch.name, metadata, n_layers)?)
}
