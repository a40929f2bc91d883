//! A tokenizer in a Hugging Face folder: tokenizer.json, and the files beside it with its settings.
//!
//! The `tokenizers` library encodes. It trusts the file in some places, so everything that it
//! trusts is checked here first. Random or truncating features (dropout, truncation, padding) are
//! removed. Decoding uses this crate's bytes of each token.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::OnceLock;

use hashbrown::HashMap;
use serde_json::Value;

use crate::tokenizer::{Declared, Encoder};
use crate::vocabulary::{Kind, SPACE_MARK, Spelling, Vocabulary, byte_of, string_array};
use crate::{Error, Result, Specials, Tokenizer};

/// Largest file, in bytes. The largest tokenizer.json in use have 35 MB.
const MAX_FILE: usize = 512 << 20;
/// Highest token id; vocabularies in use have 262,144 tokens.
const MAX_TOKEN: u32 = 1 << 22;
/// Maximum number of bytes of a regular expression; compiled ones are larger by orders of
/// magnitude.
const MAX_PATTERN: usize = 1 << 13;
/// Largest factor by which the parts may lengthen a text: a chain of `Replace` could fill any
/// memory.
const MAX_GROWTH: usize = 1 << 12;
/// Maximum number of characters of a word in WordPiece, whose time grows with the third power.
/// BERT's limit is 100.
const MAX_WORD: u64 = 1000;

/// Normalisers that are safe for any input. `Precompiled` walks a table of the file without checks,
/// so it is not among them.
const NORMALIZERS: &[&str] = &[
    "BertNormalizer",
    "ByteLevel",
    "Lowercase",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Nmt",
    "Prepend",
    "Replace",
    "Sequence",
    "Strip",
    "StripAccents",
];
const PRE_TOKENIZERS: &[&str] = &[
    "BertPreTokenizer",
    "ByteLevel",
    "CharDelimiterSplit",
    "Digits",
    "Metaspace",
    "Punctuation",
    "Sequence",
    "Split",
    "UnicodeScripts",
    "Whitespace",
    "WhitespaceSplit",
];
const MODELS: &[&str] = &["BPE", "Unigram", "WordLevel", "WordPiece"];

/// The encoder of a tokenizer.json.
pub(crate) struct HuggingFace {
    parsing: tokenizers::Tokenizer,
    /// The tokenizer with special tokens as plain text, made at first use.
    literal: OnceLock<tokenizers::Tokenizer>,
}

impl HuggingFace {
    /// Appends the tokens of a text, without those of the post-processor.
    pub(crate) fn encode(&self, text: &str, specials: Specials, out: &mut Vec<u32>) -> Result<()> {
        let tokenizer = match specials {
            Specials::Parse => &self.parsing,
            Specials::Literal => self.literal.get_or_init(|| {
                let mut literal = self.parsing.clone();
                literal.set_encode_special_tokens(true);
                literal
            }),
        };
        let encoding = guarded(|| tokenizer.encode_fast(text, false).map_err(refused))?;
        out.extend_from_slice(encoding.get_ids());
        Ok(())
    }
}

impl Tokenizer {
    /// Reads a folder with tokenizer.json, and optional tokenizer_config.json,
    /// special_tokens_map.json, generation_config.json and chat_template.jinja. `None` without a
    /// tokenizer.json.
    ///
    /// # Errors
    /// A file cannot be read, is not JSON, or has content that [`Tokenizer::from_json`] refuses.
    pub fn from_folder(dir: &Path) -> Result<Option<Tokenizer>> {
        Tokenizer::from_files(&|name| read(dir, name))
    }

    /// Like [`Self::from_folder`], with files read by `read`, which returns `None` for a missing
    /// file.
    ///
    /// # Errors
    /// As [`Self::from_folder`]; those of `read`.
    pub fn from_files(read: &ReadFile<'_>) -> Result<Option<Tokenizer>> {
        let parts =
            documents(read)?.map(|(json, config, jinja)| Parts::new(json, &config, jinja)).transpose()?;
        Ok(parts.map(Parts::build))
    }

