//! The image encoder of a GGUF model (its mmproj file): the file of a flag, or the one in the
//! model's folder with a matching name.

use std::path::Path;

use anyhow::Context;
use weights::{Access, Checkpoint, Naming};

use crate::tell::tell;

/// Prefix of the name of a written image encoder.
pub const PREFIX: &str = "mmproj-";

/// The checkpoint with its image encoder, from the file `named` or from the model's folder.
pub fn attach(
    path: &Path,
    checkpoint: Checkpoint,
    named: Option<&Path>,
    access: Access,
) -> anyhow::Result<Checkpoint> {
    let beside = || (checkpoint.naming == Naming::Gguf).then(|| hub::tower_beside(path)).flatten();
    let Some(tower) = named.map(Path::to_owned).or_else(beside) else { return Ok(checkpoint) };
    let opened = formats::open(&tower, access)?;
    match (model::with_mmproj(checkpoint.clone(), &opened), named) {
        (Ok(both), _) => Ok(both),
        (Err(error), Some(_)) => Err(error).with_context(|| format!("--mmproj {}", tower.display())),
        // The user did not ask for this file, so the text model runs without it.
        (Err(error), None) => {
            tell!("note: without images: {}: {error}", tower.display());
            Ok(checkpoint)
        }
    }
}
