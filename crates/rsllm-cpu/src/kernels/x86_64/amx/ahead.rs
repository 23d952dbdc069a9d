//! What products on tiles ask for while they run: they read little, and what comes next lies beyond L2.

use std::arch::x86_64::*;
use std::slice::Chunks;

use crate::kernels::Ahead;

/// Values of bf16 in a cache line.
const LINE: usize = 32;
const LINE_BYTES: usize = 64;

/// What is to be asked for, in equal shares for the steps of a product.
pub(super) struct Asking<'a> {
    activations: [Chunks<'a, u16>; 2],
    /// The next cache line of weights, how many are left of its row, and rows with it.
    line: *const u8,
    n_lines: usize,
    n_rows: usize,
    lines_of_row: usize,
    /// From the last line of a row to the first of the next.
    to_next_row: usize,
    /// Lines of weights for a step.
    share: usize,
}

impl<'a> Asking<'a> {
    pub(super) fn new(ahead: &Ahead<'a>, n_steps: usize) -> Self {
        let n_steps = n_steps.max(1);
        let lines_of_row = ahead.piece.len().div_ceil(LINE_BYTES);
        let n_rows = match lines_of_row {
            0 => 0,
            _ => ahead.weights.len() / ahead.row_bytes.max(1),
        };
        let of_step =
            |part: &'a [u16]| part.chunks((part.len() / LINE).div_ceil(n_steps).max(1) * LINE);
        Self {
            activations: ahead.activations.map(of_step),
            line: ahead.weights.as_ptr().wrapping_add(ahead.piece.start),
            n_lines: lines_of_row,
            n_rows,
            lines_of_row,
            to_next_row: ahead
                .row_bytes
                .wrapping_sub(lines_of_row.saturating_sub(1) * LINE_BYTES),
            share: (n_rows * lines_of_row).div_ceil(n_steps),
        }
    }

    /// Asks for the next share.
    #[inline(always)]
    pub(super) fn step(&mut self) {
        // SAFETY: hints, of addresses that are not looked at.
        unsafe {
            for lines in self.activations.iter_mut().filter_map(Iterator::next) {
                for line in lines.chunks(LINE) {
                    _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast());
                }
            }
            for _ in 0..self.share {
                if self.n_rows == 0 {
                    return;
                }
                _mm_prefetch::<_MM_HINT_T1>(self.line.cast());
                self.n_lines -= 1;
                let mut ahead = LINE_BYTES;
                if self.n_lines == 0 {
                    (self.n_lines, ahead) = (self.lines_of_row, self.to_next_row);
                    self.n_rows -= 1;
                }
                self.line = self.line.wrapping_add(ahead);
            }
        }
    }
}
