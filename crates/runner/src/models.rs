//! The models of a runner: their names, which of them are loaded, and for how long.

mod adapters;
mod calls_key;
mod claims;
mod entry;
mod lease;
mod library;
mod loader;
mod model;
mod status;
mod text;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub(crate) use self::calls_key::{CallsKey, ForcedKey};
use self::entry::{Entry, unload};
pub(crate) use self::lease::Lease;
pub use self::loader::{Kind, LoadError, Loaded, Loader, PullProgress, ServedAdapter};
pub(crate) use self::model::EmbedderModel;
use self::model::{Model, ThreadEnd, spawn};
pub use self::status::{LoadedStatus, ModelStatus, TextStatus};
pub(crate) use self::text::{Facts, TextModel};

use crate::blocking::blocking;
use crate::error::{ErrorKind, Result};
use crate::request::KeepAlive;
use crate::tenant::tenant;

/// Longest wait for the memory of an unloaded model.
const UNLOAD_TIME: Duration = Duration::from_secs(2);

/// The models, by name.
pub(crate) struct Models {
    loader: Arc<dyn Loader>,
    /// Models of the command line in their order, then later ones.
    entries: RwLock<Vec<Arc<Entry>>>,
    keep_alive: KeepAlive,
    /// Tenant that loaded each adapter, by the adapter's name. Others cannot replace or unload it.
    adapter_owners: Mutex<HashMap<String, u64>>,
    /// Maximum number of waiting requests of a model that computes one request at a time.
    max_waiting: usize,
    /// Start time as Unix time in seconds, for lists.
    pub(crate) created: u64,
}

impl Models {
    pub(crate) fn new(
        names: Vec<String>,
        loader: Arc<dyn Loader>,
        keep_alive: KeepAlive,
        max_waiting: usize,
    ) -> Models {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let entries = RwLock::new(names.into_iter().map(Entry::new).collect());
        let adapter_owners = Mutex::default();
        let models = Models { loader, entries, keep_alive, adapter_owners, max_waiting, created };
        models.add(models.loader.installed());
        models
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.entries().iter().map(|entry| entry.id.clone()).collect()
    }

    /// The model of this name, loaded if necessary; the first model for an empty name.
    pub(crate) async fn get(&self, name: &str, keep_alive: Option<KeepAlive>) -> Result<Lease> {
        let begun = Instant::now();
        let entry = self.find(name).await?;
        let mut loaded = entry.loaded.lock().await;
        // The old thread reports the change to its users, and ends with the last one.
        if let Some(Err(error)) = loaded.as_ref().map(Model::check_files) {
            tracing::warn!("{} is reloaded: {error}", entry.id);
            *loaded = None;
            entry.shown.lock().unwrap_or_else(PoisonError::into_inner).model = None;
        }
        // After a panic the thread has ended although handles remain.
        if loaded.as_ref().is_some_and(|model| model.stats().pulse.has_died() || entry.has_ended()) {
            *loaded = None;
            entry.shown.lock().unwrap_or_else(PoisonError::into_inner).model = None;
            let ended = entry.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
            wait_for_memory(ended).await?;
        }
        let model = match &*loaded {
            Some(model) => model.clone(),
            None => {
                let model = self.load(&entry).await?;
                entry.kind.get_or_init(|| model.kind());
                *loaded = Some(model.clone());
                model
            }
        };
        let tenant = tenant();
        {
            let mut shown = entry.shown.lock().unwrap_or_else(PoisonError::into_inner);
            shown.model = Some(model.clone());
            shown.n_users += 1;
            shown.claims.begin(tenant);
            shown.is_unwanted = false;
        }
        drop(loaded);
        let keep_alive = keep_alive.unwrap_or(self.keep_alive);
        let adapter = self.adapter(name).map(|adapter| adapter.name.into());
        Ok(Lease {
            entry,
            model: model.of_tenant(tenant),
            keep_alive,
            tenant,
            adapter,
            load_time: begun.elapsed(),
        })
    }

