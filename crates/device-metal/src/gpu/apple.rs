//! Apple's GPUs through objc2-metal.
//!
//! Not one line of this file has run on Apple hardware; it is type-checked for aarch64-apple-darwin
//! on Linux. See docs/metal.md.
//!
//! `encoder` has command buffers, `residency` the memory that stays, `archive` the pipelines that
//! outlive the process, and `machine` the facts that the system reports.

mod archive;
mod encoder;
mod machine;
mod residency;

pub use encoder::{AppleEncoder, AppleTicket};
pub use residency::AppleResidency;

use super::heartbeat::{self, Heartbeat};
use super::{
    Common, Constant, EncoderMode, Facts, Fitted, Gpu, Memory, MetalGpu, Request, SIMD_WIDTH, Unlimited,
};
use crate::kernels::{self, Kernel};
use archive::Archive;
use device::{Error, Result};
use device_gpu::at_once::Libraries;
use machine::is_system_at_least;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::{msg_send, sel};
use objc2_foundation::{NSError, NSRange, NSString, NSURL};
use objc2_metal::{
    MTLBlitCommandEncoder, MTLBuffer, MTLCommandBuffer, MTLCommandEncoder, MTLCommandQueue,
    MTLCompileOptions, MTLComputePipelineDescriptor, MTLComputePipelineState, MTLCopyAllDevices,
    MTLCreateSystemDefaultDevice, MTLDataType, MTLDevice, MTLFence, MTLFunction, MTLFunctionConstantValues,
    MTLGPUFamily, MTLLanguageVersion, MTLLibrary, MTLMathFloatingPointFunctions, MTLMathMode,
    MTLPipelineOption, MTLResidencySetDescriptor, MTLResourceOptions,
};
use residency::Sets;
use std::collections::{BTreeSet, HashMap};
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weights::Bytes;

type Object<T> = Retained<ProtocolObject<T>>;
type State = Object<dyn MTLComputePipelineState>;

// Without CoreGraphics in the process `MTLCreateSystemDefaultDevice` returns nil in a program
// without a window, as its documentation says. The reference to one of its functions makes the
// linker keep it.
#[link(name = "CoreGraphics", kind = "framework")]
unsafe extern "C" {
    fn CGMainDisplayID() -> u32;
}
#[used]
static KEEPS_CORE_GRAPHICS: unsafe extern "C" fn() -> u32 = CGMainDisplayID;

/// The name on the command line.
const NAME: &str = "metal";

/// The oldest macOS: it brought Metal 3.1, in which the shaders are written.
const OLDEST_SYSTEM: (isize, isize) = (14, 0);

/// The GPU family with tensor units.
const TENSOR_FAMILY: u32 = 10;

/// The macOS with tensors: MLX needs this version, and 26.0 has the language.
const TENSOR_SYSTEM: (isize, isize) = (26, 2);

/// Time without a step and without a new pipeline after which new pipelines are saved.
const IDLE: Duration = Duration::from_secs(2);

/// Options of the GPU.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A folder for compiled pipelines; none: they are compiled at every start.
    pub cache: Option<PathBuf>,
    /// True if shaders are compiled as Metal 4, which opens the tensor units of an M5 from macOS
    /// 26.2 on (`kernels/linear/tensor.h`). Nobody has compiled them so.
    pub tensors: bool,
    /// Accepts a GPU that cannot run the kernels, such as a virtual machine's, to compile them
    /// only.
    pub any_family: bool,
    /// The order of dispatches and command buffers.
    pub encoder: EncoderMode,
}

/// A buffer that CPU and GPU share.
pub struct AppleBuffer {
    buffer: Object<dyn MTLBuffer>,
    /// The bytes that a buffer without copy is a view of.
    _bytes: Option<Bytes>,
}

// SAFETY: Metal's buffers may be used from any thread; the bytes are never written.
unsafe impl Send for AppleBuffer {}
// SAFETY: as above.
unsafe impl Sync for AppleBuffer {}

impl super::Buffer for AppleBuffer {
    fn len(&self) -> usize {
        self.buffer.length()
    }

    fn start(&self) -> *mut u8 {
        self.buffer.contents().as_ptr().cast()
    }

    fn address(&self) -> u64 {
        self.buffer.gpuAddress()
    }
}

/// A function, its constants and its threads.
type PipelineKey = (Kernel, Vec<(u16, u8, u32)>, u32);

/// A file's library, and the compiler's warnings.
#[derive(Clone)]
struct Library {
    library: Object<dyn MTLLibrary>,
    warnings: String,
}

