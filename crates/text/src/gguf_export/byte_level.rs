//! Export of BPE over bytes: the unchanged tokens and merges, and the name of the pre-tokenizer.

use serde_json::Value as Json;

use super::parts::{ModelKeys, flag, kind, members, merge_list, no_affixes, no_words, tokens};
use crate::Result;
use crate::hugging_face::Parts;
use crate::pre_tokenizer::Cut;
use crate::presets::Preset;

/// The alternative for runs of spaces in most patterns.
const SPACES: &str = r"|\s+(?!\S)|\s+";

pub(super) fn export(json: &Json, parts: &Parts) -> Result<ModelKeys> {
    no_affixes(json)?;
    if let Some(other) = members(json, "normalizer", "normalizers").into_iter().find(|n| kind(n) != "NFC") {
        return Err(no_words("normalizer", other, "none, or NFC, which readers skip"));
    }
    let cuts = cuts(json)?;
    let whole_words = flag(json.get("model").unwrap_or(&Json::Null), "ignore_merges", false);
    let pre = Preset::with_cuts(&cuts, whole_words).ok_or_else(|| {
        let found = json.get("pre_tokenizer").unwrap_or(&Json::Null);
        let words = if whole_words { ", whole words first" } else { "" };
        no_words("pre_tokenizer", &format!("{found}{words}"), "patterns that tokenizer.ggml.pre can name")
    })?;
    let more = vec![("merges", merge_list(json)?)];
    Ok(ModelKeys { model: "gpt2", pre, tokens: tokens(parts), scores: Vec::new(), more, class_marks: false })
}

/// The pre-tokenizer as a list of cuts.
fn cuts(json: &Json) -> Result<Vec<Cut>> {
    let mut cuts = Vec::new();
    let mut bytes = false;
    for part in members(json, "pre_tokenizer", "pretokenizers") {
        let bad =
            || no_words("pre_tokenizer", part, "Split by a pattern, Digits, ByteLevel without a prefix");
        match kind(part) {
            "ByteLevel" if flag(part, "add_prefix_space", true) => return Err(bad()),
            "ByteLevel" => {
                if flag(part, "use_regex", true) {
                    cuts.push(Cut::gpt2());
                }
                bytes = true;
            }
            "Digits" => {
                let each = flag(part, "individual_digits", false);
                cuts.push(Cut { pattern: if each { r"\p{N}" } else { r"\p{N}+" }.to_owned(), spaces: false });
            }
            "Split" => {
                let pattern = part.pointer("/pattern/Regex").and_then(Json::as_str).ok_or_else(bad)?;
                let (pattern, spaces) = match pattern.strip_suffix(SPACES) {
                    Some(rest) => (rest, true),
                    None => (pattern, false),
                };
                // Text between matches is split off too, or is empty, since runs of spaces match as
                // well.
                match (part.get("behavior").and_then(Json::as_str), flag(part, "invert", false)) {
                    (Some("Isolated"), false) => {}
                    (Some("Removed"), true) if spaces => {}
                    _ => return Err(bad()),
                }
                cuts.push(Cut { pattern: pattern.to_owned(), spaces });
            }
            _ => return Err(bad()),
        }
    }
    match bytes {
        true => Ok(cuts),
        false => {
            Err(no_words("pre_tokenizer", json.get("pre_tokenizer").unwrap_or(&Json::Null), "ByteLevel"))
        }
    }
}
