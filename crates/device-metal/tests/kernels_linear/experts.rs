//! Products with chosen experts, row by row and in groups of rows.

use super::*;

/// A stack of experts in one buffer, in an order of its own: the buffer, and bytes to codes, scales
/// and offsets of each.
pub(super) fn stack(experts: &[Weight]) -> (Vec<u8>, Vec<u8>) {
    let (mut bytes, mut places) = (vec![0; 64], vec![[0u64; 3]; experts.len()]);
    let mut put = |data: &[u8]| {
        let at = bytes.len() as u64;
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        at
    };
    for (expert, w) in experts.iter().enumerate().rev() {
        let planes = w.planes.as_slices();
        places[expert] = [put(&w.data), put(planes.scales), put(planes.biases)];
    }
    let places =
        (0..3).flat_map(|plane| places.iter().map(move |p| p[plane])).flat_map(u64::to_le_bytes).collect();
    (bytes, places)
}

/// ExpertArguments, which begin with LinearArguments, without a dense weight.
pub(super) fn expert_arguments(
    block: BlockType,
    n_in: usize,
    n_out: usize,
    n_experts: usize,
    k: usize,
) -> [u32; 20] {
    let mut words = [0; 20];
    words[..16].copy_from_slice(&arguments(block, n_in, 1, &[n_out]));
    (words[10], words[11]) = (n_experts as u32, k as u32);
    words
}

/// The weighed sum of the experts of one row, and a dense product of another width that has nothing
/// to do with it.
#[test]
fn a_dense_product_beside_the_experts() {
    let mut rng = Rng::new(18);
    for (file, name, block, n_in) in sample() {
        let (n_experts, k, n_out, dense_in) = (4, 3, 7, 2 * n_in);
        let experts = Vec::from_iter((0..n_experts).map(|_| stored(&mut rng, "w", n_out, n_in, block, 0.1)));
        let dense = stored(&mut rng, "dense", n_out, dense_in, block, 0.1);
        let (ids, chosen) = ([3u32, 0, 2], [0.5f32, 0.3, 0.2]);
        let (bytes, places) = stack(&experts);
        let (own, x) = (normal(&mut rng, k * n_in), normal(&mut rng, dense_in));
        let mut words = expert_arguments(block, n_in, n_out, n_experts, k);
        words[16..].copy_from_slice(&beside(&dense));
        let launch = launch(file, format!("expert_linear_{name}_gemv"), block, n_in)
            .flag(OWN_INPUT, true)
            .flag(EXPERTS_SUM, true)
            .flag(BESIDE, true)
            .arguments(&words)
            .floats(1, &own)
            .bytes(25, &bytes)
            .bytes(27, &places)
            .floats(29, &x)
            .output(16, n_out)
            .output(17, n_out)
            .words(20, &step(1, 0, 1, 0, 0))
            .words(21, &ids)
            .floats(22, &chosen)
            .grid([1, 2, 1], 64);
        let outcome = bind_at(launch, [3, 6, 9], &dense).run();
        check(name, &outcome.floats(17), &products(&x, dense_in, &dense), F32_BOUND);
        let each: Vec<_> =
            (0..k).map(|j| products(&own[j * n_in..][..n_in], n_in, &experts[ids[j] as usize])).collect();
        let sum = |c: usize| {
            let terms = (0..k).map(|j| (f64::from(chosen[j]), each[j][c]));
            terms.fold((0.0, 0.0), |(v, s), (w, (tv, ts))| (v + w * tv, s + w * ts))
        };
        let expected: Vec<_> = (0..n_out).map(sum).collect();
        check(name, &outcome.floats(16), &expected, F32_BOUND);
    }
}

/// Layout of a dense weight, as ExpertArguments has it.
fn beside(w: &Weight) -> [u32; 4] {
    let n_in = w.n_cols();
    [n_in, w.block.row_bytes(n_in), w.block.row_scale_bytes(n_in), w.n_rows()].map(|n| n as u32)
}

