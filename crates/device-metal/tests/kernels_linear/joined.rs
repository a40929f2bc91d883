//! A product that first computes its row: a branch, normalised and added to the residual stream.

use super::*;

/// One branch or two, and the residual to which they are added.
pub(super) struct Branch {
    x: Vec<f32>,
    weight: Option<Vec<f32>>,
    residual: Vec<f32>,
    /// Norm of x, another branch and its norm.
    pair: Option<[Vec<f32>; 3]>,
    /// Norm of the sum.
    norm: Option<Vec<f32>>,
}

/// The norm of the sum.
const FACTOR: f32 = 0.75;

impl Branch {
    pub(super) fn new(rng: &mut Rng, n: usize, [weighted, paired, normed]: [bool; 3]) -> Branch {
        let mut some = |wanted: bool| wanted.then(|| normal(rng, n));
        let (weight, norm) = (some(weighted), some(normed));
        let pair = some(paired).zip(some(paired)).zip(some(paired)).map(|((a, b), c)| [a, b, c]);
        Branch { x: normal(rng, n), weight, residual: normal(rng, n), pair, norm }
    }

    fn constants(&self, launch: Launch) -> Launch {
        launch
            .flag(JOIN_WEIGHT, self.weight.is_some())
            .flag(JOIN_PAIR, self.pair.is_some())
            .flag(JOIN_PARTS, false)
            .flag(JOIN_NORM, true)
            .number(JOIN_NORMS, u32::from(self.norm.is_some()))
    }

    /// JoinArguments.
    fn arguments(&self) -> [u32; 8] {
        let eps = 1e-5f32.to_bits();
        [1, self.x.len() as u32, 0, FACTOR.to_bits(), eps, eps, eps, eps]
    }

    /// join.metal, run by a threadgroup of `threads` threads.
    pub(super) fn alone(&self, threads: usize) -> Launch {
        let launch = Launch::new("join.metal", "join")
            .arguments(&self.arguments())
            .words(1, &step(1, 0, 1, 0, 0))
            .floats(2, &self.x)
            .output(3, self.x.len())
            .floats(5, &self.residual)
            .grid([1, 1, 1], threads);
        let mut launch = self.constants(launch);
        if let Some(weight) = &self.weight {
            launch = launch.floats(4, weight);
        }
        if let Some([first, other, other_norm]) = &self.pair {
            launch = launch.floats(6, first).floats(7, other).floats(8, other_norm);
        }
        if let Some(norm) = &self.norm {
            launch = launch.floats(10, norm).output(13, self.x.len());
        }
        launch
    }

    /// Sum and normalised sum of the branches.
    fn joined(&self, threads: usize) -> (Vec<f32>, Option<Vec<f32>>) {
        let out = self.alone(threads).run();
        (out.floats(3), self.norm.as_ref().map(|_| out.floats(13)))
    }

    /// The row that is multiplied, in plain Rust.
    pub(super) fn normed(&self) -> Vec<f32> {
        self.norm.as_ref().map_or_else(|| self.sum(), |norm| normalised(&self.sum(), norm))
    }

    /// The sum in plain Rust.
    pub(super) fn sum(&self) -> Vec<f32> {
        let ones = vec![1.0; self.x.len()];
        let branch = match &self.pair {
            Some([norm, other, other_norm]) => {
                let (a, b) = (normalised(&self.x, norm), normalised(other, other_norm));
                a.iter().zip(b).map(|(a, b)| a + b).collect()
            }
            None => self.x.clone(),
        };
        let branch = normalised(&branch, self.weight.as_ref().unwrap_or(&ones));
        branch.iter().zip(&self.residual).map(|(y, r)| (y + r) * FACTOR).collect()
    }

    /// A product of weights of one x, with this many blocks for each simdgroup.
    pub(super) fn launch(
        &self,
        launch: Launch,
        weights: &[&Weight],
        [simdgroups, split, passes]: [usize; 3],
    ) -> Launch {
        let (block, n_in) = (weights[0].block, weights[0].n_cols());
        let n_out: Vec<usize> = weights.iter().map(|w| w.n_rows()).collect();
        let mut words = arguments(block, n_in, 1, &n_out).to_vec();
        words.extend(self.arguments());
        words.extend([passes as u32, 0, 0, 0]);
        let launch = launch
            .number(SPLIT, split as u32)
            .arguments(&words)
            .floats(1, &self.x)
            .floats(15, &self.residual)
            .output(24, n_in)
            .memory(n_in.next_multiple_of(4) * 4);
        let mut launch = self.constants(launch);
        for (index, buffer) in [(2, &self.norm), (20, &self.weight)] {
            if let Some(values) = buffer {
                launch = launch.floats(index, values);
            }
        }
        if let Some([first, other, other_norm]) = &self.pair {
            launch = launch.floats(21, first).floats(22, other).floats(23, other_norm);
        }
        let blocks: usize = n_out.iter().map(|n| n.div_ceil(4)).sum();
        let groups = blocks.div_ceil(simdgroups / split * passes);
        weights
            .iter()
            .enumerate()
            .fold(launch, |launch, (i, w)| bind(launch, i as u32, w))
            .grid([groups, 1, 1], 32 * simdgroups)
    }
}

