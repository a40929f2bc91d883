//! Every codec: decoding against the reference's bits, and the error of its quantiser.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use weights::codec::{affine, dequantize_row, dequantize_rows, quantize_row, repack, try_quantize_row};
use weights::{Affine, BlockType, PlaneSlices, ScaleType};

/// Blocks and their values, written by `fixtures/codecs/make_codecs.py`.
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

/// Root of the mean squared difference, relative to the root mean square of `a`.
fn relative_rms(a: &[f32], b: &[f32]) -> f64 {
    let square = |v: f32| f64::from(v) * f64::from(v);
    let error: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    (error / a.iter().map(|&v| square(v)).sum::<f64>()).sqrt()
}

#[test]
fn decoding_agrees_with_the_reference_to_the_bit() {
    for block in BlockType::ALL.into_iter().chain(BlockType::GGUF_EXTRA) {
        let (bytes, expected) = fixture(block);
        // Odd addresses are tested too, because rows of a file have no alignment.
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

/// The error on normal values. `ideal` is the least error of fixed levels with as many bits on a
/// normal distribution (Lloyd and Max: 0.3428, 0.1858, 0.0975, 0.0500, 0.0254 for 2 to 6 bits; 8
/// bits: a uniform step of 1/127 of the largest of 32 values). Scales for every 16 or 32 values do
/// better; MXFP4's powers of two do worse. `bound` is the quantiser's measured error plus 3 %, so
/// that a worse search fails. Taking the scale from the largest value alone gives Q4_0 0.086, Q4_1
/// 0.079, Q5_0 0.043, Q5_1 0.038, MXFP4 0.116.
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

/// A type quantises its own values to themselves. Types with codes for sub-block scales have
/// several encodings of nearly equal values. They may differ by less than a quarter of their own
/// error.
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
        // A NaN becomes zero and does not affect its neighbours.
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
        // A constant is encoded with the accuracy of the scale, 11 bits, or 8 with MXFP4's next
        // smaller E2M1 number.
        for c in [1.0f32, -1.0, 3e-3, -700.0] {
            let tolerance = if block == BlockType::MXFP4 { 0.17 } else { 0.02 };
            check("constant", &vec![c; n], &|_, y| (y - c).abs() <= tolerance * c.abs());
        }
        // One large value among small ones keeps its magnitude: MXFP4 has 4 and 6, and nothing
        // between.
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

#[test]
fn types_without_a_quantiser_say_so() {
    let affine = Affine::new(4, 32, ScaleType::F16, false).unwrap();
    let planes = [BlockType::Affine(affine), BlockType::I8_ROWS, BlockType::I16_ROWS];
    for block in BlockType::GGUF_EXTRA.into_iter().chain(planes) {
        assert!(!block.has_quantizer(), "{block}");
        let mut bytes = vec![0; block.block_bytes()];
        let error = try_quantize_row(block, &vec![1.0; block.block_len()], &mut bytes).unwrap_err();
        assert!(error.to_string().contains(block.name()), "{error}");
    }
    for block in BlockType::ALL {
        let mut bytes = vec![0; block.block_bytes()];
        assert!(try_quantize_row(block, &vec![1.0; block.block_len()], &mut bytes).is_ok(), "{block}");
    }
}

/// Every affine type.
fn affine_types() -> impl Iterator<Item = Affine> {
    Affine::BITS.into_iter().flat_map(|bits| {
        Affine::GROUPS.into_iter().flat_map(move |group| {
            ScaleType::ALL.into_iter().flat_map(move |scale| {
                [false, true].map(|symmetric| Affine::new(bits, group, scale, symmetric).unwrap())
            })
        })
    })
}

/// Integers, scales and offsets of a row.
fn quantize_affine(affine: Affine, x: &[f32]) -> [Vec<u8>; 3] {
    let block = BlockType::Affine(affine);
    let mut parts = [block.row_bytes(x.len()), block.row_scale_bytes(x.len()), block.row_bias_bytes(x.len())]
        .map(|n| vec![0xaa; n]);
    let [data, scales, biases] = &mut parts;
    affine::quantize(affine, x, data, scales, biases);
    parts
}

fn dequantize_affine(affine: Affine, [data, scales, biases]: &[Vec<u8>; 3]) -> Vec<f32> {
    let mut values = vec![f32::NAN; data.len() / affine.group_bytes() * affine.group()];
    let n_cols = values.len();
    dequantize_rows(BlockType::Affine(affine), n_cols, data, PlaneSlices { scales, biases }, &mut values);
    values
}

/// The error on normal values: the quantiser's measured error with f16 scales, plus 3 %. Scales of
/// bf16 cost up to 8 % (at 8 bits, where an offset's rounding is as large as a step). Powers of
/// two, which may be off by a factor of 1.41, cost up to 70 %. MLX's own quantiser computes scale
/// and offset from the smallest and largest value. In groups of 32 its errors are 0.364, 0.172,
/// 0.0813, 0.0391, 0.0192 and 0.0048 for 2, 3, 4, 5, 6 and 8 bits.
#[test]
fn affine_quantisers_lose_no_more_than_they_should() {
    let x = normal(128 * 64);
    // Bits; then errors in groups of 32, 64 and 128: with offsets, and symmetric.
    let measured = [
        (2, [0.29651, 0.32162, 0.33480], [0.32944, 0.34538, 0.36202]),
        (3, [0.14257, 0.16128, 0.17891], [0.15822, 0.17034, 0.17993]),
        (4, [0.06780, 0.07885, 0.08792], [0.07790, 0.08593, 0.09283]),
        (5, [0.03271, 0.03840, 0.04335], [0.03892, 0.04348, 0.04760]),
        (6, [0.01599, 0.01885, 0.02155], [0.01965, 0.02201, 0.02438]),
        (8, [0.00397, 0.00465, 0.00529], [0.00482, 0.00543, 0.00601]),
    ];
    let mut failed = Vec::new();
    for affine in affine_types().filter(|&affine| affine::has_quantizer(affine)) {
        let (_, offset, symmetric) = measured.into_iter().find(|row| row.0 == affine.bits()).unwrap();
        let row = if affine.is_symmetric() { symmetric } else { offset };
        let bound = row[Affine::GROUPS.iter().position(|&g| g == affine.group()).unwrap()];
        let slack = match affine.scale() {
            ScaleType::F32 | ScaleType::F16 => 1.03,
            ScaleType::BF16 => 1.11,
            ScaleType::E8M0 => 1.75,
        };
        let error = relative_rms(&x, &dequantize_affine(affine, &quantize_affine(affine, &x)));
        if error > bound * slack {
            failed.push(format!("{affine}: error {error:.5}, bound {:.5}", bound * slack));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn odd_inputs_stay_sane_in_affine_groups() {
    for affine in affine_types().filter(|&affine| affine::has_quantizer(affine)) {
        let n = affine.group();
        let round = |x: &[f32]| dequantize_affine(affine, &quantize_affine(affine, x));
        assert!(round(&vec![0.0; n]).iter().all(|&y| y == 0.0), "{affine}: zeros");
        assert!(round(&vec![f32::NAN; n]).iter().all(|&y| y == 0.0), "{affine}: NaN");
        assert!(round(&vec![1e-40; n]).iter().all(|y| y.abs() < 1e-30), "{affine}: subnormal");
        for large in [f32::INFINITY, f32::MAX, -f32::INFINITY] {
            let mut x = vec![0.0; n];
            x[3] = large;
            let y = round(&x);
            assert!(y.iter().all(|y| y.is_finite()), "{affine}: {large} became {y:?}");
            assert!(y[3] * large.signum() >= 3e4, "{affine}: {large} became {}", y[3]);
        }
        // The tolerance is the accuracy of the scale: 8 bits or more, at worst a power of two.
        let tolerance = if affine.scale() == ScaleType::E8M0 { 0.51 } else { 0.02 };
        for c in [1.0f32, -1.0, 3e-3, -700.0] {
            let worst = round(&vec![c; n]).iter().map(|y| (y - c).abs() / c.abs()).fold(0.0, f32::max);
            assert!(worst <= tolerance, "{affine}: the constant {c} is off by {worst}");
        }
    }
}

#[test]
#[should_panic(expected = "powers of two have no sign")]
fn offsets_that_are_powers_of_two_are_refused() {
    quantize_affine(Affine::new(4, 32, ScaleType::E8M0, false).unwrap(), &[0.0; 32]);
}

#[test]
fn repacking_keeps_every_bit() {
    let mut n = 0;
    for block in BlockType::ALL {
        let Some(affine) = repack::affine_twin(block) else { continue };
        n += 1;
        assert_eq!(repack::block_twin(affine), Some(block));
        let (bytes, values) = fixture(block);
        let wide = BlockType::Affine(affine);
        let n_values = values.len();
        let sizes = [wide.row_bytes(n_values), wide.row_scale_bytes(n_values), wide.row_bias_bytes(n_values)];
        let mut parts = sizes.map(|n| vec![0xaa; n]);
        let [data, scales, biases] = &mut parts;
        assert_eq!(repack::to_affine(block, &bytes, data, scales, biases), Some(affine));
        for (i, (got, want)) in dequantize_affine(affine, &parts).iter().zip(&values).enumerate() {
            assert_eq!(got.to_bits(), want.to_bits(), "{block}, value {i}");
        }
        let mut back = vec![0x55; bytes.len()];
        let [data, scales, biases] = &parts;
        assert_eq!(repack::from_affine(affine, data, scales, biases, &mut back), Some(block));
        assert_eq!(back, bytes, "{block}");
    }
    assert_eq!(n, 5);
    assert_eq!(repack::affine_twin(BlockType::Q4_K), None);
    assert_eq!(repack::block_twin(Affine::new(4, 64, ScaleType::F16, true).unwrap()), None);
}

#[test]
#[should_panic(expected = "use dequantize_rows")]
fn planes_are_not_forgotten() {
    dequantize_row(BlockType::I8_ROWS, &[0; 4], &mut [0.0; 4]);
}

#[test]
#[should_panic(expected = "bytes of scales")]
fn missing_scales_are_refused() {
    dequantize_rows(
        BlockType::I8_ROWS,
        2,
        &[0; 4],
        PlaneSlices { scales: &[0; 4], biases: &[] },
        &mut [0.0; 4],
    );
}
