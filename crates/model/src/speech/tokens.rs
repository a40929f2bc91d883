//! Special tokens, by their names in the files or by their places in OpenAI's vocabularies.

use std::collections::HashMap;

use weights::keys::GENERATION_PREFIX;
use weights::{Array, Naming, Value, keys};

use super::Config;
use super::tables::{
    ENGLISH_NON_SPEECH, ENGLISH_TEXT, ENGLISH_VOCAB, LANGUAGES, MULTILINGUAL_NON_SPEECH, MULTILINGUAL_TEXT,
    MULTILINGUAL_VOCAB, N_TIMESTAMPS, SPACE,
};
use crate::error::{Error, Result};
use crate::keys::show;

/// Special tokens. Every id is below the vocabulary's size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpeechTokens {
    /// End of text.
    pub eot: u32,
    /// Start of a transcript.
    pub sot: u32,
    /// True if language and task tokens follow the start.
    pub multilingual: bool,
    /// Language codes and their tokens, in the order of the tokens; empty if there is only one
    /// language.
    pub languages: Vec<(String, u32)>,
    /// Task token of translation to English.
    pub translate: u32,
    /// Task token of transcription.
    pub transcribe: u32,
    /// Start of text without speech.
    pub sot_lm: u32,
    /// Start of the previous text.
    pub sot_prev: u32,
    /// Token for no speech.
    pub no_speech: u32,
    /// Token that turns timestamps off.
    pub no_timestamps: u32,
    /// The timestamp 0.00. The others follow, one every 0.02 s, to the end of the vocabulary.
    pub timestamp_begin: u32,
    /// Tokens that are never sampled, ascending.
    pub suppress: Vec<u32>,
    /// Tokens that are never sampled first, ascending.
    pub suppress_begin: Vec<u32>,
}

/// Tokens known before any are derived.
#[derive(Default)]
struct Known {
    eot: Option<u32>,
    sot: Option<u32>,
    multilingual: Option<bool>,
    languages: Vec<(String, u32)>,
    translate: Option<u32>,
    transcribe: Option<u32>,
    sot_lm: Option<u32>,
    sot_prev: Option<u32>,
    no_speech: Option<u32>,
    no_timestamps: Option<u32>,
}

impl SpeechTokens {
    /// The token of a language's code.
    pub fn language(&self, code: &str) -> Option<u32> {
        self.languages.iter().find(|(known, _)| known == code).map(|(_, id)| *id)
    }

