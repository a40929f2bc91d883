//! The tests of this crate are one binary, for each that links everything takes seconds to build. Those that watch their whole
//! process are binaries of their own.

mod attention;
mod ops;
mod program;
