//! NVIDIA's driver, loaded at run time: only this module calls it. Every call is checked, and its
//! error names what was asked.

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

/// The oldest driver that has all that is used here: that of CUDA 12.0.
const OLDEST_DRIVER: c_int = 12000;

/// How long one step may take before its kernels are taken for hung.
const PATIENCE: Duration = Duration::from_secs(120);

fn failed<T>(reason: String) -> Result<T> {
    Err(Error::Failed { device: NAME, reason })
}

/// An error of the driver in words, with what to do where that is known.
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

/// As [`check`], where too little memory is a case of its own.
fn check_memory(code: sys::CUresult, what: &str, bytes: u64) -> Result<()> {
    match code {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            Err(Error::OutOfMemory { device: NAME, what: what.to_owned(), bytes })
        }
        code => check(code, what),
    }
}

/// Whether the driver's library is there and starts; why not, in words.
///
/// # Errors
/// What is missing, and what to do.
pub fn start() -> std::result::Result<(), String> {
    // SAFETY: opens a library by its name, and closes it.
    if !unsafe { sys::is_culib_present() } {
        return Err("no NVIDIA driver was found (libcuda.so.1, nvcuda.dll)".to_owned());
    }
    // SAFETY: the library is there, as was just seen; the call has no requirements.
    match unsafe { sys::cuInit(0) } {
        sys::CUresult::CUDA_SUCCESS => {}
        code => return Err(format!("the NVIDIA driver does not start: {}", describe(code))),
    }
    let mut version = 0;
    // SAFETY: writes an integer.
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

/// A GPU's context and stream, which everything of one device shares.
#[derive(Debug)]
pub struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    facts: Facts,
    /// Why the GPU was given up, if it was: nothing may wait for it any more.
    lost: OnceLock<String>,
}

// SAFETY: the driver's handles may be used by any thread; each makes the context its own before
// (`enter`).
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks for itself.
unsafe impl Sync for Context {}

