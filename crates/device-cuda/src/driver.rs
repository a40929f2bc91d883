//! NVIDIA's driver, loaded at run time. Only this module calls it. Every call is checked, and an
//! error names the operation that failed.
//!
//! Past 600 lines, so that every call of the driver is in this module.

mod facts;
mod memory;

use cudarc::driver::sys;
use device::{Error, Result};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

pub use facts::Facts;
use facts::facts;
pub use memory::{Buffer, Pinned, Pool};

/// The device's name on the command line.
pub const NAME: &str = "cuda";

/// An address of the GPU's memory.
pub type Address = u64;

/// CUDA version of the oldest supported driver: 12.0.
const OLDEST_DRIVER: c_int = 12000;

/// Longest time of a step. After it, a kernel is considered hung.
const PATIENCE: Duration = Duration::from_secs(120);

fn failed<T>(reason: String) -> Result<T> {
    Err(Error::Failed { device: NAME, reason })
}

/// Describes an error of the driver, with a hint for known causes.
fn describe(code: sys::CUresult) -> String {
    use sys::CUresult as C;
    let mut name: *const c_char = ptr::null();
    // SAFETY: the driver writes the address of a constant string, or null for a code that it does
    // not know.
    let known = unsafe { sys::cuGetErrorName(code, &mut name) } == C::CUDA_SUCCESS && !name.is_null();
    let name = match known {
        // SAFETY: the driver's strings end in 0 and live as long as the process.
        true => unsafe { CStr::from_ptr(name) }.to_string_lossy(),
        false => "an unknown error".into(),
    };
    let hint = match code {
        C::CUDA_ERROR_NO_DEVICE => ": no NVIDIA GPU is visible (see nvidia-smi, CUDA_VISIBLE_DEVICES)",
        C::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH | C::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            ": the driver's library and its kernel module differ; restart the machine, or the container with the host's libraries"
        }
        C::CUDA_ERROR_ILLEGAL_ADDRESS | C::CUDA_ERROR_LAUNCH_FAILED | C::CUDA_ERROR_ILLEGAL_INSTRUCTION => {
            ": a kernel failed; the GPU's state in this process is lost, start it again (and report this with `ingle cuda-selftest`)"
        }
        C::CUDA_ERROR_DEVICE_UNAVAILABLE
        | C::CUDA_ERROR_ECC_UNCORRECTABLE
        | C::CUDA_ERROR_HARDWARE_STACK_ERROR => {
            ": the GPU is lost or unavailable; see nvidia-smi and the system's log"
        }
        C::CUDA_ERROR_INVALID_IMAGE
        | C::CUDA_ERROR_NO_BINARY_FOR_GPU
        | C::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => ": the driver cannot run these kernels; update it",
        _ => "",
    };
    format!("{name}{hint}")
}

fn check(code: sys::CUresult, what: &str) -> Result<()> {
    match code {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        code => failed(format!("{what}: {}", describe(code))),
    }
}

/// Like [`check`], but reports lack of memory as [`Error::OutOfMemory`].
fn check_memory(code: sys::CUresult, what: &str, bytes: u64) -> Result<()> {
    match code {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            Err(Error::OutOfMemory { device: NAME, what: what.to_owned(), bytes })
        }
        code => check(code, what),
    }
}

/// Loads and initialises the driver.
///
/// # Errors
/// The driver is missing, does not start, or is too old; with the remedy.
pub fn start() -> std::result::Result<(), String> {
    // SAFETY: the call only tries to open the driver's library by name.
    if !unsafe { sys::is_culib_present() } {
        return Err("no NVIDIA driver was found (libcuda.so.1, nvcuda.dll)".to_owned());
    }
    // SAFETY: `is_culib_present` found the library; `cuInit` has no other requirements.
    match unsafe { sys::cuInit(0) } {
        sys::CUresult::CUDA_SUCCESS => {}
        code => return Err(format!("the NVIDIA driver does not start: {}", describe(code))),
    }
    let mut version = 0;
    // SAFETY: `version` is a live integer that the driver writes.
    let code = unsafe { sys::cuDriverGetVersion(&mut version) };
    check(code, "the driver's version").map_err(|e| e.to_string())?;
    match version >= OLDEST_DRIVER {
        true => Ok(()),
        false => Err(format!(
            "the NVIDIA driver knows CUDA {}.{}, expected 12.0 or newer (driver 525); update it",
            version / 1000,
            version % 1000 / 10
        )),
    }
}

