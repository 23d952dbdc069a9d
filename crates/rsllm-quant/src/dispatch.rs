//! Conversion and dot products for a type known only at run time: one table entry a format, made from its traits.

use crate::{
    ActivationBlock, Bf16Le, Block, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0,
    BlockQ5_1, BlockQ5K, BlockQ6K, BlockQ8_0, BlockQ8_1, BlockQ8K, F16Le, F32Le, FloatBlock,
    GgmlType, QuantError, WeightBlock, as_blocks, try_as_blocks, try_as_blocks_mut,
};

/// Decodes whole blocks of `ty`; `dst` must have room for exactly their elements. Bit-equal with the `gguf` Python
/// package, save that any NaN may stand for any other.
///
/// ```
/// let mut values = [0.0; 32];
/// rsllm_quant::dequantize(rsllm_quant::GgmlType::Q8_0, &[0; 34], &mut values)?;
/// # Ok::<(), rsllm_quant::QuantError>(())
/// ```
pub fn dequantize(ty: GgmlType, src: &[u8], dst: &mut [f32]) -> Result<(), QuantError> {
    (format(ty)
        .ok_or(QuantError::UnsupportedType { ty })?
        .dequantize)(src, dst)
}

/// Encodes `src` as blocks of `ty`; `dst` must have room for exactly those. Blocks are independent of each other, so a
/// tensor may be cut between blocks and quantised by many threads with the same result.
///
/// Formulas are those of ggml's reference quantisers without an importance matrix, and the blocks are the same bytes. Unlike
/// ggml, values that a type's scale cannot hold are an error, and so are NaN and infinities, in the float types too.
pub fn quantize(ty: GgmlType, src: &[f32], dst: &mut [u8]) -> Result<(), QuantError> {
    (format(ty)
        .ok_or(QuantError::UnsupportedType { ty })?
        .quantize)(src, dst)
}

/// Index of the first block with a scale, minimum or (float types) value that is NaN or infinite; None if all are finite.
pub fn find_non_finite_block(ty: GgmlType, src: &[u8]) -> Result<Option<usize>, QuantError> {
    (format(ty)
        .ok_or(QuantError::UnsupportedType { ty })?
        .find_non_finite)(src)
}

/// Dot product of a quantised row with int8 activations: the oracle of the fast kernels. Integer sums are exact, floats
/// are added in f64 in a fixed order and rounded once.
///
/// # Panics
/// If `ty` is not a weight type with int8 activations, `row` is no whole number of blocks, or `x` does not have
/// [`ActivationBlock::count`] of the row's elements.
pub fn vec_dot(ty: GgmlType, row: &[u8], x: &[ActivationBlock]) -> f32 {
    (format(ty)
        .and_then(|format| format.vec_dot)
        .expect("the caller passes a quantised weight type"))(row, x)
}

/// Dot product of an F32, F16 or BF16 row with float activations, added in f64 and rounded once.
///
/// # Panics
/// If `ty` is another type, `row` is no whole number of elements, or the lengths differ.
pub fn vec_dot_f32(ty: GgmlType, row: &[u8], x: &[f32]) -> f32 {
    (format(ty)
        .and_then(|format| format.vec_dot_f32)
        .expect("the caller passes a float type"))(row, x)
}

pub(crate) fn has_format(ty: GgmlType) -> bool {
    format(ty).is_some()
}

struct Format {
    dequantize: fn(&[u8], &mut [f32]) -> Result<(), QuantError>,
    quantize: fn(&[f32], &mut [u8]) -> Result<(), QuantError>,
    find_non_finite: fn(&[u8]) -> Result<Option<usize>, QuantError>,
    vec_dot: Option<DotFn<ActivationBlock>>,
    vec_dot_f32: Option<DotFn<f32>>,
}

/// Row bytes and activations to their dot product.
type DotFn<X> = fn(&[u8], &[X]) -> f32;

impl Format {
    const fn activations<B: Block>() -> Self {
        Self {
            dequantize: dequantize_blocks::<B>,
            quantize: quantize_blocks::<B>,
            find_non_finite: find_non_finite::<B>,
            vec_dot: None,
            vec_dot_f32: None,
        }
    }

    const fn weights<B: WeightBlock>() -> Self {
        Self {
            vec_dot: Some(|row, x| B::vec_dot(as_blocks(row), x)),
            ..Self::activations::<B>()
        }
    }

    const fn floats<B: FloatBlock>() -> Self {
        Self {
            vec_dot_f32: Some(|row, x| B::vec_dot_f32(as_blocks(row), x)),
            ..Self::activations::<B>()
        }
    }
}

