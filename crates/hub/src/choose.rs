//! Selection of the files of a repository that make up a model.

use crate::error::{Error, Result};
use crate::names;
use crate::reference::HubRef;
use crate::towers;

/// Files that accompany safetensors: the architecture, the tokenizer in any of its forms, the chat
/// template.
const COMPANIONS: [&str; 12] = [
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "chat_template.jinja",
    "chat_template.json",
];
const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Maximum number of parts of a split file.
const PARTS_MAX: u32 = 1000;

/// The files of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Want {
    /// A file, or the parts of a split file in order. A loader opens the first.
    Files(Vec<String>),
    /// A folder with these files. The weights are last, so that they are present only if all others
    /// are.
    Folder {
        /// The files known so far.
        files: Vec<String>,
        /// The index that names the remaining files, when the weights are split.
        index: Option<String>,
    },
}

/// Part `index` of `count` of a split file, and the name around the two numbers.
pub(crate) struct SplitPart<'a> {
    /// The name up to `-00001-of-…`.
    pub stem: &'a str,
    /// The part's number, from 1.
    pub index: u32,
    /// Number of parts.
    pub count: u32,
}

/// Parses `stem-00002-of-00005.gguf`, a name of a split GGUF file.
pub(crate) fn split_part(file: &str) -> Option<SplitPart<'_>> {
    let (rest, count) = strip_gguf(file)?.rsplit_once("-of-")?;
    let (stem, index) = rest.rsplit_once('-')?;
    let number = |digits: &str| {
        (digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit()))
            .then(|| digits.parse::<u32>().ok())?
    };
    let (index, count) = (number(index)?, number(count)?);
    (1..=count).contains(&index).then_some(SplitPart { stem, index, count })
}

fn strip_gguf(file: &str) -> Option<&str> {
    let cut = file.len().checked_sub(5)?;
    let (stem, end) = file.split_at_checked(cut)?;
    end.eq_ignore_ascii_case(".gguf").then_some(stem)
}

/// The files to fetch for a named file: the file itself, or all parts of its split file.
///
/// `None` for `config.json`, which means its folder; the files of the folder need a listing.
pub(crate) fn choose_named(file: &str) -> Option<Result<Want>> {
    if file == CONFIG {
        return None;
    }
    let Some(part) = split_part(file) else {
        return Some(Ok(Want::Files(vec![file.to_string()])));
    };
    if part.count > PARTS_MAX {
        let reason = format!("it has {} parts, at most {PARTS_MAX} are fetched", part.count);
        return Some(Err(Error::BadReference { reference: file.to_string(), reason }));
    }
    // The extension of the name, which may be in upper case.
    let end = file.get(file.len().saturating_sub(5)..).unwrap_or(".gguf");
    let parts = (1..=part.count).map(|i| format!("{}-{i:05}-of-{:05}{end}", part.stem, part.count)).collect();
    Some(Ok(Want::Files(parts)))
}

/// Chooses the files of a reference from all files of its repository: the GGUF model of its
/// quantisation, the only GGUF model, else the safetensors.
///
/// # Errors
/// [`Error::Ambiguous`] if several GGUF models fit. [`Error::NotFound`] if the named file, a part
/// of it, or a model of the quantisation does not exist. [`Error::NothingToLoad`] if there is no
/// model.
pub(crate) fn choose(place: &HubRef, files: &[String]) -> Result<Want> {
    let repo = &place.repo;
    let Some(quant) = &place.quant else {
        return choose_file(repo, files, place.file.as_deref());
    };
    let firsts = models_of(files);
    let fitting: Vec<String> = firsts.iter().filter(|file| names::has_quant(file, quant)).cloned().collect();
    match fitting.as_slice() {
        [only] => choose_file(repo, files, Some(only)),
        [] => Err(Error::NotFound { what: format!("{quant} file in {repo}"), choices: firsts }),
        _ => Err(Error::Ambiguous { repo: repo.clone(), choices: fitting }),
    }
}

