//! [`rsllm_tensor::Backend`] on the CPU: checks shapes, then hands over to the operation's file.

mod setup;

use rsllm_quant::GgmlType;
use rsllm_tensor::{
    Activation, AttentionParams, Backend, BackendError, GatedFfn, HeadProducts, KvLayout, LowRank,
    MoeFfn, MoeRouteParams, Op, PageId, Product, RopeParams, RopeTable, RowSet, Step, StepLimits,
    WeightSource,
};

use crate::adapters;
use crate::attention::Attention;
use crate::ffn;
use crate::heads;
use crate::kernels::Kernels;
use crate::kv::CpuKv;
use crate::matmul::Matmul;
use crate::memory::{Allocator, CpuBuffer};
use crate::moe::{self, CpuRouting, Experts};
use crate::ops;
use crate::products;
use crate::scratch::{Scratch, Sizes};
use crate::step_state::StepState;
use crate::threads::{ThreadPool, WorkerPanicked};
use crate::weight::{BACKEND, CpuWeight};

type Result<T> = std::result::Result<T, BackendError>;

/// The processor as a backend.
pub struct CpuBackend {
    kernels: &'static Kernels,
    pool: ThreadPool,
    /// Threads that scratch is reserved for.
    n_threads: usize,
    step: StepState,
    sizes: Sizes,
    scratch: Option<Scratch>,
    allocator: Allocator,
}

impl CpuBackend {
    fn products(&mut self, rows: RowSet) -> Matmul<'_> {
        Matmul {
            kernels: self.kernels,
            pool: &mut self.pool,
            scratch: &mut prepared(self.scratch.as_mut()).matmul,
            outputs: rows == RowSet::Outputs,
        }
    }
}

pub(crate) fn check(op: Op, what: &'static str, expected: usize, found: usize) -> Result<()> {
    if expected == found {
        Ok(())
    } else {
        Err(BackendError::Shape {
            op,
            what,
            expected,
            found,
        })
    }
}

fn prepared(scratch: Option<&mut Scratch>) -> &mut Scratch {
    scratch.expect("prepare() is called once, before the first step")
}

impl Backend for CpuBackend {
    type Buffer = CpuBuffer;
    type Weight = CpuWeight;
    type Kv = CpuKv;
    type Routing = CpuRouting;