    async fn load(&self, entry: &Arc<Entry>) -> Result<Model> {
        loop {
            let (loader, id) = (self.loader.clone(), entry.id.clone());
            let begun = Instant::now();
            match spawn(loader, id, self.max_waiting).await {
                Ok((model, ended)) => {
                    *entry.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
                    tracing::info!("loaded {} in {:.2} s", entry.id, begun.elapsed().as_secs_f64());
                    return Ok(model);
                }
                Err(error) if error.kind == ErrorKind::Unavailable => {
                    let Some(ended) = self.unload_one(Some(entry)) else { return Err(error) };
                    wait_for_memory(Some(ended)).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Unloads an idle model and waits until its memory is free. Returns true if there was one.
    pub(crate) fn unload_idle(&self) -> bool {
        let ended = self.unload_one(None);
        ended.map(|ended| ended.recv_timeout(UNLOAD_TIME)).is_some()
    }

    /// Unloads the model that has been idle longest, but none that is being loaded. The result
    /// signals when its memory is free.
    fn unload_one(&self, not: Option<&Arc<Entry>>) -> Option<ThreadEnd> {
        let idle = |entry: &&Arc<Entry>| {
            let shown = entry.shown.lock().unwrap_or_else(PoisonError::into_inner);
            !not.is_some_and(|not| Arc::ptr_eq(entry, not)) && shown.model.is_some() && shown.n_users == 0
        };
        let expires = |entry: &&Arc<Entry>| {
            entry
                .shown
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .expires
                .map_or((1, None), |t| (0, Some(t)))
        };
        let entries = self.entries();
        let oldest =
            entries.iter().filter(idle).min_by_key(expires).filter(|entry| unload(entry, |_| true))?;
        oldest.ended.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Unloads models whose time has passed.
    pub(crate) fn unload_expired(&self, now: Instant) {
        for entry in &self.entries() {
            unload(entry, |shown| shown.expires.is_some_and(|expires| expires <= now));
        }
    }

    /// Finds the kinds of models that have not been loaded. Reads the heads of their files, so it
    /// must not run on tokio's threads.
    pub(crate) fn find_kinds(&self) {
        for entry in self.entries().iter().filter(|entry| entry.kind.get().is_none()) {
            // An error is reported when the model is loaded.
            if let Ok(model) = self.loader.open(&entry.id) {
                entry.kind.get_or_init(|| Kind::of(&model));
            }
        }
    }

    /// Status of each model, in the order of the command line.
    pub(crate) fn list(&self) -> Vec<ModelStatus> {
        let status = |entry: &Arc<Entry>| {
            let shown = entry.shown.lock().unwrap_or_else(PoisonError::into_inner);
            let expires_in = shown.expires.map(|at| at.saturating_duration_since(Instant::now()));
            let expires_in = expires_in.filter(|_| shown.n_users == 0);
            let loaded = shown.model.as_ref().map(|model| match model {
                Model::Text(TextModel { facts, worker, .. }) => LoadedStatus::Text(TextStatus {
                    n_ctx: facts.n_ctx,
                    n_ctx_train: facts.model.spec().n_ctx_train,
                    n_slots: facts.n_slots,
                    n_vocab: facts.model.n_vocab(),
                    file_bytes: facts.model.file_bytes(),
                    device: facts.device,
                    stats: worker.stats.clone(),
                }),
                Model::Embedder(model) => {
                    let EmbedderModel { n_dims, max_tokens, ref stats, .. } = *model;
                    LoadedStatus::Embedder { n_dims, max_tokens, stats: stats.clone() }
                }
                Model::Speech(model) => {
                    LoadedStatus::Speech { languages: model.languages.to_vec(), stats: model.stats.clone() }
                }
            });
            ModelStatus { id: entry.id.clone(), kind: entry.kind.get().copied(), expires_in, loaded }
        };
        self.entries().iter().map(status).collect()
    }

    /// The loaded models that generate text.
    pub(crate) fn texts(&self) -> Vec<TextModel> {
        let model = |entry: &Arc<Entry>| {
            let shown = entry.shown.lock().unwrap_or_else(PoisonError::into_inner);
            match &shown.model {
                Some(Model::Text(model)) => Some(model.clone()),
                Some(Model::Embedder(_) | Model::Speech(_)) | None => None,
            }
        };
        self.entries().iter().filter_map(model).collect()
    }
}

/// Waits for the end of an unloaded model's thread.
async fn wait_for_memory(ended: Option<ThreadEnd>) -> Result<()> {
    let Some(ended) = ended else { return Ok(()) };
    blocking(move || {
        // If the time has passed, the next load reports the missing memory.
        let _ = ended.recv_timeout(UNLOAD_TIME);
        Ok(())
    })
    .await
}
