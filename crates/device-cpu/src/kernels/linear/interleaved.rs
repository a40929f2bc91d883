//! Weights in the order that vector kernels need, made once when a model is loaded.
//!
//! # The tile
//!
//! A tile is 16 weight rows (the last tile is padded with zeros) in one contiguous piece. It
//! consists of *strips*: the scales of some columns, then their codes, with as many bits as in the
//! file. A kernel's lanes are thus weight rows, and an activation is broadcast. No lanes are
//! summed, no panel is transposed, and memory is read from start to end as one stream. The hardware
//! prefetcher follows this stream faster than software prefetches can. (With the scales of a whole
//! tile after all its codes both streams are lost; `NOTES.md`.)
//!
//! A strip is one block of the file of 256 columns, or several blocks of 32 whose scales fill 64
//! bytes. Its scales ([`ScaleFields`]) are fields of 16 rows, padded to a multiple of 64 bytes. A
//! last strip may have fewer codes.
//!
//! Codes are in blocks of 32 columns. A *step* is four neighbouring columns, so a block has eight
//! steps. A step's 64 bytes contain the four codes of row 0, of row 1, and so on. Codes of fewer
//! than 8 bits share these bytes, in planes by width:
//!
//! | bits | planes of a block | step `s` is in |
//! |---|---|---|
//! | 8 | 512 bytes | bytes `64 s..` |
//! | 4 | 256 bytes | bytes `64 (s / 2)..`, bits `4 (s % 2)..` |
//! | 2 | 128 bytes | bytes `64 (s / 4)..`, bits `2 (s % 4)..` |
//! | 1 | 64 bytes | bit `s` |
//! | 3, 5 | 1, then 2 or 4 | both, the first plane's bit on top |
//! | 6 | 4, then 2 | both, the second plane's bits on top |
//!
//! For `smmla` (`ArmEights`) a step is eight columns of eight rows instead. Steps 0 to 3 are rows 0
//! to 7, steps 4 to 7 are rows 8 to 15. A step's 64 bytes contain the eight codes of its first row,
//! of its second row, and so on. Planes are the same. On Arm, codes without an offset are stored as
//! signed numbers of their few bits. A shift to the top of a byte then yields signed bytes at no
//! cost (`interleaved_neon`).
//!
//! # Order of accumulation
//!
//! A lane is a weight row. Groups of 16 or 32 columns follow in order. The sum of a group's
//! products is an exact integer `t`. With the activations' scale `x` and scaled sum `x_sum` each
//! group adds:
//!
//! ```text
//! offsets:                sum = fma(scale, t * x, sum); sum = fma(offset, x_sum, sum)
//! a zero point z:         sum = fma(scale, fma(t, x, -(z * x_sum)), sum)
//! signed codes:           sum = fma(scale, t * x, sum)
//! ```
//!
//! On AVX2 two groups of 16 are added at once, with their integer scales `s` and minima `m`, and
//! `t` of codes without their zero point:
//!
//! ```text
//!                         sum = fma(d, (s0 t0 + s1 t1) * x, sum)
//! minima:                 sum = fma(-dmin, (m0 q0 + m1 q1) * x, sum) q: integer sum of activations
//! ```
//!
//! With AVX-512 two groups of 16 are added at once too, with scales in f32 and zero points in `t`;
//! offsets follow one by one:
//!
//! ```text
//!                         sum = fma(fma(scale1, t1, scale0 * t0), x, sum)
//! ```
//!
//! On Arm all codes without an offset are signed. With AVX-512 their zero point is part of the
//! exact integer, so that they accumulate like signed codes. The order is the same for one
//! activation row and for many.

use super::activation::ActRows;
use super::order::Order;
use super::portable::{Format, f16_at};
use super::{TILE_ROWS, WeightRows};
use crate::prefetch::prefetch;
use std::ops::Range;
use weights::codec;

/// Bit by which a code of [`Interleaved::stored`] differs from the code in a tile: the top bit, or
/// none.
pub(super) const fn flip<F: Interleaved, O: Order>() -> i8 {
    if O::SIGNED && is_centered::<F>() {
        assert!(F::ZERO == 1 << (F::BITS - 1));
        F::ZERO as i8
    } else {
        0
    }
}