/// The chosen experts of one row, and a wider shared expert: gates and ups after the same norm.
#[test]
fn a_dense_gate_beside_those_of_the_experts() {
    let mut rng = Rng::new(26);
    for (file, name, block, n_in) in sample() {
        let (n_experts, k, n_out, dense_out) = (4, 2, 7, 27);
        let [gates, ups] = [0, 1]
            .map(|_| Vec::from_iter((0..n_experts).map(|_| stored(&mut rng, "w", n_out, n_in, block, 0.1))));
        let [gate, up] = [0, 1].map(|_| stored(&mut rng, "dense", dense_out, n_in, block, 0.1));
        let ids = [3u32, 1];
        let ((gate_bytes, gate_places), (up_bytes, up_places)) = (stack(&gates), stack(&ups));
        let (x, norm) = (normal(&mut rng, n_in), normal(&mut rng, n_in));
        let mut words = expert_arguments(block, n_in, n_out, n_experts, k);
        words[16..].copy_from_slice(&beside(&gate));
        let launch = launch(file, String::new(), block, n_in)
            .flag(NORM, true)
            .flag(GATE, true)
            .flag(BESIDE, true)
            .number(ACTIVATION, 1)
            .arguments(&words)
            .floats(1, &x)
            .floats(2, &norm)
            .bytes(25, &gate_bytes)
            .bytes(26, &up_bytes)
            .bytes(27, &gate_places)
            .bytes(28, &up_places)
            .floats(29, &x)
            .output(16, k * n_out)
            .output(17, dense_out)
            .words(20, &step(1, 0, 1, 0, 0))
            .words(21, &ids);
        let launch = bind_at(bind_at(launch, [3, 6, 9], &gate), [4, 7, 10], &up);
        let x = normalised(&x, &norm);
        let opened =
            |gate: &Weight, up: &Weight| gated(1, &products(&x, n_in, gate), &products(&x, n_in, up));
        let chosen: Vec<_> =
            ids.iter().flat_map(|id| opened(&gates[*id as usize], &ups[*id as usize])).collect();
        // 4 blocks of the experts' rows fill a threadgroup of 2 SIMD-groups twice, the dense ones'
        // 14 seven times. Blocks of twice the rows are half as many.
        for (function, n_groups) in [("gemv", 2), ("gemv_x8", 1)] {
            let function = format!("expert_linear_{name}_{function}");
            let outcome = Launch { function, ..launch.clone() }.grid([n_groups, k + 4, 1], 64).run();
            check(name, &outcome.floats(17), &opened(&gate, &up), F32_BOUND);
            check(name, &outcome.floats(16), &chosen, F32_BOUND);
        }
    }
}

#[test]
fn experts_one_row_at_a_time() {
    let mut rng = Rng::new(9);
    for (file, name, block, n_in) in sample() {
        let (n_experts, k, n_out, n) = (5, 3, 7, 2);
        let [gates, ups] = [0, 1]
            .map(|_| Vec::from_iter((0..n_experts).map(|_| stored(&mut rng, "w", n_out, n_in, block, 0.1))));
        let ids = [4u32, 0, 2, 1, 4, 3];
        let chosen = [0.5f32, 0.3, 0.2, 0.1, 0.7, 0.2];
        let ((gate_bytes, gate_places), (up_bytes, up_places)) = (stack(&gates), stack(&ups));
        let (x, norm) = (normal(&mut rng, n * n_in), normal(&mut rng, n_in));
        let own = normal(&mut rng, n * k * n_in);
        let residual = normal(&mut rng, n * n_out);
        let base = || {
            launch(file, format!("expert_linear_{name}_gemv"), block, n_in)
                .arguments(&expert_arguments(block, n_in, n_out, n_experts, k))
                .bytes(25, &gate_bytes)
                .bytes(27, &gate_places)
                .words(20, &step(n, 0, 1, 0, 0))
                .words(21, &ids)
        };
        let of = |weights: &[Weight], x: &[f32], own: bool| -> Vec<(f64, f64)> {
            let x_of = |pair: usize| &x[if own { pair } else { pair / k } * n_in..][..n_in];
            (0..n * k).flat_map(|pair| products(x_of(pair), n_in, &weights[ids[pair] as usize])).collect()
        };

        // One product for each expert, with its own input.
        let out =
            base().flag(OWN_INPUT, true).floats(1, &own).output(16, n * k * n_out).grid([1, n * k, 1], 64);
        check(name, &out.run().floats(16), &of(&gates, &own, true), F32_BOUND);

        // Norm, gate, up, activation.
        let gate_up = base()
            .flag(NORM, true)
            .flag(GATE, true)
            .floats(1, &x)
            .floats(2, &norm)
            .bytes(26, &up_bytes)
            .bytes(28, &up_places)
            .output(16, n * k * n_out)
            .grid([2, n * k, 1], 64);
        let x_norm = normalised(&x, &norm);
        let expected = gated(0, &of(&gates, &x_norm, false), &of(&ups, &x_norm, false));
        check(name, &gate_up.run().floats(16), &expected, F32_BOUND);

        // Down, weighted sum, residual.
        let down = base()
            .flag(OWN_INPUT, true)
            .flag(EXPERTS_SUM, true)
            .flag(RESIDUAL, true)
            .floats(1, &own)
            .floats(15, &residual)
            .floats(22, &chosen)
            .output(16, n * n_out)
            .grid([2, n, 1], 32);
        let each = of(&gates, &own, true);
        let sum = |at: usize| {
            let terms = (0..k).map(|j| (at / n_out * k + j, at % n_out));
            let terms = terms.map(|(pair, c)| (f64::from(chosen[pair]), each[pair * n_out + c]));
            let r = f64::from(residual[at]);
            terms.fold((r, r.abs()), |(v, s), (w, (tv, ts))| (v + w * tv, s + w * ts))
        };
        let expected: Vec<_> = (0..n * n_out).map(sum).collect();
        check(name, &down.run().floats(16), &expected, F32_BOUND);
    }
}

