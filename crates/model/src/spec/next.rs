//! The layer after the last, which predicts one token more (multi-token prediction).

use device::Plan;
use weights::Checkpoint;

use super::{LayerSpec, ModelSpec};
use crate::build;
use crate::error::{Error, Result};
use crate::names::{NEXT_PREFIX, TensorRole};
use crate::tensors::Tensors;

/// That layer, if the checkpoint has it: it is made as the last of the model's own that attends and does nothing else. Of
/// several, the first.
pub(super) fn read(spec: &ModelSpec, tensors: &Tensors<'_>, n_next: usize) -> Option<Box<LayerSpec>> {
    let last = spec.layers.iter().rfind(|layer| layer.attends && layer.recurrent.is_none())?;
    let is_there = n_next > 0 && tensors.has_in(TensorRole::NextProjection, spec.layers.len());
    is_there.then(|| Box::new(last.clone()))
}

/// Whether a tensor is of one of the layers after the last, which predict further tokens.
pub(super) fn is_beyond(name: &str, n_layers: usize, n_next: usize) -> bool {
    let of = |l: usize| [format!("blk.{l}."), format!("layers.{l}.")].iter().any(|part| name.contains(part));
    (n_layers..n_layers + n_next).any(of) || n_next > 0 && name.starts_with(NEXT_PREFIX)
}

impl ModelSpec {
    /// The same model with the layer that predicts one token more: its plans keep the states that this layer reads, and their
    /// cache has one more layer. `None`: there is no such layer.
    pub fn predicting(&self) -> Option<ModelSpec> {
        let mut spec = self.clone();
        spec.layers.push(*spec.next_layer.take()?);
        spec.n_next = 1;
        Some(spec)
    }

    /// The plan of the layer that predicts one token more, over the cache of [`Self::plan_for_context`]. A row is of a token, and
    /// of the state of the position before it, which [`Plan::kept`] of the model's own plan holds for every row. It stands at that
    /// position. Its logits are of the token after. What it keeps takes the place of the next state where it guesses further.
    ///
    /// # Errors
    /// This is not what [`Self::predicting`] gave, or a tensor is missing.
    pub fn next_plan(&self, checkpoint: &Checkpoint, n_ctx: usize) -> Result<Plan> {
        if self.n_next == 0 {
            return Err(Error::NoNextLayer { family: self.family.title });
        }
        let mut tensors = Tensors::new(checkpoint, self.family);
        tensors.names_next(self.n_layers());
        // States lie where the model's own plan has them, though this layer has none.
        let is_recurrent = self.layers.iter().any(|layer| layer.recurrent.is_some());
        let states = match is_recurrent {
            true => {
                let mut names = Tensors::new(checkpoint, self.family);
                names.without_values();
                build::build(self, &mut names, n_ctx)?.kv.states
            }
            false => Vec::new(),
        };
        build::build_next(self, &mut tensors, n_ctx, states)
    }

    /// The layers of the model itself.
    pub fn main_layers(&self) -> &[LayerSpec] {
        self.layers.get(..self.n_layers()).unwrap_or_default()
    }

    /// Number of layers of the model itself.
    pub fn n_layers(&self) -> usize {
        self.layers.len() - self.n_next
    }
}
