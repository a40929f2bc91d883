//! Weights in the order in which vector kernels want them, made once when a model is loaded.
//!
//! # The tile
//!
//! 16 weight rows (the last tile is filled up with zeros) are one contiguous piece: the codes of all columns, then the
//! scales, each code and each scale in as many bits as the file gives them. So a kernel reads one stream, its lanes are
//! weight rows, an activation is broadcast, and neither the sum of lanes nor the transposition of a panel is left.
//!
//! Codes come in blocks of 32 columns. A *step* is four neighbouring columns, of which a block has eight; in 64 bytes stand
//! the four codes of row 0, of row 1, and so on. Codes of fewer than 8 bits share these bytes, planes by width:
//!
//! | bits | planes of a block | step `s` is in |
//! |---|---|---|
//! | 8 | 512 bytes | bytes `64 s..` |
//! | 4 | 256 bytes | bytes `64 (s / 2)..`, bits `4 (s % 2)..` |
//! | 2 | 128 bytes | bytes `64 (s / 4)..`, bits `2 (s % 4)..` |
//! | 1 | 64 bytes | bit `s` |
//! | 3, 5, 6 | 2 and 1, 4 and 1, 4 and 2 | both, the second plane's bits on top |
//!
//! The scales of the tile follow by blocks of the file ([`Scales`]), of 32 or 256 columns, each field 16 rows long.
//! All starts are multiples of 64 bytes.
//!
//! # Order of accumulation
//!
//! A lane is a weight row. Groups of 16 or 32 columns follow in order; the sum of a group's products is an exact integer `t`,
//! and with the activations' scale `x` and scaled sum `x_sum` each group adds:
//!
//! ```text
//! offsets:                sum = fma(scale, t * x, sum); sum = fma(offset, x_sum, sum)
//! a zero point z:         sum = fma(scale, fma(t, x, -(z * x_sum)), sum)
//! signed codes:           sum = fma(scale, t * x, sum)
//! ```
//!
//! On AVX2 two groups of 16 add at once, with their integer scales `s` and minima `m`, and `t` of codes without their zero point:
//!
//! ```text
//!                         sum = fma(d, (s0 t0 + s1 t1) * x, sum)
//! minima:                 sum = fma(-dmin, (m0 q0 + m1 q1) * x, sum)        q: the sum of a group's activations, an integer
//! ```
//!
//! It is the same for one activation row and for many.

use super::activation::ActRows;
use super::portable::{Format, f16_at};
use super::{Interleave, MakeTile, TILE_ROWS, WeightRows};
use crate::prefetch::prefetch;
use std::ops::Range;

/// How far ahead of its use a tile is asked for. The processor's own streams end where a page of memory does, which is every
/// other tile.
const AHEAD: usize = 4096;

/// How the scales of a block stand in a tile: fields of 16 rows each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scales {
    /// `scale` f16.
    F16,
    /// `scale` f16, `offset` f16.
    F16Offset,
    /// `2^(e - 128)`: `e` u8.
    Exponent,
    /// `d s`: `d` f16; for each group `s` i8.
    Signed,
    /// `d s`, `-dmin m`: `d` f16, `dmin` f16; for each group `s` u8; for each group `m` u8.
    Minima,
    /// As `Minima`, but for each group one byte, `s` in the low nibble and `m` in the high one.
    Nibbles,
}

impl Scales {
    /// Bytes for the 16 rows of a block with this many groups.
    pub(super) const fn bytes(self, n_groups: usize) -> usize {
        match self {
            Scales::F16 => 2 * TILE_ROWS,
            Scales::F16Offset => 4 * TILE_ROWS,
            Scales::Exponent => TILE_ROWS,
            Scales::Signed => (2 + n_groups) * TILE_ROWS,
            Scales::Minima => (4 + 2 * n_groups) * TILE_ROWS,
            Scales::Nibbles => (4 + n_groups) * TILE_ROWS,
        }
    }
}