/// The result has the bits of join and a product run one after the other, however often a simdgroup
/// multiplies.
#[test]
fn a_product_makes_the_row_that_a_branch_joins() {
    let mut rng = Rng::new(21);
    for (number, name) in ["q4_0", "iq4_nl", "affine_4", "f32", "i8_rows", "q6_k"].into_iter().enumerate() {
        let (file, _, block, n_in) = types().into_iter().rfind(|t| t.1 == name).unwrap();
        let n_out = 43;
        let w = stored(&mut rng, "w", n_out, n_in, block, 0.3);
        let bias = normal(&mut rng, n_out);
        let bits = [number % 4 != 3, number % 2 == 1, number % 3 != 2];
        let branch = Branch::new(&mut rng, n_in, bits);
        for shape in [[4, 1, 1], [4, 2, 3], [2, 2, 2], [8, 1, 5]] {
            let base = launch(file, format!("linear_{name}_joined"), block, n_in).flag(BIAS, true);
            let out = branch.launch(base, &[&w], shape).floats(12, &bias).output(16, n_out).run();
            let (sum, normed) = branch.joined(32 * shape[0]);
            assert_eq!(out.floats(24), sum, "{name} {shape:?}");
            for (found, expected) in sum.iter().zip(branch.sum()) {
                assert!((found - expected).abs() <= 3e-6 * (1.0 + expected.abs()), "{found} {expected}");
            }
            let x = normed.unwrap_or(sum);
            let apart = launch(file, format!("linear_{name}_gemv_1"), block, n_in)
                .flag(BIAS, true)
                .number(SPLIT, shape[1] as u32)
                .arguments(&arguments(block, n_in, 1, &[n_out]))
                .floats(1, &x)
                .floats(12, &bias)
                .output(16, n_out)
                .words(20, &step(1, 0, 1, 0, 0))
                .grid([n_out.div_ceil(4).div_ceil(2), 1, 1], 64 * shape[1]);
            assert_eq!(out.floats(16), bind(apart, 0, &w).run().floats(16), "{name} {shape:?}");
            check(name, &out.floats(16), &with_bias(&products(&x, n_in, &w), &bias), F32_BOUND);
        }
    }
}

/// Gate and up; three weights, the last of another type; the largest of a bounded output, of equals
/// the first.
#[test]
fn a_row_that_was_made_has_every_tail() {
    let mut rng = Rng::new(22);
    let (file, name, block, n_in) = sample()[0];
    let branch = Branch::new(&mut rng, n_in, [true, false, true]);
    let (_, x) = branch.joined(128);
    let x = x.unwrap();
    let base = || launch(file, format!("linear_{name}_joined"), block, n_in);

    let [gate, up] = [0, 1].map(|_| stored(&mut rng, "w", 35, n_in, block, 0.1));
    let out = branch
        .launch(base().flag(GATE, true).number(WEIGHTS, 2).number(ACTIVATION, 1), &[&gate, &up], [4, 1, 2])
        .output(16, 35)
        .run();
    check(name, &out.floats(16), &gated(1, &products(&x, n_in, &gate), &products(&x, n_in, &up)), F32_BOUND);

    let columns = normal(&mut rng, 35);
    let out = branch
        .launch(base().flag(UP, true).number(ACTIVATION, 1), &[&gate], [4, 1, 2])
        .floats(25, &columns)
        .output(16, 35)
        .run();
    let columns: Vec<_> = columns.iter().map(|v| (f64::from(*v), 0.0)).collect();
    check(name, &out.floats(16), &gated(1, &products(&x, n_in, &gate), &columns), F32_BOUND);

    let n_out = 67;
    let mut w = stored(&mut rng, "w", n_out, n_in, block, 0.3);
    let row = block.row_bytes(n_in);
    let plain: Vec<f64> = products(&x, n_in, &w).iter().map(|(v, _)| *v).collect();
    let most = (0..n_out).max_by(|a, b| plain[*a].total_cmp(&plain[*b])).unwrap();
    // Twice: in different blocks, and in different simdgroups.
    let mut data = w.data.to_vec();
    for copy in [7, 66] {
        data.copy_within(most * row..(most + 1) * row, copy * row);
    }
    w.data = weights::Bytes::from_slice(&data);
    let first = most.min(7);
    for shape in [[4, 1, 1], [4, 1, 3], [4, 2, 9], [2, 1, 17]] {
        let launch = branch.launch(base().flag(SOFTCAP, true).flag(ARGMAX, true), &[&w], shape);
        let groups = launch.threadgroups[0] as usize;
        let out = launch.output(16, n_out).words(19, &vec![0; 2 * groups]).run();
        let logits = out.floats(16);
        let capped: Vec<_> =
            products(&x, n_in, &w).iter().map(|(v, s)| (3.0 * (v / 3.0).tanh(), s + 1.0)).collect();
        check(name, &logits, &capped, F32_BOUND);
        let bests: Vec<(f32, u32)> = out.words(19).chunks(2).map(|b| (f32::from_bits(b[0]), b[1])).collect();
        let best = bests.iter().fold((f32::MIN, 0), |best, b| if b.0 > best.0 { *b } else { best });
        assert_eq!(best, (logits[first], first as u32), "{shape:?}");
    }

    let (n_in, block, last) = (256, BlockType::Q4_K, BlockType::Q6_K);
    let branch = Branch::new(&mut rng, n_in, [true, true, false]);
    let (x, _) = branch.joined(128);
    let weights =
        [(9, block), (5, block), (6, last)].map(|(n, block)| stored(&mut rng, "w", n, n_in, block, 0.3));
    let mut launch =
        launch("linear/mixed.metal", "linear_q4_k_q6_k_joined".to_owned(), block, n_in).number(WEIGHTS, 3);
    for (i, w) in weights.iter().enumerate() {
        launch = launch.output(16 + i as u32, w.n_rows());
    }
    let out = branch.launch(launch, &weights.each_ref(), [4, 1, 2]).run();
    for (i, w) in weights.iter().enumerate() {
        check("q4_k, q6_k", &out.floats(16 + i as u32), &products(&x, n_in, w), F32_BOUND);
    }
}

