//! Cost of a step, counted by the emulator.

use crate::model::{self, CHIPS, Range, Work};
use crate::plan::plan;
use crate::shapes::{Layers, Shapes};
use device::{Device, FusedKind, KvLayerId, KvType, Limits, OwnedStep, Plan, Span, Want};
use device_lower::fusion;
use device_testing::{committed, limits};
use ingle_device_metal::MetalDevice;
use ingle_device_metal::gpu::emulated::{EmulatedGpu, Options, Traced};

/// Multiplications and additions of an 8x8x8 product.
const PRODUCT_OPS: f64 = 2.0 * 512.0;

/// Summed cost of dispatches.
#[derive(Clone, Copy, Default)]
pub struct Cost {
    /// Number of dispatches.
    pub dispatches: f64,
    /// Number of dispatches with a barrier before them.
    pub barriers: f64,
    /// Bytes of device memory that each dispatch reads, once: what memory must deliver to a perfect
    /// cache.
    pub read: f64,
    /// Bytes of device memory that each dispatch writes, each byte counted once.
    pub written: f64,
    /// Bytes that threads load from device memory, with repetition.
    pub loaded: f64,
    /// Least bytes: every needed weight once, keys and values once.
    pub least: f64,
    /// Bytes read from and written to threadgroup memory.
    pub threadgroup: f64,
    /// Shuffles and broadcasts of simdgroups.
    pub shuffles: f64,
    /// Reductions of simdgroups.
    pub reductions: f64,
    /// 8x8x8 products.
    pub products: f64,
    /// Least number of 8x8x8 products for the step's multiplications.
    pub least_products: f64,
    /// Sum over dispatches, in seconds, for each of [`CHIPS`]: [`model::Chip::busy`].
    pub busy: [Range; CHIPS.len()],
}

impl Cost {
    fn combine(self, other: Cost, f: impl Fn(f64, f64) -> f64) -> Cost {
        Cost {
            dispatches: f(self.dispatches, other.dispatches),
            barriers: f(self.barriers, other.barriers),
            read: f(self.read, other.read),
            written: f(self.written, other.written),
            loaded: f(self.loaded, other.loaded),
            least: f(self.least, other.least),
            threadgroup: f(self.threadgroup, other.threadgroup),
            shuffles: f(self.shuffles, other.shuffles),
            reductions: f(self.reductions, other.reductions),
            products: f(self.products, other.products),
            least_products: f(self.least_products, other.least_products),
            busy: std::array::from_fn(|chip| {
                [0, 1].map(|end| f(self.busy[chip][end], other.busy[chip][end]))
            }),
        }
    }

    /// Sum of two costs.
    pub fn plus(self, other: Cost) -> Cost {
        self.combine(other, |a, b| a + b)
    }

    fn of(traced: &Traced) -> Cost {
        let counters = &traced.counters;
        let (read, written) = counters.device_bytes();
        let of_buffers = counters.buffers.iter().filter(|b| !b.by_value).chain(&counters.resources);
        let loaded = of_buffers.map(|b| b.read).sum::<u64>();
        let products = counters.simdgroup.matrix_multiplies as f64;
        let of_experts = traced.function.contains("expert_linear") && products == 0.0;
        let work = Work { bytes: (read + written) as f64, loaded: loaded as f64, products, of_experts };
        Cost {
            dispatches: 1.0,
            barriers: f64::from(u8::from(traced.after_barrier)),
            read: read as f64,
            written: written as f64,
            loaded: loaded as f64,
            threadgroup: (counters.threadgroup_read + counters.threadgroup_written) as f64,
            shuffles: counters.simdgroup.shuffles as f64,
            reductions: counters.simdgroup.reductions as f64,
            products,
            busy: std::array::from_fn(|chip| CHIPS[chip].busy(work)),
            ..Cost::default()
        }
    }

    /// Predicted seconds on one of [`CHIPS`]. The first dispatch of a step waits for none.
    pub fn seconds(&self, chip: usize) -> Range {
        model::seconds(self.busy[chip], self.barriers + 1.0)
    }
}

/// Rows of one sequence, the last at a position.
#[derive(Clone, Copy)]
pub struct Rows {
    /// Number of rows.
    pub n: usize,
    /// Position of the last row.
    pub position: usize,
}

/// Dispatches of a model with the given layers: name of the function and cost. Also the least cost
/// of the step.
pub fn dispatches(s: &Shapes, layers: &[&Layers], rows: Rows) -> (Vec<(String, Cost)>, Cost) {
    dispatches_by(s, layers, rows, |_| true)
}

