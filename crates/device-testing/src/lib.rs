//! Devices that only tests need, and checks that need such a device.
//!
//! - [`null`]: a device that computes nothing and whose logits follow from the tokens, an exact
//!   oracle for schedulers.
//! - [`Scarce`]: any device, with limited memory for KV pages.
//! - [`EmulatedGpu`]: the CUDA driver and compiler that run on a CPU.
//! - [`CountingAllocator`]: counts allocations, for tests that expect none.
//!
//! The checks that the program itself runs are in `device-check`; this crate re-exports all of
//! them.

pub mod null;

mod allocations;
mod background;
mod emulated;
mod scarce;
mod shortage;

pub use allocations::CountingAllocator;
pub use background::check_background;
pub use device_check::*;
pub use emulated::EmulatedGpu;
pub use scarce::Scarce;
pub use shortage::check_shortage;
