//! Use of a model, which keeps it loaded.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::entry::Entry;
use super::model::{EmbedderModel, Model};
use super::text::TextModel;
use crate::error::{RequestError, Result};
use crate::request::KeepAlive;
use crate::transcriber::SpeechModel;

/// A model in use, which is not unloaded before this is dropped.
pub(crate) struct Lease {
    pub(super) entry: Arc<Entry>,
    pub(crate) model: Model,
    pub(super) keep_alive: KeepAlive,
    pub(super) tenant: u64,
    /// The adapter to compute with; `None` for the model alone.
    pub(crate) adapter: Option<Arc<str>>,
    /// Time that the user waited for loading.
    pub(crate) load_time: Duration,
}

impl Lease {
    /// The model's id, or its adapter's.
    pub(crate) fn id(&self) -> &str {
        self.adapter.as_deref().unwrap_or(&self.entry.id)
    }

    /// The model, if it generates text.
    ///
    /// # Errors
    /// It does not.
    pub(crate) fn text(&self) -> Result<&TextModel> {
        match &self.model {
            Model::Text(model) => Ok(model),
            Model::Embedder(_) => {
                let message = format!(
                    "the model `{}` computes embeddings and does not generate text; use /v1/embeddings",
                    self.id()
                );
                Err(RequestError::invalid("model", message))
            }
            Model::Speech(_) => Err(self.only_speech()),
        }
    }

    /// The model, if it computes embeddings.
    ///
    /// # Errors
    /// It does not.
    pub(crate) fn embedder(&self) -> Result<&EmbedderModel> {
        match &self.model {
            Model::Embedder(model) => Ok(model),
            Model::Text(_) => {
                let message = format!("the model `{}` generates text and computes no embeddings", self.id());
                Err(RequestError::invalid("model", message))
            }
            Model::Speech(_) => Err(self.only_speech()),
        }
    }

    /// The model, if it transcribes speech.
    ///
    /// # Errors
    /// It does not.
    pub(crate) fn speech(&self) -> Result<&SpeechModel> {
        match &self.model {
            Model::Speech(model) => Ok(model),
            Model::Text(_) | Model::Embedder(_) => {
                let message = format!(
                    "the model `{}` does not transcribe speech; expected a speech model such as Whisper",
                    self.id()
                );
                Err(RequestError::invalid("model", message))
            }
        }
    }

    fn only_speech(&self) -> RequestError {
        let message =
            format!("the model `{}` only transcribes speech; use /v1/audio/transcriptions", self.id());
        RequestError::invalid("model", message)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut shown = self.entry.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.n_users -= 1;
        let until = match self.keep_alive {
            KeepAlive::Always => None,
            KeepAlive::For(time) => Instant::now().checked_add(time),
        };
        shown.claims.end(self.tenant, until);
        shown.expires = if shown.is_unwanted { Some(Instant::now()) } else { shown.claims.until() };
    }
}
