//! The product on tiles: 16 rows of 64 bytes each. Weights are the left operand, 16 rows by 32 values, and lie as they
//! were unpacked; activations are the right one, 16 pairs of values by 16 tokens; results are 16 rows by 16 tokens in f32.
//!
//! A loop uses four of the eight tile registers: sums of two halves of rows and one group of tokens, a tile of each side. The
//! processor renames them, and where it has few to spare (another thread of the core takes its part), a product or a load
//! waits until one is free: with all eight in use they run one after the other, and four cost half of that, in spite of more
//! loads. Registers that have not been written since the configuration take no part.
//!
//! The compiler knows nothing of tile registers on stable Rust, so the instructions go through `asm!`. It never uses these
//! registers itself, and nothing here keeps a value in one from one function to the next but the configuration and, from
//! [`clear`] to [`finish`], the sums.

use std::arch::asm;
use std::arch::x86_64::*;

use super::ahead::Asking;
use crate::kernels::x86_64::avx512::simd::{load_f32, store_f32, store512, transposed};
use crate::kernels::{Ahead, Parts, TILE, TILE_F32};

/// Palette 1: eight tiles of 16 rows of 64 bytes.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static CONFIG: TileConfig = TileConfig {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// Makes this thread's tiles usable.
pub(super) unsafe fn configure() {
    // SAFETY: the caller vouches for AMX; the configuration is 64 bytes of the documented form.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, readonly)) };
}

