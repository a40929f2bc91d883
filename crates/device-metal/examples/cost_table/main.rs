//! Cost of a token and of a prompt, counted by the emulator: dispatches, barriers, bytes of device
//! memory against the least possible, bytes of threadgroup memory, and instructions of SIMD-groups.
//! The counts give a PREDICTION of tokens a second, a range for each of some chips.
//!
//!     alias cost_table="cargo run --release -p ingle-device-metal --example cost_table"
//!     cost_table [prefill] [kernels] [model ...] [position]
//!     cost_table scans
//!     cost_table norms
//!
//! Nothing here was timed on Apple hardware. A model runs with one layer of each kind, and again
//! with one more of each. The difference is the cost of a layer, and is multiplied by the number of
//! layers. Weights are random, in the shapes and types of the models. `kernels` lists the
//! dispatches of a model with one layer of each kind.
//!
//! A prompt is one chunk of 512 rows. A random router chooses experts for each row, all with the
//! same probability. The largest models take minutes each.
#![allow(clippy::unwrap_used)]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod count;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod model;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod norms;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod plan;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod print;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod scans;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod shapes;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() {
    print::tables();
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {
    eprintln!("the emulator runs on Linux on x86-64");
}

#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod tests {
    use crate::count::{Rows, whole};
    use crate::shapes::{Experts, MODELS, Shapes};

    /// Layers of the smallest model at full width: dense, with experts instead of its network or
    /// next to it, and with norms after attention and network or without. The vocabulary is short,
    /// because a head reads nothing twice and only takes time.
    #[test]
    fn a_token_reads_hardly_more_than_it_must() {
        let dense = Shapes { n_vocab: 2048, ..MODELS[0] };
        let experts = Experts { n: 8, n_used: 2, ffn: 768 };
        let mixed = Shapes { n_vocab: 2048, ffn: 0, experts: Some(experts), ..MODELS[0] };
        let behind = Shapes { sandwich: true, ..dense };
        let beside = Shapes { sandwich: true, experts: Some(experts), ..dense };
        for (name, shapes) in
            [("dense", dense), ("experts", mixed), ("norms behind", behind), ("experts beside", beside)]
        {
            for position in [100, 1500] {
                let (cost, _) = whole(&shapes, Rows { n: 1, position });
                let ratio = cost.read / cost.least;
                assert!((1.0..=1.03).contains(&ratio), "{name} at {position}: {ratio} of the least bytes");
            }
        }
    }
}
