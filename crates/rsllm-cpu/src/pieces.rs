//! How products are cut into pieces for threads to take.

use std::ops::Range;

use crate::matmul::Target;

/// The cut of a group of products into pieces of rows; piece numbers run over all targets.
pub(crate) struct Pieces {
    /// Per target: first piece, rows a piece, rows.
    targets: Vec4<(usize, usize, usize)>,
    pub(crate) total: usize,
}

impl Pieces {
    pub(crate) fn with_rows(targets: &[Target<'_>], piece_rows: usize) -> Self {
        let mut total = 0;
        let piece = |target: &Target<'_>| {
            let first = total;
            total += target.weight.n_rows.div_ceil(piece_rows);
            (first, piece_rows, target.weight.n_rows)
        };
        let targets = targets.iter().map(piece).collect();
        Self { targets, total }
    }

    /// Target and rows of the first of some pieces and of those behind it that are of the same target, and the other pieces.
    pub(crate) fn first_of(&self, pieces: Range<usize>) -> (usize, Range<usize>, Range<usize>) {
        let (target, Range { start, .. }) = self.get(pieces.start);
        let (first, rows, n_rows) = *self.targets.get(target);
        let end = pieces.end.min(first + n_rows.div_ceil(rows));
        let end_row = n_rows.min((end - first) * rows);
        (target, start..end_row, end..pieces.end)
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
