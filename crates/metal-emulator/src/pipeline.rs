//! A kernel specialised by function constants.
//!
//! A library's initialisers read the constants when it is loaded. So each pipeline loads its own
//! copy of the library's file, with its values in the table of constants.

use crate::abi::{self, MemoryNew, Present, Run};
use crate::cache::file_error;
use crate::error::Error;
use crate::library::{Constant, Function, Library};
use crate::options::Mode;
use std::ffi::{CStr, CString, c_void};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// A kernel that can be dispatched.
#[derive(Debug)]
pub struct Pipeline {
    pub(crate) function: Function,
    /// Its index in the library's table.
    pub(crate) index: u32,
    pub(crate) mode: Mode,
    /// The library without the constants, for source locations.
    pub(crate) library: PathBuf,
    /// The library with the constants.
    pub(crate) specialised: PathBuf,
    /// None under a sanitizer, since another process loads it.
    pub(crate) code: Option<Code>,
}

/// A loaded library.
#[derive(Debug)]
pub(crate) struct Code {
    handle: *mut c_void,
    pub new_memory: MemoryNew,
    pub run: Run,
    present: Present,
}

// SAFETY: The handle and functions of a loaded library may be used by any thread.
unsafe impl Send for Code {}
// SAFETY: Only the library's initialisers write its state, and they have run; later calls only read
// it.
unsafe impl Sync for Code {}

impl Library {
    /// A kernel specialised by function constants, ready to be dispatched.
    ///
    /// # Errors
    ///
    /// [`Error::NoFunction`]; [`Error::Constant`] if a value does not have the declared type, if
    /// the source declares no such constant, or if one that the function mentions is missing; and
    /// the loader's errors.
    pub fn pipeline(&self, function: &str, constants: &[(u16, Constant)]) -> Result<Pipeline, Error> {
        let Some(index) = self.functions.iter().position(|f| f.name == function) else {
            let known = self.functions.iter().map(|f| f.name.clone()).collect();
            return Err(Error::NoFunction { name: function.to_owned(), known });
        };
        for (n, (i, value)) in constants.iter().enumerate() {
            let Some(declared) = self.constants.iter().find(|c| c.index == *i) else {
                return Err(Error::Constant { index: *i, what: "the source does not declare it".to_owned() });
            };
            if !value.type_names().contains(&declared.type_name.as_str()) {
                let what = format!(
                    "'{}' is declared as {}, and {value:?} was given",
                    declared.name, declared.type_name
                );
                return Err(Error::Constant { index: *i, what });
            }
            if constants[..n].iter().any(|(o, _)| o == i) {
                return Err(Error::Constant {
                    index: *i,
                    what: format!("'{}' is given twice", declared.name),
                });
            }
        }
        for needed in &self.functions[index].constants {
            if !constants.iter().any(|(i, _)| i == needed) {
                let name = self.constants.iter().find(|c| c.index == *needed).map_or("", |c| &c.name);
                let what = format!("'{name}' is used by {function} and has no value");
                return Err(Error::Constant { index: *needed, what });
            }
        }
        Pipeline::load(self, index, constants)
    }
}

static COUNT: AtomicU64 = AtomicU64::new(0);

impl Pipeline {
    pub(crate) fn load(
        library: &Library,
        index: usize,
        constants: &[(u16, Constant)],
    ) -> Result<Self, Error> {
        let mut bytes = fs::read(&library.path).map_err(file_error(&library.path))?;
        set_constants(&mut bytes, library, constants)?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let specialised = library.path.with_file_name(format!("pipeline-{}-{number}.so", std::process::id()));
        fs::write(&specialised, bytes).map_err(file_error(&specialised))?;
        let mut pipeline = Pipeline {
            function: library.functions[index].clone(),
            index: index as u32,
            mode: library.mode.clone(),
            library: library.path.clone(),
            specialised,
            code: None,
        };
        if library.mode.runner.is_none() {
            let code = Code::load(&pipeline.specialised);
            // Removing the file name does not affect the mapping.
            fs::remove_file(&pipeline.specialised).map_err(file_error(&pipeline.specialised))?;
            pipeline.code = Some(code?);
        }
        Ok(pipeline)
    }

