//! Tiles of 32 and 64 rows.

use super::*;
use ingle_device_metal::kernels;

#[test]
fn gemm_of_every_type() {
    let mut rng = Rng::new(2);
    for (i, (file, name, block, n_in)) in types().into_iter().enumerate() {
        // A file is compiled again for tensor units, so quick runs do so for some types.
        let ways = if i % every(6) == 0 { 2 } else { 1 };
        for (bx, n_out, n_rows, bounded) in [(32, 70, 35, false), (64, 61, 67, true)] {
            let w = stored(&mut rng, "w", n_out, n_in, block, 0.3);
            let x = normal(&mut rng, n_rows * n_in);
            let expected = products(&x, n_in, &w);
            let launches = gemm(file, name, bx, n_rows, &x, &w).flag(BOUNDED, bounded).with_tensors();
            for launch in launches.into_iter().take(ways) {
                let what = format!("{name} {n_in} gemm_{bx}, tensors {}", launch.tensors);
                check(&what, &launch.run().floats(16), &expected, gemm_bound(block));
            }
        }
    }
}

#[test]
fn gemm_of_three_weights() {
    let mut rng = Rng::new(6);
    let (n_in, n_out, n_rows) = (96, [70, 64, 3], 33);
    let block = BlockType::Q4_0;
    let weights = n_out.map(|n_out| stored(&mut rng, "w", n_out, n_in, block, 0.3));
    let biases = n_out.map(|n_out| normal(&mut rng, n_out));
    let x = normal(&mut rng, n_rows * n_in);
    let mut launch = launch("linear/q4_0.metal", "linear_q4_0_gemm_32".to_owned(), block, n_in)
        .flag(BIAS, true)
        .number(WEIGHTS, 3)
        .arguments(&arguments(block, n_in, 1, &n_out))
        .floats(1, &x)
        .words(20, &step(n_rows, 0, 1, 0, 0))
        .grid([2, 2 + 1 + 1, 1], 128);
    for i in 0..3 {
        launch = bind(launch, i as u32, &weights[i])
            .floats(12 + i as u32, &biases[i])
            .output(16 + i as u32, n_rows * n_out[i]);
    }
    for launch in launch.with_tensors() {
        let outcome = launch.run();
        for i in 0..3 {
            let expected = with_bias(&products(&x, n_in, &weights[i]), &biases[i]);
            check(&format!("weight {i}"), &outcome.floats(16 + i as u32), &expected, HALF_BOUND);
        }
    }
}

#[test]
fn halves_saturate() {
    // 1e6 is 65504 as a half: the product of a GEMM is large and finite.
    let w = stored(&mut Rng::new(7), "w", 64, 32, BlockType::Q8_0, 0.3);
    let launch = gemm("linear/q8_0.metal", "q8_0", 32, 1, &[1e6; 32], &w);
    for launch in gemm("linear/q8_0.metal", "q8_0", 32, 1, &[1e6; 32], &w).with_tensors() {
        assert!(launch.run().floats(16).iter().all(|v| v.is_finite()));
    }
    // If the caller says that x is bounded, nothing is clamped.
    assert!(launch.flag(BOUNDED, true).run().floats(16).iter().any(|v| !v.is_finite()));
}

/// Blocks whose half scale is the largest have values beyond a half, which saturate too.
#[test]
fn weights_saturate() {
    use BlockType::*;
    let mut rng = Rng::new(31);
    // Bytes from a block's start to its scale.
    for (file, name, block, n_in, scale_at) in [
        ("linear/q4_0.metal", "q4_0", Q4_0, 32, 0),
        ("linear/q8_0.metal", "q8_0", Q8_0, 32, 0),
        ("linear/q4_k.metal", "q4_k", Q4_K, 256, 0),
        ("linear/q5_k.metal", "q5_k", Q5_K, 256, 0),
        ("linear/q6_k.metal", "q6_k", Q6_K, 256, 208),
        ("linear/iq4_nl.metal", "iq4_nl", IQ4_NL, 32, 0),
    ] {
        let w = stored(&mut rng, "w", 64, n_in, block, 0.3);
        let mut data = w.data.to_vec();
        for block in data.chunks_exact_mut(block.row_bytes(n_in)) {
            block[scale_at..scale_at + 2].copy_from_slice(&0x7bff_u16.to_le_bytes());
        }
        // Each row of x has one column of the weight.
        let x: Vec<f32> =
            (0..n_in).flat_map(|row| (0..n_in).map(move |c| f32::from(u8::from(c == row)))).collect();
        let w = Weight { data: weights::Bytes::from_slice(&data), ..w };
        let out = gemm(file, name, 64, n_in, &x, &w).run().floats(16);
        let most = out.iter().fold(0.0f32, |most, v| most.max(v.abs()));
        assert!(out.iter().all(|v| v.is_finite()) && (30_000.0..=65_504.0).contains(&most), "{name}: {most}");
    }
}

