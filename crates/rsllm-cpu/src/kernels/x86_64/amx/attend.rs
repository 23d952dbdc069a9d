//! What prefill attention does between its products on tiles: keys and values to bf16, and the running softmax.
//!
//! Sixteen (token, head) pairs lie in the lanes of a vector, and positions follow each other, so a lane's maximum and sum need
//! no step across lanes, and its results depend on no other lane.
//!
//! One bf16 holds too little of a key or a weight, so each is two: the upper half of its bits, and the upper half of the bits of
//! what is then missing. Together they hold 16 bits of a value, all of one in half precision.

use std::arch::x86_64::*;
use std::ops::Range;

use crate::kernels::x86_64::avx512::simd::{load_f32, load512, store_f32, store512, transposed};
use crate::kernels::{Lanes, PartsMut, ScoreTiles, TILE, Visible};

/// How far scores, of the base 2, may lie above the running maximum.
const SLACK: f32 = 8.0;

/// Positions of a chunk: two tiles of keys, one depth of values.
const CHUNK: usize = 32;

/// `rows` `[n, head_dim]` to left-hand tiles `[32 positions][2][k tile][TILE]`, high parts and low parts. Values beyond the
/// head are zero; rows beyond `n` keep what was there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
pub(super) fn keys(rows: &[f32], head_dim: usize, tiles: PartsMut<'_>) {
    let n_tiles = head_dim.div_ceil(32);
    let [high, low] = tiles;
    for (position, row) in rows.chunks_exact(head_dim).enumerate() {
        let first = position / 16 * n_tiles * TILE + position % 16 * 32;
        let (whole, rest) = row.as_chunks::<32>();
        for (t, values) in whole.iter().enumerate() {
            let parts = parts(values);
            put(high, first + t * TILE, parts[0]);
            put(low, first + t * TILE, parts[1]);
        }
        if !rest.is_empty() {
            let mut padded = [0.0; 32];
            padded[..rest.len()].copy_from_slice(rest);
            let parts = parts(&padded);
            put(high, first + whole.len() * TILE, parts[0]);
            put(low, first + whole.len() * TILE, parts[1]);
        }
    }
}

/// At most 16 rows of at most 32 values, at least one of each, to right-hand tiles, high and low; the rest is zero.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
pub(super) fn queries(rows: &[&[f32]], tiles: PartsMut<'_>) {
    assert!(rows.len() <= 16, "one tile");
    let mut all = [[_mm512_setzero_si512(); 16]; 2];
    for (i, row) in rows.iter().enumerate() {
        let parts = if let Some(row) = row.first_chunk::<32>() {
            parts(row)
        } else {
            let mut padded = [0.0; 32];
            padded[..row.len()].copy_from_slice(row);
            parts(&padded)
        };
        (all[0][i], all[1][i]) = (parts[0], parts[1]);
    }
    for (tile, part) in tiles.into_iter().zip(&all) {
        put_tile(tile, &transposed(part));
    }
}

/// `rows` `[n, head_dim]`, transposed, to left-hand tiles `[16 dimensions][32 positions][TILE]`, high parts and low parts; what is
/// beyond either is zero.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
pub(super) fn values(rows: &[f32], head_dim: usize, tiles: PartsMut<'_>) {
    let n = rows.len() / head_dim;
    let n_chunks = n.div_ceil(CHUNK);
    let [high, low] = tiles;
    let both = high.chunks_exact_mut(TILE).zip(low.chunks_exact_mut(TILE));
    for (i, (high, low)) in both.enumerate() {
        let (first, chunk) = (i / n_chunks * 16, i % n_chunks);
        let part = |position: usize| {
            if position >= n || first >= head_dim {
                return _mm512_setzero_ps();
            }
            let row = &rows[position * head_dim..][..head_dim][first..];
            if let Some(row) = row.first_chunk::<16>() {
                load_f32(row)
            } else {
                let mut padded = [0.0; 16];
                padded[..row.len()].copy_from_slice(row);
                load_f32(&padded)
            }
        };
        let mut pairs = [_mm512_setzero_si512(); 16];
        let mut low_pairs = pairs;
        for (p, (pair, low)) in pairs.iter_mut().zip(&mut low_pairs).enumerate() {
            let position = chunk * CHUNK + 2 * p;
            [*pair, *low] = interleaved(part(position), part(position + 1));
        }
        put_tile(high, &transposed(&pairs));
        put_tile(low, &transposed(&low_pairs));
    }
}

