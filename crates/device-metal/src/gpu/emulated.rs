//! An emulated GPU: the crate `metal-emulator` executes the very same shader sources on Linux,
//! every access checked.
//!
//! It is slow and runs on one thread unless told otherwise; it is for tests, never a default.
//! Dispatches of a group run in an order of the caller's choice, so that a missing barrier shows as
//! another result. Submitted work runs as late as possible, when it is waited for. So if the host
//! overwrites memory that a step in flight still reads, the results differ. What faults is an error
//! of the step.

mod work;

use super::{
    Common, Constant, Encoder, Facts, Fitted, Gpu, Memory, MetalGpu, Request, SIMD_WIDTH, Unlimited,
};
use crate::kernels::{self, Kernel};
use device::{Error, Result};
use device_gpu::at_once::Libraries;
use device_gpu::step_cost::MOST_OPS;
use metal_emulator as emulator;
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use weights::Bytes;
pub use work::{EmulatedEncoder, EmulatedTicket, Traced};
use work::{Queue, Submitted, Work};

/// The name on the command line.
const NAME: &str = "metal-emulated";

/// Returns true for the paths of the selected files of kernels.
pub type IsOf = fn(&str) -> bool;

/// Options of the emulation.
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
    /// True if bytes are counted.
    pub counting: bool,
    /// True to compile as Metal 4, with tensors.
    pub tensors: bool,
    /// Differences of arithmetic from IEEE's that Metal allows.
    pub numerics: emulator::Numerics,
    /// Files of kernels, and the sources that they have instead of their own: to see defects found.
    pub replaced: Vec<(&'static str, String)>,
    /// Returns the most threads of a threadgroup that the GPU allows a kernel, to see that kernels
    /// run with fewer.
    pub most_threads: fn(&Request) -> u32,
    /// Operations that a command buffer has at most, by estimate.
    pub most_ops: u64,
    /// A sanitizer, and the files whose kernels run under it: they run in a process of their own,
    /// without counts and without limits of bindings.
    pub sanitized: Option<(emulator::Sanitizer, IsOf)>,
    /// Longest time of a command buffer on an M1 with 8 cores, estimated from counted work: macOS
    /// ends longer ones. `None` allows any.
    pub watchdog: Option<Duration>,
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
            tensors: false,
            numerics: emulator::Numerics::default(),
            replaced: vec![],
            most_ops: MOST_OPS,
            most_threads: |_| emulator::MAX_THREADS_PER_THREADGROUP,
            sanitized: None,
            watchdog: Some(Duration::from_secs(2)),
        }
    }
}

/// A buffer, and the bytes of which the buffer is a view.
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

    fn address(&self) -> u64 {
        self.buffer.gpu_address()
    }
}

/// A pipeline, compiled and loaded when it first runs: tables have one for every number of rows,
/// and tests run few of them.
#[derive(Clone)]
pub struct EmulatedPipeline {
    lazy: Arc<Lazy>,
    fitted: Fitted,
}

/// The parts of a pipeline, and the pipeline itself after its first use.
struct Lazy {
    shaders: Arc<Shaders>,
    kernel: Kernel,
    constants: Vec<(u16, emulator::Constant)>,
    loaded: OnceLock<std::result::Result<emulator::Pipeline, String>>,
}

impl EmulatedPipeline {
    fn load(&self) -> Result<&emulator::Pipeline> {
        let Lazy { shaders, kernel, constants, loaded } = self.lazy.as_ref();
        let load = || {
            let library = shaders.library(kernel).map_err(|error| error.to_string())?;
            library.pipeline(&kernel.function, constants).map_err(|error| error.to_string())
        };
        loaded.get_or_init(load).as_ref().map_err(|error| failed(error))
    }
}

/// A function and its constants.
type PipelineKey = (Kernel, Vec<(u16, u8, u32)>);

