//! All dots with int8 activations. A format supplies two steps and the rest is here: units, columns made ready for them, tails;
//! `dot_columns.rs` walks over the rows.
//!
//! Both sides meet in units of 256 values: one block of a K format, or eight blocks of 32 values. `load` unpacks the
//! weights of a unit to unsigned bytes, so that a lane holds four bytes of one run of sixteen in each of the four vectors,
//! hence under one scale of either side; `prepare` brings the activations into the same order, once a call. Four integer
//! products then leave the sixteen sums of the runs, which take one conversion and one multiply-add; minima of groups take one
//! more for two units. Four rows share each read of activations, or up to sixteen columns each `load`. Every pair of a row and a
//! column has an accumulator of its own and goes through the same operations in the same order in whatever company, hence equal
//! bits.
//!
//! The steps are closures, which inherit the instruction set of the function they stand in. Each has one call site in
//! each shape of tile, and there are few shapes, because a step that the compiler does not inline costs more than it
//! does.

use std::arch::x86_64::*;
use std::mem::offset_of;

use bytemuck::Pod;
use rsllm_quant::ActivationBlock;

use super::dot_columns::{Part, WIDE_UNITS, few_columns, many_columns};
use super::simd::{load256, load512, store512};
use super::tail::{Minima, QUARTER_LEN, Quarters, at_the_end, spread_quarter};
use crate::kernels::{Prepared, PreparedColumns};

/// The arguments of a `DotRows` kernel.
pub(super) struct Call<'a> {
    /// Whole rows.
    pub(super) rows: &'a [u8],
    pub(super) row_bytes: usize,
    /// `[n_columns, blocks of a row]`.
    pub(super) x: &'a [ActivationBlock],
    pub(super) n_columns: usize,
    /// `[n_columns, n_rows]`.
    pub(super) out: &'a mut [f32],
    pub(super) prepared: PreparedColumns<'a>,
}

/// 256 weights as integers and float scales: value = scale · (byte - offset) + minimum, the offset being the format's.
#[derive(Clone, Copy)]
pub(super) struct Weights {
    /// Unsigned bytes, in the format's order.
    pub(super) q: [__m512i; 4],
    /// For dots the scale of each lane; for unpacking eight scales and eight minima, or sixteen scales.
    pub(super) scales: __m512,
    /// What is multiplied with [`Prepared::sums`].
    pub(super) minima: __m512,
}

impl Weights {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(super) fn new(q: [__m512i; 4], scales: __m512) -> Self {
        Self {
            q,
            scales,
            minima: _mm512_setzero_ps(),
        }
    }
}

/// 256 activations in a format's order.
#[derive(Clone, Copy)]
pub(super) struct Activations {
    pub(super) q: [__m512i; 4],
    /// See [`Prepared`].
    pub(super) start: __m512i,
    pub(super) scales: __m512,
    pub(super) sums: __m512,
}

impl Activations {
    /// For weights `OFFSET` less than their byte.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(super) fn new<const OFFSET: u8>(q: [__m512i; 4], scales: __m512, sums: __m512) -> Self {
        let zero = _mm512_setzero_si512();
        let start = if OFFSET == 0 {
            zero
        } else {
            let offsets = [_mm512_set1_epi8(OFFSET as i8); 4];
            _mm512_sub_epi32(zero, sum_of_products(offsets, q, zero))
        };
        Self {
            q,
            start,
            scales,
            sums,
        }
    }

    /// For weights in the order of [`runs`]. With a `SIGN` of 1 or -1, the upper half of [`Weights::minima`] holds minima
    /// for each 32 to be added or subtracted; its lower half is multiplied with zero.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(super) fn in_runs<const OFFSET: u8, const SIGN: i8>(x: &ActivationBlock) -> Self {
        Self::new::<OFFSET>(runs(quants(x)), scales(x), signed_sums::<SIGN>(x))
    }

    /// As [`Activations::in_runs`], in the order of [`quads`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(super) fn in_quads<const OFFSET: u8, const SIGN: i8>(x: &ActivationBlock) -> Self {
        let scales = transposed(scales(x));
        Self::new::<OFFSET>(quads(quants(x)), scales, signed_sums::<SIGN>(x))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(super) fn store(self, dst: &mut Prepared) {
        let (q, _) = dst.q.as_chunks_mut::<64>();
        for (q, value) in q.iter_mut().zip(self.q) {
            store512(q, value);
        }
        store512(&mut dst.start, self.start);
        store512(&mut dst.scales, _mm512_castps_si512(self.scales));
        store512(&mut dst.sums, _mm512_castps_si512(self.sums));
    }
}

