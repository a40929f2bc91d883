//! Shared by the tests: a compiler with a persistent cache, and helpers to dispatch.
#![allow(clippy::unwrap_used, dead_code, missing_docs)]

use metal_emulator::{
    Binding, Buffer, Compiler, Counters, Dispatch, Fault, LaneOrder, Library, Options, Pipeline, RunOptions,
};

/// The orders in which each kernel is run; its result must not depend on them.
pub const ORDERS: [LaneOrder; 4] =
    [LaneOrder::Forward, LaneOrder::Reverse, LaneOrder::Random(1), LaneOrder::Random(77)];

/// The defaults, with a cache in cargo's target folder, so that only changed kernels are compiled
/// again.
pub fn options() -> Options {
    Options::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/metal-emulator"))
}

/// A compiler. Without clang the test fails, with what to install.
pub fn compiler(options: Options) -> Compiler {
    Compiler::new(options).unwrap_or_else(|e| panic!("{e}"))
}

pub fn compile(name: &str, source: &str) -> Library {
    compiler(options()).compile(name, source, &[]).unwrap_or_else(|e| panic!("{e}"))
}

pub fn floats(values: &[f32]) -> Buffer {
    Buffer::from_bytes(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>()).unwrap()
}

pub fn uints(values: &[u32]) -> Buffer {
    Buffer::from_bytes(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>()).unwrap()
}

pub fn to_floats(b: &Buffer) -> Vec<f32> {
    b.as_slice().chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
}

pub fn to_uints(b: &Buffer) -> Vec<u32> {
    b.as_slice().chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect()
}

/// Binds buffers in order and runs `groups` threadgroups of `threads`.
pub fn run(
    p: &Pipeline,
    buffers: &[&Buffer],
    groups: u32,
    threads: u32,
    order: LaneOrder,
) -> Result<Counters, Fault> {
    let bindings: Vec<Binding> = buffers.iter().enumerate().map(|(i, b)| Binding::new(i as u32, b)).collect();
    let dispatch = Dispatch {
        pipeline: p,
        buffers: &bindings,
        bytes: &[],
        threadgroup_memory: &[],
        threadgroups: [groups, 1, 1],
        resources: &[],
        threads_per_threadgroup: [threads, 1, 1],
    };
    dispatch.run(&RunOptions { order, threads: 1 })
}

/// Pseudo-random numbers in -1..1 from a linear congruential generator.
pub struct Random(pub u32);

impl Random {
    pub fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0 >> 8
    }

    pub fn float(&mut self) -> f32 {
        self.bits() as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}

/// Converts the bits of an f16 to f32.
pub fn half(bits: u16) -> f32 {
    let (sign, exponent, fraction) = (bits >> 15, i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    let magnitude = match exponent {
        0 => fraction * 2f32.powi(-24),
        31 => f32::INFINITY,
        e => (1.0 + fraction / 1024.0) * 2f32.powi(e - 15),
    };
    if sign == 1 { -magnitude } else { magnitude }
}

/// Converts f32 to the bits of an f16, rounded to nearest, ties to even, for values in the range of
/// an f16.
pub fn to_half(x: f32) -> u16 {
    let sign = (x.to_bits() >> 16 & 0x8000) as u16;
    let x = x.abs();
    if x < 2f32.powi(-14) {
        return sign | (x * 2f32.powi(24)).round_ties_even() as u16;
    }
    let exponent = (x.to_bits() >> 23) as i32 - 127;
    let fraction = (x / 2f32.powi(exponent) * 1024.0).round_ties_even() as i32;
    sign | (((exponent + 15 - 1) << 10) + fraction) as u16
}