    /// Reads the bytes of a tokenizer.json and of the tokenizer_config.json beside it.
    ///
    /// # Errors
    /// Either is not JSON; a part of the tokenizer is of an unknown kind or unsafe for untrusted
    /// files; the vocabulary contradicts itself.
    pub fn from_json(bytes: &[u8], config: Option<&[u8]>) -> Result<Tokenizer> {
        let json = parse("tokenizer.json", bytes)?;
        let config = config.map_or(Ok(Value::Null), |bytes| parse("tokenizer_config.json", bytes))?;
        Ok(Parts::new(json, &config, None)?.build())
    }
}

/// Returns the bytes of a model's file by its name; `None` if there is none.
pub(crate) type ReadFile<'a> = dyn Fn(&str) -> Result<Option<Vec<u8>>> + 'a;

/// tokenizer.json; tokenizer_config.json with additions from the files beside it;
/// chat_template.jinja.
type Documents = (Value, Value, Option<String>);

/// Reads a tokenizer's files; `None` without a tokenizer.json.
pub(crate) fn documents(read: &ReadFile<'_>) -> Result<Option<Documents>> {
    let Some(json) = read("tokenizer.json")? else { return Ok(None) };
    let json = parse("tokenizer.json", &json)?;
    let mut config = match read("tokenizer_config.json")? {
        Some(bytes) => parse("tokenizer_config.json", &bytes)?,
        None => Value::Object(serde_json::Map::new()),
    };
    for (file, keys) in [
        ("special_tokens_map.json", &["bos_token", "eos_token"][..]),
        ("generation_config.json", &["eos_token_id", "bos_token_id"]),
        ("config.json", &["eos_token_id", "bos_token_id"]),
    ] {
        let missing = keys.iter().any(|key| config.get(key).is_none_or(Value::is_null));
        let Some(bytes) = missing.then(|| read(file)).transpose()?.flatten() else { continue };
        let other = parse(file, &bytes)?;
        for key in keys {
            if config.get(key).is_none_or(Value::is_null)
                && let (Some(object), Some(value)) = (config.as_object_mut(), other.get(key))
            {
                object.insert((*key).into(), value.clone());
            }
        }
    }
    let jinja = read("chat_template.jinja")?
        .map(|source| String::from_utf8(source).map_err(|e| malformed("chat_template.jinja", &e, "UTF-8")))
        .transpose()?;
    Ok(Some((json, config, jinja)))
}

/// All parts of a [`Tokenizer`].
pub(crate) struct Parts {
    pub(crate) vocabulary: Vocabulary,
    encoder: HuggingFace,
    pub(crate) declared: Declared,
}

impl Parts {
    fn build(self) -> Tokenizer {
        Tokenizer::new(self.vocabulary, Encoder::HuggingFace(Box::new(self.encoder)), self.declared)
    }