/// A type whose weights are interleaved.
pub(super) trait Interleaved: Format + Sized {
    /// Bits of a code as stored.
    const BITS: usize;
    /// The least number that makes every code unsigned when added, as vectors want them; 0 with an offset.
    const ZERO: u8;
    /// The largest unsigned code.
    const MAX_CODE: u8;
    /// Its scales.
    const SCALES: Scales;
    /// What a stored code stands for, where it is a number of a table.
    const VALUES: Option<&'static [i8; 16]> = None;

    /// The codes of a block as stored: of at most [`Self::BITS`] bits; 8-bit codes in two's complement.
    #[inline(always)]
    fn stored(block: &[u8], codes: &mut [i8]) {
        Self::codes(block, codes);
        if !is_signed::<Self>() {
            codes.iter_mut().for_each(|c| *c = c.wrapping_add(Self::ZERO as i8));
        }
    }

    /// Write the scales of a block, as [`Self::SCALES`] says, into row `r` of the fields.
    fn store_scales(block: &[u8], r: usize, fields: &mut [u8]);
}

/// Whether codes exceed 127 when they are made unsigned, so that `vpmaddubsw` needs them signed.
pub(super) const fn is_signed<F: Interleaved>() -> bool {
    F::MAX_CODE > 127
}

/// Groups of a block of the file.
pub(super) const fn n_groups<F: Format>() -> usize {
    const { F::BLOCK.block_len() / F::GROUP }
}

/// Bytes of a tile's codes of 32 columns.
pub(super) const fn code_bytes<F: Interleaved>() -> usize {
    const { 32 * TILE_ROWS * F::BITS / 8 }
}

/// Bytes of a tile's scales of a block of the file.
pub(super) const fn scale_bytes<F: Interleaved>() -> usize {
    const { F::SCALES.bytes(n_groups::<F>()) }
}

/// Bytes of a tile of rows of `n_cols`.
pub(super) fn tile_bytes<F: Interleaved>(n_cols: usize) -> usize {
    n_cols / 32 * code_bytes::<F>()
        + (n_cols / F::BLOCK.block_len() * scale_bytes::<F>()).next_multiple_of(64)
}

/// How a type is interleaved, given the function that makes a tile.
pub(super) const fn tiles<F: Interleaved>(tile: MakeTile) -> Interleave {
    Interleave {
        tile_bytes: tile_bytes::<F>,
        code_bytes: |n_cols| n_cols / 32 * code_bytes::<F>(),
        tile,
        decode: decode::<F>,
    }
}

/// A tile in memory.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// The codes of the first 32 columns.
    pub codes: *const u8,
    /// The scales of the first block.
    pub scales: *const u8,
}

impl Tile {
    /// The tile that begins with row `r0`, a multiple of [`TILE_ROWS`].
    ///
    /// # Safety
    /// The matrix is interleaved, of type `F`, with `n_cols` columns, and has the row.
    #[inline(always)]
    pub(super) unsafe fn new<F: Interleaved>(w: WeightRows, n_cols: usize, r0: usize) -> Tile {
        debug_assert_eq!(r0 % TILE_ROWS, 0);
        // SAFETY: the caller's promise.
        unsafe {
            let codes = w.values.add(r0 * w.row_bytes);
            Tile { codes, scales: codes.add(n_cols / 32 * code_bytes::<F>()) }
        }
    }

    /// From column `k` on, a multiple of 256 or of the block's length.
    ///
    /// # Safety
    /// The tile has the column.
    #[inline(always)]
    pub(super) unsafe fn from<F: Interleaved>(self, k: usize) -> Tile {
        // SAFETY: the caller's promise.
        unsafe {
            Tile {
                codes: self.codes.add(k / 32 * code_bytes::<F>()),
                scales: self.scales.add(k / const { F::BLOCK.block_len() } * scale_bytes::<F>()),
            }
        }
    }

    /// Ask for what lies [`AHEAD`] bytes after block `b` of 32 columns.
    #[inline(always)]
    pub(super) fn ask_ahead<F: Interleaved>(self, b: usize) {
        let codes = const { code_bytes::<F>() };
        let scales = const { scale_bytes::<F>() * 32 / F::BLOCK.block_len() };
        let ask = |start: *const u8, bytes: usize| {
            for line in 0..bytes.div_ceil(64) {
                prefetch(start.wrapping_add(AHEAD + line * 64));
            }
        };
        ask(self.codes.wrapping_add(b * codes), codes);
        ask(self.scales.wrapping_add(b * scales), scales);
    }
}

