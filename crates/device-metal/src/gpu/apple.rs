//! Apple's GPUs through objc2-metal.
//!
//! Not one line of this file has run on Apple hardware; it is type-checked for aarch64-apple-darwin
//! on Linux. See docs/metal.md.
//!
//! Past 600 lines, so that every call of Metal is in one place.

use super::heartbeat::{self, Heartbeat};
use super::{
    Common, Constant, Dispatch, Encoder, EncoderMode, Facts, Gpu, Memory, MetalGpu, Request, SIMD_WIDTH,
};
use crate::kernels::{self, Kernel};
use device::{Error, Result};
use device_gpu::at_once::Libraries;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::sel;
use objc2_foundation::{NSArray, NSError, NSProcessInfo, NSString, NSURL};
use objc2_metal::{
    MTLAllocation, MTLBarrierScope, MTLBinaryArchive, MTLBinaryArchiveDescriptor, MTLBuffer,
    MTLCommandBuffer, MTLCommandBufferError, MTLCommandEncoder, MTLCommandQueue, MTLCompileOptions,
    MTLComputeCommandEncoder, MTLComputePipelineDescriptor, MTLComputePipelineState, MTLCopyAllDevices,
    MTLCreateSystemDefaultDevice, MTLDataType, MTLDevice, MTLDispatchType, MTLFence,
    MTLFunctionConstantValues, MTLGPUFamily, MTLLanguageVersion, MTLLibrary, MTLMathFloatingPointFunctions,
    MTLMathMode, MTLPipelineOption, MTLResidencySet, MTLResidencySetDescriptor, MTLResource,
    MTLResourceOptions, MTLResourceUsage, MTLSize,
};
use std::collections::HashMap;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use weights::Bytes;

type Object<T> = Retained<ProtocolObject<T>>;

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

/// The GPU family with tensor units.
const TENSOR_FAMILY: u32 = 10;

/// The macOS with tensors.
const TENSOR_SYSTEM: isize = 26;

/// Options of the GPU.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A folder for compiled pipelines; none: they are compiled at every start.
    pub cache: Option<PathBuf>,
    /// True if shaders are compiled as Metal 4, which opens the tensor units of an M5 from macOS 26
    /// on (`kernels/linear/tensor.h`). Nobody has compiled them so.
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

/// A file's library.
#[derive(Clone)]
struct Library(Object<dyn MTLLibrary>);

// SAFETY: a library is never changed, and Metal lets any thread use it.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// Compiled pipelines, and the archive that keeps them for the next start.
#[derive(Default)]
struct Compiled {
    pipelines: HashMap<PipelineKey, Arc<Object<dyn MTLComputePipelineState>>>,
    archive: Option<Object<dyn MTLBinaryArchive>>,
    /// True if the archive has pipelines that its file does not have.
    grown: bool,
}

/// The system's default GPU.
pub struct AppleGpu {
    device: Object<dyn MTLDevice>,
    queue: Object<dyn MTLCommandQueue>,
    facts: Facts,
    language: MTLLanguageVersion,
    archive_file: Option<PathBuf>,
    libraries: Libraries<Library>,
    compiled: Mutex<Compiled>,
    mode: EncoderMode,
    /// Orders command buffers where hazards are not tracked.
    fence: Option<Object<dyn MTLFence>>,
    /// The residency sets that are alive.
    sets: Arc<Mutex<Vec<Set>>>,
    /// Requests them again while nothing runs.
    heartbeat: Heartbeat,
}

/// A residency set.
#[derive(Clone)]
struct Set(Object<dyn MTLResidencySet>);

// SAFETY: its methods may be called by any thread; those that change it are called under a lock or
// by its owner alone.
unsafe impl Send for Set {}

// SAFETY: device and queue are Send and Sync by their declarations; libraries, archive and
// pipelines are guarded by the mutex, or are immutable.
unsafe impl Send for AppleGpu {}
// SAFETY: as above.
unsafe impl Sync for AppleGpu {}

/// Dispatches of one command buffer. Hazards are tracked, and so what a command buffer does waits
/// for the one before where it must.
pub struct AppleEncoder {
    commands: Object<dyn MTLCommandBuffer>,
    mode: EncoderMode,
    fence: Option<Object<dyn MTLFence>>,
    /// None where the next dispatch begins one, or none can be had.
    encoder: Option<Object<dyn MTLComputeCommandEncoder>>,
    /// True if an encoder was refused.
    refused: bool,
    /// Bound buffers and offsets by index; below, the pipeline and the bytes of threadgroup memory.
    bound: [Option<(u16, usize)>; 31],
    pipeline: *const ProtocolObject<dyn MTLComputePipelineState>,
    threadgroup_bytes: u32,
}