/// Like [`choose`], for a reference without a quantisation.
pub(crate) fn choose_file(repo: &str, files: &[String], named: Option<&str>) -> Result<Want> {
    let has = |name: &str| files.iter().any(|file| file == name);
    if let Some(want) = named.and_then(choose_named) {
        let want = want?;
        if let Want::Files(parts) = &want
            && let Some(missing) = parts.iter().find(|part| !has(part))
        {
            return Err(Error::NotFound { what: format!("{missing} in {repo}"), choices: weights_of(files) });
        }
        return Ok(want);
    }
    if named.is_none() {
        let firsts = models_of(files);
        match firsts.as_slice() {
            [] => {}
            [only] => return choose_file(repo, files, Some(only)),
            _ => return Err(Error::Ambiguous { repo: repo.to_string(), choices: firsts }),
        }
    }
    choose_folder(repo, files)
}

/// The GGUF models among `files`; a split model is its first part. Image encoders (`mmproj`) are
/// not models.
pub(crate) fn models_of(files: &[String]) -> Vec<String> {
    let mut models: Vec<String> = files
        .iter()
        .filter(|file| strip_gguf(file).is_some())
        .filter(|file| !towers::is_tower(file))
        .filter(|file| split_part(file).is_none_or(|part| part.index == 1))
        .cloned()
        .collect();
    models.sort_unstable();
    models
}

fn weights_of(files: &[String]) -> Vec<String> {
    let mut models = models_of(files);
    models.extend(files.iter().filter(|file| file.ends_with(".safetensors")).cloned());
    models
}

fn choose_folder(repo: &str, files: &[String]) -> Result<Want> {
    let has = |name: &str| files.iter().any(|file| file == name);
    let mut chosen: Vec<String> =
        COMPANIONS.iter().filter(|name| has(name)).map(|name| name.to_string()).collect();
    let index = has(INDEX).then(|| INDEX.to_string());
    let mut weights: Vec<String> = if index.is_some() {
        Vec::new()
    } else if has(WEIGHTS) {
        vec![WEIGHTS.to_string()]
    } else {
        // `consolidated*` is a second copy of the weights, under the publisher's own tensor names.
        files
            .iter()
            .filter(|file| {
                file.ends_with(".safetensors") && !file.contains('/') && !file.starts_with("consolidated")
            })
            .cloned()
            .collect()
    };
    if !has(CONFIG) || (weights.is_empty() && index.is_none()) {
        let mut found = files.to_vec();
        found.sort_unstable();
        return Err(Error::NothingToLoad { repo: repo.to_string(), found });
    }
    weights.sort_unstable();
    chosen.append(&mut weights);
    Ok(Want::Folder { files: chosen, index })
}

