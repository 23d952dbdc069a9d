//! A debugging hook: intermediates by name, so that a layer can be compared with a reference dump.

use rsllm_tensor::{Backend, BackendError};

/// What a probe is shown.
#[derive(Debug, Clone, Copy)]
pub struct Intermediate<'a> {
    /// `embed`, `attn_norm`, `q`, `k`, `kqv_out`, `attn_out`, `ffn_inp`, `ffn_norm`, `ffn_out`, `l_out`, `result_norm`;
    /// `q` and `k` as they meet in attention.
    pub name: &'static str,
    /// Layer, 0 outside of layers.
    pub layer: usize,
    /// `[rows, width]`.
    pub values: &'a [f32],
    /// Values of a row.
    pub width: usize,
}

/// Called with every intermediate of a forward pass.
pub type ProbeFn = Box<dyn FnMut(Intermediate<'_>) + Send>;

/// The hook of a running step; without a function it costs a branch.
pub(crate) struct Probe<'a> {
    pub(crate) function: Option<&'a mut ProbeFn>,
    pub(crate) n_rows: usize,
}

impl Probe<'_> {
    /// Show the first rows of a buffer of the step's row count.
    pub(crate) fn rows<B: Backend>(
        &mut self,
        backend: &mut B,
        name: &'static str,
        layer: usize,
        buffer: &B::Buffer,
        width: usize,
    ) -> Result<(), BackendError> {
        if let Some(function) = &mut self.function {
            let mut values = vec![0.0; self.n_rows * width];
            backend.download(&mut values, buffer)?;
            function(Intermediate {
                name,
                layer,
                values: &values,
                width,
            });
        }
        Ok(())
    }
}
