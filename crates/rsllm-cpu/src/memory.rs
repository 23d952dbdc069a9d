//! Cache-line aligned memory for activations, scratch and KV pages.

use bytemuck::Pod;
use rsllm_tensor::BackendError;

/// A zeroed, fixed-size array of `T`, aligned to 64 bytes, or to a large page where it fills one. Pages the program never
/// touches stay uncommitted.
pub(crate) struct Aligned<T> {
    /// Bytes, not lines of 64: an allocator asked for an alignment beyond its own writes the zeroes itself, and would commit all
    /// of a KV cache at load. The array begins at the first line or large page within.
    bytes: Vec<u8>,
    start: usize,
    len: usize,
    marker: std::marker::PhantomData<T>,
}

/// A cache line.
const LINE: usize = 64;

/// A large page.
const LARGE_PAGE: usize = 2 << 20;

/// Counts what is allocated; as a planner it only counts.
#[derive(Debug, Default)]
pub(crate) struct Allocator {
    /// Bytes handed out.
    pub(crate) bytes: u64,
    /// Count without allocating: the arrays have no memory and must not be used.
    pub(crate) only_plans: bool,
}

impl<T: Pod> Aligned<T> {
    /// `len` zeroes, in large pages where it fills them and the system has them; `what` is named when there is no memory.
    pub(crate) fn new(
        allocator: &mut Allocator,
        what: &str,
        len: usize,
    ) -> Result<Self, BackendError> {
        let large = len.saturating_mul(size_of::<T>()) >= LARGE_PAGE;
        let array = Self::starting_at(allocator, what, len, if large { LARGE_PAGE } else { LINE })?;
        if large && !allocator.only_plans {
            advise_large_pages(bytemuck::cast_slice(array.as_slice()));
        }
        Ok(array)
    }

    /// As [`Self::new`] for what may stay mostly untouched: in pages of the usual size.
    pub(crate) fn sparse(
        allocator: &mut Allocator,
        what: &str,
        len: usize,
    ) -> Result<Self, BackendError> {
        Self::starting_at(allocator, what, len, LINE)
    }

    fn starting_at(
        allocator: &mut Allocator,
        what: &str,
        len: usize,
        alignment: usize,
    ) -> Result<Self, BackendError> {
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        let no_memory = || BackendError::OutOfMemory {
            what: what.to_owned(),
            bytes,
        };
        let n_bytes = bytes
            .checked_next_multiple_of(LINE as u64)
            .and_then(|n| usize::try_from(n).ok())
            .ok_or_else(no_memory)?;
        allocator.bytes += n_bytes as u64;
        let bytes: Vec<u8> = if allocator.only_plans {
            Vec::new()
        } else {
            let with_room = n_bytes.checked_add(alignment - 1).ok_or_else(no_memory)?;
            bytemuck::allocation::try_zeroed_vec(with_room).map_err(|()| no_memory())?
        };
        let start = bytes.as_ptr().addr().next_multiple_of(alignment) - bytes.as_ptr().addr();
        Ok(Self {
            bytes,
            start,
            len,
            marker: std::marker::PhantomData,
        })
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        bytemuck::cast_slice(&self.bytes[self.start..self.start + self.len * size_of::<T>()])
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(
            &mut self.bytes[self.start..self.start + self.len * size_of::<T>()],
        )
    }
}

/// Asks for large pages for those that `bytes`, which begin at one, fill. Only advice: refused, it changes nothing but speed.
fn advise_large_pages(bytes: &[u8]) {
    let whole = bytes.len() / LARGE_PAGE * LARGE_PAGE;
    #[cfg(target_os = "linux")]
    // SAFETY: pages of this array; the advice does not change what they hold.
    unsafe {
        libc::madvise(bytes.as_ptr().cast_mut().cast(), whole, libc::MADV_HUGEPAGE);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = whole;
}

/// Asks for the cache line at the start of `bytes`, which will be read soon, in L2. Nothing where the processor knows no such hint.
#[inline]
pub fn prefetch_line(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint for memory that the slice vouches for; every x86-64 processor has it.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(bytes.as_ptr().cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
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