/// 32 values to bf16, cut off, and what is then missing.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn parts(values: &[f32; 32]) -> [__m512i; 2] {
    let (halves, _) = values.as_chunks::<16>();
    parts_of([load_f32(&halves[0]), load_f32(&halves[1])])
}

/// The same of values in registers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
pub(super) fn parts_of([a, b]: [__m512; 2]) -> [__m512i; 2] {
    /// The upper halves of two vectors' lanes.
    const UPPER: [u16; 32] = {
        let mut order = [0; 32];
        let mut lane = 0;
        while lane < 32 {
            order[lane] = 2 * lane as u16 + 1;
            lane += 1;
        }
        order
    };
    let order = load512::<0, _>(&UPPER);
    let upper =
        |a, b| _mm512_permutex2var_epi16(_mm512_castps_si512(a), order, _mm512_castps_si512(b));
    [upper(a, b), upper(missing(a), missing(b))]
}

/// What the upper halves of the bits leave.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn missing(values: __m512) -> __m512 {
    let upper = _mm512_and_si512(_mm512_castps_si512(values), _mm512_set1_epi32(-1 << 16));
    _mm512_sub_ps(values, _mm512_castsi512_ps(upper))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn put(tiles: &mut [u16], at: usize, values: __m512i) {
    let line: &mut [u16; 32] = tiles[at..].first_chunk_mut().expect("a row of a tile");
    store512(line, values);
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn put_tile(tile: &mut [u16], rows: &[__m512i; 16]) {
    let (lines, _) = tile.as_chunks_mut::<32>();
    assert!(lines.len() == 16, "one tile");
    for (line, &row) in lines.iter_mut().zip(rows) {
        store512(line, row);
    }
}

/// Two vectors to bf16, the lanes of `a` in the lower halves: high parts and low parts.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn interleaved(a: __m512, b: __m512) -> [__m512i; 2] {
    let upper = |a, b| {
        let a = _mm512_srli_epi32::<16>(_mm512_castps_si512(a));
        _mm512_mask_mov_epi16(a, 0xAAAA_AAAA, _mm512_castps_si512(b))
    };
    [upper(a, b), upper(missing(a), missing(b))]
}

/// Two result tiles, 32 rows of 16 tokens, to one right-hand tile in two parts.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
pub(super) fn pairs(rows: &[f32], tiles: PartsMut<'_>) {
    let (rows, _) = rows.as_chunks::<16>();
    let (rows, _) = rows.as_chunks::<2>();
    let [high, low] = tiles.map(|tile| tile.as_chunks_mut::<32>().0);
    assert!(
        rows.len() == 16 && high.len() == 16 && low.len() == 16,
        "two tiles to one"
    );
    for ((rows, high), low) in rows.iter().zip(high).zip(low) {
        let parts = interleaved(load_f32(&rows[0]), load_f32(&rows[1]));
        store512(high, parts[0]);
        store512(low, parts[1]);
    }
}

/// One step of the running softmax of sixteen lanes; see [`crate::kernels::Tiles::softmax`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
pub(super) fn softmax(
    page: &ScoreTiles<'_>,
    visible: Option<&Visible>,
    lanes: &mut Lanes,
    weights: PartsMut<'_>,
) -> bool {
    match visible {
        None => step(page, 0..page.n, |_| 0xFFFF, lanes, weights),
        Some(visible) => {
            let from = load512::<0, _>(&visible.from);
            let to = load512::<0, _>(&visible.to);
            let by_all = _mm512_reduce_max_epi32(from) as usize
                ..page.n.min(_mm512_reduce_min_epi32(to) as usize);
            let sees = |position: usize| {
                let position = _mm512_set1_epi32(position as i32);
                _mm512_mask_cmplt_epi32_mask(_mm512_cmple_epi32_mask(from, position), position, to)
            };
            step(page, by_all, sees, lanes, weights)
        }
    }
}

