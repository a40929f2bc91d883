//! AMX kernels of interleaved weights in groups of 32, for many activation rows; few have AVX-512's, and so have groups of 16.
//!
//! A *step* of a tile, four columns of 16 weight rows, is a row of the right operand as `tdpbsud` wants it, and Q8 rows are the left
//! one: nothing is rearranged. The codes of a pass are unpacked once. Then each group of columns is one product of up
//! to 16 activation rows by 16 weight rows; the sums go through memory to the vectors, which scale them while the next groups are
//! multiplied. Bits are those of `interleaved_avx512`, for the sum of a group is an exact integer in both.
//!
//! The tiles' shape is set, and what they hold given up, within a call: no one else has to know of them. Instructions are
//! `asm!` because their intrinsics are not stable.

use super::activation::{ActRows, Q8Row};
use super::interleaved::{Interleaved, Tile, activations, ask_next_rows};
use super::interleaved_avx512::{PASS, Packed, unpack};
use super::tile_avx512::{Source, add_scaled, centre};
use super::{Part, TILE_ROWS, WeightRows, interleaved_avx512};
use std::arch::asm;
use std::arch::x86_64::*;

/// Activation rows of a product.
const ROWS: usize = 16;
/// Of a smaller one, for what is left over. What is left then, and fewer than [`ROWS`] altogether, is AVX-512's.
const FEW_ROWS: usize = 8;
/// Bytes from one row of weights, or of sums, to the next.
const ROW_BYTES: usize = 64;
/// Groups on their way, so that one is multiplied while the sums of another are scaled.
const UNDER_WAY: usize = 2;
/// Bytes of their sums.
const SUMS_BYTES: usize = UNDER_WAY * ROWS * ROW_BYTES;

/// Bytes of scratch: the codes of a pass, and the sums of the groups on their way.
pub(super) fn scratch_bytes(n_cols: usize) -> usize {
    PASS.min(n_cols) * TILE_ROWS + SUMS_BYTES + 64
}

/// # Safety
/// As [`super::GemmTile`], for interleaved weights; AVX-512 with VNNI and AMX are available.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn gemm_tile<F: Interleaved>(
    w: WeightRows,
    n_cols: usize,
    part: Part,
    xs: ActRows,
    scratch: *mut u8,
    out: *mut f32,
) {
    // SAFETY: by the caller, `w` has the weight rows and columns of the part, `xs` as many
    // activations in each row, `scratch` has the kernel's `gemm_scratch_bytes`, `out` has
    // `xs.n * TILE_ROWS` values, and the instruction set is available; each pass lies within the
    // part, and `i + n` is at most `xs.n`.
    unsafe {
        let n_eights = if xs.n < ROWS { 0 } else { xs.n / FEW_ROWS };
        if n_eights > 0 {
            let sums = scratch.add(scratch.align_offset(64));
            let panel = sums.add(SUMS_BYTES);
            let tile = Tile::new(w, part.r0);
            let end = part.k + part.n;
            for k in (part.k..end).step_by(PASS) {
                let n = PASS.min(end - k);
                let tile = tile.from::<F>(k);
                unpack::<F>(tile, n, panel);
                let pass = Pass { tile, panel, sums, n, stride: xs.stride, first: k == 0 };
                set_shape(ROWS, F::GROUP);
                for i in (0..n_eights / 2 * ROWS).step_by(ROWS) {
                    rows::<F, ROWS>(&pass, activations(xs, i, n_cols, k), out.add(i * TILE_ROWS));
                }
                if n_eights % 2 == 1 {
                    set_shape(FEW_ROWS, F::GROUP);
                    let i = n_eights / 2 * ROWS;
                    rows::<F, FEW_ROWS>(&pass, activations(xs, i, n_cols, k), out.add(i * TILE_ROWS));
                }
            }
            asm!("tilerelease", options(nostack, preserves_flags));
        }
        let done = n_eights * FEW_ROWS;
        if done < xs.n {
            let rest = ActRows { base: xs.base.add(done * xs.stride), n: xs.n - done, ..xs };
            let out = out.add(done * TILE_ROWS);
            interleaved_avx512::gemm_tile::<F>(w, n_cols, part, rest, scratch, out);
        }
    }
}

/// Some columns of a tile.
struct Pass {
    tile: Tile,
    /// Its codes, unsigned: of each step 64 bytes.
    panel: *const u8,
    /// Where the sums of the groups on their way find room.
    sums: *mut u8,
    /// Columns.
    n: usize,
    /// Bytes from one activation row to the next.
    stride: usize,
    /// Whether nothing is added to.
    first: bool,
}

