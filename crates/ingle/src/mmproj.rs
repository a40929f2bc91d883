//! The file that holds the tower of images of a GGUF model: the one that a flag names, or the one beside the model whose name says
//! that it is its own.

use std::path::{Path, PathBuf};

use anyhow::Context;
use weights::{Access, Checkpoint, Naming};

/// What is put before the name of a model's tower where one is written.
pub const PREFIX: &str = "mmproj-";

/// Types that end names of models and of towers, in lower case; of several towers, the first of these counts.
const TYPES: [&str; 4] = ["f16", "bf16", "f32", "q8_0"];

/// The checkpoint with its tower: of `named`, or else of a file beside it.
pub fn attach(
    path: &Path,
    checkpoint: Checkpoint,
    named: Option<&Path>,
    access: Access,
) -> anyhow::Result<Checkpoint> {
    let beside = || match checkpoint.naming {
        Naming::Gguf => beside(path),
        _ => None,
    };
    let Some(tower) = named.map(Path::to_owned).or_else(beside) else { return Ok(checkpoint) };
    let opened = formats::open(&tower, access)?;
    match (model::with_mmproj(checkpoint.clone(), &opened), named) {
        (Ok(both), _) => Ok(both),
        (Err(error), Some(_)) => Err(error).with_context(|| format!("--mmproj {}", tower.display())),
        // Nobody asked for it: the text model runs without.
        (Err(error), None) => {
            eprintln!("note: without images: {}: {error}", tower.display());
            Ok(checkpoint)
        }
    }
}

/// The tower beside a model: `mmproj` in its name, and the model's name without its type. Where all models of the folder are one in
/// several types, `mmproj` alone will do.
fn beside(model: &Path) -> Option<PathBuf> {
    let names: Vec<String> = std::fs::read_dir(model.parent()?)
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.to_lowercase().ends_with(".gguf"))
        .collect();
    let own = stem(model.file_name()?.to_str()?);
    let (towers, models): (Vec<&String>, Vec<&String>) = names.iter().partition(|name| is_tower(name));
    let alone = models.iter().all(|name| stem(name) == own);
    let fits = |name: &&&String| {
        let rest = stem(name).replace("mmproj", "");
        let rest = rest.trim_matches(['-', '_', '.']);
        rest == own || alone && (rest.is_empty() || rest == "model")
    };
    let rank = |name: &&String| {
        let name = name.to_lowercase();
        let of_type = |kind: &&str| name.strip_suffix(".gguf").is_some_and(|name| name.ends_with(*kind));
        // `bf16` ends with `f16`.
        let at = TYPES.iter().rposition(of_type);
        (at.unwrap_or(TYPES.len()), name.clone())
    };
    let mut fitting: Vec<&String> = towers.iter().filter(fits).copied().collect();
    fitting.sort_by_key(|name| rank(name));
    fitting.first().map(|name| model.with_file_name(name))
}

fn is_tower(name: &str) -> bool {
    name.to_lowercase().contains("mmproj")
}

/// A file's name in lower case, without `.gguf`, the number of a part and the type of its weights.
fn stem(name: &str) -> String {
    let lower = name.to_lowercase();
    let mut rest = lower.strip_suffix(".gguf").unwrap_or(&lower);
    if let Some((before, _)) = rest.split_once("-of-")
        && let Some((before, _)) = before.rsplit_once('-')
    {
        rest = before;
    }
    let is_type = |part: &str| {
        TYPES.contains(&part) || part == "ud" || part == "mxfp4" || {
            let digits = part.strip_prefix("iq").or(part.strip_prefix("tq")).or(part.strip_prefix('q'));
            digits.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        }
    };
    while let Some((before, part)) = rest.rsplit_once(['-', '.']) {
        if !is_type(part) {
            break;
        }
        rest = before;
    }
    if is_type(rest) { String::new() } else { rest.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_whose_tower_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let found = |files: &[&str], model: &str| {
            let dir = tempfile::tempdir_in(folder.path()).unwrap();
            files.iter().chain([&model]).for_each(|file| std::fs::write(dir.path().join(file), "").unwrap());
            let tower = beside(&dir.path().join(model));
            tower.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        };
        let said = |name: &str| Some(name.to_owned());
        let gemma = "gemma-3-4b-it-Q4_K_M.gguf";
        assert_eq!(found(&["mmproj-model-f16.gguf"], gemma), said("mmproj-model-f16.gguf"));
        let several = ["mmproj-F32.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf"];
        assert_eq!(found(&several, gemma), said("mmproj-F16.gguf"));
        assert_eq!(found(&["gemma-3-4b-it-Q8_0.gguf", "mmproj-F16.gguf"], gemma), said("mmproj-F16.gguf"));
        // A folder of many models: only the name will do.
        assert_eq!(found(&["SmolVLM-Q8_0.gguf", "mmproj-F16.gguf"], gemma), None);
        let both = ["SmolVLM-Q8_0.gguf", "mmproj-SmolVLM-f16.gguf", "mmproj-gemma-3-4b-it-f16.gguf"];
        assert_eq!(found(&both, gemma), said("mmproj-gemma-3-4b-it-f16.gguf"));
        assert_eq!(found(&both, "SmolVLM-Q4_0.gguf"), said("mmproj-SmolVLM-f16.gguf"));
        assert_eq!(found(&["gemma-3-4b-it-mmproj-f16.gguf"], gemma), said("gemma-3-4b-it-mmproj-f16.gguf"));
        assert_eq!(found(&["other.gguf"], gemma), None);
        assert_eq!(found(&["mmproj-a-f16.gguf"], "a-Q4_0-00001-of-00002.gguf"), said("mmproj-a-f16.gguf"));
    }
}
