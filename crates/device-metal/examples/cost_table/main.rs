//! Cost of a token and of a prompt, counted by the emulator. It lists dispatches, barriers, bytes
//! of device memory beside the least possible, bytes of threadgroup memory, and instructions of
//! SIMD-groups. From it follows a PREDICTION of tokens a second on an M4 Pro.
//!
//!     cargo run --release -p ingle-device-metal --example cost_table [prefill] [kernels] [model ...] [position]
//!     cargo run --release -p ingle-device-metal --example cost_table scans
//!     cargo run --release -p ingle-device-metal --example cost_table norms
//!
//! Nothing here was timed on Apple hardware. A model is run with a layer of each kind, and with one
//! more of each. The difference is the cost of a layer of that kind, and is multiplied by their
//! number. Weights are noise, in the shapes and the types of the models. With `kernels` the table
//! lists the single dispatches of a model with one layer of each kind.
//!
//! A prompt is one chunk of 512 rows. The experts of its tokens are chosen by noise: all as likely,
//! each row by itself. The largest models take minutes each.
#![allow(clippy::unwrap_used)]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod count;
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

    /// Layers with the full width of the smallest model. Some are dense, others have experts
    /// instead of the network or next to it, with and without norms after their parts. The
    /// vocabulary is short, since a head reads each byte once and only takes time.
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
