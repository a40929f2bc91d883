//! The scans of recurrent layers over a prompt: position by position, and in chunks.

use std::sync::Arc;

use device::OpKind;
use device_testing::{PlanBuilder, RecurrentShape, Sequences, committed, limits};
use ingle_device_metal::gpu::emulated::{EmulatedGpu, Options};
use ingle_device_metal::{MetalDevice, Profile};

use crate::plan::N_TOKENS;

/// A recurrent layer.
struct Layer {
    name: &'static str,
    kind: OpKind,
    /// Two heads that share their keys; the cost of more heads is proportional.
    shape: RecurrentShape,
    n_heads: usize,
}

const LAYERS: [Layer; 2] = [
    Layer {
        name: "Qwen3.5-4B, gated delta",
        kind: OpKind::GatedDelta,
        shape: RecurrentShape { n_shared: 1, n_heads: 2, rows: 128, cols: 128 },
        n_heads: 32,
    },
    Layer {
        name: "Nemotron-H-8B, selective scan",
        kind: OpKind::SelectiveScan,
        shape: RecurrentShape { n_shared: 1, n_heads: 2, rows: 128, cols: 64 },
        n_heads: 128,
    },
];

/// One layer each, a prompt of one chunk.
pub fn scans() {
    println!(
        "| a layer of | positions | loaded MB | threadgroup MB | multiply-adds M | 8x8x8 products k | shuffles k | barriers of a threadgroup |\n|{}",
        "---|".repeat(8)
    );
    for layer in &LAYERS {
        for (how, scan_rows) in [("one by one", usize::MAX), ("16 at a time", 12)] {
            print(layer, how, scan_rows);
        }
    }
}

fn print(layer: &Layer, how: &str, scan_rows: usize) {
    let options =
        Options { counting: true, threads: 2, ..Options::new(std::env::temp_dir().join("ingle-cost-table")) };
    let device = MetalDevice::new(EmulatedGpu::new(&options).unwrap());
    let profile = Profile { scan_rows, ..device.profile().clone() };
    let device = MetalDevice::sharing(Arc::clone(device.shared_gpu()), profile);
    let RecurrentShape { n_heads, rows, cols, .. } = layer.shape;
    let mut b = PlanBuilder::new(1, 64);
    let x = b.embed(32);
    let y = match layer.kind {
        OpKind::GatedDelta => b.gated_delta(x, layer.shape, false, false),
        _ => b.selective_scan(x, layer.shape, true),
    };
    let y = b.select_rows(y);
    let y = b.linear(y, 64, weights::BlockType::F32, false);
    let plan = b.finish(y);
    let limits = device::Limits { max_rows: N_TOKENS, max_outputs: N_TOKENS, ..limits(&plan.kv) };
    let step = Sequences::new(1, &plan.kv, &limits, 64).step(&[(0, N_TOKENS)]);
    let mut program =
        device::Device::compile(&device, std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
    device.gpu().start_trace();
    program.run(&step.borrow()).unwrap();
    let trace = device.gpu().take_trace();
    let scan = trace.iter().find(|traced| traced.function.contains(&layer.kind.to_string())).unwrap();
    let counters = &scan.counters;
    let more = layer.n_heads as f64 / n_heads as f64;
    let loaded: u64 = counters.buffers.iter().filter(|b| !b.by_value).map(|b| b.read).sum();
    let products = counters.simdgroup.matrix_multiplies;
    // Products of one position: the decay, the update, the output, and the delta rule's prediction.
    let of_state = if layer.kind == OpKind::GatedDelta { 4 } else { 3 };
    let multiplied = match products {
        0 => (of_state * n_heads * rows * cols * N_TOKENS) as f64,
        products => 512.0 * products as f64,
    };
    println!(
        "| {} | {how} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {} |",
        layer.name,
        loaded as f64 * more / 1e6,
        (counters.threadgroup_read + counters.threadgroup_written) as f64 * more / 1e6,
        multiplied * more / 1e6,
        products as f64 * more / 1e3,
        counters.simdgroup.shuffles as f64 * more / 1e3,
        counters.threadgroup_barriers / counters.threadgroups
    );
}
