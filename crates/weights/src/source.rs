//! Sources of a conversion.

use crate::{BlockType, Checkpoint, Metadata, Naming, Tensor};

/// Reasons why a [`Source`] returns no tensor.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The source has fewer tensors.
    #[error("tensor number {i} is wanted, but there are only {n_tensors}")]
    NoTensor {
        /// Index of the tensor, from 0.
        i: usize,
        /// Number of tensors.
        n_tensors: usize,
    },
    /// The tensor cannot be made.
    #[error(transparent)]
    Made(Box<dyn std::error::Error + Send + Sync>),
}

/// A checkpoint, or a producer of a checkpoint's tensors. Tensors are requested one at a time, in
/// any order, so that produced tensors are never in memory all at once.
pub trait Source {
    /// Naming convention.
    fn naming(&self) -> Naming;

    /// Keys and values.
    fn metadata(&self) -> &Metadata;

    /// Short description of the origin for users: `GGUF v3`.
    fn format(&self) -> &str;

    /// Declarations of all tensors, which are known before the tensors are made.
    fn declarations(&self) -> Vec<Declaration<'_>>;

    /// Tensor `i` of [`Self::declarations`].
    ///
    /// # Errors
    /// There is no such tensor, or it cannot be made.
    fn tensor(&self, i: usize) -> Result<Tensor, SourceError>;
}

/// A tensor without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declaration<'a> {
    /// Name of the tensor.
    pub name: &'a str,
    /// Dimensions, outermost first.
    pub shape: &'a [usize],
    /// Storage type of the values.
    pub block: BlockType,
}

impl Declaration<'_> {
    /// Number of values in the last dimension.
    pub fn n_cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Product of all dimensions except the last.
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
