//! Integers whose scales are stored apart. The affine types of MLX and `.base`
//! ([`weights::Affine`]) are `w = s c + b`, with `c` of 2 to 8 bits and `s`, `b` for each 32, 64 or
//! 128 columns. CTranslate2's rows of signed bytes are `w = c / s`, with one `s` a row.
//!
//! Layout: the codes of a row are one little-endian stream of bits; 8 codes take as many bytes as a
//! code has bits. Scales, and offsets unless the type is symmetric, are separate arrays of f32,
//! f16, bf16 or powers of two.
//!
//! # One loop for all types
//!
//! Scales and offsets are decoded to f32 for a piece of a row outside the inner loop ([`Scales`]).
//! The kernels thus do not depend on the group size and the number format, and are compiled once
//! for each width of code ([`Codes`]). A symmetric type's middle becomes an offset, `-2^(bits - 1)
//! s`, and a signed byte becomes an unsigned one less 128. The product of each 32 columns is then
//! `s x_scale (sum c q) + b x_sum`, as in the other types.
//!
//! This file decodes in plain Rust, and has the loops of the scalar variant and of NEON's GEMV.
//! Their order of accumulation is that of `portable` for blocks of [`PART`] columns. The other
//! variants are `affine_avx2`, `affine_avx512` and `affine_neon`.

use super::activation::{ActRow, ActRows};
use super::portable::{Dot, Groups, columns_from, f16_to_f32};
use super::weight_rows::plane;
use super::{Part, TILE_ROWS, WeightRows};
use weights::{BlockType, ScaleType, codec};

/// A type with codes of one width.
pub(super) trait Codes {
    /// Name in profiles: `linear_affine4`.
    const NAME: &'static str;
    /// Bits of a code.
    const BITS: usize;
    /// True if codes are stored as signed bytes.
    const SIGNED: bool = false;
    /// Number subtracted from unsigned codes, so that they fit a signed byte.
    const ZERO: u8 = if Self::BITS == 8 { 128 } else { 0 };
    /// Bytes of 32 codes.
    const BYTES_32: usize = 4 * Self::BITS;
}

/// Affine codes.
pub(super) struct PackedCodes<const BITS: usize>;

impl<const BITS: usize> Codes for PackedCodes<BITS> {
    const NAME: &'static str = match BITS {
        2 => "linear_affine2",
        3 => "linear_affine3",
        4 => "linear_affine4",
        5 => "linear_affine5",
        6 => "linear_affine6",
        _ => "linear_affine8",
    };
    const BITS: usize = BITS;
}

/// Rows of signed bytes.
pub(super) struct SignedBytes;

impl Codes for SignedBytes {
    const NAME: &'static str = "linear_i8_rows";
    const BITS: usize = 8;
    const SIGNED: bool = true;
}

/// Columns whose scales are decoded together.
pub(super) const PIECE: usize = 2048;

/// Shift for a scale of the whole row: every group's index, shifted by it, is 0.
const WHOLE_ROW: usize = (PIECE / 32).ilog2() as usize;

/// Scales and offsets of up to [`PIECE`] columns of a row in f32, one for each group, with zeros
/// for a register after the last.
pub(super) struct Scales {
    /// Factors on codes.
    pub scale: [f32; PIECE / 32 + 16],
    /// Offsets added to the products of scale and code.
    pub offset: [f32; PIECE / 32 + 16],
}

impl Scales {
    /// Zeros.
    pub(super) const NONE: Scales = Scales { scale: [0.0; PIECE / 32 + 16], offset: [0.0; PIECE / 32 + 16] };