/// Like [`dispatches`], with only the fusion rules for which `wanted` is true.
pub fn dispatches_by(
    s: &Shapes,
    layers: &[&Layers],
    rows: Rows,
    wanted: fn(&FusedKind) -> bool,
) -> (Vec<(String, Cost)>, Cost) {
    let cache = std::env::temp_dir().join("ingle-cost-table");
    let options = Options { counting: true, threads: 2, ..Options::new(cache) };
    let device = MetalDevice::new(EmulatedGpu::new(&options).unwrap());
    let rules: Vec<FusedKind> = device.fusion().iter().filter(|rule| wanted(rule)).copied().collect();
    let plan = fusion::fuse(&plan(s, layers), &rules);
    let (n_ctx, page_len) = ((rows.position + 1).next_multiple_of(1024), 64);
    let limits = Limits {
        max_rows: rows.n,
        max_outputs: 1,
        max_spans: 1,
        n_ctx,
        page_len,
        n_pages: vec![n_ctx / page_len; plan.kv.groups.len()],
        n_states: 0,
        background_rows: 0,
        kv_type: KvType::F16,
        ..limits(&plan.kv)
    };
    let mut program = device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    let n_rows = rows.n as u32;
    let step = OwnedStep {
        plan: 0,
        tokens: (0..n_rows).collect(),
        input: vec![],
        spans: vec![Span {
            slot: 0,
            first_row: 0,
            n_rows,
            first_position: (rows.position + 1 - rows.n) as u32,
        }],
        page_tables: plan.kv.groups.iter().flat_map(|_| 0..(n_ctx / page_len) as u32).collect(),
        pages_per_table: n_ctx / page_len,
        outputs: vec![n_rows - 1],
        wants: vec![Want::BEST],
        ..OwnedStep::default()
    };
    device.gpu().start_trace();
    program.run(&step.borrow()).unwrap();
    let trace = device.gpu().take_trace();
    let least = Cost {
        least: weight_bytes(&plan, rows.n) + kv_bytes(&plan, &limits, rows.position + 1),
        least_products: operations(s, layers, &plan, rows) / PRODUCT_OPS,
        ..Cost::default()
    };
    (trace.iter().map(|traced| (traced.function.clone(), Cost::of(traced))).collect(), least)
}

/// Bytes of weights that the rows need. Many rows choose all experts.
fn weight_bytes(plan: &Plan, n_rows: usize) -> f64 {
    match n_rows {
        1 => plan.weight_bytes_per_token() as f64,
        _ => plan.weights.iter().map(device::Weight::n_bytes).sum::<u64>() as f64,
    }
}

/// Bytes of keys and values that the step attends to.
fn kv_bytes(plan: &Plan, limits: &Limits, n_positions: usize) -> f64 {
    let layers = plan.kv.layers.iter().enumerate();
    layers
        .map(|(id, layer)| {
            let seen = n_positions.min(layer.window.unwrap_or(n_positions));
            plan.kv.layer_page_bytes(KvLayerId(id as u32), limits.kv_type, seen) as f64
        })
        .sum()
}

/// Multiplications and additions of linears and of attention, without the head, which multiplies a
/// single row.
fn operations(s: &Shapes, layers: &[&Layers], plan: &Plan, rows: Rows) -> f64 {
    let head = 2 * s.n_vocab * s.hidden;
    let linears = (plan.ops_per_token() - head as u64) as f64 * rows.n as f64;
    let seen = |layer: &&Layers| {
        let of_row = |i: usize| (rows.position + 2 - rows.n + i).min(layer.window.unwrap_or(usize::MAX));
        let pairs: usize = (0..rows.n).map(of_row).sum();
        4.0 * (pairs * s.n_heads * layer.head_dim) as f64
    };
    linears + layers.iter().map(seen).sum::<f64>()
}

fn measure(s: &Shapes, layers: &[&Layers], rows: Rows) -> Cost {
    let (dispatches, least) = dispatches(s, layers, rows);
    dispatches.into_iter().fold(least, |sum, (_, cost)| sum.plus(cost))
}

/// Cost of a whole model: that of one layer of each kind, plus the difference that one more layer
/// of a kind makes, for each further layer of the model. Also the dispatches that one more layer
/// adds. (A model without layers is no basis for the difference: the head then does work that a
/// layer leaves to its successor.)
pub fn whole(s: &Shapes, rows: Rows) -> (Cost, Vec<f64>) {
    let kinds: Vec<&Layers> = s.layers.iter().collect();
    let one_each = measure(s, &kinds, rows);
    let mut of_layer = Vec::new();
    let sum = s.layers.iter().fold(one_each, |sum, kind| {
        let more: Vec<&Layers> = kinds.iter().copied().chain([kind]).collect();
        let layer = measure(s, &more, rows).combine(one_each, |with, without| with - without);
        of_layer.push(layer.dispatches);
        sum.combine(layer, |sum, layer| sum + (kind.n - 1) as f64 * layer)
    });
    (sum, of_layer)
}
