//! The lists of models, as clients and operators see them.

use std::sync::Arc;
use std::time::Duration;

use super::loader::Kind;
use crate::stats::Stats;

/// Status of a model.
#[derive(Clone, Debug)]
pub struct ModelStatus {
    /// Its id.
    pub id: String,
    /// The kind, if known: of models that were loaded or are on this machine.
    pub kind: Option<Kind>,
    /// Time until an idle model is unloaded; `None` if the model is in use, or stays loaded.
    pub expires_in: Option<Duration>,
    /// Facts of the loaded model; `None` if it is not loaded.
    pub loaded: Option<LoadedStatus>,
}

/// Facts of a loaded model.
#[derive(Clone, Debug)]
pub enum LoadedStatus {
    /// A model that generates text.
    Text(TextStatus),
    /// A model that computes embeddings.
    Embedder {
        /// Columns of a vector.
        n_dims: usize,
        /// Maximum number of tokens of a text.
        max_tokens: usize,
        /// Its metrics.
        stats: Arc<Stats>,
    },
    /// A model that transcribes speech.
    Speech {
        /// Codes of its languages.
        languages: Vec<String>,
        /// Its metrics.
        stats: Arc<Stats>,
    },
}

impl LoadedStatus {
    /// The model's metrics.
    pub fn stats(&self) -> &Arc<Stats> {
        match self {
            LoadedStatus::Text(TextStatus { stats, .. })
            | LoadedStatus::Embedder { stats, .. }
            | LoadedStatus::Speech { stats, .. } => stats,
        }
    }
}

/// Facts of a loaded model that generates text.
#[derive(Clone, Debug)]
pub struct TextStatus {
    /// Context length of a sequence, in tokens.
    pub n_ctx: usize,
    /// Context length in training, in tokens.
    pub n_ctx_train: usize,
    /// Number of concurrent sequences.
    pub n_slots: usize,
    /// Tokens of the vocabulary.
    pub n_vocab: usize,
    /// Bytes of its files.
    pub file_bytes: u64,
    /// The device that runs it: `cpu`, `metal`, …
    pub device: &'static str,
    /// Its metrics.
    pub stats: Arc<Stats>,
}
