//! A check of the GPU's tensor units before kernels use them (`kernels/tensor_probe.metal`).

use crate::alone::Alone;
use crate::gpu::{Buffer, Memory, MetalGpu, Request};
use device::{Error, Result};

/// Rows and columns of the probe's matrix.
const ROWS: usize = 32;
const COLS: usize = 64;

/// Opens a GPU with its tensor units, and runs their probe. If it fails, the GPU is opened without
/// them, and the probe's error is returned too.
///
/// # Errors
/// Those of `open`, with tensor units and without.
pub fn open<G: MetalGpu>(open: impl Fn(bool) -> Result<G>) -> Result<(G, Option<Error>)> {
    let gpu = open(true)?;
    match probe(&gpu) {
        Ok(()) => Ok((gpu, None)),
        Err(error) => Ok((open(false)?, Some(error))),
    }
}

/// Multiplies a small matrix by its own transpose on the tensor units.
///
/// # Errors
/// The kernel does not compile, the GPU fails, or a product is wrong.
fn probe<G: MetalGpu>(gpu: &G) -> Result<()> {
    let request = Request::plain("tensor_probe.metal", "tensor_probe", 128);
    let kernel = Alone::new(gpu, &request, &[(1, 0), (2, 1)], 0, [1, 128])?;
    // Eighths of small integers: products and sums are exact at any precision of the units.
    let x: Vec<f32> = (0..ROWS * COLS).map(|i| ((i * 7 + i / COLS) % 17) as f32 / 8.0 - 1.0).collect();
    let expected: Vec<f32> = (0..ROWS * ROWS)
        .map(|i| {
            let [left, right] = [i / ROWS, i % ROWS].map(|row| &x[row * COLS..][..COLS]);
            left.iter().zip(right).map(|(a, b)| a * b).sum()
        })
        .collect();
    let sizes = [x.len(), 2 * expected.len()].map(|n| 4 * n);
    let buffers = [
        gpu.allocate(Memory::Shared, "probe", sizes[0])?,
        gpu.allocate(Memory::Readback, "probed", sizes[1])?,
    ];
    // SAFETY: the buffer has `sizes[0]` bytes, as many as `x`, and no work uses it yet.
    unsafe { std::ptr::copy_nonoverlapping(x.as_ptr().cast::<u8>(), buffers[0].start(), sizes[0]) };
    kernel.run(gpu, &buffers)?;
    // SAFETY: the buffer has `sizes[1]` bytes, and the work that wrote them is done.
    let found = unsafe { std::slice::from_raw_parts(buffers[1].start().cast::<f32>(), 2 * expected.len()) };
    for (i, (found, expected)) in found.iter().zip(expected.iter().cycle()).enumerate() {
        if found != expected {
            let reason = format!("element {i} of a product on tensor units is {found}, expected {expected}");
            return Err(Error::Failed { device: G::NAME, reason });
        }
    }
    Ok(())
}
