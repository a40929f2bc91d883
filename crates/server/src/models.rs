//! The models of a server: their names, which of them are loaded, and for how long they stay.

mod adapters;
mod claims;
mod library;
mod loader;
mod text;

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use engine::{TextEncoder, WeightFiles};
use tokio::sync::oneshot;

use self::claims::Claims;
pub use self::loader::{Kind, LoadError, Loaded, Loader, PullProgress, ServedAdapter};
pub(crate) use self::text::{Facts, TextModel};

use crate::access::tenant;
use crate::app::blocking;
use crate::details::ModelDetails;
use crate::embedder::{self, EmbedderWorker};
use crate::error::{ApiError, ErrorKind, Result};
use crate::paths::without_folders;
use crate::queue::queue;
use crate::request::KeepAlive;
use crate::stats::Stats;
use crate::transcriber::{self, SpeechModel};
use crate::worker::Worker;

/// A loaded model.
#[derive(Clone)]
pub(crate) enum Model {
    Text(TextModel),
    Embedder(EmbedderModel),
    Speech(SpeechModel),
}

impl Model {
    /// That its files are what was loaded.
    ///
    /// # Errors
    /// Which is not, and how it differs.
    fn check_files(&self) -> engine::Result<()> {
        match self {
            Model::Text(model) => model.facts.model.weight_files().check_unchanged(),
            Model::Embedder(model) => model.weight_files.check_unchanged(),
            Model::Speech(model) => model.weight_files.check_unchanged(),
        }
    }

    fn stats(&self) -> &Stats {
        match self {
            Model::Text(model) => &model.worker.stats,
            Model::Embedder(model) => &model.stats,
            Model::Speech(model) => &model.stats,
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Model::Text(model) if model.facts.template.is_some() => Kind::Chat,
            Model::Text(_) => Kind::Text,
            Model::Embedder(_) => Kind::Embedder,
            Model::Speech(_) => Kind::Speech,
        }
    }

    /// The same for a request of this tenant.
    fn of_tenant(self, tenant: u64) -> Model {
        match self {
            Model::Text(model) => Model::Text(TextModel { tenant, ..model }),
            Model::Embedder(_) | Model::Speech(_) => self,
        }
    }
}

/// A model that turns texts into vectors, and the handle of its thread.
#[derive(Clone)]
pub(crate) struct EmbedderModel {
    pub(crate) worker: EmbedderWorker,
    /// Makes tokens of texts.
    pub(crate) encoder: TextEncoder,
    pub(crate) n_dims: usize,
    pub(crate) max_tokens: usize,
    pub(crate) stats: Arc<Stats>,
    weight_files: WeightFiles,
}

/// A model of the server.
struct Entry {
    id: String,
    /// Loading and unloading, one at a time.
    loaded: tokio::sync::Mutex<Option<Model>>,
    /// What the lists show, without waiting for a load.
    shown: Mutex<Shown>,
    /// Disconnected when the thread of the model that was loaded last has ended, and its memory is free.
    ended: Mutex<Option<Ended>>,
    /// Read from its files when they are first asked for.
    details: OnceLock<Arc<ModelDetails>>,
    /// Set when it is known.
    kind: OnceLock<Kind>,
}

impl Entry {
    fn new(id: String) -> Arc<Entry> {
        let (loaded, shown, ended, details, kind) = Default::default();
        Arc::new(Entry { id, loaded, shown, ended, details, kind })
    }

    /// Whether the thread of the model that was loaded last has ended, whoever still has its handle.
    fn has_ended(&self) -> bool {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.as_ref().is_some_and(|ended| ended.try_recv() == Err(mpsc::TryRecvError::Disconnected))
    }
}

/// Nothing is sent; it is disconnected when a model's thread ends.
type Ended = mpsc::Receiver<()>;

/// Most time that somebody waits for the memory of a model that was unloaded.
const UNLOAD_TIME: Duration = Duration::from_secs(2);

#[derive(Default)]
struct Shown {
    model: Option<Model>,
    /// When it may be unloaded; `None`: never.
    expires: Option<Instant>,
    n_users: usize,
    /// Who wants it, and until when.
    claims: Claims,
    /// It is to be unloaded as soon as nobody uses it.
    is_unwanted: bool,
}

/// A line of the lists.
#[derive(Clone, Debug)]
pub struct ModelStatus {
    /// Its id.
    pub id: String,
    /// What it is for, where that is known: of what has been loaded, and of what is on this machine.
    pub kind: Option<Kind>,
    /// When it will be unloaded if nobody asks it anything; `None`: it is in use, or stays.
    pub expires_in: Option<Duration>,
    /// `None`: not loaded.
    pub loaded: Option<LoadedStatus>,
}