    /// Reads the documents. The chat template of a separate file overrides theirs.
    pub(crate) fn new(mut json: Value, config: &Value, jinja: Option<String>) -> Result<Parts> {
        let root =
            json.as_object_mut().ok_or_else(|| malformed("tokenizer.json", &"no object", "an object"))?;
        let post_processor = root.remove("post_processor").unwrap_or_default();
        let decoder = root.remove("decoder").unwrap_or_default();
        root.remove("truncation");
        root.remove("padding");
        check_parts(root.get("normalizer"), "normalizer", "normalizers", NORMALIZERS)?;
        check_parts(root.get("pre_tokenizer"), "pre_tokenizer", "pretokenizers", PRE_TOKENIZERS)?;
        let model = root
            .get_mut("model")
            .and_then(Value::as_object_mut)
            .ok_or_else(|| Error::Missing { key: "model".into(), why: "it holds the vocabulary" })?;
        model.remove("dropout");
        name_model(model);
        check_model(model)?;
        let pieces = repeated_pieces(model);
        check_added_tokens(root.get_mut("added_tokens"))?;
        let (spelling, byte_tokens, leading_space) = spelling(&decoder, root.get("pre_tokenizer"));

        let parsing: tokenizers::Tokenizer =
            guarded(|| serde_json::from_value(json).map_err(|e| Error::HuggingFace(e.to_string())))?;
        let vocabulary = vocabulary(&parsing, &pieces, spelling, byte_tokens)?;
        let (mut prefix, mut suffix) = (Vec::new(), Vec::new());
        around(&post_processor, &mut prefix, &mut suffix)?;
        for &id in prefix.iter().chain(&suffix) {
            check_id("post_processor", u64::from(id), &vocabulary)?;
        }

        let named = |key: &str| token_text(config.get(key)).and_then(|text| vocabulary.id(text));
        let mut ends = ids(config.get("eos_token_id"), &vocabulary);
        let bos = named("bos_token").or(ids(config.get("bos_token_id"), &vocabulary).first().copied());
        let eos = named("eos_token").or(ends.first().copied());
        ends.retain(|&id| Some(id) != eos);
        if let (Some(add), Some(bos)) = (config.get("add_bos_token").and_then(Value::as_bool), bos) {
            prefix.retain(|&id| id != bos);
            prefix.splice(..0, add.then_some(bos));
        }
        if let (Some(add), Some(eos)) = (config.get("add_eos_token").and_then(Value::as_bool), eos) {
            suffix.retain(|&id| id != eos);
            suffix.extend(add.then_some(eos));
        }
        let mut chat_templates = chat_templates(config.get("chat_template"));
        if let Some(source) = jinja {
            chat_templates.retain(|(name, _)| !name.is_empty() && name != "default");
            chat_templates.push((String::new(), source));
        }
        let declared =
            Declared { bos, eos, ends, prefix, suffix, leading_space, chat_templates, ..Declared::default() };
        Ok(Parts { vocabulary, encoder: HuggingFace { parsing, literal: OnceLock::new() }, declared })
    }
}

/// Checks that every part, also within sequences, is of a kind that is safe for hostile input.
/// Returns the factor by which the parts together may lengthen a text.
fn check_parts(part: Option<&Value>, key: &str, children: &str, known: &[&str]) -> Result<usize> {
    let Some(part) = part.filter(|part| !part.is_null()) else { return Ok(1) };
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
    if !known.contains(&kind) {
        return Err(Error::Unknown {
            key: format!("{key}.type"),
            found: kind.into(),
            known: known.join(", "),
        });
    }
    let length = |key: &str| part.get(key).and_then(Value::as_str).map_or(0, str::len);
    let pattern =
        part.get("pattern").and_then(|p| p.get("Regex").or(p.get("String"))).and_then(Value::as_str);
    if let Some(len) = pattern.map(str::len).filter(|&len| len > MAX_PATTERN) {
        return Err(malformed(&format!("{key}.pattern"), &format!("{len} bytes"), "at most 8192"));
    }
    let mut growth = match kind {
        "ByteLevel" => 2,
        "Metaspace" => length("replacement").max(length("str_rep")).max(3),
        _ => length("content").max(length("prepend")).max(1),
    };
    for child in part.get(children).and_then(Value::as_array).into_iter().flatten() {
        growth = growth.saturating_mul(check_parts(Some(child), key, children, known)?);
    }
    if growth > MAX_GROWTH {
        let found = format!("parts that make a text {growth} times as long");
        return Err(malformed(key, &found, "at most 4096 times"));
    }
    Ok(growth)
}