/// Blocks of eight scales and mins may have any `d` and `dmin`, also of opposite signs. No value is
/// infinite, and 32 values that fit in a half are right.
#[test]
fn any_scales_and_mins_stay_halves() {
    const MOST: f32 = 65504.0;
    let mut rng = Rng::new(33);
    let (n_out, n_in) = (64, 256);
    for (file, name, block) in
        [("linear/q4_k.metal", "q4_k", BlockType::Q4_K), ("linear/q5_k.metal", "q5_k", BlockType::Q5_K)]
    {
        let w = stored(&mut rng, "w", n_out, n_in, block, 0.3);
        let mut data = w.data.to_vec();
        for (row, block) in data.chunks_exact_mut(block.row_bytes(n_in)).enumerate() {
            // The largest halves of each pair of signs, some whose values reach the limit, others
            // of any finite size.
            let halves: [usize; 2] = [0, 1].map(|i| match row {
                0..4 => 0x7bff | (row >> i & 1) << 15,
                4..32 => (0x6000 - 0x1000 * i + rng.below(0x1000)) | (rng.below(2) << 15),
                _ => rng.below(0x7c00) | (rng.below(2) << 15),
            });
            for (i, half) in halves.into_iter().enumerate() {
                block[2 * i..2 * i + 2].copy_from_slice(&(half as u16).to_le_bytes());
            }
            // The lowest and the highest code of each 32 columns.
            for at in (16..block.len()).step_by(32) {
                (block[at], block[at + 1]) = (0, 0xff);
            }
        }
        // Each row of x has one column of the weight.
        let x: Vec<f32> =
            (0..n_in).flat_map(|row| (0..n_in).map(move |c| f32::from(u8::from(c == row)))).collect();
        let w = Weight { data: weights::Bytes::from_slice(&data), ..w };
        let mut values = vec![0.0; n_out * n_in];
        w.decode_rows(0..n_out, &mut values);
        let fits: Vec<bool> = values.chunks_exact(32).map(|v| v.iter().all(|v| v.abs() <= MOST)).collect();
        for launch in gemm(file, name, 64, n_in, &x, &w).with_tensors() {
            for (i, found) in launch.run().floats(16).into_iter().enumerate() {
                let at = i % n_out * n_in + i / n_out;
                let error = (found - values[at]).abs();
                let is_right = !fits[at / 32] || error <= values[at].abs() / 2048.0 + 1e-6;
                assert!(is_right && found.abs() <= MOST, "{name} {at}: {found}, {}", values[at]);
            }
        }
        let n_fit = fits.iter().filter(|fits| **fits).count();
        assert!((100..400).contains(&n_fit), "{name}: {n_fit} of 512 fit in halves");
    }
}

/// Half of a tile's simdgroups have the first half of its rows of x.
#[test]
fn simdgroups_without_rows_multiply_nothing() {
    let mut rng = Rng::new(14);
    let (n_in, n_out, block) = (96, 70, BlockType::Q4_0);
    let w = stored(&mut rng, "w", n_out, n_in, block, 0.3);
    for (bx, n_rows, halves) in [(32, 16, 1), (32, 17, 2), (64, 9, 1), (64, 33, 2), (64, 96, 3)] {
        let x = normal(&mut rng, n_rows * n_in);
        let outcome = gemm("linear/q4_0.metal", "q4_0", bx, n_rows, &x, &w).run();
        check(&format!("{n_rows} rows by {bx}"), &outcome.floats(16), &products(&x, n_in, &w), HALF_BOUND);
        // Two tiles of the weight, each of 64 rows by bx / 2 of x.
        let products = halves * 2 * (64 / 8) * (bx / 16) * (n_in / 8);
        assert_eq!(outcome.counters.simdgroup.matrix_multiplies, products as u64, "{n_rows} rows by {bx}");
    }
}