    fn name(&self) -> &'static str {
        BACKEND
    }

    fn supports(&self, op: Op, ty: GgmlType) -> bool {
        match op {
            Op::Matmul | Op::MoeFfn | Op::LowRankAdd => {
                self.kernels.dot(ty).is_some() && self.kernels.unpack(ty).is_some()
            }
            Op::EmbedRows => self.kernels.unpack(ty).is_some(),
            Op::RmsNorm | Op::RmsNormHeads => ty.can_dequantize(),
            _ => true,
        }
    }

    fn bind_weight(&mut self, source: WeightSource) -> Result<CpuWeight> {
        let weight = CpuWeight::bind(self.kernels, source)?;
        let sizes = &mut self.sizes;
        sizes.row_len = sizes.row_len.max(weight.row_len);
        if weight.n_matrices > 1 {
            let either = weight.row_len.max(weight.n_rows);
            sizes.expert_dim = sizes.expert_dim.max(either);
        }
        Ok(weight)
    }

    fn bind_rope(&mut self, params: RopeParams) -> Result<RopeTable> {
        if !params.factors.is_empty() {
            check(
                Op::Rope,
                "number of frequency factors",
                params.n_rot / 2,
                params.factors.len(),
            )?;
        }
        Ok(RopeTable(self.step.bind_rope(&params)))
    }

    fn alloc(&mut self, what: &'static str, n_rows: usize, width: usize) -> Result<CpuBuffer> {
        CpuBuffer::new(&mut self.allocator, what, n_rows, width)
    }

    fn alloc_kv(&mut self, layout: &KvLayout) -> Result<CpuKv> {
        let kv = CpuKv::new(&mut self.allocator, layout)?;
        self.sizes.layouts.push(*layout);
        Ok(kv)
    }

    fn alloc_routing(&mut self, n_rows: usize, n_used: usize) -> Result<CpuRouting> {
        self.sizes.n_used_experts = self.sizes.n_used_experts.max(n_used);
        self.allocator.bytes += (n_rows * n_used * 8) as u64;
        Ok(CpuRouting::new(n_rows, n_used))
    }

    fn prepare(&mut self, limits: &StepLimits) -> Result<()> {
        self.step.prepare(limits);
        let (allocator, n_threads) = (&mut self.allocator, self.n_threads);
        let scratch = Scratch::new(allocator, self.kernels, n_threads, &self.sizes, limits)?;
        self.scratch = Some(scratch);
        Ok(())
    }

    fn allocated_bytes(&self) -> u64 {
        self.allocator.bytes
    }

    fn begin_step(&mut self, step: &Step<'_>) -> Result<()> {
        self.step.begin(step)
    }

    fn embed_rows(&mut self, dst: &mut CpuBuffer, table: &CpuWeight, scale: f32) -> Result<()> {
        check(Op::EmbedRows, "row width", table.row_len, dst.width)?;
        let n_rows = self.step.counts.n_rows;
        if self.step.ids.is_empty() {
            check(
                Op::EmbedRows,
                "number of embedding values",
                n_rows * dst.width,
                self.step.embeddings.len(),
            )?;
            dst.rows_mut(n_rows).copy_from_slice(&self.step.embeddings);
            return Ok(());
        }
        ops::embed_rows(
            self.kernels,
            &mut self.pool,
            dst.rows_mut(n_rows),
            table,
            &self.step.ids,
            scale,
        )
    }

    fn upload(&mut self, dst: &mut CpuBuffer, src: &[f32]) -> Result<()> {
        check(Op::Upload, "partial row length", 0, src.len() % dst.width)?;
        dst.rows_mut(src.len() / dst.width).copy_from_slice(src);
        Ok(())
    }

    fn download(&mut self, dst: &mut [f32], src: &CpuBuffer) -> Result<()> {
        check(Op::Download, "partial row length", 0, dst.len() % src.width)?;
        let src_rows = src.rows(dst.len() / src.width);
        // Logits of many sequences are megabytes.
        ops::for_rows(&mut self.pool, Op::Download, dst, 1, |first, part| {
            part.copy_from_slice(&src_rows[first..first + part.len()]);
        })
    }

    fn gather_outputs(&mut self, dst: &mut CpuBuffer, src: &CpuBuffer) -> Result<()> {
        check(Op::GatherOutputs, "row width", src.width, dst.width)?;
        let width = src.width;
        let from = src.rows(self.step.counts.n_rows);
        let rows = dst.rows_mut(self.step.outputs.len());
        for (row, &output) in rows.chunks_exact_mut(width).zip(&self.step.outputs) {
            row.copy_from_slice(&from[output as usize * width..][..width]);
        }
        Ok(())
    }

    fn matmul(
        &mut self,
        products: &mut [Product<'_, Self>],
        x: &CpuBuffer,
        rows: RowSet,
    ) -> Result<()> {
        let counts = self.step.counts_of(rows);
        products::run(&mut self.products(rows), products, x, counts)
    }

    fn matmul_add(
        &mut self,
        dst: &mut CpuBuffer,
        product: Product<'_, Self>,
        x: &CpuBuffer,
        rows: RowSet,
    ) -> Result<()> {
        let counts = self.step.counts_of(rows);
        products::add(&mut self.products(rows), dst, product, x, counts)
    }

    fn project_heads(
        &mut self,
        q: &mut CpuBuffer,
        kv: &mut CpuKv,
        x: &CpuBuffer,
        heads: &HeadProducts<'_, CpuWeight>,
        scratch: [&mut CpuBuffer; 2],
    ) -> Result<()> {
        let matmul = &mut Matmul {
            kernels: self.kernels,
            pool: &mut self.pool,
            scratch: &mut prepared(self.scratch.as_mut()).matmul,
            outputs: false,
        };
        heads::run(matmul, &self.step, q, kv, x, heads, scratch)
    }

    fn matmul_to_host(
        &mut self,
        host: &mut [f32],
        product: Product<'_, Self>,
        x: &CpuBuffer,
        rows: RowSet,
    ) -> Result<()> {
        let counts = self.step.counts_of(rows);
        products::to_host(&mut self.products(rows), host, &product, x, counts)
    }

    fn low_rank_add(
        &mut self,
        dst: &mut CpuBuffer,
        x: &CpuBuffer,
        adapter: &LowRank<CpuWeight>,
        rows: RowSet,
    ) -> Result<()> {
        check(Op::LowRankAdd, "input width", adapter.down.row_len, x.width)?;
        check(Op::LowRankAdd, "output width", adapter.up.n_rows, dst.width)?;
        let rank = adapter.up.row_len;
        check(Op::LowRankAdd, "rank", adapter.down.n_rows, rank)?;
        let scratch = prepared(self.scratch.as_mut()).row.as_mut_slice();
        adapters::add_rows(&self.step, dst, x, adapter, rows, scratch)
    }

    fn rms_norm(
        &mut self,
        dst: &mut CpuBuffer,
        x: &CpuBuffer,
        weight: &CpuWeight,
        eps: f32,
        rows: RowSet,
    ) -> Result<()> {
        check(Op::RmsNorm, "output width", x.width, dst.width)?;
        let n_rows = self.step.counts_of(rows).n_rows;
        let (width, weight) = (x.width, weight.vector(Op::RmsNorm, x.width)?);
        let (x, kernel) = (x.rows(n_rows), self.kernels.elementwise.rms_norm);
        ops::for_rows(
            &mut self.pool,
            Op::RmsNorm,
            dst.rows_mut(n_rows),
            width,
            |first, rows| {
                for (y, x) in rows
                    .chunks_exact_mut(width)
                    .zip(x[first * width..].chunks_exact(width))
                {
                    // SAFETY: the table belongs to an instruction set this machine has.
                    unsafe { kernel(y, x, weight, eps) };
                }
            },
        )
    }

    fn rms_norm_heads(&mut self, x: &mut CpuBuffer, weight: &CpuWeight, eps: f32) -> Result<()> {
        let head_dim = weight.row_len;
        check(
            Op::RmsNormHeads,
            "partial head width",
            0,
            x.width % head_dim,
        )?;
        let weight = weight.vector(Op::RmsNormHeads, head_dim)?;
        let (width, rows) = (x.width, x.rows_mut(self.step.counts.n_rows));
        let pool = &mut self.pool;
        ops::norm_in_place(
            self.kernels,
            pool,
            Op::RmsNormHeads,
            rows,
            width,
            weight,
            eps,
        )
    }

    fn rms_norm_in_place(
        &mut self,
        x: &mut CpuBuffer,
        weight: &CpuWeight,
        eps: f32,
        rows: RowSet,
    ) -> Result<()> {
        let (width, weight) = (x.width, weight.vector(Op::RmsNorm, x.width)?);
        let rows = x.rows_mut(self.step.counts_of(rows).n_rows);
        let pool = &mut self.pool;
        ops::norm_in_place(self.kernels, pool, Op::RmsNorm, rows, width, weight, eps)
    }

    fn rope(&mut self, x: &mut CpuBuffer, head_dim: usize, table: RopeTable) -> Result<()> {
        check(Op::Rope, "partial head width", 0, x.width % head_dim)?;
        let rope = &self.step.ropes[table.0];
        check(
            Op::Rope,
            "rotated dimensions",
            rope.n_rot.min(head_dim),
            rope.n_rot,
        )?;
        let (width, n_rows) = (x.width, self.step.counts.n_rows);
        ops::rope(
            self.kernels,
            &mut self.pool,
            (x.rows_mut(n_rows), 0),
            width,
            head_dim,
            rope,
        )
    }

    fn hadamard(&mut self, x: &mut CpuBuffer, block: usize) -> Result<()> {
        heads::check_block(block, x.width)?;
        let (width, pool) = (x.width, &mut self.pool);
        let rows = x.rows_mut(self.step.counts.n_rows);
        ops::hadamard(self.kernels, pool, rows, width, block)
    }

    fn kv_store(&mut self, kv: &mut CpuKv, k: &CpuBuffer, v: &CpuBuffer) -> Result<()> {
        let width = kv.layout.n_kv_heads * kv.layout.head_dim;
        check(Op::KvStore, "width of K", width, k.width)?;
        check(Op::KvStore, "width of V", width, v.width)?;
        let n_rows = self.step.counts.n_rows;
        ops::kv_store(
            &mut self.pool,
            &self.step,
            kv,
            [k.rows(n_rows), v.rows(n_rows)],
            0,
        )
    }

    fn copy_page(&mut self, kv: &mut CpuKv, from: PageId, to: PageId) -> Result<()> {
        kv.copy_page(from, to)
    }

    fn export_page(&mut self, dst: &mut Vec<u8>, kv: &CpuKv, page: PageId) -> Result<()> {
        kv.export_page(dst, page)
    }

    fn import_page(&mut self, kv: &mut CpuKv, page: PageId, src: &[u8]) -> Result<()> {
        kv.import_page(page, src)
    }

    fn attention(
        &mut self,
        dst: &mut CpuBuffer,
        q: &CpuBuffer,
        kv: &CpuKv,
        params: &AttentionParams,
    ) -> Result<()> {
        let layout = &kv.layout;
        check(
            Op::Attention,
            "width of q",
            params.n_heads * layout.head_dim,
            q.width,
        )?;
        check(Op::Attention, "output width", q.width, dst.width)?;
        check(
            Op::Attention,
            "query heads beyond whole groups",
            0,
            params.n_heads % layout.n_kv_heads,
        )?;
        let n_rows = self.step.counts.n_rows;
        let mut attention = Attention {
            kernels: self.kernels,
            pool: &mut self.pool,
            scratch: &mut prepared(self.scratch.as_mut()).attention,
            step: &self.step,
            kv,
            params,
        };
        attention
            .run(dst.rows_mut(n_rows), q.rows(n_rows))
            .map_err(|WorkerPanicked| BackendError::WorkerPanicked { op: Op::Attention })
    }

    fn gated_act(
        &mut self,
        gate: &mut CpuBuffer,
        up: &CpuBuffer,
        activation: Activation,
        rows: RowSet,
    ) -> Result<()> {
        check(Op::GatedAct, "width of up", gate.width, up.width)?;
        let n_rows = self.step.counts_of(rows).n_rows;
        let (width, up) = (gate.width, up.rows(n_rows));
        let gate = gate.rows_mut(n_rows);
        ops::gate(self.kernels, &mut self.pool, activation, gate, up, width)
    }

    fn gated_ffn(
        &mut self,
        dst: &mut CpuBuffer,
        x: &CpuBuffer,
        ffn: &GatedFfn<'_, CpuWeight>,
        inner: [&mut CpuBuffer; 2],
        rows: RowSet,
    ) -> Result<()> {
        let counts = self.step.counts_of(rows);
        ffn::run(&mut self.products(rows), dst, None, x, ffn, inner, counts)
    }

    fn gated_ffn_add(
        &mut self,
        dst: &mut CpuBuffer,
        branch: &mut CpuBuffer,
        x: &CpuBuffer,
        ffn: &GatedFfn<'_, CpuWeight>,
        inner: [&mut CpuBuffer; 2],
        rows: RowSet,
    ) -> Result<()> {
        let counts = self.step.counts_of(rows);
        let matmul = &mut self.products(rows);
        ffn::run(matmul, dst, Some(branch), x, ffn, inner, counts)
    }

    fn add(&mut self, dst: &mut CpuBuffer, x: &CpuBuffer, rows: RowSet) -> Result<()> {
        check(Op::Add, "width", dst.width, x.width)?;
        let n_rows = self.step.counts_of(rows).n_rows;
        let (width, pool) = (dst.width, &mut self.pool);
        ops::add(
            self.kernels,
            pool,
            dst.rows_mut(n_rows),
            x.rows(n_rows),
            width,
        )
    }

    fn scale(&mut self, x: &mut CpuBuffer, factor: f32, rows: RowSet) -> Result<()> {
        let (width, n_rows) = (x.width, self.step.counts_of(rows).n_rows);
        let kernel = self.kernels.elementwise.scale;
        // SAFETY: the table belongs to an instruction set this machine has.
        ops::for_rows(
            &mut self.pool,
            Op::Scale,
            x.rows_mut(n_rows),
            width,
            |_, rows| unsafe { kernel(rows, factor) },
        )
    }

    fn softcap(&mut self, x: &mut CpuBuffer, cap: f32, rows: RowSet) -> Result<()> {
        let (width, n_rows) = (x.width, self.step.counts_of(rows).n_rows);
        let kernel = self.kernels.elementwise.softcap;
        // SAFETY: the table belongs to an instruction set this machine has.
        ops::for_rows(
            &mut self.pool,
            Op::Softcap,
            x.rows_mut(n_rows),
            width,
            |_, rows| unsafe { kernel(rows, cap) },
        )
    }

    fn moe_route(
        &mut self,
        routing: &mut CpuRouting,
        logits: &CpuBuffer,
        params: &MoeRouteParams,
        rows: RowSet,
    ) -> Result<()> {
        check(
            Op::MoeRoute,
            "width of the router logits",
            params.n_experts,
            logits.width,
        )?;
        check(
            Op::MoeRoute,
            "experts of the routing",
            params.n_used,
            routing.n_used,
        )?;
        check(
            Op::MoeRoute,
            "experts used",
            params.n_used.clamp(1, params.n_experts),
            params.n_used,
        )?;
        let n_rows = self.step.counts_of(rows).n_rows;
        let probabilities = prepared(self.scratch.as_mut()).row.as_mut_slice();
        routing.route(logits.rows(n_rows), params, probabilities);
        Ok(())
    }

    fn moe_ffn(
        &mut self,
        dst: &mut CpuBuffer,
        x: &CpuBuffer,
        routing: &CpuRouting,
        ffn: &MoeFfn<'_, CpuWeight>,
        rows: RowSet,
    ) -> Result<()> {
        moe::check_shapes(ffn.gate, ffn.up, ffn.down, x.width)?;
        check(Op::MoeFfn, "output width", x.width, dst.width)?;
        let counts = self.step.counts_of(rows);
        let scratch = prepared(self.scratch.as_mut());
        let mut experts = Experts {
            kernels: self.kernels,
            pool: &mut self.pool,
            matmul: &mut scratch.matmul,
            scratch: &mut scratch.moe,
            gate: ffn.gate,
            up: ffn.up,
            down: ffn.down,
            activation: ffn.activation,
        };
        experts.run(
            dst.rows_mut(counts.n_rows),
            x.rows(counts.n_rows),
            routing,
            counts.n_rows,
            counts.n_prefill,
        )
    }
}
