//! K and V pages of one layer, in the element type the user chose.
//!
//! Page `p` holds, for K and for V, `[n_kv_heads, page_len, head_dim]`: a head's rows are contiguous, so attention
//! reads them as one stream.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rsllm_tensor::{BackendError, KvLayout, KvType};

use crate::memory::Aligned;

/// A layer's KV store.
pub struct CpuKv {
    pub(crate) layout: KvLayout,
    pub(crate) k: Aligned<u8>,
    pub(crate) v: Aligned<u8>,
}

impl CpuKv {
    pub(crate) fn new(layout: &KvLayout) -> Result<Self, BackendError> {
        let bytes = usize::try_from(layout.bytes() / 2).map_err(|_| BackendError::OutOfMemory {
            what: "KV pages".to_owned(),
            bytes: layout.bytes(),
        })?;
        Ok(Self {
            layout: *layout,
            k: Aligned::new("K pages", bytes)?,
            v: Aligned::new("V pages", bytes)?,
        })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.k.bytes() + self.v.bytes()
    }

    /// Byte offset of row `slot` of head `head` in page `page`.
    pub(crate) fn row_offset(layout: &KvLayout, page: usize, head: usize, slot: usize) -> usize {
        ((page * layout.n_kv_heads + head) * layout.page_len + slot) * Self::row_bytes(layout)
    }

    pub(crate) fn row_bytes(layout: &KvLayout) -> usize {
        layout.head_dim * layout.kv_type.bytes()
    }

    /// Store one head's row.
    pub(crate) fn encode(kv_type: KvType, dst: &mut [u8], src: &[f32]) {
        match kv_type {
            KvType::F32 => dst.copy_from_slice(bytemuck::cast_slice(src)),
            KvType::F16 => bytemuck::cast_slice_mut::<u8, f16>(dst).convert_from_f32_slice(src),
            KvType::BF16 => bytemuck::cast_slice_mut::<u8, bf16>(dst).convert_from_f32_slice(src),
        }
    }
}
