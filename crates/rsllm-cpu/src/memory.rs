//! Cache-line aligned memory for activations, scratch and KV pages.

use bytemuck::{Pod, Zeroable};
use rsllm_tensor::BackendError;

/// One cache line; makes a `Vec` aligned.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A zeroed, fixed-size array of `T`, aligned to 64 bytes. Pages the program never touches stay uncommitted.
pub(crate) struct Aligned<T> {
    lines: Vec<Line>,
    len: usize,
    marker: std::marker::PhantomData<T>,
}

/// Counts what is allocated; as a planner it only counts.
#[derive(Debug, Default)]
pub(crate) struct Allocator {
    /// Bytes handed out.
    pub(crate) bytes: u64,
    /// Count without allocating: the arrays have no memory and must not be used.
    pub(crate) only_plans: bool,
}

impl<T: Pod> Aligned<T> {
    /// `len` zeroes; `what` is named when there is no memory.
    pub(crate) fn new(
        allocator: &mut Allocator,
        what: &str,
        len: usize,
    ) -> Result<Self, BackendError> {
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        let no_memory = || BackendError::OutOfMemory {
            what: what.to_owned(),
            bytes,
        };
        let n_lines = usize::try_from(bytes.div_ceil(64)).map_err(|_| no_memory())?;
        allocator.bytes += 64 * n_lines as u64;
        let lines = if allocator.only_plans {
            Vec::new()
        } else {
            bytemuck::allocation::try_zeroed_vec(n_lines).map_err(|()| no_memory())?
        };
        Ok(Self {
            lines,
            len,
            marker: std::marker::PhantomData,
        })
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

/// Activations on the CPU: `[n_rows, width]`, row-major, no padding between rows.
pub struct CpuBuffer {
    pub(crate) data: Aligned<f32>,
    pub(crate) width: usize,
}

impl CpuBuffer {
    pub(crate) fn new(
        allocator: &mut Allocator,
        what: &str,
        n_rows: usize,
        width: usize,
    ) -> Result<Self, BackendError> {
        let len = n_rows
            .checked_mul(width)
            .ok_or_else(|| BackendError::OutOfMemory {
                what: what.to_owned(),
                bytes: u64::MAX,
            })?;
        Ok(Self {
            data: Aligned::new(allocator, what, len)?,
            width,
        })
    }

    /// The first `n` rows.
    pub(crate) fn rows(&self, n: usize) -> &[f32] {
        &self.data.as_slice()[..n * self.width]
    }

    /// The first `n` rows, to write to.
    pub(crate) fn rows_mut(&mut self, n: usize) -> &mut [f32] {
        let width = self.width;
        &mut self.data.as_mut_slice()[..n * width]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_zeroed_sized_and_counted() {
        let mut allocator = Allocator::default();
        let mut buffer = CpuBuffer::new(&mut allocator, "test", 3, 5).unwrap();
        assert_eq!(buffer.rows(3), [0.0; 15]);
        assert_eq!(buffer.rows(3).as_ptr() as usize % 64, 0);
        buffer.rows_mut(2).fill(1.0);
        assert_eq!(buffer.rows(3).iter().sum::<f32>(), 10.0);
        assert_eq!(allocator.bytes, 64);
    }

    #[test]
    fn absurd_sizes_are_errors() {
        let found = CpuBuffer::new(&mut Allocator::default(), "huge", usize::MAX, 2);
        assert!(matches!(found, Err(BackendError::OutOfMemory { .. })));
    }

    #[test]
    fn a_planner_counts_without_allocating() {
        let mut allocator = Allocator {
            only_plans: true,
            ..Allocator::default()
        };
        CpuBuffer::new(&mut allocator, "huge", 1 << 40, 16).unwrap();
        assert_eq!(allocator.bytes, 1 << 46);
    }
}
