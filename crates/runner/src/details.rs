//! Details of a model from its files, for lists and for clients that choose by them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::SystemTime;

use engine::Model;
use sha2::{Digest, Sha256};
use text::AnswerFormat;

use crate::error::Result;

/// A model's numbers and abilities.
#[derive(Clone, Debug)]
pub struct ModelDetails {
    /// The file or folder.
    pub path: PathBuf,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Time of the file's last change.
    pub modified: Option<SystemTime>,
    /// 64 hexadecimal digits that identify the file by path, length and time. Hashing the content
    /// of large files would take minutes.
    pub digest: String,
    /// `gguf`, `safetensors`, …
    pub format: String,
    /// Architecture under GGUF's name: `llama`, `gemma3`, …
    pub architecture: &'static str,
    /// Number of values of all tensors.
    pub n_parameters: u64,
    /// Type of most of the layers' values: `Q4_1`, `F16`, …
    pub quantization: String,
    /// Context length in training, in tokens.
    pub n_ctx_train: usize,
    /// Columns of the residual stream.
    pub hidden: usize,
    /// Layers.
    pub n_layers: usize,
    /// Query heads of the first layer.
    pub n_heads: usize,
    /// Key and value heads of the first layer.
    pub n_kv_heads: usize,
    /// Columns of the feed-forward network of the first layer.
    pub ffn: usize,
    /// Tokens of the vocabulary.
    pub n_vocab: usize,
    /// Chat template, if it has one.
    pub template: Option<String>,
    /// True if the model generates text.
    pub writes: bool,
    /// True if the model computes embeddings.
    pub embeds: bool,
    /// True if the template supports reasoning.
    pub reasons: bool,
}

impl ModelDetails {
    /// Reads the details of an opened model.
    ///
    /// # Errors
    /// Its tokenizer is broken.
    pub fn of(model: &Model) -> Result<ModelDetails> {
        let spec = model.spec();
        let template = model.tokenizer()?.and_then(|tokenizer| tokenizer.chat_template()).map(str::to_owned);
        let format = template.as_deref().map(AnswerFormat::detect);
        let first = spec.layers.first();
        let embeds = model.embedding().is_ok();
        let modified = std::fs::metadata(model.path()).and_then(|meta| meta.modified()).ok();
        let place = format!("{}\n{}\n{modified:?}", model.path().display(), model.file_bytes());
        let digest: String = Sha256::digest(place).iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(ModelDetails {
            path: model.path().to_owned(),
            bytes: model.file_bytes(),
            modified,
            digest,
            format: model.format().split(' ').next().unwrap_or_default().to_lowercase(),
            architecture: spec.family.gguf.first().copied().unwrap_or(spec.family.name),
            n_parameters: spec.n_parameters,
            quantization: quantization(model),
            n_ctx_train: spec.n_ctx_train,
            hidden: spec.hidden,
            n_layers: spec.n_layers(),
            n_heads: first.map_or(0, |layer| layer.n_heads),
            n_kv_heads: first.map_or(0, |layer| layer.n_kv_heads),
            ffn: first.map_or(0, |layer| layer.ffn),
            n_vocab: spec.n_vocab,
            writes: !embeds && spec.encoder.is_none(),
            embeds,
            reasons: format.is_some_and(|format| format.reasons()),
            template,
        })
    }
}

/// The type of most values. Embeddings, often stored in a larger type, count only if there is
/// nothing else.
fn quantization(model: &Model) -> String {
    let mut values: BTreeMap<String, usize> = BTreeMap::new();
    for weight in &model.plan().weights {
        let n_values = weight.shape.iter().product::<usize>();
        // A table with one row for each token.
        let is_table = weight.shape.first() == Some(&model.spec().n_vocab);
        *values.entry(weight.block.to_string()).or_default() += if is_table { 1 } else { n_values };
    }
    let most = values.into_iter().max_by_key(|(_, n_values)| *n_values);
    most.map(|(name, _)| name.to_uppercase()).unwrap_or_default()
}
