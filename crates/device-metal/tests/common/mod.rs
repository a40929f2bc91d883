//! A GPU that runs nothing: it counts its calls, and its buffers are host memory. For tests of
//! tables.
#![allow(clippy::unwrap_used, dead_code)]

use device::{Error, Result};
use ingle_device_metal::gpu::{
    Buffer, Common, Dispatch, Encoder, Facts, Gpu, Memory, MetalGpu, Request, Residency, Unlimited,
};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use weights::Bytes;

/// Zeroed memory, never moved.
pub struct HostBuffer(Mutex<Box<[u64]>>, usize, usize);

impl Buffer for HostBuffer {
    fn len(&self) -> usize {
        self.1
    }

    fn start(&self) -> *mut u8 {
        self.2 as *mut u8
    }

    fn address(&self) -> u64 {
        self.2 as u64
    }
}

/// Counts.
pub struct NullGpu {
    facts: Facts,
    pub dispatches: AtomicUsize,
    pub barriers: AtomicUsize,
    pub submissions: AtomicUsize,
    pub views: AtomicUsize,
    /// Kernels that were compiled.
    pub pipelines: AtomicUsize,
    /// Files to compile, one entry for each request.
    pub prepared: Mutex<Vec<&'static str>>,
    /// Command buffers that were waited for.
    pub waits: AtomicUsize,
    /// True if waiting for a command buffer fails from now on.
    pub fails: AtomicBool,
}

impl NullGpu {
    pub fn new(name: &str) -> NullGpu {
        let facts = Facts {
            name: name.to_owned(),
            family: 9,
            n_cores: 20,
            common: Common { max_buffer_bytes: 1 << 36, subgroup_width: 32, max_threads: 1024 },
            page_bytes: 16 << 10,
            max_threadgroup_bytes: 32 << 10,
            has_tensors: false,
            is_emulated: true,
        };
        let zero = || AtomicUsize::new(0);
        NullGpu {
            facts,
            dispatches: zero(),
            barriers: zero(),
            submissions: zero(),
            views: zero(),
            pipelines: zero(),
            prepared: Mutex::default(),
            waits: zero(),
            fails: AtomicBool::new(false),
        }
    }

    /// Dispatches and barriers since the last call.
    pub fn take(&self) -> (usize, usize) {
        (self.dispatches.swap(0, Ordering::Relaxed), self.barriers.swap(0, Ordering::Relaxed))
    }
}

/// Counts of one submission.
#[derive(Default)]
pub struct Counter {
    dispatches: usize,
    barriers: usize,
}

impl Residency<NullGpu> for () {
    fn add(&mut self, _buffer: &HostBuffer) {}

    fn remove(&mut self, _buffer: &HostBuffer) {}
}

impl Encoder<NullGpu> for Counter {
    fn reach(&mut self, _buffer: &HostBuffer) {
        assert_eq!(self.dispatches, 0, "before the first dispatch");
    }

    fn dispatch(&mut self, dispatch: &Dispatch<'_, NullGpu>, buffers: &[HostBuffer]) {
        assert!(dispatch.threadgroups.iter().all(|n| *n > 0), "an empty grid");
        assert!(dispatch.threads.iter().product::<u32>() <= 1024 && dispatch.threads[0].is_multiple_of(32));
        for operand in dispatch.operands {
            let buffer = &buffers[operand.location.buffer as usize];
            let (offset, len) = dispatch.bytes_of(operand);
            assert!(offset + len.max(1) <= buffer.len() as u64, "a location beyond its buffer");
        }
        self.dispatches += 1;
    }

    fn barrier(&mut self) {
        self.barriers += 1;
    }
}

impl Gpu for NullGpu {
    type Facts = Facts;
    type Kernel = Request;
    type Buffer = HostBuffer;
    type Pipeline = ();
    type Encoder = Counter;
    type Ticket = ();
    type Residency = ();

    const NAME: &'static str = "metal-null";

    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn allocate(&self, _memory: Memory, _what: &str, bytes: usize) -> Result<HostBuffer> {
        let mut memory = vec![0u64; bytes.div_ceil(8)].into_boxed_slice();
        let start = memory.as_mut_ptr() as usize;
        Ok(HostBuffer(Mutex::new(memory), bytes, start))
    }

    fn view(&self, bytes: &Bytes) -> Option<HostBuffer> {
        self.views.fetch_add(1, Ordering::Relaxed);
        assert!((bytes.as_ptr() as usize).is_multiple_of(4096));
        Some(HostBuffer(Mutex::default(), bytes.len(), bytes.as_ptr() as usize))
    }

    fn prepare(&self, kernels: &[&Request]) {
        self.prepared.lock().unwrap().extend(kernels.iter().map(|request| request.kernel.file));
    }

    fn pipeline(&self, Request { kernel, constants, threads, .. }: &Request) -> Result<()> {
        self.pipelines.fetch_add(1, Ordering::Relaxed);
        assert!(threads.is_multiple_of(32) && *threads > 0 && *threads <= 1024, "{threads} threads");
        let text = kernel.text().unwrap();
        let stem = kernel.function.split("_gem").next().unwrap();
        let declared = text.contains(&format!("void {}(", kernel.function)) || text.contains("INSTANTIATE");
        assert!(declared || kernel.source().unwrap().contains(&kernel.function), "{stem} in {}", kernel.file);
        for (n, (index, _)) in constants.iter().enumerate() {
            assert!(constants[..n].iter().all(|(other, _)| other != index), "constant {index} twice");
        }
        Ok(())
    }

    fn keep_pipelines(&self) {}

    fn reside(&self, _buffers: &[HostBuffer]) {}

    fn submit(&self, encode: &mut dyn FnMut(&mut Counter)) -> Result<()> {
        let mut counter = Counter::default();
        encode(&mut counter);
        self.dispatches.fetch_add(counter.dispatches, Ordering::Relaxed);
        self.barriers.fetch_add(counter.barriers, Ordering::Relaxed);
        self.submissions.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn wait(&self, (): &()) -> Result<f64> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        match self.fails.load(Ordering::Relaxed) {
            true => Err(Error::Failed { device: Self::NAME, reason: "as asked".to_owned() }),
            false => Ok(0.0),
        }
    }
}

impl MetalGpu for NullGpu {
    fn memory(&self) -> platform::SystemMemory {
        platform::system_memory()
    }

    fn compile_file(&self, _file: &'static str) -> std::result::Result<Vec<String>, String> {
        Ok(vec![])
    }

    fn unlimited(&self, _request: &Request) -> Result<Option<Unlimited>> {
        Ok(None)
    }
}
