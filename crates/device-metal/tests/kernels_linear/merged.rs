//! A product that joins the parts which its attention left.

use super::*;

/// Parts of a row that an attention left, as attention/parts.h says.
pub(super) struct Parts {
    head_dim: usize,
    n_splits: usize,
    partials: Vec<f32>,
    totals: Vec<f32>,
    sinks: Option<Vec<f32>>,
}

impl Parts {
    pub(super) fn new(
        rng: &mut Rng,
        n_heads: usize,
        head_dim: usize,
        n_splits: usize,
        has_sinks: bool,
    ) -> Parts {
        let n = n_heads * n_splits;
        let mut totals = normal(rng, 2 * n);
        totals.iter_mut().skip(1).step_by(2).for_each(|total| *total = 1.0 + total.abs());
        // A split without positions.
        totals[2..4].copy_from_slice(&[-1e30, 0.0]);
        let partials = normal(rng, n * head_dim.next_multiple_of(4));
        Parts { head_dim, n_splits, partials, totals, sinks: has_sinks.then(|| normal(rng, n_heads)) }
    }

    fn n_heads(&self) -> usize {
        self.totals.len() / 2 / self.n_splits
    }

    fn bind(&self, launch: Launch, first: u32) -> Launch {
        let launch = launch.floats(first, &self.partials).floats(first + 1, &self.totals);
        match &self.sinks {
            Some(sinks) => launch.floats(if first == 10 { 8 } else { 21 }, sinks),
            None => launch,
        }
    }

    /// The row that attention_merge makes of them.
    pub(super) fn merged(&self) -> Vec<f32> {
        let mut arguments = [0; 24];
        (arguments[8], arguments[11]) = (self.n_heads() as u32, self.n_splits as u32);
        let launch = Launch::new("attention.metal", "attention_merge")
            .number(32, self.head_dim as u32)
            .flag(35, self.sinks.is_some())
            .arguments(&arguments)
            .words(1, &step(1, 0, 1, 0, 0))
            .output(9, self.n_heads() * self.head_dim)
            .grid([self.n_heads(), 1, 1], 64);
        self.bind(launch, 10).run().floats(9)
    }

    /// Products of one row, the merged attention.
    pub(super) fn launch(
        &self,
        file: &'static str,
        name: &str,
        w: &Weight,
        residual: &[f32],
        bias: Option<&[f32]>,
    ) -> Launch {
        let (n_in, n_out) = (w.n_cols(), w.n_rows());
        let mut words = arguments(w.block, n_in, 1, &[n_out]).to_vec();
        let has_sinks = usize::from(self.sinks.is_some());
        words.extend([self.n_heads(), self.head_dim, self.n_splits, has_sinks].map(|n| n as u32));
        let launch = launch(file, format!("linear_{name}_merged"), w.block, n_in)
            .flag(RESIDUAL, true)
            .flag(BIAS, bias.is_some())
            .number(SPLIT, 2)
            .arguments(&words)
            .floats(12, bias.unwrap_or(&[]))
            .floats(15, residual)
            .output(16, n_out)
            .memory(n_in * 4)
            .grid([n_out.div_ceil(4).div_ceil(2), 1, 1], 128);
        bind(self.bind(launch, 22), 0, w)
    }
}

/// The result has the bits of attention_merge and a product run one after the other.
#[test]
fn a_product_joins_the_parts_of_the_attention_before_it() {
    let mut rng = Rng::new(16);
    for (name, n_heads, head_dim, n_splits) in [
        ("q4_0", 3, 32, 5),
        ("iq4_nl", 4, 24, 3),
        ("affine_4", 2, 96, 4),
        ("f32", 14, 10, 2),
        ("i8_rows", 41, 1, 7),
    ] {
        let (file, _, block, n_in) = types().into_iter().find(|t| t.1 == name).unwrap();
        assert_eq!(n_in, n_heads * head_dim);
        let n_out = 11;
        let w = stored(&mut rng, "w", n_out, n_in, block, 0.3);
        let parts = Parts::new(&mut rng, n_heads, head_dim, n_splits, n_heads % 2 == 0);
        let (residual, bias) = (normal(&mut rng, n_out), normal(&mut rng, n_out));
        let bias = (n_splits != 3).then_some(&bias[..]);
        let found = parts.launch(file, name, &w, &residual, bias).run().floats(16);

        let x = parts.merged();
        let apart = launch(file, format!("linear_{name}_gemv_1"), block, n_in)
            .flag(RESIDUAL, true)
            .flag(BIAS, bias.is_some())
            .number(SPLIT, 2)
            .arguments(&arguments(block, n_in, 1, &[n_out]))
            .floats(1, &x)
            .floats(12, bias.unwrap_or(&[]))
            .floats(15, &residual)
            .output(16, n_out)
            .words(20, &step(1, 0, 1, 0, 0))
            .grid([2, 1, 1], 128);
        assert_eq!(found, bind(apart, 0, &w).run().floats(16), "{name}");
        let expected = with_bias(&products(&x, n_in, &w), &residual);
        let expected = with_bias(&expected, bias.unwrap_or(&[0.0; 11]));
        check(name, &found, &expected, F32_BOUND);
    }
}

/// A perfect cache reads the weight once and the parts once. Only the row is written.
#[test]
fn a_product_of_parts_reads_each_once() {
    let mut rng = Rng::new(17);
    let (n_out, n_in, block) = (64, 512, BlockType::Q4_0);
    let w = stored(&mut rng, "w", n_out, n_in, block, 0.3);
    let parts = Parts::new(&mut rng, 8, 64, 5, false);
    let residual = normal(&mut rng, n_out);
    let source = source_of(&["q4_0"], &["linear_*_gemv_1", "linear_*_merged"]);
    let launch = parts.launch("linear/q4_0.metal", "q4_0", &w, &residual, None).at(3, 0);
    let counters = launch.count(&source);
    let of = |index: u32| *counters.buffers.iter().find(|b| b.index == index).unwrap();
    assert_eq!(of(3).read_once, w.data.len() as u64);
    assert_eq!(of(22).read_once, parts.partials.len() as u64 * 4);
    assert_eq!(of(23).read_once, parts.totals.len() as u64 * 4);
    let (read, written) = counters.device_bytes();
    assert_eq!(written, n_out as u64 * 4);
    let least = w.data.len() + (parts.partials.len() + parts.totals.len() + n_out) * 4;
    assert_eq!(read, least as u64);
}