/// Interleave a tile: `n_rows` (at most [`TILE_ROWS`]) rows of `n_cols` from row `r0` on, as they lie in the file, into
/// [`tile_bytes`] at `out`.
///
/// # Safety
/// The rows are readable and of type `F`; `out` is writable and overlaps nothing.
#[inline(always)]
pub(super) unsafe fn interleave<F: Interleaved>(
    w: WeightRows,
    n_cols: usize,
    r0: usize,
    n_rows: usize,
    out: *mut u8,
) {
    let (len, block_bytes) = const { (F::BLOCK.block_len(), F::BLOCK.block_bytes()) };
    let mut codes = [0i8; 256];
    // SAFETY: a tile's bytes at `out`; blocks within the rows.
    unsafe {
        let out = std::slice::from_raw_parts_mut(out, tile_bytes::<F>(n_cols));
        out.fill(0);
        let (planes, scales) = out.split_at_mut(n_cols / 32 * code_bytes::<F>());
        for r in 0..n_rows {
            let row = w.values.add((r0 + r) * w.row_bytes);
            for b in 0..n_cols / len {
                let block = std::slice::from_raw_parts(row.add(b * block_bytes), block_bytes);
                F::store_scales(block, r, &mut scales[b * scale_bytes::<F>()..][..scale_bytes::<F>()]);
                let codes = &mut codes[..len];
                F::stored(block, codes);
                let planes = &mut planes[b * (len / 32) * code_bytes::<F>()..];
                for (codes, planes) in
                    codes.as_chunks().0.iter().zip(planes.chunks_exact_mut(code_bytes::<F>()))
                {
                    store_planes::<F>(codes, r, planes);
                }
            }
        }
    }
}

/// Add the codes of row `r` to the planes of 32 columns.
#[inline(always)]
fn store_planes<F: Interleaved>(codes: &[i8; 32], r: usize, planes: &mut [u8]) {
    let word = |s: usize| u32::from_le_bytes([0, 1, 2, 3].map(|j| codes[4 * s + j] as u8));
    let mut put = |at: usize, word: u32| planes[64 * at + 4 * r..][..4].copy_from_slice(&word.to_le_bytes());
    let low = |width: usize| 0x0101_0101 * ((1u32 << width) - 1);
    if F::BITS == 8 {
        (0..8).for_each(|s| put(s, word(s)));
        return;
    }
    let mut done = 0;
    let mut at = 0;
    for width in [4, 2, 1] {
        if F::BITS & width == 0 {
            continue;
        }
        // Steps that share a byte.
        let share = 8 / width;
        for register in 0..8 / share {
            let parts =
                (0..share).map(|i| ((word(register * share + i) >> done) & low(width)) << (width * i));
            put(at + register, parts.fold(0, |all, part| all | part));
        }
        at += 8 / share;
        done += width;
    }
}

/// The codes of row `r` in the planes of 32 columns.
#[inline(always)]
fn load_planes<F: Interleaved>(planes: &[u8], r: usize) -> [i8; 32] {
    let mut codes = [0u8; 32];
    let (mut done, mut at) = (0, 0);
    for width in [8, 4, 2, 1] {
        if F::BITS & width == 0 {
            continue;
        }
        let share = 8 / width;
        for step in 0..8 {
            for j in 0..4 {
                let byte = planes[64 * (at + step / share) + 4 * r + j];
                let bits = u32::from(byte) >> (width * (step % share)) & ((1 << width) - 1);
                codes[4 * step + j] |= (bits << done) as u8;
            }
        }
        at += 8 / share;
        done += width;
    }
    codes.map(|c| c as i8)
}

