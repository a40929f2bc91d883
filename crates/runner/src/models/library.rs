//! The set of models: resolving names, pulling, deleting, unloading by name.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use super::{Entry, Model, Models, PullProgress, TextModel, unload};
use crate::blocking::blocking;
use crate::details::ModelDetails;
use crate::error::{ErrorKind, RequestError, Result};
use crate::paths::without_folders;
use crate::tenant::tenant;

impl Models {
    pub(super) fn entries(&self) -> Vec<Arc<Entry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Serves these models too; known ones stay as they are.
    pub(super) fn add(&self, names: Vec<String>) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            if entries.iter().all(|entry| entry.id != name) {
                entries.push(Entry::new(name));
            }
        }
    }

    fn known(&self, name: &str) -> Option<Arc<Entry>> {
        let entries = self.entries();
        match name {
            "" => entries.first().cloned(),
            name => {
                let exact = entries.iter().find(|entry| entry.id == name);
                exact.or_else(|| entries.iter().find(|entry| is_same(&entry.id, name))).cloned()
            }
        }
    }

    /// The model of this name; the first for an empty name.
    pub(super) async fn find(&self, name: &str) -> Result<Arc<Entry>> {
        let adapter = self.adapter(name);
        let name = adapter.as_ref().map_or(name, |adapter| &adapter.model);
        if let Some(entry) = self.known(name) {
            return Ok(entry);
        }
        let (loader, wanted) = (self.loader.clone(), name.to_owned());
        let resolved = blocking(move || Ok(loader.resolve(&wanted))).await?;
        if let Some(id) = &resolved {
            self.add(vec![id.clone()]);
        }
        let found = resolved.and_then(|id| self.known(&id));
        found.ok_or_else(|| RequestError::no_model(name, &self.names()))
    }

    /// Unloads a model, after the last request that uses it has ended. Returns its id.
    ///
    /// # Errors
    /// There is no such model, or another key wants it to stay.
    pub(crate) async fn unload(&self, name: &str) -> Result<String> {
        let entry = self.find(name).await?;
        give_up(&entry)?;
        // A running load completes first.
        drop(entry.loaded.lock().await);
        if !unload(&entry, |_| true) {
            let mut shown = entry.shown.lock().unwrap_or_else(PoisonError::into_inner);
            if shown.model.is_some() {
                shown.is_unwanted = true;
                // The last user may have gone meanwhile.
                shown.expires = Some(Instant::now());
            }
        }
        Ok(entry.id.clone())
    }

    /// A model's id and its details from its files.
    pub(crate) async fn details(&self, name: &str) -> Result<(String, Arc<ModelDetails>)> {
        let entry = self.find(name).await?;
        let id = entry.id.clone();
        if let Some(details) = entry.details.get() {
            return Ok((id, details.clone()));
        }
        let loader = self.loader.clone();
        let details = blocking(move || {
            let loaded = match &entry.shown.lock().unwrap_or_else(PoisonError::into_inner).model {
                Some(Model::Text(TextModel { facts, .. })) => Some(facts.model.clone()),
                Some(Model::Embedder(_) | Model::Speech(_)) | None => None,
            };
            let opened = match loaded {
                Some(model) => model,
                None => Arc::new(loader.open(&entry.id).map_err(|error| {
                    let words = without_folders(&error.message, []);
                    let message = format!("the model `{}` cannot be read: {words}", entry.id);
                    RequestError::new(ErrorKind::NotFound, message)
                })?),
            };
            let details = Arc::new(ModelDetails::of(&opened)?);
            Ok(entry.details.get_or_init(|| details).clone())
        })
        .await?;
        Ok((id, details))
    }

    /// Downloads a model and serves it.
    pub(crate) fn pull(&self, name: &str, progress: &mut dyn FnMut(PullProgress)) -> Result<()> {
        // A known model is pulled as well, since its files may be missing or old.
        self.loader.pull(name, progress)?;
        if self.known(name).is_none() {
            self.add(self.loader.resolve(name).into_iter().collect());
        }
        Ok(())
    }

    /// Unloads a model, deletes its files, and stops serving it.
    pub(crate) async fn delete(&self, name: &str) -> Result<()> {
        if name.is_empty() {
            return Err(RequestError::invalid("model", "`model` is missing, expected the name of a model"));
        }
        // Clients without permission must not learn which models exist.
        let entry = self.find(name).await.ok();
        if let Some(entry) = &entry {
            give_up(entry)?;
        }
        let (loader, id) = (self.loader.clone(), entry.as_ref().map_or(name, |entry| &entry.id).to_owned());
        blocking(move || loader.delete(&id)).await?;
        // Running answers keep their model until they end.
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|other| entry.as_ref().is_none_or(|entry| !Arc::ptr_eq(other, entry)));
        Ok(())
    }
}

/// Ends the caller's claim on a model.
///
/// # Errors
/// Another key has a claim.
fn give_up(entry: &Entry) -> Result<()> {
    let mut shown = entry.shown.lock().unwrap_or_else(PoisonError::into_inner);
    let is_wanted = shown.claims.give_up(tenant(), Instant::now());
    shown.expires = shown.claims.until();
    if is_wanted {
        let message = format!("the model `{}` stays loaded: another key is using it", entry.id);
        return Err(RequestError::new(ErrorKind::Forbidden, message));
    }
    Ok(())
}

/// Ollama's clients send `name:latest` for a name without a tag.
fn is_same(a: &str, b: &str) -> bool {
    let bare = |name| str::strip_suffix(name, ":latest").unwrap_or(name).to_owned();
    bare(a) == bare(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_tag_is_the_latest() {
        assert!(
            is_same("a", "a:latest") && is_same("a:latest", "a") && is_same("/x/a.gguf:latest", "/x/a.gguf")
        );
        assert!(!is_same("a:1b", "a") && !is_same("a:1b", "a:latest"));
    }
}
