//! The 6-bit scales and minima of Q4_K and Q5_K: eight of each in 12 bytes.
//!
//! Layout (ggml): the low 6 bits of bytes 0..4 are scales 0..4, those of bytes 4..8 are minima
//! 0..4. Bytes 8..12 have the low 4 bits of scales 4..8 (low nibbles) and of minima 4..8 (high
//! nibbles). Their upper 2 bits are the upper 2 bits of bytes 0..4 (scales) and 4..8 (minima).

use super::interleaved::store_field;

/// Eight scales, then eight minima, as bytes of four words.
#[inline(always)]
pub(super) fn unpack(packed: [u32; 3]) -> [u32; 4] {
    let [s, m, rest] = packed;
    [
        s & 0x3f3f_3f3f,
        (rest & 0x0f0f_0f0f) | ((s >> 6) & 0x0303_0303) << 4,
        m & 0x3f3f_3f3f,
        ((rest >> 4) & 0x0f0f_0f0f) | ((m >> 6) & 0x0303_0303) << 4,
    ]
}

/// Reads three little-endian words.
#[inline(always)]
pub(super) fn words(bytes: &[u8]) -> [u32; 3] {
    std::array::from_fn(|i| {
        u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
    })
}

/// Decodes `scale = d s` and `offset = -dmin m` of the eight groups, from the head of a block: `d`,
/// `dmin`, the 12 bytes.
#[inline(always)]
pub(super) fn decode(block: &[u8], scale: &mut [f32], offset: &mut [f32]) {
    let (d, dmin) = (super::portable::f16_at(block, 0), super::portable::f16_at(block, 2));
    let unpacked = unpack(words(&block[4..16]));
    for g in 0..8 {
        let byte = |word: usize| (unpacked[word + g / 4] >> (8 * (g % 4)) & 0xff) as f32;
        scale[g] = d * byte(0);
        offset[g] = -(dmin * byte(2));
    }
}

/// Stores `d`, `dmin`, then the scales and the minima of the eight groups in row `r` of interleaved
/// fields.
#[inline(always)]
pub(super) fn store(block: &[u8], r: usize, fields: &mut [u8]) {
    store_field::<2>(fields, 0, r, block);
    store_field::<2>(fields, 32, r, &block[2..]);
    let unpacked = unpack(words(&block[4..16]));
    for g in 0..16 {
        fields[64 + 16 * g + r] = (unpacked[g / 4] >> (8 * (g % 4))) as u8;
    }
}