/// Scale and offset of group `g` of row `r`, from the fields of a block.
#[inline(always)]
fn load_scale<F: Interleaved>(fields: &[u8], g: usize, r: usize) -> (f32, f32) {
    let (d, dmin) = (|| f16_at(fields, 2 * r), || f16_at(fields, 32 + 2 * r));
    let byte = |at: usize| fields[at + 16 * g + r];
    match F::SCALES {
        Scales::F16 => (d(), 0.0),
        Scales::F16Offset => (d(), dmin()),
        Scales::Exponent => (super::mxfp4::half_scale(fields[r]), 0.0),
        Scales::Signed => (d() * f32::from(byte(32) as i8), 0.0),
        Scales::Minima => (d() * f32::from(byte(64)), -(dmin() * f32::from(byte(64 + 16 * n_groups::<F>())))),
        Scales::Nibbles => (d() * f32::from(byte(64) & 15), -(dmin() * f32::from(byte(64) >> 4))),
    }
}

/// The values of columns of an interleaved row, as the codec gives them for the file's bytes.
///
/// # Safety
/// As [`WeightRows::decode`]; the matrix is interleaved and of type `F`.
pub(super) unsafe fn decode<F: Interleaved>(w: WeightRows, row: usize, cols: Range<usize>, out: &mut [f32]) {
    let len = const { F::BLOCK.block_len() };
    let (r0, r) = (row / TILE_ROWS * TILE_ROWS, row % TILE_ROWS);
    for (b, out) in (cols.start / len..).zip(out[..cols.len()].chunks_exact_mut(len)) {
        // SAFETY: the planes and the fields of a block that the row has.
        let (planes, fields) = unsafe {
            let planes = w.values.add(r0 * w.row_bytes + b * (len / 32) * code_bytes::<F>());
            let fields = w.scales.add(r0 * w.plane_bytes + b * scale_bytes::<F>());
            (
                std::slice::from_raw_parts(planes, len / 32 * code_bytes::<F>()),
                std::slice::from_raw_parts(fields, scale_bytes::<F>()),
            )
        };
        for (i, out) in out.chunks_exact_mut(32).enumerate() {
            let codes = load_planes::<F>(&planes[i * code_bytes::<F>()..], r);
            for (k, (out, code)) in out.iter_mut().zip(codes).enumerate() {
                let (scale, offset) = load_scale::<F>(fields, (32 * i + k) / F::GROUP, r);
                let code = match F::VALUES {
                    Some(values) => i32::from(values[code as usize & 15]),
                    None if is_signed::<F>() => i32::from(code),
                    None => i32::from(code) - i32::from(F::ZERO),
                };
                *out = scale * code as f32;
                if F::HAS_OFFSET {
                    *out += offset;
                }
            }
        }
    }
}

/// Activation rows from column `k` on.
///
/// # Safety
/// `k` is a multiple of 32 within the rows.
#[inline(always)]
pub(super) unsafe fn activations(xs: ActRows, i: usize, n_cols: usize, k: usize) -> super::activation::Q8Row {
    // SAFETY: the caller's promise.
    unsafe { super::portable::columns_from(xs.row(i).q8(n_cols), k) }
}

/// Ask for block `b` of 32 columns of the `C` activation rows that follow these `C`.
#[inline(always)]
pub(super) fn ask_next_rows<const C: usize>(x: super::activation::Q8Row, stride: usize, b: usize) {
    // A cache line is two blocks.
    if b.is_multiple_of(2) {
        for c in 0..C {
            prefetch(x.q.wrapping_byte_add((C + c) * stride).wrapping_add(b * 32).cast());
        }
    }
}

/// Copy a field of `N` bytes of a block into row `r` of the field at byte `at`.
#[inline(always)]
pub(super) fn store_field<const N: usize>(fields: &mut [u8], at: usize, r: usize, bytes: &[u8]) {
    fields[at + N * r..][..N].copy_from_slice(&bytes[..N]);
}

/// The nibbles of 16 bytes: the low ones are columns 0..16, the high ones 16..32.
#[inline(always)]
pub(super) fn store_nibbles(bytes: &[u8], codes: &mut [i8]) {
    for i in 0..16 {
        codes[i] = (bytes[i] & 15) as i8;
        codes[16 + i] = (bytes[i] >> 4) as i8;
    }
}
