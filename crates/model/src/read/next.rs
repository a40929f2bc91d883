//! The layer for multi-token prediction, which follows the last layer.

use crate::names::{NEXT_PREFIX, TensorRole};
use crate::spec::{LayerSpec, ModelSpec};
use crate::tensors::Tensors;

/// The layer for multi-token prediction, if the checkpoint has it; of several, the first. It has
/// the numbers of the model's last layer with attention alone.
pub(super) fn read(spec: &ModelSpec, tensors: &Tensors<'_>, n_next: usize) -> Option<Box<LayerSpec>> {
    let last = spec.layers.iter().rfind(|layer| layer.attends && layer.recurrent.is_none())?;
    let is_there = n_next > 0 && tensors.has_in(TensorRole::NextProjection, spec.layers.len());
    is_there.then(|| Box::new(last.clone()))
}

/// True if a tensor belongs to a layer for multi-token prediction.
pub(super) fn is_beyond(name: &str, n_layers: usize, n_next: usize) -> bool {
    let of = |l: usize| [format!("blk.{l}."), format!("layers.{l}.")].iter().any(|part| name.contains(part));
    (n_layers..n_layers + n_next).any(of) || n_next > 0 && name.starts_with(NEXT_PREFIX)
}