/// The library joins the parts of a merge in a buffer of the longest token's length, unchecked.
fn check_model(model: &serde_json::Map<String, Value>) -> Result<()> {
    let kind = model.get("type").and_then(Value::as_str).unwrap_or_default();
    if !MODELS.contains(&kind) {
        return Err(Error::Unknown {
            key: "model.type".into(),
            found: kind.into(),
            known: MODELS.join(", "),
        });
    }
    if kind == "Unigram" {
        let pieces = model.get("vocab").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        if pieces.iter().any(|piece| piece.get(0).and_then(Value::as_str) == Some("")) {
            return Err(malformed("model.vocab", &"an empty token", "tokens of at least one character"));
        }
        let unknown = model.get("unk_id").filter(|id| !id.is_null());
        return match unknown.filter(|id| id.as_u64().is_none_or(|id| id >= pieces.len() as u64)) {
            None => Ok(()),
            Some(id) => Err(Error::TokenOutOfRange {
                key: "model.unk_id".into(),
                id: id.to_string(),
                n_tokens: pieces.len(),
            }),
        };
    }
    let vocab = model
        .get("vocab")
        .and_then(Value::as_object)
        .ok_or_else(|| Error::Missing { key: "model.vocab".into(), why: "it holds the vocabulary" })?;
    if let Some(n) = model.get("max_input_chars_per_word").and_then(Value::as_u64).filter(|&n| n > MAX_WORD) {
        return Err(malformed("model.max_input_chars_per_word", &n, "at most 1000"));
    }
    for (text, id) in vocab {
        if id.as_u64().is_none_or(|id| id > u64::from(MAX_TOKEN)) {
            return Err(malformed("model.vocab", &format!("{id} for {text:?}"), "an id up to 4194304"));
        }
    }
    let prefix = model.get("continuing_subword_prefix").and_then(Value::as_str).unwrap_or_default();
    let merges = model.get("merges").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for (index, merge) in merges.iter().enumerate() {
        let pair = match merge {
            Value::String(merge) => merge.split_once(' '),
            Value::Array(pair) => match pair.as_slice() {
                [Value::String(left), Value::String(right)] => Some((left.as_str(), right.as_str())),
                _ => None,
            },
            _ => None,
        };
        let (left, right) = pair.ok_or_else(|| {
            malformed(&format!("model.merges[{index}]"), merge, "two tokens with a space between")
        })?;
        let Some(continued) = right.strip_prefix(prefix).filter(|_| kind == "BPE") else {
            return Err(malformed(
                &format!("model.merges[{index}]"),
                merge,
                "a second part with the prefix of continued words",
            ));
        };
        let joint = format!("{left}{continued}");
        for token in [left, right, &joint] {
            if !vocab.contains_key(token) {
                return Err(Error::UnknownMerge {
                    index,
                    merge: format!("{left} {right}"),
                    missing: token.into(),
                });
            }
        }
    }
    Ok(())
}

/// Sets the kind of a model in files that omit it, as the first ones do.
fn name_model(model: &mut serde_json::Map<String, Value>) {
    let kind = match model.get("vocab") {
        Some(Value::Array(_)) => "Unigram",
        Some(_) if model.contains_key("merges") => "BPE",
        Some(_) if model.contains_key("continuing_subword_prefix") => "WordPiece",
        Some(_) => "WordLevel",
        None => return,
    };
    model.entry("type").or_insert_with(|| kind.into());
}

/// Ids of a Unigram model's repeated pieces. The library finds the last of each by its text.
fn repeated_pieces(model: &serde_json::Map<String, Value>) -> Vec<(usize, String)> {
    let pieces = model.get("vocab").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut last = HashMap::<&str, usize, foldhash::fast::RandomState>::default();
    let mut repeated = Vec::new();
    for (id, piece) in pieces.iter().enumerate() {
        let text = piece.get(0).and_then(Value::as_str).unwrap_or_default();
        if let Some(before) = last.insert(text, id) {
            repeated.push((before, text.to_owned()));
        }
    }
    repeated
}

/// Removes added tokens without text, which the library does not number, and checks that the others
/// have one.
fn check_added_tokens(added: Option<&mut Value>) -> Result<()> {
    let Some(added) = added.and_then(Value::as_array_mut) else { return Ok(()) };
    added.retain(|token| token.get("content").and_then(Value::as_str) != Some(""));
    match added.iter().position(|token| token.get("content").is_none_or(|content| !content.is_string())) {
        None => Ok(()),
        Some(i) => Err(malformed(&format!("added_tokens[{i}].content"), &added[i], "text")),
    }
}

