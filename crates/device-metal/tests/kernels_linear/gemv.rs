//! GEMV: one, two, four and eight rows, and eight rows of a weight at a time; up to three weights
//! of one x; and the bytes that are read.

use super::*;

#[test]
fn gemv_of_every_type_and_number_of_rows() {
    let mut rng = Rng::new(1);
    for (file, name, block, n_in) in types() {
        // The second eight rows of the weight are not all there, nor the last four.
        let n_out = 11;
        let w = stored(&mut rng, "w", n_out, n_in, block, 0.3);
        let x = normal(&mut rng, 9 * n_in);
        let expected = products(&x, n_in, &w);
        let mut bits: Vec<f32> = vec![];
        // Nine rows: the last block of 2, 4 and 8 is not full.
        for n in [1, 2, 4, 8] {
            let out = gemv(file, name, n, 9, &x, &w).run().floats(16);
            check(&format!("{name} {n_in} gemv_{n}"), &out, &expected, F32_BOUND);
            if n == 1 {
                bits = out;
            } else {
                assert!(bits == out, "{name} gemv_{n}: a row has other bits than alone");
            }
        }
        let wide = gemv_wide(file, name, 9, &x, &w).run().floats(16);
        assert!(bits == wide, "{name}: eight rows of the weight at a time give other bits");
    }
}

#[test]
fn gemv_of_three_weights_after_a_norm_however_its_columns_are_split() {
    let mut rng = Rng::new(3);
    for (file, name, block, n_in) in sample() {
        let n_out = [9, 4, 6];
        let weights = n_out.map(|n_out| stored(&mut rng, "w", n_out, n_in, block, 0.3));
        let biases = n_out.map(|n_out| normal(&mut rng, n_out));
        let (x, norm) = (normal(&mut rng, 3 * n_in), normal(&mut rng, n_in));
        // Blocks of the three weights, and rows of threadgroups.
        let [four, wide] = [("gemv_4", 3usize + 1 + 2, 1), ("gemv_1x8", 2 + 1 + 1, 3)];
        for (split, (function, n_blocks, n_groups)) in [(1, four), (2, four), (4, four), (1, wide), (2, wide)]
        {
            let mut launch = launch(file, format!("linear_{name}_{function}"), block, n_in)
                .flag(NORM, true)
                .flag(BIAS, true)
                .number(WEIGHTS, 3)
                .number(SPLIT, split as u32)
                .arguments(&arguments(block, n_in, 1, &n_out))
                .floats(1, &x)
                .floats(2, &norm)
                .words(20, &step(3, 0, 1, 0, 0))
                .grid([n_blocks.div_ceil(4 / split), n_groups, 1], 128);
            for i in 0..3 {
                launch = bind(launch, i as u32, &weights[i])
                    .floats(12 + i as u32, &biases[i])
                    .output(16 + i as u32, 3 * n_out[i]);
            }
            let outcome = launch.run();
            for i in 0..3 {
                let expected = products(&normalised(&x, &norm), n_in, &weights[i]);
                let expected = with_bias(&expected, &biases[i]);
                check(
                    &format!("{name} {function} split {split} weight {i}"),
                    &outcome.floats(16 + i as u32),
                    &expected,
                    F32_BOUND,
                );
            }
        }
    }
}

#[test]
fn the_last_of_three_weights_may_have_another_type() {
    use BlockType::*;
    let mut rng = Rng::new(14);
    let (n_in, n_out) = (512, [9, 5, 6]);
    for (name, block, last) in [
        ("q2_k_q4_k", Q2_K, Q4_K),
        ("q3_k_q5_k", Q3_K, Q5_K),
        ("q4_k_q5_k", Q4_K, Q5_K),
        ("q4_k_q6_k", Q4_K, Q6_K),
        ("q5_0_q8_0", Q5_0, Q8_0),
        ("q5_k_q6_k", Q5_K, Q6_K),
    ] {
        let weights =
            [(block, 0), (block, 1), (last, 2)].map(|(b, i)| stored(&mut rng, "w", n_out[i], n_in, b, 0.3));
        let (x, norm) = (normal(&mut rng, n_in), normal(&mut rng, n_in));
        for (function, n_blocks) in [("gemv_1", 3usize + 2 + 2), ("gemv_1x8", 2 + 1 + 1)] {
            let mut launch = launch("linear/mixed.metal", format!("linear_{name}_{function}"), block, n_in)
                .flag(NORM, true)
                .number(WEIGHTS, 3)
                .number(SPLIT, 2)
                .arguments(&arguments(block, n_in, 1, &n_out))
                .floats(1, &x)
                .floats(2, &norm)
                .words(20, &step(1, 0, 1, 0, 0))
                .grid([n_blocks.div_ceil(2), 1, 1], 128);
            for i in 0..3 {
                launch = bind(launch, i as u32, &weights[i]).output(16 + i as u32, n_out[i]);
            }
            let outcome = launch.run();
            for (i, weight) in weights.iter().enumerate() {
                let expected = products(&normalised(&x, &norm), n_in, weight);
                let what = format!("{name} {function} weight {i}");
                check(&what, &outcome.floats(16 + i as u32), &expected, F32_BOUND);
            }
        }
    }
}

