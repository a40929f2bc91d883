//! Order of the codes in a tile of interleaved weights, which differs by the instruction that
//! multiplies.

use super::TILE_ROWS;

/// Codes of a block for each row of a tile, with zeros for missing rows.
#[repr(align(64))]
pub(super) struct TileCodes(pub(super) [[i8; 256]; TILE_ROWS]);

/// Codes of 32 columns in the order of the tile, a byte each, four in a little-endian word.
#[repr(align(64))]
pub(super) struct TileSteps(pub(super) [[u32; 16]; 8]);

/// Order of the codes in a tile.
pub(super) trait Order {
    /// Neighbouring columns of a row in one step.
    const COLS: usize;
    /// True if codes without an offset and with fewer than 8 bits are stored in two's complement.
    /// Otherwise their least value is subtracted.
    const SIGNED: bool;

    /// First step of row `r`, and its byte in each of its `32 / COLS` steps.
    #[inline(always)]
    fn place(r: usize) -> (usize, usize) {
        if Self::COLS == 4 { (0, 4 * r) } else { (r / 8 * 4, r % 8 * 8) }
    }

    /// Writes the codes of 32 columns from column `k` on in the order of the tile. The codes of row
    /// `r` are in the steps and at the bytes of [`Self::place`].
    ///
    /// # Safety
    /// The instructions of the order are available; `k + 32` is at most 256.
    #[inline(always)]
    unsafe fn steps(codes: &TileCodes, k: usize, steps: &mut TileSteps)
    where
        Self: Sized,
    {
        steps_of_any::<Self>(codes, k, steps);
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
    unsafe fn steps(codes: &TileCodes, k: usize, steps: &mut TileSteps) {
        // SAFETY: the caller guarantees AVX2 (every processor with AVX-512 has it), and that `k +
        // 32` is at most 256.
        unsafe { steps_of_fours(codes, k, steps) }
    }
}

/// Steps of four columns on Arm.
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

/// [`Order::steps`] for any order.
#[inline(always)]
fn steps_of_any<O: Order>(codes: &TileCodes, k: usize, steps: &mut TileSteps) {
    for (r, codes) in codes.0.iter().enumerate() {
        let (first, at_byte) = O::place(r);
        for (step, codes) in steps.0[first..].iter_mut().zip(codes[k..k + 32].chunks_exact(O::COLS)) {
            for (word, codes) in step[at_byte / 4..].iter_mut().zip(codes.as_chunks::<4>().0) {
                *word = u32::from_le_bytes(codes.map(|code| code as u8));
            }
        }
    }
}

/// [`Order::steps`] for steps of four columns, as two transpositions of eight rows by eight words.
/// A register has rows `i` and `i + 4` of a half. So a transposition of four by four in each 128
/// bits puts eight rows of a step side by side.
///
/// # Safety
/// AVX2 is available; `k + 32` is at most 256.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn steps_of_fours(codes: &TileCodes, k: usize, steps: &mut TileSteps) {
    use std::arch::x86_64::*;
    debug_assert!(k + 32 <= 256);
    for eight in 0..2 {
        for half in 0..2 {
            // SAFETY: the caller guarantees AVX2; a row has 16 codes from column `k + 16 * half`
            // on, since `k + 32` is at most 256.
            unsafe {
                let row = |r: usize| codes.0[8 * eight + r].as_ptr().add(k + 16 * half).cast::<__m128i>();
                let a = _mm256_loadu2_m128i(row(4), row(0));
                let b = _mm256_loadu2_m128i(row(5), row(1));
                let c = _mm256_loadu2_m128i(row(6), row(2));
                let d = _mm256_loadu2_m128i(row(7), row(3));
                let (ab0, ab2) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
                let (cd0, cd2) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
                let out = [
                    _mm256_unpacklo_epi64(ab0, cd0),
                    _mm256_unpackhi_epi64(ab0, cd0),
                    _mm256_unpacklo_epi64(ab2, cd2),
                    _mm256_unpackhi_epi64(ab2, cd2),
                ];
                for s in 0..4 {
                    let step = steps.0[4 * half + s].as_mut_ptr().add(8 * eight);
                    _mm256_storeu_si256(step.cast(), out[s]);
                }
            }
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn vectors_bring_codes_into_the_same_steps() {
        let mut codes = TileCodes([[0; 256]; TILE_ROWS]);
        for (r, row) in codes.0.iter_mut().enumerate() {
            for (k, code) in row.iter_mut().enumerate() {
                *code = (r * 73 + k * 31 + k / 8) as i8;
            }
        }
        if !crate::isa::Isa::Avx2.is_available() {
            return eprintln!("no AVX2 on this machine: nothing to compare");
        }
        for k in (0..256).step_by(32) {
            let (mut expected, mut found) = (TileSteps([[1; 16]; 8]), TileSteps([[2; 16]; 8]));
            steps_of_any::<Fours>(&codes, k, &mut expected);
            // SAFETY: the test checked AVX2 above; `k + 32` is at most 256.
            unsafe { steps_of_fours(&codes, k, &mut found) };
            assert_eq!(found.0, expected.0, "columns from {k}");
        }
    }
}
