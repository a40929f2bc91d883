//! Image encoders of GGUF models (llama.cpp's `mmproj` files), found by their names. The code calls
//! them towers.

use std::path::{Path, PathBuf};

use crate::files;

/// Types at the end of file names, in lower case. Of several towers, that with the first of these
/// types is chosen.
const TYPES: [&str; 4] = ["f16", "bf16", "f32", "q8_0"];

/// True if a GGUF file is a tower and not a model.
pub(crate) fn is_tower(file: &str) -> bool {
    name_of(file).to_lowercase().contains("mmproj")
}

/// The tower of a model among `files`, paths with `/`. Its name has `mmproj` and the model's name
/// without its type. If all models are one model in several types, `mmproj` alone is enough. The
/// tower is in the model's folder, or else in the outermost folder.
pub(crate) fn tower_of<'a>(model: &str, files: &'a [String]) -> Option<&'a String> {
    let is_gguf = |file: &&String| file.to_lowercase().ends_with(".gguf");
    let (towers, models): (Vec<&String>, Vec<&String>) =
        files.iter().filter(is_gguf).partition(|file| is_tower(file));
    let own = stem(model);
    let alone = models.iter().all(|file| stem(file) == own);
    let fits = |file: &str| {
        let rest = stem(file).replace("mmproj", "");
        let rest = rest.trim_matches(['-', '_', '.']);
        rest == own || alone && (rest.is_empty() || rest == "model")
    };
    let rank = |file: &str| {
        let name = file.to_lowercase();
        let of_type = |kind: &&str| name.strip_suffix(".gguf").is_some_and(|name| name.ends_with(*kind));
        // `bf16` ends with `f16`.
        let at = TYPES.iter().rposition(of_type);
        (at.unwrap_or(TYPES.len()), name)
    };
    let best = |folder: &str| {
        let here = towers.iter().copied().filter(|file| folder_of(file) == folder && fits(file));
        here.min_by_key(|file| rank(file))
    };
    best(folder_of(model)).or_else(|| best(""))
}

/// The tower of a model on this machine, in the model's folder. For a model of the hub's cache it
/// may also be in the repository's outermost folder.
pub fn tower_beside(model: &Path) -> Option<PathBuf> {
    let folder = model.parent()?;
    let name = model.file_name()?.to_str()?;
    let entries = std::fs::read_dir(folder).ok()?;
    let names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    if let Some(tower) = tower_of(name, &names) {
        return Some(folder.join(tower));
    }
    let snapshot =
        folder.ancestors().find(|a| a.parent().is_some_and(|above| above.ends_with("snapshots")))?;
    let inside = model.strip_prefix(snapshot).ok()?.to_str()?.replace('\\', "/");
    let tower = tower_of(&inside, &files::files_in(snapshot)).map(|tower| files::join(snapshot, tower));
    tower.filter(|_| folder != snapshot)
}

fn name_of(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or_default()
}

/// The folder of a file; empty for the outermost folder.
fn folder_of(file: &str) -> &str {
    file.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// A file's name in lower case, without `.gguf`, the number of a part and the type of its weights.
fn stem(file: &str) -> String {
    let lower = name_of(file).to_lowercase();
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

    /// The tower of `model` in a folder with `files` and the model.
    fn found(files: &[&str], model: &str) -> Option<String> {
        let files: Vec<String> = files.iter().chain([&model]).map(|file| file.to_string()).collect();
        tower_of(model, &files).cloned()
    }

    fn said(name: &str) -> Option<String> {
        Some(name.to_owned())
    }

    const GEMMA: &str = "gemma-3-4b-it-Q4_K_M.gguf";

    #[test]
    fn names_tell_whose_tower_it_is() {
        assert_eq!(found(&["mmproj-model-f16.gguf"], GEMMA), said("mmproj-model-f16.gguf"));
        let several = ["mmproj-F32.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf"];
        assert_eq!(found(&several, GEMMA), said("mmproj-F16.gguf"));
        assert_eq!(found(&["gemma-3-4b-it-Q8_0.gguf", "mmproj-F16.gguf"], GEMMA), said("mmproj-F16.gguf"));
        // In a folder of several models the tower must have the model's name.
        assert_eq!(found(&["SmolVLM-Q8_0.gguf", "mmproj-F16.gguf"], GEMMA), None);
        let both = ["SmolVLM-Q8_0.gguf", "mmproj-SmolVLM-f16.gguf", "mmproj-gemma-3-4b-it-f16.gguf"];
        assert_eq!(found(&both, GEMMA), said("mmproj-gemma-3-4b-it-f16.gguf"));
        assert_eq!(found(&both, "SmolVLM-Q4_0.gguf"), said("mmproj-SmolVLM-f16.gguf"));
        assert_eq!(found(&["gemma-3-4b-it-mmproj-f16.gguf"], GEMMA), said("gemma-3-4b-it-mmproj-f16.gguf"));
        assert_eq!(found(&["other.gguf", "mmproj.txt"], GEMMA), None);
        assert_eq!(found(&["mmproj-a-f16.gguf"], "a-Q4_0-00001-of-00002.gguf"), said("mmproj-a-f16.gguf"));
    }

    #[test]
    fn the_models_folder_goes_before_the_outermost() {
        let model = "BF16/m-BF16-00001-of-00002.gguf";
        assert_eq!(found(&["mmproj-F16.gguf", "m-Q8_0.gguf"], model), said("mmproj-F16.gguf"));
        assert_eq!(found(&["mmproj-F16.gguf", "BF16/mmproj-F32.gguf"], model), said("BF16/mmproj-F32.gguf"));
        assert_eq!(found(&["other/mmproj-F16.gguf"], model), None);
    }

    #[test]
    fn files_on_this_machine() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str| {
            let path = files::join(folder.path(), file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            path
        };
        let (model, tower) = (write(GEMMA), write("mmproj-F16.gguf"));
        assert_eq!(tower_beside(&model), Some(tower));
        // The folder above is searched only inside a snapshot of a repository.
        let (model, tower) =
            (write("snapshots/abc/Q8_0/m-Q8_0.gguf"), write("snapshots/abc/mmproj-F16.gguf"));
        assert_eq!(tower_beside(&model), Some(tower));
        write("plain/mmproj-F16.gguf");
        assert_eq!(tower_beside(&write("plain/Q8_0/m-Q8_0.gguf")), None);
        assert_eq!(tower_beside(&folder.path().join("none/m.gguf")), None);
    }
}
