//! Weights in the order in which vector kernels want them, made once when a model is loaded.
//!
//! # The tile
//!
//! 16 weight rows (the last tile is filled up with zeros) are one contiguous piece of *strips*: the scales of some columns, then
//! their codes, each code and each scale in as many bits as the file gives them. So a kernel's lanes are weight rows, an
//! activation is broadcast, neither the sum of lanes nor the transposition of a panel is left, and memory is read from its
//! beginning to its end: one stream, which the processor follows by itself, and faster than it can be asked for. (With the scales of a
//! whole tile after all its codes it loses both streams; `NOTES.md`.)
//!
//! A strip is a block of the file of 256 columns; or blocks of 32 until their scales fill 64 bytes. Its scales ([`Scales`])
//! are fields of 16 rows, filled up to a multiple of 64 bytes; a last strip may have fewer codes.
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
//! | 3, 5 | 1, then 2 or 4 | both, the first plane's bit on top |
//! | 6 | 4, then 2 | both, the second plane's bits on top |
//!
//! Where `smmla` multiplies (`ArmEights`) a step is eight columns of eight rows instead: steps 0 to 3 are rows 0 to 7, steps 4 to 7
//! the others, and in a step's 64 bytes stand the eight codes of its first row, of its second, and so on. Planes are the same.
//! On Arm codes without an offset are stored as signed numbers of their few bits, for a shift to the top of a byte then
//! makes signed bytes of them at no cost (`interleaved_neon`).
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
//! With AVX-512 two groups of 16 add at once as well, their scales in f32 and their zero points in `t`; offsets follow one by one:
//!
//! ```text
//!                         sum = fma(fma(scale1, t1, scale0 * t0), x, sum)
//! ```
//!
//! On Arm all codes without an offset are signed, and with AVX-512 their zero point is part of the exact integer, so that they add as
//! signed codes do. The order is the same for one activation row and for many.

use super::activation::ActRows;
use super::make_tile::{self, Codes, Steps};
use super::portable::{Format, f16_at};
use super::{TILE_ROWS, WeightRows};
use crate::prefetch::prefetch;
use std::ops::Range;

/// How the codes of a tile are ordered.
pub(super) trait Order {
    /// Neighbouring columns of a row that stand together: those of a step.
    const COLS: usize;
    /// Whether codes without an offset and fewer than 8 bits are stored in two's complement, instead of less their least.
    const SIGNED: bool;

    /// Of row `r`: its first step, and its byte in each of its `32 / COLS` steps.
    #[inline(always)]
    fn place(r: usize) -> (usize, usize) {
        if Self::COLS == 4 { (0, 4 * r) } else { (r / 8 * 4, r % 8 * 8) }
    }

    /// The codes of 32 columns from column `k` of the rows on, in the order of the tile: those of row `r` are at the bytes that
    /// [`Self::place`] says of the steps from the first on.
    ///
    /// # Safety
    /// The instructions that the order is for are available; `k + 32` is at most 256.
    #[inline(always)]
    unsafe fn steps(codes: &Codes, k: usize, steps: &mut Steps)
    where
        Self: Sized,
    {
        make_tile::steps::<Self>(codes, k, steps);
    }
}

/// Steps of four columns.
#[cfg(target_arch = "x86_64")]
pub(super) struct Fours;

#[cfg(target_arch = "x86_64")]
impl Order for Fours {
    const COLS: usize = 4;
    const SIGNED: bool = false;

    #[inline(always)]
    unsafe fn steps(codes: &Codes, k: usize, steps: &mut Steps) {
        // SAFETY: by the caller, AVX2 is available (every processor with AVX-512 has it), and `k + 32` is at most 256.
        unsafe { make_tile::steps_of_fours(codes, k, steps) }
    }
}

/// The same on Arm.
#[cfg(target_arch = "aarch64")]
pub(super) struct ArmFours;

#[cfg(target_arch = "aarch64")]
impl Order for ArmFours {
    const COLS: usize = 4;
    const SIGNED: bool = true;
}

/// Steps of eight columns, for `smmla`.
#[cfg(target_arch = "aarch64")]
pub(super) struct ArmEights;

#[cfg(target_arch = "aarch64")]
impl Order for ArmEights {
    const COLS: usize = 8;
    const SIGNED: bool = true;
}

/// What turns a code as [`Interleaved::stored`] gives it into the code in a tile, and back: its top bit, or nothing.
pub(super) const fn flip<F: Interleaved, O: Order>() -> i8 {
    if O::SIGNED && is_centered::<F>() {
        assert!(F::ZERO == 1 << (F::BITS - 1));
        F::ZERO as i8
    } else {
        0
    }
}

/// Whether codes are integers of fewer than 8 bits around zero.
pub(super) const fn is_centered<F: Interleaved>() -> bool {
    F::BITS < 8 && !F::HAS_OFFSET && F::VALUES.is_none()
}

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

