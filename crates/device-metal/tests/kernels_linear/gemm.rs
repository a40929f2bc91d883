//! Tiles of 32 and 64 rows.

use super::*;

#[test]
fn gemm_of_every_type() {
    let mut rng = Rng::new(2);
    for (file, name, block, n_in) in types() {
        for (bx, n_out, n_rows, bounded) in [(32, 70, 35, false), (64, 61, 67, true)] {
            let w = stored(&mut rng, "w", n_out, n_in, block, 0.3);
            let x = normal(&mut rng, n_rows * n_in);
            let out = gemm(file, name, bx, n_rows, &x, &w).flag(BOUNDED, bounded).run().floats(16);
            check(&format!("{name} {n_in} gemm_{bx}"), &out, &products(&x, n_in, &w), gemm_bound(block));
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
    let outcome = launch.run();
    for i in 0..3 {
        let expected = with_bias(&products(&x, n_in, &weights[i]), &biases[i]);
        check(&format!("weight {i}"), &outcome.floats(16 + i as u32), &expected, HALF_BOUND);
    }
}

#[test]
fn halves_saturate() {
    // 1e6 is 65504 as a half: the product of a GEMM is large and finite.
    let w = stored(&mut Rng::new(7), "w", 64, 32, BlockType::Q8_0, 0.3);
    let launch = gemm("linear/q8_0.metal", "q8_0", 32, 1, &[1e6; 32], &w);
    assert!(launch.run().floats(16).iter().all(|v| v.is_finite()));
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
