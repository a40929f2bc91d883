//! Peak rates. The rate of memory is measured; those of arithmetic follow from the chip.

use crate::CudaDevice;
use crate::driver::Buffer;
use device::{Peaks, Result};

/// Bytes of the measured copy: several times the size of every cache.
const BYTES: usize = 1 << 30;

/// Measures the peak rates. They are 0 if the GPU fails.
pub fn measure(device: &CudaDevice) -> Peaks {
    let read = copy_rate(device).unwrap_or(0.0);
    Peaks {
        read_bytes_per_second: read,
        int8_ops_per_second: 0.0,
        bf16_ops_per_second: 0.0,
        f32_ops_per_second: 0.0,
    }
}

/// Bytes per second, read and written, of copies within GPU memory.
fn copy_rate(device: &CudaDevice) -> Result<f64> {
    let context = device.context();
    let (from, to) = (Buffer::new(context, "peaks", BYTES)?, Buffer::new(context, "peaks", BYTES)?);
    let (start, end) = (context.event(true)?, context.event(true)?);
    context.copy(to.start(), from.start(), BYTES)?;
    start.record()?;
    let n = 10;
    for _ in 0..n {
        context.copy(to.start(), from.start(), BYTES)?;
    }
    end.record()?;
    end.wait()?;
    Ok((2 * n * BYTES) as f64 / end.since(&start)?)
}
