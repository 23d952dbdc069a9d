//! The loop of all unpackers: a format's `load` step, which its dot shares, then scale and minimum a value.

use std::arch::x86_64::*;

use bytemuck::Pod;

use super::dot::Weights;
use super::simd::store_f32;

/// First element of the 16 values in a quarter of a vector of [`Weights::q`].
#[derive(Clone, Copy)]
pub(super) struct Place(pub(super) usize);

/// Places of formats whose vectors are in element order.
pub(super) const IN_ORDER: [[Place; 4]; 4] = {
    let mut places = [[Place(0); 4]; 4];
    let mut i = 0;
    while i < 16 {
        places[i / 4][i % 4] = Place(16 * i);
        i += 1;
    }
    places
};

/// Unpacks units of 256 values, of which `GROUP` share a scale and, with a `SIGN` of 1 or -1, a minimum to be added or
/// subtracted.
/// `OFFSET` is what the bytes of the weights are above their value.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn unpack_units<U: Pod, const GROUP: usize, const OFFSET: i32, const SIGN: i8>(
    blocks: &[u8],
    out: &mut [f32],
    places: &[[Place; 4]; 4],
    load: impl Fn(&U) -> Weights + Copy,
) {
    let n_values = blocks.len() / size_of::<U>() * 256;
    let n_tail = blocks.len() % size_of::<U>() * 256 / size_of::<U>();
    assert!(
        out.len() == n_values + n_tail,
        "a destination of the blocks' size"
    );
    each_unit::<U, GROUP, OFFSET, SIGN>(blocks, places, load, |at, values| {
        let dst = out[at..]
            .first_chunk_mut()
            .expect("blocks are multiples of 16 values");
        store_f32(dst, values);
    });
}

/// The same for any destination: `put` gets the place of each sixteen values and the values, in no order of places.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn each_unit<U: Pod, const GROUP: usize, const OFFSET: i32, const SIGN: i8>(
    blocks: &[u8],
    places: &[[Place; 4]; 4],
    load: impl Fn(&U) -> Weights + Copy,
    mut put: impl FnMut(usize, __m512),
) {
    let n_units = blocks.len() / size_of::<U>();
    let (units, tail) = blocks.split_at(n_units * size_of::<U>());
    for (i, unit) in bytemuck::cast_slice(units).iter().enumerate() {
        unpack_unit::<GROUP, OFFSET, SIGN>(&load(unit), places, |at, values| {
            put(256 * i + at, values);
        });
    }
    if !tail.is_empty() {
        let n_values = tail.len() * 256 / size_of::<U>();
        let mut unit = U::zeroed();
        bytemuck::bytes_of_mut(&mut unit)[..tail.len()].copy_from_slice(tail);
        unpack_unit::<GROUP, OFFSET, SIGN>(&load(&unit), places, |at, values| {
            if at < n_values {
                put(256 * n_units + at, values);
            }
        });
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn unpack_unit<const GROUP: usize, const OFFSET: i32, const SIGN: i8>(
    w: &Weights,
    places: &[[Place; 4]; 4],
    mut put: impl FnMut(usize, __m512),
) {
    for (&q, places) in w.q.iter().zip(places) {
        let quarters = [
            _mm512_castsi512_si128(q),
            _mm512_extracti32x4_epi32::<1>(q),
            _mm512_extracti32x4_epi32::<2>(q),
            _mm512_extracti32x4_epi32::<3>(q),
        ];
        for (quarter, &Place(place)) in quarters.into_iter().zip(places) {
            let q = _mm512_sub_epi32(_mm512_cvtepu8_epi32(quarter), _mm512_set1_epi32(OFFSET));
            let group = (place / GROUP) as i32;
            let scale = _mm512_permutexvar_ps(_mm512_set1_epi32(group), w.scales);
            // Two roundings, as in the scalar code: no fused multiply-add.
            let mut values = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(q));
            if SIGN != 0 {
                let min = match GROUP {
                    16 => _mm512_permutexvar_ps(_mm512_set1_epi32(group), w.minima),
                    _ => _mm512_permutexvar_ps(_mm512_set1_epi32(group + 8), w.scales),
                };
                values = if SIGN > 0 {
                    _mm512_add_ps(values, min)
                } else {
                    _mm512_sub_ps(values, min)
                };
            }
            put(place, values);
        }
    }
}