/// What `ldtilecfg` reads (Intel's manual, volume 1, 18.3).
#[repr(C, align(64))]
struct Shape {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Sums are tiles 0 and 1, activations 2 and 3, weights 4 and 5.
///
/// # Safety
/// AMX is available.
unsafe fn set_shape(n_rows: usize, group: usize) {
    let mut shape = Shape { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    for (tiles, rows, bytes) in
        [(0..2, n_rows, ROW_BYTES), (2..4, n_rows, group), (4..6, group / 4, ROW_BYTES)]
    {
        for tile in tiles {
            shape.rows[tile] = rows as u8;
            shape.row_bytes[tile] = bytes as u16;
        }
    }
    // SAFETY: the instruction reads the 64 bytes.
    unsafe {
        asm!(
            "ldtilecfg [{shape}]",
            shape = in(reg) &shape,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, preserves_flags, readonly)
        );
    }
}

/// The columns of a pass times `M` activation rows: to `out`, `(M, 16)`, or added to it unless `pass.first`.
///
/// # Safety
/// AVX-512 with VNNI and AMX are available, and the tiles' shape is set; the activations have the columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn rows<F: Interleaved, const M: usize>(pass: &Pass, x: Q8Row, out: *mut f32) {
    // SAFETY: by the caller, AVX-512 with VNNI and AMX are available, and the tiles' shape is set; the
    // activations have the columns; the panel has the groups.
    unsafe {
        let mut sums = [_mm512_setzero_ps(); M];
        if !pass.first {
            for c in 0..M {
                sums[c] = _mm512_loadu_ps(out.add(c * TILE_ROWS));
            }
        }
        let n_groups = pass.n / F::GROUP;
        let products_of = |group: usize| pass.sums.add(group % UNDER_WAY * ROWS * ROW_BYTES);
        for group in 0..n_groups.min(UNDER_WAY - 1) {
            multiply::<F>(pass, x, group, products_of(group));
        }
        for group in 0..n_groups {
            let next = group + UNDER_WAY - 1;
            if next < n_groups {
                multiply::<F>(pass, x, next, products_of(next));
            }
            ask_next_rows::<M>(x, pass.stride, group * F::GROUP / 32);
            let products = products_of(group).cast::<__m512i>();
            let scale = Packed::<F>::new(pass.tile).scale(group);
            for c in 0..M {
                let row = c * pass.stride;
                let t = _mm512_add_epi32(products.add(c).read(), centre::<Packed<F>>(x, row, group));
                add_scaled::<Packed<F>>(&mut sums[c], t, scale, x, row, group);
            }
        }
        for c in 0..M {
            _mm512_storeu_ps(out.add(c * TILE_ROWS), sums[c]);
        }
    }
}

/// The products of a group, integers of 32 bits, to `out`.
///
/// # Safety
/// AMX is available, and the tiles' shape is set; the pass and the activations have the group.
#[inline(always)]
unsafe fn multiply<F: Interleaved>(pass: &Pass, x: Q8Row, group: usize, out: *mut u8) {
    macro_rules! by {
        ($sums:tt, $x:tt, $w:tt) => {
            asm!(
                concat!("tilezero ", $sums),
                concat!("tileloadd ", $x, ", [{x} + {stride}*1]"),
                concat!("tileloadd ", $w, ", [{w} + {row}*1]"),
                concat!("tdpbsud ", $sums, ", ", $x, ", ", $w),
                concat!("tilestored [{out} + {row}*1], ", $sums),
                x = in(reg) x.q.add(group * F::GROUP),
                stride = in(reg) pass.stride,
                w = in(reg) pass.panel.add(group * F::GROUP / 4 * ROW_BYTES),
                row = in(reg) ROW_BYTES,
                out = in(reg) out,
                out($sums) _, out($x) _, out($w) _,
                options(nostack, preserves_flags)
            )
        };
    }
    // SAFETY: by the caller, AMX is available, and the tiles' shape is set; the pass and the activations have
    // the group; the sums have room.
    unsafe {
        match group % UNDER_WAY {
            0 => by!("tmm0", "tmm2", "tmm4"),
            _ => by!("tmm1", "tmm3", "tmm5"),
        }
    }
}

/// Multiply-adds of bytes, for the peak: `n` times 4 products of 16 by 64 with 64 by 16. Gives the operations of one of the `n`.
///
/// # Safety
/// AMX is available.
pub(super) unsafe fn chains(n: usize) -> usize {
    // SAFETY: by the caller, AMX is available; what the tiles hold is given up.
    unsafe {
        set_shape(ROWS, 64);
        for _ in 0..n {
            asm!(
                "tdpbsud tmm0, tmm4, tmm5",
                "tdpbsud tmm1, tmm4, tmm5",
                "tdpbsud tmm2, tmm4, tmm5",
                "tdpbsud tmm3, tmm4, tmm5",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                options(nostack, nomem, preserves_flags)
            );
        }
        asm!("tilerelease", options(nostack, preserves_flags));
    }
    4 * ROWS * TILE_ROWS * 64 * 2
}