/// The weight files in a safetensors index, each once, in order.
///
/// # Errors
/// [`Error::BadAnswer`] if the index is invalid, [`Error::UnsafeName`] if a name leaves the folder.
pub(crate) fn shards_of(index: &[u8], origin: &str) -> Result<Vec<String>> {
    let bad = |reason: String| Error::BadAnswer { url: origin.to_string(), reason };
    let json: serde_json::Value =
        serde_json::from_slice(index).map_err(|e| bad(format!("not a safetensors index: {e}")))?;
    let map = json
        .get("weight_map")
        .and_then(serde_json::Value::as_object)
        .ok_or_else(|| bad("not a safetensors index: there is no weight_map".into()))?;
    let mut shards = std::collections::BTreeSet::new();
    for (tensor, file) in map {
        let file = file
            .as_str()
            .ok_or_else(|| bad(format!("weight_map gives no file for {}", names::printable(tensor))))?;
        if !names::is_relative(file) || !file.ends_with(".safetensors") {
            let (name, origin) = (names::printable(file), origin.to_string());
            return Err(Error::UnsafeName { what: "the weight file", name, origin });
        }
        shards.insert(file.to_string());
    }
    if shards.is_empty() || shards.len() > PARTS_MAX as usize {
        return Err(bad(format!("weight_map names {} files, expected 1 to {PARTS_MAX}", shards.len())));
    }
    Ok(shards.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn a_single_gguf_is_preferred() {
        let all = files(&["README.md", "config.json", "model.safetensors", "m.Q4_0.gguf", "mmproj-m.gguf"]);
        assert_eq!(choose_file("o/r", &all, None).unwrap(), Want::Files(files(&["m.Q4_0.gguf"])));
    }

    #[test]
    fn several_ggufs_are_listed_a_split_one_once() {
        let all = files(&["b-00001-of-00002.gguf", "b-00002-of-00002.gguf", "a.GGUF", "x/c.gguf"]);
        match choose_file("o/r", &all, None).unwrap_err() {
            Error::Ambiguous { choices, .. } => {
                assert_eq!(choices, ["a.GGUF", "b-00001-of-00002.gguf", "x/c.gguf"])
            }
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_quantisation_chooses_among_several_ggufs() {
        let all =
            files(&["m-Q4_K_M.gguf", "m-Q8_0.gguf", "big/m-F16-00001-of-00002.gguf", "mmproj-m-F16.gguf"]);
        let of = |quant: &str| {
            let place = HubRef { repo: "o/r".into(), file: None, quant: Some(quant.into()), revision: None };
            choose(&place, &all)
        };
        assert_eq!(of("q4_k_m").unwrap(), Want::Files(files(&["m-Q4_K_M.gguf"])));
        let error = of("Q2_K").unwrap_err().to_string();
        assert!(error.contains("Q2_K") && error.contains("m-Q8_0.gguf"), "{error}");
        assert!(of("F16").unwrap_err().to_string().contains("00002-of-00002"), "a part is missing");
    }

    #[test]
    fn a_split_gguf_is_fetched_whole_whichever_part_is_named() {
        let all = files(&["q/b-00001-of-00003.gguf", "q/b-00002-of-00003.gguf", "q/b-00003-of-00003.gguf"]);
        for named in [None, Some("q/b-00002-of-00003.gguf")] {
            assert_eq!(choose_file("o/r", &all, named).unwrap(), Want::Files(all.clone()));
        }
        let error = choose_file("o/r", &all[..2], None).unwrap_err().to_string();
        assert!(error.contains("b-00003-of-00003.gguf"), "{error}");
    }

    #[test]
    fn names_that_are_not_split_files() {
        for name in [
            "a-00000-of-00002.gguf",
            "a-00003-of-00002.gguf",
            "a-1-of-2.gguf",
            "a-of-00002.gguf",
            "ü.gguf",
            "gguf",
        ] {
            assert!(split_part(name).is_none(), "{name}");
        }
        assert!(matches!(choose_named("a-00001-of-99999.gguf"), Some(Err(Error::BadReference { .. }))));
    }

    #[test]
    fn safetensors_come_with_their_companion_files_weights_last() {
        let all = files(&[
            "model.safetensors",
            "tokenizer.json",
            "config.json",
            "pytorch_model.bin",
            "onnx/model.onnx",
        ]);
        let expected = files(&["config.json", "tokenizer.json", "model.safetensors"]);
        for named in [None, Some("config.json")] {
            assert_eq!(
                choose_file("o/r", &all, named).unwrap(),
                Want::Folder { files: expected.clone(), index: None }
            );
        }
    }

    #[test]
    fn nothing_to_load_says_what_is_there() {
        let error =
            choose_file("o/r", &files(&["pytorch_model.bin", "config.json"]), None).unwrap_err().to_string();
        assert!(error.contains("config.json, pytorch_model.bin"), "{error}");
        assert!(choose_file("o/r", &[], None).unwrap_err().to_string().contains("empty"));
    }

    #[test]
    fn hostile_indexes() {
        let shards = |text: &str| shards_of(text.as_bytes(), "index");
        let good = r#"{"weight_map":{"a":"m-2.safetensors","b":"m-1.safetensors","c":"m-2.safetensors"}}"#;
        assert_eq!(shards(good).unwrap(), ["m-1.safetensors", "m-2.safetensors"]);
        let outside = shards(r#"{"weight_map":{"a":"../../m.safetensors"}}"#).unwrap_err();
        assert!(matches!(outside, Error::UnsafeName { .. }), "{outside}");
        for bad in
            ["", "[]", "{}", r#"{"weight_map":{}}"#, r#"{"weight_map":{"a":1}}"#, r#"{"weight_map":[]}"#]
        {
            assert!(matches!(shards(bad), Err(Error::BadAnswer { .. })), "{bad}");
        }
    }
}
