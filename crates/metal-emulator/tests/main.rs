//! The tests of this crate are one binary, because each binary takes seconds to link. Tests that
//! measure their whole process are binaries of their own.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod buffers;
mod builtins;
mod common;
mod counters;
mod faults;
mod language;
mod linear;
mod numerics;
mod overloads;
mod resources;
mod sanitizers;
mod strict;
mod tensors;