/// True if codes are integers of fewer than 8 bits around zero.
pub(super) const fn is_centered<F: Interleaved>() -> bool {
    F::BITS < 8 && !F::HAS_OFFSET && F::VALUES.is_none()
}

/// Scales of a block in a tile: fields of 16 rows each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScaleFields {
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
    /// Like `Minima`, with one byte for each group: `s` in the low nibble, `m` in the high nibble.
    Nibbles,
}

impl ScaleFields {
    /// Bytes for the 16 rows of a block with this many groups.
    pub(super) const fn bytes(self, n_groups: usize) -> usize {
        match self {
            ScaleFields::F16 => 2 * TILE_ROWS,
            ScaleFields::F16Offset => 4 * TILE_ROWS,
            ScaleFields::Exponent => TILE_ROWS,
            ScaleFields::Signed => (2 + n_groups) * TILE_ROWS,
            ScaleFields::Minima => (4 + 2 * n_groups) * TILE_ROWS,
            ScaleFields::Nibbles => (4 + n_groups) * TILE_ROWS,
        }
    }
}

/// A type whose weights are interleaved.
pub(super) trait Interleaved: Format + Sized {
    /// Bits of a stored code.
    const BITS: usize;
    /// Fields of its scales.
    const SCALES: ScaleFields;
    /// Table of the values of stored codes, if the type has one.
    const VALUES: Option<&'static [i8; 16]> = None;

    /// Stored codes of a block, of at most [`Self::BITS`] bits; 8-bit codes are in two's
    /// complement.
    #[inline(always)]
    fn stored(block: &[u8], codes: &mut [i8]) {
        Self::codes(block, codes);
        if !is_signed::<Self>() {
            codes.iter_mut().for_each(|c| *c = c.wrapping_add(Self::ZERO as i8));
        }
    }

    /// Stores the scales of a block in row `r` of the fields of [`Self::SCALES`].
    fn store_scales(block: &[u8], r: usize, fields: &mut [u8]);
}

/// True if unsigned codes would exceed 127, so that `vpmaddubsw` needs them signed.
pub(super) const fn is_signed<F: Format>() -> bool {
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

/// Bytes of a cache line, to which strips and their codes are aligned.
const LINE: usize = 64;

/// Bytes of a tile's scales for a block of the file.
pub(super) const fn scale_bytes<F: Interleaved>() -> usize {
    const { F::SCALES.bytes(n_groups::<F>()) }
}

/// Blocks of the file in a strip: one, or several whose scales fill a cache line.
pub(super) const fn strip_blocks<F: Interleaved>() -> usize {
    if scale_bytes::<F>() < LINE { LINE / scale_bytes::<F>() } else { 1 }
}

/// Columns of a strip.
pub(super) const fn strip_cols<F: Interleaved>() -> usize {
    strip_blocks::<F>() * const { F::BLOCK.block_len() }
}

/// Bytes of the scales at the start of a strip, in whole cache lines.
pub(super) const fn strip_scale_bytes<F: Interleaved>() -> usize {
    (strip_blocks::<F>() * scale_bytes::<F>()).next_multiple_of(LINE)
}

/// Bytes of a strip.
pub(super) const fn strip_bytes<F: Interleaved>() -> usize {
    strip_scale_bytes::<F>() + strip_cols::<F>() / 32 * code_bytes::<F>()
}

/// Bytes of a tile of rows of `n_cols`. A partial last strip has fewer codes.
pub(super) fn tile_bytes<F: Interleaved>(n_cols: usize) -> usize {
    n_cols.div_ceil(const { strip_cols::<F>() }) * const { strip_scale_bytes::<F>() }
        + n_cols / 32 * code_bytes::<F>()
}

/// Address of a tile, or of one of its strips.
#[derive(Clone, Copy)]
pub(super) struct Tile(*const u8);

impl Tile {
    /// The tile that begins with row `r0`, a multiple of [`TILE_ROWS`].
    ///
    /// # Safety
    /// The matrix is interleaved and has row `r0`.
    #[inline(always)]
    pub(super) unsafe fn new(w: WeightRows, r0: usize) -> Tile {
        debug_assert_eq!(r0 % TILE_ROWS, 0);
        // SAFETY: the caller guarantees that the matrix is interleaved and has row `r0`; a tile has
        // `TILE_ROWS * row_bytes` bytes.
        Tile(unsafe { w.values.add(r0 * w.row_bytes) })
    }

    /// The tile from column `k` on, a multiple of 256.
    #[inline(always)]
    pub(super) fn from<F: Interleaved>(self, k: usize) -> Tile {
        debug_assert_eq!(k % const { strip_cols::<F>() }, 0);
        Tile(self.0.wrapping_add(k / const { strip_cols::<F>() } * const { strip_bytes::<F>() }))
    }

    /// Address of the codes of the `b`th 32 columns.
    #[inline(always)]
    pub(super) fn codes<F: Interleaved>(self, b: usize) -> *const u8 {
        let of_strip = const { strip_cols::<F>() / 32 };
        let at = const { strip_scale_bytes::<F>() } + b % of_strip * code_bytes::<F>();
        self.0.wrapping_add(b / of_strip * const { strip_bytes::<F>() } + at)
    }

    /// Address of the scales of a block of the file.
    #[inline(always)]
    pub(super) fn scales<F: Interleaved>(self, block: usize) -> *const u8 {
        let of_strip = const { strip_blocks::<F>() };
        let at = block % of_strip * scale_bytes::<F>();
        self.0.wrapping_add(block / of_strip * const { strip_bytes::<F>() } + at)
    }
}

/// Planes of codes of `bits` bits, in order: width, and first bit of the code.
const fn planes(bits: usize) -> &'static [(usize, usize)] {
    match bits {
        1 => &[(1, 0)],
        2 => &[(2, 0)],
        3 => &[(1, 2), (2, 0)],
        4 => &[(4, 0)],
        5 => &[(1, 4), (4, 0)],
        6 => &[(4, 0), (2, 4)],
        _ => &[(8, 0)],
    }
}