/// Several stages of columns, of which the last may be short, and tiles that are full or not.
#[test]
fn tensor_units_at_odd_sizes() {
    let mut rng = Rng::new(31);
    for (name, block, n_in) in [
        ("q4_0", BlockType::Q4_0, 64),
        ("q4_0", BlockType::Q4_0, 160),
        ("q4_k", BlockType::Q4_K, 512),
        ("f32", BlockType::F32, 1),
        ("f32", BlockType::F32, 65),
        ("f32", BlockType::F32, 200),
    ] {
        let file = kernels::linear_file(block).unwrap();
        for (bx, n_rows, n_out) in [(32, 1, 1), (32, 64, 64), (64, 65, 33), (64, 64, 128), (32, 33, 130)] {
            let w = stored(&mut rng, "w", n_out, n_in, block, 0.3);
            let x = normal(&mut rng, n_rows * n_in);
            let [_, launch] = gemm(file, name, bx, n_rows, &x, &w).with_tensors();
            let outcome = launch.run();
            let what = format!("{name} {n_in} by {n_out}, {n_rows} rows by {bx}");
            check(&what, &outcome.floats(16), &products(&x, n_in, &w), gemm_bound(block));
            // Each of four simdgroups multiplies both halves of a tile of weights.
            let stages = (n_rows.div_ceil(bx) * n_out.div_ceil(64) * n_in.div_ceil(64)) as u64;
            assert_eq!(outcome.counters.simdgroup.tensor_products, stages * 2 * 4, "{what}");
            assert_eq!(outcome.counters.threadgroup_barriers, stages * 2, "{what}");
            assert_eq!(outcome.counters.simdgroup.matrix_multiplies, 0, "{what}");
        }
    }
}

/// Tensor units are used if their probe passes: it compiles, and its products are right.
#[test]
fn the_probe_of_tensor_units() {
    use ingle_device_metal::gpu::Gpu as _;
    use ingle_device_metal::gpu::emulated::{EmulatedGpu, Options};
    use ingle_device_metal::tensors;
    const FILE: &str = "tensor_probe.metal";
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/shaders");
    let open = |replaced: Option<String>| {
        let gpu = |tensors| {
            let replaced = replaced.clone().map(|text| (FILE, text)).into_iter().collect();
            EmulatedGpu::new(&Options { tensors, replaced, ..Options::new(cache) })
        };
        tensors::open(gpu).unwrap()
    };
    let (gpu, refused) = open(None);
    assert!(gpu.facts().has_tensors && refused.is_none(), "{refused:?}");
    let text = kernels::Kernel::of(FILE).text().unwrap();
    for (from, to, expected) in [
        ("= T(memory.w[", "= T(2.0f * memory.w[", "element (0, 0) of product 0 "),
        (
            "multiply<half, 64, 32, true, false>(rows",
            "multiply<half, 64, 32, true, false>(halves",
            "(1, 0) of product 1 ",
        ),
        ("i % n * N + i / n]", "i / n * n + i % n]", "of product 11 "),
        // An accumulator of halves.
        ("sums[i] *= 2.0f", "sums[i] = float(half(2.0f * sums[i]))", "of product 0 "),
        (
            "typedef DeviceTile Tile",
            "typedef tensor<device const float, dextents<int, 2>, tensor_inline> Tile",
            "tensor",
        ),
    ] {
        assert!(text.contains(from));
        let (gpu, refused) = open(Some(text.replace(from, to)));
        let refused = refused.unwrap().to_string();
        assert!(!gpu.facts().has_tensors && refused.contains(expected), "{refused}");
    }
}