/// A GPU's context and stream, shared by all objects of one device.
#[derive(Debug)]
pub struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    facts: Facts,
    /// The reason for the loss of the GPU, if there is one. Nothing may wait for a lost GPU.
    lost: OnceLock<String>,
}

// SAFETY: any thread may use the driver's handles, once it has made the context current (`enter`).
unsafe impl Send for Context {}
// SAFETY: the driver locks its handles, and `OnceLock` locks `lost`; all other fields are constant.
unsafe impl Sync for Context {}

impl Context {
    /// The context of the GPU with this index.
    ///
    /// # Errors
    /// There is no driver or no such GPU, the GPU is too old, or another process owns it.
    pub fn new(index: usize) -> Result<Arc<Context>> {
        start().or_else(failed)?;
        let mut n = 0;
        // SAFETY: `start` has initialised the driver, which writes the live integer `n`.
        check(unsafe { sys::cuDeviceGetCount(&mut n) }, "counting GPUs")?;
        if index as c_int >= n {
            return failed(format!("GPU {index} of {n}; see nvidia-smi and CUDA_VISIBLE_DEVICES"));
        }
        let (mut device, mut context, mut stream) = (0, ptr::null_mut(), ptr::null_mut());
        // SAFETY: `index` is below the count `n`; the driver writes the live handle `device`.
        check(unsafe { sys::cuDeviceGet(&mut device, index as c_int) }, "the GPU's handle")?;
        let facts = facts(device)?;
        if facts.capability < (7, 5) {
            let (major, minor) = facts.capability;
            return failed(format!(
                "{} has compute capability {major}.{minor}, expected 7.5 or newer",
                facts.name
            ));
        }
        // SAFETY: `device` exists; `Drop` releases the context that the driver writes.
        let code = unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) };
        check_memory(code, "the GPU's context", 0)?;
        // SAFETY: `context` was just retained.
        check(unsafe { sys::cuCtxSetCurrent(context) }, "the GPU's context")?;
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        // SAFETY: `context` is current; the driver writes the live handle `stream`.
        check(unsafe { sys::cuStreamCreate(&mut stream, flags) }, "a stream")?;
        Ok(Arc::new(Context { device, context, stream, facts, lost: OnceLock::new() }))
    }

    /// Facts that the GPU reports about itself.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Makes the context current on this thread.
    ///
    /// # Errors
    /// The GPU is lost.
    pub fn enter(&self) -> Result<()> {
        if let Some(reason) = self.lost.get() {
            return failed(reason.clone());
        }
        // SAFETY: `self` holds a reference to the context until it is dropped.
        check(unsafe { sys::cuCtxSetCurrent(self.context) }, "the GPU's context")
    }

    /// Free and total bytes of the GPU's memory. Memory of other processes is not free.
    ///
    /// # Errors
    /// The GPU is lost.
    pub fn memory(&self) -> Result<(u64, u64)> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the context is current; the driver writes the live integers `free` and `total`.
        check(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) }, "the GPU's memory")?;
        Ok((free as u64, total as u64))
    }

    /// Launches a kernel. `start` says when it may begin.
    ///
    /// # Errors
    /// The driver refused.
    pub fn launch(
        &self,
        f: Function,
        grid: [u32; 3],
        threads: u32,
        shared: u32,
        start: Start,
        arguments: &[u8],
    ) -> Result<()> {
        // The driver reads the arguments from memory with the alignment of the kernel's struct.
        let mut aligned = [0u64; MAX_ARGUMENT_BYTES / 8];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut aligned);
        let Some(place) = bytes.get_mut(..arguments.len()) else {
            return failed(format!(
                "{} bytes of arguments, expected at most {MAX_ARGUMENT_BYTES}",
                arguments.len()
            ));
        };
        place.copy_from_slice(arguments);
        let mut parameters = [aligned.as_mut_ptr().cast::<c_void>()];
        let [x, y, z] = grid;
        // From Hopper on, a kernel may start while the previous one still ends. The kernel itself
        // waits for the previous one (`await`, common.cuh).
        // SAFETY: the struct holds only integers and a union of plain data; zeros are valid.
        let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        let has_attribute = match start {
            Start::After => false,
            Start::Early => {
                attribute.id =
                    sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
                attribute.value.programmaticStreamSerializationAllowed = 1;
                self.facts.capability >= (9, 0)
            }
            Start::Together => {
                attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
                attribute.value.cooperative = 1;
                true
            }
        };
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared,
            hStream: self.stream,
            attrs: &mut attribute,
            numAttrs: u32::from(has_attribute),
        };
        // SAFETY: `f` belongs to a module that its program keeps loaded. Its only parameter is a
        // struct of `arguments.len()` bytes, which the driver copies from `aligned`. The struct's
        // addresses belong to memory of the same program.
        let code = unsafe { sys::cuLaunchKernelEx(&config, f.0, parameters.as_mut_ptr(), ptr::null_mut()) };
        check(code, "starting a kernel")
    }

    /// Records the launches of `what` as a graph.
    ///
    /// # Errors
    /// `what` failed, or the driver refused.
    pub fn capture(self: &Arc<Self>, what: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream belongs to this context. It is not capturing: one thread at a time
        // uses a program, and this function ends the capture below.
        check(unsafe { sys::cuStreamBeginCapture_v2(self.stream, mode) }, "recording a graph")?;
        let result = what();
        let mut graph = ptr::null_mut();
        // SAFETY: the stream is capturing; the driver writes the live handle `graph`.
        let code = unsafe { sys::cuStreamEndCapture(self.stream, &mut graph) };
        result?;
        check(code, "recording a graph")?;
        let mut exec = ptr::null_mut();
        // SAFETY: the capture just created `graph`; the driver writes the live handle `exec`.
        let code = unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0) };
        // SAFETY: `exec` does not need `graph` after instantiation, and nothing else uses it.
        unsafe { sys::cuGraphDestroy(graph) };
        check_memory(code, "a graph", 0)?;
        Ok(Graph { exec, context: self.clone() })
    }

    /// Launches a graph.
    ///
    /// # Errors
    /// The driver refused.
    pub fn launch_graph(&self, graph: &Graph) -> Result<()> {
        // SAFETY: the graph and the stream belong to this context.
        check(unsafe { sys::cuGraphLaunch(graph.exec, self.stream) }, "starting a graph")
    }

    /// Copies bytes to the GPU, in the order of the stream. Pinned bytes must stay unchanged until
    /// the copy is done. Other bytes are copied before this returns.
    ///
    /// # Errors
    /// The driver refused.
    pub fn upload(&self, to: Address, bytes: &[u8]) -> Result<()> {
        // SAFETY: callers pass an address in a buffer of theirs with room for `bytes.len()` bytes.
        let code = unsafe { sys::cuMemcpyHtoDAsync_v2(to, bytes.as_ptr().cast(), bytes.len(), self.stream) };
        check(code, "copying to the GPU")
    }

    /// Copies ranges of GPU memory into ranges of `bytes`, after all submitted work, and waits
    /// once.
    ///
    /// # Errors
    /// The driver refused, or something that was submitted failed.
    pub fn download_all(&self, parts: &[(Address, Range<usize>)], bytes: &mut [u8]) -> Result<()> {
        let copy = |(from, range): &(Address, Range<usize>)| {
            let Some(to) = bytes.get_mut(range.clone()) else {
                return failed(format!("results at {range:?}"));
            };
            // SAFETY: callers pass addresses of at least `to.len()` bytes in buffers of theirs.
            // `to` is borrowed until `finish` below, which waits for all copies.
            let code =
                unsafe { sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), *from, to.len(), self.stream) };
            check(code, "copying from the GPU")
        };
        let copied = parts.iter().try_for_each(copy);
        // Even after an error, waits for the copies that have begun, since they write into `bytes`.
        self.finish().and(copied)
    }

    /// Copies bytes from the GPU after all submitted work, and waits.
    ///
    /// # Errors
    /// The driver refused, or something that was submitted failed.
    pub fn download(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: callers pass an address of at least `bytes.len()` bytes in a buffer of theirs.
        // `bytes` is borrowed until `finish`, which waits for the copy.
        let code =
            unsafe { sys::cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), from, bytes.len(), self.stream) };
        check(code, "copying from the GPU").and_then(|()| self.finish())
    }

    /// Copies bytes within the GPU's memory, in the order of the stream.
    ///
    /// # Errors
    /// The driver refused.
    pub fn copy(&self, to: Address, from: Address, bytes: usize) -> Result<()> {
        // SAFETY: callers pass addresses of at least `bytes` bytes in buffers of theirs.
        let code = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream) };
        check(code, "copying within the GPU")
    }

    /// Fills memory with zeros, in the order of the stream.
    ///
    /// # Errors
    /// The driver refused.
    pub fn clear(&self, at: Address, bytes: usize) -> Result<()> {
        // SAFETY: callers pass an address of at least `bytes` bytes in a buffer of theirs.
        check(unsafe { sys::cuMemsetD8Async(at, 0, bytes, self.stream) }, "clearing memory")
    }

    /// Waits until all submitted work is done.
    ///
    /// # Errors
    /// Some of the work failed, or did not end in time.
    pub fn finish(&self) -> Result<()> {
        // SAFETY: the stream belongs to this context.
        self.wait_until(|| unsafe { sys::cuStreamQuery(self.stream) })
    }

    /// Polls until the work is done. It spins at first, because a step may be shorter than a
    /// thread's sleep, and sleeps between polls later.
    fn wait_until(&self, query: impl Fn() -> sys::CUresult) -> Result<()> {
        let started = Instant::now();
        let mut n = 0u32;
        loop {
            match query() {
                sys::CUresult::CUDA_ERROR_NOT_READY => {}
                sys::CUresult::CUDA_SUCCESS => return Ok(()),
                code => return self.give_up(format!("the GPU failed: {}", describe(code))),
            }
            n = n.saturating_add(1);
            if n < 20_000 {
                std::hint::spin_loop();
                continue;
            }
            if started.elapsed() > PATIENCE {
                let seconds = PATIENCE.as_secs();
                return self.give_up(format!(
                    "a kernel has run for {seconds} s and does not end; the GPU is given up, start the process again and report this"
                ));
            }
            std::thread::sleep(Duration::from_micros(if started.elapsed() > Duration::from_millis(50) {
                200
            } else {
                20
            }));
        }
    }

    fn give_up(&self, reason: String) -> Result<()> {
        failed(self.lost.get_or_init(|| reason).clone())
    }

    /// Creates an event, a point of the stream that a caller can wait for.
    ///
    /// # Errors
    /// The driver refused.
    pub fn event(self: &Arc<Self>, timed: bool) -> Result<Event> {
        let mut event = ptr::null_mut();
        let flags = match timed {
            true => sys::CUevent_flags::CU_EVENT_DEFAULT,
            false => sys::CUevent_flags::CU_EVENT_DISABLE_TIMING,
        };
        // SAFETY: the driver writes the live handle `event`.
        check(unsafe { sys::cuEventCreate(&mut event, flags as c_uint) }, "an event")?;
        Ok(Event { event, context: self.clone() })
    }
}

