//! A tokenizer from the `tokenizer.*` keys of a GGUF file.

use formats::{Array, Metadata, Value};

use crate::bpe::BytePairs;
use crate::pre_tokenizer::Preset;
use crate::sentence_piece::SentencePiece;
use crate::tokenizer::{Declared, Encoder};
use crate::vocabulary::{Kind, Spelling, Vocabulary};
use crate::word_piece::WordPiece;
use crate::{Error, Result, Tokenizer};

const MODEL: &str = "tokenizer.ggml.model";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";

impl Tokenizer {
    /// From the metadata of a GGUF file.
    ///
    /// # Errors
    /// The file has no vocabulary, or one of a kind that is not known here; a list is missing or has the wrong length or
    /// kind; a token is there twice or is no UTF-8; a merge names an unknown token; a declared id is no token's.
    pub fn from_gguf(meta: &Metadata) -> Result<Tokenizer> {
        let model = string(meta, MODEL)?.unwrap_or_default();
        match model {
            "" | "no_vocab" | "none" => Err(Error::NoVocabulary { found: model.into() }),
            "gpt2" => byte_pairs(meta, string(meta, "tokenizer.ggml.pre")?.unwrap_or("default")),
            "gemma4" => byte_pairs(meta, "gemma4"),
            "llama" => sentence_piece(meta),
            "bert" => word_piece(meta),
            _ => Err(Error::Unknown {
                key: MODEL.into(),
                found: model.into(),
                known: "gpt2, llama, bert, gemma4, no_vocab".into(),
            }),
        }
    }
}

fn byte_pairs(meta: &Metadata, pre: &str) -> Result<Tokenizer> {
    let preset = Preset::named(pre)?;
    let spelling = if preset.characters { Spelling::SpaceMark } else { Spelling::ByteLevel };
    let vocabulary = vocabulary(meta, spelling)?;
    let merges = array(meta, MERGES, "byte-pair encoding is made of them")?;
    let encoder = Encoder::BytePairs(BytePairs::new(&vocabulary, merges, preset)?);
    let mut declared = declared(meta, &vocabulary, preset.add_bos, false, [None; 2])?;
    declared.strips_right = strips_right(meta, &vocabulary);
    Ok(Tokenizer::new(vocabulary, encoder, declared))
}

fn sentence_piece(meta: &Metadata) -> Result<Tokenizer> {
    let vocabulary = vocabulary(meta, Spelling::SpaceMark)?;
    let Array::Float(scores) = array(meta, SCORES, "they say which tokens are merged first")? else {
        return Err(malformed(SCORES, "a list of another kind", "a list of floats"));
    };
    let unknown = id(meta, "tokenizer.ggml.unknown_token_id", &vocabulary)?.or(existing(&vocabulary, 0));
    let space_prefix = boolean(meta, "tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let encoder = Encoder::SentencePiece(SentencePiece::new(&vocabulary, scores, unknown, space_prefix)?);
    // Files of the first days say nothing; then the ids are Llama's.
    let defaults = [existing(&vocabulary, 1), existing(&vocabulary, 2)];
    let mut declared = declared(meta, &vocabulary, true, false, defaults)?;
    declared.leading_space = space_prefix;
    declared.strips_right = strips_right(meta, &vocabulary);
    Ok(Tokenizer::new(vocabulary, encoder, declared))
}

fn word_piece(meta: &Metadata) -> Result<Tokenizer> {
    let vocabulary = vocabulary(meta, Spelling::SpaceMark)?;
    let declared_or =
        |key: &str, text: &str| Ok::<_, Error>(id(meta, key, &vocabulary)?.or(vocabulary.id(text)));
    let unknown = declared_or("tokenizer.ggml.unknown_token_id", "[UNK]")?.ok_or_else(|| Error::Missing {
        key: "tokenizer.ggml.unknown_token_id".into(),
        why: "a word that no tokens spell becomes this one",
    })?;
    let lowercase = boolean(meta, "tokenizer.ggml.normalizer.lowercase")?.unwrap_or(true);
    let strip_accents = boolean(meta, "tokenizer.ggml.normalizer.strip_accents")?.unwrap_or(lowercase);
    let encoder = Encoder::WordPiece(WordPiece::new(unknown, lowercase, strip_accents));
    let class = id(meta, "tokenizer.ggml.bos_token_id", &vocabulary)?
        .or(declared_or("tokenizer.ggml.cls_token_id", "[CLS]")?);
    // The key is spelled so in the format.
    let separator = declared_or("tokenizer.ggml.seperator_token_id", "[SEP]")?;
    let mut declared = declared(meta, &vocabulary, true, false, [class, None])?;
    if boolean(meta, "tokenizer.ggml.add_sep_token")?.unwrap_or(true) {
        declared.suffix.extend(separator);
    }
    declared.leading_space = true;
    Ok(Tokenizer::new(vocabulary, encoder, declared))
}

/// The tokens with their kinds.
fn vocabulary(meta: &Metadata, spelling: Spelling) -> Result<Vocabulary> {
    let tokens = array(meta, TOKENS, "it is the vocabulary")?;
    let kinds = match meta.get(TYPES) {
        None => vec![Kind::Normal; tokens.len()],
        Some(Value::Array(Array::Int(types))) => {
            if types.len() != tokens.len() {
                let expected = format!("one for each of the {} tokens", tokens.len());
                return Err(malformed(TYPES, &format!("{} types", types.len()), &expected));
            }
            let kind = |(i, &n)| {
                Kind::from_gguf(n)
                    .ok_or_else(|| malformed(&format!("{TYPES}[{i}]"), &n.to_string(), "0 to 6"))
            };
            types.iter().enumerate().map(kind).collect::<Result<_>>()?
        }
        Some(_) => return Err(malformed(TYPES, "a value of another kind", "a list of integers")),
    };
    Vocabulary::new(TOKENS, tokens.clone(), kinds, spelling)
}

/// What the file declares of beginnings and ends, with the defaults of its kind of vocabulary.
fn declared(
    meta: &Metadata,
    vocabulary: &Vocabulary,
    add_bos: bool,
    add_eos: bool,
    [bos, eos]: [Option<u32>; 2],
) -> Result<Declared> {
    let bos = id(meta, "tokenizer.ggml.bos_token_id", vocabulary)?.or(bos);
    let eos = id(meta, "tokenizer.ggml.eos_token_id", vocabulary)?.or(eos);
    let mut ends = Vec::new();
    for key in ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"] {
        ends.extend(id(meta, key, vocabulary)?);
    }
    let add_bos = boolean(meta, "tokenizer.ggml.add_bos_token")?.unwrap_or(add_bos);
    let add_eos = boolean(meta, "tokenizer.ggml.add_eos_token")?.unwrap_or(add_eos);
    let mut chat_templates = Vec::new();
    for (key, value) in meta.iter() {
        let Some(name) = key.strip_prefix("tokenizer.chat_template") else { continue };
        if let (Value::Str(source), true) = (value, name.is_empty() || name.starts_with('.')) {
            chat_templates.push((name.trim_start_matches('.').into(), source.clone()));
        }
    }
    Ok(Declared {
        bos,
        eos,
        ends,
        prefix: bos.filter(|_| add_bos).into_iter().collect(),
        suffix: eos.filter(|_| add_eos).into_iter().collect(),
        chat_templates,
        ..Declared::default()
    })
}

