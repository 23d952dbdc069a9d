//! The float types seen as blocks of one element, which meet activations as floats.

use crate::Block;

/// A float format: a block of one element.
pub trait FloatBlock: Block {
    /// The value, exactly.
    fn to_f32(self) -> f32;

    /// Dot product of a row with f32 activations, accumulated in f64 in eight interleaved sums and rounded to f32 once.
    ///
    /// # Panics
    /// If the lengths differ.
    fn vec_dot_f32(row: &[Self], x: &[f32]) -> f32 {
        assert_eq!(
            row.len(),
            x.len(),
            "row and activations must have the same length"
        );
        // Eight sums, so that the additions do not wait for each other.
        let mut sums = [0f64; 8];
        for (row, x) in row.chunks(8).zip(x.chunks(8)) {
            for ((sum, weight), &x) in sums.iter_mut().zip(row).zip(x) {
                *sum += f64::from(weight.to_f32()) * f64::from(x);
            }
        }
        sums.iter().sum::<f64>() as f32
    }
}