fn format(ty: GgmlType) -> Option<Format> {
    Some(match ty {
        GgmlType::F32 => Format::floats::<F32Le>(),
        GgmlType::F16 => Format::floats::<F16Le>(),
        GgmlType::BF16 => Format::floats::<Bf16Le>(),
        GgmlType::Q4_0 => Format::weights::<BlockQ4_0>(),
        GgmlType::Q4_1 => Format::weights::<BlockQ4_1>(),
        GgmlType::Q5_0 => Format::weights::<BlockQ5_0>(),
        GgmlType::Q5_1 => Format::weights::<BlockQ5_1>(),
        GgmlType::Q8_0 => Format::weights::<BlockQ8_0>(),
        GgmlType::Q2_K => Format::weights::<BlockQ2K>(),
        GgmlType::Q3_K => Format::weights::<BlockQ3K>(),
        GgmlType::Q4_K => Format::weights::<BlockQ4K>(),
        GgmlType::Q5_K => Format::weights::<BlockQ5K>(),
        GgmlType::Q6_K => Format::weights::<BlockQ6K>(),
        GgmlType::Q8_1 => Format::activations::<BlockQ8_1>(),
        GgmlType::Q8_K => Format::activations::<BlockQ8K>(),
        GgmlType::IQ2_XXS
        | GgmlType::IQ2_XS
        | GgmlType::IQ3_XXS
        | GgmlType::IQ1_S
        | GgmlType::IQ4_NL
        | GgmlType::IQ3_S
        | GgmlType::IQ2_S
        | GgmlType::IQ4_XS
        | GgmlType::I8
        | GgmlType::I16
        | GgmlType::I32
        | GgmlType::I64
        | GgmlType::F64
        | GgmlType::IQ1_M
        | GgmlType::TQ1_0
        | GgmlType::TQ2_0
        | GgmlType::MXFP4
        | GgmlType::NVFP4
        | GgmlType::Q1_0
        | GgmlType::Q2_0 => return None,
    })
}

fn dequantize_blocks<B: Block>(src: &[u8], dst: &mut [f32]) -> Result<(), QuantError> {
    let (n_bytes, n_elements) = (src.len(), dst.len());
    let blocks = try_as_blocks::<B>(src)?;
    if blocks.len().checked_mul(B::LEN) != Some(n_elements) {
        return Err(QuantError::LengthMismatch {
            ty: B::TYPE,
            n_bytes,
            n_elements,
        });
    }
    for (block, dst) in blocks.iter().zip(dst.chunks_exact_mut(B::LEN)) {
        block.dequantize(dst);
    }
    Ok(())
}

fn quantize_blocks<B: Block>(src: &[f32], dst: &mut [u8]) -> Result<(), QuantError> {
    let (n_bytes, n_elements) = (dst.len(), src.len());
    if !n_elements.is_multiple_of(B::LEN) {
        return Err(QuantError::PartialElements {
            ty: B::TYPE,
            n_elements,
        });
    }
    let blocks = try_as_blocks_mut::<B>(dst)?;
    if blocks.len() != n_elements / B::LEN {
        return Err(QuantError::LengthMismatch {
            ty: B::TYPE,
            n_bytes,
            n_elements,
        });
    }
    for (i, (block, src)) in blocks.iter_mut().zip(src.chunks_exact(B::LEN)).enumerate() {
        if let Some(j) = src.iter().position(|x| !x.is_finite()) {
            return Err(QuantError::NonFinite {
                index: i * B::LEN + j,
                value: src[j],
            });
        }
        *block = B::quantize(src);
        if !block.has_finite_scales() {
            return Err(QuantError::OutOfRange {
                ty: B::TYPE,
                block: i,
            });
        }
    }
    Ok(())
}