impl AppleEncoder {
    /// The encoder of the current group.
    fn encoder(&mut self) -> Option<&Object<dyn MTLComputeCommandEncoder>> {
        if self.encoder.is_none() {
            let kind = match self.mode {
                EncoderMode::Serial => MTLDispatchType::Serial,
                EncoderMode::Concurrent | EncoderMode::Fenced => MTLDispatchType::Concurrent,
            };
            self.encoder = self.commands.computeCommandEncoderWithDispatchType(kind);
            self.refused |= self.encoder.is_none();
            (self.bound, self.pipeline, self.threadgroup_bytes) = ([None; 31], std::ptr::null(), 0);
            if let (Some(encoder), Some(fence)) = (&self.encoder, &self.fence) {
                encoder.waitForFence(fence);
            }
        }
        self.encoder.as_ref()
    }

    fn end(&mut self) {
        if let Some(encoder) = self.encoder.take() {
            if let Some(fence) = &self.fence {
                encoder.updateFence(fence);
            }
            encoder.endEncoding();
        }
    }
}

impl Drop for AppleEncoder {
    /// An encoder that is let go of must have ended.
    fn drop(&mut self) {
        self.end();
    }
}

/// A committed command buffer.
pub struct AppleTicket {
    commands: Object<dyn MTLCommandBuffer>,
}

// SAFETY: the only calls are `waitUntilCompleted` and reads of the state, which Metal allows from
// any thread.
unsafe impl Send for AppleTicket {}

impl Drop for AppleTicket {
    /// Command buffers do not retain their buffers, which must outlive the work.
    fn drop(&mut self) {
        self.commands.waitUntilCompleted();
    }
}

/// Buffers that the system keeps in memory, until it is dropped.
pub struct AppleResidency {
    set: Option<(Object<dyn MTLResidencySet>, Object<dyn MTLCommandQueue>)>,
    sets: Arc<Mutex<Vec<Set>>>,
}

// SAFETY: used once, when it is dropped.
unsafe impl Send for AppleResidency {}

