//! How products are cut into pieces for threads to take.

use std::ops::Range;

use crate::matmul::{DECODE_PIECE_BYTES, Target};
use crate::weight::CpuWeight;

/// The cut of a group of products into pieces of rows; piece numbers run over all targets.
pub(crate) struct Pieces {
    /// Per target: first piece, rows a piece, rows.
    targets: Vec4<(usize, usize, usize)>,
    pub(crate) total: usize,
}

impl Pieces {
    pub(crate) fn new(targets: &[Target<'_>], piece_bytes: usize) -> Self {
        Self::build(targets, |weight| {
            // The scratch for several columns holds DECODE_PIECE_BYTES.end / 16 rows; no row is shorter than 16 bytes
            // unless the model is tiny, hence the minimum.
            let rows = (piece_bytes / weight.row_bytes).clamp(1, DECODE_PIECE_BYTES.end / 16);
            // Whole squares of results, where there are any.
            if rows > 16 { rows - rows % 16 } else { rows }
        })
    }

    pub(crate) fn with_rows(targets: &[Target<'_>], piece_rows: usize) -> Self {
        Self::build(targets, |_| piece_rows)
    }

    fn build(targets: &[Target<'_>], rows_of: impl Fn(&CpuWeight) -> usize) -> Self {
        let mut total = 0;
        let piece = |target: &Target<'_>| {
            let rows = rows_of(target.weight);
            let first = total;
            total += target.weight.n_rows.div_ceil(rows);
            (first, rows, target.weight.n_rows)
        };
        let targets = targets.iter().map(piece).collect();
        Self { targets, total }
    }

    /// Target and rows of a piece.
    pub(crate) fn get(&self, piece: usize) -> (usize, Range<usize>) {
        let target = self
            .targets
            .iter()
            .rposition(|&(first, ..)| first <= piece)
            .expect("the first piece is 0");
        let (first, rows, n_rows) = *self.targets.get(target);
        let start = (piece - first) * rows;
        (target, start..n_rows.min(start + rows))
    }
}

/// Up to four values on the stack: a group has no more products, and the token loop must not allocate.
pub(crate) struct Vec4<T> {
    items: [Option<T>; 4],
    len: usize,
}

impl<T> Vec4<T> {
    pub(crate) fn get(&self, index: usize) -> &T {
        self.items[index].as_ref().expect("index below len")
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator {
        self.items[..self.len]
            .iter()
            .map(|item| item.as_ref().expect("index below len"))
    }
}

impl<T> FromIterator<T> for Vec4<T> {
    fn from_iter<I: IntoIterator<Item = T>>(iter: I) -> Self {
        let mut items = [const { None }; 4];
        let mut len = 0;
        for item in iter {
            assert!(len < 4, "a group of products has at most four");
            items[len] = Some(item);
            len += 1;
        }
        Self { items, len }
    }
}
