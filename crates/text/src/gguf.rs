//! A tokenizer from the `tokenizer.*` keys of a GGUF file.
use weights::{Array, Metadata, Value};

use crate::bpe::BytePairs;
use crate::charsmap::CharsMap;
use crate::fill_in_middle::DeclaredGap;
use crate::plamo2::Plamo2;
use crate::presets::{Alphabet, Preset};
use crate::rwkv::Rwkv;
use crate::sentence_piece::SentencePiece;
use crate::tokenizer::{Declared, Encoder};
use crate::unigram::{Normalization, Unigram};
use crate::vocabulary::{Kind, Spelling, Vocabulary};
use crate::word_piece::WordPiece;
use crate::{Error, Result, Tokenizer, ranked};

const MODEL: &str = "tokenizer.ggml.model";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const PRE: &str = "tokenizer.ggml.pre";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";

impl Tokenizer {
    /// Reads a tokenizer from the metadata of a GGUF file.
    ///
    /// # Errors
    /// The file has no vocabulary, or one of an unknown kind; a list is missing or of the wrong
    /// kind; or a score is NaN.
    ///
    /// Faults that other programs tolerate are no errors: equal tokens (the first is used); lists
    /// of kinds and scores with another length than the tokens; merges of unknown tokens. Declared
    /// ids without a token count as undeclared.
    pub fn from_gguf(meta: &Metadata) -> Result<Tokenizer> {
        let model = string(meta, MODEL)?.unwrap_or_default();
        let pre = || Ok::<_, Error>(string(meta, PRE)?.unwrap_or("default"));
        match model {
            "" | "no_vocab" | "none" => Err(Error::NoVocabulary { found: model.into() }),
            "gpt2" => byte_pairs(meta, pre()?, false),
            "whitespace" => byte_pairs(meta, pre()?, true),
            "gemma4" => byte_pairs(meta, "gemma4", false),
            "llama" => sentence_piece(meta),
            "bert" => word_piece(meta),
            "t5" => unigram(meta),
            "rwkv" => rwkv(meta),
            "plamo2" => plamo2(meta),
            _ => Err(Error::Unknown {
                key: MODEL.into(),
                found: model.into(),
                known: "gpt2, llama, bert, t5, rwkv, plamo2, gemma4, whitespace, no_vocab".into(),
            }),
        }
    }
}

/// Makes a tokenizer with BPE. With `by_words`, text is split at its spaces, which are dropped,
/// before the pre-tokenizer sees it.
fn byte_pairs(meta: &Metadata, pre: &str, by_words: bool) -> Result<Tokenizer> {
    let preset = Preset::named(pre)?;
    let vocabulary = vocabulary(
        meta,
        match preset.alphabet {
            Alphabet::Bytes => Spelling::ByteLevel,
            Alphabet::SpaceMark => Spelling::SpaceMark,
            Alphabet::Characters => Spelling::Plain,
        },
    )?;
    let made;
    let merges = if preset.ranked && meta.get(MERGES).is_none() {
        made = ranked::merges(&vocabulary)?;
        &made
    } else {
        array(meta, MERGES, "byte-pair encoding needs the merges")?
    };
    let mut encoder = BytePairs::new(&vocabulary, merges, preset)?;
    if by_words {
        encoder.by_words(boolean(meta, "tokenizer.ggml.normalizer.lowercase")?.unwrap_or(false));
    }
    let mut declared = declared(meta, &vocabulary, preset.add_bos, false, [None; 2])?;
    (declared.strips_left, declared.strips_right) =
        (strips_left(meta, &vocabulary), strips_right(meta, &vocabulary));
    Ok(Tokenizer::new(vocabulary, Encoder::BytePairs(encoder), declared))
}

/// One score for each token.
fn scores(meta: &Metadata, why: &'static str) -> Result<Vec<f32>> {
    match array(meta, SCORES, why)? {
        Array::Float(scores) => Ok(scores.clone()),
        Array::Int(scores) => Ok(scores.iter().map(|&score| score as f32).collect()),
        Array::Bool(_) | Array::Str { .. } => {
            Err(malformed(SCORES, "a list of another kind", "a list of numbers"))
        }
    }
}