impl Drop for AppleResidency {
    fn drop(&mut self) {
        if let Some((set, queue)) = &self.set {
            let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
            sets.retain(|Set(other)| !std::ptr::addr_eq(Retained::as_ptr(other), Retained::as_ptr(set)));
            drop(sets);
            queue.removeResidencySet(set);
            set.endResidency();
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
    /// There is no GPU, it is older than Apple's M1, or it lacks the tensor units that the options
    /// demand.
    pub fn new(options: &Options) -> Result<AppleGpu> {
        let unsupported = |what: String| Error::Unsupported {
            device: NAME,
            what,
            hint: "it needs a Mac with Apple Silicon, not a virtual machine on one; use --device cpu here"
                .to_owned(),
        };
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
        if options.tensors && (family < TENSOR_FAMILY || system_version() < TENSOR_SYSTEM) {
            let hint = "they came with the M5 and macOS 26; leave --tensors out".to_owned();
            return Err(Error::Unsupported { device: NAME, what: format!("tensor units on {name}"), hint });
        }
        let queue = device.newCommandQueue().ok_or_else(|| failed("no command queue".to_owned()))?;
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
            has_tensors: options.tensors && system_version() >= TENSOR_SYSTEM,
            is_emulated: false,
            name,
        };
        let language = match options.tensors {
            true => MTLLanguageVersion::Version4_0,
            false => MTLLanguageVersion::Version3_1,
        };
        let cache = options.cache.as_ref();
        let archive_file = cache.map(|folder| folder.join(archive_name(&facts.name, language)));
        let fence = match options.encoder {
            EncoderMode::Fenced => Some(device.newFence().ok_or_else(|| failed("no fence".to_owned()))?),
            EncoderMode::Concurrent | EncoderMode::Serial => None,
        };
        let sets: Arc<Mutex<Vec<Set>>> = Arc::default();
        let alive = sets.clone();
        let request = move || {
            for Set(set) in &*alive.lock().unwrap_or_else(PoisonError::into_inner) {
                set.requestResidency();
            }
        };
        let gpu = AppleGpu {
            device,
            queue,
            facts,
            language,
            archive_file,
            libraries: Libraries::default(),
            compiled: Mutex::default(),
            mode: options.encoder,
            fence,
            sets,
            heartbeat: Heartbeat::new(heartbeat::PERIOD, heartbeat::PATIENCE, request),
        };
        gpu.compiled().archive = gpu.open_archive();
        Ok(gpu)
    }

    fn compiled(&self) -> std::sync::MutexGuard<'_, Compiled> {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The archive of the last start, or an empty one. A file that cannot be read is as good as
    /// none.
    fn open_archive(&self) -> Option<Object<dyn MTLBinaryArchive>> {
        let file = self.archive_file.as_ref()?;
        let open = |url: Option<&NSURL>| {
            let descriptor = MTLBinaryArchiveDescriptor::new();
            descriptor.setUrl(url);
            self.device.newBinaryArchiveWithDescriptor_error(&descriptor).ok()
        };
        let kept = file.exists().then(|| open(Some(&url_of(file)))).flatten();
        kept.or_else(|| open(None))
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
            let made = self
                .device
                .newLibraryWithSource_options_error(&NSString::from_str(&source), Some(&options))
                .map_err(|error| format!("{file} does not compile: {}", words(&error)))?;
            Ok(Library(made))
        })
    }

    /// True from macOS 15 on.
    fn compile_options_have_math_mode(&self) -> bool {
        MTLCompileOptions::new().respondsToSelector(sel!(setMathMode:))
    }

    fn make_pipeline(
        &self,
        kernel: &Kernel,
        constants: &[(u16, Constant)],
        threads: u32,
    ) -> Result<Object<dyn MTLComputePipelineState>> {
        let Library(library) = self.libraries.get(kernel.file, &|file| self.compile(file)).map_err(failed)?;
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
        let refused = |error: Retained<NSError>| {
            failed(format!("{} of {}: {}", kernel.function, kernel.file, words(&error)))
        };
        let name = NSString::from_str(&kernel.function);
        let function = library.newFunctionWithName_constantValues_error(&name, &values).map_err(refused)?;
        let descriptor = MTLComputePipelineDescriptor::new();
        descriptor.setComputeFunction(Some(&function));
        // The compiler then limits registers so that this many threads fit.
        descriptor.setMaxTotalThreadsPerThreadgroup(threads as usize);
        let archive = self.compiled().archive.clone();
        if let Some(archive) = &archive {
            descriptor.setBinaryArchives(Some(&NSArray::from_slice(&[&**archive])));
        }
        let make = |option: MTLPipelineOption| {
            self.device.newComputePipelineStateWithDescriptor_options_reflection_error(
                &descriptor,
                option,
                None,
            )
        };
        // The archive is searched first; a missing pipeline is compiled and added.
        let found = archive.as_ref().and_then(|_| make(MTLPipelineOption::FailOnBinaryArchiveMiss).ok());
        let pipeline = match found {
            Some(pipeline) => pipeline,
            None => {
                let pipeline = make(MTLPipelineOption::empty()).map_err(refused)?;
                if let Some(archive) = &archive {
                    let mut compiled = self.compiled();
                    let added = archive.addComputePipelineFunctionsWithDescriptor_error(&descriptor).is_ok();
                    compiled.grown |= added;
                }
                pipeline
            }
        };
        let most = pipeline.maxTotalThreadsPerThreadgroup();
        if most < threads as usize {
            return Err(Error::Unsupported {
                device: NAME,
                what: format!("a threadgroup of {threads} threads for {}", kernel.function),
                hint: format!("this GPU runs at most {most} of them; please report it, and use --device cpu"),
            });
        }
        Ok(pipeline)
    }
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

/// The first number of the system's version.
fn system_version() -> isize {
    NSProcessInfo::processInfo().operatingSystemVersion().majorVersion
}

/// Name of the archive of a GPU: other sources, another language or another system have another
/// file.
fn archive_name(gpu: &str, language: MTLLanguageVersion) -> String {
    let system = NSProcessInfo::processInfo().operatingSystemVersionString().to_string();
    format!("metal-{}.archive", kernels::fingerprint(&[gpu, &system, &language.0.to_string()]))
}

fn url_of(file: &Path) -> Retained<NSURL> {
    NSURL::fileURLWithPath(&NSString::from_str(&file.to_string_lossy()))
}

impl super::Residency<AppleGpu> for AppleResidency {
    fn add(&mut self, buffer: &AppleBuffer) {
        if let Some((set, _)) = &self.set {
            set.addAllocation(ProtocolObject::from_ref(&*buffer.buffer));
            set.commit();
            set.requestResidency();
        }
    }