/// Gives them back, so that the system need not save them.
pub(super) unsafe fn release() {
    // SAFETY: the caller vouches for AMX.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// `c` `[group][half][16 rows][16 tokens]` is, or with `accumulate` is increased by, the product of `a`
/// `[half][k tile][16 rows][32]` and `b` `[group][k tile][16 pairs][16 tokens][2]`, k tiles in order.
/// `ahead`, which comes from beyond L2, is asked for meanwhile.
pub(super) unsafe fn multiply(
    a: &[u16],
    b: &[u16],
    c: &mut [f32],
    accumulate: bool,
    ahead: &Ahead<'_>,
) {
    let n_groups = c.len() / (2 * TILE_F32);
    let half = a.len() / 2;
    assert!(
        c.len() == n_groups * 2 * TILE_F32
            && half.is_multiple_of(TILE)
            && b.len() == n_groups * half,
        "whole tiles of one depth"
    );
    let n_tiles = half / TILE;
    let mut asking = Asking::new(ahead, n_groups * n_tiles);
    let (a, b, c) = (a.as_ptr(), b.as_ptr(), c.as_mut_ptr());
    // SAFETY: by the assertion `a` holds two halves of `n_tiles` tiles, `b` as many for each group, `c` two result tiles for each;
    // the loops stay below those numbers. The caller vouches for AMX and for the configuration.
    unsafe {
        for group in 0..n_groups {
            let c = c.add(group * 2 * TILE_F32);
            begin_one(c, accumulate);
            for t in 0..n_tiles {
                asking.step();
                let at = t * TILE;
                step_passing(a.add(at), a.add(half + at), b.add(group * half + at));
            }
            store_one(c);
        }
    }
}

/// Forgets the sums of [`step`].
pub(super) unsafe fn clear() {
    // SAFETY: touches registers alone.
    unsafe { zero_two() };
}

/// Adds the products of two tiles of rows with one or two tiles of tokens to sums that stay in registers.
pub(super) unsafe fn step(a: [&[u16]; 2], b: &[&[u16]]) {
    assert!(
        a.iter().chain(b).all(|tile| tile.len() >= TILE),
        "whole tiles"
    );
    // SAFETY: whole tiles, and the caller vouches for AMX and for the configuration.
    unsafe {
        match b {
            [b0] => step_staying(a[0].as_ptr(), a[1].as_ptr(), b0.as_ptr()),
            [b0, b1] => step_two(a[0].as_ptr(), a[1].as_ptr(), b0.as_ptr(), b1.as_ptr()),
            _ => unreachable!("one or two tiles of tokens"),
        }
    }
}

/// The sums of [`step`] to `c` `[group][2][TILE_F32]`, as many groups as there were tiles of tokens.
pub(super) unsafe fn finish(c: &mut [f32]) {
    // SAFETY: the pointers are good for as many values as the lengths say; the caller vouches for AMX and for the configuration.
    unsafe {
        match c.len() / (2 * TILE_F32) {
            1 => store_one(c.as_mut_ptr()),
            2 => {
                store_one(c.as_mut_ptr());
                store_other(c.as_mut_ptr().add(2 * TILE_F32));
            }
            _ => unreachable!("one or two groups"),
        }
    }
}

/// As [`multiply`], of operands in two parts each, `a` and `b` being `[high, low]`: all products but that of the low parts. An
/// empty low part of `a` is zero. Halves of `a` may have more k tiles than `b` has: those do not count.
pub(super) unsafe fn multiply_parts(
    a: Parts<'_>,
    b: Parts<'_>,
    c: &mut [f32],
    accumulate: bool,
    ahead: &Ahead<'_>,
) {
    let n_groups = c.len() / (2 * TILE_F32);
    let half = a[0].len() / 2;
    let depth = b[0].len() / n_groups.max(1);
    assert!(
        c.len() == n_groups * 2 * TILE_F32
            && depth.is_multiple_of(TILE)
            && depth <= half
            && b[0].len() == n_groups * depth
            && b[1].len() == b[0].len()
            && (a[1].is_empty() || a[1].len() == a[0].len()),
        "whole tiles of one depth"
    );
    let n_tiles = depth / TILE;
    let has_low = !a[1].is_empty();
    let mut asking = Asking::new(ahead, n_groups * n_tiles);
    let (a, low, c) = (a[0].as_ptr(), a[1].as_ptr(), c.as_mut_ptr());
    let (b, b_low) = (b[0].as_ptr(), b[1].as_ptr());
    // SAFETY: as in `multiply`; the low parts are as long as the high ones, or that of `a` is empty and not looked at.
    unsafe {
        if n_groups == 2 {
            // Neither side stays in L1 from one group to the next here, so each tile of rows is loaded for both.
            if accumulate {
                load_one(c);
                load_other(c.add(2 * TILE_F32));
            } else {
                zero_two();
            }
            for t in 0..n_tiles {
                let (at, other) = (t * TILE, depth + t * TILE);
                let groups = [[b.add(at), b.add(other)], [b_low.add(at), b_low.add(other)]];
                two_groups_in_parts([a.add(at), a.add(half + at)], groups);
                if has_low {
                    two_groups_low(low.add(at), low.add(half + at));
                }
            }
            store_one(c);
            store_other(c.add(2 * TILE_F32));
            return;
        }
        for group in 0..n_groups {
            let c = c.add(group * 2 * TILE_F32);
            begin_one(c, accumulate);
            for t in 0..n_tiles {
                asking.step();
                let (at, of_group) = (t * TILE, group * depth + t * TILE);
                let rows = [a.add(at), a.add(half + at)];
                step_parts(rows, [b.add(of_group), b_low.add(of_group)]);
                if has_low {
                    step_low(low.add(at), low.add(half + at));
                }
            }
            store_one(c);
        }
    }
}

/// Two halves of rows by one group of tokens, which `$load` loads.
macro_rules! two_by_one {
    ($load:literal, $a0:expr, $a1:expr, $b:expr) => {
        asm!(
            concat!($load, " tmm3, [{b} + {row}*1]"),
            "tileloadd tmm2, [{a0} + {row}*1]",
            "tdpbf16ps tmm0, tmm2, tmm3",
            "tileloadd tmm2, [{a1} + {row}*1]",
            "tdpbf16ps tmm1, tmm2, tmm3",
            a0 = in(reg) $a0, a1 = in(reg) $a1, b = in(reg) $b, row = in(reg) 64usize,
            options(nostack, readonly),
        )
    };
}

#[inline(always)]
unsafe fn step_staying(a0: *const u16, a1: *const u16, b: *const u16) {
    // SAFETY: the caller's pointers are good for 1,024 bytes each.
    unsafe { two_by_one!("tileloadd", a0, a1, b) }
}

/// As [`step_staying`], with a hint that the groups of tokens go by while the rows stay: those then keep their place in L1.
#[inline(always)]
unsafe fn step_passing(a0: *const u16, a1: *const u16, b: *const u16) {
    // SAFETY: the caller's pointers are good for 1,024 bytes each.
    unsafe { two_by_one!("tileloaddt1", a0, a1, b) }
}

/// Two halves of rows by both parts of a group of tokens, the low one first.
#[inline(always)]
unsafe fn step_parts([a0, a1]: [*const u16; 2], [b, b_low]: [*const u16; 2]) {
    // SAFETY: the caller's pointers are good for 1,024 bytes each.
    unsafe {
        asm!(
            "tileloaddt1 tmm3, [{b_low} + {row}*1]",
            "tileloadd tmm2, [{a0} + {row}*1]",
            "tdpbf16ps tmm0, tmm2, tmm3",
            "tileloadd tmm2, [{a1} + {row}*1]",
            "tdpbf16ps tmm1, tmm2, tmm3",
            "tileloaddt1 tmm3, [{b} + {row}*1]",
            "tdpbf16ps tmm1, tmm2, tmm3",
            "tileloadd tmm2, [{a0} + {row}*1]",
            "tdpbf16ps tmm0, tmm2, tmm3",
            a0 = in(reg) a0, a1 = in(reg) a1, b = in(reg) b, b_low = in(reg) b_low, row = in(reg) 64usize,
            options(nostack, readonly),
        );
    }
}

/// Two other halves of rows by the group of the last step.
#[inline(always)]
unsafe fn step_low(a0: *const u16, a1: *const u16) {
    // SAFETY: the caller's pointers are good for 1,024 bytes each.
    unsafe {
        asm!(
            "tileloadd tmm2, [{a0} + {row}*1]",
            "tdpbf16ps tmm0, tmm2, tmm3",
            "tileloadd tmm2, [{a1} + {row}*1]",
            "tdpbf16ps tmm1, tmm2, tmm3",
            a0 = in(reg) a0, a1 = in(reg) a1, row = in(reg) 64usize,
            options(nostack, readonly),
        );
    }
}

/// Two halves of rows by two groups of tokens.
#[inline(always)]
unsafe fn step_two(a0: *const u16, a1: *const u16, b0: *const u16, b1: *const u16) {
    // SAFETY: the caller's pointers are good for 1,024 bytes each.
    unsafe {
        asm!(
            "tileloadd tmm5, [{b0} + {row}*1]",
            "tileloadd tmm4, [{a0} + {row}*1]",
            "tdpbf16ps tmm0, tmm4, tmm5",
            "tileloadd tmm6, [{b1} + {row}*1]",
            "tdpbf16ps tmm2, tmm4, tmm6",
            "tileloadd tmm4, [{a1} + {row}*1]",
            "tdpbf16ps tmm1, tmm4, tmm5",
            "tdpbf16ps tmm3, tmm4, tmm6",
            a0 = in(reg) a0, a1 = in(reg) a1, b0 = in(reg) b0, b1 = in(reg) b1, row = in(reg) 64usize,
            options(nostack, readonly),
        );
    }
}

/// Two halves of rows by both parts `[high, low]` of two groups of tokens, the low ones first.
#[inline(always)]
unsafe fn two_groups_in_parts([a0, a1]: [*const u16; 2], [b, b_low]: [[*const u16; 2]; 2]) {
    // SAFETY: the caller's pointers are good for 1,024 bytes each.
    unsafe {
        step_two(a0, a1, b_low[0], b_low[1]);
        asm!(
            "tileloadd tmm5, [{b0} + {row}*1]",
            "tdpbf16ps tmm1, tmm4, tmm5",
            "tileloadd tmm6, [{b1} + {row}*1]",
            "tdpbf16ps tmm3, tmm4, tmm6",
            "tileloadd tmm4, [{a0} + {row}*1]",
            "tdpbf16ps tmm0, tmm4, tmm5",
            "tdpbf16ps tmm2, tmm4, tmm6",
            a0 = in(reg) a0, b0 = in(reg) b[0], b1 = in(reg) b[1], row = in(reg) 64usize,
            options(nostack, readonly),
        );
    }
}

/// Two other halves of rows by the two groups of the last step.
#[inline(always)]
unsafe fn two_groups_low(a0: *const u16, a1: *const u16) {
    // SAFETY: the caller's pointers are good for 1,024 bytes each.
    unsafe {
        asm!(
            "tileloadd tmm4, [{a0} + {row}*1]",
            "tdpbf16ps tmm0, tmm4, tmm5",
            "tdpbf16ps tmm2, tmm4, tmm6",
            "tileloadd tmm4, [{a1} + {row}*1]",
            "tdpbf16ps tmm1, tmm4, tmm5",
            "tdpbf16ps tmm3, tmm4, tmm6",
            a0 = in(reg) a0, a1 = in(reg) a1, row = in(reg) 64usize,
            options(nostack, readonly),
        );
    }
}

#[inline(always)]
unsafe fn zero_two() {
    // SAFETY: touches registers alone.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            options(nostack, nomem)
        );
    }
}