/// The compiler and the libraries that it compiled.
struct Shaders {
    compiler: emulator::Compiler,
    /// Files whose sources replace the built-in ones.
    replaced: Vec<(&'static str, String)>,
    /// Compiler for the files that run under a sanitizer.
    sanitizing: Option<(emulator::Compiler, IsOf)>,
    libraries: Libraries<emulator::Library>,
}

impl Shaders {
    fn library(&self, kernel: &Kernel) -> Result<emulator::Library> {
        let library = match self.is_by_function(kernel.file) {
            true => self.compile(kernel.file, Some(&kernel.function)),
            false => self.libraries.get(kernel.file, &|file| self.compile(file, None)),
        };
        library.map_err(|error| failed(&error))
    }

    /// Returns true if the functions of a file are compiled one by one, each at its first run. This
    /// is so under a sanitizer, where few of them run: compiling all of a file takes long.
    fn is_by_function(&self, file: &str) -> bool {
        self.sanitizing.as_ref().is_some_and(|(_, is_sanitized)| is_sanitized(file))
    }

    fn compile(
        &self,
        file: &'static str,
        function: Option<&str>,
    ) -> std::result::Result<emulator::Library, String> {
        let kernel = Kernel::of(file);
        let source = match self.replaced.iter().find(|(path, _)| *path == file) {
            Some((_, source)) => source.as_str(),
            None => kernel.text().ok_or_else(|| format!("no shader file {file}"))?,
        };
        let compiler = match &self.sanitizing {
            Some((compiler, is_sanitized)) if is_sanitized(file) => compiler,
            Some(_) | None => &self.compiler,
        };
        let library = match function {
            Some(function) => compiler.compile_function(file, source, kernels::HEADERS, function),
            None => compiler.compile(file, source, kernels::HEADERS),
        };
        library.map_err(|error| error.to_string())
    }
}

/// The emulated GPU.
pub struct EmulatedGpu {
    shaders: Arc<Shaders>,
    facts: Facts,
    order: emulator::LaneOrder,
    run: emulator::RunOptions,
    watchdog: Option<Duration>,
    pipelines: Mutex<HashMap<PipelineKey, Arc<Lazy>>>,
    most_threads: fn(&Request) -> u32,
    most_ops: u64,
    notes: Mutex<BTreeSet<String>>,
    /// Traces of dispatches; `None`: tracing is off.
    trace: Arc<Mutex<Option<Vec<Traced>>>>,
    /// Submitted work that has not run yet.
    queue: Queue,
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
            (settings.numerics, settings.tensors) = (options.numerics, options.tensors);
            settings.watchdog = options.watchdog;
            if options.tensors {
                settings.defines.push(("WITH_TENSORS".to_owned(), "1".to_owned()));
            }
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
            common: Common {
                max_buffer_bytes: 1 << 40,
                subgroup_width: SIMD_WIDTH,
                max_threads: emulator::MAX_THREADS_PER_THREADGROUP,
            },
            // The system's own: a map begins at such a page.
            page_bytes: 4 << 10,
            max_threadgroup_bytes: emulator::MAX_THREADGROUP_MEMORY,
            has_tensors: options.tensors,
            is_emulated: true,
        };
        let run = emulator::RunOptions { order: options.order, threads: options.threads.max(1) };
        let (order, watchdog) = (options.order, options.watchdog);
        let shaders = Arc::new(Shaders {
            compiler,
            replaced: options.replaced.clone(),
            sanitizing,
            libraries: Libraries::default(),
        });
        let (pipelines, notes) = (Mutex::default(), Mutex::default());
        let (trace, queue) = (Arc::default(), Arc::default());
        let (most_threads, most_ops) = (options.most_threads, options.most_ops);
        Ok(EmulatedGpu {
            shaders,
            facts,
            order,
            run,
            watchdog,
            pipelines,
            most_threads,
            most_ops,
            notes,
            trace,
            queue,
        })
    }

    /// Record the work of every dispatch from now on.
    pub fn start_trace(&self) {
        *lock(&self.trace) = Some(Vec::new());
    }

    /// Traces of dispatches since [`Self::start_trace`]. Tracing ends.
    pub fn take_trace(&self) -> Vec<Traced> {
        lock(&self.trace).take().unwrap_or_default()
    }

    /// A pipeline for any number of threads.
    fn lazy(&self, request: &Request) -> Result<Arc<Lazy>> {
        let Request { kernel, constants, .. } = request;
        let key = (kernel.clone(), request.constant_bits());
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
        let pipeline = Arc::new(Lazy { shaders, kernel, constants, loaded: OnceLock::new() });
        pipelines.insert(key, pipeline.clone());
        Ok(pipeline)
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

impl super::Residency<EmulatedGpu> for () {
    fn add(&mut self, _buffer: &EmulatedBuffer) {}

    fn remove(&mut self, _buffer: &EmulatedBuffer) {}
}

impl Gpu for EmulatedGpu {
    type Facts = Facts;
    type Kernel = Request;
    type Buffer = EmulatedBuffer;
    type Pipeline = EmulatedPipeline;
    type Encoder = EmulatedEncoder;
    type Ticket = EmulatedTicket;
    type Residency = ();

    const NAME: &'static str = NAME;

    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn most_ops(&self) -> u64 {
        self.most_ops
    }

    fn allocate(&self, _memory: Memory, what: &str, bytes: usize) -> Result<EmulatedBuffer> {
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

    /// Does nothing, since each file is compiled when it first runs.
    fn prepare(&self, _kernels: &[&Request]) {}

    fn pipeline(&self, request: &Request) -> Result<EmulatedPipeline> {
        let most = (self.most_threads)(request);
        let (lazy, fitted) = Fitted::make(request, NAME, |_| Ok((self.lazy(request)?, most)))?;
        if let Some(note) = fitted.note(request) {
            lock(&self.notes).insert(note);
        }
        Ok(EmulatedPipeline { lazy, fitted })
    }

    fn reside(&self, _buffers: &[EmulatedBuffer]) {}

    fn submit(&self, encode: &mut dyn FnMut(&mut EmulatedEncoder)) -> Result<EmulatedTicket> {
        let mut encoder = EmulatedEncoder::default();
        encode(&mut encoder);
        encoder.barrier();
        let EmulatedEncoder { reached, groups, .. } = encoder;
        let (order, run, watchdog) = (self.order, self.run, self.watchdog);
        let work = Work { reached, groups, order, run, watchdog, trace: self.trace.clone() };
        let submitted = Arc::new(Submitted { work: Mutex::new(Some(work)), ended: OnceLock::new() });
        lock(&self.queue).push_back(submitted.clone());
        Ok(EmulatedTicket { submitted, queue: self.queue.clone() })
    }

    /// Runs it first.
    fn wait(&self, ticket: &EmulatedTicket) -> Result<f64> {
        ticket.finish();
        match ticket.submitted.ended.get() {
            Some(Ok(seconds)) => Ok(*seconds),
            Some(Err(reason)) => Err(failed(reason)),
            None => Err(failed(&"submitted work was lost")),
        }
    }
}

impl MetalGpu for EmulatedGpu {
    fn memory(&self) -> platform::SystemMemory {
        platform::system_memory()
    }

    fn compile_file(&self, file: &'static str) -> std::result::Result<Vec<String>, String> {
        let library = self.shaders.libraries.get(file, &|file| self.shaders.compile(file, None))?;
        Ok(library.functions().iter().map(|function| function.name.clone()).collect())
    }

    fn unlimited(&self, _request: &Request) -> Result<Option<Unlimited>> {
        Ok(None)
    }

    fn notes(&self) -> Vec<String> {
        lock(&self.notes).iter().cloned().collect()
    }
}