    /// Reads the tokens from the files. Missing ones are derived from the vocabulary's size, or
    /// from the order of special tokens, which all vocabularies share.
    pub(super) fn read(config: &Config<'_>, n_vocab: usize) -> Result<SpeechTokens> {
        let said = match config.naming {
            Naming::HuggingFace => generation_config(config, n_vocab)?,
            Naming::CTranslate2 => vocabulary(config, n_vocab)?,
            Naming::Gguf | Naming::Base | Naming::WhisperCpp => Known::default(),
        };
        let usual = usual(n_vocab);
        let missing = |keys: &str, what: &str| Error::MissingKey {
            keys: keys.to_owned(),
            expected: format!(
                "the token {what}, or a vocabulary of {ENGLISH_VOCAB}, {MULTILINGUAL_VOCAB} or more"
            ),
        };
        let no_timestamps = said
            .no_timestamps
            .or(usual.as_ref().and_then(|u| u.no_timestamps))
            .ok_or_else(|| missing("no_timestamps_token_id", "notimestamps"))?;
        let sot = said
            .sot
            .or(usual.as_ref().and_then(|u| u.sot))
            .ok_or_else(|| missing("decoder_start_token_id", "startoftranscript"))?;
        let timestamp_begin = no_timestamps + 1;
        if timestamp_begin as usize >= n_vocab || sot == 0 || no_timestamps < 5 {
            return Err(Error::BadKey {
                key: "special tokens".to_owned(),
                found: format!(
                    "startoftranscript {sot} and notimestamps {no_timestamps} of {n_vocab} tokens"
                ),
                expected: "the first right after the text tokens, and timestamps after the second".to_owned(),
            });
        }
        let multilingual = said.multilingual.unwrap_or(match &usual {
            Some(usual) => usual.multilingual == Some(true),
            None => !said.languages.is_empty(),
        });
        let languages = match (multilingual, said.languages.is_empty()) {
            (false, _) => Vec::new(),
            (true, false) => said.languages,
            (true, true) => usual.as_ref().map(|u| u.languages.clone()).unwrap_or_default(),
        };
        if multilingual && languages.is_empty() {
            return Err(missing("lang_to_id", "of a language"));
        }
        let mut tokens = SpeechTokens {
            eot: said.eot.unwrap_or(sot - 1),
            sot,
            multilingual,
            languages,
            translate: said.translate.unwrap_or(no_timestamps - 5),
            transcribe: said.transcribe.unwrap_or(no_timestamps - 4),
            sot_lm: said.sot_lm.unwrap_or(no_timestamps - 3),
            sot_prev: said.sot_prev.unwrap_or(no_timestamps - 2),
            no_speech: said.no_speech.unwrap_or(no_timestamps - 1),
            no_timestamps,
            timestamp_begin,
            suppress: Vec::new(),
            suppress_begin: Vec::new(),
        };
        let (suppress, first) = match config.naming {
            Naming::CTranslate2 => ("suppress_ids", "suppress_ids_begin"),
            Naming::HuggingFace | Naming::Base | Naming::Gguf | Naming::WhisperCpp => {
                ("suppress_tokens", "begin_suppress_tokens")
            }
        };
        let (text, space): (&[u32], Option<u32>) = match n_vocab {
            _ if usual.is_none() => (&[], None),
            ENGLISH_VOCAB => (ENGLISH_NON_SPEECH, Some(SPACE)),
            _ => (MULTILINGUAL_NON_SPEECH, Some(SPACE)),
        };
        let SpeechTokens { eot, translate, transcribe, sot_lm, sot_prev, no_speech, .. } = tokens;
        let special = [sot, translate, transcribe, sot_lm, sot_prev, no_speech];
        tokens.suppress = match ids(config, suppress, n_vocab)? {
            Some(ids) => ids,
            None => ascending(text.iter().copied().chain(special)),
        };
        tokens.suppress_begin = match ids(config, first, n_vocab)? {
            Some(ids) => ids,
            None => ascending(space.into_iter().chain([eot])),
        };
        Ok(tokens)
    }
}

/// The special tokens of a vocabulary whose size OpenAI published.
fn usual(n_vocab: usize) -> Option<Known> {
    let multilingual = n_vocab >= MULTILINGUAL_VOCAB;
    let text = match n_vocab {
        ENGLISH_VOCAB => ENGLISH_TEXT,
        _ => MULTILINGUAL_TEXT,
    };
    // Text tokens and two more precede the languages; six more and the timestamps follow.
    let n_languages = u32::try_from(n_vocab).ok()?.checked_sub(text + 2 + 6 + N_TIMESTAMPS)? as usize;
    let languages = LANGUAGES.get(..n_languages).filter(|known| known.len() + 1 >= LANGUAGES.len())?;
    let sot = text + 1;
    Some(Known {
        sot: Some(sot),
        multilingual: Some(multilingual),
        languages: languages.iter().map(|code| (*code).to_owned()).zip(sot + 1..).collect(),
        no_timestamps: u32::try_from(n_vocab).ok()?.checked_sub(N_TIMESTAMPS + 1),
        ..Known::default()
    })
}

