//! The trait every compute device implements.

use rsllm_quant::GgmlType;

use crate::error::BackendError;
use crate::params::{
    Activation, AttentionParams, GatedFfn, HeadProducts, KvLayout, MoeFfn, MoeRouteParams, Op,
    RopeParams, RopeTable, RowSet, StepLimits, WeightSource,
};
use crate::step::{PageId, Step};

type Result<T> = std::result::Result<T, BackendError>;

/// One matrix product of a group that shares its input: `dst = x · weightᵀ (+ bias)`.
#[derive(Debug)]
pub struct Product<'a, B: Backend> {
    /// `[rows, weight.n_rows]`, overwritten.
    pub dst: &'a mut B::Buffer,
    /// `[n_rows, row_len]`.
    pub weight: &'a B::Weight,
    /// `[n_rows]`, added when given.
    pub bias: Option<&'a B::Weight>,
}

impl<'a, B: Backend> Product<'a, B> {
    /// A product of a weight and its bias.
    pub fn new(
        dst: &'a mut B::Buffer,
        (weight, bias): (&'a B::Weight, Option<&'a B::Weight>),
    ) -> Self {
        Self { dst, weight, bias }
    }
}

/// A low-rank adapter of one linear layer: `y += scale · up · (down · x)`.
#[derive(Debug)]
pub struct LowRank<W> {
    /// Applies to sequences that name this adapter.
    pub adapter: u32,
    /// `[rank, input width]`.
    pub down: W,
    /// `[output width, rank]`.
    pub up: W,
    /// alpha / rank times the user's factor.
    pub scale: f32,
}

/// A compute device: binds weights where they lie, owns buffers and KV stores, runs coarse operations.
///
/// Contract of the numbers: a row's result depends on its own inputs and its phase (prefill or decode), never on how
/// many rows share the step, on thread counts or on chunk borders.
///
/// Buffers hold f32 `[max_rows, width]`; an operation touches the rows of its [`RowSet`]. All allocation happens in
/// the `bind_*`, `alloc*` and `prepare` methods, before the first step.
pub trait Backend: Send + Sized {
    /// Activations, f32, row-major.
    type Buffer: Send;
    /// A bound weight; stays in the file's block format.
    type Weight: Send;
    /// K and V pages of one layer.
    type Kv: Send;
    /// Experts chosen for each row and their weights.
    type Routing: Send;

    /// Short name for messages, such as `cpu`.
    fn name(&self) -> &'static str;

    /// Whether `op` has a kernel for weights of type `ty`. The loader asks before it binds.
    fn supports(&self, op: Op, ty: GgmlType) -> bool;

    /// Make a weight usable in place; checks its bytes against its shape.
    fn bind_weight(&mut self, source: WeightSource) -> Result<Self::Weight>;

    /// Register a rotary embedding.
    fn bind_rope(&mut self, params: RopeParams) -> Result<RopeTable>;