/// Lets GPUs read and write each other's memory. Returns false if some of them cannot.
///
/// # Errors
/// The driver failed.
pub fn connect(contexts: &[Arc<Context>]) -> Result<bool> {
    let pairs = || {
        let of = |a| contexts.iter().map(move |b| (a, b));
        contexts.iter().flat_map(of).filter(|(a, b): &(&Arc<Context>, &Arc<Context>)| a.device != b.device)
    };
    for (from, to) in pairs() {
        let mut can = 0;
        // SAFETY: both devices exist; the driver writes the live integer `can`.
        let code = unsafe { sys::cuDeviceCanAccessPeer(&mut can, from.device, to.device) };
        check(code, "whether GPUs reach each other")?;
        if can == 0 {
            return Ok(false);
        }
    }
    for (from, to) in pairs() {
        from.enter()?;
        // SAFETY: `contexts` keeps both contexts alive; that of `from` is current.
        match unsafe { sys::cuCtxEnablePeerAccess(to.context, 0) } {
            sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => {}
            sys::CUresult::CUDA_ERROR_TOO_MANY_PEERS => return Ok(false),
            code => check(code, "letting GPUs reach each other")?,
        }
    }
    Ok(true)
}

impl Drop for Context {
    fn drop(&mut self) {
        // A hung kernel would hang these calls too. The end of the process frees everything.
        if self.lost.get().is_some() {
            return;
        }
        // SAFETY: the handles belong to this context. Their users hold an `Arc` of it, so that none
        // is left.
        unsafe {
            sys::cuCtxSetCurrent(self.context);
            sys::cuStreamDestroy_v2(self.stream);
            sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

/// Condition for the start of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// All work submitted before is done.
    After,
    /// From Hopper on: all blocks of the previous kernel have started. The kernel itself waits for
    /// the previous one. Older GPUs: as [`Self::After`].
    Early,
    /// As [`Self::After`], with all blocks at once, since they wait for each other. The launch
    /// fails if they do not fit the GPU together.
    Together,
}

/// Maximum number of bytes of a kernel's arguments.
pub const MAX_ARGUMENT_BYTES: usize = 1024;

/// A loaded kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function(sys::CUfunction);

// SAFETY: any thread may use this handle of the driver once its context is current.
unsafe impl Send for Function {}
// SAFETY: the driver locks its handles, and the handle is constant.
unsafe impl Sync for Function {}

/// Compiled kernels on the GPU.
#[derive(Debug)]
pub struct Module {
    module: sys::CUmodule,
    context: Arc<Context>,
}

// SAFETY: any thread may use this handle of the driver once its context is current.
unsafe impl Send for Module {}
// SAFETY: the driver locks its handles, and the handle is constant.
unsafe impl Sync for Module {}

impl Module {
    /// Loads machine code.
    ///
    /// # Errors
    /// The code is not for this GPU.
    pub fn new(context: &Arc<Context>, code: &[u8]) -> Result<Module> {
        let mut module = ptr::null_mut();
        // SAFETY: `code` is an ELF image, from this binary's archive, the cache or the compiler;
        // the driver checks its header. The driver writes the live handle `module`.
        let code = unsafe { sys::cuModuleLoadData(&mut module, code.as_ptr().cast()) };
        check_memory(code, "loading kernels", 0)?;
        Ok(Module { module, context: context.clone() })
    }

    /// A kernel of this module, allowed to use `shared` bytes of shared memory.
    ///
    /// # Errors
    /// There is no such kernel.
    pub fn function(&self, name: &str, shared: u32) -> Result<Function> {
        let Ok(c_name) = std::ffi::CString::new(name) else {
            return failed(format!("a kernel named {name:?}"));
        };
        let mut function = ptr::null_mut();
        // SAFETY: `self` keeps the module loaded, and `c_name` ends in 0.
        let code = unsafe { sys::cuModuleGetFunction(&mut function, self.module, c_name.as_ptr()) };
        check(code, name)?;
        if shared > 48 << 10 {
            let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: `function` was just found in this module.
            check(unsafe { sys::cuFuncSetAttribute(function, which, shared as c_int) }, name)?;
        }
        Ok(Function(function))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: `self` owns the module. Programs keep it alive while they use its functions.
            unsafe { sys::cuModuleUnload(self.module) };
        }
    }
}

/// A recorded sequence of launches.
#[derive(Debug)]
pub struct Graph {
    exec: sys::CUgraphExec,
    context: Arc<Context>,
}

// SAFETY: any thread may use this handle of the driver once its context is current.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: `self` owns the graph. The driver keeps it until its launches are done.
            unsafe { sys::cuGraphExecDestroy(self.exec) };
        }
    }
}

