//! Weight files. A format module knows bytes and nothing else: it turns a file into a [`Checkpoint`], which is
//! neutral [`Metadata`] plus named [`Tensor`]s, every one a view of the mapped file.
//!
//! What is absent here on purpose: model families, devices, arithmetic other than the scalar block codecs.
#![deny(missing_docs)]

mod block;
mod bytes;
mod error;
mod metadata;

pub mod codec;
pub mod gguf;
pub mod safetensors;

pub use block::BlockType;
pub use bytes::{Bytes, Map};
pub use error::{Error, Result};
pub use metadata::{Array, Metadata, Value};

use std::path::Path;

/// Which convention the metadata keys and tensor names of a checkpoint follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Naming {
    /// `llama.block_count`, `blk.0.attn_q.weight`.
    Gguf,
    /// `num_hidden_layers`, `model.layers.0.self_attn.q_proj.weight`. Nested JSON objects of config.json are
    /// flattened with dots: `rope_parameters.full_attention.rope_theta`.
    HuggingFace,
}

/// A tensor as it lies in its file: row-major, the last dimension contiguous, quantised in blocks along it.
///
/// The readers promise: no dimension is 0, the number of values and of bytes fits a `usize`, the last dimension is
/// whole blocks, and a scalar has the empty shape. The data's alignment is not promised: at least 8 in a GGUF file,
/// but a safetensors header may shift everything by a byte.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Name in the file.
    pub name: String,
    /// Outermost dimension first: a linear layer is `[n_out, n_in]`. (GGUF stores the reverse; it is reversed here.)
    pub shape: Vec<usize>,
    /// How the values are stored.
    pub block: BlockType,
    /// Exactly `n_rows * row_bytes` bytes.
    pub data: Bytes,
}

impl Tensor {
    /// Number of values in the last dimension.
    pub fn n_cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Product of all dimensions but the last.
    pub fn n_rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// Bytes of one row of `n_cols` values.
    pub fn row_bytes(&self) -> usize {
        self.block.row_bytes(self.n_cols())
    }
}

/// What a weight file (or a folder of them) holds.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The convention of the names in it.
    pub naming: Naming,
    /// Keys and values of the header (GGUF) or of config.json (flattened).
    pub metadata: Metadata,
    /// In file order.
    pub tensors: Vec<Tensor>,
    /// A short description such as `GGUF v3`, for people.
    pub format: String,
    /// Bytes of all the files behind it.
    pub file_bytes: u64,
}

impl Checkpoint {
    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|t| t.name == name)
    }
}

/// How a file's bytes are brought in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Map the file: nothing is read until it is used. A file truncated while mapped raises SIGBUS.
    #[default]
    Map,
    /// Read it whole into memory, for files that may change under us (network shares).
    Read,
}

/// Open a GGUF file (or the first of a split set), or a folder with config.json and safetensors.
///
/// # Errors
/// Names the file, the tensor or key, what was found and what was expected.
pub fn open(path: &Path, access: Access) -> Result<Checkpoint> {
    if path.is_dir() {
        return safetensors::open(path, access);
    }
    gguf::open(path, access)
}
