//! Operations that a product's dispatch does on its results, for few rows and for tiles: gate,
//! residual, softcap, search for the largest output.

use super::*;

/// The launch, and the same tiles on tensor units.
fn tiles_both_ways(launch: Launch) -> Vec<Launch> {
    if launch.function.contains("gemm") { launch.with_tensors().into() } else { vec![launch] }
}

#[test]
fn gate_and_up_with_every_activation() {
    let mut rng = Rng::new(4);
    for (file, name, block, n_in) in sample() {
        for kind in 0..5 {
            let n_out = 35;
            let [gate, up] = [0, 1].map(|_| stored(&mut rng, "w", n_out, n_in, block, 0.1));
            let biases = [0, 1].map(|_| normal(&mut rng, n_out));
            let x = normal(&mut rng, 2 * n_in);
            let [g, u] = [(&gate, &biases[0]), (&up, &biases[1])]
                .map(|(w, bias)| with_bias(&products(&x, n_in, w), bias));
            let expected = gated(kind, &g, &u);
            for (function, grid, threads, bound) in [
                ("gemv_1", [18, 2, 1], 32, F32_BOUND),
                ("gemv_1x8", [9, 2, 1], 32, F32_BOUND),
                ("gemv_2", [9, 1, 1], 64, F32_BOUND),
                ("gemm_32", [1, 2, 1], 128, HALF_BOUND),
            ] {
                let launch = launch(file, format!("linear_{name}_{function}"), block, n_in)
                    .flag(GATE, true)
                    .flag(BIAS, true)
                    .number(ACTIVATION, kind as u32)
                    .number(WEIGHTS, 2)
                    .arguments(&arguments(block, n_in, 1, &[n_out, n_out]))
                    .floats(1, &x)
                    .floats(12, &biases[0])
                    .floats(13, &biases[1])
                    .output(16, 2 * n_out)
                    .words(20, &step(2, 0, 1, 0, 0))
                    .grid(grid, threads);
                let what = format!("{name} {function} activation {kind}");
                for launch in tiles_both_ways(bind(bind(launch, 0, &gate), 1, &up)) {
                    check(&what, &launch.run().floats(16), &expected, bound);
                }
            }
        }
    }
}

/// A gate of columns of rows that have others too.
#[test]
fn a_gate_of_what_is_given() {
    let mut rng = Rng::new(24);
    for (file, name, block, n_in) in sample() {
        let (n_out, stride, first) = (35, 50, 9);
        let w = stored(&mut rng, "w", n_out, n_in, block, 0.1);
        let bias = normal(&mut rng, n_out);
        let (x, up) = (normal(&mut rng, 3 * n_in), normal(&mut rng, 3 * stride));
        let opened = with_bias(&products(&x, n_in, &w), &bias);
        let columns = up.chunks(stride).flat_map(|row| &row[first..first + n_out]);
        let columns: Vec<_> = columns.map(|v| (f64::from(*v), 0.0)).collect();
        let mut words = arguments(block, n_in, 1, &[n_out]);
        words[12] = stride as u32;
        for (kind, function, grid, threads, bound) in [
            (1, "gemv_1", [9, 3, 1], 32, F32_BOUND),
            (2, "gemv_1x8", [5, 3, 1], 32, F32_BOUND),
            (0, "gemv_4", [9, 1, 1], 64, F32_BOUND),
            (1, "gemm_32", [1, 1, 1], 128, gemm_bound(block)),
            (3, "gemm_64", [1, 1, 1], 128, gemm_bound(block)),
        ] {
            let launch = launch(file, format!("linear_{name}_{function}"), block, n_in)
                .flag(UP, true)
                .flag(BIAS, true)
                .number(ACTIVATION, kind as u32)
                .arguments(&words)
                .floats(1, &x)
                .floats(12, &bias)
                .floats(15, &up[first..])
                .output(16, 3 * n_out)
                .words(20, &step(3, 0, 1, 0, 0))
                .grid(grid, threads);
            for launch in tiles_both_ways(bind(launch, 0, &w)) {
                let out = launch.run().floats(16);
                check(&format!("{name} {function}"), &out, &gated(kind, &opened, &columns), bound);
            }
        }
    }
}

/// Products of a row, scaled by a gate of the row, and the residual to which they are added.
#[test]
fn a_gate_of_whole_rows() {
    let mut rng = Rng::new(25);
    for (file, name, block, n_in) in sample() {
        let n_out = 35;
        let w = stored(&mut rng, "w", n_out, n_in, block, 0.1);
        let (x, residual) = (normal(&mut rng, 3 * n_in), normal(&mut rng, 3 * n_out));
        let row_gate = [-1.5f32, 0.25, 30.0];
        let through = |(i, (value, size)): (usize, (f64, f64))| {
            let (open, r) = (activate(4, f64::from(row_gate[i / n_out])), f64::from(residual[i]));
            (r + open * value, r.abs() + open * size)
        };
        let expected: Vec<_> = products(&x, n_in, &w).into_iter().enumerate().map(through).collect();
        for (function, grid, threads, bound) in [
            ("gemv_1", [9, 3, 1], 32, F32_BOUND),
            ("gemv_1x8", [3, 3, 1], 64, F32_BOUND),
            ("gemv_4", [9, 1, 1], 64, F32_BOUND),
            ("gemm_32", [1, 1, 1], 128, gemm_bound(block)),
            ("gemm_64", [1, 1, 1], 128, gemm_bound(block)),
        ] {
            let launch = launch(file, format!("linear_{name}_{function}"), block, n_in)
                .flag(RESIDUAL, true)
                .flag(ROW_GATE, true)
                .arguments(&arguments(block, n_in, 1, &[n_out]))
                .floats(1, &x)
                .floats(15, &residual)
                .output(16, 3 * n_out)
                .words(20, &step(3, 0, 1, 0, 0))
                .floats(21, &row_gate)
                .grid(grid, threads);
            for launch in tiles_both_ways(bind(launch, 0, &w)) {
                check(&format!("{name} {function}"), &launch.run().floats(16), &expected, bound);
            }
        }
    }
}