/// Sums of the products of the sixteen bytes and quants of each lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn sum_of_products(bytes: [__m512i; 4], q: [__m512i; 4], mut sums: __m512i) -> __m512i {
    for (bytes, q) in bytes.into_iter().zip(q) {
        sums = _mm512_dpbusd_epi32(sums, bytes, q);
    }
    sums
}

/// The four vectors of quants of a block, in order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn quants(x: &ActivationBlock) -> [__m512i; 4] {
    [
        load512::<0, _>(x),
        load512::<64, _>(x),
        load512::<128, _>(x),
        load512::<192, _>(x),
    ]
}

/// Scales of runs, in order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn scales(x: &ActivationBlock) -> __m512 {
    _mm512_castsi512_ps(load512::<{ offset_of!(ActivationBlock, scales) }, _>(x))
}

/// `SIGN` times the sums of groups in the upper half, zeros in the lower one.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn signed_sums<const SIGN: i8>(x: &ActivationBlock) -> __m512 {
    let sums = load256::<{ offset_of!(ActivationBlock, sums) }, _>(x);
    let upper = _mm512_maskz_broadcast_f32x8(0xff00, _mm256_castsi256_ps(sums));
    _mm512_mul_ps(upper, _mm512_set1_ps(f32::from(SIGN)))
}

/// 256 bytes in element order to the order in which vector `v` holds elements 4v to 4v + 3 of run `r` in lane `r`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn runs(q: [__m512i; 4]) -> [__m512i; 4] {
    quads(q).map(|q| _mm512_permutexvar_epi32(load512::<0, _>(&TRANSPOSITION), q))
}

/// Eight values, for groups of 32, to the lanes of [`runs`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn groups_to_runs(values: __m512) -> __m512 {
    let lanes = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    _mm512_permutexvar_ps(lanes, values)
}

/// 256 bytes in element order to the order in which each vector has four bytes of each run of sixteen: vector `v` holds
/// elements 4v to 4v + 3 of run `4i + j` in lane `4j + i`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn quads(q: [__m512i; 4]) -> [__m512i; 4] {
    let [a, b] = [
        _mm512_unpacklo_epi32(q[0], q[1]),
        _mm512_unpackhi_epi32(q[0], q[1]),
    ];
    let [c, d] = [
        _mm512_unpacklo_epi32(q[2], q[3]),
        _mm512_unpackhi_epi32(q[2], q[3]),
    ];
    [
        _mm512_unpacklo_epi64(a, c),
        _mm512_unpackhi_epi64(a, c),
        _mm512_unpacklo_epi64(b, d),
        _mm512_unpackhi_epi64(b, d),
    ]
}

/// Lane `r` has run `r`.
pub(super) const RUNS: [i32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// Lane `4i + j` to lane `4j + i`: from runs in order to the lanes of [`quads`], or back.
pub(super) const TRANSPOSITION: [i32; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];

/// Sixteen values, for runs, to the lanes of [`quads`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn transposed(values: __m512) -> __m512 {
    _mm512_permutexvar_ps(load512::<0, _>(&TRANSPOSITION), values)
}

/// Eight values, for groups of 32, to the lanes of [`quads`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn groups_to_quads(values: __m512) -> __m512 {
    let lanes = _mm512_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6, 1, 3, 5, 7, 1, 3, 5, 7);
    _mm512_permutexvar_ps(lanes, values)
}

/// Adds the product of one unit, without minima.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn add_product<const MINIMA: usize>(w: &Weights, x: &Prepared, acc: __m512) -> __m512 {
    let (sums, scales) = unit_sums::<MINIMA>(w, x);
    _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), scales, acc)
}

/// Adds the products of minima and sums.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn add_minima(minima: __m512, x: &Prepared, acc: __m512) -> __m512 {
    _mm512_fmadd_ps(minima, _mm512_castsi512_ps(load512::<0, _>(&x.sums)), acc)
}

/// The integer sums of a unit and their scales. A format has minima or an offset.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn unit_sums<const MINIMA: usize>(w: &Weights, x: &Prepared) -> (__m512i, __m512) {
    let q = [
        load512::<0, _>(&x.q),
        load512::<64, _>(&x.q),
        load512::<128, _>(&x.q),
        load512::<192, _>(&x.q),
    ];
    let start = if MINIMA == Minima::NONE {
        load512::<0, _>(&x.start)
    } else {
        _mm512_setzero_si512()
    };
    let sums = sum_of_products(w.q, q, start);
    let scales = _mm512_mul_ps(w.scales, _mm512_castsi512_ps(load512::<0, _>(&x.scales)));
    (sums, scales)
}