/// The tokens as the library numbers them, with gaps. Of texts with one id, the added token's is
/// used, or else the first in alphabetical order.
fn vocabulary(
    tokenizer: &tokenizers::Tokenizer,
    repeated: &[(usize, String)],
    spelling: Spelling,
    byte_tokens: bool,
) -> Result<Vocabulary> {
    let by_text = tokenizer.get_vocab(true);
    let added = tokenizer.get_added_tokens_decoder();
    let highest = by_text.values().copied().max().unwrap_or(0);
    if highest > MAX_TOKEN {
        return Err(malformed("model.vocab", &format!("id {highest}"), "ids up to 4194304"));
    }
    let mut texts = vec![""; highest as usize + 1];
    for (text, &id) in &by_text {
        let is_added = |text: &str| added.get(&id).is_some_and(|token| token.content == text);
        if let Some(place) = texts.get_mut(id as usize)
            && (place.is_empty() || is_added(text) || (!is_added(place) && text.as_str() < *place))
        {
            *place = text;
        }
    }
    for (id, text) in repeated {
        if let Some(place) = texts.get_mut(*id).filter(|place| place.is_empty()) {
            *place = text;
        }
    }
    let mut kinds: Vec<Kind> = texts
        .iter()
        .map(|text| match text {
            &"" => Kind::Unused,
            text if byte_tokens && byte_of(text).is_some() => Kind::Byte,
            _ => Kind::Normal,
        })
        .collect();
    for (&id, token) in &added {
        if let Some(kind) = kinds.get_mut(id as usize) {
            *kind = if token.special { Kind::Control } else { Kind::UserDefined };
        }
    }
    Vocabulary::new("model.vocab", string_array(texts.into_iter())?, kinds, spelling)
}

/// The spelling of tokens; true if `<0x0A>` is a byte; and true if a text's first space was added.
/// The decoder's steps determine them.
fn spelling(decoder: &Value, pre_tokenizer: Option<&Value>) -> (Spelling, bool, bool) {
    let mut decoders = Vec::new();
    flatten(decoder, "decoders", &mut decoders);
    let has = |kind: &str| decoders.iter().any(|d| d.get("type").and_then(Value::as_str) == Some(kind));
    let mut pre_tokenizers = Vec::new();
    flatten(pre_tokenizer.unwrap_or(&Value::Null), "pretokenizers", &mut pre_tokenizers);
    let cut_by =
        |kind: &str| pre_tokenizers.iter().any(|d| d.get("type").and_then(Value::as_str) == Some(kind));

    let marks_spaces = decoders
        .iter()
        .any(|d| d.get("pattern").and_then(|p| p.get("String")).and_then(Value::as_str) == Some(SPACE_MARK));
    // `Strip` of one space at the start, or a `Metaspace` that prepends its mark, which is its
    // default.
    let strips = decoders.iter().any(|d| match d.get("type").and_then(Value::as_str) {
        Some("Strip") => d.get("start").and_then(Value::as_u64).is_some_and(|n| n > 0),
        Some("Metaspace") => {
            d.get("prepend_scheme").and_then(Value::as_str) != Some("never")
                && d.get("add_prefix_space").and_then(Value::as_bool) != Some(false)
        }
        Some("WordPiece") => true,
        _ => false,
    });
    let spelling = if has("ByteLevel") || (decoders.is_empty() && cut_by("ByteLevel")) {
        Spelling::ByteLevel
    } else if has("ByteFallback") || has("Metaspace") || marks_spaces {
        Spelling::SpaceMark
    } else if has("WordPiece") {
        Spelling::Hashes
    } else if has("BPEDecoder") {
        Spelling::WordEnd
    } else {
        Spelling::Plain
    };
    (spelling, has("ByteFallback"), strips)
}

/// A part, or the parts of a sequence.
pub(crate) fn flatten<'a>(part: &'a Value, children: &str, out: &mut Vec<&'a Value>) {
    match part.get(children).and_then(Value::as_array) {
        Some(list) => list.iter().for_each(|child| flatten(child, children, out)),
        None if part.is_null() => {}
        None => out.push(part),
    }
}

