//! An emulated GPU: the crate `metal-emulator` executes the very same shader sources on Linux, every access checked.
//!
//! It is slow and runs on one thread unless told otherwise; it is for tests, never a default. Dispatches of a group run in an
//! order of the caller's choice, so that a missing barrier shows as another result. What faults is an error of the step.

use super::{Binding, Constant, Dispatch, Encoder, Facts, Gpu};
use crate::kernels::{self, Kernel};
use device::{Error, Memory, Result};
use formats::Bytes;
use metal_emulator as emulator;
use std::collections::HashMap;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// The name on the command line.
const NAME: &str = "metal-emulated";

/// Whether a file of kernels, by its path, is one of those meant.
pub type IsOf = fn(&str) -> bool;

/// How it emulates.
#[derive(Clone, Debug)]
pub struct Options {
    /// A folder for compiled shaders; processes may share it.
    pub cache: PathBuf,
    /// The chip whose profile is used.
    pub chip: String,
    /// The order of lanes, and of the dispatches of a group.
    pub order: emulator::LaneOrder,
    /// Threads of the host over which threadgroups are spread.
    pub threads: usize,
    /// Whether bytes are counted.
    pub counting: bool,
    /// A sanitizer, and the files whose kernels run under it: in a process of their own, where nothing is counted and bindings have
    /// no limits.
    pub sanitized: Option<(emulator::Sanitizer, IsOf)>,
}

impl Options {
    /// An M4 Pro in forward order on one thread, compiled shaders in `cache`.
    pub fn new(cache: impl Into<PathBuf>) -> Options {
        Options {
            cache: cache.into(),
            chip: "Apple M4 Pro".to_owned(),
            order: emulator::LaneOrder::Forward,
            threads: 1,
            counting: false,
            sanitized: None,
        }
    }
}

/// A buffer, and the bytes that it is a view of.
pub struct EmulatedBuffer {
    buffer: emulator::Buffer,
    _bytes: Option<Bytes>,
}

impl super::Buffer for EmulatedBuffer {
    fn len(&self) -> usize {
        self.buffer.len()
    }

    fn start(&self) -> *mut u8 {
        self.buffer.contents()
    }
}

/// A pipeline, compiled and loaded when it first runs: tables have one for every number of rows, and tests run few of them.
#[derive(Clone)]
pub struct EmulatedPipeline(Arc<Lazy>);

/// What a pipeline is made of, and the pipeline once it was needed.
struct Lazy {
    shaders: Arc<Shaders>,
    kernel: Kernel,
    constants: Vec<(u16, emulator::Constant)>,
    loaded: OnceLock<std::result::Result<emulator::Pipeline, String>>,
}

impl EmulatedPipeline {
    fn load(&self) -> Result<&emulator::Pipeline> {
        let Lazy { shaders, kernel, constants, loaded } = self.0.as_ref();
        let load = || {
            let library = shaders.library(kernel).map_err(|error| error.to_string())?;
            library.pipeline(&kernel.function, constants).map_err(|error| error.to_string())
        };
        loaded.get_or_init(load).as_ref().map_err(|error| failed(error))
    }
}

/// What one dispatch did.
#[derive(Clone, Debug)]
pub struct Traced {
    /// The file that the kernel stands in.
    pub file: &'static str,
    /// The kernel's function.
    pub function: String,
    /// Threadgroups of the grid.
    pub threadgroups: [u32; 3],
    /// Whether a barrier stood before it.
    pub after_barrier: bool,
    /// What it did.
    pub counters: emulator::Counters,
}

/// What a function and its constants are known by.
type PipelineKey = (Kernel, Vec<(u16, u8, u32)>);

/// The compiler and what it compiled.
struct Shaders {
    compiler: emulator::Compiler,
    /// For the files that run under a sanitizer.
    sanitizing: Option<(emulator::Compiler, IsOf)>,
    libraries: Mutex<HashMap<&'static str, emulator::Library>>,
}

