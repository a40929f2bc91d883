//! Every codec: decoding against the reference's bits, and what its quantiser loses.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use formats::BlockType;
use formats::codec::{dequantize_row, quantize_row};

/// Blocks and their values, as `fixtures/codecs/make_codecs.py` wrote them.
fn fixture(block: BlockType) -> (Vec<u8>, Vec<f32>) {
    let name = format!("../../fixtures/codecs/{}.bin", block.name().to_lowercase());
    let bytes = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap();
    let (n_blocks, rest) = bytes.split_first_chunk::<4>().unwrap();
    let n_blocks = u32::from_le_bytes(*n_blocks) as usize;
    let (blocks, values) = rest.split_at(n_blocks * block.block_bytes());
    let values: Vec<f32> = values.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    assert_eq!(values.len(), n_blocks * block.block_len());
    (blocks.to_vec(), values)
}

fn dequantize(block: BlockType, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![f32::NAN; bytes.len() / block.block_bytes() * block.block_len()];
    dequantize_row(block, bytes, &mut values);
    values
}

fn quantize(block: BlockType, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0xaa; block.row_bytes(values.len())];
    quantize_row(block, values, &mut bytes);
    bytes
}

/// A fixed sequence of roughly normal values: the sum of twelve uniform ones has variance 1.
fn normal(n: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..n).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
}

/// Root of the mean squared difference, relative to the root of the mean square of `a`.
fn relative_rms(a: &[f32], b: &[f32]) -> f64 {
    let square = |v: f32| f64::from(v) * f64::from(v);
    let error: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    (error / a.iter().map(|&v| square(v)).sum::<f64>()).sqrt()
}

#[test]
fn decoding_agrees_with_the_reference_to_the_bit() {
    for block in BlockType::ALL {
        let (bytes, expected) = fixture(block);
        // From an odd address too: rows of a file are aligned to nothing.
        for shift in 0..2 {
            let mut moved = vec![0; shift];
            moved.extend(&bytes);
            for (i, (got, want)) in dequantize(block, &moved[shift..]).iter().zip(&expected).enumerate() {
                let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                assert!(same, "{block}, value {i}: got {got:e}, expected {want:e}");
            }
        }
    }
}