/// The down projection of a row: spans of all experts in a row, 48 of each, fill the lanes.
#[test]
fn lanes_share_the_spans_of_all_experts() {
    for (seed, block, n_in, k) in [
        (40, BlockType::Q4_0, 768, 8),
        (41, BlockType::Q4_0, 32, 3),
        (42, BlockType::Q4_0, 1056, 5),
        (43, BlockType::Q4_0, 512, 32),
    ] {
        let mut rng = Rng::new(seed);
        let (n_experts, n_out) = (7, 9);
        let experts = Vec::from_iter((0..n_experts).map(|_| stored(&mut rng, "w", n_out, n_in, block, 0.1)));
        let ids: Vec<u32> = (0..k).map(|_| rng.below(n_experts) as u32).collect();
        let (chosen, own) = (normal(&mut rng, k), normal(&mut rng, k * n_in));
        let (bytes, places) = stack(&experts);
        let out = launch("linear/q4_0.metal", "expert_linear_q4_0_gemv".to_owned(), block, n_in)
            .flag(OWN_INPUT, true)
            .flag(EXPERTS_SUM, true)
            .arguments(&expert_arguments(block, n_in, n_out, n_experts, k))
            .floats(1, &own)
            .bytes(25, &bytes)
            .bytes(27, &places)
            .output(16, n_out)
            .words(20, &step(1, 0, 1, 0, 0))
            .words(21, &ids)
            .floats(22, &chosen)
            .grid([2, 1, 1], 64)
            .run()
            .floats(16);
        let mut expected = vec![(0.0, 0.0); n_out];
        for (j, id) in ids.iter().enumerate() {
            let product = products(&own[j * n_in..][..n_in], n_in, &experts[*id as usize]);
            let weight = f64::from(chosen[j]);
            for ((sum, size), (value, of_value)) in expected.iter_mut().zip(product) {
                *sum += weight * value;
                *size += weight.abs() * of_value;
            }
        }
        check(&format!("{k} experts of {n_in}"), &out, &expected, F32_BOUND);
    }
}

/// The pairs of `ids` in the order of their experts, and the tiles, as expert_groups writes them.
fn grouped(ids: &[u32], n_experts: usize, k: usize, grid: usize, threads: usize) -> (Vec<u32>, Vec<u32>) {
    let outcome = Launch::new("expert_groups.metal", "expert_groups")
        .arguments(&[1, n_experts as u32, k as u32, 1f32.to_bits(), 0, 0, 0, 0])
        .words(1, &step(ids.len() / k, 0, 1, 0, 0))
        .words(3, ids)
        .words(23, &vec![u32::MAX; ids.len()])
        .words(24, &vec![u32::MAX; (n_experts + ids.len() / 64) * 4])
        .grid([grid, 1, 1], threads)
        .run();
    (outcome.words(23), outcome.words(24))
}