/// The tokens that the post-processor puts around a single text.
fn around(processor: &Value, prefix: &mut Vec<u32>, suffix: &mut Vec<u32>) -> Result<()> {
    let id_of = |pair: Option<&Value>| {
        pair.and_then(|p| p.get(1)).and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok())
    };
    match processor.get("type").and_then(Value::as_str) {
        Some("Sequence") => {
            for child in processor.get("processors").and_then(Value::as_array).into_iter().flatten() {
                around(child, prefix, suffix)?;
            }
        }
        Some("BertProcessing" | "RobertaProcessing") => {
            prefix.extend(id_of(processor.get("cls")));
            suffix.extend(id_of(processor.get("sep")));
        }
        Some("TemplateProcessing") => {
            let mut seen_text = false;
            for piece in processor.get("single").and_then(Value::as_array).into_iter().flatten() {
                let Some(token) = piece.get("SpecialToken") else {
                    seen_text |= piece.get("Sequence").is_some();
                    continue;
                };
                let name = token.get("id").and_then(Value::as_str).unwrap_or_default();
                let token_ids =
                    processor.get("special_tokens").and_then(|t| t.get(name)).and_then(|t| t.get("ids"));
                let token_ids = token_ids.and_then(Value::as_array).ok_or_else(|| Error::Missing {
                    key: format!("post_processor.special_tokens.{name}"),
                    why: "the template uses it",
                })?;
                let token_ids =
                    token_ids.iter().filter_map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()));
                if seen_text { suffix.extend(token_ids) } else { prefix.extend(token_ids) }
            }
        }
        _ => {}
    }
    Ok(())
}

/// Reads `"<s>"` or `{"content": "<s>", …}`.
pub(crate) fn token_text(value: Option<&Value>) -> Option<&str> {
    value.and_then(|v| v.as_str().or_else(|| v.get("content").and_then(Value::as_str)))
}

/// One id or a list of ids, without those that no token has.
fn ids(value: Option<&Value>, vocabulary: &Vocabulary) -> Vec<u32> {
    let list = match value {
        Some(Value::Array(list)) => list.as_slice(),
        Some(id @ Value::Number(_)) => std::slice::from_ref(id),
        _ => &[],
    };
    let id = |id: &Value| u32::try_from(id.as_u64()?).ok().filter(|&id| (id as usize) < vocabulary.len());
    list.iter().filter_map(id).collect()
}

fn check_id(key: &str, id: u64, vocabulary: &Vocabulary) -> Result<u32> {
    u32::try_from(id).ok().filter(|&id| (id as usize) < vocabulary.len()).ok_or_else(|| {
        Error::TokenOutOfRange { key: key.into(), id: id.to_string(), n_tokens: vocabulary.len() }
    })
}

/// One template, or a list of `{"name": …, "template": …}`.
fn chat_templates(value: Option<&Value>) -> Vec<(String, String)> {
    match value {
        Some(Value::String(source)) => vec![(String::new(), source.clone())],
        Some(Value::Array(list)) => {
            let text = |v: &Value, key| v.get(key).and_then(Value::as_str).map(str::to_owned);
            list.iter().filter_map(|v| Some((text(v, "name")?, text(v, "template")?))).collect()
        }
        _ => Vec::new(),
    }
}

/// Converts a panic of the library, on a file that passed the checks, to an error.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(Error::HuggingFace("the tokenizers library failed on this file".into())))
}

fn refused(error: tokenizers::Error) -> Error {
    Error::HuggingFace(error.to_string())
}

fn malformed(key: &str, found: &dyn std::fmt::Display, expected: &str) -> Error {
    let mut found = found.to_string();
    if let Some((at, _)) = found.char_indices().nth(200) {
        found.truncate(at);
    }
    Error::Malformed { key: key.into(), found, expected: expected.into() }
}

fn parse(what: &str, bytes: &[u8]) -> Result<Value> {
    serde_json::from_slice(bytes).map_err(|source| Error::Json { what: what.into(), source })
}

pub(crate) fn read(dir: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let file = dir.join(name);
    let io = |source| Error::Io { file: file.clone(), source };
    match std::fs::metadata(&file) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(io(e)),
        Ok(found) if found.len() > MAX_FILE as u64 => Err(Error::TooLong {
            what: "a file of the tokenizer",
            len: usize::try_from(found.len()).unwrap_or(usize::MAX),
            limit: MAX_FILE,
        }),
        Ok(_) => std::fs::read(&file).map(Some).map_err(io),
    }
}