    /// The kernel that it runs.
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// Returns true if parameter `i` exists under this pipeline's function constants.
    pub(crate) fn present(&self, i: usize) -> bool {
        // SAFETY: `present` is a function of the loaded library; `self.index` and `i` are indices
        // of its table.
        self.code.as_ref().is_none_or(|c| unsafe { (c.present)(self.index, i as u32) })
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        if self.code.is_none() {
            // A leftover file only takes space.
            let _ = fs::remove_file(&self.specialised);
        }
    }
}

impl Code {
    fn load(path: &std::path::Path) -> Result<Self, Error> {
        let refused = |message: String| Error::Load { path: path.to_owned(), message };
        let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|e| refused(e.to_string()))?;
        // SAFETY: This crate compiled the library; its initialisers only read its constants.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(refused(last_error()));
        }
        let symbol = |name: &CStr| {
            // SAFETY: `handle` was just opened, and `name` is a C string.
            let p = unsafe { libc::dlsym(handle, name.as_ptr()) };
            if p.is_null() { Err(refused(last_error())) } else { Ok(p) }
        };
        let (memory, run, present) =
            (symbol(c"msl_memory_new")?, symbol(c"msl_run")?, symbol(c"msl_present")?);
        // SAFETY: The function types are those of cpp/runtime.h and of the rewriter's entry points,
        // with which the library was compiled.
        unsafe {
            Ok(Code {
                handle,
                new_memory: std::mem::transmute::<*mut c_void, MemoryNew>(memory),
                run: std::mem::transmute::<*mut c_void, Run>(run),
                present: std::mem::transmute::<*mut c_void, Present>(present),
            })
        }
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: `load` opened the handle. None of the library's code is running, since runs
        // borrow the pipeline.
        unsafe { libc::dlclose(self.handle) };
    }
}

fn last_error() -> String {
    // SAFETY: dlerror returns a C string or null.
    let p = unsafe { libc::dlerror() };
    if p.is_null() {
        return "no message".to_owned();
    }
    // SAFETY: `p` is not null, and stays valid until this thread's next call of the loader.
    unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()
}

/// Writes the values into the table in a library's file: count, then index, size and bits of each.
fn set_constants(bytes: &mut [u8], library: &Library, constants: &[(u16, Constant)]) -> Result<(), Error> {
    let refused = |message: &str| Error::Load { path: library.path.clone(), message: message.to_owned() };
    if constants.len() > abi::MAX_CONSTANTS {
        return Err(refused("more function constants than the table holds"));
    }
    let magic = abi::CONSTANTS_MAGIC;
    // SAFETY: Both pointers are of slices, with their lengths.
    let found =
        unsafe { libc::memmem(bytes.as_ptr().cast(), bytes.len(), magic.as_ptr().cast(), magic.len()) };
    if found.is_null() {
        return Err(refused("no table of function constants"));
    }
    let at = found as usize - bytes.as_ptr() as usize + magic.len();
    let Some(table) = bytes.get_mut(at..at + 8 + 16 * abi::MAX_CONSTANTS) else {
        return Err(refused("a truncated table of function constants"));
    };
    table[..8].copy_from_slice(&(constants.len() as u64).to_le_bytes());
    for (entry, (index, value)) in table[8..].chunks_exact_mut(16).zip(constants) {
        let size = library.constants.iter().find(|c| c.index == *index).map_or(0, |c| c.size);
        entry[..4].copy_from_slice(&u32::from(*index).to_le_bytes());
        entry[4..8].copy_from_slice(&size.to_le_bytes());
        entry[8..].copy_from_slice(&value.bits().to_le_bytes());
    }
    Ok(())
}
