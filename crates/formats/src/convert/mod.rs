//! From any [`Checkpoint`](weights::Checkpoint), or whatever else is a [`Source`], to a `.base` or a GGUF file, tensor by tensor.
//!
//! | file | says |
//! |---|---|
//! | `types` | target types and their notation: `q4`, `q4-g32-f16`, `gguf:q4_k` |
//! | `profile` | ordered rules, `glob = type`, for single tensors |
//! | `source` | what is converted: a checkpoint, or what makes the tensors of one |
//! | `plan` | what each tensor becomes, and whether that loses anything |
//! | `encode` | one tensor's bytes in its new type |
//! | `run` | the file: in order, streamed |
//! | `progress` | how far it has come, in bytes |
//! | `output` | the output file, which gets its name when it is complete |
//! | `file_type` | `general.file_type` of a GGUF file |
//!
//! A tensor is copied where its type stays, moved where the other format has a type that holds the same integers and
//! scales ([`codec::repack`](weights::codec::repack)), and encoded otherwise. Encoding a tensor that is quantised already
//! loses twice, and is done only when asked for. At no time is more than one tensor in memory, before and after.

mod encode;
mod file_type;
mod output;
mod plan;
mod profile;
mod progress;
mod run;
mod types;

use crate::{base, gguf};
use std::path::PathBuf;
use weights::{BlockType, Naming, Source, SourceError};

pub use output::partial_path;
pub use plan::{Action, Plan, Planned};
pub use profile::Profile;
pub use run::{Report, files_of, run};
pub use types::{Format, Target, Wanted};

/// `Result` with this module's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What is to be made.
#[derive(Clone, Debug)]
pub struct Options {
    /// The format and the type of matrices.
    pub target: Target,
    /// Rules for single tensors, before the target's.
    pub profile: Option<Profile>,
    /// Encode tensors that are quantised already.
    pub requantize: bool,
    /// Replace the output if it is there.
    pub force: bool,
}

/// Why a conversion cannot be made, or was not finished.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A source file.
    #[error(transparent)]
    Format(#[from] crate::Error),
    /// A tensor that is made while it is written.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The operating system refused.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// The output's disk is full.
    #[error("{}: the disk is full, {needed} bytes are needed; no partial file is left", file.display())]
    DiskFull {
        /// The output.
        file: PathBuf,
        /// Its bytes.
        needed: u64,
    },
    /// The output is there already.
    #[error("{} is there already; --force replaces it", file.display())]
    Exists {
        /// The output.
        file: PathBuf,
    },
    /// The name of a type that is not known.
    #[error("type {found:?} is not known, expected {expected}")]
    Type {
        /// What was given.
        found: String,
        /// What there is.
        expected: String,
    },
    /// A line of a profile.
    #[error("{}, line {line}: {reason}", file.display())]
    Profile {
        /// The profile.
        file: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// Two errors of rounding on top of each other, which nobody asked for.
    #[error(
        "tensor {tensor:?} is quantised already, as {from}: as {to} it would lose a second time; \
         --requantize does it nevertheless{}", other_way(*.from)
    )]
    Lossy {
        /// The tensor.
        tensor: String,
        /// Its type.
        from: BlockType,
        /// What was asked for.
        to: BlockType,
    },
    /// The format has no such type, and nothing else was asked for.
    #[error(
        "tensor {tensor:?} is of type {block}, which {format} files do not have; \
         name another type with --to, and allow it with --requantize"
    )]
    Unstorable {
        /// The tensor.
        tensor: String,
        /// Its type.
        block: BlockType,
        /// The output's format.
        format: Format,
    },
    /// A profile asks for what the shape does not allow.
    #[error(
        "tensor {tensor:?} of shape {shape:?} cannot be {block}: expected rows of whole blocks of {}, two dimensions \
         or more; a line above that says keep would leave it as it is", block.block_len()
    )]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// What was asked for.
        block: BlockType,
    },
    /// A value that the type cannot hold.
    #[error(
        "tensor {tensor:?} holds {value}, which {block} cannot hold; expected finite numbers in its range"
    )]
    Range {
        /// The tensor.
        tensor: String,
        /// One of them.
        value: f32,
        /// The type.
        block: BlockType,
    },
    /// Scales that are a tensor of their own, as published gpt-oss checkpoints have them: only a conversion that knows the family joins
    /// them.
    #[error(
        "tensor {tensor:?} is of type {block}, but {found} bytes of scales and offsets stand beside it, expected {expected}: \
         convert this model to GGUF"
    )]
    Planes {
        /// The tensor.
        tensor: String,
        /// Its type.
        block: BlockType,
        /// Bytes beside its values.
        found: usize,
        /// Those that its shape needs.
        expected: usize,
    },
    /// GGUF has names of its own.
    #[error("the names are {0:?}'s, and a GGUF file needs GGUF's; expected them to be translated first")]
    Naming(Naming),
    /// The `.base` file cannot be written.
    #[error(transparent)]
    Base(base::WriteError),
    /// The GGUF file cannot be written.
    #[error(transparent)]
    Gguf(gguf::WriteError),
}

/// What else could be done with a type that has a twin.
fn other_way(from: BlockType) -> &'static str {
    let twin = match from {
        BlockType::Affine(affine) => weights::codec::repack::block_twin(affine).is_some(),
        block => weights::codec::repack::affine_twin(block).is_some(),
    };
    if twin { ", and keep moves it without loss" } else { "" }
}

/// The architecture that a source names, or nothing.
fn architecture(source: &dyn Source) -> &str {
    let keys: &[&str] = match source.naming() {
        Naming::Gguf => &["general.architecture"],
        Naming::Base => &["base.arch"],
        _ => &["text_config.model_type", "model_type", "base.arch"],
    };
    keys.iter().find_map(|key| source.metadata().str(key)).unwrap_or_default()
}
