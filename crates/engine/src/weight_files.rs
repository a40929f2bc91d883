//! The mapped files of a model, and whether they are still what was loaded.
//!
//! Programs read weights in them while they run, tokenizers the texts of tokens, also where a device has copied the weights.

use std::sync::Arc;

use weights::{Checkpoint, Map};

use crate::Result;

/// Files that are read where they lie; those that were read into memory are not among them.
#[derive(Clone, Debug, Default)]
pub struct WeightFiles {
    maps: Arc<[Arc<Map>]>,
}

impl WeightFiles {
    /// Those of a checkpoint.
    pub(crate) fn of(checkpoint: &Checkpoint) -> WeightFiles {
        let mut maps: Vec<Arc<Map>> = Vec::new();
        for tensor in &checkpoint.tensors {
            let planes = [&tensor.planes.scales, &tensor.planes.biases].into_iter().flatten();
            for (map, _) in planes.chain([&tensor.data]).map(|bytes| bytes.map()) {
                // Neighbours in a file are neighbours here: it is nearly always the last.
                if map.is_mapped() && !maps.iter().rev().any(|known| Arc::ptr_eq(known, map)) {
                    maps.push(map.clone());
                }
            }
        }
        WeightFiles { maps: maps.into() }
    }

    /// That nothing was found missing so far. Takes no time: for after each step, before its results are used.
    ///
    /// # Errors
    /// [`weights::Error::Changed`]: what was computed since the last call may be wrong, and so will be whatever follows.
    pub fn check_whole(&self) -> Result<()> {
        Ok(self.maps.iter().try_for_each(|map| map.check_whole())?)
    }

    /// That the files are those that were loaded, as far as the system says. Takes a microsecond for each.
    ///
    /// # Errors
    /// [`weights::Error::Changed`].
    pub fn check_unchanged(&self) -> Result<()> {
        Ok(self.maps.iter().try_for_each(|map| map.check_unchanged())?)
    }
}
