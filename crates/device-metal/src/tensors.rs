//! A check of the GPU's tensor units before kernels use them (`kernels/tensor_probe.metal`).

use crate::alone::Alone;
use crate::gpu::{Buffer, Memory, MetalGpu, Request};
use device::{Error, Result};

/// Floats between the starts of two rows of the probe's matrices.
const STRIDE: usize = 104;
/// Rows of each left matrix, and of the right one.
const ROWS: [usize; 2] = [64, 256];
/// Factor of every fourth row of the left matrix for floats, beyond the range of halves.
const LARGE: f32 = 98304.0;

/// A left operand of a product.
#[derive(Clone, Copy, PartialEq)]
enum Left {
    /// Floats in device memory, without the last three rows.
    InPlace,
    /// Halves in threadgroup memory.
    Halves,
    /// Floats in threadgroup memory.
    Floats,
}

/// The products of the kernel in its order: left operand, rows, columns, and true if the right
/// operand is transposed.
const PRODUCTS: [(Left, usize, usize, bool); 16] = [
    (Left::InPlace, 32, 32, true),
    (Left::InPlace, 64, 32, true),
    (Left::InPlace, 32, 32, true),
    (Left::InPlace, 64, 32, true),
    (Left::Halves, 32, 32, true),
    (Left::Halves, 64, 32, true),
    (Left::Floats, 32, 32, true),
    (Left::Halves, 16, 32, true),
    (Left::Halves, 32, 32, true),
    (Left::Floats, 16, 32, true),
    (Left::Floats, 32, 32, true),
    (Left::Halves, 32, 64, false),
    (Left::Halves, 32, 128, false),
    (Left::Halves, 16, 256, false),
    (Left::Floats, 32, 64, false),
    (Left::Floats, 16, 128, false),
];

/// A value of the left matrix. Small integers, and products and sums of them, are exact at any
/// precision of operands, but sums above 2048 only in floats.
fn left(left: Left, row: usize, column: usize) -> f32 {
    let factor = if left != Left::Halves && row % 4 == 1 { LARGE } else { 1.0 };
    ((7 * column + 3 * row) % 17) as f32 * factor
}

/// A value of the right matrix.
fn right(row: usize, column: usize) -> f32 {
    ((5 * column + 11 * row) % 16) as f32
}

/// All matrices of the kernel.
fn matrices() -> Vec<f32> {
    let of = |rows: usize, value: &dyn Fn(usize, usize) -> f32| -> Vec<f32> {
        (0..rows * STRIDE).map(|i| value(i / STRIDE, i % STRIDE)).collect()
    };
    [Left::Halves, Left::Floats]
        .map(|operand| of(ROWS[0], &|row, column| left(operand, row, column)))
        .concat()
        .into_iter()
        .chain(of(ROWS[1], &right))
        .collect()
}

/// An element of a product: of its first columns, doubled in odd rows, and of the others.
fn element((operand, _, _, transposed): (Left, usize, usize, bool), row: usize, column: usize) -> f32 {
    let (first, n) = if transposed { (64, 101) } else { (32, 37) };
    let sum = |columns: std::ops::Range<usize>| -> f32 {
        columns.map(|k| left(operand, row, k) * right(column, k)).sum()
    };
    sum(0..first) * (1 + row % 2) as f32 + sum(first..n)
}

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

/// Runs every product that kernels use on the tensor units.
///
/// # Errors
/// The kernel does not compile, the GPU fails, or a product is wrong.
fn probe<G: MetalGpu>(gpu: &G) -> Result<()> {
    let request = Request::plain("tensor_probe.metal", "tensor_probe", 128);
    let kernel = Alone::new(gpu, &request, &[(1, 0), (2, 1)], 0, [1, 128])?;
    let x = matrices();
    let n_elements: usize = PRODUCTS.iter().map(|(_, rows, columns, _)| rows * columns).sum();
    let buffers = [
        gpu.allocate(Memory::Shared, "probe", 4 * x.len())?,
        gpu.allocate(Memory::Readback, "probed", 4 * n_elements)?,
    ];
    // SAFETY: the buffer has four bytes for each number of `x`, and no work uses it yet.
    unsafe { std::ptr::copy_nonoverlapping(x.as_ptr().cast::<u8>(), buffers[0].start(), 4 * x.len()) };
    kernel.run(gpu, &buffers)?;
    // SAFETY: the buffer has four bytes for each of `n_elements`, and the work that wrote them is
    // done.
    let mut found = unsafe { std::slice::from_raw_parts(buffers[1].start().cast::<f32>(), n_elements) };
    for (index, product) in PRODUCTS.into_iter().enumerate() {
        let (operand, rows, columns, _) = product;
        let (elements, others) = found.split_at(rows * columns);
        let n_present = if operand == Left::InPlace { rows - 3 } else { rows };
        for (at, found) in elements.iter().enumerate().take(n_present * columns) {
            let (row, column) = (at / columns, at % columns);
            let expected = element(product, row, column);
            if *found != expected {
                let reason = format!(
                    "element ({row}, {column}) of product {index} on tensor units is {found}, expected {expected}"
                );
                return Err(Error::Failed { device: G::NAME, reason });
            }
        }
        found = others;
    }
    Ok(())
}