// SAFETY: a library is never changed, and Metal lets any thread use it.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// A compiled kernel, and the threads that it was compiled for.
#[derive(Clone)]
pub struct ApplePipeline {
    state: State,
    fitted: Fitted,
}

/// Compiled pipelines.
#[derive(Default)]
struct Compiled {
    pipelines: HashMap<PipelineKey, ApplePipeline>,
    /// Pipelines with fewer threads than requested, in words.
    notes: BTreeSet<String>,
}

/// The system's default GPU.
pub struct AppleGpu {
    device: Object<dyn MTLDevice>,
    queue: Object<dyn MTLCommandQueue>,
    facts: Facts,
    language: MTLLanguageVersion,
    archive: Option<Arc<Archive>>,
    libraries: Libraries<Library>,
    compiled: Mutex<Compiled>,
    mode: EncoderMode,
    /// Orders command buffers where hazards are not tracked.
    fence: Option<Object<dyn MTLFence>>,
    sets: Sets,
    /// Requests the sets again while nothing runs, and saves new pipelines.
    heartbeat: Heartbeat,
}

// SAFETY: device and queue are Send and Sync by their declarations; libraries and
// pipelines are guarded by their mutexes, and the fence is immutable.
unsafe impl Send for AppleGpu {}
// SAFETY: as above.
unsafe impl Sync for AppleGpu {}

impl Drop for AppleGpu {
    /// Leaves no half of a file.
    fn drop(&mut self) {
        if let Some(archive) = &self.archive {
            archive.stop();
        }
    }
}

fn failed(reason: String) -> Error {
    Error::Failed { device: NAME, reason }
}

fn words(error: &NSError) -> String {
    error.localizedDescription().to_string()
}

impl AppleGpu {
    /// The default GPU.
    ///
    /// # Errors
    /// There is no GPU, it or the system is too old, or it lacks the tensor units that the options
    /// demand.
    pub fn new(options: &Options) -> Result<AppleGpu> {
        let unsupported = |what: String| Error::Unsupported {
            device: NAME,
            what,
            hint: "it needs a Mac with Apple Silicon, not a virtual machine on one; use --device cpu here"
                .to_owned(),
        };
        if !is_system_at_least(OLDEST_SYSTEM) {
            let hint = "its shaders need macOS 14 or later; use --device cpu here".to_owned();
            let what = format!("macOS of {}", machine::system());
            return Err(Error::Unsupported { device: NAME, what, hint });
        }
        let device = default_device().ok_or_else(|| unsupported("a machine without a GPU".to_owned()))?;
        let families = [
            (10, MTLGPUFamily::Apple10),
            (9, MTLGPUFamily::Apple9),
            (8, MTLGPUFamily::Apple8),
            (7, MTLGPUFamily::Apple7),
        ];
        let name = device.name().to_string();
        let family = families.into_iter().find(|(_, family)| device.supportsFamily(*family));
        let family = match family {
            Some((family, _)) => family,
            None if options.any_family => 0,
            None => return Err(unsupported(format!("the GPU {name}"))),
        };
        let has_units = family >= TENSOR_FAMILY && is_system_at_least(TENSOR_SYSTEM);
        if options.tensors && !has_units && !options.any_family {
            let hint = "they came with the M5 and macOS 26.2; leave --tensors out".to_owned();
            return Err(Error::Unsupported { device: NAME, what: format!("tensor units on {name}"), hint });
        }
        let queue = device.newCommandQueue().ok_or_else(|| failed("no command queue".to_owned()))?;
        work_once(&device, &queue);
        let facts = Facts {
            n_cores: crate::cores::registered().unwrap_or_else(|| crate::profile::cores_of(&name)),
            family,
            common: Common {
                max_buffer_bytes: device.maxBufferLength() as u64,
                subgroup_width: SIMD_WIDTH,
                max_threads: 1024,
            },
            // The unit of memory maps on Apple Silicon.
            page_bytes: 16 << 10,
            max_threadgroup_bytes: device.maxThreadgroupMemoryLength() as u32,
            has_tensors: options.tensors,
            is_emulated: false,
            name,
        };
        let language = match options.tensors {
            true => MTLLanguageVersion::Version4_0,
            false => MTLLanguageVersion::Version3_1,
        };
        let file = options.cache.as_ref().map(|folder| folder.join(archive_name(&facts.name, language)));
        let archive = file.map(|file| Arc::new(Archive::new(&device, file)));
        let fence = match options.encoder {
            EncoderMode::Fenced => Some(device.newFence().ok_or_else(|| failed("no fence".to_owned()))?),
            EncoderMode::Concurrent | EncoderMode::Serial => None,
        };
        let sets = Sets::default();
        let (alive, grown) = (sets.clone(), archive.clone());
        let beat = move |idle: Duration| {
            alive.request();
            let settled = grown.clone().filter(|archive| idle >= IDLE && archive.is_settled(IDLE));
            if let Some(archive) = settled {
                // Compiling for the archive takes longer than a beat. Without a thread, a later
                // beat tries again.
                let save = move || archive.save();
                drop(std::thread::Builder::new().name("metal-archive".to_owned()).spawn(save));
            }
        };
        Ok(AppleGpu {
            device,
            queue,
            facts,
            language,
            archive,
            libraries: Libraries::default(),
            compiled: Mutex::default(),
            mode: options.encoder,
            fence,
            sets,
            heartbeat: Heartbeat::new(heartbeat::PERIOD, heartbeat::PATIENCE, beat),
        })
    }

