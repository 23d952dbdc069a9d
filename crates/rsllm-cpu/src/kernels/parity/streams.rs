//! Many long rows, which kernels may read from several places at once.

use super::{Case, WEIGHT_TYPES, tables};
use crate::kernels::Dot;

/// Bytes of all rows, more than kernels want for that.
const BYTES: usize = 144 * 1024;

#[test]
fn many_rows_have_the_same_bits_as_few_of_them() {
    for ty in WEIGHT_TYPES {
        // Rows that end with a unit, and in its quarters.
        let row_lens: &[usize] = match ty.block_len() {
            256 => &[2048],
            _ => &[1024, 1088, 1152],
        };
        for &row_len in row_lens {
            let row_bytes = ty.row_bytes(row_len).unwrap();
            assert!(row_bytes >= Dot::STREAMED_ROW_BYTES);
            // Some are left over behind groups of sixteen.
            let n_rows = (BYTES / row_bytes).next_multiple_of(16) + 5;
            let case = Case::new(ty, row_len, n_rows, 4, true);
            for table in tables() {
                for columns in [0..1, 0..2, 1..4, 0..4] {
                    let n_columns = columns.len();
                    let all = case.dots(table, 0..n_rows, columns.clone());
                    for first in (0..n_rows).step_by(7) {
                        let rows = first..n_rows.min(first + 7);
                        let few = case.dots(table, rows.clone(), columns.clone());
                        let of_all = &all[rows.start * n_columns..rows.end * n_columns];
                        assert!(
                            few.iter()
                                .map(|y| y.to_bits())
                                .eq(of_all.iter().map(|y| y.to_bits())),
                            "{} of {row_len} on {}: {rows:?} times {columns:?}",
                            ty.name(),
                            table.isa
                        );
                    }
                }
            }
        }
    }
}