/// The sums of one group: none yet, or those that lie at `c`.
#[inline(always)]
unsafe fn begin_one(c: *const f32, accumulate: bool) {
    // SAFETY: the caller's pointer is good for 2,048 bytes.
    unsafe {
        if accumulate {
            load_one(c);
        } else {
            asm!("tilezero tmm0", "tilezero tmm1", options(nostack, nomem));
        }
    }
}

#[inline(always)]
unsafe fn load_one(c: *const f32) {
    // SAFETY: the caller's pointer is good for 2,048 bytes.
    unsafe {
        asm!(
            "tileloadd tmm0, [{c} + {row}*1]",
            "tileloadd tmm1, [{c} + {row}*1 + 1024]",
            c = in(reg) c, row = in(reg) 64usize,
            options(nostack, readonly),
        );
    }
}

/// As [`load_one`], of the second of two groups.
#[inline(always)]
unsafe fn load_other(c: *const f32) {
    // SAFETY: as above.
    unsafe {
        asm!(
            "tileloadd tmm2, [{c} + {row}*1]",
            "tileloadd tmm3, [{c} + {row}*1 + 1024]",
            c = in(reg) c, row = in(reg) 64usize,
            options(nostack, readonly),
        );
    }
}

#[inline(always)]
unsafe fn store_one(c: *mut f32) {
    // SAFETY: as above.
    unsafe {
        asm!(
            "tilestored [{c} + {row}*1], tmm0",
            "tilestored [{c} + {row}*1 + 1024], tmm1",
            c = in(reg) c, row = in(reg) 64usize,
            options(nostack),
        );
    }
}