    fn compiled(&self) -> MutexGuard<'_, Compiled> {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The library of a file, or the compiler's message.
    fn compile(&self, file: &'static str) -> std::result::Result<Library, String> {
        autoreleasepool(|_| {
            let source = Kernel::of(file).source().ok_or_else(|| format!("no shader file {file}"))?;
            let source = match self.facts.has_tensors {
                true => format!("#define WITH_TENSORS 1\n{source}"),
                false => source,
            };
            let options = MTLCompileOptions::new();
            options.setLanguageVersion(self.language);
            // Fast math is off for NaN and infinity, which routers and masks use. The tests' bounds
            // hold for precise functions. Each file forbids contraction itself.
            if self.compile_options_have_math_mode() {
                options.setMathMode(MTLMathMode::Safe);
                options.setMathFloatingPointFunctions(MTLMathFloatingPointFunctions::Precise);
            } else {
                #[allow(deprecated)]
                options.setFastMathEnabled(false);
            }
            let (source, mut said) = (NSString::from_str(&source), None::<Retained<NSError>>);
            // SAFETY: the types are those of the declaration of the method, whose binding drops the
            // warnings: it reads the error only if there is no library.
            let made: Option<Object<dyn MTLLibrary>> = unsafe {
                msg_send![&*self.device, newLibraryWithSource: &*source, options: &*options, error: &mut said]
            };
            let said = said.map(|error| words(&error)).unwrap_or_default();
            match made {
                Some(library) => Ok(Library { library, warnings: said }),
                None => Err(format!("{file} does not compile: {said}")),
            }
        })
    }

    /// True from macOS 15 on.
    fn compile_options_have_math_mode(&self) -> bool {
        MTLCompileOptions::new().respondsToSelector(sel!(setMathMode:))
    }

    /// A kernel's function with its constants.
    fn function(&self, kernel: &Kernel, constants: &[(u16, Constant)]) -> Result<Object<dyn MTLFunction>> {
        let library = self.libraries.get(kernel.file, &|file| self.compile(file)).map_err(failed)?.library;
        let values = MTLFunctionConstantValues::new();
        for (index, value) in constants {
            // SAFETY: the value outlives the call and is of the type that is named.
            unsafe {
                let set = |value: NonNull<c_void>, kind| {
                    values.setConstantValue_type_atIndex(value, kind, usize::from(*index));
                };
                match value {
                    Constant::Bool(v) => set(NonNull::from(v).cast(), MTLDataType::Bool),
                    Constant::UInt(v) => set(NonNull::from(v).cast(), MTLDataType::UInt),
                    Constant::Int(v) => set(NonNull::from(v).cast(), MTLDataType::Int),
                    Constant::UShort(v) => set(NonNull::from(v).cast(), MTLDataType::UShort),
                    Constant::Float(v) => set(NonNull::from(v).cast(), MTLDataType::Float),
                }
            }
        }
        let name = NSString::from_str(&kernel.function);
        let function = library.newFunctionWithName_constantValues_error(&name, &values);
        function.map_err(|error| refused(kernel, &error))
    }

