//! Warnings about parts of a request that are not honoured, in the log and for the caller.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

/// The most warnings of one answer.
const MAX_WARNINGS: usize = 16;

/// Warnings of one request, shared by its tasks.
#[derive(Clone, Default)]
pub struct Warnings(Arc<Mutex<Vec<String>>>);

tokio::task_local! {
    static CURRENT: Warnings;
}

impl Warnings {
    /// The warnings of this task's request; outside of a request, a new list that is never read.
    pub fn current() -> Warnings {
        CURRENT.try_with(Warnings::clone).unwrap_or_default()
    }

    /// The warnings so far.
    pub fn list(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs a future in another task, with these warnings.
    pub async fn scope<T>(self, work: impl Future<Output = T>) -> T {
        CURRENT.scope(self, work).await
    }

    /// Runs work on another thread, with these warnings.
    pub fn within<T>(self, work: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self, work)
    }
}

/// Adds a warning to this task's request.
pub fn warn(what: &str) {
    let warnings = Warnings::current();
    let mut list = warnings.0.lock().unwrap_or_else(PoisonError::into_inner);
    if list.len() < MAX_WARNINGS && !list.iter().any(|other| other == what) {
        tracing::warn!("{what}");
        list.push(what.to_owned());
    }
}

/// Warns about keys of schemas that a grammar does not enforce.
pub fn unenforced(keys: &[String]) {
    keys.iter().for_each(|key| warn(&format!("not enforced: {key}")));
}
