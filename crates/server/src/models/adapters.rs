//! Adapters (LoRA) of models, loaded and unloaded while the server runs.
//!
//! A model's program is compiled with its adapters. So a change waits until the model's running answers have ended, holds back those
//! that come meanwhile, and loads the model anew, which reads its files again.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::{Entry, Model, Models, ServedAdapter, UNLOAD_TIME};
use crate::app::blocking;
use crate::error::{ApiError, ErrorKind, Result};
use crate::request::KeepAlive;

/// How often is looked whether answers have ended.
const LOOK: Duration = Duration::from_millis(10);

impl Models {
    /// The adapters of all models.
    pub(crate) fn adapters(&self) -> Vec<ServedAdapter> {
        self.loader.adapters()
    }

    /// The adapter of this name.
    pub(super) fn adapter(&self, name: &str) -> Option<ServedAdapter> {
        self.adapters().into_iter().find(|adapter| adapter.name == name)
    }

    /// Serve an adapter of a model; of the first one if it names none. `replace`: one of this name may be there.
    pub(crate) async fn load_adapter(&self, adapter: ServedAdapter, replace: bool) -> Result<()> {
        let name = adapter.name.clone();
        let entry = self.find(&adapter.model).await?;
        let adapter = ServedAdapter { model: entry.id.clone(), ..adapter };
        if self.names().contains(&name) {
            let message = format!("the name `{name}` is a model's, expected another for the adapter");
            return Err(ApiError::invalid("lora_name", message));
        }
        let known = self.adapter(&name);
        if known.as_ref().is_some_and(|known| !replace || known.model != adapter.model) {
            let message = format!(
                "the adapter `{name}` is loaded already; unload it first, or set `load_inplace` to load it anew"
            );
            return Err(ApiError::invalid("lora_name", message));
        }
        self.loader.remove_adapter(&name);
        let added = self.loader.add_adapter(adapter);
        let changed = match added {
            Ok(()) => self.reload(&entry, true).await,
            Err(error) => Err(error),
        };
        if changed.is_err() {
            self.loader.remove_adapter(&name);
            known.map(|known| self.loader.add_adapter(known)).transpose()?;
        }
        changed.map_err(|error| match error.kind {
            // The files, or that they do not fit the model.
            ErrorKind::Internal => ApiError::invalid("lora_path", error.message),
            _ => error,
        })
    }

    /// Serve an adapter no longer.
    pub(crate) async fn unload_adapter(&self, name: &str) -> Result<()> {
        let Some(adapter) = self.adapter(name) else {
            let message = format!("there is no adapter `{name}`");
            return Err(ApiError::new(ErrorKind::NotFound, message));
        };
        let entry = self.find(&adapter.model).await?;
        self.loader.remove_adapter(name);
        self.reload(&entry, false).await
    }

    /// Wait until nobody uses a model, and load it anew, `always` or if it is loaded.
    async fn reload(&self, entry: &Arc<Entry>, always: bool) -> Result<()> {
        // Whoever asks for the model from here on waits.
        let mut loaded = entry.loaded.lock().await;
        if loaded.is_none() && !always {
            return Ok(());
        }
        while !forget(entry, &mut loaded) {
            tokio::time::sleep(LOOK).await;
        }
        let ended = entry.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ended) = ended {
            blocking(move || {
                // It is disconnected, or the time is over: then the load says what is missing.
                let _ = ended.recv_timeout(UNLOAD_TIME);
                Ok(())
            })
            .await?;
        }
        let model = self.load(entry).await?;
        *loaded = Some(model.clone());
        let mut shown = entry.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.model = Some(model);
        shown.is_unwanted = false;
        shown.expires = match self.keep_alive {
            KeepAlive::Always => None,
            KeepAlive::For(time) => Instant::now().checked_add(time),
        };
        Ok(())
    }
}

/// Give a model up if nobody uses it; whether that was so.
fn forget(entry: &Entry, loaded: &mut Option<Model>) -> bool {
    let mut shown = entry.shown.lock().unwrap_or_else(PoisonError::into_inner);
    let is_free = shown.n_users == 0;
    if is_free {
        (*loaded, shown.model, shown.expires) = (None, None, None);
    }
    is_free
}
