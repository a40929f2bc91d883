//! F32: IEEE single precision, little-endian, 4 bytes a value.

/// Decodes 4 bytes a value.
pub fn dequantize(src: &[u8], dst: &mut [f32]) {
    for (out, bytes) in dst.iter_mut().zip(src.as_chunks().0) {
        *out = f32::from_le_bytes(*bytes);
    }
}

/// Encodes exactly.
pub fn quantize(src: &[f32], dst: &mut [u8]) {
    for (value, out) in src.iter().zip(dst.as_chunks_mut().0) {
        *out = value.to_le_bytes();
    }
}
