//! Parameter structs of the operations. All fields are fixed at load time; what changes per token is in
//! [`crate::Step`].

use rsllm_quant::GgmlType;

use crate::bytes::SharedBytes;
use crate::step::PageGroup;

/// Names of the operations, for capability questions and errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are those of the Backend methods")]
pub enum Op {
    Bind,
    Alloc,
    BeginStep,
    EmbedRows,
    Upload,
    Download,
    GatherOutputs,
    Matmul,
    LowRankAdd,
    RmsNorm,
    RmsNormHeads,
    Rope,
    Hadamard,
    KvStore,
    CopyPage,
    ExportPage,
    ImportPage,
    Attention,
    GatedAct,
    GatedFfn,
    Add,
    Scale,
    Softcap,
    MoeRoute,
    MoeFfn,
}

/// Which rows of the step an operation works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowSet {
    /// Every row.
    All,
    /// Only the rows whose logits are wanted, gathered to the front of the buffer.
    Outputs,
}

/// Upper bounds of a step, reserved at load time so that nothing is allocated later.
#[derive(Debug, Clone, Copy)]
pub struct StepLimits {
    /// Rows of a step.
    pub max_rows: usize,
    /// Output rows of a step.
    pub max_outputs: usize,
    /// Sequences of a step.
    pub max_sequences: usize,
    /// Page slots of all sequences of a step together.
    pub max_pages: usize,
    /// Page slots of one sequence.
    pub max_sequence_pages: usize,
    /// Query heads of the layer that has most.
    pub max_heads: usize,
    /// Query heads times head width, of the layer where it is largest.
    pub max_query_width: usize,
}

/// A weight as it lies in the file.
#[derive(Debug, Clone)]
pub struct WeightSource {
    /// GGUF name, for messages.
    pub name: String,
    /// Type of its blocks.
    pub ty: GgmlType,
    /// Values of a row: the input width, ggml's ne0.
    pub row_len: usize,
    /// Rows of one matrix: the output width, ggml's ne1 (1 for a vector).
    pub n_rows: usize,
    /// Matrices behind each other: the number of experts, ggml's ne2 (else 1).
    pub n_matrices: usize,
    /// The packed blocks: one part with all matrices behind each other, or one part a matrix.
    pub parts: Vec<SharedBytes>,
}

/// How rotary embedding pairs dimensions. Mixing the two corrupts output silently, hence a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeStyle {
    /// Pairs `(2i, 2i+1)`; ggml's NORM. llama, mistral.
    Interleaved,
    /// Pairs `(i, i + n_rot/2)`; ggml's NEOX. qwen, gemma, phi.
    HalfSplit,
}

/// One rotary embedding; bound once at load time, tables are computed per step.
///
/// Angle of pair `i` at position `p`: `p * frequency_scale * freq_base^(-2i/n_rot) / factors[i]`.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeParams {
    /// Pairing.
    pub style: RopeStyle,
    /// Rotated dimensions of a head; the rest pass through.
    pub n_rot: usize,
    /// Base of the frequencies.
    pub freq_base: f32,
    /// 1 / linear scaling factor.
    pub frequency_scale: f32,
    /// Divisors per pair `[n_rot / 2]` (`rope_freqs.weight`), empty for none.
    pub factors: Vec<f32>,
}

/// Handle of a bound [`RopeParams`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RopeTable(pub usize);

/// Element type of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvType {
    /// 32-bit float.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    BF16,
    /// Blocks of 32 along the head, int8 with an f16 scale.
    Q8_0,
    /// Blocks of 32 along the head, 4 bits with an f16 scale.
    Q4_0,
}

impl KvType {
    /// Every type, in the order of the documentation.
    pub const ALL: [Self; 5] = [Self::F16, Self::BF16, Self::F32, Self::Q8_0, Self::Q4_0];

    /// Name as users type it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
        }
    }

    /// The type a user means by `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.name() == name)
    }

    /// The format of its rows.
    pub fn ggml_type(self) -> GgmlType {
        match self {
            Self::F32 => GgmlType::F32,
            Self::F16 => GgmlType::F16,
            Self::BF16 => GgmlType::BF16,
            Self::Q8_0 => GgmlType::Q8_0,
            Self::Q4_0 => GgmlType::Q4_0,
        }
    }

    /// How many values of a head are mixed before they are stored ([`Backend::hadamard`](crate::Backend::hadamard)): with
    /// integers under a common scale, so that one large value among small ones costs all of them less. `None` for floats, and
    /// for heads that are not made of blocks of 64.
    pub fn mixed_block(self, head_dim: usize) -> Option<usize> {
        const LEAST: usize = 64;
        let is_float = matches!(self, Self::F32 | Self::F16 | Self::BF16);
        (!is_float && head_dim > 0 && head_dim.is_multiple_of(LEAST))
            .then(|| 1 << head_dim.trailing_zeros())
    }

    /// Bytes of a head's row; `None` when its width is not a whole number of blocks.
    pub fn row_bytes(self, head_dim: usize) -> Option<usize> {
        self.ggml_type().row_bytes(head_dim)
    }
}