impl Context {
    /// Of the GPU with this index.
    ///
    /// # Errors
    /// There is no driver, no such GPU, or the GPU is too old or taken.
    pub fn new(index: usize) -> Result<Arc<Context>> {
        start().or_else(failed)?;
        let mut n = 0;
        // SAFETY: writes an integer; the driver has started.
        check(unsafe { sys::cuDeviceGetCount(&mut n) }, "counting GPUs")?;
        if index as c_int >= n {
            return failed(format!("GPU {index} of {n}; see nvidia-smi and CUDA_VISIBLE_DEVICES"));
        }
        let (mut device, mut context, mut stream) = (0, ptr::null_mut(), ptr::null_mut());
        // SAFETY: the index is below the count; the others write handles.
        check(unsafe { sys::cuDeviceGet(&mut device, index as c_int) }, "the GPU's handle")?;
        let facts = facts(device)?;
        if facts.capability < (7, 5) {
            let (major, minor) = facts.capability;
            return failed(format!(
                "{} has compute capability {major}.{minor}, expected 7.5 or newer",
                facts.name
            ));
        }
        // SAFETY: the device exists; the handle is given back when this is dropped.
        let code = unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) };
        check_memory(code, "the GPU's context", 0)?;
        // SAFETY: the context was just made.
        check(unsafe { sys::cuCtxSetCurrent(context) }, "the GPU's context")?;
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        // SAFETY: writes a handle; a context is current.
        check(unsafe { sys::cuStreamCreate(&mut stream, flags) }, "a stream")?;
        Ok(Arc::new(Context { device, context, stream, facts, lost: OnceLock::new() }))
    }

    /// What the GPU reports.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Make the context this thread's.
    ///
    /// # Errors
    /// The GPU is lost.
    pub fn enter(&self) -> Result<()> {
        if let Some(reason) = self.lost.get() {
            return failed(reason.clone());
        }
        // SAFETY: the context lives as long as this.
        check(unsafe { sys::cuCtxSetCurrent(self.context) }, "the GPU's context")
    }

    /// Free memory and all of it, whoever has taken the rest.
    ///
    /// # Errors
    /// The GPU is lost.
    pub fn memory(&self) -> Result<(u64, u64)> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two integers; the context is current.
        check(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) }, "the GPU's memory")?;
        Ok((free as u64, total as u64))
    }

    /// Run a function of the GPU. `start` says when it may begin.
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
        // The driver reads the arguments from memory aligned as the kernel's struct is.
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
        // From Hopper on, kernels come to the multiprocessors while those before them end; each
        // waits for them itself (`await`, common.cuh).
        // SAFETY: a plain union, of which zeros are valid.
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
        // SAFETY: the function belongs to a module that lives as long as its program; its only
        // parameter is a struct of as many bytes, which the driver copies; addresses in it are of
        // memory of the same program.
        let code = unsafe { sys::cuLaunchKernelEx(&config, f.0, parameters.as_mut_ptr(), ptr::null_mut()) };
        check(code, "starting a kernel")
    }

    /// Record what is launched by `what` as a graph.
    ///
    /// # Errors
    /// Those of `what`, or the driver's.
    pub fn capture(self: &Arc<Self>, what: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is this context's, and is not capturing: programs are used by one
        // thread at a time, and this function ends what it begins.
        check(unsafe { sys::cuStreamBeginCapture_v2(self.stream, mode) }, "recording a graph")?;
        let result = what();
        let mut graph = ptr::null_mut();
        // SAFETY: as above; writes a handle.
        let code = unsafe { sys::cuStreamEndCapture(self.stream, &mut graph) };
        result?;
        check(code, "recording a graph")?;
        let mut exec = ptr::null_mut();
        // SAFETY: the graph was just made; it is not needed once it is instantiated.
        let code = unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0) };
        // SAFETY: as above.
        unsafe { sys::cuGraphDestroy(graph) };
        check_memory(code, "a graph", 0)?;
        Ok(Graph { exec, context: self.clone() })
    }

    /// Run a graph.
    ///
    /// # Errors
    /// The driver refused.
    pub fn launch_graph(&self, graph: &Graph) -> Result<()> {
        // SAFETY: both belong to this context.
        check(unsafe { sys::cuGraphLaunch(graph.exec, self.stream) }, "starting a graph")
    }

    /// Copy to the GPU, in the order of the stream. Pinned bytes must stay until the copy is done;
    /// others are copied before this returns.
    ///
    /// # Errors
    /// The driver refused.
    pub fn upload(&self, to: Address, bytes: &[u8]) -> Result<()> {
        // SAFETY: callers give addresses of their own memory, with room for the bytes.
        let code = unsafe { sys::cuMemcpyHtoDAsync_v2(to, bytes.as_ptr().cast(), bytes.len(), self.stream) };
        check(code, "copying to the GPU")
    }

    /// Copy ranges of the GPU's memory to places in `bytes`, after all that was submitted, and wait
    /// once.
    ///
    /// # Errors
    /// The driver refused, or something that was submitted failed.
    pub fn download_all(&self, parts: &[(Address, Range<usize>)], bytes: &mut [u8]) -> Result<()> {
        let copy = |(from, range): &(Address, Range<usize>)| {
            let Some(to) = bytes.get_mut(range.clone()) else {
                return failed(format!("results at {range:?}"));
            };
            // SAFETY: as `upload`; the bytes are borrowed until all copies are done.
            let code =
                unsafe { sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), *from, to.len(), self.stream) };
            check(code, "copying from the GPU")
        };
        let copied = parts.iter().try_for_each(copy);
        // What was begun ends before the bytes are anyone else's.
        self.finish().and(copied)
    }

    /// Copy from the GPU after all that was submitted, and wait.
    ///
    /// # Errors
    /// The driver refused, or something that was submitted failed.
    pub fn download(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: as `upload`; the bytes are not touched until the copy is done.
        let code =
            unsafe { sys::cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), from, bytes.len(), self.stream) };
        check(code, "copying from the GPU").and_then(|()| self.finish())
    }

    /// Copy within the GPU's memory, in the order of the stream.
    ///
    /// # Errors
    /// The driver refused.
    pub fn copy(&self, to: Address, from: Address, bytes: usize) -> Result<()> {
        // SAFETY: callers give addresses of their own memory.
        let code = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream) };
        check(code, "copying within the GPU")
    }

    /// Fill with zeros, in the order of the stream.
    ///
    /// # Errors
    /// The driver refused.
    pub fn clear(&self, at: Address, bytes: usize) -> Result<()> {
        // SAFETY: callers give addresses of their own memory.
        check(unsafe { sys::cuMemsetD8Async(at, 0, bytes, self.stream) }, "clearing memory")
    }

    /// Wait until all that was submitted is done.
    ///
    /// # Errors
    /// Some of it failed, or did not end.
    pub fn finish(&self) -> Result<()> {
        // SAFETY: the stream is this context's.
        self.wait_until(|| unsafe { sys::cuStreamQuery(self.stream) })
    }

    /// Ask again and again: at first without pause, since a step takes less than a thread's sleep;
    /// later with.
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

    /// A point of the stream that can be waited for.
    ///
    /// # Errors
    /// The driver refused.
    pub fn event(self: &Arc<Self>, timed: bool) -> Result<Event> {
        let mut event = ptr::null_mut();
        let flags = match timed {
            true => sys::CUevent_flags::CU_EVENT_DEFAULT,
            false => sys::CUevent_flags::CU_EVENT_DISABLE_TIMING,
        };
        // SAFETY: writes a handle.
        check(unsafe { sys::cuEventCreate(&mut event, flags as c_uint) }, "an event")?;
        Ok(Event { event, context: self.clone() })
    }
}

