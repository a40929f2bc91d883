//! What can go wrong: before a kernel runs, and while it does.

use crate::rewrite::Refusal;
use std::fmt;
use std::path::PathBuf;

/// Why a kernel could not be compiled or made ready.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No clang of a version that works.
    #[error(
        "no clang from {minimum} on was found{found}; install one (Debian, Ubuntu: apt-get install clang-19 libclang-rt-19-dev) or name \
         it in Options::clang"
    )]
    NoClang {
        /// The least version that works.
        minimum: u32,
        /// What was found instead, if anything.
        found: String,
    },
    /// A tool could not be started.
    #[error("{tool} could not be started: {source}")]
    Start {
        /// Its path or name.
        tool: String,
        /// Why not.
        source: std::io::Error,
    },
    /// The source has something that the emulator does not execute.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// clang found errors in the source.
    #[error("{name} does not compile:\n{messages}")]
    Compile {
        /// The source's name.
        name: String,
        /// clang's messages, with places in the source.
        messages: String,
    },
    /// The emulator's own runtime did not compile or link: a part of the compiler is missing.
    #[error("the runtime does not build{hint}:\n{messages}")]
    Runtime {
        /// What to install.
        hint: String,
        /// clang's messages.
        messages: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
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
    /// A name that a virtual include or a source cannot have.
    #[error("'{0}' cannot be the name of a source: expected a relative path without '..'")]
    Name(String),
    /// The library has no such function.
    #[error("no kernel '{name}'; there are: {}", .known.join(", "))]
    NoFunction {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// A function constant that no source declares, or of another type.
    #[error("function constant {index}: {what}")]
    Constant {
        /// Its index.
        index: u16,
        /// What is wrong with it.
        what: String,
    },
    /// Memory was refused by the system.
    #[error("{bytes} bytes of memory were refused: {source}")]
    Memory {
        /// How much was asked for.
        bytes: usize,
        /// Why not.
        source: std::io::Error,
    },
}

/// A place in a source.
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

/// What a kernel did that it must not do, and where. A dispatch ends at its first fault; what it had written stays written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The kernel's host name.
    pub function: String,
    /// What happened.
    pub kind: FaultKind,
    /// Where in the source, where that is known.
    pub location: Option<Location>,
    /// The thread, where one did it.
    pub thread: Option<Box<ThreadPosition>>,
}

/// Which thread of a grid.
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

/// The kinds of faults.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultKind {
    /// An access outside of everything that is bound.
    #[error(
        "{} of {size} bytes out of bounds: {}",
        if *.write { "write" } else { "read" },
        match .buffer { Some((i, at, len)) => format!("offset {at} of buffer {i}, which has {len} bytes"), None => "no buffer is near".to_owned() }
    )]
    OutOfBounds {
        /// Whether it was a write.
        write: bool,
        /// Bytes of the access.
        size: u64,
        /// The nearest buffer: index, offset of the access from what was bound, bytes that are bound.
        buffer: Option<(u32, i64, u64)>,
    },
    /// A write to memory that was bound as read only.
    #[error("write of {size} bytes to buffer {index}, which is read only")]
    ReadOnly {
        /// The buffer's index.
        index: u32,
        /// Bytes of the access.
        size: u64,
    },
    /// An access past a threadgroup variable or argument.
    #[error("{} of {size} bytes at offset {offset} of threadgroup memory '{name}', past its end", if *.write { "write" } else { "read" })]
    ThreadgroupOutOfBounds {
        /// Whether it was a write.
        write: bool,
        /// The variable before the access.
        name: String,
        /// From the variable's start.
        offset: i64,
        /// Bytes of the access.
        size: u64,
    },
    /// A read of threadgroup memory that nothing has written in this threadgroup.
    #[error(
        "read of {size} bytes at offset {offset} of threadgroup memory '{name}', which were never written"
    )]
    UninitialisedThreadgroup {
        /// The variable.
        name: String,
        /// From the variable's start.
        offset: i64,
        /// Bytes of the access.
        size: u64,
    },
    /// A `threadgroup_barrier` that not all threads of the threadgroup reach.
    #[error("divergent threadgroup_barrier: {reached} of {threads} threads reached it")]
    DivergentBarrier {
        /// Threads that wait at it.
        reached: u32,
        /// Threads of the threadgroup.
        threads: u32,
    },
    /// A simdgroup operation that some lanes of the simdgroup do while others do another or wait at a barrier.
    #[error("divergent simdgroup operation: only lanes {lanes:#010x} take part while others are elsewhere")]
    DivergentSimdgroup {
        /// A bit for each lane.
        lanes: u32,
    },
    /// A shuffle that reads a lane which takes no part in it.
    #[error("a shuffle reads lane {lane}, which does not take part (lanes {lanes:#010x} do)")]
    InactiveLane {
        /// The lane that was read.
        lane: u32,
        /// The lanes that take part.
        lanes: u32,
    },
    /// More than [`crate::MAX_THREADGROUP_MEMORY`].
    #[error(
        "{bytes} bytes of threadgroup memory with '{name}'; a threadgroup has at most {}",
        crate::MAX_THREADGROUP_MEMORY
    )]
    TooMuchThreadgroupMemory {
        /// Bytes up to and with `name`.
        bytes: u64,
        /// The variable that was too much.
        name: String,
    },
    /// An access by a type whose alignment the address does not have.
    #[error("an access that must be aligned to {alignment} bytes at an address that is {excess} past such")]
    Misaligned {
        /// The type's alignment.
        alignment: u64,
        /// The address modulo it.
        excess: u64,
    },
    /// Behaviour that C++ leaves undefined: the text says which.
    #[error("{0}")]
    Undefined(String),
    /// A parameter of the kernel has nothing bound.
    #[error("nothing is bound for parameter '{name}' ({place})")]
    Unbound {
        /// The parameter.
        name: String,
        /// "buffer 3" or "threadgroup memory 0".
        place: String,
    },
    /// The dispatch itself is one that Metal does not accept.
    #[error("{0}")]
    Dispatch(String),
    /// A sanitizer's report, from a run in a process of its own.
    #[error("{0}")]
    Sanitizer(String),
}