/// Codes of row `r` in the planes of 32 columns.
#[inline(always)]
fn load_planes<F: Interleaved, O: Order>(bytes: &[u8], r: usize) -> [i8; 32] {
    let (first, at_byte) = O::place(r);
    let mut codes = [0u8; 32];
    let mut at = 0;
    for &(width, from) in const { planes(F::BITS) } {
        let share = 8 / width;
        for (k, code) in codes.iter_mut().enumerate() {
            let step = first + k / O::COLS;
            let byte = bytes[64 * (at + step / share) + at_byte + k % O::COLS];
            let bits = u32::from(byte) >> (width * (step % share)) & ((1 << width) - 1);
            *code |= (bits << from) as u8;
        }
        at += 8 / share;
    }
    codes.map(|c| c as i8 ^ const { flip::<F, O>() })
}

/// Scale and offset of group `g` of row `r`, from the fields of a block.
#[inline(always)]
fn load_scale<F: Interleaved>(fields: &[u8], g: usize, r: usize) -> (f32, f32) {
    let (d, dmin) = (|| f16_at(fields, 2 * r), || f16_at(fields, 32 + 2 * r));
    let byte = |at: usize| fields[at + 16 * g + r];
    match F::SCALES {
        ScaleFields::F16 => (d(), 0.0),
        ScaleFields::F16Offset => (d(), dmin()),
        ScaleFields::Exponent => (codec::e8m0_half(fields[r]), 0.0),
        ScaleFields::Signed => (d() * f32::from(byte(32) as i8), 0.0),
        ScaleFields::Minima => {
            (d() * f32::from(byte(64)), -(dmin() * f32::from(byte(64 + 16 * n_groups::<F>()))))
        }
        ScaleFields::Nibbles => (d() * f32::from(byte(64) & 15), -(dmin() * f32::from(byte(64) >> 4))),
    }
}

