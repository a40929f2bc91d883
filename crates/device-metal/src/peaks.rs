//! The GPU's peak rates, measured with `kernels/peaks.metal`.

use crate::alone::Alone;
use crate::gpu::{Memory, MetalGpu, Request};
use device::{Peaks, Result};

/// Threads of a threadgroup.
const THREADS: u32 = 256;

/// Operations of a round of one thread: 16 chains of four multiply-adds.
const OPS_PER_ROUND: f64 = 128.0;

/// A kernel of the file, its grid, and how often it runs.
struct Run<'a, G: MetalGpu> {
    gpu: &'a G,
    buffers: Vec<G::Buffer>,
    threadgroups: u32,
}

impl<G: MetalGpu> Run<'_, G> {
    /// The shortest of a few runs, in seconds.
    fn seconds(&self, function: &str, n_vectors: u32) -> Result<f64> {
        let bindings: &[(u8, u16)] = match function {
            "read_bytes" => &[(1, 0), (2, 1)],
            _ => &[(2, 1)],
        };
        let request = Request::plain("peaks.metal", function, THREADS);
        let kernel = Alone::new(self.gpu, &request, bindings, n_vectors, [self.threadgroups, THREADS])?;
        let mut best = f64::INFINITY;
        for _ in 0..5 {
            best = best.min(kernel.run(self.gpu, &self.buffers)?);
        }
        Ok(best.max(1e-9))
    }
}

/// Reads far more than caches hold, and multiplies for some milliseconds.
pub fn measure<G: MetalGpu>(gpu: &G) -> Result<Peaks> {
    let (bytes, rounds, threadgroups) = match gpu.facts().is_emulated {
        true => (1 << 16, 4, 2),
        false => (512 << 20, 4096, 2048),
    };
    let take = |what: &str, bytes: usize| gpu.allocate(Memory::Device, what, bytes);
    let buffers = vec![take("memory to read", bytes)?, take("sums", threadgroups as usize * 4)?];
    let run = Run { gpu, buffers, threadgroups };
    let reading = run.seconds("read_bytes", (bytes / 16) as u32)?;
    let multiplying = run.seconds("multiply_add", rounds)?;
    let ops = OPS_PER_ROUND * f64::from(rounds) * f64::from(threadgroups * THREADS);
    Ok(Peaks {
        read_bytes_per_second: bytes as f64 / reading,
        // Weights of few bits are multiplied as floats too.
        int8_ops_per_second: ops / multiplying,
        bf16_ops_per_second: ops / multiplying,
        f32_ops_per_second: ops / multiplying,
    })
}
