//! Export of tokenizer.json and the files beside it to the `tokenizer.…` keys of a GGUF file.
//!
//! | model of tokenizer.json | `tokenizer.ggml.model` |
//! |---|---|
//! | BPE over bytes | `gpt2`, with merges; `pre` by the patterns |
//! | BPE over characters, merges in the order of their tokens | `llama`, with scores by rank |
//! | BPE over characters, merges in another order | `gemma4`, with merges |
//! | WordPiece | `bert`, with U+2581 before the tokens that begin a word |
//!
//! Features without a place in GGUF are errors: another normaliser, a pre-tokenizer without a name,
//! a mark around texts other than BOS and EOS. Three differences remain, as with llama.cpp's own
//! converter. Text is not normalised to NFC, and tokens do not absorb the spaces beside them. A
//! space that belongs before whole texts also follows control tokens. [`GgufTokenizer::notes`]
//! names the first two if they matter.

mod byte_level;
mod characters;
mod parts;
mod word_piece;

use serde_json::Value as Json;
use std::path::Path;
use weights::{Array, Metadata, Value};

use self::parts::{ModelKeys, flag, kind, members, no_words};
use crate::base::BaseFiles;
use crate::hugging_face::{Parts, ReadFile, documents, read, token_text};
use crate::tokenizer::END_TOKENS;
use crate::vocabulary::{Kind, string_array};
use crate::{Error, Result, Tokenizer};

/// A tokenizer under GGUF's keys.
#[derive(Clone, Debug)]
pub struct GgufTokenizer {
    /// The keys `tokenizer.…`.
    pub metadata: Metadata,
    /// Features that the format cannot express and readers ignore, in words.
    pub notes: Vec<String>,
}

/// The keys for a folder with tokenizer.json, and optional tokenizer_config.json,
/// special_tokens_map.json, generation_config.json, config.json and chat_template.jinja. `None`
/// without a tokenizer.json.
///
/// `n_vocab` is the number of rows of the model's embedding. llama.cpp requires one token per row,
/// so rows without a token get names such as `[PAD7]`.
///
/// # Errors
/// As [`Tokenizer::from_folder`]; also a tokenizer that GGUF cannot describe, or more tokens than
/// rows.
pub fn gguf_from_folder(dir: &Path, n_vocab: usize) -> Result<Option<GgufTokenizer>> {
    from_files(&|name| read(dir, name), n_vocab)
}

/// Like [`gguf_from_folder`], for the metadata of a `.base` file made from such a folder.
///
/// # Errors
/// As [`gguf_from_folder`].
pub fn gguf_from_base(metadata: &Metadata, n_vocab: usize) -> Result<Option<GgufTokenizer>> {
    let files = BaseFiles::new(metadata)?;
    from_files(&|name| files.read(name), n_vocab)
}

fn from_files(read: &ReadFile<'_>, n_vocab: usize) -> Result<Option<GgufTokenizer>> {
    documents(read)?.map(|(json, config, jinja)| export(json, &config, jinja, n_vocab)).transpose()
}

fn export(json: Json, config: &Json, jinja: Option<String>, n_vocab: usize) -> Result<GgufTokenizer> {
    // Reading it as a tokenizer checks it.
    let parts = Parts::new(json.clone(), config, jinja)?;
    let model = json.get("model").unwrap_or(&Json::Null);
    let byte_fallback = model.get("byte_fallback").and_then(Json::as_bool) == Some(true);
    let kinds = match model.get("type").and_then(Json::as_str).unwrap_or_default() {
        "BPE" if byte_fallback => characters::export(&json, &parts)?,
        "BPE" => byte_level::export(&json, &parts)?,
        "WordPiece" => word_piece::export(&json, &parts)?,
        other => return Err(no_words("model.type", &other, "BPE or WordPiece")),
    };
    let metadata = keys(kinds, &parts, &json, config, n_vocab)?;
    // Report keys that could not be read back, such as two tokens with one text.
    Tokenizer::from_gguf(&metadata)?;
    Ok(GgufTokenizer { metadata, notes: notes(&json) })
}

/// Features that the export drops.
fn notes(json: &Json) -> Vec<String> {
    let mut notes = Vec::new();
    if members(json, "normalizer", "normalizers").into_iter().any(|part| kind(part) == "NFC") {
        notes.push("the tokenizer normalises texts to NFC; readers of GGUF do not".to_owned());
    }
    let added = json.get("added_tokens").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
    let takes = |token: &&Json| flag(token, "lstrip", false) || flag(token, "rstrip", false);
    let texts: Vec<&str> =
        added.iter().filter(takes).filter_map(|token| token.get("content")?.as_str()).collect();
    if let [first, ..] = texts[..] {
        let n = texts.len();
        notes.push(format!(
            "{n} tokens, such as {first:?}, absorb the spaces beside them; GGUF cannot express that"
        ));
    }
    notes
}