/// Bytes of a cache line, with which strips and their codes begin.
const LINE: usize = 64;

/// Bytes of a tile's scales of a block of the file.
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

/// Bytes of the scales with which a strip begins: whole cache lines.
pub(super) const fn strip_scale_bytes<F: Interleaved>() -> usize {
    (strip_blocks::<F>() * scale_bytes::<F>()).next_multiple_of(LINE)
}

/// Bytes of a strip.
pub(super) const fn strip_bytes<F: Interleaved>() -> usize {
    strip_scale_bytes::<F>() + strip_cols::<F>() / 32 * code_bytes::<F>()
}

/// Bytes of a tile of rows of `n_cols`. A last strip in part has fewer codes.
pub(super) fn tile_bytes<F: Interleaved>(n_cols: usize) -> usize {
    n_cols.div_ceil(const { strip_cols::<F>() }) * const { strip_scale_bytes::<F>() }
        + n_cols / 32 * code_bytes::<F>()
}

/// A tile in memory, or what of it follows some column: its first strip.
#[derive(Clone, Copy)]
pub(super) struct Tile(*const u8);

impl Tile {
    /// The tile that begins with row `r0`, a multiple of [`TILE_ROWS`].
    ///
    /// # Safety
    /// The matrix is interleaved and has the row.
    #[inline(always)]
    pub(super) unsafe fn new(w: WeightRows, r0: usize) -> Tile {
        debug_assert_eq!(r0 % TILE_ROWS, 0);
        // SAFETY: by the caller, the matrix is interleaved and has the row.
        Tile(unsafe { w.values.add(r0 * w.row_bytes) })
    }

    /// From column `k` on, a multiple of 256.
    #[inline(always)]
    pub(super) fn from<F: Interleaved>(self, k: usize) -> Tile {
        debug_assert_eq!(k % const { strip_cols::<F>() }, 0);
        Tile(self.0.wrapping_add(k / const { strip_cols::<F>() } * const { strip_bytes::<F>() }))
    }

    /// The codes of the `b`th 32 columns.
    #[inline(always)]
    pub(super) fn codes<F: Interleaved>(self, b: usize) -> *const u8 {
        let of_strip = const { strip_cols::<F>() / 32 };
        let at = const { strip_scale_bytes::<F>() } + b % of_strip * code_bytes::<F>();
        self.0.wrapping_add(b / of_strip * const { strip_bytes::<F>() } + at)
    }

    /// The scales of a block of the file.
    #[inline(always)]
    pub(super) fn scales<F: Interleaved>(self, block: usize) -> *const u8 {
        let of_strip = const { strip_blocks::<F>() };
        let at = block % of_strip * scale_bytes::<F>();
        self.0.wrapping_add(block / of_strip * const { strip_bytes::<F>() } + at)
    }
}

/// The planes of codes of so many bits in their order: width, and the bit of a code with which they begin.
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

/// The codes of row `r` in the planes of 32 columns.
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
pub(super) unsafe fn decode<F: Interleaved, O: Order>(
    w: WeightRows,
    row: usize,
    cols: Range<usize>,
    out: &mut [f32],
) {
    let len = const { F::BLOCK.block_len() };
    let r = row % TILE_ROWS;
    // SAFETY: by the caller, the matrix is interleaved, of type `F`, and has the row and the columns; `out`
    // has room.
    let tile = unsafe { Tile::new(w, row - r) };
    for (block, out) in (cols.start / len..).zip(out[..cols.len()].chunks_exact_mut(len)) {
        // SAFETY: the fields of a block that the row has.
        let fields = unsafe { std::slice::from_raw_parts(tile.scales::<F>(block), scale_bytes::<F>()) };
        for (i, out) in out.chunks_exact_mut(32).enumerate() {
            let planes = tile.codes::<F>(block * len / 32 + i);
            // SAFETY: 32 columns that the row has.
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

/// Activation rows from column `k` on.
///
/// # Safety
/// `k` is a multiple of 32 within the rows.
#[inline(always)]
pub(super) unsafe fn activations(xs: ActRows, i: usize, n_cols: usize, k: usize) -> super::activation::Q8Row {
    // SAFETY: by the caller, `k` is a multiple of 32 within the rows.
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

/// Bit `i` of four bytes becomes the fifth bit of code `i`.
#[inline(always)]
pub(super) fn add_fifth_bits(bits: &[u8], codes: &mut [i8]) {
    for (byte, codes) in bits.iter().zip(codes.as_chunks_mut::<8>().0) {
        // The byte eight times, of each one bit, which then is carried into the top bit.
        let each = (u64::from(*byte) * 0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
        let fifths = ((each + 0x7f7f_7f7f_7f7f_7f7f) & 0x8080_8080_8080_8080) >> 3;
        let fours = u64::from_le_bytes(codes.map(|code| code as u8));
        *codes = (fours | fifths).to_le_bytes().map(|code| code as i8);
    }
}
