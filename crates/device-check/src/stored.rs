//! Random weights of every type, including types without a quantiser.

use weights::codec::{affine, dequantize_row, quantize_row};
use weights::{Affine, BlockType, Bytes, Planes, ScaleType};

use super::Rng;
use device::Weight;

/// Every type that devices run: all of GGUF's, rows of integers, and affine types of each width and
/// group size, with scale types and symmetry in rotation.
pub fn block_types() -> Vec<BlockType> {
    let mut types: Vec<_> = BlockType::ALL.into_iter().chain(BlockType::GGUF_EXTRA).collect();
    types.extend([BlockType::I8_ROWS, BlockType::I16_ROWS]);
    for (i, bits) in Affine::BITS.into_iter().enumerate() {
        for (j, group) in Affine::GROUPS.into_iter().enumerate() {
            let symmetric = (i + j) % 2 == 0;
            // Offsets of power-of-two scales have no sign, and so no quantiser.
            let scale = ScaleType::ALL[if symmetric { (i + 2 * j) % 4 } else { (i + j + 2) % 3 }];
            types.extend(Affine::new(bits, group, scale, symmetric).map(BlockType::Affine));
        }
    }
    types
}

/// A matrix `[n_out, n_in]` with mean near 0 and variance `size^2`. `n_in` is whole blocks.
pub fn stored(rng: &mut Rng, name: &str, n_out: usize, n_in: usize, block: BlockType, size: f32) -> Weight {
    let mut planes = Planes::default();
    let mut bytes = vec![0; n_out * block.row_bytes(n_in)];
    let mut scales = vec![0; n_out * block.row_scale_bytes(n_in)];
    if BlockType::GGUF_EXTRA.contains(&block) {
        bytes = random_bytes(rng, block, n_out * n_in, size);
    } else {
        let values: Vec<f32> = (0..n_out * n_in).map(|_| rng.normal() * size).collect();
        match block {
            BlockType::Affine(affine) => {
                let mut biases = vec![0; n_out * block.row_bias_bytes(n_in)];
                affine::quantize(affine, &values, &mut bytes, &mut scales, &mut biases);
                planes.biases = (!affine.is_symmetric()).then(|| Bytes::from_slice(&biases));
            }
            BlockType::I8_ROWS | BlockType::I16_ROWS => {
                let rows = values.chunks_exact(n_in).zip(bytes.chunks_exact_mut(block.row_bytes(n_in)));
                for ((values, bytes), scale) in rows.zip(scales.as_chunks_mut().0) {
                    *scale = integers(block, values, bytes).to_le_bytes();
                }
            }
            _ => quantize_row(block, &values, &mut bytes),
        }
        planes.scales = block.has_planes().then(|| Bytes::from_slice(&scales));
    }
    let data = Bytes::from_slice(&bytes);
    Weight { name: name.to_owned(), shape: vec![n_out, n_in], block, data, planes, parts: vec![] }
}

/// A matrix `[n_out, n_in]` of zero bytes, for plans that never run: quantising takes most of the
/// time of building a plan.
pub fn blank(name: &str, n_out: usize, n_in: usize, block: BlockType) -> Weight {
    let zeros = |len: usize| Bytes::from_slice(&vec![0; n_out * len]);
    let some = |len: usize| (len > 0).then(|| zeros(len));
    let planes =
        Planes { scales: some(block.row_scale_bytes(n_in)), biases: some(block.row_bias_bytes(n_in)) };
    let data = zeros(block.row_bytes(n_in));
    Weight { name: name.to_owned(), shape: vec![n_out, n_in], block, data, planes, parts: vec![] }
}

/// Quantises a row to integers; returns the factor on the values.
fn integers(block: BlockType, values: &[f32], bytes: &mut [u8]) -> f32 {
    let largest = values.iter().fold(1e-9f32, |m, v| m.max(v.abs()));
    let scale = if block == BlockType::I8_ROWS { 127.0 } else { 32767.0 } / largest;
    for (value, bytes) in values.iter().zip(bytes.chunks_exact_mut(block.block_bytes())) {
        let q = (value * scale).round() as i16;
        bytes.copy_from_slice(&q.to_le_bytes()[..bytes.len()]);
    }
    scale
}

/// Blocks of random bytes, with every pattern of codes, for a type of [`BlockType::GGUF_EXTRA`].
/// Each block's scale makes the root mean square of its values `size`.
pub fn random_bytes(rng: &mut Rng, block: BlockType, n_values: usize, size: f32) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..block.row_bytes(n_values)).map(|_| rng.bits() as u8).collect();
    let mut values = vec![0.0; block.block_len()];
    for block_bytes in bytes.chunks_exact_mut(block.block_bytes()) {
        set_scale(block, block_bytes, 1.0);
        dequantize_row(block, block_bytes, &mut values);
        let square = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
        set_scale(block, block_bytes, size / square.sqrt().max(1e-6));
    }
    bytes
}

/// Sets the factor of all of a block's values.
fn set_scale(block: BlockType, bytes: &mut [u8], scale: f32) {
    use BlockType::*;
    let mut d = [0; 2];
    quantize_row(F16, &[scale], &mut d);
    match block {
        // The scale is in the top four bits of four words, the lowest first.
        IQ1_M => {
            for i in 0..4 {
                let high = &mut bytes[49 + 2 * i];
                *high = *high & 15 | (d[i / 2] >> (4 * (i % 2))) << 4;
            }
        }
        // Four scales of 8 bits, each half of its nominal value; only the exponent is kept.
        NVFP4 => {
            let exponent = (scale.log2().round() + 8.0).clamp(1.0, 14.0) as u8;
            bytes[..4].fill(exponent << 3);
        }
        TQ1_0 => bytes[52..54].copy_from_slice(&d),
        TQ2_0 => bytes[64..66].copy_from_slice(&d),
        _ => bytes[..2].copy_from_slice(&d),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_values_of_the_size_asked_for() {
        for block in block_types() {
            let n_in = block.block_len().max(64) * 2;
            let weight = stored(&mut Rng::new(3), "w", 5, n_in, block, 0.25);
            assert!(weight.planes.fit(block, 5, n_in), "{block}");
            assert!(blank("w", 5, n_in, block).planes.fit(block, 5, n_in), "{block}");
            let mut values = vec![0.0; 5 * n_in];
            weight.decode_rows(0..5, &mut values);
            let square = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
            assert!((0.1..0.5).contains(&square.sqrt()), "{block}: {}", square.sqrt());
        }
    }
}
