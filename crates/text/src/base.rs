//! A tokenizer in the header of a `.base` file that was made from a Hugging Face folder.
//!
//! Ingle stores the folder's files as texts, each under [`FILES_PREFIX`] and its name. BaseRT
//! stores them as JSON in one object, [`TOKENIZER_KEY`], with its own template in
//! `tokenizer.chat_template`; that object may also be tokenizer.json itself. The metadata has the
//! facts about tokens from config.json and generation_config.json.

use serde_json::{Value as Json, json};
use weights::keys::{FILES_PREFIX, GENERATION_PREFIX, TOKENIZER_KEY};
use weights::{Array, Metadata, Value};

use crate::{Error, Result, Tokenizer};

impl Tokenizer {
    /// Reads a tokenizer from the metadata of a `.base` file with Hugging Face's or BaseRT's names.
    /// `None` if it has no tokenizer.
    ///
    /// # Errors
    /// As [`Tokenizer::from_folder`].
    pub fn from_base(metadata: &Metadata) -> Result<Option<Tokenizer>> {
        let files = BaseFiles::new(metadata)?;
        Tokenizer::from_files(&|name| files.read(name))
    }
}

/// The folder's files as stored in the metadata of a `.base` file.
pub(crate) struct BaseFiles<'a> {
    metadata: &'a Metadata,
    /// BaseRT's object; null if there is none.
    object: Json,
}

impl<'a> BaseFiles<'a> {
    /// Reads the metadata.
    ///
    /// # Errors
    /// BaseRT's object is not JSON.
    pub(crate) fn new(metadata: &'a Metadata) -> Result<BaseFiles<'a>> {
        let object = metadata.str(TOKENIZER_KEY).map_or(Ok(Json::Null), serde_json::from_str);
        let object = object.map_err(|source| Error::Json { what: TOKENIZER_KEY.into(), source })?;
        Ok(BaseFiles { metadata, object })
    }

    /// The bytes of a file; `None` if the folder had none of this name.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Self { metadata, object } = self;
        if let Some(text) = metadata.str(&format!("{FILES_PREFIX}{name}")) {
            return Ok(Some(text.as_bytes().to_vec()));
        }
        let is_files = object.get("tokenizer.json").is_some();
        Ok(match name {
            "config.json" => special_tokens(metadata, ""),
            "generation_config.json" => special_tokens(metadata, GENERATION_PREFIX),
            "chat_template.jinja" => object
                .get("tokenizer.chat_template")
                .and_then(Json::as_str)
                .map(|text| text.as_bytes().to_vec()),
            _ if is_files => object.get(name).map(bytes),
            "tokenizer.json" => object.get("model").is_some().then(|| bytes(object)),
            _ => None,
        })
    }
}

fn bytes(json: &Json) -> Vec<u8> {
    json.to_string().into_bytes()
}

/// A configuration file with the begin and end tokens that the metadata names.
fn special_tokens(metadata: &Metadata, prefix: &str) -> Option<Vec<u8>> {
    let ids = |key: &str| match metadata.get(&format!("{prefix}{key}")) {
        Some(Value::Int(id)) => i64::try_from(*id).map(|id| vec![id]).unwrap_or_default(),
        Some(Value::Array(Array::Int(ids))) => ids.clone(),
        _ => Vec::new(),
    };
    let (begin, mut end) = (ids("bos_token_id"), ids("eos_token_id"));
    // BaseRT stores the first end token apart from the others.
    end.extend(ids("eos_token_ids"));
    let mut file = json!({});
    for (key, ids) in [("bos_token_id", begin), ("eos_token_id", end)] {
        if !ids.is_empty() {
            file[key] = json!(ids);
        }
    }
    file.as_object().is_some_and(|file| !file.is_empty()).then(|| bytes(&file))
}
