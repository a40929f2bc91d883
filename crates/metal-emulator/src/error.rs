//! Errors before a kernel runs, and faults while it runs.

use std::fmt;
use std::path::PathBuf;

/// Error of compiling or loading a kernel.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No clang of a supported version.
    #[error(
        "found no clang {minimum} or newer{found}; install one (Debian, Ubuntu: apt-get install clang-19 libclang-rt-19-dev) or name \
         it in Options::clang"
    )]
    NoClang {
        /// The oldest supported version.
        minimum: u32,
        /// The version found instead, if any.
        found: String,
    },
    /// A tool could not be started.
    #[error("{tool} could not be started: {source}")]
    Start {
        /// Its path or name.
        tool: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The source uses something that the emulator does not support.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// clang found errors in the source.
    #[error("{name} does not compile:\n{messages}")]
    Compile {
        /// The source's name.
        name: String,
        /// clang's messages, with source locations.
        messages: String,
    },
    /// The emulator's own runtime did not compile or link because a part of the compiler is
    /// missing.
    #[error("the emulator's runtime does not build{hint}:\n{messages}")]
    Runtime {
        /// Packages to install.
        hint: String,
        /// clang's messages.
        messages: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A compiled library could not be loaded.
    #[error("{path} cannot be loaded: {message}")]
    Load {
        /// The library.
        path: PathBuf,
        /// The loader's message.
        message: String,
    },
    /// An invalid name for an include or a source.
    #[error("'{0}' cannot be the name of a source: expected a relative path without '..'")]
    Name(String),
    /// The library has no such function.
    #[error("no kernel '{name}'; there are: {}", .known.join(", "))]
    NoFunction {
        /// The name requested.
        name: String,
        /// The kernels of the library.
        known: Vec<String>,
    },
    /// A function constant that the source does not declare, or of the wrong type.
    #[error("function constant {index}: {what}")]
    Constant {
        /// Its index.
        index: u16,
        /// The problem.
        what: String,
    },
    /// The system has no memory.
    #[error("cannot allocate {bytes} bytes: {source}")]
    Memory {
        /// The bytes requested.
        bytes: usize,
        /// The system's error.
        source: std::io::Error,
    },
}

/// Something in the source that the emulator does not support.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {what}")]
pub struct Refusal {
    /// The file, as named to [`crate::Compiler::compile`].
    pub file: String,
    /// The line in it.
    pub line: u32,
    /// The unsupported text, and the accepted alternative.
    pub what: String,
}

/// A location in a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The file, as named to [`crate::Compiler::compile`].
    pub file: String,
    /// The line, from 1.
    pub line: u32,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// An illegal action of a kernel, and where it happened. A dispatch ends at its first fault; its
/// writes until then remain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The kernel's host name.
    pub function: String,
    /// The kind of the fault.
    pub kind: FaultKind,
    /// Location in the source, if known.
    pub location: Option<Location>,
    /// The thread that caused it, if one did.
    pub thread: Option<Box<ThreadPosition>>,
}

/// Position of a thread in a grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadPosition {
    /// `threadgroup_position_in_grid`
    pub threadgroup: [u32; 3],
    /// `thread_position_in_threadgroup`
    pub thread: [u32; 3],
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel {}", self.function)?;
        if let Some(at) = &self.location {
            write!(f, " at {at}")?;
        }
        write!(f, ": {}", self.kind)?;
        if let Some(at) = &self.thread {
            write!(f, " (thread {:?} of threadgroup {:?})", at.thread, at.threadgroup)?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}

/// A buffer by its index, or a resource.
fn place(index: u32) -> String {
    match index.checked_sub(crate::MAX_BINDINGS) {
        None => format!("buffer {index}"),
        Some(resource) => format!("resource {resource}"),
    }
}

