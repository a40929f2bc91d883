//! Numbers that say how a compiler and a GPU calculate (`kernels/probes.metal`), with the bits that
//! are expected of them.

use crate::alone::Alone;
use crate::gpu::{Buffer, Memory, MetalGpu, Request};
use device::Result;

/// The result of a probe.
#[derive(Clone, Debug, PartialEq)]
pub struct Probed {
    /// The probed fact.
    pub what: &'static str,
    /// The bits that it has where a GPU calculates as the kernels need it.
    pub expected: u32,
    /// Allowed error of the value in units in the last place.
    pub ulp: u32,
    /// True if kernels depend on it; otherwise it is only reported.
    pub is_needed: bool,
    /// The bits.
    pub found: u32,
}

impl Probed {
    /// Returns true if the result is as expected.
    pub fn is_expected(&self) -> bool {
        self.found.abs_diff(self.expected) <= self.ulp
    }
}

/// The inputs: a third, the least normal number, the bits of a subnormal half, infinity, one, and
/// the square of the first as it is rounded.
fn inputs() -> [f32; 16] {
    let third = 1.0f32 / 3.0;
    let mut inputs = [0.0; 16];
    inputs[..6].copy_from_slice(&[third, f32::MIN_POSITIVE, 512.0, f32::INFINITY, 1.0, third * third]);
    inputs
}

/// Probes in the order of the kernel's outputs: name, expected value, ulp, and true if it is
/// needed.
fn expected() -> [(&'static str, f32, u32, bool); 16] {
    let third = 1.0f32 / 3.0;
    let row: f32 = (0..8).map(|k| (1 + 8 * k) as f32 * k as f32).sum();
    [
        ("a product and a sum are not contracted", 0.0, 0, true),
        ("fma rounds once", third.mul_add(third, -(third * third)), 0, true),
        ("subnormal f32 are kept (flushed: 0)", f32::MIN_POSITIVE / 2.0, 0, false),
        ("a subnormal half is converted", 512.0 * 2f32.powi(-24), 0, false),
        ("a subnormal half is multiplied", 0.5, 0, true),
        ("exp(-inf) is 0", 0.0, 0, true),
        ("exp(1)", std::f32::consts::E, 4, true),
        ("rsqrt(1/3)", 1.0 / third.sqrt(), 4, true),
        ("sin(1)", 1f32.sin(), 4, true),
        ("simd_sum adds by halves (i and i + 16, then 8, ...)", 16_777_216.0 + 30.0, 0, false),
        ("simd_prefix_inclusive_sum of lane 0", 1.0, 0, true),
        ("a transposed matrix is loaded and multiplied in its rows and columns", row, 0, true),
        ("max(NaN, 1) is 1", 1.0, 0, true),
        ("rint rounds to even", 2.0, 0, true),
        ("the largest half is exact", f32::from_bits(1), 0, true),
        ("division", 1.0 / third, 2, true),
    ]
}

/// Run them.
///
/// # Errors
/// The kernel does not compile, or the GPU fails.
pub fn probe<G: MetalGpu>(gpu: &G) -> Result<Vec<Probed>> {
    let request = Request::plain("probes.metal", "numeric_probes", 32);
    let kernel = Alone::new(gpu, &request, &[(1, 0), (2, 1)], 0, [1, 32])?;
    let buffers =
        [gpu.allocate(Memory::Shared, "probes", 64)?, gpu.allocate(Memory::Readback, "probed", 64)?];
    let inputs = inputs();
    // SAFETY: the buffer has 64 bytes, and no work uses it yet.
    unsafe { std::ptr::copy_nonoverlapping(inputs.as_ptr().cast::<u8>(), buffers[0].start(), 64) };
    kernel.run(gpu, &buffers)?;
    // SAFETY: the buffer has 64 bytes, and the work that wrote them is done.
    let found = unsafe { std::slice::from_raw_parts(buffers[1].start().cast::<u32>(), 16) };
    let probed = expected().into_iter().zip(found);
    Ok(probed
        .map(|((what, expected, ulp, is_needed), found)| Probed {
            what,
            expected: expected.to_bits(),
            ulp,
            is_needed,
            found: *found,
        })
        .collect())
}