    /// Decodes the scales and offsets of columns `k..k + n` of row `r`, for codes from which `zero`
    /// was subtracted. Returns `shift`: 32 columns with index `i`, counted from `k`, have the scale
    /// and offset at `i >> shift`.
    ///
    /// # Safety
    /// The matrix has the row and the columns; `k` is a multiple of 128 and `n` of the group, at
    /// most [`PIECE`].
    #[inline(always)]
    pub(super) unsafe fn read(&mut self, w: WeightRows, r: usize, k: usize, n: usize, zero: u8) -> usize {
        let zero = f32::from(zero);
        let row = r * w.plane_bytes;
        let BlockType::Affine(affine) = w.block else {
            // SAFETY: the caller guarantees row `r` of the matrix; a type other than `Affine` has
            // one f32 a row at `w.scales`, `plane_bytes` apart.
            let scale = unsafe { w.scales.add(row).cast::<[u8; 4]>().read() };
            self.scale[..16].fill(0.0);
            self.offset[..16].fill(0.0);
            self.scale[0] = 1.0 / f32::from_le_bytes(scale);
            self.offset[0] = (zero - 128.0) * self.scale[0];
            return WHOLE_ROW;
        };
        let n_groups = n / affine.group();
        let (at, bytes) =
            (row + k / affine.group() * affine.scale().bytes(), n_groups * affine.scale().bytes());
        let end = n_groups + 16;
        self.scale[n_groups..end].fill(0.0);
        self.offset[n_groups..end].fill(0.0);
        let (scale, offset) = (&mut self.scale[..n_groups], &mut self.offset[..n_groups]);
        // SAFETY: the caller guarantees row `r` and its columns, so the plane has `bytes` bytes
        // from `at` on.
        read_plane(affine.scale(), unsafe { plane(w.scales, at, bytes) }, scale);
        if affine.is_symmetric() {
            let middle = zero - (1 << (affine.bits() - 1)) as f32;
            for (offset, scale) in offset.iter_mut().zip(scale) {
                *offset = middle * *scale;
            }
        } else {
            // SAFETY: as for the scales; a type that is not symmetric has as many bytes of offsets.
            read_plane(affine.scale(), unsafe { plane(w.biases, at, bytes) }, offset);
            if zero > 0.0 {
                for (offset, scale) in offset.iter_mut().zip(scale) {
                    *offset += zero * *scale;
                }
            }
        }
        (affine.group() / 32).ilog2() as usize
    }
}

/// Converts numbers of a plane to f32. The compiler vectorises it for the calling function.
#[inline(always)]
fn read_plane(scale: ScaleType, bytes: &[u8], out: &mut [f32]) {
    match scale {
        ScaleType::F32 => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = f32::from_le_bytes(*bytes);
            }
        }
        ScaleType::F16 => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = f16_to_f32(u16::from_le_bytes(*bytes));
            }
        }
        ScaleType::BF16 => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
            }
        }
        ScaleType::E8M0 => {
            for (out, byte) in out.iter_mut().zip(bytes) {
                *out = 2.0 * codec::e8m0_half(*byte);
            }
        }
    }
}

/// Columns that are decoded together; a multiple of every group.
pub(super) const PART: usize = 256;

/// Groups of the decoded codes: 32 columns with an offset.
pub(super) struct Groups32;

impl Groups for Groups32 {
    const GROUP: usize = 32;
    const HAS_OFFSET: bool = true;
}

/// Unpacks the codes of `codes.len()` columns, less [`Codes::ZERO`], from their bytes.
#[inline(always)]
fn unpack<F: Codes>(packed: &[u8], codes: &mut [i8]) {
    match F::BITS {
        8 => {
            let flip = if F::SIGNED { 0 } else { F::ZERO };
            for (code, byte) in codes.iter_mut().zip(packed) {
                *code = (byte ^ flip) as i8;
            }
        }
        4 => {
            for (codes, byte) in codes.as_chunks_mut::<2>().0.iter_mut().zip(packed) {
                *codes = [(byte & 15) as i8, (byte >> 4) as i8];
            }
        }
        _ => {
            for (codes, packed) in codes.as_chunks_mut::<8>().0.iter_mut().zip(packed.chunks_exact(F::BITS)) {
                *codes = codec::affine::unpack_8(F::BITS, packed).map(|code| code as i8);
            }
        }
    }
}

/// Decodes columns `k..k + codes.len()` of row `r`, at most [`PART`]: codes, and scales and offsets
/// for each 32 columns.
///
/// # Safety
/// The matrix has the row and the columns; `k` is a multiple of [`PART`], the number of columns
/// of 32.
#[inline(always)]
pub(super) unsafe fn decode<F: Codes>(
    w: WeightRows,
    r: usize,
    k: usize,
    groups: &mut Scales,
    codes: &mut [i8],
    scale: &mut [f32],
    offset: &mut [f32],
) {
    // SAFETY: the caller guarantees row `r` and its columns from `k` on; 32 codes take `BYTES_32`
    // bytes, so the stream has the bytes read.
    unsafe {
        let packed = w.values.add(r * w.row_bytes + k / 32 * F::BYTES_32);
        unpack::<F>(std::slice::from_raw_parts(packed, codes.len() / 32 * F::BYTES_32), codes);
        let shift = groups.read(w, r, k, codes.len(), F::ZERO);
        for (i, (scale, offset)) in scale.iter_mut().zip(offset).enumerate() {
            (*scale, *offset) = (groups.scale[i >> shift], groups.offset[i >> shift]);
        }
    }
}