    /// A zeroed buffer `[n_rows, width]`. `what` is used in messages.
    fn alloc(&mut self, what: &'static str, n_rows: usize, width: usize) -> Result<Self::Buffer>;

    /// A layer's KV store. Memory is committed as pages are written.
    fn alloc_kv(&mut self, layout: &KvLayout) -> Result<Self::Kv>;

    /// Room for the routing of `n_rows` rows with `n_used` experts each.
    fn alloc_routing(&mut self, n_rows: usize, n_used: usize) -> Result<Self::Routing>;

    /// Reserve all scratch for steps within `limits`; called once, after everything is bound.
    fn prepare(&mut self, limits: &StepLimits) -> Result<()>;

    /// Bytes this backend has allocated so far (buffers, KV, scratch; not mapped weights).
    fn allocated_bytes(&self) -> u64;

    /// Take the inputs of a step. A GPU backend uploads them here and may replay a recorded graph.
    fn begin_step(&mut self, step: &Step<'_>) -> Result<()>;

    /// The step is complete. Default: nothing.
    fn end_step(&mut self) -> Result<()> {
        Ok(())
    }

    /// `dst[r] = scale * table[id[r]]`, or the step's ready rows unscaled. dst `[rows, embed_dim]`.
    fn embed_rows(
        &mut self,
        dst: &mut Self::Buffer,
        table: &Self::Weight,
        scale: f32,
    ) -> Result<()>;

    /// Copy host rows `[rows, width]` into `dst`.
    fn upload(&mut self, dst: &mut Self::Buffer, src: &[f32]) -> Result<()>;

    /// Copy the first rows of `src` to the host; `dst.len()` says how many values.
    fn download(&mut self, dst: &mut [f32], src: &Self::Buffer) -> Result<()>;

    /// `dst[i] = src[outputs[i]]`.
    fn gather_outputs(&mut self, dst: &mut Self::Buffer, src: &Self::Buffer) -> Result<()>;

    /// Every product of `products`, all on the same `x` `[rows, row_len]`, in one pass. Prefill rows take the blocked
    /// product on f32 activations, decode rows the fused dots on int8 activations (f32 for float weights).
    fn matmul(
        &mut self,
        products: &mut [Product<'_, Self>],
        x: &Self::Buffer,
        rows: RowSet,
    ) -> Result<()>;

    /// `dst += x · weightᵀ (+ bias)`; the product's own destination is scratch, and holds nothing afterwards.
    fn matmul_add(
        &mut self,
        dst: &mut Self::Buffer,
        product: Product<'_, Self>,
        x: &Self::Buffer,
        rows: RowSet,
    ) -> Result<()> {
        let Product {
            dst: branch,
            weight,
            bias,
        } = product;
        let mut products = [Product {
            dst: &mut *branch,
            weight,
            bias,
        }];
        self.matmul(&mut products, x, rows)?;
        self.add(dst, branch, rows)
    }

    /// The products of `x` that make queries, keys and values, each head of q and k normed and rotated, all mixed where they are
    /// to be; K and V are stored. `scratch` `[rows, n_kv_heads * head_dim]` is for k and v, and holds nothing afterwards.
    fn project_heads(
        &mut self,
        q: &mut Self::Buffer,
        kv: &mut Self::Kv,
        x: &Self::Buffer,
        heads: &HeadProducts<'_, Self::Weight>,
        scratch: [&mut Self::Buffer; 2],
    ) -> Result<()> {
        let [k, v] = scratch;
        let mut products = [
            Product::new(&mut *q, heads.q),
            Product::new(&mut *k, heads.k),
            Product::new(&mut *v, heads.v),
        ];
        self.matmul(&mut products, x, RowSet::All)?;
        self.finish_heads([q, k, v], kv, heads)
    }

    /// What [`Backend::project_heads`] does behind the products, in place.
    fn finish_heads(
        &mut self,
        [q, k, v]: [&mut Self::Buffer; 3],
        kv: &mut Self::Kv,
        heads: &HeadProducts<'_, Self::Weight>,
    ) -> Result<()> {
        for (x, norm) in [&mut *q, &mut *k].into_iter().zip(heads.norms) {
            if let Some(norm) = norm {
                self.rms_norm_heads(x, norm, heads.norm_eps)?;
            }
            self.rope(x, heads.head_dim, heads.rope)?;
        }
        // Scores do not change when Q and K are mixed alike, and what is mixed in V is undone in the sum.
        if let Some(block) = heads.mixed_block {
            for x in [&mut *q, &mut *k, &mut *v] {
                self.hadamard(x, block)?;
            }
        }
        self.kv_store(kv, k, v)
    }

    /// As [`Backend::matmul`] of one product, its result also, or only, in `host` `[rows, weight.n_rows]`.
    fn matmul_to_host(
        &mut self,
        host: &mut [f32],
        product: Product<'_, Self>,
        x: &Self::Buffer,
        rows: RowSet,
    ) -> Result<()> {
        let Product { dst, weight, bias } = product;
        let mut products = [Product {
            dst: &mut *dst,
            weight,
            bias,
        }];
        self.matmul(&mut products, x, rows)?;
        self.download(host, dst)
    }

    /// `dst += scale · up · (down · x)` for the rows whose sequence names this adapter.
    fn low_rank_add(
        &mut self,
        dst: &mut Self::Buffer,
        x: &Self::Buffer,
        adapter: &LowRank<Self::Weight>,
        rows: RowSet,
    ) -> Result<()>;

    /// `dst = x / sqrt(mean(x²) + eps) * weight`, per row; weight `[width]`, float typed.
    fn rms_norm(
        &mut self,
        dst: &mut Self::Buffer,
        x: &Self::Buffer,
        weight: &Self::Weight,
        eps: f32,
        rows: RowSet,
    ) -> Result<()>;

    /// RMS norm in place of each head of each row: x `[rows, n_heads * head_dim]`, weight `[head_dim]`.
    fn rms_norm_heads(
        &mut self,
        x: &mut Self::Buffer,
        weight: &Self::Weight,
        eps: f32,
    ) -> Result<()>;

    /// RMS norm in place of each row.
    fn rms_norm_in_place(
        &mut self,
        x: &mut Self::Buffer,
        weight: &Self::Weight,
        eps: f32,
        rows: RowSet,
    ) -> Result<()>;

    /// Rotate in place each head of each row by the row's position: x `[rows, n_heads * head_dim]`.
    fn rope(&mut self, x: &mut Self::Buffer, head_dim: usize, table: RopeTable) -> Result<()>;

    /// Multiply in place each `block` values of each row by the orthonormal Walsh-Hadamard matrix, which is its own
    /// inverse: `x[i] = Σ_j ±x[j] / sqrt(block)`, negative where `i & j` has an odd number of ones. A power of two that the
    /// rows are made of.
    fn hadamard(&mut self, x: &mut Self::Buffer, block: usize) -> Result<()>;

    /// Write K and V rows `[rows, n_kv_heads * head_dim]` to the pages of their sequences.
    fn kv_store(&mut self, kv: &mut Self::Kv, k: &Self::Buffer, v: &Self::Buffer) -> Result<()>;

    /// Copy page `from` to page `to` of the same store.
    fn copy_page(&mut self, kv: &mut Self::Kv, from: PageId, to: PageId) -> Result<()>;

    /// Append a page's bytes, K then V, to `dst`, in a form that [`Backend::import_page`] of a store of the same layout
    /// takes.
    fn export_page(&mut self, dst: &mut Vec<u8>, kv: &Self::Kv, page: PageId) -> Result<()>;

    /// Fill a page from bytes that [`Backend::export_page`] made.
    fn import_page(&mut self, kv: &mut Self::Kv, page: PageId, src: &[u8]) -> Result<()>;

    /// `dst = softmax(mask(softcap(scale · q·Kᵀ))) · V`; q and dst `[rows, n_heads * head_dim]`. Reads the pages named
    /// by each row's sequence, the row's own token included; does not change the store.
    fn attention(
        &mut self,
        dst: &mut Self::Buffer,
        q: &Self::Buffer,
        kv: &Self::Kv,
        params: &AttentionParams,
    ) -> Result<()>;

    /// `gate = act(gate) * up`, elementwise in place.
    fn gated_act(
        &mut self,
        gate: &mut Self::Buffer,
        up: &Self::Buffer,
        activation: Activation,
        rows: RowSet,
    ) -> Result<()>;

    /// `dst = down · (act(gate · x) * (up · x))`, each product with its bias; x and dst `[rows, embed_dim]`. `inner`
    /// `[rows, ffn_dim]` are scratch for the two inner products, and hold nothing afterwards: a device that keeps them
    /// elsewhere need not write them.
    fn gated_ffn(
        &mut self,
        dst: &mut Self::Buffer,
        x: &Self::Buffer,
        ffn: &GatedFfn<'_, Self::Weight>,
        inner: [&mut Self::Buffer; 2],
        rows: RowSet,
    ) -> Result<()> {
        let [gate, up] = inner;
        let mut products = [
            Product::new(&mut *gate, ffn.gate),
            Product::new(&mut *up, ffn.up),
        ];
        self.matmul(&mut products, x, rows)?;
        self.gated_act(gate, up, ffn.activation, rows)?;
        self.matmul(&mut [Product::new(dst, ffn.down)], gate, rows)
    }

    /// As [`Backend::gated_ffn`], its result added to `dst`; `branch` is scratch for it, and holds nothing afterwards.
    fn gated_ffn_add(
        &mut self,
        dst: &mut Self::Buffer,
        branch: &mut Self::Buffer,
        x: &Self::Buffer,
        ffn: &GatedFfn<'_, Self::Weight>,
        inner: [&mut Self::Buffer; 2],
        rows: RowSet,
    ) -> Result<()> {
        self.gated_ffn(branch, x, ffn, inner, rows)?;
        self.add(dst, branch, rows)
    }

    /// `dst += x`.
    fn add(&mut self, dst: &mut Self::Buffer, x: &Self::Buffer, rows: RowSet) -> Result<()>;

    /// `x *= factor`.
    fn scale(&mut self, x: &mut Self::Buffer, factor: f32, rows: RowSet) -> Result<()>;

    /// `x = cap * tanh(x / cap)`.
    fn softcap(&mut self, x: &mut Self::Buffer, cap: f32, rows: RowSet) -> Result<()>;

    /// Choose experts from router logits `[rows, n_experts]`.
    fn moe_route(
        &mut self,
        routing: &mut Self::Routing,
        logits: &Self::Buffer,
        params: &MoeRouteParams,
        rows: RowSet,
    ) -> Result<()>;

    /// `dst = Σ_e w_e · down_e(act(gate_e · x) * up_e · x)` over the chosen experts of each row; x and dst
    /// `[rows, embed_dim]`.
    fn moe_ffn(
        &mut self,
        dst: &mut Self::Buffer,
        x: &Self::Buffer,
        routing: &Self::Routing,
        ffn: &MoeFfn<'_, Self::Weight>,
        rows: RowSet,
    ) -> Result<()>;
}