    /// A pipeline for threadgroups of so many threads (0: no limit), and the description of it if
    /// the archive lacks it.
    fn state(
        &self,
        kernel: &Kernel,
        function: &ProtocolObject<dyn MTLFunction>,
        threads: u32,
    ) -> Result<(State, Option<Retained<MTLComputePipelineDescriptor>>)> {
        let descriptor = MTLComputePipelineDescriptor::new();
        descriptor.setComputeFunction(Some(function));
        // The compiler then limits registers so that this many threads fit.
        descriptor.setMaxTotalThreadsPerThreadgroup(threads as usize);
        if let Some(found) = self.archive.as_ref().and_then(|archive| archive.find(&descriptor)) {
            return Ok((found, None));
        }
        let made = self.device.newComputePipelineStateWithDescriptor_options_reflection_error(
            &descriptor,
            MTLPipelineOption::empty(),
            None,
        );
        Ok((made.map_err(|error| refused(kernel, &error))?, Some(descriptor)))
    }

    fn make_pipeline(&self, request: &Request) -> Result<ApplePipeline> {
        let Request { kernel, constants, .. } = request;
        let function = self.function(kernel, constants)?;
        let make = |threads: u32| {
            let (state, descriptor) = self.state(kernel, &function, threads)?;
            let most = state.maxTotalThreadsPerThreadgroup() as u32;
            Ok(((state, descriptor), most))
        };
        let ((state, descriptor), fitted) = Fitted::make(request, NAME, make)?;
        if let (Some(archive), Some(descriptor)) = (&self.archive, descriptor) {
            archive.add(descriptor);
        }
        Ok(ApplePipeline { state, fitted })
    }
}

/// Error for a kernel that Metal refuses.
fn refused(kernel: &Kernel, error: &NSError) -> Error {
    failed(format!("{} of {}: {}", kernel.function, kernel.file, words(error)))
}

/// Makes the GPU work once. Otherwise macOS keeps the memory of a residency set after the set is
/// gone, if the process never used the GPU
/// ([llama.cpp](https://github.com/ggml-org/llama.cpp/pull/26082)).
fn work_once(device: &ProtocolObject<dyn MTLDevice>, queue: &ProtocolObject<dyn MTLCommandQueue>) {
    autoreleasepool(|_| {
        let buffer = device.newBufferWithLength_options(16, MTLResourceOptions::StorageModeShared);
        // The command buffer retains its buffer.
        let (Some(buffer), Some(commands)) = (buffer, queue.commandBuffer()) else { return };
        if let Some(encoder) = commands.blitCommandEncoder() {
            encoder.fillBuffer_range_value(&buffer, NSRange::new(0, 16), 0);
            encoder.endEncoding();
        }
        commands.commit();
    });
}

/// The GPU of the machine. In a session without a window server there may be no default one, though
/// there are devices.
fn default_device() -> Option<Object<dyn MTLDevice>> {
    MTLCreateSystemDefaultDevice().or_else(|| {
        let all = MTLCopyAllDevices();
        let is_apple = |device: &Object<dyn MTLDevice>| device.supportsFamily(MTLGPUFamily::Apple7);
        all.iter().find(is_apple)
    })
}

/// Name of the archive of a GPU: other sources, another language or another system have another
/// file.
fn archive_name(gpu: &str, language: MTLLanguageVersion) -> String {
    let system = machine::system();
    format!("metal-{}.archive", kernels::fingerprint(&[gpu, &system, &language.0.to_string()]))
}

fn url_of(file: &Path) -> Retained<NSURL> {
    NSURL::fileURLWithPath(&NSString::from_str(&file.to_string_lossy()))
}

impl Gpu for AppleGpu {
    type Facts = Facts;
    type Kernel = Request;
    type Buffer = AppleBuffer;
    type Pipeline = ApplePipeline;
    type Encoder = AppleEncoder;
    type Ticket = AppleTicket;
    type Residency = AppleResidency;

    const NAME: &'static str = NAME;

    fn facts(&self) -> &Facts {
        &self.facts
    }

    /// CPU and GPU share memory of every kind.
    fn allocate(&self, _memory: Memory, what: &str, bytes: usize) -> Result<AppleBuffer> {
        let refused = || Error::OutOfMemory { device: NAME, what: what.to_owned(), bytes: bytes as u64 };
        // Shared memory comes from the system filled with zeros. Hazards are tracked, so a command
        // buffer that is submitted while another runs waits for the writes of that one.
        let options = match self.mode {
            EncoderMode::Fenced => {
                MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked
            }
            EncoderMode::Concurrent | EncoderMode::Serial => MTLResourceOptions::StorageModeShared,
        };
        let buffer = self.device.newBufferWithLength_options(bytes.max(1), options).ok_or_else(refused)?;
        Ok(AppleBuffer { buffer, _bytes: None })
    }