/// Of a model that is loaded.
#[derive(Clone, Debug)]
pub enum LoadedStatus {
    /// It writes text.
    Text(TextStatus),
    /// It turns texts into vectors.
    Embedder {
        /// Columns of a vector.
        n_dims: usize,
        /// Longest text.
        max_tokens: usize,
        /// Its figures.
        stats: Arc<Stats>,
    },
    /// It writes down speech.
    Speech {
        /// Codes of the languages that it knows.
        languages: Vec<String>,
        /// Its figures.
        stats: Arc<Stats>,
    },
}

impl LoadedStatus {
    /// Its figures.
    pub fn stats(&self) -> &Arc<Stats> {
        match self {
            LoadedStatus::Text(TextStatus { stats, .. })
            | LoadedStatus::Embedder { stats, .. }
            | LoadedStatus::Speech { stats, .. } => stats,
        }
    }
}

/// Of a model that writes text.
#[derive(Clone, Debug)]
pub struct TextStatus {
    /// Tokens of a sequence.
    pub n_ctx: usize,
    /// Tokens that the model was trained for.
    pub n_ctx_train: usize,
    /// Sequences at once.
    pub n_slots: usize,
    /// Tokens of the vocabulary.
    pub n_vocab: usize,
    /// Bytes of its file.
    pub file_bytes: u64,
    /// The device that it runs on: `cpu`, `metal`, …
    pub device: &'static str,
    /// Its figures.
    pub stats: Arc<Stats>,
}

/// The models, by name.
pub(crate) struct Models {
    loader: Arc<dyn Loader>,
    /// Those of the command line in their order, then those that came later.
    entries: RwLock<Vec<Arc<Entry>>>,
    keep_alive: KeepAlive,
    /// Whose key loaded an adapter, by its name; others do not replace or unload it.
    adapter_owners: Mutex<HashMap<String, u64>>,
    /// Most requests that wait for a model which takes whole requests.
    max_waiting: usize,
    /// Unix time, for lists.
    pub(crate) created: u64,
}

/// A model in use: it is not unloaded before this is dropped.
pub(crate) struct Lease {
    entry: Arc<Entry>,
    pub(crate) model: Model,
    keep_alive: KeepAlive,
    tenant: u64,
    /// What it is computed with; `None`: the model alone.
    pub(crate) adapter: Option<Arc<str>>,
    /// How long its user waited for it to be loaded.
    pub(crate) load_time: Duration,
}

impl Lease {
    /// The model's id, or its adapter's.
    pub(crate) fn id(&self) -> &str {
        self.adapter.as_deref().unwrap_or(&self.entry.id)
    }

    /// The model, if it writes text.
    ///
    /// # Errors
    /// It does not.
    pub(crate) fn text(&self) -> Result<&TextModel> {
        match &self.model {
            Model::Text(model) => Ok(model),
            Model::Embedder(_) => {
                let message = format!(
                    "the model `{}` gives embeddings and writes no text; ask it at /v1/embeddings",
                    self.id()
                );
                Err(ApiError::invalid("model", message))
            }
            Model::Speech(_) => Err(self.only_speech()),
        }
    }

    /// The model, if it gives embeddings.
    ///
    /// # Errors
    /// It does not.
    pub(crate) fn embedder(&self) -> Result<&EmbedderModel> {
        match &self.model {
            Model::Embedder(model) => Ok(model),
            Model::Text(_) => {
                let message = format!("the model `{}` writes text and gives no embeddings", self.id());
                Err(ApiError::invalid("model", message))
            }
            Model::Speech(_) => Err(self.only_speech()),
        }
    }

    /// The model, if it writes down speech.
    ///
    /// # Errors
    /// It does not.
    pub(crate) fn speech(&self) -> Result<&SpeechModel> {
        match &self.model {
            Model::Speech(model) => Ok(model),
            Model::Text(_) | Model::Embedder(_) => {
                let message =
                    format!("the model `{}` does not hear; expected a model for speech (Whisper)", self.id());
                Err(ApiError::invalid("model", message))
            }
        }
    }