/// A perfect cache reads the weight once, and the branch, its norms and the residual once. Only the
/// sum and the row are written.
#[test]
fn a_row_that_was_made_is_read_once() {
    let mut rng = Rng::new(23);
    let (n_out, n_in, block) = (64, 512, BlockType::Q4_0);
    let w = stored(&mut rng, "w", n_out, n_in, block, 0.3);
    let branch = Branch::new(&mut rng, n_in, [true, true, true]);
    let source = source_of(&["q4_0"], &["linear_*_gemv_1", "linear_*_joined"]);
    let base = launch("linear/q4_0.metal", "linear_q4_0_joined".to_owned(), block, n_in);
    let launch = branch.launch(base, &[&w], [4, 1, 2]).output(16, n_out).at(3, 0);
    let counters = launch.count(&source);
    let (read, written) = counters.device_bytes();
    assert_eq!(written, 4 * (n_out + n_in) as u64);
    assert_eq!(read, w.data.len() as u64 + 7 * 4 * n_in as u64);
}

/// The weighted results of chosen experts are added to the residual, and normalised for two
/// readers.
#[test]
fn parts_of_experts_join_without_a_norm() {
    let mut rng = Rng::new(27);
    let (cols, k, rows) = (70, 3, 2);
    let parts = normal(&mut rng, rows * k * cols);
    let (chosen, residual) = (normal(&mut rng, rows * k), normal(&mut rng, rows * cols));
    let norms = [0, 1].map(|_| normal(&mut rng, cols));
    let mut arguments = [1, cols as u32, k as u32, FACTOR.to_bits(), 0, 0, 0, 0];
    arguments[7] = 1e-5f32.to_bits();
    let out = Launch::new("join.metal", "join")
        .flag(JOIN_WEIGHT, false)
        .flag(JOIN_PAIR, false)
        .flag(JOIN_PARTS, true)
        .flag(JOIN_NORM, false)
        .number(JOIN_NORMS, 2)
        .arguments(&arguments)
        .words(1, &step(rows, 0, 1, 0, 0))
        .output(3, rows * cols)
        .floats(5, &residual)
        .floats(7, &parts)
        .floats(9, &chosen)
        .floats(10, &norms[0])
        .floats(11, &norms[1])
        .output(13, rows * cols)
        .output(14, rows * cols)
        .grid([rows, 1, 1], 64)
        .run();
    let sum = |at: usize| {
        let (row, c) = (at / cols, at % cols);
        let terms =
            (0..k).map(|j| f64::from(chosen[row * k + j]) * f64::from(parts[(row * k + j) * cols + c]));
        ((terms.sum::<f64>() + f64::from(residual[at])) * f64::from(FACTOR)) as f32
    };
    let sums: Vec<f32> = (0..rows * cols).map(sum).collect();
    let sized = |values: &[f32]| Vec::from_iter(values.iter().map(|v| (f64::from(*v), 4.0)));
    check("sum", &out.floats(3), &sized(&sums), F32_BOUND);
    for (index, norm) in (13..).zip(&norms) {
        check("norm", &out.floats(index), &sized(&normalised(&sums, norm)), F32_BOUND);
    }
}
