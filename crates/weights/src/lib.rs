//! The data that every reader of weight files produces and every device consumes: a [`Checkpoint`]
//! of neutral [`Metadata`] and named [`Tensor`]s. Values are stored in blocks of a [`BlockType`],
//! each with its scalar [`codec`].
//!
//! This crate knows no file formats, model families or devices.
#![deny(missing_docs)]

mod block;
mod bytes;
mod error;
mod metadata;
mod planes;
mod source;

pub mod codec;
pub mod keys;

pub use block::{Affine, BlockType, ScaleType};
pub use bytes::{Bytes, Map};
pub use error::{Error, Result};
pub use metadata::{Array, Metadata, Value};
pub use planes::{PlaneSlices, Planes};
pub use source::{Declaration, Source, SourceError};

use std::ops::Range;

/// Naming convention of a checkpoint's metadata keys and tensor names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Naming {
    /// `llama.block_count`, `blk.0.attn_q.weight`.
    Gguf,
    /// `num_hidden_layers`, `model.layers.0.self_attn.q_proj.weight`. Nested JSON objects of
    /// config.json are flattened with dots: `rope_parameters.full_attention.rope_theta`.
    HuggingFace,
    /// BaseRT's names: config.json's keys, and tensors such as `layers.0.attn.qkv_proj.weight`.
    Base,
    /// `decoder/layer_0/self_attention/linear_0/weight`; metadata is config.json, flattened, and
    /// the scalar variables.
    CTranslate2,
    /// OpenAI's tensor names, `decoder.blocks.0.attn.query.weight`, and its hyperparameters,
    /// `n_audio_state`.
    WhisperCpp,
}

/// A tensor as it is stored in its file: row-major, with a contiguous last dimension, quantised in
/// blocks along it.
///
/// Readers guarantee four things. No dimension is 0; the number of values and of bytes fits a
/// `usize`; the last dimension is whole blocks; a scalar has the empty shape. They do not guarantee
/// the data's alignment, since a safetensors header may shift everything by a byte.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Name in the file.
    pub name: String,
    /// Dimensions, outermost first: a linear layer is `[n_out, n_in]`. (GGUF stores the reverse; it
    /// is reversed here.)
    pub shape: Vec<usize>,
    /// Storage type of the values.
    pub block: BlockType,
    /// Packed values, exactly `n_rows * row_bytes` bytes.
    pub data: Bytes,
    /// Scales and offsets, if `block` stores them apart; they fit the shape.
    pub planes: Planes,
}

impl Tensor {
    /// Number of values in the last dimension.
    pub fn n_cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Product of all dimensions except the last.
    pub fn n_rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// Bytes of one row of `n_cols` values.
    pub fn row_bytes(&self) -> usize {
        self.block.row_bytes(self.n_cols())
    }

    /// Bytes of the values and of the planes.
    pub fn n_bytes(&self) -> usize {
        self.data.len() + self.planes.n_bytes()
    }

    /// Bytes and planes of some rows, if the tensor has these rows. Nothing is copied.
    pub fn rows(&self, rows: Range<usize>) -> Option<(Bytes, Planes)> {
        let row = self.row_bytes();
        let data = self.data.slice(rows.start.checked_mul(row)?..rows.end.checked_mul(row)?)?;
        Some((data, self.planes.rows(self.block, self.n_cols(), rows)?))
    }

    /// Decodes all values.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.n_rows() * self.n_cols()];
        codec::dequantize_rows(self.block, self.n_cols(), &self.data, self.planes.as_slices(), &mut values);
        values
    }
}

/// Content of a weight file, or of a folder of them.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Convention of the names.
    pub naming: Naming,
    /// Keys and values of the header (GGUF) or of config.json (flattened).
    pub metadata: Metadata,
    /// Tensors in file order.
    pub tensors: Vec<Tensor>,
    /// Tensors that are not weights, in file order; a model that does not need them runs without
    /// them.
    pub left_out: Vec<LeftOut>,
    /// Short description for users, such as `GGUF v3`.
    pub format: String,
    /// Bytes of all files.
    pub file_bytes: u64,
}

/// A tensor of a file that has no weights: it has no values, or integers such as position ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Name in the file.
    pub name: String,
    /// Description of its content for users: `values of type I64`.
    pub what: String,
}

impl LeftOut {
    /// A tensor whose values have a type that no weights have.
    pub fn of_type(name: String, value_type: &str) -> LeftOut {
        LeftOut { name, what: format!("values of type {value_type}") }
    }

    /// A tensor without values.
    pub fn empty(name: String, shape: &[usize]) -> LeftOut {
        LeftOut { name, what: format!("no values (shape {shape:?})") }
    }
}

impl Checkpoint {
    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|t| t.name == name)
    }
}

/// Ways to load a file's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Map the file: pages are read on first use. If the file is truncated while it is mapped, the
    /// missing part reads as zeros ([`Map::check_whole`]).
    #[default]
    Map,
    /// Read the whole file into memory, for files that may change meanwhile (network shares).
    Read,
}