/// Tokens in generation_config.json, or in config.json.
fn generation_config(config: &Config<'_>, n_vocab: usize) -> Result<Known> {
    let get = |key: &str| id(config, key, n_vocab);
    let prefix = format!("{GENERATION_PREFIX}lang_to_id.");
    let mut languages = Vec::new();
    for (key, value) in config.metadata.iter() {
        let Some(token) = key.strip_prefix(&prefix) else { continue };
        let code = code_of(token).ok_or_else(|| bad(key, format!("{token:?}"), "a token such as <|en|>"))?;
        languages.push((code.to_owned(), one_id(key, value, n_vocab)?));
    }
    languages.sort_by_key(|(_, id)| *id);
    let multilingual = match config.find("is_multilingual") {
        None => None,
        Some((_, Value::Bool(multilingual))) => Some(*multilingual),
        Some((key, other)) => return Err(bad(&key, show(other), "true or false")),
    };
    Ok(Known {
        eot: get("eos_token_id")?,
        sot: get("decoder_start_token_id")?,
        multilingual,
        languages,
        translate: get("task_to_id.translate")?,
        transcribe: get("task_to_id.transcribe")?,
        sot_prev: get("prev_sot_token_id")?,
        no_timestamps: get("no_timestamps_token_id")?,
        ..Known::default()
    })
}

/// Tokens by their names in the vocabulary.
fn vocabulary(config: &Config<'_>, n_vocab: usize) -> Result<Known> {
    let Some(list) = config.metadata.array(keys::VOCABULARY) else { return Ok(Known::default()) };
    let token = |i: usize| list.str_bytes(i).and_then(|bytes| std::str::from_utf8(bytes).ok());
    let special: HashMap<&str, u32> =
        (0..list.len().min(n_vocab)).filter_map(|i| Some((code_of(token(i)?)?, i as u32))).collect();
    let get = |name: &str| special.get(name).copied();
    let (sot, translate) = (get("startoftranscript"), get("translate"));
    // Languages lie between these two tokens.
    let between = sot.zip(translate).map_or(0..0, |(sot, translate)| sot + 1..translate);
    let languages: Vec<(String, u32)> =
        between.filter_map(|id| Some((code_of(token(id as usize)?)?.to_owned(), id))).collect();
    Ok(Known {
        eot: get("endoftext"),
        sot,
        multilingual: Some(n_vocab != ENGLISH_VOCAB && !languages.is_empty()),
        languages,
        translate,
        transcribe: get("transcribe"),
        sot_lm: get("startoflm"),
        sot_prev: get("startofprev"),
        no_speech: get("nospeech").or(get("nocaptions")),
        no_timestamps: get("notimestamps"),
    })
}

/// `en` of `<|en|>`.
fn code_of(token: &str) -> Option<&str> {
    token.strip_prefix("<|")?.strip_suffix("|>")
}

/// A token's id, if the files have it; of a list, the first.
fn id(config: &Config<'_>, key: &str, n_vocab: usize) -> Result<Option<u32>> {
    config.find(key).map(|(key, value)| one_id(&key, value, n_vocab)).transpose()
}

fn one_id(key: &str, value: &Value, n_vocab: usize) -> Result<u32> {
    let number = match value {
        Value::Int(i) => usize::try_from(*i).ok(),
        Value::Array(Array::Int(list)) => list.first().and_then(|i| usize::try_from(*i).ok()),
        Value::Null | Value::Bool(_) | Value::Float(_) | Value::Str(_) | Value::Array(_) => None,
    };
    let id = number.filter(|n| *n < n_vocab).and_then(|n| u32::try_from(n).ok());
    id.ok_or_else(|| bad(key, show(value), format!("a token below {n_vocab}")))
}

/// A list of tokens, ascending, if the files have it.
fn ids(config: &Config<'_>, key: &str, n_vocab: usize) -> Result<Option<Vec<u32>>> {
    let Some((key, value)) = config.find(key) else { return Ok(None) };
    let Value::Array(Array::Int(list)) = value else {
        return Err(bad(&key, show(value), "a list of tokens"));
    };
    let ids = list.iter().map(|id| one_id(&key, &Value::Int((*id).into()), n_vocab));
    Ok(Some(ascending(ids.collect::<Result<Vec<u32>>>()?.into_iter())))
}

fn ascending(ids: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut ids: Vec<u32> = ids.collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn bad(key: &str, found: impl ToString, expected: impl ToString) -> Error {
    Error::BadKey { key: key.to_owned(), found: found.to_string(), expected: expected.to_string() }
}
