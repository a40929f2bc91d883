//! The file that holds the tower of images of a GGUF model: the one that a flag names, or the one beside the model whose name says
//! that it is its own.

use std::path::Path;

use anyhow::Context;
use weights::{Access, Checkpoint, Naming};

use crate::tell::tell;

/// What is put before the name of a model's tower where one is written.
pub const PREFIX: &str = "mmproj-";

/// The checkpoint with its tower: of `named`, or else of a file beside it.
pub fn attach(
    path: &Path,
    checkpoint: Checkpoint,
    named: Option<&Path>,
    access: Access,
) -> anyhow::Result<Checkpoint> {
    let beside = || match checkpoint.naming {
        Naming::Gguf => hub::tower_beside(path),
        _ => None,
    };
    let Some(tower) = named.map(Path::to_owned).or_else(beside) else { return Ok(checkpoint) };
    let opened = formats::open(&tower, access)?;
    match (model::with_mmproj(checkpoint.clone(), &opened), named) {
        (Ok(both), _) => Ok(both),
        (Err(error), Some(_)) => Err(error).with_context(|| format!("--mmproj {}", tower.display())),
        // Nobody asked for it: the text model runs without.
        (Err(error), None) => {
            tell!("note: without images: {}: {error}", tower.display());
            Ok(checkpoint)
        }
    }
}