fn find_non_finite<B: Block>(src: &[u8]) -> Result<Option<usize>, QuantError> {
    Ok(try_as_blocks::<B>(src)?
        .iter()
        .position(|block| !block.has_finite_scales()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn supported() -> impl Iterator<Item = GgmlType> {
        GgmlType::ALL
            .iter()
            .copied()
            .filter(|ty| ty.can_dequantize())
    }

    #[test]
    fn block_structs_agree_with_the_type_table() {
        fn check<B: Block>() {
            assert_eq!(B::TYPE.block_bytes(), size_of::<B>());
            assert_eq!(B::TYPE.block_len(), B::LEN);
        }
        check::<F32Le>();
        check::<F16Le>();
        check::<Bf16Le>();
        check::<BlockQ4_0>();
        check::<BlockQ4_1>();
        check::<BlockQ5_0>();
        check::<BlockQ5_1>();
        check::<BlockQ8_0>();
        check::<BlockQ8_1>();
        check::<BlockQ2K>();
        check::<BlockQ3K>();
        check::<BlockQ4K>();
        check::<BlockQ5K>();
        check::<BlockQ6K>();
        check::<BlockQ8K>();
    }

    #[test]
    fn lengths_are_checked_in_every_type() {
        for ty in supported() {
            let (len, bytes) = (ty.block_len(), ty.block_bytes());
            assert_eq!(dequantize(ty, &[], &mut []), Ok(()));
            assert_eq!(quantize(ty, &[], &mut []), Ok(()));
            assert_eq!(
                dequantize(ty, &vec![0; bytes + 1], &mut vec![0.0; len]),
                Err(QuantError::PartialBlock {
                    ty,
                    n_bytes: bytes + 1
                })
            );
            assert_eq!(
                dequantize(ty, &vec![0; bytes], &mut vec![0.0; len + 1]),
                Err(QuantError::LengthMismatch {
                    ty,
                    n_bytes: bytes,
                    n_elements: len + 1
                })
            );
            assert_eq!(
                quantize(ty, &vec![0.0; 2 * len], &mut vec![0; bytes]),
                Err(QuantError::LengthMismatch {
                    ty,
                    n_bytes: bytes,
                    n_elements: 2 * len
                })
            );
            if len > 1 {
                assert_eq!(
                    quantize(ty, &vec![0.0; len + 1], &mut vec![0; bytes]),
                    Err(QuantError::PartialElements {
                        ty,
                        n_elements: len + 1
                    })
                );
            }
        }
    }

    #[test]
    fn faults_are_reported_with_their_index() {
        for ty in supported() {
            let len = ty.block_len();
            for fault in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut src = vec![1.0; 3 * len];
                src[2 * len - 1] = fault;
                let error = quantize(ty, &src, &mut vec![0; 3 * ty.block_bytes()]);
                assert!(
                    matches!(error, Err(QuantError::NonFinite { index, value }) if index == 2 * len - 1
                        && value.to_bits() == fault.to_bits()),
                    "{ty}: {error:?}"
                );
            }
        }
    }

    #[test]
    fn values_beyond_the_scale_are_refused_and_never_lost() {
        for ty in supported() {
            let len = ty.block_len();
            // Below 0.1, the f16 scale of Q6_K is subnormal and loses digits.
            for exponent in -1..39 {
                let value = -3.0 * 10f32.powi(exponent);
                let mut src = vec![0.0; 2 * len];
                src[len..].fill(value);
                let mut bytes = vec![0; 2 * ty.block_bytes()];
                match quantize(ty, &src, &mut bytes) {
                    Ok(()) => {
                        let mut back = vec![0.0; 2 * len];
                        dequantize(ty, &bytes, &mut back).unwrap();
                        assert!(back[..len].iter().all(|&y| y == 0.0), "{ty}");
                        assert!(
                            back[len..].iter().all(|y| (y / value - 1.0).abs() < 0.01),
                            "{ty} {value}"
                        );
                    }
                    Err(error) => {
                        assert_eq!(error, QuantError::OutOfRange { ty, block: 1 });
                        // The sum that Q8_1 stores is the first to overflow.
                        assert!(exponent > 2, "{ty} holds {value}");
                    }
                }
                let unbounded = matches!(ty, GgmlType::F32 | GgmlType::Q8_K | GgmlType::BF16);
                assert!(
                    unbounded || exponent < 10 || find_non_finite_block(ty, &bytes) == Ok(Some(1)),
                    "{ty} {value}"
                );
            }
        }
    }

    #[test]
    fn infinite_scales_are_found() {
        let mut bytes = [0; 3 * 18];
        assert_eq!(find_non_finite_block(GgmlType::Q4_0, &bytes), Ok(None));
        bytes[37] = 0x7C;
        assert_eq!(find_non_finite_block(GgmlType::Q4_0, &bytes), Ok(Some(2)));
    }

    #[test]
    fn types_without_code_are_refused() {
        let ty = GgmlType::IQ2_XS;
        assert_eq!(
            dequantize(ty, &[], &mut []),
            Err(QuantError::UnsupportedType { ty })
        );
        assert_eq!(
            quantize(ty, &[], &mut []),
            Err(QuantError::UnsupportedType { ty })
        );
    }

    #[test]
    #[should_panic(expected = "quantised weight type")]
    fn dot_refuses_float_rows() {
        vec_dot(GgmlType::F32, &[], &[]);
    }
}
