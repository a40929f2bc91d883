//! F16: IEEE half precision, little-endian, 2 bytes a value. 11 significant bits, up to 65504.

use half::f16;
use half::slice::HalfFloatSliceExt;

/// Decodes 2 bytes a value, exactly.
pub fn dequantize(src: &[u8], dst: &mut [f32]) {
    // The slice conversion uses the CPU's instruction if there is one; it needs aligned halves.
    if cfg!(target_endian = "little")
        && let Ok(halves) = bytemuck::try_cast_slice::<u8, f16>(src)
    {
        halves.convert_to_f32_slice(dst);
        return;
    }
    for (out, bytes) in dst.iter_mut().zip(src.as_chunks().0) {
        *out = f16::from_le_bytes(*bytes).to_f32();
    }
}

/// Encodes to the nearest number, ties to even; values over 65520 become infinity; NaN stays NaN.
pub fn quantize(src: &[f32], dst: &mut [u8]) {
    for (value, out) in src.iter().zip(dst.as_chunks_mut().0) {
        *out = f16::from_f32(*value).to_le_bytes();
    }
}