impl Shaders {
    fn library(&self, kernel: &Kernel) -> Result<emulator::Library> {
        let mut libraries = lock(&self.libraries);
        if let Some(library) = libraries.get(kernel.file) {
            return Ok(library.clone());
        }
        let source = kernel.text().ok_or_else(|| failed(&format!("no shader file {}", kernel.file)))?;
        let compiler = match &self.sanitizing {
            Some((compiler, is_sanitized)) if is_sanitized(kernel.file) => compiler,
            _ => &self.compiler,
        };
        let library = compiler.compile(kernel.file, source, kernels::HEADERS);
        let library = library.map_err(|error| failed(&error))?;
        libraries.insert(kernel.file, library.clone());
        Ok(library)
    }
}

/// The emulated GPU.
pub struct EmulatedGpu {
    shaders: Arc<Shaders>,
    facts: Facts,
    order: emulator::LaneOrder,
    run: emulator::RunOptions,
    pipelines: Mutex<HashMap<PipelineKey, EmulatedPipeline>>,
    /// What dispatches did, while they are traced.
    trace: Arc<Mutex<Option<Vec<Traced>>>>,
}

/// A dispatch that waits for the end of its group.
struct Waiting {
    pipeline: EmulatedPipeline,
    /// The binding, the address of its buffer.
    bindings: Vec<(Binding, *const EmulatedBuffer)>,
    arguments: Vec<u8>,
    threadgroup_bytes: u32,
    threadgroups: [u32; 3],
    threads: [u32; 3],
}

/// The dispatches of a group, and the first fault.
pub struct EmulatedEncoder {
    order: emulator::LaneOrder,
    run: emulator::RunOptions,
    group: Vec<Waiting>,
    fault: Option<Error>,
    trace: Arc<Mutex<Option<Vec<Traced>>>>,
    first: bool,
}

/// Work that is done already.
pub struct EmulatedTicket {
    seconds: f64,
    fault: Option<Error>,
}

fn failed(error: &dyn std::fmt::Display) -> Error {
    Error::Failed { device: NAME, reason: error.to_string() }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EmulatedGpu {
    /// With these options.
    ///
    /// # Errors
    /// There is no clang, in words that say what to install.
    pub fn new(options: &Options) -> Result<EmulatedGpu> {
        let compiler = |sanitizer: emulator::Sanitizer| {
            let mut settings = emulator::Options::new(&options.cache);
            (settings.counting, settings.sanitizer) = (options.counting, sanitizer);
            emulator::Compiler::new(settings).map_err(|error| Error::Unsupported {
                device: NAME,
                what: "running shaders on this machine".to_owned(),
                hint: error.to_string(),
            })
        };
        let sanitizing = match options.sanitized {
            Some((sanitizer, is_sanitized)) => Some((compiler(sanitizer)?, is_sanitized)),
            None => None,
        };
        let compiler = compiler(emulator::Sanitizer::None)?;
        let facts = Facts {
            n_cores: crate::profile::cores_of(&options.chip),
            name: format!("{}, emulated", options.chip),
            family: crate::profile::family_of(&options.chip),
            max_buffer_bytes: 1 << 40,
            // The system's own: a map begins at such a page.
            page_bytes: 4 << 10,
            max_threads: emulator::MAX_THREADS_PER_THREADGROUP,
            max_threadgroup_bytes: emulator::MAX_THREADGROUP_MEMORY,
            is_emulated: true,
        };
        let run = emulator::RunOptions { order: options.order, threads: options.threads.max(1) };
        let order = options.order;
        let shaders = Arc::new(Shaders { compiler, sanitizing, libraries: Mutex::default() });
        Ok(EmulatedGpu { shaders, facts, order, run, pipelines: Mutex::default(), trace: Arc::default() })
    }

    /// From now on, keep what every dispatch did.
    pub fn start_trace(&self) {
        *lock(&self.trace) = Some(Vec::new());
    }

    /// What dispatches did since [`Self::start_trace`], which ends.
    pub fn take_trace(&self) -> Vec<Traced> {
        lock(&self.trace).take().unwrap_or_default()
    }

    /// Check a file of shaders with real address spaces.
    ///
    /// # Errors
    /// In clang's words.
    pub fn check_strict(&self, file: &str) -> Result<()> {
        let text = Kernel { file: file_of(file), function: String::new() };
        let source = text.text().ok_or_else(|| failed(&format!("no shader file {file}")))?;
        self.shaders.compiler.check_strict(file, source, kernels::HEADERS).map_err(|error| failed(&error))
    }
}

/// The path as it is listed.
fn file_of(file: &str) -> &'static str {
    kernels::FILES.iter().map(|(path, _)| *path).find(|path| *path == file).unwrap_or("")
}

