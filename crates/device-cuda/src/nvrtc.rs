//! NVIDIA's run-time compiler (NVRTC), if its library is installed.

use libloading::Library;
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

type Program = *mut c_void;

/// The loaded library of NVRTC.
pub struct Nvrtc {
    library: Library,
    version: (u32, u32),
}

/// A compiled file.
pub struct Compiled {
    /// Machine code.
    pub code: Vec<u8>,
    /// The compiler's log. With `verbose` it lists registers and spills of each kernel.
    pub log: String,
}

/// Paths to try: the loader's search path first, then the folders of CUDA's installers.
fn candidates() -> Vec<PathBuf> {
    let names: &[&str] = match cfg!(windows) {
        true => &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"],
        false => &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
    };
    let mut found: Vec<PathBuf> = names.iter().map(PathBuf::from).collect();
    if !cfg!(windows) {
        for folder in ["/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib", "/opt/cuda/lib64"]
        {
            found.extend(names.iter().map(|name| Path::new(folder).join(name)));
        }
    }
    found
}

impl Nvrtc {
    /// Loads the library at `path`, or the first of the usual paths that loads.
    ///
    /// # Errors
    /// No library loads.
    pub fn load(path: Option<&Path>) -> Result<Nvrtc, String> {
        let paths = path.map_or_else(candidates, |path| vec![path.to_owned()]);
        for path in &paths {
            // SAFETY: loading runs the initialisers of NVIDIA's library, which have no
            // requirements.
            let Ok(library) = (unsafe { Library::new(path) }) else { continue };
            let mut nvrtc = Nvrtc { library, version: (0, 0) };
            let (mut major, mut minor) = (0, 0);
            let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int =
                nvrtc.symbol("nvrtcVersion")?;
            // SAFETY: `version` writes only to `major` and `minor`, which outlive the call.
            if unsafe { version(&mut major, &mut minor) } == 0 {
                nvrtc.version = (major as u32, minor as u32);
                return Ok(nvrtc);
            }
        }
        let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        Err(format!("NVIDIA's run-time compiler was not found ({})", names.join(", ")))
    }

    /// Version of NVRTC: `(12, 8)` is 12.8.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    fn symbol<F: Copy>(&self, name: &str) -> Result<F, String> {
        // SAFETY: callers pass as `F` the type that NVIDIA documents for the symbol, and do not use
        // the copy after `self` is dropped.
        let found = unsafe { self.library.get::<F>(name.as_bytes()) };
        found.map(|symbol| *symbol).map_err(|e| format!("NVIDIA's run-time compiler: {e}"))
    }

    /// Compiles a file for an architecture. `headers` lists the name and text of each include.
    ///
    /// # Errors
    /// The file does not compile; with the compiler's log.
    pub fn compile(
        &self,
        name: &str,
        source: &str,
        headers: &[(&str, &str)],
        architecture: &str,
        verbose: bool,
    ) -> Result<Compiled, String> {
        type Create = unsafe extern "C" fn(
            *mut Program,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> c_int;
        type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
        type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
        type Get = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
        type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;
        let c = |text: &str| CString::new(text).map_err(|e| format!("{name}: {e}"));
        let (source, c_name) = (c(source)?, c(name)?);
        let texts = headers.iter().map(|(_, text)| c(text)).collect::<Result<Vec<_>, _>>()?;
        let names = headers.iter().map(|(name, _)| c(name)).collect::<Result<Vec<_>, _>>()?;
        let mut options =
            vec![format!("-arch={architecture}"), "--std=c++17".to_owned(), "-default-device".to_owned()];
        if verbose {
            options.push("--ptxas-options=-v".to_owned());
        }
        let options = options.iter().map(|option| c(option)).collect::<Result<Vec<_>, _>>()?;
        let pointers = |list: &[CString]| list.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
        let (texts, names, options) = (pointers(&texts), pointers(&names), pointers(&options));
        let create: Create = self.symbol("nvrtcCreateProgram")?;
        let compile: Compile = self.symbol("nvrtcCompileProgram")?;
        let destroy: Destroy = self.symbol("nvrtcDestroyProgram")?;
        let mut program: Program = ptr::null_mut();
        let n = headers.len() as c_int;
        // SAFETY: all strings end in 0 and live until `program` is destroyed; `texts` and `names`
        // have `n` entries.
        let code = unsafe {
            create(&mut program, source.as_ptr(), c_name.as_ptr(), n, texts.as_ptr(), names.as_ptr())
        };
        if code != 0 {
            return Err(format!("{name}: error {code} of NVIDIA's run-time compiler"));
        }
        // SAFETY: `create` just made `program`; `options` has `options.len()` strings that end
        // in 0.
        let code = unsafe { compile(program, options.len() as c_int, options.as_ptr()) };
        let read = |size: &str, get: &str| -> Result<Vec<u8>, String> {
            let (size, get): (Size, Get) = (self.symbol(size)?, self.symbol(get)?);
            let mut n = 0;
            // SAFETY: `size` writes the live integer `n`, and `get` then writes `n` bytes.
            unsafe {
                if size(program, &mut n) != 0 {
                    return Ok(vec![]);
                }
                let mut bytes = vec![0u8; n];
                get(program, bytes.as_mut_ptr().cast());
                Ok(bytes)
            }
        };
        let log = read("nvrtcGetProgramLogSize", "nvrtcGetProgramLog")?;
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned();
        let result = match code {
            0 => read("nvrtcGetCUBINSize", "nvrtcGetCUBIN").map(|code| Compiled { code, log }),
            code => {
                Err(format!("{name} for {architecture}: error {code} of NVIDIA's run-time compiler:\n{log}"))
            }
        };
        // SAFETY: `create` made `program`, and nothing uses it after this.
        unsafe { destroy(&mut program) };
        result
    }
}
