//! BF16: the upper half of an IEEE single, little-endian, 2 bytes a value. 8 significant bits, the
//! range of f32.

use half::bf16;

/// Decodes 2 bytes a value, exactly: the lower 16 bits are zero.
pub fn dequantize(src: &[u8], dst: &mut [f32]) {
    for (out, bytes) in dst.iter_mut().zip(src.as_chunks().0) {
        *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    }
}

/// Encodes to the nearest number, ties to even; NaN stays NaN.
pub fn quantize(src: &[f32], dst: &mut [u8]) {
    for (value, out) in src.iter().zip(dst.as_chunks_mut().0) {
        *out = bf16::from_f32(*value).to_le_bytes();
    }
}
