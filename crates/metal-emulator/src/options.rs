//! Options of compilation, and what a compiled library keeps of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Options of compilation.
#[derive(Debug, Clone)]
pub struct Options {
    /// The clang to use: a path or a name in PATH. None takes the newest in PATH.
    pub clang: Option<PathBuf>,
    /// A folder for compiled libraries, created if missing. Processes may share it.
    pub cache: PathBuf,
    /// A sanitizer to run under, in a process of its own, instead of the emulator's own checks.
    pub sanitizer: Sanitizer,
    /// True to count bytes (see [`crate::Counters`]).
    pub counting: bool,
    /// Differences of arithmetic from IEEE 754.
    pub numerics: Numerics,
    /// True to compile as Metal 4.0 with tensors, instead of Metal 3.1.
    pub tensors: bool,
    /// Macros defined before the source, with their values.
    pub defines: Vec<(String, String)>,
    /// True to accept what clang accepts of newer versions of C++ than C++14, as Apple's compiler
    /// does with a warning.
    pub newer_language: bool,
    /// Longest time of a dispatch on the slowest GPU, as [`crate::Counters::seconds`] estimates it
    /// from counted work. A dispatch that exceeds it is a fault, as macOS ends work that occupies
    /// the GPU for seconds. `None` allows any; a kernel that never ends then hangs.
    pub watchdog: Option<Duration>,
}

impl Options {
    /// The defaults, with compiled libraries stored in `cache`.
    pub fn new(cache: impl Into<PathBuf>) -> Self {
        Options {
            clang: None,
            cache: cache.into(),
            sanitizer: Sanitizer::None,
            counting: false,
            numerics: Numerics::default(),
            tensors: false,
            defines: Vec::new(),
            newer_language: false,
            watchdog: Some(Duration::from_secs(2)),
        }
    }
}

/// Differences of arithmetic from IEEE 754 that Metal allows. A kernel whose exact bits matter is
/// tested with several of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Numerics {
    /// Contracts a product and a sum to `fma`, like Apple's compiler, unless a source forbids it
    /// with `#pragma METAL fp contract(off)`.
    pub contract: bool,
    /// Treats subnormal f32 operands and results as zero; subnormal halves remain.
    pub flush: bool,
    /// Units in the last place by which results of `exp`, `exp2`, `exp10`, `rsqrt`, `sin` and `cos`
    /// are moved: up for half of the arguments, down for the other half.
    pub ulp: u32,
}

/// clang's sanitizers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sanitizer {
    /// None: the emulator's own checks, in this process.
    #[default]
    None,
    /// AddressSanitizer and UndefinedBehaviorSanitizer, which check private arrays too.
    AddressUndefined,
    /// ThreadSanitizer: races between the threads of a threadgroup, such as a missing barrier.
    Thread,
}

/// Configuration of a compiled library, with everything needed to run it.
#[derive(Debug, Clone)]
pub(crate) struct Mode {
    pub counting: bool,
    pub numerics: Numerics,
    pub watchdog: Option<Duration>,
    /// The program that runs dispatches under a sanitizer, and the sanitizer.
    pub runner: Option<(Arc<Path>, Sanitizer)>,
}