#[test]
fn a_gemv_reads_its_weight_once_and_its_row_s_bytes_only() {
    let mut rng = Rng::new(11);
    let (n_out, n_in, block) = (64, 512, BlockType::Q4_0);
    let w = stored(&mut rng, "w", n_out, n_in, block, 0.3);
    let source = source_of(&["q4_0"], &["linear_*_gemv_1", "linear_*_gemv_8"]);
    for (n, n_rows) in [(1, 1), (8, 8)] {
        let x = normal(&mut rng, n_rows * n_in);
        let counters = gemv("linear/q4_0.metal", "q4_0", n, n_rows, &x, &w).at(3, 0).count(&source);
        let of = |index: u32| *counters.buffers.iter().find(|b| b.index == index).unwrap();
        // Every byte of the blocks is loaded, none twice: but for d, which two lanes share.
        let bytes = w.data.len() as u64;
        assert_eq!(of(3).read, bytes + (n_out * n_in / 32 * 2) as u64);
        assert_eq!(of(3).read_once, bytes);
        assert_eq!(of(1).read_once, (n_rows * n_in * 4) as u64);
        assert_eq!(of(16).written, (n_rows * n_out * 4) as u64);
        assert_eq!(counters.threadgroup_barriers, 0);
    }
}

/// With a norm, eight rows of the weight at a time load as many bytes of x and the norm as four
/// rows load of x alone.
#[test]
fn eight_rows_of_a_weight_share_x_and_its_norm() {
    let mut rng = Rng::new(15);
    let (n_out, n_in, block) = (64, 512, BlockType::Q4_0);
    let w = stored(&mut rng, "w", n_out, n_in, block, 0.3);
    let (x, norm) = (normal(&mut rng, n_in), normal(&mut rng, n_in));
    let source = source_of(&["q4_0"], &["linear_*_gemv_1", "linear_*_gemv_1x8"]);
    let loads = |launch: Launch| {
        let counters = launch.at(3, 0).floats(2, &norm).count(&source);
        [1, 2, 3].map(|index| counters.buffers.iter().find(|b| b.index == index).map_or(0, |b| b.read))
    };
    let file = "linear/q4_0.metal";
    let [x_of_four, _, weights] = loads(gemv(file, "q4_0", 1, 1, &x, &w));
    assert_eq!(x_of_four, (n_out / 4 * n_in * 4) as u64);
    let normed = loads(gemv_wide(file, "q4_0", 1, &x, &w).flag(NORM, true));
    assert_eq!(normed, [x_of_four / 2, x_of_four / 2, weights]);
}

/// Affine codes of 4 and 8 bits at multiples of a span's bytes are loaded as one vector, with the
/// same results.
#[test]
fn aligned_affine_codes_give_the_same_bits() {
    let mut rng = Rng::new(16);
    let affine = |bits, group, scale, symmetric| {
        BlockType::Affine(Affine::new(bits, group, scale, symmetric).unwrap())
    };
    for (bits, block, n_in) in [
        (4, affine(4, 64, ScaleType::F16, false), 192),
        (4, affine(4, 32, ScaleType::BF16, true), 544),
        (8, affine(8, 32, ScaleType::BF16, false), 96),
        (8, affine(8, 128, ScaleType::F32, true), 640),
    ] {
        let (n_out, n_rows, name) = (11, 3, format!("affine_{bits}"));
        let file = if bits == 4 { "linear/affine_4.metal" } else { "linear/affine_8.metal" };
        let w = stored(&mut rng, "w", n_out, n_in, block, 0.3);
        let x = normal(&mut rng, n_rows * n_in);
        let table = [n_in, block.row_bytes(n_in), block.row_scale_bytes(n_in)].map(|n| n as u32);
        let embed = launch(file, format!("embed_{name}"), block, n_in)
            .arguments(&[table[0], table[1], table[2], 1f32.to_bits(), 0, 0, 0, 0])
            .words(1, &[10, 0, 3])
            .words(2, &[0])
            .output(16, n_rows * n_in)
            .words(20, &step(n_rows, 0, 1, 0, 0))
            .grid([1, n_rows, 1], 32);
        let launches = [
            gemv(file, &name, 4, n_rows, &x, &w),
            gemv_wide(file, &name, n_rows, &x, &w),
            gemm(file, &name, 32, n_rows, &x, &w),
            bind(embed, 0, &w),
        ];
        let expected = products(&x, n_in, &w);
        for launch in launches {
            let narrow = launch.clone().run();
            let wide = launch.clone().flag(AFFINE_WIDE, true).at(3, 2 * bits).run();
            assert!(narrow.buffers[&16] == wide.buffers[&16], "{} {block}", launch.function);
            if launch.function.contains("gemv") {
                check(&launch.function, &wide.floats(16), &expected, F32_BOUND);
            }
        }
    }
}