fn unigram(meta: &Metadata) -> Result<Tokenizer> {
    let vocabulary = vocabulary(meta, Spelling::SpaceMark)?;
    let scores = scores(meta, "the scores select the tokens of a text")?;
    let unknown = id(meta, UNKNOWN, &vocabulary)?.or(existing(&vocabulary, 2));
    let unknown = unknown.ok_or_else(|| Error::Missing {
        key: UNKNOWN.into(),
        why: "a character without a token becomes this one",
    })?;
    let charsmap = match meta.get(CHARSMAP) {
        None => None,
        Some(Value::Array(Array::Int(items))) => {
            // GGUF may store the bytes as `i8` or as `u8`.
            let byte = |&item: &i64| u8::try_from(item).ok().or(i8::try_from(item).ok().map(|i| i as u8));
            let bytes: Option<Vec<u8>> = items.iter().map(byte).collect();
            let bytes = bytes.ok_or_else(|| malformed(CHARSMAP, "integers of more than 8 bits", "bytes"))?;
            (!bytes.is_empty()).then(|| CharsMap::new(CHARSMAP, &bytes)).transpose()?
        }
        Some(other) => return Err(malformed(CHARSMAP, &describe(other), "a list of bytes")),
    };
    let space_prefix = boolean(meta, "tokenizer.ggml.add_space_prefix")?.unwrap_or(false);
    let merge_spaces = boolean(meta, "tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false);
    let normalization = Normalization { charsmap, space_prefix, merge_spaces };
    let encoder = Unigram::new(&vocabulary, scores, unknown, normalization)?;
    let mut declared = declared(meta, &vocabulary, false, true, [None, existing(&vocabulary, 1)])?;
    declared.leading_space = space_prefix;
    declared.strips_left = strips_left(meta, &vocabulary);
    Ok(Tokenizer::new(vocabulary, Encoder::Unigram(encoder), declared))
}

fn rwkv(meta: &Metadata) -> Result<Tokenizer> {
    let vocabulary = vocabulary(meta, Spelling::Escaped)?;
    let encoder = Rwkv::new(&vocabulary, id(meta, UNKNOWN, &vocabulary)?)?;
    let declared = declared(meta, &vocabulary, false, false, [None; 2])?;
    Ok(Tokenizer::new(vocabulary, Encoder::Rwkv(encoder), declared))
}

fn plamo2(meta: &Metadata) -> Result<Tokenizer> {
    let vocabulary = vocabulary(meta, Spelling::Plain)?;
    let encoder = Plamo2::new(&vocabulary, scores(meta, "the scores select the tokens of a text")?)?;
    let defaults = [existing(&vocabulary, 1), existing(&vocabulary, 2)];
    let declared = declared(meta, &vocabulary, false, false, defaults)?;
    Ok(Tokenizer::new(vocabulary, Encoder::Plamo2(encoder), declared))
}

fn sentence_piece(meta: &Metadata) -> Result<Tokenizer> {
    let vocabulary = vocabulary(meta, Spelling::SpaceMark)?;
    let scores = scores(meta, "the scores order the merges")?;
    let unknown = id(meta, UNKNOWN, &vocabulary)?.or(existing(&vocabulary, 0));
    let space_prefix = boolean(meta, "tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let encoder = Encoder::SentencePiece(SentencePiece::new(&vocabulary, scores, unknown, space_prefix)?);
    // The first files declare nothing; their ids are Llama's.
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
    let unknown = declared_or(UNKNOWN, "[UNK]")?.ok_or_else(|| Error::Missing {
        key: UNKNOWN.into(),
        why: "a word without tokens becomes this one",
    })?;
    let lowercase = boolean(meta, "tokenizer.ggml.normalizer.lowercase")?.unwrap_or(true);
    let strip_accents = boolean(meta, "tokenizer.ggml.normalizer.strip_accents")?.unwrap_or(lowercase);
    let encoder = Encoder::WordPiece(WordPiece::new(unknown, lowercase, strip_accents));
    let class = id(meta, "tokenizer.ggml.bos_token_id", &vocabulary)?
        .or(declared_or("tokenizer.ggml.cls_token_id", "[CLS]")?);
    // The format spells the key this way.
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
    let tokens = array(meta, TOKENS, "it holds the vocabulary")?;
    let mut kinds: Vec<Kind> = match meta.get(TYPES) {
        None => Vec::new(),
        Some(Value::Array(Array::Int(types))) => types.iter().map(|&n| Kind::from_gguf(n)).collect(),
        Some(_) => return Err(malformed(TYPES, "a value of another kind", "a list of integers")),
    };
    kinds.resize(tokens.len(), Kind::Normal);
    Vocabulary::new(TOKENS, tokens.clone(), kinds, spelling)
}

/// The file's declarations about the start and end of texts, with the defaults of its kind of
/// vocabulary.
fn declared(
    meta: &Metadata,
    vocabulary: &Vocabulary,
    add_bos: bool,
    add_eos: bool,
    [bos, eos]: [Option<u32>; 2],
) -> Result<Declared> {
    let bos = id(meta, "tokenizer.ggml.bos_token_id", vocabulary)?.or(bos);
    let eos = id(meta, "tokenizer.ggml.eos_token_id", vocabulary)?.or(eos);
    // The first id of a list is EOS; all of them end an answer.
    let mut ends = Vec::new();
    for key in ["eos_token_id", "eos_token_ids", "eot_token_id", "eom_token_id"] {
        ends.extend(ids(meta, &format!("tokenizer.ggml.{key}"), vocabulary)?);
    }
    // The first files name these keys without `fim`.
    let gap = |name: &str| id(meta, &format!("tokenizer.ggml.fim_{name}_token_id"), vocabulary);
    let older = |name: &str| id(meta, &format!("tokenizer.ggml.{name}_token_id"), vocabulary);
    let gap = DeclaredGap {
        prefix: gap("pre")?.or(older("prefix")?),
        suffix: gap("suf")?.or(older("suffix")?),
        middle: gap("mid")?.or(older("middle")?),
        repository: gap("rep")?,
        file: gap("sep")?,
        pad: gap("pad")?,
    };
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
        gap,
        chat_templates,
        ..Declared::default()
    })
}