    fn only_speech(&self) -> ApiError {
        let message = format!(
            "the model `{}` writes down speech and does nothing else; ask it at /v1/audio/transcriptions",
            self.id()
        );
        ApiError::invalid("model", message)
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

    /// The model of this name, loaded if it is not; the first of all for an empty name.
    pub(crate) async fn get(&self, name: &str, keep_alive: Option<KeepAlive>) -> Result<Lease> {
        let begun = Instant::now();
        let entry = self.find(name).await?;
        let mut loaded = entry.loaded.lock().await;
        // Whoever uses it is told by its thread, which ends with its last user.
        if let Some(Err(error)) = loaded.as_ref().map(Model::check_files) {
            tracing::warn!("{} is loaded anew: {error}", entry.id);
            *loaded = None;
            entry.shown.lock().unwrap_or_else(PoisonError::into_inner).model = None;
        }
        // A thread that panicked ends although it has handles.
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

    /// Unload a model that nobody uses, and wait until its memory is free; whether there was one.
    pub(crate) fn unload_idle(&self) -> bool {
        let ended = self.unload_one(None);
        ended.map(|ended| ended.recv_timeout(UNLOAD_TIME)).is_some()
    }

    /// Unload the model that nobody has used for longest, and none that is being loaded; what says when its memory is free.
    fn unload_one(&self, not: Option<&Arc<Entry>>) -> Option<Ended> {
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

    /// Unload what is past its time.
    pub(crate) fn unload_expired(&self, now: Instant) {
        for entry in &self.entries() {
            unload(entry, |shown| shown.expires.is_some_and(|expires| expires <= now));
        }
    }

    /// Find out what the models are for that have not been loaded. Reads their files' heads: not for tokio's threads.
    pub(crate) fn find_kinds(&self) {
        for entry in self.entries().iter().filter(|entry| entry.kind.get().is_none()) {
            // What is wrong with it is said when it is loaded.
            if let Ok(model) = self.loader.open(&entry.id) {
                entry.kind.get_or_init(|| Kind::of(&model));
            }
        }
    }

    /// What the lists show, in the order of the command line.
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

    /// The models that write text and are loaded.
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

/// Wait for the end of a thread whose model was unloaded.
async fn wait_for_memory(ended: Option<Ended>) -> Result<()> {
    let Some(ended) = ended else { return Ok(()) };
    blocking(move || {
        // It is disconnected, or the time is over: then the load says what is missing.
        let _ = ended.recv_timeout(UNLOAD_TIME);
        Ok(())
    })
    .await
}

/// Load on a new thread and stay there. The thread ends, and its memory is free, when all handles are gone and all answers
/// have ended.
async fn spawn(loader: Arc<dyn Loader>, id: String, max_waiting: usize) -> Result<(Model, Ended)> {
    let (tell, told) = oneshot::channel();
    let (ends, ended) = mpsc::channel::<()>();
    let name = format!("model {id}");
    let spawned = thread::Builder::new().name(name).spawn(move || {
        let loaded = std::panic::catch_unwind(AssertUnwindSafe(|| loader.load(&id)));
        let loaded = match loaded {
            Ok(loaded) => loaded.map_err(|error| {
                let kind = if error.does_not_fit { ErrorKind::Unavailable } else { ErrorKind::Internal };
                if !loader.tells_of_failures() {
                    tracing::error!("the model `{id}` could not be loaded: {}", error.message);
                }
                let words = without_folders(&error.message, []);
                ApiError::new(kind, format!("the model `{id}` could not be loaded: {words}"))
            }),
            Err(_) => {
                Err(ApiError::internal(format!("loading the model `{id}` panicked; see the server's log")))
            }
        };
        // If nobody waits for it any more, it goes.
        match loaded {
            Ok(Loaded::Text(engine)) => {
                let (worker, thread) = Worker::new();
                let model = Facts::of(&engine)
                    .map(|facts| Model::Text(TextModel { id, facts: Arc::new(facts), worker, tenant: 0 }));
                if tell.send(model).is_ok() {
                    thread.run(*engine);
                }
            }
            Ok(Loaded::Embedder(embedder)) => {
                let stats = Arc::new(Stats::default());
                let (jobs, inbox) = queue(max_waiting, &stats);
                let worker = EmbedderWorker { jobs };
                let (n_dims, max_tokens) = (embedder.n_dims(), embedder.spec().max_tokens);
                let weight_files = embedder.weight_files().clone();
                let encoder = embedder.encoder();
                let model =
                    EmbedderModel { worker, encoder, n_dims, max_tokens, stats: stats.clone(), weight_files };
                if tell.send(Ok(Model::Embedder(model))).is_ok() {
                    embedder::run(*embedder, &inbox, &stats);
                }
            }
            Ok(Loaded::Speech(transcriber)) => {
                let (model, inbox) = SpeechModel::new(id, &transcriber, max_waiting);
                let stats = model.stats.clone();
                if tell.send(Ok(Model::Speech(model))).is_ok() {
                    transcriber::run(*transcriber, &inbox, &stats);
                }
            }
            Err(error) => drop(tell.send(Err(error))),
        }
        // The engine is gone: so is its memory.
        drop(ends);
    });
    spawned.map_err(|error| ApiError::internal(format!("no thread for the model: {error}")))?;
    let model = told.await.map_err(|_| ApiError::internal("the thread that loads the model has died"))??;
    Ok((model, ended))
}

/// Unload a model that nobody uses, if `may`; its thread ends by itself.
fn unload(entry: &Entry, may: impl FnOnce(&Shown) -> bool) -> bool {
    // Somebody who loads it, or has just been given it, holds this.
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
