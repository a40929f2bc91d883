//! A kernel that runs without a table: a probe, or a measurement of the GPU itself.

use crate::arguments::PeakArguments;
use crate::gpu::{Dispatch, Encoder, MetalGpu, Request, Window};
use device::Result;
use device_lower::table::{Location, Operand};

/// A kernel with [`PeakArguments`], its grid, and the buffers that it binds from their start.
pub struct Alone<G: MetalGpu> {
    pipeline: G::Pipeline,
    operands: Vec<Operand>,
    arguments: PeakArguments,
    threadgroups: u32,
    threads: u32,
}

impl<G: MetalGpu> Alone<G> {
    /// Compiles the kernel. A binding is an index in the kernel, and the number of a buffer of
    /// [`Self::encode`]. The grid is a number of threadgroups, and of threads in each.
    ///
    /// # Errors
    /// The kernel does not compile.
    pub fn new(
        gpu: &G,
        request: &Request,
        bindings: &[(u8, u16)],
        n_vectors: u32,
        [threadgroups, threads]: [u32; 2],
    ) -> Result<Alone<G>> {
        let bind = |(index, buffer): &(u8, u16)| Operand {
            index: *index,
            location: Location { buffer: *buffer, offset: 0 },
            len: 0,
        };
        Ok(Alone {
            pipeline: gpu.pipeline(request)?,
            operands: bindings.iter().map(bind).collect(),
            arguments: PeakArguments { n_vectors, ..Default::default() },
            threadgroups,
            threads,
        })
    }

    /// Encodes one dispatch.
    pub fn encode(&self, encoder: &mut G::Encoder, buffers: &[G::Buffer]) {
        let dispatch = Dispatch {
            pipeline: &self.pipeline,
            window: Window::NONE,
            operands: &self.operands,
            arguments: bytemuck::bytes_of(&self.arguments),
            threadgroup_bytes: 0,
            threadgroups: [self.threadgroups, 1, 1],
            threads: [self.threads, 1, 1],
        };
        encoder.dispatch(&dispatch, buffers);
    }

    /// Runs one dispatch. Returns the GPU's seconds.
    ///
    /// # Errors
    /// The GPU refused or failed.
    pub fn run(&self, gpu: &G, buffers: &[G::Buffer]) -> Result<f64> {
        let ticket = gpu.submit(&mut |encoder| self.encode(encoder, buffers))?;
        gpu.wait(&ticket)
    }
}
