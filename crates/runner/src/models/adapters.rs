//! Adapters (LoRA) of models, loaded and unloaded while the runner works.
//!
//! A loaded model gains and loses adapters between two steps ([`engine::Engine::set_adapters`]).
//! The plans are made while it computes, so running answers continue and the cache stays valid.

use std::sync::{Arc, PoisonError};

use engine::{AdapterPlanner, PlannedAdapters};

use super::{Entry, Model, Models, ServedAdapter};
use crate::blocking::blocking;
use crate::error::{ErrorKind, RequestError, Result};
use crate::tenant::tenant;
use crate::worker::Worker;

impl Models {
    /// The adapters of all models.
    pub(crate) fn adapters(&self) -> Vec<ServedAdapter> {
        self.loader.adapters()
    }

    /// The adapter of this name.
    pub(super) fn adapter(&self, name: &str) -> Option<ServedAdapter> {
        self.adapters().into_iter().find(|adapter| adapter.name == name)
    }

    /// Loads an adapter of a model, or of the first model if it names none. With `replace`, the
    /// name may be in use.
    pub(crate) async fn load_adapter(&self, adapter: ServedAdapter, replace: bool) -> Result<()> {
        let name = adapter.name.clone();
        let entry = self.find(&adapter.model).await?;
        let adapter = ServedAdapter { model: entry.id.clone(), ..adapter };
        if self.names().contains(&name) {
            let message = format!("the name `{name}` is a model's, expected another for the adapter");
            return Err(RequestError::invalid("lora_name", message));
        }
        let known = self.adapter(&name);
        if known.as_ref().is_some_and(|known| !replace || known.model != adapter.model) {
            let message = format!(
                "the adapter `{name}` is loaded already; unload it first, or set `load_inplace` to reload it"
            );
            return Err(RequestError::invalid("lora_name", message));
        }
        if known.is_some() {
            self.check_owner(&name)?;
        }
        self.loader.remove_adapter(&name);
        let added = self.loader.add_adapter(adapter);
        let changed = match added {
            Ok(()) => self.give_adapter(&entry, &name).await,
            Err(error) => Err(error),
        };
        if changed.is_err() {
            self.loader.remove_adapter(&name);
            known.map(|known| self.loader.add_adapter(known)).transpose()?;
        } else {
            self.adapter_owners.lock().unwrap_or_else(PoisonError::into_inner).insert(name, tenant());
        }
        // The files are missing or do not fit the model.
        let of_files = |error: &RequestError| error.kind == ErrorKind::Internal;
        changed.map_err(|error| match of_files(&error) {
            true => RequestError::invalid("lora_path", error.message),
            false => error,
        })
    }

    /// Unloads an adapter.
    pub(crate) async fn unload_adapter(&self, name: &str) -> Result<()> {
        let Some(adapter) = self.adapter(name) else {
            let message = format!("there is no adapter `{name}`");
            return Err(RequestError::new(ErrorKind::NotFound, message));
        };
        self.check_owner(name)?;
        let entry = self.find(&adapter.model).await?;
        self.loader.remove_adapter(name);
        self.adapter_owners.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        self.take_adapter(&entry, name).await
    }

    /// Checks that the caller loaded this adapter.
    ///
    /// # Errors
    /// Another key or the command line loaded it. The caller may use it, but not change it.
    fn check_owner(&self, name: &str) -> Result<()> {
        let owners = self.adapter_owners.lock().unwrap_or_else(PoisonError::into_inner);
        // Without keys, every client may change it.
        if tenant() == 0 || owners.get(name) == Some(&tenant()) {
            return Ok(());
        }
        let message =
            format!("the adapter `{name}` was not loaded with this key, which cannot replace or unload it");
        Err(RequestError::new(ErrorKind::Forbidden, message))
    }

    /// Adds an adapter that the loader knows to a model: between two steps if the model is loaded,
    /// otherwise when it is loaded.
    async fn give_adapter(&self, entry: &Arc<Entry>, name: &str) -> Result<()> {
        // Other users of the model wait meanwhile.
        let loaded = entry.loaded.lock().await;
        let Some(model) = loaded.clone() else {
            drop(loaded);
            return self.get(&entry.id, None).await.map(drop);
        };
        let Model::Text(model) = model else {
            let message = format!("{} does not generate text, and adapters are for models that do", entry.id);
            return Err(RequestError::invalid("base_model_name", message));
        };
        let (loader, name) = (self.loader.clone(), name.to_owned());
        let adapter = blocking(move || {
            loader.open_adapter(&name).map_err(|error| RequestError::invalid("lora_path", error.message))
        });
        let adapter = adapter.await?;
        change(&model.worker, move |planner| planner.add(adapter.clone(), true)).await
    }

    /// Removes an adapter from a loaded model.
    async fn take_adapter(&self, entry: &Entry, name: &str) -> Result<()> {
        let loaded = entry.loaded.lock().await;
        let Some(Model::Text(model)) = &*loaded else { return Ok(()) };
        let name = name.to_owned();
        change(&model.worker, move |planner| planner.remove(&name)).await
    }
}

/// Changes an engine's adapters by `plan`, and plans again if the engine has dropped one meanwhile.
async fn change(
    worker: &Worker,
    plan: impl Fn(&AdapterPlanner) -> engine::Result<PlannedAdapters> + Clone + Send + 'static,
) -> Result<()> {
    loop {
        let planner = worker.with_engine(|engine| engine.adapter_planner()).await?;
        let plan = plan.clone();
        let planned = blocking(move || Ok(plan(&planner)?)).await?;
        if worker.with_engine(|engine| engine.set_adapters(planned)).await?? {
            return Ok(());
        }
    }
}
