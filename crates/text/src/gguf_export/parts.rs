//! Parts of tokenizer.json for the exporters.

use serde_json::Value as Json;
use weights::Value;

use crate::hugging_face::{Parts, flatten};
use crate::vocabulary::{Kind, string_array};
use crate::{Error, Result};

/// Keys that differ between kinds of vocabularies.
pub(super) struct ModelKeys {
    /// `tokenizer.ggml.model`
    pub(super) model: &'static str,
    /// `tokenizer.ggml.pre`
    pub(super) pre: &'static str,
    /// Text and kind of each token.
    pub(super) tokens: Vec<(String, Kind)>,
    /// Score of each token; empty for kinds that have none.
    pub(super) scores: Vec<f32>,
    /// Further keys of this kind.
    pub(super) more: Vec<(&'static str, Value)>,
    /// True if the marks around a text are a class and a separator token instead of BOS and EOS.
    pub(super) class_marks: bool,
}

/// Error of a feature that GGUF cannot express.
pub(super) fn no_words(key: &str, found: &dyn std::fmt::Display, known: &str) -> Error {
    let found: String = found.to_string().chars().take(200).collect();
    Error::Unknown { key: format!("{key}, for GGUF"), found, known: known.to_owned() }
}

/// Text and kind of every token.
pub(super) fn tokens(parts: &Parts) -> Vec<(String, Kind)> {
    parts.vocabulary.kinds().map(|(id, kind)| (parts.vocabulary.text(id).to_owned(), kind)).collect()
}

/// The two tokens of each merge.
pub(super) fn merges(json: &Json) -> impl Iterator<Item = (&str, &str)> {
    let list = json.pointer("/model/merges").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
    list.iter().filter_map(|merge| match merge {
        Json::String(merge) => merge.split_once(' '),
        Json::Array(pair) => Some((pair.first()?.as_str()?, pair.get(1)?.as_str()?)),
        _ => None,
    })
}

/// `tokenizer.ggml.merges`: the two tokens with a space between.
pub(super) fn merge_list(json: &Json) -> Result<Value> {
    let mut list = Vec::new();
    for (left, right) in merges(json) {
        if left.contains(' ') || right.contains(' ') {
            return Err(no_words("model.merges", &format!("{left:?} {right:?}"), "tokens without spaces"));
        }
        list.push(format!("{left} {right}"));
    }
    Ok(Value::Array(string_array(list.iter().map(String::as_str))?))
}

/// The members of a part that may be a sequence; empty if the part is missing.
pub(super) fn members<'a>(json: &'a Json, part: &str, children: &str) -> Vec<&'a Json> {
    let mut out = Vec::new();
    flatten(json.get(part).unwrap_or(&Json::Null), children, &mut out);
    out
}

/// The kind of a part.
pub(super) fn kind(part: &Json) -> &str {
    part.get("type").and_then(Json::as_str).unwrap_or_default()
}

/// A boolean of a part, or the library's default.
pub(super) fn flag(part: &Json, key: &str, default: bool) -> bool {
    part.get(key).and_then(Json::as_bool).unwrap_or(default)
}

/// Refuses token prefixes and suffixes, which GGUF does not have.
pub(super) fn no_affixes(json: &Json) -> Result<()> {
    for key in ["continuing_subword_prefix", "end_of_word_suffix"] {
        let affix = json.pointer(&format!("/model/{key}")).and_then(Json::as_str).unwrap_or_default();
        if !affix.is_empty() {
            return Err(no_words(&format!("model.{key}"), &affix, "none"));
        }
    }
    Ok(())
}