/// Decodes columns of an interleaved row, with the same values as the codec.
///
/// # Safety
/// As [`WeightRows::decode`]; the matrix is interleaved and of type `F`.
pub(super) unsafe fn decode<F: Interleaved, O: Order>(
    w: WeightRows,
    row: usize,
    cols: Range<usize>,
    out: &mut [f32],
) {
    let len = const { F::BLOCK.block_len() };
    let r = row % TILE_ROWS;
    // SAFETY: the caller guarantees that the matrix is interleaved, of type `F`, and has `row`; the
    // tile begins at row `row - r`.
    let tile = unsafe { Tile::new(w, row - r) };
    for (block, out) in (cols.start / len..).zip(out[..cols.len()].chunks_exact_mut(len)) {
        // SAFETY: the caller guarantees the columns, so the tile has the fields of `block`.
        let fields = unsafe { std::slice::from_raw_parts(tile.scales::<F>(block), scale_bytes::<F>()) };
        for (i, out) in out.chunks_exact_mut(32).enumerate() {
            let planes = tile.codes::<F>(block * len / 32 + i);
            // SAFETY: the caller guarantees the columns, so the tile has the planes of these 32
            // columns.
            let planes = unsafe { std::slice::from_raw_parts(planes, code_bytes::<F>()) };
            let codes = load_planes::<F, O>(planes, r);
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

/// Calls `products` with the first row of each tile of the rows `r0..r1`, and with the address for
/// its products. Kernels write whole tiles, so the products of a partial last tile are copied from
/// a buffer.
///
/// # Safety
/// `out` is valid for writes of `r1 - r0` values; `products` writes at most [`TILE_ROWS`] values.
#[inline(always)]
pub(super) unsafe fn for_tiles(r0: usize, r1: usize, out: *mut f32, products: impl Fn(usize, *mut f32)) {
    let mut buffer = [0f32; TILE_ROWS];
    for r in (r0..r1).step_by(TILE_ROWS) {
        // SAFETY: the caller guarantees room at `out` for the rows from `r` on; `buffer` has room
        // for a tile.
        unsafe {
            let out = out.add(r - r0);
            let is_whole = r1 - r >= TILE_ROWS;
            products(r, if is_whole { out } else { buffer.as_mut_ptr() });
            if !is_whole {
                out.copy_from_nonoverlapping(buffer.as_ptr(), r1 - r);
            }
        }
    }
}

/// Arrays of activation row `i` from column `k` on.
///
/// # Safety
/// `i` is below `xs.n`; `k` is a multiple of 32 within the row.
#[inline(always)]
pub(super) unsafe fn activations(xs: ActRows, i: usize, n_cols: usize, k: usize) -> super::activation::Q8Row {
    // SAFETY: the caller guarantees row `i`, and that `k` is a multiple of 32 within it.
    unsafe { super::portable::columns_from(xs.row(i).q8(n_cols), k) }
}

/// Prefetches block `b` of 32 columns of the `C` activation rows that follow these `C` rows.
#[inline(always)]
pub(super) fn prefetch_next_rows<const C: usize>(x: super::activation::Q8Row, stride: usize, b: usize) {
    // A cache line has two blocks.
    if b.is_multiple_of(2) {
        for c in 0..C {
            prefetch(x.q.wrapping_byte_add((C + c) * stride).wrapping_add(b * 32).cast());
        }
    }
}

/// Copies a field of `N` bytes of a block to row `r` of the field at byte `at`.
#[inline(always)]
pub(super) fn store_field<const N: usize>(fields: &mut [u8], at: usize, r: usize, bytes: &[u8]) {
    fields[at + N * r..][..N].copy_from_slice(&bytes[..N]);
}

/// Unpacks the nibbles of 16 bytes: low nibbles are columns 0..16, high nibbles 16..32.
#[inline(always)]
pub(super) fn store_nibbles(bytes: &[u8], codes: &mut [i8]) {
    for i in 0..16 {
        codes[i] = (bytes[i] & 15) as i8;
        codes[16 + i] = (bytes[i] >> 4) as i8;
    }
}

/// Sets the fifth bit of code `i` to bit `i` of the four bytes.
#[inline(always)]
pub(super) fn add_fifth_bits(bits: &[u8], codes: &mut [i8]) {
    for (byte, codes) in bits.iter().zip(codes.as_chunks_mut::<8>().0) {
        // The byte is repeated eight times, each with one bit, which is then carried to the top
        // bit.
        let each = (u64::from(*byte) * 0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
        let fifths = ((each + 0x7f7f_7f7f_7f7f_7f7f) & 0x8080_8080_8080_8080) >> 3;
        let fours = u64::from_le_bytes(codes.map(|code| code as u8));
        *codes = (fours | fifths).to_le_bytes().map(|code| code as i8);
    }
}