/// Any number of threadgroups and threads writes the same order and tiles.
#[test]
fn pairs_are_grouped_by_expert() {
    for (seed, n_experts, k, n, grid, threads) in [
        (19, 5, 2, 37, 3, 64),
        (20, 128, 8, 96, 16, 256),
        (21, 7, 7, 50, 1, 1024),
        (22, 9, 1, 1, 2, 96),
        (23, 3, 1, 700, 1, 32),
        (24, 1000, 3, 11, 125, 256),
    ] {
        let mut rng = Rng::new(seed);
        // Some experts are far more popular than others.
        let mut id = || {
            let most = rng.below(n_experts);
            rng.below(most + 1) as u32
        };
        let ids = Vec::from_iter((0..n * k).map(|_| id()));
        let (order, tiles) = grouped(&ids, n_experts, k, grid, threads);
        let mut sorted: Vec<u32> = (0..(n * k) as u32).collect();
        sorted.sort_by_key(|pair| ids[*pair as usize]);
        assert_eq!(order, sorted, "{n_experts} experts");
        let mut expected = vec![];
        let mut first = 0;
        for expert in 0..n_experts as u32 {
            let mut left = ids.iter().filter(|id| **id == expert).count() as u32;
            while left > 0 {
                let n_pairs = left.min(64);
                expected.extend([expert, first, n_pairs, 0]);
                (first, left) = (first + n_pairs, left - n_pairs);
            }
        }
        expected.resize(tiles.len(), 0);
        assert_eq!(tiles, expected, "{n_experts} experts");
    }
}

#[test]
fn experts_in_groups_of_rows() {
    let mut rng = Rng::new(10);
    // Expert 2 is never chosen, expert 0 by more rows than half a tile, or a tile, has.
    let shapes = sample().into_iter().flat_map(|of| [(of, 41, 36), (of, 80, 71)]);
    for ((file, name, block, n_in), n, popular) in shapes {
        let (n_experts, k, n_out) = (4, 2, 40);
        let [gates, ups] = [0, 1]
            .map(|_| Vec::from_iter((0..n_experts).map(|_| stored(&mut rng, "w", n_out, n_in, block, 0.1))));
        let ids: Vec<u32> =
            (0..n).flat_map(|i| [if i < popular { 0 } else { 3 }, if i % 5 == 0 { 3 } else { 1 }]).collect();
        let x = normal(&mut rng, n * n_in);
        let n_tiles = n_experts + n * k / 64;
        let words = expert_arguments(block, n_in, n_out, n_experts, k);
        let (order, tiles) = grouped(&ids, n_experts, k, 2, 64);

        let ((gate_bytes, gate_places), (up_bytes, up_places)) = (stack(&gates), stack(&ups));
        let of = |weights: &[Weight]| -> Vec<(f64, f64)> {
            (0..n * k)
                .flat_map(|p| products(&x[p / k * n_in..][..n_in], n_in, &weights[ids[p] as usize]))
                .collect()
        };
        for gate in [false, true] {
            let gemm = launch(file, format!("expert_linear_{name}_gemm"), block, n_in)
                .flag(GATE, gate)
                .arguments(&words)
                .floats(1, &x)
                .bytes(25, &gate_bytes)
                .bytes(26, &up_bytes)
                .bytes(27, &gate_places)
                .bytes(28, &up_places)
                .output(16, n * k * n_out)
                .words(23, &order)
                .words(24, &tiles)
                .grid([if gate { 2 } else { 1 }, n_tiles, 1], 128);
            let expected = if gate { gated(0, &of(&gates), &of(&ups)) } else { of(&gates) };
            for gemm in gemm.with_tensors() {
                let outcome = gemm.run();
                check(&format!("{name} gate {gate}"), &outcome.floats(16), &expected, HALF_BOUND);
                // Eight pairs at a time.
                let blocks: usize = tiles.chunks(4).map(|tile| tile[2].div_ceil(8) as usize).sum();
                let matrices = blocks * if gate { 2 } else { 1 } * (64 / 8) * n_in.div_ceil(32) * (32 / 8);
                let matrices = if gemm.tensors { 0 } else { matrices as u64 };
                assert_eq!(outcome.counters.simdgroup.matrix_multiplies, matrices, "{name} gate {gate}");
            }
        }

        // Each pair with its own input.
        let own = normal(&mut rng, n * k * n_in);
        let gemm = launch(file, format!("expert_linear_{name}_gemm"), block, n_in)
            .flag(OWN_INPUT, true)
            .arguments(&words)
            .floats(1, &own)
            .bytes(25, &gate_bytes)
            .bytes(27, &gate_places)
            .output(16, n * k * n_out)
            .words(23, &order)
            .words(24, &tiles)
            .grid([1, n_tiles, 1], 128);
        let expected: Vec<_> = (0..n * k)
            .flat_map(|p| products(&own[p * n_in..][..n_in], n_in, &gates[ids[p] as usize]))
            .collect();
        for gemm in gemm.with_tensors() {
            check(&format!("{name} own input"), &gemm.run().floats(16), &expected, HALF_BOUND);
        }
    }
}
