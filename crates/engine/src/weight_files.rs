//! The mapped files of a model, and checks that they have not changed since it was loaded.
//!
//! Running programs read weights from them. Tokenizers read the texts of tokens from them, even if
//! a device has copied the weights.

use std::sync::Arc;

use weights::{Checkpoint, Map};

use crate::Result;

/// Files that are used in place, by a map. Files that were read into memory are not included.
#[derive(Clone, Debug, Default)]
pub struct WeightFiles {
    maps: Arc<[Arc<Map>]>,
}

impl WeightFiles {
    /// The mapped files of a checkpoint.
    pub(crate) fn of(checkpoint: &Checkpoint) -> WeightFiles {
        let mut maps: Vec<Arc<Map>> = Vec::new();
        for tensor in &checkpoint.tensors {
            let planes = [&tensor.planes.scales, &tensor.planes.biases].into_iter().flatten();
            for (map, _) in planes.chain([&tensor.data]).map(|bytes| bytes.map()) {
                // Tensors that are neighbours in a file are neighbours here, so the last map is
                // nearly always the one.
                if map.is_mapped() && !maps.iter().rev().any(|known| Arc::ptr_eq(known, map)) {
                    maps.push(map.clone());
                }
            }
        }
        WeightFiles { maps: maps.into() }
    }

    /// Check that no read found the file truncated so far. Costs nothing, so it can follow each
    /// step, before its results are used.
    ///
    /// # Errors
    /// [`weights::Error::Changed`]: results since the last call may be wrong, and so will be later
    /// ones.
    pub fn check_whole(&self) -> Result<()> {
        Ok(self.maps.iter().try_for_each(|map| map.check_whole())?)
    }

    /// Check that length and modification time of the files are those at load. Takes a microsecond
    /// for each file.
    ///
    /// # Errors
    /// [`weights::Error::Changed`].
    pub fn check_unchanged(&self) -> Result<()> {
        Ok(self.maps.iter().try_for_each(|map| map.check_unchanged())?)
    }
}
