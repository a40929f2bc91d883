//! What is converted.

use crate::{BlockType, Checkpoint, Metadata, Naming, Tensor};

/// Why a [`Source`] gives no tensor.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// There are not as many.
    #[error("tensor number {i} is wanted, but there are only {n_tensors}")]
    NoTensor {
        /// Counted from 0.
        i: usize,
        /// How many there are.
        n_tensors: usize,
    },
    /// It cannot be made.
    #[error(transparent)]
    Made(Box<dyn std::error::Error + Send + Sync>),
}

/// A checkpoint, or something that makes the tensors of one. They are asked for one at a time, in any order, so that
/// tensors that have to be made are never in memory all at once.
pub trait Source {
    /// The convention of the names.
    fn naming(&self) -> Naming;

    /// Keys and values.
    fn metadata(&self) -> &Metadata;

    /// What it comes from, for people: `GGUF v3`.
    fn format(&self) -> &str;

    /// All tensors, by what is known of them before they are made.
    fn declarations(&self) -> Vec<Declaration<'_>>;

    /// Tensor `i` of [`Self::declarations`].
    ///
    /// # Errors
    /// There are not as many, or it cannot be made.
    fn tensor(&self, i: usize) -> Result<Tensor, SourceError>;
}

/// A tensor without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declaration<'a> {
    /// Its name.
    pub name: &'a str,
    /// Outermost dimension first.
    pub shape: &'a [usize],
    /// How its values are stored.
    pub block: BlockType,
}

impl Declaration<'_> {
    /// Number of values in the last dimension.
    pub fn n_cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Product of all dimensions but the last.
    pub fn n_rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }
}

impl Source for Checkpoint {
    fn naming(&self) -> Naming {
        self.naming
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn format(&self) -> &str {
        &self.format
    }

    fn declarations(&self) -> Vec<Declaration<'_>> {
        self.tensors.iter().map(|t| Declaration { name: &t.name, shape: &t.shape, block: t.block }).collect()
    }

    fn tensor(&self, i: usize) -> Result<Tensor, SourceError> {
        self.tensors.get(i).cloned().ok_or(SourceError::NoTensor { i, n_tensors: self.tensors.len() })
    }
}
