//! What a token and a prompt cost, counted by the emulator: dispatches, barriers, bytes of device memory against the least
//! possible, bytes of threadgroup memory, instructions of SIMD-groups; and from it a PREDICTION of tokens a second on an M4 Pro.
//!
//!     cargo run --release -p ingle-device-metal --example cost_table [prefill] [kernels] [model ...] [position]
//!
//! Nothing here was timed on Apple hardware. A model is run with no layer and with one of each kind; what that one adds is what
//! each of its kind costs, and is multiplied. Weights are noise, in the shapes and the types of the models. With `kernels` it is
//! the dispatches one by one, of a model with one layer of each kind.
//!
//! A prompt is one chunk of 512 rows. The experts of its tokens are chosen by noise: all as likely, each row by itself. The
//! largest models take minutes each.
#![allow(clippy::unwrap_used)]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod count;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod plan;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod print;
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