#[test]
fn residual_softcap_and_the_largest_output() {
    let mut rng = Rng::new(5);
    for (file, name, block, n_in) in sample() {
        let n_out = 67;
        let mut w = stored(&mut rng, "w", n_out, n_in, block, 0.3);
        // Two equal rows: the first of them is the largest where they are.
        let row = block.row_bytes(n_in);
        let mut data = w.data.to_vec();
        data.copy_within(5 * row..6 * row, 60 * row);
        if name == "affine_4" {
            let scale = block.row_scale_bytes(n_in);
            let mut planes = [w.planes.as_slices().scales.to_vec(), w.planes.as_slices().biases.to_vec()];
            planes.iter_mut().for_each(|p| p.copy_within(5 * scale..6 * scale, 60 * scale));
            w.planes.scales = Some(weights::Bytes::from_slice(&planes[0]));
            w.planes.biases = Some(weights::Bytes::from_slice(&planes[1]));
        }
        w.data = weights::Bytes::from_slice(&data);
        let mut decoded = vec![0.0; n_in];
        w.decode_rows(5..6, &mut decoded);
        let mut x = normal(&mut rng, 3 * n_in);
        x[n_in..2 * n_in].copy_from_slice(&decoded.iter().map(|v| v * 10.0).collect::<Vec<_>>());
        let residual = normal(&mut rng, 3 * n_out);

        // Softcap and argmax of three output rows, for any number of tokens.
        for (rows, n, split) in [(4, 1, 1), (4, 4, 1), (4, 4, 2), (8, 1, 1), (8, 1, 2)] {
            let groups = n_out.div_ceil(rows).div_ceil(4 / split);
            let function = if rows == 8 { "gemv_1x8".to_owned() } else { format!("gemv_{n}") };
            let launch = launch(file, format!("linear_{name}_{function}"), block, n_in)
                .flag(SOFTCAP, true)
                .flag(ARGMAX, true)
                .number(SPLIT, split as u32)
                .arguments(&arguments(block, n_in, 0, &[n_out]))
                .floats(1, &x)
                .output(16, 3 * n_out)
                .output(19, 3 * groups * 2)
                .words(20, &step(77, 3, 1, 0, 0))
                .grid([groups, 3usize.div_ceil(n), 1], 128);
            let outcome = bind(launch, 0, &w).run();
            let out = outcome.floats(16);
            let capped = |(v, s): &(f64, f64)| (3.0 * (v / 3.0).tanh(), s + 3.0);
            let expected: Vec<_> = products(&x, n_in, &w).iter().map(capped).collect();
            check(name, &out, &expected, F32_BOUND);
            let partials = outcome.words(19);
            for (row, out) in out.chunks_exact(n_out).enumerate() {
                let best = |best: usize, i: usize| if out[i] > out[best] { i } else { best };
                let expected = (0..n_out).fold(0, best);
                let partials = &partials[row * groups * 2..(row + 1) * groups * 2];
                let found = partials.chunks_exact(2).map(|p| (f32::from_bits(p[0]), p[1] as usize));
                let found = found.reduce(|a, b| if b.0 > a.0 { b } else { a }).unwrap();
                assert_eq!(found, (out[expected], expected), "{name} row {row}");
            }
            assert_eq!(out[n_out + 5], out[n_out + 60]);
        }

        let expected: Vec<_> = products(&x, n_in, &w)
            .iter()
            .zip(&residual)
            .map(|((v, s), r)| (v + f64::from(*r), s + f64::from(r.abs())))
            .collect();
        for (function, grid, threads, bound) in
            [("gemv_2", [9, 2, 1], 64, F32_BOUND), ("gemm_64", [1, 2, 1], 128, HALF_BOUND)]
        {
            let launch = launch(file, format!("linear_{name}_{function}"), block, n_in)
                .flag(RESIDUAL, true)
                .arguments(&arguments(block, n_in, 1, &[n_out]))
                .floats(1, &x)
                .floats(15, &residual)
                .output(16, 3 * n_out)
                .words(20, &step(3, 0, 1, 0, 0))
                .grid(grid, threads);
            for launch in tiles_both_ways(bind(launch, 0, &w)) {
                check(&format!("{name} {function}"), &launch.run().floats(16), &expected, bound);
            }
        }
    }
}

#[test]
fn steps_without_rows_write_nothing() {
    let mut rng = Rng::new(15);
    let w = stored(&mut rng, "w", 9, 64, BlockType::Q4_0, 0.3);
    let x = normal(&mut rng, 64);
    let file = "linear/q4_0.metal";
    // A step without outputs; the grid is that of one output.
    let none = |launch: Launch| {
        let launch =
            launch.arguments(&arguments(BlockType::Q4_0, 64, 0, &[9])).words(20, &step(1, 0, 1, 0, 0));
        assert!(launch.output(16, 9).run().floats(16).iter().all(|v| v.is_nan()));
    };
    none(gemv(file, "q4_0", 1, 1, &x, &w));
    none(gemv(file, "q4_0", 4, 1, &x, &w).flag(ARGMAX, true));
    none(gemm(file, "q4_0", 32, 1, &x, &w));
}