    fn view(&self, bytes: &Bytes) -> Option<AppleBuffer> {
        let page = self.facts.page_bytes;
        if !bytes.is_mapped() || !(bytes.as_ptr() as usize).is_multiple_of(page) {
            return None;
        }
        let start = NonNull::new(bytes.as_ptr().cast_mut())?.cast::<c_void>();
        let options = MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
        let len = bytes.len().next_multiple_of(page);
        // SAFETY: a map reaches to the end of its last page; the bytes are kept beside the buffer;
        // kernels do not write them.
        let buffer = unsafe {
            self.device.newBufferWithBytesNoCopy_length_options_deallocator(start, len, options, None)
        }?;
        Some(AppleBuffer { buffer, _bytes: Some(bytes.clone()) })
    }

    fn prepare(&self, kernels: &[&Request]) {
        let files: Vec<&'static str> = kernels.iter().map(|request| request.kernel.file).collect();
        self.libraries.prepare(&files, &|file| self.compile(file));
    }

    fn pipeline(&self, request: &Request) -> Result<ApplePipeline> {
        let key = (request.kernel.clone(), request.constant_bits(), request.threads);
        if let Some(pipeline) = self.compiled().pipelines.get(&key) {
            return Ok(pipeline.clone());
        }
        let pipeline = autoreleasepool(|_| self.make_pipeline(request))?;
        let mut compiled = self.compiled();
        compiled.notes.extend(pipeline.fitted.note(request));
        compiled.pipelines.insert(key, pipeline.clone());
        Ok(pipeline)
    }

    /// Needs macOS 15. Before, the system finds the buffers in use at each command buffer.
    fn reside(&self, buffers: &[AppleBuffer]) -> AppleResidency {
        let has_sets = self.device.respondsToSelector(sel!(newResidencySetWithDescriptor:error:));
        let make = || self.device.newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new()).ok();
        let set = if has_sets { make() } else { None };
        self.sets.reside(set, &self.queue, buffers)
    }

    fn submit(&self, encode: &mut dyn FnMut(&mut AppleEncoder)) -> Result<AppleTicket> {
        autoreleasepool(|_| {
            let refused = || failed("no command buffer; the GPU may be lost, start again".to_owned());
            let commands = self.queue.commandBufferWithUnretainedReferences().ok_or_else(refused)?;
            self.heartbeat.used();
            let mut encoder = AppleEncoder::new(commands, self.mode, self.fence.clone());
            encode(&mut encoder);
            encoder.commit().ok_or_else(refused)
        })
    }

    fn wait(&self, ticket: &AppleTicket) -> Result<f64> {
        autoreleasepool(|_| ticket.wait())
    }
}

impl MetalGpu for AppleGpu {
    /// The GPU's recommended working set, minus the bytes that this process has allocated.
    fn memory(&self) -> platform::SystemMemory {
        let system = platform::system_memory();
        let most = self.device.recommendedMaxWorkingSetSize();
        let taken = self.device.currentAllocatedSize() as u64;
        platform::SystemMemory {
            total: system.total.min(most),
            free: system.free.min(most.saturating_sub(taken)),
        }
    }

    fn compile_file(&self, file: &'static str) -> std::result::Result<Vec<String>, String> {
        let Library { library, .. } = self.libraries.get(file, &|file| self.compile(file))?;
        Ok(library.functionNames().iter().map(|name| name.to_string()).collect())
    }

    fn warnings(&self, file: &'static str) -> String {
        let compiled = self.libraries.get(file, &|file| self.compile(file));
        compiled.map(|library| library.warnings).unwrap_or_default()
    }

    fn unlimited(&self, Request { kernel, constants, .. }: &Request) -> Result<Option<Unlimited>> {
        autoreleasepool(|_| {
            let (state, _) = self.state(kernel, &*self.function(kernel, constants)?, 0)?;
            Ok(Some(Unlimited {
                max_threads: state.maxTotalThreadsPerThreadgroup() as u32,
                threadgroup_bytes: state.staticThreadgroupMemoryLength() as u32,
            }))
        })
    }

    fn notes(&self) -> Vec<String> {
        self.compiled().notes.iter().cloned().collect()
    }

    fn is_slowed(&self) -> bool {
        matches!(machine::thermal_state(), "serious" | "critical")
    }

    fn about(&self) -> Vec<(&'static str, String)> {
        machine::about(&self.device)
    }
}
