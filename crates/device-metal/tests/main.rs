//! The tests of this crate are one binary, since each binary takes seconds to link. Tests that
//! observe their whole process are separate binaries.

mod arithmetic;
mod counts;
mod every_kernel;
mod kernels_attention;
mod kernels_linear;
mod kernels_sampling;
mod launch;
mod listing;
mod ops;
mod program;
mod refusals;
mod report;