/// The kinds of faults.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultKind {
    /// An access outside everything that is bound.
    #[error(
        "{} of {size} bytes out of bounds: {}",
        if *.write { "write" } else { "read" },
        match .buffer { Some((i, at, len)) => format!("offset {at} of {}, which has {len} bytes", place(*i)), None => "no buffer is near".to_owned() }
    )]
    OutOfBounds {
        /// True for a write.
        write: bool,
        /// Bytes of the access.
        size: u64,
        /// The nearest buffer: its index, the offset of the access from the start of the binding,
        /// and the number of bound bytes. Resources have the index [`crate::MAX_BINDINGS`] plus
        /// their position.
        buffer: Option<(u32, i64, u64)>,
    },
    /// A write to memory that was bound read-only.
    #[error("write of {size} bytes to {}, which is read-only", place(*.index))]
    ReadOnly {
        /// The buffer's index, as in [`FaultKind::OutOfBounds`].
        index: u32,
        /// Bytes of the access.
        size: u64,
    },
    /// An access past a threadgroup variable or argument.
    #[error("{} of {size} bytes at offset {offset} of threadgroup memory '{name}', past its end", if *.write { "write" } else { "read" })]
    ThreadgroupOutOfBounds {
        /// True for a write.
        write: bool,
        /// The variable before the access.
        name: String,
        /// Offset from the start of the variable.
        offset: i64,
        /// Bytes of the access.
        size: u64,
    },
    /// A read of threadgroup memory that this threadgroup has not written.
    #[error(
        "read of {size} bytes at offset {offset} of threadgroup memory '{name}', which were never written"
    )]
    UninitialisedThreadgroup {
        /// The variable.
        name: String,
        /// Offset from the start of the variable.
        offset: i64,
        /// Bytes of the access.
        size: u64,
    },
    /// A `threadgroup_barrier` that not all threads of the threadgroup reach.
    #[error("divergent threadgroup_barrier: {reached} of {threads} threads reached it")]
    DivergentBarrier {
        /// Number of threads that wait at it.
        reached: u32,
        /// Number of threads of the threadgroup.
        threads: u32,
    },
    /// A simdgroup operation that some lanes execute while others execute another or wait at a
    /// barrier.
    #[error("divergent simdgroup operation: only lanes {lanes:#010x} reached it")]
    DivergentSimdgroup {
        /// A bit for each lane.
        lanes: u32,
    },
    /// A shuffle that reads an inactive lane.
    #[error("a shuffle reads lane {lane}, which is inactive (active lanes: {lanes:#010x})")]
    InactiveLane {
        /// The lane that was read.
        lane: u32,
        /// The active lanes.
        lanes: u32,
    },
    /// Use of more threadgroup memory than [`crate::MAX_THREADGROUP_MEMORY`].
    #[error(
        "{bytes} bytes of threadgroup memory with '{name}'; a threadgroup has at most {}",
        crate::MAX_THREADGROUP_MEMORY
    )]
    TooMuchThreadgroupMemory {
        /// Bytes up to and including `name`.
        bytes: u64,
        /// The variable that exceeds the limit.
        name: String,
    },
    /// An access at an address that is not aligned for the type.
    #[error(
        "an access that must be aligned to {alignment} bytes, at an address that is {excess} bytes past a multiple"
    )]
    Misaligned {
        /// The type's alignment.
        alignment: u64,
        /// The address modulo it.
        excess: u64,
    },
    /// A read through one binding of bytes that were written through another. Metal's compiler
    /// assumes that bindings do not overlap, and may read before the write.
    #[error(
        "read of {size} bytes at offset {offset} of {}, which were written through buffer {writer}, an overlapping binding",
        place(*.index)
    )]
    Aliased {
        /// Index of the binding that was read.
        index: u32,
        /// Offset from the start of the binding.
        offset: i64,
        /// Bytes of the access.
        size: u64,
        /// Index of the binding that was written.
        writer: u32,
    },
    /// A read of device memory that another thread of the threadgroup wrote, without a barrier for
    /// device memory between the two.
    #[error(
        "read of {size} bytes at offset {offset} of {}, which thread {writer} of the threadgroup wrote: no barrier with \
         mem_flags::mem_device stands between them",
        place(*.index)
    )]
    UnorderedDevice {
        /// Index of the buffer.
        index: u32,
        /// Offset from the start of the binding.
        offset: i64,
        /// Bytes of the access.
        size: u64,
        /// Index of the thread that wrote.
        writer: u32,
    },
    /// The kernel does more than the slowest GPU can do in [`crate::Options::watchdog`], or never
    /// ends.
    #[error(
        "watchdog: more than {steps} accesses and operations in a grid of {threads} threads, {} s on the slowest GPU",
        *.steps as f64 * crate::counters::seconds_of_step(*.threads)
    )]
    Overdue {
        /// The accesses and operations of lanes that were allowed.
        steps: u64,
        /// Threads of the grid.
        threads: u64,
    },
    /// Undefined behaviour in C++, described by the text.
    #[error("{0}")]
    Undefined(String),
    /// A parameter of the kernel is unbound.
    #[error("nothing is bound for parameter '{name}' ({place})")]
    Unbound {
        /// The parameter.
        name: String,
        /// "buffer 3" or "threadgroup memory 0".
        place: String,
    },
    /// Metal would reject the dispatch itself.
    #[error("{0}")]
    Dispatch(String),
    /// A sanitizer's report, from a run in a process of its own.
    #[error("{0}")]
    Sanitizer(String),
}
