//! Tiles of 32 and 64 rows.

use super::*;

#[test]
fn gemm_of_every_type() {
    let mut rng = Rng::new(2);
    for (i, (file, name, block, n_in)) in types().into_iter().enumerate() {
        let (n_out, n_rows) = (70, 35);
        let w = stored(&mut rng, "w", n_out, n_in, block, 0.3);
        let x = normal(&mut rng, n_rows * n_in);
        let expected = products(&x, n_in, &w);
        let bx = [32, 64][i % 2];
        let out = gemm(file, name, bx, n_rows, &x, &w).run().floats(16);
        check(&format!("{name} {n_in} gemm_{bx}"), &out, &expected, gemm_bound(block));
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
        .grid([2 + 1 + 1, 2, 1], 128);
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
    let out = gemm("linear/q8_0.metal", "q8_0", 32, 1, &[1e6; 32], &w).run().floats(16);
    assert!(out.iter().all(|v| v.is_finite()));
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
