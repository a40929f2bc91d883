//! What every reader of weight files gives and every device takes: a [`Checkpoint`] of neutral [`Metadata`] and named
//! [`Tensor`]s, whose values are stored in blocks of a [`BlockType`], each with its scalar [`codec`].
//!
//! What is absent here on purpose: file formats, model families, devices.
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

/// Which convention the metadata keys and tensor names of a checkpoint follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Naming {
    /// `llama.block_count`, `blk.0.attn_q.weight`.
    Gguf,
    /// `num_hidden_layers`, `model.layers.0.self_attn.q_proj.weight`. Nested JSON objects of config.json are
    /// flattened with dots: `rope_parameters.full_attention.rope_theta`.
    HuggingFace,
    /// BaseRT's own: config.json's keys, and tensors such as `layers.0.attn.qkv_proj.weight`.
    Base,
    /// `decoder/layer_0/self_attention/linear_0/weight`; metadata is config.json, flattened, and the scalar variables.
    CTranslate2,
    /// OpenAI's tensor names, `decoder.blocks.0.attn.query.weight`, and its hyperparameters, `n_audio_state`.
    WhisperCpp,
}

/// A tensor as it lies in its file: row-major, the last dimension contiguous, quantised in blocks along it.
///
/// The readers promise: no dimension is 0, the number of values and of bytes fits a `usize`, the last dimension is
/// whole blocks, and a scalar has the empty shape. The data's alignment is not promised: a safetensors header may shift
/// everything by a byte.
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
    /// Scales and offsets, if `block` keeps them apart; they fit the shape.
    pub planes: Planes,
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

    /// Bytes of the values and of what stands beside them.
    pub fn n_bytes(&self) -> usize {
        self.data.len() + self.planes.n_bytes()
    }

    /// The rows `rows` of `n_cols` values each: their bytes and planes, if the tensor has that many. Nothing is copied.
    pub fn rows(&self, rows: Range<usize>) -> Option<(Bytes, Planes)> {
        let row = self.row_bytes();
        let data = self.data.slice(rows.start.checked_mul(row)?..rows.end.checked_mul(row)?)?;
        Some((data, self.planes.rows(self.block, self.n_cols(), rows)?))
    }

    /// All values, decoded.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.n_rows() * self.n_cols()];
        codec::dequantize_rows(self.block, self.n_cols(), &self.data, self.planes.as_slices(), &mut values);
        values
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
    /// What no weights are, in file order: a model that does not ask for them runs without.
    pub left_out: Vec<LeftOut>,
    /// A short description such as `GGUF v3`, for people.
    pub format: String,
    /// Bytes of all its files.
    pub file_bytes: u64,
}

/// A tensor of a file that holds no weights: it has no values, or integers, such as the numbers of positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Its name in the file.
    pub name: String,
    /// What it holds, for people: `values of type I64`.
    pub what: String,
}

impl LeftOut {
    /// A tensor of values of a type that no weights have.
    pub fn of_type(name: String, value_type: &str) -> LeftOut {
        LeftOut { name, what: format!("values of type {value_type}") }
    }

    /// A tensor of no values.
    pub fn empty(name: String, shape: &[usize]) -> LeftOut {
        LeftOut { name, what: format!("no values (shape {shape:?})") }
    }
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
    /// Map the file: nothing is read until it is used. Of a file that is truncated while mapped, zeros are read
    /// ([`Map::check_whole`]).
    #[default]
    Map,
    /// Read it whole into memory, for files that may change under us (network shares).
    Read,
}
