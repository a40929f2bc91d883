//! Export of WordPiece: a token that begins a word gets U+2581, and one that continues a word loses
//! its `##`.

use serde_json::Value as Json;
use weights::Value;

use super::parts::{ModelKeys, flag, kind, members, no_words, tokens};
use crate::Result;
use crate::hugging_face::Parts;
use crate::vocabulary::{Kind, SPACE_MARK};

pub(super) fn export(json: &Json, parts: &Parts) -> Result<ModelKeys> {
    const CONTINUED: &str = "##";
    let model = json.get("model").unwrap_or(&Json::Null);
    let prefix = model.get("continuing_subword_prefix").and_then(Json::as_str).unwrap_or(CONTINUED);
    if prefix != CONTINUED {
        return Err(no_words("model.continuing_subword_prefix", &prefix, CONTINUED));
    }
    let normalizers = members(json, "normalizer", "normalizers");
    let [normalizer] = normalizers[..] else {
        return Err(no_words("normalizer", &format!("{} of them", normalizers.len()), "BertNormalizer"));
    };
    let usual = flag(normalizer, "clean_text", true) && flag(normalizer, "handle_chinese_chars", true);
    if kind(normalizer) != "BertNormalizer" || !usual {
        return Err(no_words(
            "normalizer",
            normalizer,
            "BertNormalizer that cleans text and parts ideographs",
        ));
    }
    let cut = members(json, "pre_tokenizer", "pretokenizers");
    if !matches!(cut[..], [only] if kind(only) == "BertPreTokenizer") {
        let found = json.get("pre_tokenizer").unwrap_or(&Json::Null);
        return Err(no_words("pre_tokenizer", found, "BertPreTokenizer"));
    }
    let lowercase = flag(normalizer, "lowercase", true);
    let more = vec![
        ("normalizer.lowercase", Value::Bool(lowercase)),
        ("normalizer.strip_accents", Value::Bool(flag(normalizer, "strip_accents", lowercase))),
    ];
    let mut tokens = tokens(parts);
    // Special tokens keep their text.
    let is_text = |(token, kind): &&mut (String, Kind)| *kind == Kind::Normal && !token.is_empty();
    for (token, _) in tokens.iter_mut().filter(is_text) {
        *token = match token.strip_prefix(CONTINUED).filter(|rest| !rest.is_empty()) {
            Some(rest) => rest.to_owned(),
            None => format!("{SPACE_MARK}{token}"),
        };
    }
    Ok(ModelKeys { model: "bert", pre: "default", tokens, scores: Vec::new(), more, class_marks: true })
}