fn text(s: &str) -> Value {
    Value::Str(s.to_owned())
}

fn keys(kinds: ModelKeys, parts: &Parts, json: &Json, config: &Json, n_vocab: usize) -> Result<Metadata> {
    let ModelKeys { model, pre, mut tokens, mut scores, more, class_marks } = kinds;
    if tokens.len() > n_vocab {
        let expected = format!("at most the {n_vocab} rows of the model's embedding");
        let found = format!("{} tokens", tokens.len());
        return Err(Error::Malformed { key: "model.vocab".into(), found, expected });
    }
    tokens.resize(n_vocab, (String::new(), Kind::Unused));
    for (id, (token, _)) in tokens.iter_mut().enumerate().filter(|(_, (token, _))| token.is_empty()) {
        *token = format!("[PAD{id}]");
    }
    let mut metadata = Metadata::default();
    let mut put = |key: &str, value: Value| {
        metadata.insert(format!("tokenizer.ggml.{key}"), value);
    };
    put("model", text(model));
    put("pre", text(pre));
    put("tokens", Value::Array(string_array(tokens.iter().map(|(token, _)| token.as_str()))?));
    let types = tokens.iter().map(|(_, kind)| kind.to_gguf()).collect();
    put("token_type", Value::Array(Array::Int(types)));
    if !scores.is_empty() {
        // Unused tokens never merge, whatever their score.
        scores.resize(n_vocab, 0.0);
        put("scores", Value::Array(Array::Float(scores)));
    }
    for (key, value) in more {
        put(key, value);
    }
    let id = |id: u32| Value::Int(i128::from(id));
    for (key, name) in [("padding_token_id", "pad_token"), ("mask_token_id", "mask_token")] {
        if let Some(token) = token_text(config.get(name)).and_then(|text| parts.vocabulary.id(text)) {
            put(key, id(token));
        }
    }
    let unknown = json.pointer("/model/unk_token").and_then(Json::as_str);
    let unknown = unknown.or(token_text(config.get("unk_token")));
    if let Some(token) = unknown.and_then(|text| parts.vocabulary.id(text)) {
        put("unknown_token_id", id(token));
    }
    let declared = &parts.declared;
    let (prefix, suffix) = (&declared.prefix[..], &declared.suffix[..]);
    let bad_marks = || no_words("post_processor", &format!("marks {prefix:?} and {suffix:?}"), "BOS and EOS");
    if class_marks {
        let ([class], [separator]) = (prefix, suffix) else { return Err(bad_marks()) };
        put("bos_token_id", id(*class));
        put("cls_token_id", id(*class));
        // The format spells the key this way.
        put("seperator_token_id", id(*separator));
        put("add_bos_token", Value::Bool(true));
        put("add_sep_token", Value::Bool(true));
    } else {
        // A mark of the template that no key names is BOS or EOS by its position.
        let bos = declared.bos.or(prefix.first().copied());
        let eos = declared.eos.or(suffix.first().copied());
        let is = |marks: &[u32], mark: Option<u32>| match marks {
            [] => Some(false),
            [only] if Some(*only) == mark => Some(true),
            _ => None,
        };
        let (Some(add_bos), Some(add_eos)) = (is(prefix, bos), is(suffix, eos)) else {
            return Err(bad_marks());
        };
        for (key, token) in [("bos_token_id", bos), ("eos_token_id", eos)] {
            if let Some(token) = token {
                put(key, id(token));
            }
        }
        put("add_bos_token", Value::Bool(add_bos));
        put("add_eos_token", Value::Bool(add_eos));
        // Other tokens that end an answer, without those that readers know by name.
        let by_name: Vec<u32> = END_TOKENS.iter().filter_map(|text| parts.vocabulary.id(text)).collect();
        let mut ends: Vec<u32> = declared.ends.clone();
        ends.retain(|end| !by_name.contains(end));
        if ends.len() > 2 {
            return Err(no_words("eos_token_id", &format!("{} more ends of answers", ends.len()), "two"));
        }
        for (key, token) in ["eot_token_id", "eom_token_id"].into_iter().zip(ends) {
            put(key, id(token));
        }
    }
    for (name, source) in &declared.chat_templates {
        let key = match name.as_str() {
            "" | "default" => "tokenizer.chat_template".to_owned(),
            name => format!("tokenizer.chat_template.{name}"),
        };
        metadata.insert(key, text(source));
    }
    Ok(metadata)
}