/// As [`store_one`], of the second of two groups.
#[inline(always)]
unsafe fn store_other(c: *mut f32) {
    // SAFETY: as above.
    unsafe {
        asm!(
            "tilestored [{c} + {row}*1], tmm2",
            "tilestored [{c} + {row}*1 + 1024], tmm3",
            c = in(reg) c, row = in(reg) 64usize,
            options(nostack),
        );
    }
}

/// One tile of activations: `rows` are at most 16 tokens' values from the tile's first on, at least one and at most 32 of which
/// count; the rest of the tile is zero.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
pub(super) fn pack(rows: &[&[f32]], tile: &mut [u16]) {
    let (pairs, _) = tile.as_chunks_mut::<32>();
    assert!(pairs.len() == 16 && rows.len() <= 16, "one tile");
    let mut tokens = [_mm512_setzero_si512(); 16];
    for (token, row) in tokens.iter_mut().zip(rows) {
        *token = if let Some(row) = row.first_chunk::<32>() {
            thirty_two(row)
        } else {
            let mut padded = [0.0; 32];
            padded[..row.len()].copy_from_slice(row);
            thirty_two(&padded)
        };
    }
    for (pair, values) in pairs.iter_mut().zip(transposed(&tokens)) {
        store512(pair, values);
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn thirty_two(row: &[f32; 32]) -> __m512i {
    let (halves, _) = row.as_chunks::<16>();
    let values = _mm512_cvtne2ps_pbh(load_f32(&halves[1]), load_f32(&halves[0]));
    // SAFETY: both are 512 bits without invalid values.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(values) }
}

/// The weight rows of a result tile `[16 rows][16 tokens]`, plus `bias` where given, to the rows of some tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
pub(super) fn scatter(tile: &[f32], bias: Option<&[f32]>, dst: &mut [&mut [f32]]) {
    scatter_as::<false>(tile, bias, dst);
}

/// The same, added to what is there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
pub(super) fn scatter_add(tile: &[f32], bias: Option<&[f32]>, dst: &mut [&mut [f32]]) {
    scatter_as::<true>(tile, bias, dst);
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")]
fn scatter_as<const ADD: bool>(tile: &[f32], bias: Option<&[f32]>, dst: &mut [&mut [f32]]) {
    let (rows, _) = tile.as_chunks::<16>();
    assert!(rows.len() == 16, "one tile");
    let mut values = [_mm512_setzero_si512(); 16];
    for (value, row) in values.iter_mut().zip(rows) {
        *value = _mm512_castps_si512(load_f32(row));
    }
    let mut padded = [0.0; 16];
    if let Some(bias) = bias {
        padded[..bias.len()].copy_from_slice(bias);
    }
    let bias = bias.map(|_| load_f32(&padded));
    for (dst, value) in dst.iter_mut().zip(transposed(&values)) {
        let mut value = _mm512_castsi512_ps(value);
        if let Some(bias) = bias {
            value = _mm512_add_ps(value, bias);
        }
        if let Some(dst) = dst.first_chunk_mut::<16>() {
            let sum = if ADD {
                _mm512_add_ps(load_f32(dst), value)
            } else {
                value
            };
            store_f32(dst, sum);
        } else {
            store_f32(&mut padded, value);
            for (dst, value) in dst.iter_mut().zip(padded) {
                *dst = if ADD { *dst + value } else { value };
            }
        }
    }
}
