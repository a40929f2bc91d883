//! Seconds that a dispatch takes on a chip: a range of predictions, from its counts.
//!
//! Ingle's kernels were never timed. The ranges are calibrated with the published rates of other
//! engines on an M4 Pro of 16 cores: their counts must give ranges that contain their rates. The
//! test below checks that.

/// The slow and the fast end of a range.
pub type Range = [f64; 2];

/// Share of the memory's bandwidth that a dispatch reaches.
const SHARE: Range = [0.80, 0.92];

/// Like [`SHARE`], for one row's products with chosen experts, 1 MB here and there. No published
/// engine reaches more.
const EXPERT_SHARE: Range = [0.42, 0.60];

/// Seconds that a dependent dispatch adds. Published figures of dispatches alone, 0.5 to 2.05 us,
/// omit that memory is idle meanwhile.
const DISPATCH: Range = [4e-6, 1.5e-6];

/// Bytes that the threads of a core load in a cycle, from any cache: what metal-benchmarks measured
/// of an M1's second level, and twice that.
const LOADED: Range = [32.0, 64.0];

/// 8x8x8 products of a core in a cycle. The fast end is 5.3 G a second on 16 cores of an M4, just
/// above the most that a published engine reaches.
const PRODUCTS: Range = [0.8 * MOST_PRODUCTS, MOST_PRODUCTS];
const MOST_PRODUCTS: f64 = 5.3e9 / (16.0 * 1.578e9);

/// A GPU.
pub struct Chip {
    /// Name, with its cores if there are several sizes.
    pub name: &'static str,
    n_cores: f64,
    /// Bytes a second of memory, as Apple states them.
    bandwidth: f64,
    /// Cycles a second, in the highest state that macOS reports.
    clock: f64,
}

const fn chip(name: &'static str, n_cores: u32, gigabytes: f64, gigahertz: f64) -> Chip {
    Chip { name, n_cores: n_cores as f64, bandwidth: gigabytes * 1e9, clock: gigahertz * 1e9 }
}

/// Chips without tensor units.
pub const CHIPS: [Chip; 6] = [
    chip("M4 Pro, 16", 16, 273.0, 1.578),
    chip("M1", 8, 68.0, 1.278),
    chip("M1 Max", 32, 400.0, 1.296),
    chip("M4", 10, 120.0, 1.578),
    chip("M4 Pro, 20", 20, 273.0, 1.578),
    chip("M4 Max, 40", 40, 546.0, 1.578),
];

/// Counts of a dispatch, or of many.
#[derive(Clone, Copy)]
pub struct Work {
    /// Bytes of device memory, each counted once.
    pub bytes: f64,
    /// Bytes that threads load from device memory, with repetition.
    pub loaded: f64,
    /// 8x8x8 products.
    pub products: f64,
    /// True for the products of one row with chosen experts.
    pub of_experts: bool,
}

impl Chip {
    /// Seconds of a dispatch without its start: its bytes, loads or products, whichever is longest.
    pub fn busy(&self, work: Work) -> Range {
        let share = if work.of_experts { EXPERT_SHARE } else { SHARE };
        std::array::from_fn(|end| {
            let cycles = (work.loaded / LOADED[end]).max(work.products / PRODUCTS[end]);
            (work.bytes / (self.bandwidth * share[end])).max(cycles / (self.n_cores * self.clock))
        })
    }
}

/// Seconds of a step whose dispatches take `busy`, and of which so many wait for an earlier one.
pub fn seconds(busy: Range, n_dependent: f64) -> Range {
    std::array::from_fn(|end| busy[end] + n_dependent * DISPATCH[end])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that a product of a row loads for a byte of Q4_0: 163,840 of weights and 262,144 of x
    /// for 147,456 bytes, in llama.cpp's kernel, counted by the emulator. MLX's x has half the
    /// bytes.
    const LOADS: [f64; 2] = [(163_840.0 + 262_144.0) / 147_456.0, (163_840.0 + 131_072.0) / 147_456.0];

    /// A model of the published table: weights and keys of a token in MB, without and with the
    /// chosen experts; 8x8x8 products of a prompt of 512, in millions; layers; and of llama.cpp and
    /// MLX the dependent dispatches of a layer, and the published rates of decode and prefill.
    type Published = (&'static str, [f64; 2], f64, f64, [(f64, f64, f64); 2]);

    /// Dependent dispatches are those of ggml's and MLX's graphs: norm; q, k and v; norms of heads;
    /// RoPE; stores; attention and its merge; output; sum; norm; gate and up; activation; down;
    /// sum. With experts: router, softmax, choice, weights, their sum and quotient, and a sum of
    /// experts. Tiles of 32 pairs of an expert are whole, which makes 1.45 times the least
    /// products.
    const PUBLISHED: [Published; 3] = [
        ("Qwen3-0.6B", [434.3, 0.0], 469.0, 28.0, [(14.0, 297.0, 4993.0), (13.0, 344.0, 4658.0)]),
        ("Llama-3.2-3B", [1968.1, 0.0], 2863.0, 28.0, [(13.0, 102.0, 871.0), (12.0, 112.0, 919.0)]),
        ("Qwen3-30B-A3B", [866.4, 1019.2], 3646.0, 48.0, [(22.0, 81.0, 668.0), (21.0, 83.0, 664.0)]),
    ];

    /// The ranges of other engines' counts contain their published rates, and are narrow enough to
    /// say something.
    #[test]
    fn ranges_contain_the_published_rates_of_other_engines() {
        let chip = &CHIPS[0];
        for (model, [dense, experts], products, layers, engines) in PUBLISHED {
            for ((of_layer, decode, prefill), loads) in engines.into_iter().zip(LOADS) {
                let n_dependent = layers * of_layer + 3.0;
                let work = |bytes: f64, of_experts| {
                    let bytes = bytes * 1e6;
                    chip.busy(Work { bytes, loaded: loads * bytes, products: 0.0, of_experts })
                };
                let (dense, experts) = (work(dense, false), work(experts, true));
                let token = seconds([0, 1].map(|end| dense[end] + experts[end]), n_dependent);
                let products = Work { bytes: 0.0, loaded: 0.0, products: products * 1e6, of_experts: false };
                let prompt = seconds(chip.busy(products), n_dependent);
                for (what, n, seconds, published) in
                    [("decode", 1.0, token, decode), ("prefill", 512.0, prompt, prefill)]
                {
                    let [low, high] = seconds.map(|seconds| n / seconds);
                    assert!(
                        low <= published && published <= high,
                        "{model} {what}: {low} to {high}, {published}"
                    );
                    assert!(high / low < 1.6, "{model} {what}: {low} to {high}");
                }
            }
        }
    }
}