    fn remove(&mut self, buffer: &AppleBuffer) {
        if let Some((set, _)) = &self.set {
            set.removeAllocation(ProtocolObject::from_ref(&*buffer.buffer));
            set.commit();
        }
    }
}

impl Encoder<AppleGpu> for AppleEncoder {
    /// Declares the use of a buffer, even if a residency set keeps it in memory, so that Metal
    /// tracks its hazards.
    fn reach(&mut self, buffer: &AppleBuffer) {
        let Some(encoder) = self.encoder() else { return };
        let resource: &ProtocolObject<dyn MTLResource> = ProtocolObject::from_ref(&*buffer.buffer);
        encoder.useResource_usage(resource, MTLResourceUsage::Read | MTLResourceUsage::Write);
    }

    fn dispatch(&mut self, dispatch: &Dispatch<'_, AppleGpu>, buffers: &[AppleBuffer]) {
        let size = |[width, height, depth]: [u32; 3]| MTLSize {
            width: width as usize,
            height: height as usize,
            depth: depth as usize,
        };
        let Some(encoder) = self.encoder().cloned() else { return };
        // A step has hundreds of dispatches, most with the buffers of the one before.
        let pipeline: *const _ = &***dispatch.pipeline;
        if !std::ptr::addr_eq(self.pipeline, pipeline) {
            encoder.setComputePipelineState(dispatch.pipeline);
            self.pipeline = pipeline;
        }
        for operand in dispatch.operands {
            let Some(buffer) = buffers.get(operand.location.buffer as usize) else { continue };
            let (offset, index) = (dispatch.bytes_of(operand).0 as usize, usize::from(operand.index));
            let now = Some((operand.location.buffer, offset));
            let Some(before) = self.bound.get_mut(index).map(|bound| std::mem::replace(bound, now)) else {
                continue;
            };
            match before {
                _ if before == now => continue,
                Some((same, _)) if same == operand.location.buffer => {
                    // SAFETY: as below; the buffer is bound there.
                    unsafe { encoder.setBufferOffset_atIndex(offset, index) };
                    continue;
                }
                Some(_) | None => {}
            }
            // SAFETY: places lie within their buffers, indices are those that the kernel declares.
            unsafe { encoder.setBuffer_offset_atIndex(Some(&buffer.buffer), offset, index) };
        }
        if !dispatch.arguments.is_empty() {
            let bytes = NonNull::from(dispatch.arguments).cast();
            // SAFETY: the bytes are copied before the call returns.
            unsafe { encoder.setBytes_length_atIndex(bytes, dispatch.arguments.len(), 0) };
        }
        if dispatch.threadgroup_bytes > 0 && dispatch.threadgroup_bytes != self.threadgroup_bytes {
            self.threadgroup_bytes = dispatch.threadgroup_bytes;
            // SAFETY: index 0 is what kernels with threadgroup memory declare.
            unsafe {
                encoder.setThreadgroupMemoryLength_atIndex(dispatch.threadgroup_bytes as usize, 0);
            }
        }
        let (groups, threads) = (size(dispatch.threadgroups), size(dispatch.threads));
        encoder.dispatchThreadgroups_threadsPerThreadgroup(groups, threads);
    }

    fn barrier(&mut self) {
        // A serial encoder has one between any two dispatches.
        if let (Some(encoder), true) = (&self.encoder, self.mode != EncoderMode::Serial) {
            encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
        }
    }
}

impl Gpu for AppleGpu {
    type Facts = Facts;
    type Kernel = Request;
    type Buffer = AppleBuffer;
    type Pipeline = Arc<Object<dyn MTLComputePipelineState>>;
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

    fn pipeline(&self, Request { kernel, constants, threads }: &Request) -> Result<Self::Pipeline> {
        let bits = |(index, value): &(u16, Constant)| match *value {
            Constant::Bool(v) => (*index, 0, u32::from(v)),
            Constant::UInt(v) => (*index, 1, v),
            Constant::Int(v) => (*index, 2, v as u32),
            Constant::UShort(v) => (*index, 3, u32::from(v)),
            Constant::Float(v) => (*index, 4, v.to_bits()),
        };
        let key = (kernel.clone(), constants.iter().map(bits).collect::<Vec<_>>(), *threads);
        if let Some(pipeline) = self.compiled().pipelines.get(&key) {
            return Ok(pipeline.clone());
        }
        let pipeline = Arc::new(autoreleasepool(|_| self.make_pipeline(kernel, constants, *threads))?);
        self.compiled().pipelines.insert(key, pipeline.clone());
        Ok(pipeline)
    }