/// [`Gemv`](super::Gemv) for the products of `D`.
///
/// # Safety
/// As [`Gemv`](super::Gemv).
#[inline(always)]
pub(super) unsafe fn gemv<F: Codes, D: Dot>(
    w: WeightRows,
    n_cols: usize,
    r0: usize,
    r1: usize,
    x: ActRow,
    out: *mut f32,
) {
    let mut groups = Scales::NONE;
    let mut codes = [0i8; PART];
    let (mut scale, mut offset) = ([0f32; PART / 32], [0f32; PART / 32]);
    // SAFETY: by the caller, `w` has rows `r0..r1` of `n_cols` columns, `x` as many activations,
    // and `out` room for the products.
    unsafe {
        let x = x.q8(n_cols);
        for r in r0..r1 {
            let mut sum = D::zero();
            for k in (0..n_cols).step_by(PART) {
                let n = PART.min(n_cols - k);
                let (codes, scale, offset) = (&mut codes[..n], &mut scale[..n / 32], &mut offset[..n / 32]);
                decode::<F>(w, r, k, &mut groups, codes, scale, offset);
                sum = D::add::<Groups32>(sum, codes, scale, offset, columns_from(x, k));
            }
            out.add(r - r0).write(D::finish(sum));
        }
    }
}

/// Bytes of scratch of [`gemm_tile`]: one decoded row.
pub(super) fn gemm_scratch_bytes(n_cols: usize) -> usize {
    n_cols + 2 * (n_cols / 32) * 4 + 64
}

/// [`GemmTile`](super::GemmTile) for the products of `D`. Each weight row is decoded once into the
/// scratch, and multiplied with every activation row.
///
/// # Safety
/// As [`GemmTile`](super::GemmTile).
#[inline(always)]
pub(super) unsafe fn gemm_tile<F: Codes, D: Dot>(
    w: WeightRows,
    n_cols: usize,
    part: Part,
    xs: ActRows,
    scratch: *mut u8,
    out: *mut f32,
) {
    let mut groups = Scales::NONE;
    let Part { r0, n_rows, .. } = part;
    let n_groups = n_cols / 32;
    // SAFETY: the caller guarantees `gemm_scratch_bytes` at `scratch`, room for a row of codes,
    // scales and offsets; and as `GemmTile` demands, the rows of `w` and `xs`, and `xs.n *
    // TILE_ROWS` values at `out`.
    unsafe {
        let scratch = scratch.add(scratch.align_offset(64));
        scratch.write_bytes(0, n_cols + 2 * n_groups * 4);
        let codes = std::slice::from_raw_parts_mut(scratch.cast::<i8>(), n_cols);
        let scales: *mut f32 = scratch.add(n_cols).cast();
        let (scales, offsets) = std::slice::from_raw_parts_mut(scales, 2 * n_groups).split_at_mut(n_groups);
        for r in 0..n_rows {
            for (part, codes) in codes.chunks_mut(PART).enumerate() {
                let at = part * PART / 32..part * PART / 32 + codes.len() / 32;
                let (scale, offset) = (&mut scales[at.clone()], &mut offsets[at]);
                decode::<F>(w, r0 + r, part * PART, &mut groups, codes, scale, offset);
            }
            for i in 0..xs.n {
                let x = xs.row(i).q8(n_cols);
                let mut sum = D::zero();
                for (part, codes) in codes.chunks(PART).enumerate() {
                    let at = part * PART / 32..part * PART / 32 + codes.len() / 32;
                    let (scale, offset) = (&scales[at.clone()], &offsets[at]);
                    sum = D::add::<Groups32>(sum, codes, scale, offset, columns_from(x, part * PART));
                }
                out.add(i * TILE_ROWS + r).write(D::finish(sum));
            }
        }
    }
}
