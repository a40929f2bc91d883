//! Converts any [`Checkpoint`](weights::Checkpoint), or another [`Source`], to a `.base` or GGUF
//! file, tensor by tensor.
//!
//! | file | content |
//! |---|---|
//! | `types` | target types and their notation: `q4`, `q4-g32-f16`, `gguf:q4_k` |
//! | `profile` | ordered rules, `glob = type`, for single tensors |
//! | `plan` | the type that each tensor gets, and whether that loses precision |
//! | `encode` | encoding of one tensor |
//! | `run` | writing of the file, in order, streamed |
//! | `progress` | progress in bytes |
//! | `output` | the output file, which is renamed when it is complete |
//! | `file_type` | `general.file_type` of a GGUF file |
//!
//! A tensor whose type stays is copied. It is repacked if the other format has a type with the same
//! integers and scales ([`codec::repack`](weights::codec::repack)), and otherwise encoded. Encoding
//! a quantised tensor rounds twice, so it must be requested. Only one tensor at a time is in
//! memory, in both forms.

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

/// Options of a conversion.
#[derive(Clone, Debug)]
pub struct Options {
    /// Format, and type of matrices.
    pub target: Target,
    /// Rules for single tensors, which override the target.
    pub profile: Option<Profile>,
    /// True to encode tensors that are quantised already.
    pub requantize: bool,
    /// True to replace an existing output.
    pub force: bool,
}

/// Errors of a conversion.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A source file is invalid.
    #[error(transparent)]
    Format(#[from] crate::Error),
    /// A computed tensor could not be made.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The operating system returned an error.
    #[error("{}: {source}", file.display())]
    Io {
        /// Path of the file.
        file: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The output's disk is full.
    #[error("{}: the disk is full, {needed} bytes are needed; no partial file is left", file.display())]
    DiskFull {
        /// Path of the output.
        file: PathBuf,
        /// Bytes of the output.
        needed: u64,
    },
    /// The output exists.
    #[error("{} exists already; --force replaces it", file.display())]
    Exists {
        /// Path of the output.
        file: PathBuf,
    },
    /// A type name is unknown.
    #[error("type {found:?} is unknown, expected {expected}")]
    Type {
        /// The unknown name.
        found: String,
        /// Known names.
        expected: String,
    },
    /// A line of a profile is invalid.
    #[error("{}, line {line}: {reason}", file.display())]
    Profile {
        /// Path of the profile.
        file: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// Reason of the error.
        reason: String,
    },
    /// A quantised tensor would be quantised again without a request.
    #[error(
        "tensor {tensor:?} is quantised already, as {from}: as {to} it would lose a second time; \
         --requantize does it nevertheless{}", other_way(*.from)
    )]
    Lossy {
        /// Name of the tensor.
        tensor: String,
        /// Type of the tensor.
        from: BlockType,
        /// Requested type.
        to: BlockType,
    },
    /// The output's format lacks a tensor's type, and no other type was requested.
    #[error(
        "tensor {tensor:?} is of type {block}, which {format} files do not have; \
         name another type with --to, and allow it with --requantize"
    )]
    Unstorable {
        /// Name of the tensor.
        tensor: String,
        /// Type of the tensor.
        block: BlockType,
        /// Format of the output.
        format: Format,
    },
    /// A profile requests a type that does not fit the shape.
    #[error(
        "tensor {tensor:?} of shape {shape:?} cannot be {block}: expected rows of whole blocks of {}, two dimensions \
         or more; a line above that says keep would leave it as it is", block.block_len()
    )]
    Shape {
        /// Name of the tensor.
        tensor: String,
        /// Shape of the tensor.
        shape: Vec<usize>,
        /// Requested type.
        block: BlockType,
    },
    /// A value does not fit the type.
    #[error(
        "tensor {tensor:?}: {block} cannot store the value {value}, expected finite numbers in its range"
    )]
    Range {
        /// Name of the tensor.
        tensor: String,
        /// One of the values.
        value: f32,
        /// Type of the tensor in the output.
        block: BlockType,
    },
    /// Scales are a separate tensor, as in published gpt-oss checkpoints. Only a conversion that
    /// knows the family joins them.
    #[error(
        "tensor {tensor:?} is of type {block}, but {found} bytes of scales and offsets stand beside it, expected {expected}: \
         convert this model to GGUF"
    )]
    Planes {
        /// Name of the tensor.
        tensor: String,
        /// Type of the tensor.
        block: BlockType,
        /// Bytes of scales found.
        found: usize,
        /// Bytes of scales for the shape.
        expected: usize,
    },
    /// The checkpoint's names are not GGUF's.
    #[error(
        "the tensors have {0:?} names, expected GGUF names in a GGUF file; export the model to GGUF first"
    )]
    Naming(Naming),
    /// Writing the `.base` file failed.
    #[error(transparent)]
    Base(base::BaseWriteError),
    /// Writing the GGUF file failed.
    #[error(transparent)]
    Gguf(gguf::WriteError),
}

/// Advice on other ways to convert a type.
fn other_way(from: BlockType) -> &'static str {
    let twin = if let BlockType::Affine(affine) = from {
        weights::codec::repack::block_twin(affine).is_some()
    } else {
        weights::codec::repack::affine_twin(from).is_some()
    };
    if twin { ", and keep moves it without loss" } else { "" }
}

/// The source's architecture, or an empty string.
fn architecture(source: &dyn Source) -> &str {
    let keys: &[&str] = match source.naming() {
        Naming::Gguf => &["general.architecture"],
        Naming::Base => &["base.arch"],
        Naming::HuggingFace | Naming::CTranslate2 | Naming::WhisperCpp => {
            &["text_config.model_type", "model_type", "base.arch"]
        }
    };
    keys.iter().find_map(|key| source.metadata().str(key)).unwrap_or_default()
}