/// Phi-3's tokenizer swallows the spaces behind its marks, and GGUF has no key that says so.
fn strips_right(meta: &Metadata, vocabulary: &Vocabulary) -> Vec<u32> {
    let name = meta.str("general.name").unwrap_or_default().to_lowercase();
    if !name.contains("phi-3") && !name.contains("phi3") {
        return Vec::new();
    }
    let keeps = ["<unk>", "<s>", "<|endoftext|>"];
    let marks = vocabulary
        .kinds()
        .filter(|(_, kind)| matches!(kind, Kind::Control | Kind::UserDefined | Kind::Unknown));
    marks
        .map(|(id, _)| id)
        .filter(|&id| !keeps.contains(&vocabulary.text(id)))
        .chain(vocabulary.id("</s>"))
        .collect()
}

fn malformed(key: &str, found: &str, expected: &str) -> Error {
    Error::Malformed { key: key.into(), found: found.into(), expected: expected.into() }
}

/// What a value is, for messages.
fn describe(value: &Value) -> String {
    match value {
        Value::Array(array) => format!("a list of {}", array.len()),
        Value::Str(text) => format!("the text {text:?}"),
        other => format!("{other:?}"),
    }
}

fn string<'a>(meta: &'a Metadata, key: &str) -> Result<Option<&'a str>> {
    match meta.get(key) {
        None => Ok(None),
        Some(Value::Str(text)) => Ok(Some(text)),
        Some(other) => Err(malformed(key, &describe(other), "text")),
    }
}

fn boolean(meta: &Metadata, key: &str) -> Result<Option<bool>> {
    match meta.get(key) {
        None => Ok(None),
        Some(Value::Bool(b)) => Ok(Some(*b)),
        Some(other) => Err(malformed(key, &describe(other), "true or false")),
    }
}

fn array<'a>(meta: &'a Metadata, key: &str, why: &'static str) -> Result<&'a Array> {
    match meta.get(key) {
        None => Err(Error::Missing { key: key.into(), why }),
        Some(Value::Array(array)) => Ok(array),
        Some(other) => Err(malformed(key, &describe(other), "a list")),
    }
}

/// A declared token id, which must be a token's.
fn id(meta: &Metadata, key: &str, vocabulary: &Vocabulary) -> Result<Option<u32>> {
    match meta.get(key) {
        None => Ok(None),
        Some(Value::Int(n)) => match u32::try_from(*n).ok().and_then(|id| existing(vocabulary, id)) {
            Some(id) => Ok(Some(id)),
            None => {
                Err(Error::TokenOutOfRange { key: key.into(), id: n.to_string(), n_tokens: vocabulary.len() })
            }
        },
        Some(other) => Err(malformed(key, &describe(other), "a token id")),
    }
}

fn existing(vocabulary: &Vocabulary, id: u32) -> Option<u32> {
    ((id as usize) < vocabulary.len()).then_some(id)
}