impl EmulatedEncoder {
    /// Run the dispatches of the group in the order that was chosen.
    fn flush(&mut self) {
        let mut group = std::mem::take(&mut self.group);
        let seed = match self.order {
            emulator::LaneOrder::Forward => 0,
            emulator::LaneOrder::Reverse => {
                group.reverse();
                0
            }
            emulator::LaneOrder::Random(seed) => seed,
        };
        if seed != 0 {
            let n = group.len();
            (1..n).for_each(|i| group.swap(i, (seed as usize).wrapping_mul(2 * i + 1) % (i + 1)));
        }
        let mut after_barrier = !std::mem::take(&mut self.first);
        for waiting in group {
            if self.fault.is_none() {
                self.fault = self.run(&waiting, after_barrier).err();
            }
            after_barrier = false;
        }
    }

    fn run(&self, waiting: &Waiting, after_barrier: bool) -> Result<()> {
        let pipeline = waiting.pipeline.load()?;
        let bindings: Vec<emulator::Binding> = waiting
            .bindings
            .iter()
            .map(|(binding, buffer)| {
                // SAFETY: the program's buffers live until the submission ends, which is before `submit` returns.
                let buffer = unsafe { &(**buffer).buffer };
                let bound = emulator::Binding::new(u32::from(binding.index), buffer);
                let bound = bound.at(binding.place.offset as usize);
                if binding.len > 0 { bound.limit(binding.len as usize) } else { bound }
            })
            .collect();
        let bytes = [(0, waiting.arguments.as_slice())];
        let threadgroup = [(0, waiting.threadgroup_bytes)];
        let dispatch = emulator::Dispatch {
            pipeline,
            buffers: &bindings,
            bytes: if waiting.arguments.is_empty() { &[] } else { &bytes },
            threadgroup_memory: if waiting.threadgroup_bytes == 0 { &[] } else { &threadgroup },
            threadgroups: waiting.threadgroups,
            threads_per_threadgroup: waiting.threads,
        };
        let counters = dispatch.run(&self.run).map_err(|fault| failed(&fault))?;
        if let Some(trace) = lock(&self.trace).as_mut() {
            let Kernel { file, function } = waiting.pipeline.0.kernel.clone();
            let threadgroups = waiting.threadgroups;
            trace.push(Traced { file, function, threadgroups, after_barrier, counters });
        }
        Ok(())
    }
}

impl Encoder<EmulatedGpu> for EmulatedEncoder {
    fn dispatch(&mut self, dispatch: &Dispatch<'_, EmulatedGpu>, buffers: &[EmulatedBuffer]) {
        let bound =
            |binding: &Binding| Some((*binding, &raw const *buffers.get(binding.place.buffer as usize)?));
        self.group.push(Waiting {
            pipeline: dispatch.pipeline.clone(),
            bindings: dispatch.bindings.iter().filter_map(bound).collect(),
            arguments: dispatch.arguments.to_vec(),
            threadgroup_bytes: dispatch.threadgroup_bytes,
            threadgroups: dispatch.threadgroups,
            threads: dispatch.threads,
        });
    }

    fn barrier(&mut self) {
        self.flush();
    }

    /// Nothing is raised behind a fault.
    fn signal(&mut self, signal: &Arc<AtomicU64>, value: u64) {
        self.flush();
        if self.fault.is_none() {
            signal.store(value, Ordering::Release);
        }
    }
}

impl Gpu for EmulatedGpu {
    type Buffer = EmulatedBuffer;
    type Pipeline = EmulatedPipeline;
    type Encoder = EmulatedEncoder;
    type Ticket = EmulatedTicket;
    type Signal = Arc<AtomicU64>;
    type Residency = ();

