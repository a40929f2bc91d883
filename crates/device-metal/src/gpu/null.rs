//! A GPU that runs nothing. It counts its calls, and remembers the kernels of dispatches. The
//! self-test asks it which kernels a case runs; tests of tables count with it.

use super::{Buffer, Common, Dispatch, Encoder, Facts, Gpu, Memory, MetalGpu, Request, Residency, Unlimited};
use device::{Error, Result};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use weights::Bytes;

/// Zeroed memory, never moved.
pub struct HostBuffer {
    _memory: Mutex<Box<[u64]>>,
    len: usize,
    start: usize,
}

/// A kernel, and whether a dispatch used it.
#[derive(Debug)]
pub struct Recorded {
    request: Request,
    has_run: AtomicBool,
}

impl Buffer for HostBuffer {
    fn len(&self) -> usize {
        self.len
    }

    fn start(&self) -> *mut u8 {
        self.start as *mut u8
    }

    fn address(&self) -> u64 {
        self.start as u64
    }
}

/// A GPU without work, and its counts.
pub struct NullGpu {
    facts: Facts,
    dispatches: AtomicUsize,
    barriers: AtomicUsize,
    made: Mutex<BTreeMap<String, Arc<Recorded>>>,
    /// Command buffers that were submitted.
    pub submissions: AtomicUsize,
    /// Views of mapped files that became buffers.
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
    /// A GPU of 20 cores with this name.
    pub fn new(name: &str) -> NullGpu {
        NullGpu::with_facts(Facts {
            name: name.to_owned(),
            family: 9,
            n_cores: 20,
            common: Common { max_buffer_bytes: 1 << 36, subgroup_width: 32, max_threads: 1024 },
            page_bytes: 16 << 10,
            max_threadgroup_bytes: 32 << 10,
            has_tensors: false,
            is_emulated: true,
        })
    }

    /// A GPU that reports the facts of another.
    pub fn with_facts(facts: Facts) -> NullGpu {
        NullGpu {
            facts,
            dispatches: AtomicUsize::new(0),
            barriers: AtomicUsize::new(0),
            made: Mutex::default(),
            submissions: AtomicUsize::new(0),
            views: AtomicUsize::new(0),
            pipelines: AtomicUsize::new(0),
            prepared: Mutex::default(),
            waits: AtomicUsize::new(0),
            fails: AtomicBool::new(false),
        }
    }

    /// The kernels of all dispatches since the last call.
    pub fn take_requests(&self) -> Vec<Request> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let ran = made.values().filter(|recorded| recorded.has_run.swap(false, Ordering::Relaxed));
        ran.map(|recorded| recorded.request.clone()).collect()
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
        debug_assert_eq!(self.dispatches, 0, "before the first dispatch");
    }

    fn dispatch(&mut self, dispatch: &Dispatch<'_, NullGpu>, buffers: &[HostBuffer]) {
        debug_assert!(dispatch.threadgroups.iter().all(|n| *n > 0), "an empty grid");
        debug_assert!(
            dispatch.threads.iter().product::<u32>() <= 1024 && dispatch.threads[0].is_multiple_of(32)
        );
        for operand in dispatch.operands {
            let buffer = &buffers[operand.location.buffer as usize];
            let (offset, len) = dispatch.bytes_of(operand);
            debug_assert!(offset + len.max(1) <= buffer.len() as u64, "a location beyond its buffer");
        }
        dispatch.pipeline.has_run.store(true, Ordering::Relaxed);
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
    type Pipeline = Arc<Recorded>;
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
        Ok(HostBuffer { _memory: Mutex::new(memory), len: bytes, start })
    }

    fn view(&self, bytes: &Bytes) -> Option<HostBuffer> {
        self.views.fetch_add(1, Ordering::Relaxed);
        debug_assert!((bytes.as_ptr() as usize).is_multiple_of(4096));
        Some(HostBuffer { _memory: Mutex::default(), len: bytes.len(), start: bytes.as_ptr() as usize })
    }

    fn prepare(&self, kernels: &[&Request]) {
        let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        prepared.extend(kernels.iter().map(|request| request.kernel.file));
    }

    fn pipeline(&self, request: &Request) -> Result<Arc<Recorded>> {
        self.pipelines.fetch_add(1, Ordering::Relaxed);
        let Request { kernel, constants, threads, .. } = request;
        debug_assert!(threads.is_multiple_of(32) && *threads > 0 && *threads <= 1024, "{threads} threads");
        for (n, (index, _)) in constants.iter().enumerate() {
            debug_assert!(constants[..n].iter().all(|(other, _)| other != index), "constant {index} twice");
        }
        let Some(text) = kernel.text() else {
            let reason = format!("no shader file {}", kernel.file);
            return Err(Error::Failed { device: Self::NAME, reason });
        };
        let is_declared = text.contains(&kernel.function) || text.contains("INSTANTIATE");
        debug_assert!(is_declared, "{} in {}", kernel.function, kernel.file);
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let recorded = made.entry(format!("{request:?}")).or_insert_with(|| {
            Arc::new(Recorded { request: request.clone(), has_run: AtomicBool::new(false) })
        });
        Ok(recorded.clone())
    }

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