/// `sees` gives the lanes that may see a position; all of them see those of `by_all`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn step(
    page: &ScoreTiles<'_>,
    by_all: Range<usize>,
    sees: impl Fn(usize) -> __mmask16 + Copy,
    lanes: &mut Lanes,
    weights: PartsMut<'_>,
) -> bool {
    let chunks = page.scores.chunks(page.stride).map(|chunk| {
        let (scores, _) = chunk.as_chunks::<16>();
        &scores[..CHUNK]
    });
    let factor = _mm512_set1_ps(page.factor);
    let seen_by_all = |first: usize| by_all.start <= first && first + CHUNK <= by_all.end;
    // The factor is positive, so the largest product is that of the largest score.
    let lowest = _mm512_set1_ps(f32::NEG_INFINITY);
    let mut largest = [lowest; 2];
    for (c, scores) in chunks.clone().enumerate() {
        let first = c * CHUNK;
        if seen_by_all(first) {
            for (i, score) in scores.iter().enumerate() {
                let best = &mut largest[i % 2];
                *best = _mm512_max_ps(load_f32(score), *best);
            }
        } else {
            for (i, score) in scores.iter().enumerate().take(page.n - first) {
                let best = &mut largest[i % 2];
                *best = _mm512_mask_max_ps(*best, sees(first + i), load_f32(score), *best);
            }
        }
    }
    let largest = _mm512_mul_ps(_mm512_max_ps(largest[0], largest[1]), factor);
    let before = load_f32(&lanes.maxima);
    // A maximum that grew little stays: weights are then no larger than 2^8, and nothing accumulated need be corrected.
    let grown =
        _mm512_cmp_ps_mask::<_CMP_GT_OQ>(largest, _mm512_add_ps(before, _mm512_set1_ps(SLACK)));
    let maximum = _mm512_mask_mov_ps(before, grown, largest);
    let mut sums = [_mm512_setzero_ps(); 2];
    let [high, low] = weights;
    let both = high.chunks_exact_mut(TILE).zip(low.chunks_exact_mut(TILE));
    for ((c, scores), parts) in chunks.enumerate().zip(both) {
        let above = |i: usize| _mm512_fmsub_ps(load_f32(&scores[i]), factor, maximum);
        if seen_by_all(c * CHUNK) {
            add_weights(|i| exp2(above(i)), &mut sums, parts.into());
        } else {
            let weight = |i: usize| {
                let position = c * CHUNK + i;
                if position >= page.n {
                    return _mm512_setzero_ps();
                }
                _mm512_maskz_mov_ps(sees(position), exp2(above(i)))
            };
            add_weights(weight, &mut sums, parts.into());
        }
    }
    let correction = exp2(_mm512_sub_ps(before, maximum));
    let added = _mm512_add_ps(sums[0], sums[1]);
    let sum = _mm512_fmadd_ps(load_f32(&lanes.sums), correction, added);
    store_f32(&mut lanes.maxima, maximum);
    store_f32(&mut lanes.sums, sum);
    store_f32(&mut lanes.corrections, correction);
    _mm512_cmpneq_ps_mask(correction, _mm512_set1_ps(1.0)) != 0
}

/// The weights of a chunk of positions to one right-hand tile in two parts, and to the sums of even and odd positions.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn add_weights(
    weight: impl Fn(usize) -> __m512,
    sums: &mut [__m512; 2],
    [high, low]: PartsMut<'_>,
) {
    let (high, _) = high.as_chunks_mut::<32>();
    let (low, _) = low.as_chunks_mut::<32>();
    for (i, (high, low)) in high.iter_mut().zip(low).enumerate() {
        let (even, odd) = (weight(2 * i), weight(2 * i + 1));
        let parts = interleaved(even, odd);
        store512(high, parts[0]);
        store512(low, parts[1]);
        sums[0] = _mm512_add_ps(sums[0], even);
        sums[1] = _mm512_add_ps(sums[1], odd);
    }
}

/// `2^x` to about 1e-7 for x that is no larger than about 127; exactly 1 at 0, and 0 far below.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
pub(super) fn exp2(x: __m512) -> __m512 {
    // Cephes' exp2f, on what is left of the nearest integer.
    const POLYNOMIAL: [f32; 6] = [
        1.339_887_4e-3,
        9.618_437e-3,
        5.550_332_5e-2,
        2.402_264_8e-1,
        6.931_472e-1,
        1.0,
    ];
    let whole = _mm512_roundscale_ps::<0>(x);
    let rest = _mm512_sub_ps(x, whole);
    let mut power = _mm512_set1_ps(1.535_336_2e-4);
    for coefficient in POLYNOMIAL {
        power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(coefficient));
    }
    _mm512_scalef_ps(power, whole)
}
