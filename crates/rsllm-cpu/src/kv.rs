//! K and V pages of one layer, in the element type the user chose.
//!
//! Page `p` holds, for K and for V, `[n_kv_heads, page_len, head_dim]`: a head's rows are contiguous, so attention
//! reads them as one stream.

use std::ops::Range;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rsllm_tensor::{BackendError, KvLayout, KvType, Op, PageId};

use crate::backend::check;
use crate::memory::{Aligned, Allocator};

/// A layer's KV store.
pub struct CpuKv {
    pub(crate) layout: KvLayout,
    pub(crate) k: Aligned<u8>,
    pub(crate) v: Aligned<u8>,
}

impl CpuKv {
    pub(crate) fn new(allocator: &mut Allocator, layout: &KvLayout) -> Result<Self, BackendError> {
        if layout.kv_type.row_bytes(layout.head_dim).is_none() {
            return Err(BackendError::UnsupportedKvType {
                kv_type: layout.kv_type.name(),
                head_dim: layout.head_dim,
            });
        }
        let bytes = usize::try_from(layout.bytes() / 2).map_err(|_| BackendError::OutOfMemory {
            what: "KV pages".to_owned(),
            bytes: layout.bytes(),
        })?;
        Ok(Self {
            layout: *layout,
            k: Aligned::sparse(allocator, "K pages", bytes)?,
            v: Aligned::sparse(allocator, "V pages", bytes)?,
        })
    }

    /// Byte offset of row `slot` of head `head` in page `page`.
    pub(crate) fn row_offset(layout: &KvLayout, page: usize, head: usize, slot: usize) -> usize {
        page * layout.page_bytes() + (head * layout.page_len + slot) * layout.row_bytes()
    }

    /// Store one head's row.
    pub(crate) fn encode(kv_type: KvType, dst: &mut [u8], src: &[f32]) {
        match kv_type {
            KvType::F32 => dst.copy_from_slice(bytemuck::cast_slice(src)),
            KvType::F16 => bytemuck::cast_slice_mut::<u8, f16>(dst).convert_from_f32_slice(src),
            KvType::BF16 => bytemuck::cast_slice_mut::<u8, bf16>(dst).convert_from_f32_slice(src),
            KvType::Q8_0 | KvType::Q4_0 => {
                if rsllm_quant::quantize(kv_type.ggml_type(), src, dst).is_err() {
                    // A row that no block can hold (infinite or not a number) must not pass for a finite one.
                    dst.fill(0xFF);
                }
            }
        }
    }

    /// Page `from` to page `to`.
    pub(crate) fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), BackendError> {
        let from = self.page_range(Op::CopyPage, from)?;
        let to = self.page_range(Op::CopyPage, to)?.start;
        self.k.as_mut_slice().copy_within(from.clone(), to);
        self.v.as_mut_slice().copy_within(from, to);
        Ok(())
    }

    /// Appends a page's bytes, K then V.
    pub(crate) fn export_page(&self, dst: &mut Vec<u8>, page: PageId) -> Result<(), BackendError> {
        let range = self.page_range(Op::ExportPage, page)?;
        dst.extend_from_slice(&self.k.as_slice()[range.clone()]);
        dst.extend_from_slice(&self.v.as_slice()[range]);
        Ok(())
    }

    /// Fills a page from what [`Self::export_page`] gave.
    pub(crate) fn import_page(&mut self, page: PageId, src: &[u8]) -> Result<(), BackendError> {
        let range = self.page_range(Op::ImportPage, page)?;
        check(
            Op::ImportPage,
            "bytes of a page",
            2 * range.len(),
            src.len(),
        )?;
        let (k, v) = src.split_at(range.len());
        self.k.as_mut_slice()[range.clone()].copy_from_slice(k);
        self.v.as_mut_slice()[range].copy_from_slice(v);
        Ok(())
    }

    /// Bytes of a page in K and in V.
    fn page_range(&self, op: Op, page: PageId) -> Result<Range<usize>, BackendError> {
        let (page, n_pages) = (page as usize, self.layout.n_pages);
        if page >= n_pages {
            return Err(BackendError::Shape {
                op,
                what: "page",
                expected: n_pages,
                found: page,
            });
        }
        let bytes = self.layout.page_bytes();
        Ok(page * bytes..(page + 1) * bytes)
    }
}