    const NAME: &'static str = NAME;

    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn memory(&self) -> Memory {
        device::system_memory()
    }

    fn allocate(&self, what: &str, bytes: usize) -> Result<EmulatedBuffer> {
        let buffer = emulator::Buffer::new(bytes).map_err(|_| Error::OutOfMemory {
            device: NAME,
            what: what.to_owned(),
            bytes: bytes as u64,
        })?;
        Ok(EmulatedBuffer { buffer, _bytes: None })
    }

    fn view(&self, bytes: &Bytes) -> Option<EmulatedBuffer> {
        let start = NonNull::new(bytes.as_ptr().cast_mut())?;
        // SAFETY: the bytes are kept beside the buffer; kernels that write to it fault.
        let buffer = unsafe { emulator::Buffer::borrowed(start, bytes.len(), false) };
        Some(EmulatedBuffer { buffer, _bytes: Some(bytes.clone()) })
    }

    fn pipeline(&self, kernel: &Kernel, constants: &[(u16, Constant)]) -> Result<EmulatedPipeline> {
        let bits = |(index, value): &(u16, Constant)| match *value {
            Constant::Bool(v) => (*index, 0, u32::from(v)),
            Constant::UInt(v) => (*index, 1, v),
            Constant::Int(v) => (*index, 2, v as u32),
            Constant::UShort(v) => (*index, 3, u32::from(v)),
            Constant::Float(v) => (*index, 4, v.to_bits()),
        };
        let key = (kernel.clone(), constants.iter().map(bits).collect::<Vec<_>>());
        let mut pipelines = lock(&self.pipelines);
        if let Some(pipeline) = pipelines.get(&key) {
            return Ok(pipeline.clone());
        }
        kernel.text().ok_or_else(|| failed(&format!("no shader file {}", kernel.file)))?;
        let constants = constants
            .iter()
            .map(|(index, value)| {
                let value = match *value {
                    Constant::Bool(v) => emulator::Constant::Bool(v),
                    Constant::UInt(v) => emulator::Constant::UInt(v),
                    Constant::Int(v) => emulator::Constant::Int(v),
                    Constant::UShort(v) => emulator::Constant::UShort(v),
                    Constant::Float(v) => emulator::Constant::Float(v),
                };
                (*index, value)
            })
            .collect();
        let (shaders, kernel) = (self.shaders.clone(), kernel.clone());
        let pipeline =
            EmulatedPipeline(Arc::new(Lazy { shaders, kernel, constants, loaded: OnceLock::new() }));
        pipelines.insert(key, pipeline.clone());
        Ok(pipeline)
    }

    fn max_threads(&self, _pipeline: &EmulatedPipeline) -> u32 {
        self.facts.max_threads
    }

    /// The compiler's cache has them.
    fn keep_pipelines(&self) {}

    fn reside(&self, _buffers: &[EmulatedBuffer]) {}

    fn new_signal(&self) -> Result<Arc<AtomicU64>> {
        Ok(Arc::default())
    }

    fn submit(&self, encode: &mut dyn FnMut(&mut EmulatedEncoder)) -> Result<EmulatedTicket> {
        let begun = Instant::now();
        let mut encoder = EmulatedEncoder {
            order: self.order,
            run: self.run,
            group: Vec::new(),
            fault: None,
            trace: self.trace.clone(),
            first: true,
        };
        encode(&mut encoder);
        encoder.flush();
        Ok(EmulatedTicket { seconds: begun.elapsed().as_secs_f64(), fault: encoder.fault })
    }

    fn wait(&self, ticket: EmulatedTicket) -> Result<f64> {
        match ticket.fault {
            None => Ok(ticket.seconds),
            Some(fault) => Err(fault),
        }
    }

    fn wait_for(&self, signal: &Arc<AtomicU64>, value: u64, ticket: &mut EmulatedTicket) -> Result<()> {
        if signal.load(Ordering::Acquire) >= value {
            return Ok(());
        }
        Err(ticket.fault.take().unwrap_or_else(|| failed(&"submitted work ended without its signal")))
    }
}