/// Runs a kernel over all rows and columns. `U` is the unit; `load` and `prepare` agree on an `ORDER`, one of [`Order`](super::tail::Order).
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn dot_rows<U: Pod, const MINIMA: usize, const ORDER: bool>(
    call: Call<'_>,
    prepare: impl Fn(&ActivationBlock) -> Activations + Copy,
    load: impl Fn(&U) -> Weights + Copy,
) {
    let Call {
        rows,
        row_bytes,
        x,
        n_columns,
        out,
        prepared: PreparedColumns { units, are_filled },
    } = call;
    let n_rows = rows.len() / row_bytes;
    let column_blocks = x.len() / n_columns;
    assert!(
        rows.len() == n_rows * row_bytes && out.len() == n_rows * n_columns,
        "whole rows, a result each"
    );
    assert!(
        x.len() == n_columns * column_blocks
            && units.len() >= Prepared::room(n_columns, column_blocks)
            && row_bytes <= column_blocks * size_of::<U>(),
        "whole columns"
    );
    if row_bytes < size_of::<U>() {
        // Blocks that are missing count as zero, as do the groups of activations there.
        for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
            let mut unit = U::zeroed();
            bytemuck::bytes_of_mut(&mut unit)[..row_bytes].copy_from_slice(row);
            let rows = bytemuck::bytes_of(&unit);
            for (c, x) in x.chunks_exact(column_blocks).enumerate() {
                let call = Call {
                    rows,
                    row_bytes: rows.len(),
                    x,
                    n_columns: 1,
                    out: &mut out[c * n_rows + r..][..1],
                    prepared: PreparedColumns {
                        units,
                        are_filled: false,
                    },
                };
                dot_rows::<U, MINIMA, ORDER>(call, prepare, load);
            }
        }
        return;
    }
    let n_whole = row_bytes / size_of::<U>();
    let n_rest = (row_bytes % size_of::<U>()) * ActivationBlock::LEN / size_of::<U>();
    let n_quarters = match n_rest.div_ceil(QUARTER_LEN) {
        n @ 0..=2 => n,
        // A whole unit takes no longer.
        _ => 0,
    };
    let n_units = n_whole + usize::from(n_rest > 0 && n_quarters == 0);
    if !are_filled {
        let quarters = &Quarters::of(ORDER).of[4 - n_quarters..];
        let (units, rest) = units.split_at_mut(n_units * n_columns);
        for (c, x) in x.chunks_exact(column_blocks).enumerate() {
            let mut before = _mm512_setzero_ps();
            let mut put = |i: usize, activations: Activations| {
                let sums = Minima::of_pair::<MINIMA>(i, before, activations.sums);
                before = activations.sums;
                Activations {
                    sums,
                    ..activations
                }
                .store(&mut units[i * n_columns + c]);
            };
            for (i, x) in x[..n_whole].iter().enumerate() {
                put(i, prepare(x));
            }
            if n_rest > 0 {
                // The last unit of a row ends with it; it begins within the one before, whose activations count as zero.
                let last = prepare(&at_the_end(&x[n_whole], n_rest));
                if n_quarters == 0 {
                    put(n_whole, last);
                }
                for (k, quarter) in quarters.iter().enumerate() {
                    spread_quarter(&last, quarter, &mut rest[k * n_columns + c]);
                }
            }
        }
    }
    let (units, rest) = (&*units, &units[n_units * n_columns..]);
    let mut c = 0;
    while c < n_columns {
        let part = Part {
            rows,
            row_bytes,
            n_columns,
            n_there: n_columns - c,
            units: &units[c..],
            n_units,
            rest: &rest[c..],
            n_quarters,
        };
        let out = &mut out[c * n_rows..];
        // Columns that are not there take less time than another unpacking.
        c += match n_columns {
            1 => few_columns::<U, MINIMA, ORDER, 4, 1>(&part, out, load),
            2 => few_columns::<U, MINIMA, ORDER, 2, 2>(&part, out, load),
            3 | 4 => few_columns::<U, MINIMA, ORDER, 2, 4>(&part, out, load),
            _ if n_columns - c > 8 && n_units <= WIDE_UNITS => {
                many_columns::<U, MINIMA, ORDER, 16>(&part, out, load)
            }
            _ => many_columns::<U, MINIMA, ORDER, 8>(&part, out, load),
        };
    }
}
