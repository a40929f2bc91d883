//! Export of BPE over characters with byte tokens. Most such vocabularies come from SentencePiece.
//! It has no merges: any two neighbours that form a token merge, best score first. If the merges
//! have the same effect, scores by rank replace them.

use std::collections::{HashMap, HashSet};

use serde_json::Value as Json;
use weights::Value;

use super::parts::{ModelKeys, flag, kind, members, merge_list, merges, no_affixes, no_words, tokens};
use crate::Result;
use crate::hugging_face::Parts;
use crate::vocabulary::{Kind, SPACE_MARK};

pub(super) fn export(json: &Json, parts: &Parts) -> Result<ModelKeys> {
    no_affixes(json)?;
    let space_prefix = space_prefix(json)?;
    let mut tokens = tokens(parts);
    let unknown = json.pointer("/model/unk_token").and_then(Json::as_str);
    for (token, kind) in &mut tokens {
        if Some(token.as_str()) == unknown {
            *kind = Kind::Unknown;
        }
    }
    // Readers spell text without tokens by byte tokens; a missing one stops llama.cpp.
    let n_bytes = tokens.iter().filter(|(_, kind)| *kind == Kind::Byte).count();
    if n_bytes != 256 {
        return Err(no_words("model.vocab", &format!("{n_bytes} byte tokens"), "256, from <0x00> to <0xFF>"));
    }
    if let Some(scores) = scores(json, &tokens) {
        let more = vec![("add_space_prefix", Value::Bool(space_prefix))];
        return Ok(ModelKeys { model: "llama", pre: "default", tokens, scores, more, class_marks: false });
    }
    let across_lines = |token: &str| token.contains('\n') && token.contains(|c| c != '\n');
    let across = merges(json).find(|(left, right)| across_lines(&format!("{left}{right}")));
    if let Some((left, right)) = across {
        return Err(no_words("model.merges", &format!("{left:?} {right:?}"), "merges within lines"));
    }
    if space_prefix {
        let found = "a space before texts, with merges that scores cannot express";
        return Err(no_words("model.merges", &found, "only one of them"));
    }
    let more = vec![("merges", merge_list(json)?), ("add_space_prefix", Value::Bool(false))];
    Ok(ModelKeys { model: "gemma4", pre: "gemma4", tokens, scores: Vec::new(), more, class_marks: false })
}

/// Returns true if a space is put before texts. Spaces must become U+2581, and no other change is
/// allowed.
fn space_prefix(json: &Json) -> Result<bool> {
    const KNOWN: &str = "Prepend and Replace of U+2581, or Metaspace that does not split";
    let (mut prefix, mut marks) = (false, false);
    for part in members(json, "normalizer", "normalizers") {
        let is = |key: &str, value: &str| part.pointer(key).and_then(Json::as_str) == Some(value);
        match kind(part) {
            "Prepend" if is("/prepend", SPACE_MARK) => prefix = true,
            "Replace" if is("/pattern/String", " ") && is("/content", SPACE_MARK) => marks = true,
            _ => return Err(no_words("normalizer", part, KNOWN)),
        }
    }
    for part in members(json, "pre_tokenizer", "pretokenizers") {
        let is = |key: &str, value: &str| part.pointer(key).and_then(Json::as_str) == Some(value);
        match kind(part) {
            // No spaces are left to split at.
            "Split" if marks && is("/pattern/String", " ") => {}
            "Metaspace" if is("/replacement", SPACE_MARK) && !flag(part, "split", true) => {
                marks = true;
                prefix |= !is("/prepend_scheme", "never");
            }
            _ => return Err(no_words("pre_tokenizer", part, KNOWN)),
        }
    }
    if marks { Ok(prefix) } else { Err(no_words("normalizer", &"spaces that stay spaces", KNOWN)) }
}

/// Scores: minus the rank of the first merge that makes a token. `None` if scores cannot express
/// the merges: a token's merges are not consecutive, or two neighbours that form a token have no
/// merge.
fn scores(json: &Json, tokens: &[(String, Kind)]) -> Option<Vec<f32>> {
    let ids: HashMap<&str, usize> =
        tokens.iter().enumerate().map(|(id, (token, _))| (token.as_str(), id)).collect();
    let mut pairs = HashSet::new();
    // Merging starts with single characters, whose score does not matter.
    let mut scores = vec![0.0f32; tokens.len()];
    let mut made = vec![false; tokens.len()];
    let mut last = None;
    for (rank, (left, right)) in merges(json).enumerate() {
        pairs.insert((left, right));
        let id = *ids.get(format!("{left}{right}").as_str())?;
        if last == Some(id) {
            continue;
        }
        let (score, made) = (scores.get_mut(id)?, made.get_mut(id)?);
        if std::mem::replace(made, true) {
            return None;
        }
        *score = -(rank as f32);
        last = Some(id);
    }
    // SentencePiece never merges to control, unknown and byte tokens; user-defined tokens are split
    // off before.
    let is_piece = |text: &str| {
        let kind = ids.get(text).and_then(|id| tokens.get(*id)).map(|(_, kind)| *kind);
        matches!(kind, Some(Kind::Normal | Kind::UserDefined))
    };
    for (token, _) in tokens.iter().filter(|(_, kind)| *kind == Kind::Normal) {
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if is_piece(left) && is_piece(right) && !pairs.contains(&(left, right)) {
                return None;
            }
        }
    }
    Some(scores)
}
