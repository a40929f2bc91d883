//! AMX kernels of interleaved weights in groups of 32, for many activation rows. Few rows, and
//! groups of 16, use AVX-512.
//!
//! A *step* of a tile, four columns of 16 weight rows, is a row of the right operand of `tdpbsud`,
//! and Q8 rows are the left operand. So nothing is rearranged. The codes of a pass are unpacked
//! once. Each group of columns is then one product of up to 16 activation rows by 16 weight rows.
//! Its sums are stored to memory and loaded into vectors, which scale them while the next groups
//! are multiplied. The bits are those of `interleaved_avx512`, since the sum of a group is an exact
//! integer in both.
//!
//! The tiles are configured and released within a call, so that no other code is affected.
//! Instructions are `asm!`, since their intrinsics are not stable.

use super::activation::{ActRows, Q8Row};
use super::interleaved::{Interleaved, Tile, activations, prefetch_next_rows};
use super::interleaved_avx512::{PASS, StoredTile, unpack};
use super::tile_avx512::{SourceAvx512, add_scaled, centre};
use super::{Part, TILE_ROWS, WeightRows, interleaved_avx512};
use std::arch::asm;
use std::arch::x86_64::*;

/// Activation rows of a product.
const ROWS: usize = 16;
/// Activation rows of a smaller product, for the rest. AVX-512 computes what is left after that,
/// and fewer than [`ROWS`] rows.
const FEW_ROWS: usize = 8;
/// Bytes from one row of weights, or of sums, to the next.
const ROW_BYTES: usize = 64;
/// Groups in flight, so that one is multiplied while the sums of another are scaled.
const UNDER_WAY: usize = 2;
/// Bytes of the sums in flight.
const SUMS_BYTES: usize = UNDER_WAY * ROWS * ROW_BYTES;

/// Bytes of scratch: the codes of a pass, and the sums of the groups in flight.
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
    // SAFETY: by the caller, `w` has the weight rows and columns of the part, and `xs` as many
    // activations in each row. `scratch` has the kernel's `gemm_scratch_bytes`, and `out` has `xs.n
    // * TILE_ROWS` values. The caller checked the instruction set. Each pass is within the part,
    // and `i + n` is at most `xs.n`.
    unsafe {
        let n_eights = if xs.n < ROWS { 0 } else { xs.n / FEW_ROWS };
        if n_eights > 0 {
            let sums = scratch.add(scratch.align_offset(64));
            let panel = sums.add(SUMS_BYTES);
            let tile = Tile::new(w, part.r0);
            for (k, n) in part.passes(PASS) {
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
    /// Unsigned codes of the pass, 64 bytes a step.
    panel: *const u8,
    /// Buffer for the sums of the groups in flight.
    sums: *mut u8,
    /// Columns.
    n: usize,
    /// Bytes from one activation row to the next.
    stride: usize,
    /// True if `out` is set instead of added to.
    first: bool,
}

/// Operand of `ldtilecfg` (Intel's manual, volume 1, 18.3).
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Configures the tiles: sums are tiles 0 and 1, activations 2 and 3, weights 4 and 5.
///
/// # Safety
/// AMX is available.
unsafe fn set_shape(n_rows: usize, group: usize) {
    let mut shape =
        TileConfig { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    for (tiles, rows, bytes) in
        [(0..2, n_rows, ROW_BYTES), (2..4, n_rows, group), (4..6, group / 4, ROW_BYTES)]
    {
        for tile in tiles {
            shape.rows[tile] = rows as u8;
            shape.row_bytes[tile] = bytes as u16;
        }
    }
    // SAFETY: the instruction reads the 64 bytes of `shape`; the caller guarantees AMX; all tiles
    // are declared as clobbered.
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

/// Multiplies the columns of a pass with `M` activation rows: stores `(M, 16)` to `out`, or adds to
/// it unless `pass.first`.
///
/// # Safety
/// AVX-512 with VNNI and AMX are available, and the tiles are configured; the activations have the
/// columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn rows<F: Interleaved, const M: usize>(pass: &Pass, x: Q8Row, out: *mut f32) {
    // SAFETY: the caller guarantees AVX-512, AMX, the configuration, and the pass's columns in `M`
    // rows from `x` on; `pass.panel` has the groups.
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
            prefetch_next_rows::<M>(x, pass.stride, group * F::GROUP / 32);
            let products = products_of(group).cast::<__m512i>();
            let scale = StoredTile::<F>::new(pass.tile).scale(group);
            for c in 0..M {
                let row = c * pass.stride;
                let t = _mm512_add_epi32(products.add(c).read(), centre::<StoredTile<F>>(x, row, group));
                add_scaled::<StoredTile<F>>(&mut sums[c], t, scale, x, row, group);
            }
        }
        for c in 0..M {
            _mm512_storeu_ps(out.add(c * TILE_ROWS), sums[c]);
        }
    }
}

/// Multiplies a group; the products go to `out` as 32-bit integers.
///
/// # Safety
/// AMX is available, and the tiles are configured; the pass and the activations have the group;
/// `out` has room for it.
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
    // SAFETY: the caller guarantees AMX, the configuration, the group in `pass` and `x`, and room
    // at `out`.
    unsafe {
        match group % UNDER_WAY {
            0 => by!("tmm0", "tmm2", "tmm4"),
            _ => by!("tmm1", "tmm3", "tmm5"),
        }
    }
}

/// Runs multiply-adds of bytes to measure their peak: `n` times 4 products of 16 by 64 with 64 by
/// 16. Returns the operations of one of the `n`.
///
/// # Safety
/// AMX is available.
pub(super) unsafe fn chains(n: usize) -> usize {
    // SAFETY: the caller guarantees AMX; all tiles used are declared as clobbered.
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