    /// A failure only costs the next start its time.
    fn keep_pipelines(&self) {
        let mut compiled = self.compiled();
        let (Some(archive), Some(file), true) = (&compiled.archive, &self.archive_file, compiled.grown)
        else {
            return;
        };
        let folder = file.parent().map_or(Ok(()), std::fs::create_dir_all);
        let written = folder.is_ok() && archive.serializeToURL_error(&url_of(file)).is_ok();
        compiled.grown = !written;
    }

    /// Needs macOS 15. Before, the system finds the buffers in use at each command buffer.
    fn reside(&self, buffers: &[AppleBuffer]) -> AppleResidency {
        if !self.device.respondsToSelector(sel!(newResidencySetWithDescriptor:error:)) {
            return AppleResidency { set: None, sets: self.sets.clone() };
        }
        let made = self.device.newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new());
        let Ok(set) = made else { return AppleResidency { set: None, sets: self.sets.clone() } };
        for buffer in buffers {
            let allocation: &ProtocolObject<dyn MTLAllocation> = ProtocolObject::from_ref(&*buffer.buffer);
            set.addAllocation(allocation);
        }
        set.commit();
        set.requestResidency();
        self.queue.addResidencySet(&set);
        self.sets.lock().unwrap_or_else(PoisonError::into_inner).push(Set(set.clone()));
        AppleResidency { set: Some((set, self.queue.clone())), sets: self.sets.clone() }
    }

    fn submit(&self, encode: &mut dyn FnMut(&mut AppleEncoder)) -> Result<AppleTicket> {
        autoreleasepool(|_| {
            let refused = || failed("no command buffer; the GPU may be lost, start again".to_owned());
            let commands = self.queue.commandBufferWithUnretainedReferences().ok_or_else(refused)?;
            self.heartbeat.used();
            let mut encoder = AppleEncoder {
                commands: commands.clone(),
                mode: self.mode,
                fence: self.fence.clone(),
                encoder: None,
                refused: false,
                bound: [None; 31],
                pipeline: std::ptr::null(),
                threadgroup_bytes: 0,
            };
            encode(&mut encoder);
            encoder.end();
            if encoder.refused {
                return Err(refused());
            }
            commands.commit();
            Ok(AppleTicket { commands })
        })
    }

    fn wait(&self, ticket: &AppleTicket) -> Result<f64> {
        autoreleasepool(|_| {
            ticket.commands.waitUntilCompleted();
            match ticket.commands.error() {
                None => Ok((ticket.commands.GPUEndTime() - ticket.commands.GPUStartTime()).max(0.0)),
                Some(error) => Err(fault(&error)),
            }
        })
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
        let Library(library) = self.libraries.get(file, &|file| self.compile(file))?;
        Ok(library.functionNames().iter().map(|name| name.to_string()).collect())
    }

    fn made(&self) -> Vec<(String, u32, u32)> {
        let compiled = self.compiled();
        let limits = |((kernel, ..), pipeline): (&PipelineKey, &Self::Pipeline)| {
            let most = pipeline.maxTotalThreadsPerThreadgroup() as u32;
            (kernel.function.clone(), most, pipeline.staticThreadgroupMemoryLength() as u32)
        };
        compiled.pipelines.iter().map(limits).collect()
    }
}

/// Error for a failed command buffer, with its meaning and what to do.
fn fault(error: &NSError) -> Error {
    let advice = match MTLCommandBufferError(error.code() as usize) {
        MTLCommandBufferError::OutOfMemory => {
            "memory ran out; close other programs, or use a smaller context (--ctx) or KV type (--kv-type)"
        }
        MTLCommandBufferError::Timeout => {
            "it took longer than the system allows; use a smaller --chunk, and see whether something else uses the GPU"
        }
        MTLCommandBufferError::PageFault | MTLCommandBufferError::InvalidResource => {
            "a kernel left its memory, which is a defect of Ingle: please report it with `ingle metal-selftest`"
        }
        MTLCommandBufferError::AccessRevoked | MTLCommandBufferError::NotPermitted => {
            "the system does not let this process use the GPU; run it in the foreground of a logged-in session"
        }
        MTLCommandBufferError::DeviceRemoved => "the GPU is gone; start again",
        _ => "the step can be tried again; if it fails twice, start again or use --device cpu",
    };
    failed(format!("{} (code {}): {advice}", words(error), error.code()))
}
