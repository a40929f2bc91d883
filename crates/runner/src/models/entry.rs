//! A model of the runner: its name, and the loaded model while there is one.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::time::Instant;

use super::claims::Claims;
use super::loader::Kind;
use super::model::{Model, ThreadEnd};
use crate::details::ModelDetails;

/// A model of the runner.
pub(super) struct Entry {
    pub(super) id: String,
    /// The loaded model. The lock serialises loading and unloading.
    pub(super) loaded: tokio::sync::Mutex<Option<Model>>,
    /// State for the lists, which must not wait for a load.
    pub(super) shown: Mutex<Shown>,
    /// Disconnects when the last loaded model's thread has ended and its memory is free.
    pub(super) ended: Mutex<Option<ThreadEnd>>,
    /// Details of its files, read at first use.
    pub(super) details: OnceLock<Arc<ModelDetails>>,
    /// The kind, once known.
    pub(super) kind: OnceLock<Kind>,
}

impl Entry {
    pub(super) fn new(id: String) -> Arc<Entry> {
        let (loaded, shown, ended, details, kind) = Default::default();
        Arc::new(Entry { id, loaded, shown, ended, details, kind })
    }

    /// Returns true if the last loaded model's thread has ended, even if handles remain.
    pub(super) fn has_ended(&self) -> bool {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.as_ref().is_some_and(|ended| ended.try_recv() == Err(mpsc::TryRecvError::Disconnected))
    }
}

#[derive(Default)]
pub(super) struct Shown {
    pub(super) model: Option<Model>,
    /// Time after which the model may be unloaded; `None` for never.
    pub(super) expires: Option<Instant>,
    pub(super) n_users: usize,
    /// Tenants that keep the model loaded, with the end of each claim.
    pub(super) claims: Claims,
    /// True if the model must be unloaded as soon as it is idle.
    pub(super) is_unwanted: bool,
}

/// Unloads an idle model if `may` allows it. Its thread ends by itself.
pub(super) fn unload(entry: &Entry, may: impl FnOnce(&Shown) -> bool) -> bool {
    // A task that loads or leases the model holds this lock.
    let Ok(mut loaded) = entry.loaded.try_lock() else { return false };
    let mut shown = entry.shown.lock().unwrap_or_else(PoisonError::into_inner);
    let unloads = shown.model.is_some() && shown.n_users == 0 && may(&shown);
    if unloads {
        tracing::info!("unloaded {}", entry.id);
        (*loaded, shown.model, shown.expires) = (None, None, None);
        shown.claims = Claims::default();
    }
    unloads
}
