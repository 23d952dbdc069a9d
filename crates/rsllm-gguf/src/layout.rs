//! Where the tensors of one file are, checked against each other and against the file's length.
//!
//! The reference engine demands that tensors follow each other without gaps and in table order. Any layout is accepted
//! here whose offsets are multiples of the alignment, that stays inside the file and in which no two tensors share a
//! byte: everything the engine relies on. Only an unbroken sequence of tensors that runs past the end of the file is
//! called truncated; other offsets outside the file are called wrong, because then the table itself is in doubt.

use std::ops::Range;

use rsllm_quant::GgmlType;

use crate::cause::Cause;
use crate::error::GgufError;

/// A record of the tensor table whose name, type and dimensions are checked, but whose place is not.
pub(crate) struct Record {
    pub(crate) name: String,
    pub(crate) ty: GgmlType,
    pub(crate) dims: Vec<u64>,
    /// Bytes from the start of the file's data section.
    pub(crate) offset: u64,
    pub(crate) n_bytes: u64,
}

/// The byte ranges of `records` in a file of `file_len` bytes whose data section begins at `data_start`.
pub(crate) fn place(
    records: &[Record],
    data_start: u64,
    alignment: u32,
    file_len: u64,
) -> Result<Vec<Range<usize>>, GgufError> {
    if let Some(record) = records
        .iter()
        .find(|record| record.offset % u64::from(alignment) != 0)
    {
        return Err(Cause::Misaligned {
            tensor: record.name.clone(),
            offset: record.offset,
            alignment,
        }
        .into());
    }
    let mut order: Vec<&Record> = records.iter().collect();
    order.sort_by_key(|record| record.offset); // One pass over a table that is in order, as nearly all are.

    let data_len = file_len.saturating_sub(data_start);
    let overlap = order
        .windows(2)
        .find(|pair| end(pair[0]) > u128::from(pair[1].offset));
    let outside = order
        .iter()
        .find(|record| end(record) > u128::from(data_len));
    if let Some([first, second]) = overlap {
        // A size that reaches past the end of the file as well as into its neighbour is the lie, not the offset.
        if end(first) > u128::from(data_len) {
            let available = second.offset.min(data_len).saturating_sub(first.offset);
            return Err(out_of_range(first, available));
        }
        return Err(Cause::Overlap {
            tensor: second.name.clone(),
            offset: second.offset,
            other: first.name.clone(),
            other_end: first.offset + first.n_bytes,
        }
        .into());
    }
    if let Some(record) = outside {
        let total = order.last().map_or(0, |last| end(last)) + u128::from(data_start);
        return Err(match u64::try_from(total) {
            Ok(total) if is_unbroken(&order, alignment) && total <= LARGEST_PLAUSIBLE_FILE => {
                Cause::Truncated {
                    tensor: record.name.clone(),
                    needed: data_start + record.offset + record.n_bytes,
                    file_len,
                    missing: total - file_len,
                }
                .into()
            }
            _ => out_of_range(record, data_len.saturating_sub(record.offset)),
        });
    }
    Ok(records
        .iter()
        .map(|record| {
            // In range: every end is at most the length of the file, and the file is in memory.
            let start = (data_start + record.offset) as usize;
            start..start + record.n_bytes as usize
        })
        .collect())
}

/// `offset` rounded up to the next multiple of `alignment`, a power of two.
pub(crate) fn align_up(offset: u64, alignment: u32) -> Option<u64> {
    offset.checked_next_multiple_of(u64::from(alignment))
}

/// Where a tensor ends, from the start of the data section. Wide, because neither part is to be trusted.
fn end(record: &Record) -> u128 {
    u128::from(record.offset) + u128::from(record.n_bytes)
}

/// Whether the tensors, sorted by offset, begin at zero and follow each other with nothing but padding between.
fn is_unbroken(order: &[&Record], alignment: u32) -> bool {
    let alignment = u128::from(alignment);
    let mut expected = 0_u128;
    order.iter().all(|record| {
        let fits = u128::from(record.offset) == expected;
        expected = end(record).next_multiple_of(alignment);
        fits
    })
}

fn out_of_range(record: &Record, available: u64) -> GgufError {
    Cause::OutOfRange {
        tensor: record.name.clone(),
        offset: record.offset,
        n_bytes: record.n_bytes,
        available,
    }
    .into()
}

/// A table that asks for more than 16 TiB was not cut short by a download; it is wrong.
const LARGEST_PLAUSIBLE_FILE: u64 = 1 << 44;

#[cfg(test)]
mod tests {
    use super::*;

    fn records(offsets_and_sizes: &[(u64, u64)]) -> Vec<Record> {
        let record = |(index, &(offset, n_bytes))| Record {
            name: format!("t{index}"),
            ty: GgmlType::I8,
            dims: vec![n_bytes],
            offset,
            n_bytes,
        };
        offsets_and_sizes.iter().enumerate().map(record).collect()
    }

    fn refused(offsets_and_sizes: &[(u64, u64)], file_len: u64) -> GgufError {
        place(&records(offsets_and_sizes), 64, 32, file_len).unwrap_err()
    }

    #[test]
    fn gaps_and_any_order_are_accepted() {
        let ranges = place(&records(&[(64, 10), (0, 32), (128, 1)]), 64, 32, 193).unwrap();
        assert_eq!(ranges, [128..138, 64..96, 192..193]);
    }

    #[test]
    fn an_unbroken_table_past_the_end_is_truncated_and_counts_all_missing_bytes() {
        let error = refused(&[(0, 40), (64, 100), (192, 8)], 140);
        assert!(
            matches!(error.cause(), Cause::Truncated { tensor, needed: 228, missing: 124, .. } if tensor == "t1")
        );
    }

    #[test]
    fn a_gap_before_the_end_of_the_file_proves_nothing() {
        let error = refused(&[(0, 40), (1 << 40, 100)], 140);
        assert!(
            matches!(error.cause(), Cause::OutOfRange { tensor, available: 0, .. } if tensor == "t1")
        );
    }

    #[test]
    fn a_size_that_swallows_its_neighbour_and_the_file_is_named_itself() {
        let error = refused(&[(0, u64::MAX), (32, 8)], 104);
        assert!(
            matches!(error.cause(), Cause::OutOfRange { tensor, available: 32, .. } if tensor == "t0")
        );
    }

    #[test]
    fn shared_bytes_are_an_overlap_even_inside_the_file() {
        let error = refused(&[(0, 33), (32, 8)], 1000);
        assert!(
            matches!(error.cause(), Cause::Overlap { tensor, other, .. } if tensor == "t1" && other == "t0")
        );
    }

    #[test]
    fn alignment_rounds_up_and_never_wraps() {
        assert_eq!(align_up(0, 32), Some(0));
        assert_eq!(align_up(33, 32), Some(64));
        assert_eq!(align_up(u64::MAX, 1 << 31), None);
        assert_eq!(align_up(7, 1), Some(7));
    }
}