/// The error on normal values. `ideal` is the least error that fixed levels of that many bits can have on a normal
/// distribution (Lloyd and Max: 0.3428, 0.1858, 0.0975, 0.0500, 0.0254 for 2 to 6 bits; 8 bits: a uniform step of
/// 1/127 of the largest of 32 values). Scales that follow every 16 or 32 values do better than that; MXFP4's powers of
/// two do worse. `bound` is what the quantiser measures and 3 % more, so that a worse search fails. (Taking the scale
/// from the largest value alone gives Q4_0 0.086, Q4_1 0.079, Q5_0 0.043, Q5_1 0.038, MXFP4 0.116.)
#[test]
fn quantisers_lose_no_more_than_they_should() {
    let x = normal(256 * 64);
    let bounds = [
        (BlockType::F32, 0.0, 0.0),
        (BlockType::F16, 2.0e-4, 2.2e-4),
        (BlockType::BF16, 1.6e-3, 1.75e-3),
        (BlockType::Q4_0, 0.0975, 0.0808),
        (BlockType::Q4_1, 0.0975, 0.0706),
        (BlockType::Q5_0, 0.05, 0.0404),
        (BlockType::Q5_1, 0.05, 0.0342),
        (BlockType::Q8_0, 0.0052, 0.0054),
        (BlockType::Q2_K, 0.3428, 0.2685),
        (BlockType::Q3_K, 0.1858, 0.145),
        (BlockType::Q4_K, 0.0975, 0.0713),
        (BlockType::Q5_K, 0.05, 0.0352),
        (BlockType::Q6_K, 0.0254, 0.01755),
        (BlockType::IQ4_NL, 0.0975, 0.0745),
        (BlockType::IQ4_XS, 0.0975, 0.0752),
        (BlockType::MXFP4, 0.0975, 0.1144),
    ];
    let mut failed = Vec::new();
    for (block, ideal, bound) in bounds {
        let error = relative_rms(&x, &dequantize(block, &quantize(block, &x)));
        if error > bound {
            failed.push(format!("{block}: error {error:.5}, bound {bound}, ideal {ideal}"));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// What a type represents it quantises to itself. Types with codes for their sub-blocks' scales have many ways to
/// write nearly the same values and may move a little, less than a quarter of their own error.
#[test]
fn quantising_again_changes_nothing() {
    let x = normal(256 * 16);
    for block in BlockType::ALL {
        let once = dequantize(block, &quantize(block, &x));
        let twice = dequantize(block, &quantize(block, &once));
        let moved = relative_rms(&once, &twice);
        let own = relative_rms(&x, &once);
        let exact = block.block_len() <= 32;
        assert!(if exact { moved == 0.0 } else { moved < own / 4.0 }, "{block}: moved by {moved}, own {own}");
    }
}

#[test]
fn the_reference_blocks_survive_requantising() {
    for block in BlockType::ALL {
        if block.block_len() == 1 {
            let (bytes, values) = fixture(block);
            let again = dequantize(block, &quantize(block, &values));
            assert!(again.iter().zip(&values).all(|(a, b)| a == b || a.is_nan() && b.is_nan()), "{block}");
            assert_eq!(bytes.len(), block.row_bytes(values.len()));
        }
    }
}

#[test]
fn odd_inputs_stay_sane() {
    for block in BlockType::ALL.into_iter().filter(|b| b.block_len() > 1) {
        let n = 2 * block.block_len();
        let check = |what: &str, x: &[f32], ok: &dyn Fn(usize, f32) -> bool| {
            let got = dequantize(block, &quantize(block, x));
            for (i, &y) in got.iter().enumerate() {
                assert!(y.is_finite() && ok(i, y), "{block}, {what}, value {i}: {} became {y}", x[i]);
            }
        };
        check("zeros", &vec![0.0; n], &|_, y| y == 0.0);
        check("negative zeros", &vec![-0.0; n], &|_, y| y == 0.0);
        check("subnormal", &vec![1e-40; n], &|_, y| y.abs() <= 1e-38);
        check("NaN", &vec![f32::NAN; n], &|_, y| y == 0.0);
        // A NaN is a zero, and does not spoil its neighbours.
        let mut x = normal(n);
        x[5] = f32::NAN;
        let mut zeroed = x.clone();
        zeroed[5] = 0.0;
        assert_eq!(quantize(block, &x), quantize(block, &zeroed), "{block}");
        // Infinities become large numbers of their sign: at least the largest f16, Q4_1's offset.
        for sign in [1.0, -1.0] {
            let mut x = vec![0.0; n];
            x[3] = sign * f32::INFINITY;
            check("infinity", &x, &|i, y| i != 3 || y * sign >= 65504.0);
            x[3] = sign * f32::MAX;
            check("largest", &x, &|i, y| i != 3 || y * sign >= 65504.0);
        }
        // A constant is met to the accuracy of the scale, 11 bits, or 8 with MXFP4's next smaller E2M1 number.
        for c in [1.0f32, -1.0, 3e-3, -700.0] {
            let tolerance = if block == BlockType::MXFP4 { 0.17 } else { 0.02 };
            check("constant", &vec![c; n], &|_, y| (y - c).abs() <= tolerance * c.abs());
        }
        // One large value among small ones keeps its size: MXFP4 has 4 and 6, and nothing between.
        let mut x = vec![1e-3; n];
        x[n - 1] = -5.0;
        check("outlier", &x, &|i, y| {
            i != n - 1 || (y + 5.0).abs() <= if block == BlockType::MXFP4 { 1.0 } else { 0.05 }
        });
    }
}

#[test]
#[should_panic(expected = "not whole blocks of 32")]
fn half_a_block_is_refused() {
    dequantize_row(BlockType::Q4_0, &[0; 9], &mut [0.0; 16]);
}

#[test]
#[should_panic(expected = "bytes for 32 values")]
fn a_short_source_is_refused() {
    dequantize_row(BlockType::Q4_0, &[0; 17], &mut [0.0; 32]);
}
