//! Packed 6-bit scales of the K types, in both directions. Device kernels use these functions as
//! their definition.

/// Unpacks the 12 bytes of a Q4_K or Q5_K block into eight scales and eight mins, each in `0..64`.
///
/// The low six bits of bytes 0-3 are scales 0-3, those of bytes 4-7 are mins 0-3. Bytes 8-11 have
/// the low four bits of scales 4-7 (low nibble) and mins 4-7 (high nibble). Their upper two bits
/// are the top bits of bytes 0-3 (scales) and 4-7 (mins).
#[inline]
pub fn unpack_scales_mins(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for i in 0..4 {
        let (s, m, low) = (packed[i], packed[i + 4], packed[i + 8]);
        scales[i] = s & 63;
        mins[i] = m & 63;
        scales[i + 4] = low & 15 | s >> 6 << 4;
        mins[i + 4] = low >> 4 | m >> 6 << 4;
    }
    (scales, mins)
}

/// Inverse of [`unpack_scales_mins`]; every input is in `0..64`.
#[inline]
pub fn pack_scales_mins(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for i in 0..4 {
        packed[i] = scales[i] & 63 | scales[i + 4] >> 4 << 6;
        packed[i + 4] = mins[i] & 63 | mins[i + 4] >> 4 << 6;
        packed[i + 8] = scales[i + 4] & 15 | mins[i + 4] << 4;
    }
    packed
}

/// Unpacks the 12 bytes of a Q3_K block into sixteen scales in `-32..32`.
///
/// Bytes 0-7 have the low four bits: of scales 0-7 in the low nibbles, of scales 8-15 in the high
/// nibbles. Byte `8 + i % 4` has the upper two bits of scale `i`, at bit `2 * (i / 4)`. Scales are
/// stored with 32 added.
#[inline]
pub fn unpack_q3_scales(packed: &[u8; 12]) -> [i8; 16] {
    std::array::from_fn(|i| {
        let low = packed[i % 8] >> (4 * (i / 8)) & 15;
        let high = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
        (low | high << 4) as i8 - 32
    })
}

/// Inverse of [`unpack_q3_scales`]; every input is in `-32..32`.
#[inline]
pub fn pack_q3_scales(scales: &[i8; 16]) -> [u8; 12] {
    let mut packed = [0; 12];
    for (i, scale) in scales.iter().enumerate() {
        let code = (scale + 32) as u8;
        packed[i % 8] |= (code & 15) << (4 * (i / 8));
        packed[8 + i % 4] |= (code >> 4) << (2 * (i / 4));
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_is_a_bijection() {
        // Each of the 96 bits has its own place: a walking one survives both directions.
        for bit in 0..96 {
            let mut packed = [0u8; 12];
            packed[bit / 8] = 1 << (bit % 8);
            let (scales, mins) = unpack_scales_mins(&packed);
            assert_eq!(pack_scales_mins(&scales, &mins), packed, "bit {bit}");
            assert_eq!(pack_q3_scales(&unpack_q3_scales(&packed)), packed, "bit {bit}");
        }
    }
}