/// Shape of one layer's KV store: `n_pages` pages, in each for K and for V `[n_kv_heads, page_len, head_dim]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayout {
    /// Pages of the pool.
    pub n_pages: usize,
    /// Tokens of a page.
    pub page_len: usize,
    /// K/V heads.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Element type of K and V.
    pub kv_type: KvType,
    /// Which page of a slot this layer reads.
    pub group: PageGroup,
}

impl KvLayout {
    /// Bytes of a head's row of K or of V.
    ///
    /// # Panics
    /// When the head is not a whole number of blocks; [`crate::Backend::alloc_kv`] refuses such a layout.
    pub fn row_bytes(&self) -> usize {
        let bytes = self.kv_type.row_bytes(self.head_dim);
        bytes.expect("checked when the store was allocated")
    }

    /// Bytes of K, or of V, of one page.
    pub fn page_bytes(&self) -> usize {
        self.page_len * self.n_kv_heads * self.row_bytes()
    }

    /// Bytes of K and V together.
    pub fn bytes(&self) -> u64 {
        2 * self.n_pages as u64 * self.page_bytes() as u64
    }
}

/// Scaled dot-product attention with grouped queries, causal within the sequence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionParams {
    /// Query heads; query head `h` reads K/V head `h / (n_heads / n_kv_heads)`.
    pub n_heads: usize,
    /// Factor on `q·k`.
    pub scale: f32,
    /// `c * tanh(score / c)` before the mask.
    pub softcap: Option<f32>,
    /// A token sees itself and the `window - 1` tokens before it; `None` sees all.
    pub window: Option<usize>,
}

/// Activation of the gate in a gated FFN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
    GeluTanh,
}

/// How router logits become probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertGating {
    /// Softmax over all experts, then the best are taken.
    Softmax,
    /// Sigmoid of each logit.
    Sigmoid,
    /// The best logits are taken, then softmax over those.
    SoftmaxOfSelected,
}

/// Expert selection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MoeRouteParams {
    /// Experts of a layer.
    pub n_experts: usize,
    /// Experts a token uses.
    pub n_used: usize,
    /// Probabilities.
    pub gating: ExpertGating,
    /// Divide the chosen weights by their sum (not below 2^-14, as the reference does).
    pub normalise: bool,
    /// Factor on the chosen weights; 1 for none.
    pub scale: f32,
}

/// What makes a layer's queries, keys and values from its normed input.
#[derive(Debug)]
pub struct HeadProducts<'a, W> {
    /// `[n_heads * head_dim, embed_dim]`, with its bias.
    pub q: (&'a W, Option<&'a W>),
    /// `[n_kv_heads * head_dim, embed_dim]`.
    pub k: (&'a W, Option<&'a W>),
    /// As `k`.
    pub v: (&'a W, Option<&'a W>),
    /// RMS norms of each head of q and of k, `[head_dim]`.
    pub norms: [Option<&'a W>; 2],
    /// Of these.
    pub norm_eps: f32,
    /// Width of a head.
    pub head_dim: usize,
    /// Rotates q and k.
    pub rope: RopeTable,
    /// How many values of all three are then mixed; see [`KvType::mixed_block`].
    pub mixed_block: Option<usize>,
}

/// The three matrices of a gated FFN, with their biases, and the activation between them.
#[derive(Debug)]
pub struct GatedFfn<'a, W> {
    /// `[ffn_dim, embed_dim]`.
    pub gate: (&'a W, Option<&'a W>),
    /// `[ffn_dim, embed_dim]`.
    pub up: (&'a W, Option<&'a W>),
    /// `[embed_dim, ffn_dim]`.
    pub down: (&'a W, Option<&'a W>),
    /// Of the gate.
    pub activation: Activation,
}

/// The three stacked expert matrices and the activation between them.
#[derive(Debug)]
pub struct MoeFfn<'a, W> {
    /// `[n_experts, expert_ffn_dim, embed_dim]`.
    pub gate: &'a W,
    /// `[n_experts, expert_ffn_dim, embed_dim]`.
    pub up: &'a W,
    /// `[n_experts, embed_dim, expert_ffn_dim]`.
    pub down: &'a W,
    /// Of the gate.
    pub activation: Activation,
}
