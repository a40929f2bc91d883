//! The image encoder of a GGUF model (its mmproj file): the file of the options, or the one in the
//! model's folder with a matching name.

use std::path::Path;

use weights::{Checkpoint, Naming};

use crate::error::{Error, Result};
use crate::note::Note;
use crate::options::LoadOptions;

/// The checkpoint with its image encoder, if it has one. A note is added if a file of the folder is
/// not the model's.
pub fn attach(
    path: &Path,
    checkpoint: Checkpoint,
    options: &LoadOptions,
    notes: &mut Vec<Note>,
) -> Result<Checkpoint> {
    let named = options.mmproj.clone();
    let is_named = named.is_some();
    let beside = || (checkpoint.naming == Naming::Gguf).then(|| hub::tower_beside(path)).flatten();
    let Some(file) = named.or_else(beside) else { return Ok(checkpoint) };
    let opened = formats::open(&file, options.access)?;
    match model::with_mmproj(checkpoint.clone(), &opened) {
        Ok(both) => Ok(both),
        Err(error) if is_named => Err(Error::Mmproj { file, source: Box::new(error) }),
        // The user did not ask for this file, so the text model runs without it.
        Err(error) => {
            notes.push(Note::WithoutImages { file, reason: error.to_string() });
            Ok(checkpoint)
        }
    }
}
