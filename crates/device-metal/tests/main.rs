//! The tests of this crate are one binary, for each that links everything takes seconds to build.
//! Those that watch their whole process are binaries of their own.

mod arithmetic;
mod common;
mod counts;
mod every_kernel;
mod kernels_attention;
mod kernels_linear;
mod kernels_sampling;
mod launch;
mod listing;
mod ops;
mod program;