/// Let GPUs read and write each other's memory. False: some of them cannot.
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
        // SAFETY: writes an integer; both devices exist.
        let code = unsafe { sys::cuDeviceCanAccessPeer(&mut can, from.device, to.device) };
        check(code, "whether GPUs reach each other")?;
        if can == 0 {
            return Ok(false);
        }
    }
    for (from, to) in pairs() {
        from.enter()?;
        // SAFETY: the contexts live; `from` is current.
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
        // What hangs would hang this too; the process' end frees it.
        if self.lost.get().is_some() {
            return;
        }
        // SAFETY: the handles are this context's; whatever used them holds an Arc of it, and so is
        // gone.
        unsafe {
            sys::cuCtxSetCurrent(self.context);
            sys::cuStreamDestroy_v2(self.stream);
            sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

/// When a kernel may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// When what was submitted before is done.
    After,
    /// From Hopper on: when the blocks of the kernel before it have begun. It waits for that kernel
    /// itself.
    Early,
    /// As [`Self::After`], with all blocks at once, since they wait for each other; refused where
    /// they do not fit the GPU together.
    Together,
}

/// Most bytes of a kernel's arguments.
pub const MAX_ARGUMENT_BYTES: usize = 1024;

/// A kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function(sys::CUfunction);

// SAFETY: a handle, as those of the context.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// Compiled kernels on the GPU.
#[derive(Debug)]
pub struct Module {
    module: sys::CUmodule,
    context: Arc<Context>,
}

// SAFETY: a handle, as those of the context.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// From machine code.
    ///
    /// # Errors
    /// It is not for this GPU.
    pub fn new(context: &Arc<Context>, code: &[u8]) -> Result<Module> {
        let mut module = ptr::null_mut();
        // SAFETY: the code is an ELF image, which the driver checks.
        let code = unsafe { sys::cuModuleLoadData(&mut module, code.as_ptr().cast()) };
        check_memory(code, "loading kernels", 0)?;
        Ok(Module { module, context: context.clone() })
    }

    /// A kernel of it, which may use so many bytes of shared memory.
    ///
    /// # Errors
    /// There is no such kernel.
    pub fn function(&self, name: &str, shared: u32) -> Result<Function> {
        let Ok(c_name) = std::ffi::CString::new(name) else {
            return failed(format!("a kernel named {name:?}"));
        };
        let mut function = ptr::null_mut();
        // SAFETY: the name ends in 0.
        let code = unsafe { sys::cuModuleGetFunction(&mut function, self.module, c_name.as_ptr()) };
        check(code, name)?;
        if shared > 48 << 10 {
            let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function was just found.
            check(unsafe { sys::cuFuncSetAttribute(function, which, shared as c_int) }, name)?;
        }
        Ok(Function(function))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: the module is this one's; programs hold it while they use its functions.
            unsafe { sys::cuModuleUnload(self.module) };
        }
    }
}

/// Work that was recorded.
#[derive(Debug)]
pub struct Graph {
    exec: sys::CUgraphExec,
    context: Arc<Context>,
}

// SAFETY: a handle, as those of the context.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: the graph is this one's; the driver keeps it until it has run.
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

// SAFETY: a handle, as those of the context.
unsafe impl Send for Event {}

impl Event {
    /// Mark what was submitted so far.
    ///
    /// # Errors
    /// The driver refused.
    pub fn record(&self) -> Result<()> {
        // SAFETY: both are this context's.
        check(unsafe { sys::cuEventRecord(self.event, self.context.stream) }, "an event")
    }

    /// Wait until what was submitted before is done.
    ///
    /// # Errors
    /// Some of it failed, or did not end.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the event is this context's.
        self.context.wait_until(|| unsafe { sys::cuEventQuery(self.event) })
    }

    /// Seconds from another event's point to this one's; both are done.
    ///
    /// # Errors
    /// They are not timed.
    pub fn since(&self, earlier: &Event) -> Result<f64> {
        let mut milliseconds = 0.0f32;
        // SAFETY: both are this context's; writes a number.
        let code = unsafe { sys::cuEventElapsedTime(&mut milliseconds, earlier.event, self.event) };
        check(code, "the time of a kernel")?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: the event is this one's.
            unsafe { sys::cuEventDestroy_v2(self.event) };
        }
    }
}
