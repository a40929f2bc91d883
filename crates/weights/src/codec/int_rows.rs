//! Rows of signed integers with one f32 a row, as CTranslate2 stores them:
//! `value = q * (1 / scale)`.
//!
//! The scale is the factor by which the weights were multiplied: 127 over the row's largest
//! magnitude for 8 bits, 1024 over the tensor's for 16 bits. Like CTranslate2, decoding rounds the
//! scale's inverse before it multiplies.

/// Decodes rows of `n_cols` signed bytes; `scales` holds a little-endian f32 a row.
pub fn dequantize_i8(n_cols: usize, src: &[u8], scales: &[u8], dst: &mut [f32]) {
    let rows = src.chunks_exact(n_cols).zip(dst.chunks_exact_mut(n_cols));
    for ((src, dst), scale) in rows.zip(scales.as_chunks().0) {
        let inverse = 1.0 / f32::from_le_bytes(*scale);
        for (out, &q) in dst.iter_mut().zip(src) {
            *out = f32::from(q as i8) * inverse;
        }
    }
}

/// Decodes rows of `n_cols` little-endian 16-bit integers; `scales` holds a little-endian f32 a
/// row.
pub fn dequantize_i16(n_cols: usize, src: &[u8], scales: &[u8], dst: &mut [f32]) {
    let rows = src.as_chunks().0.chunks_exact(n_cols).zip(dst.chunks_exact_mut(n_cols));
    for ((src, dst), scale) in rows.zip(scales.as_chunks().0) {
        let inverse = 1.0 / f32::from_le_bytes(*scale);
        for (out, &q) in dst.iter_mut().zip(src) {
            *out = f32::from(i16::from_le_bytes(q)) * inverse;
        }
    }
}