/// A point of the stream.
#[derive(Debug)]
pub struct Event {
    event: sys::CUevent,
    context: Arc<Context>,
}

// SAFETY: any thread may use this handle of the driver once its context is current.
unsafe impl Send for Event {}

impl Event {
    /// Marks the current end of the stream.
    ///
    /// # Errors
    /// The driver refused.
    pub fn record(&self) -> Result<()> {
        // SAFETY: the event and the stream belong to `self.context`.
        check(unsafe { sys::cuEventRecord(self.event, self.context.stream) }, "an event")
    }

    /// Waits until all work submitted before the event is done.
    ///
    /// # Errors
    /// Some of the work failed, or did not end in time.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: `self` owns the event.
        self.context.wait_until(|| unsafe { sys::cuEventQuery(self.event) })
    }

    /// Seconds from `earlier` to this event. Both must be done.
    ///
    /// # Errors
    /// The events were created without timing.
    pub fn since(&self, earlier: &Event) -> Result<f64> {
        let mut milliseconds = 0.0f32;
        // SAFETY: both events are alive; the driver writes the live number `milliseconds`.
        let code = unsafe { sys::cuEventElapsedTime(&mut milliseconds, earlier.event, self.event) };
        check(code, "the time of a kernel")?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: `self` owns the event, and nothing uses it after this.
            unsafe { sys::cuEventDestroy_v2(self.event) };
        }
    }
}