/// Some encoders' mask tokens absorb the spaces before them, and GGUF has no key for that.
fn strips_left(meta: &Metadata, vocabulary: &Vocabulary) -> Vec<u32> {
    let has = |key: &str, names: &[&str]| {
        let value = meta.str(key).unwrap_or_default().to_lowercase();
        names.iter().any(|name| value.contains(name))
    };
    let mask = if has(PRE, &["jina-v2-de", "jina-v2-es", "jina-v2-code"])
        || has("general.architecture", &["nomic-bert-moe", "jina-bert-v3"])
    {
        "<mask>"
    } else if has("general.name", &["modern-bert"]) {
        "[MASK]"
    } else {
        return Vec::new();
    };
    vocabulary.id(mask).into_iter().collect()
}

/// Phi-3's special tokens absorb the spaces after them, and GGUF has no key for that.
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

/// A value's kind, for messages.
fn describe(value: &Value) -> String {
    match value {
        Value::Array(array) => format!("a list of {}", array.len()),
        Value::Str(text) => format!("the text {text:?}"),
        Value::Int(_) | Value::Float(_) | Value::Bool(_) | Value::Null => format!("{value:?}"),
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

/// The token id that a key declares, the first of a list. `None` without a declaration or a token
/// of this id.
fn id(meta: &Metadata, key: &str, vocabulary: &Vocabulary) -> Result<Option<u32>> {
    Ok(ids(meta, key, vocabulary)?.first().copied())
}

/// All declared token ids that exist, from one id or a list.
fn ids(meta: &Metadata, key: &str, vocabulary: &Vocabulary) -> Result<Vec<u32>> {
    let token = |n: i128| u32::try_from(n).ok().and_then(|id| existing(vocabulary, id));
    match meta.get(key) {
        None => Ok(Vec::new()),
        Some(Value::Int(n)) => Ok(token(*n).into_iter().collect()),
        Some(Value::Array(Array::Int(list))) => Ok(list.iter().filter_map(|&n| token(n.into())).collect()),
        Some(other) => Err(malformed(key, &describe(other), "a token id")),
    }
}

fn existing(vocabulary: &Vocabulary, id: u32) -> Option<u32> {
    ((id as usize) < vocabulary.len()).then_some(id)
}
