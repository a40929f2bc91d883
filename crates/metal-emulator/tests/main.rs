//! The tests of this crate are one binary, for each that links everything takes seconds to build. Those that watch their whole
//! process are binaries of their own.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod buffers;
mod builtins;
mod common;
mod counters;
mod faults;
mod language;
mod linear;
mod sanitizers;
mod strict;
