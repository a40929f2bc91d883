//! The models of a server: their names, which of them are loaded, and for how long they stay.

mod library;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use engine::{Embedder, Engine};
use speech::Transcriber;
use text::{Gap, Grammar, GrammarCompiler, Matcher, Tokenizer};
use tokio::sync::oneshot;

use crate::details::ModelDetails;
use crate::embedder::{self, EmbedderWorker};
use crate::error::{ApiError, ErrorKind, Result};
use crate::queue::queue;
use crate::reading::Template;
use crate::request::KeepAlive;
use crate::stats::Stats;
use crate::transcriber::{self, SpeechModel};
use crate::worker::Worker;

/// Loads models; what devices and file formats there are is its business.
pub trait Loader: Send + Sync + 'static {
    /// Load the model that the server was started with under this name. Called on a thread of the model's own.
    ///
    /// # Errors
    /// The file, the device or the memory, in words for people; `does_not_fit`: another model may be unloaded and this tried again.
    fn load(&self, name: &str) -> std::result::Result<Loaded, LoadError>;

    /// Read what a model is; nothing is fetched, and no memory of a device is taken.
    ///
    /// # Errors
    /// It is not on this machine, or is not a model.
    fn open(&self, name: &str) -> std::result::Result<engine::Model, LoadError> {
        let message = format!("the files of `{name}` cannot be read here");
        Err(LoadError { message, does_not_fit: false })
    }

    /// Names of models that are on this machine and may be served beside those that the server was started with.
    fn installed(&self) -> Vec<String> {
        Vec::new()
    }

    /// The name under which such a model is served, if `name` means one.
    fn resolve(&self, name: &str) -> Option<String> {
        let _ = name;
        None
    }

    /// Fetch a model, to be served from now on.
    ///
    /// # Errors
    /// Clients may not do this; there is no such model; the network or the disk failed.
    fn pull(&self, name: &str, progress: &mut dyn FnMut(PullProgress)) -> Result<()> {
        let _ = (name, progress);
        Err(ApiError::new(ErrorKind::Forbidden, "models cannot be pulled here"))
    }

    /// Remove a fetched model's files.
    ///
    /// # Errors
    /// Clients may not do this; the files were not fetched by us; the disk failed.
    fn delete(&self, name: &str) -> Result<()> {
        let _ = name;
        Err(ApiError::new(ErrorKind::Forbidden, "models cannot be deleted here"))
    }
}

/// How far a file of a model has been fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullProgress {
    /// The file's name.
    pub file: String,
    /// Its length in bytes, if the server says so.
    pub total: Option<u64>,
    /// Bytes that are here.
    pub completed: u64,
}

/// What a model is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It writes text, and answers in chats.
    Chat,
    /// It writes text, and has no chat template.
    Text,
    /// It turns texts into vectors.
    Embedder,
    /// It writes down speech.
    Speech,
}

impl Kind {
    fn of(model: &engine::Model) -> Kind {
        let chats = || model.need_tokenizer().is_ok_and(|tokenizer| tokenizer.chat_template().is_some());
        match () {
            () if model.spec().encoder.is_some() => Kind::Speech,
            () if model.embedding().is_ok() => Kind::Embedder,
            () if chats() => Kind::Chat,
            () => Kind::Text,
        }
    }

    /// What it can do, as lists of models say it.
    pub fn capabilities(self) -> &'static [&'static str] {
        match self {
            Kind::Chat => &["completion", "chat"],
            Kind::Text => &["completion"],
            Kind::Embedder => &["embedding"],
            Kind::Speech => &["transcription"],
        }
    }
}

/// What a model's thread runs.
pub enum Loaded {
    /// It writes text.
    Text(Box<Engine>),
    /// It turns texts into vectors.
    Embedder(Box<Embedder>),
    /// It writes down speech.
    Speech(Box<Transcriber>),
}

impl Loaded {
    /// Compute steps of every size once, so that what a device does at first use is done before a client waits for it.
    ///
    /// # Errors
    /// The device failed.
    pub fn warm_up(&mut self) -> Result<()> {
        match self {
            Loaded::Text(engine) => Ok(engine.warm_up()?),
            Loaded::Embedder(embedder) => Ok(embedder.embed_tokens(&[&[0]]).map(drop)?),
            Loaded::Speech(transcriber) => Ok(transcriber.warm_up()?),
        }
    }
}

/// Why a model was not loaded.
#[derive(Clone, Debug)]
pub struct LoadError {
    /// In words for people.
    pub message: String,
    /// There is not enough memory now.
    pub does_not_fit: bool,
}

/// A loaded model.
#[derive(Clone)]
pub(crate) enum Model {
    Text(TextModel),
    Embedder(EmbedderModel),
    Speech(SpeechModel),
}

impl Model {
    fn kind(&self) -> Kind {
        match self {
            Model::Text(model) if model.facts.template.is_some() => Kind::Chat,
            Model::Text(_) => Kind::Text,
            Model::Embedder(_) => Kind::Embedder,
            Model::Speech(_) => Kind::Speech,
        }
    }
}

/// A model that turns texts into vectors, and the handle of its thread.
#[derive(Clone)]
pub(crate) struct EmbedderModel {
    pub(crate) worker: EmbedderWorker,
    pub(crate) n_dims: usize,
    pub(crate) max_tokens: usize,
    pub(crate) stats: Arc<Stats>,
}

/// A model that writes text, and the handle of its thread.
#[derive(Clone)]
pub(crate) struct TextModel {
    pub(crate) id: String,
    pub(crate) facts: Arc<Facts>,
    pub(crate) worker: Worker,
}

/// What a thread tells of its engine when it has loaded.
pub(crate) struct Facts {
    pub(crate) model: Arc<engine::Model>,
    pub(crate) tokenizer: Arc<Tokenizer>,
    /// The chat template; `None`: a base model.
    template: Option<Template>,
    /// Tokens of a sequence.
    pub(crate) n_ctx: usize,
    /// Sequences at once.
    pub(crate) n_slots: usize,
    /// The device's name.
    device: &'static str,
    /// Made for the first request that has a grammar.
    compiler: OnceLock<std::result::Result<GrammarCompiler, String>>,
}

impl Facts {
    /// What holds an answer to a grammar.
    ///
    /// # Errors
    /// The grammar is not valid or not supported.
    pub(crate) fn matcher(&self, grammar: &Grammar) -> Result<Matcher> {
        let make =
            || GrammarCompiler::new(&self.tokenizer, self.model.n_vocab()).map_err(|error| error.to_string());
        let compiler = self.compiler.get_or_init(make).as_ref().map_err(ApiError::internal)?;
        compiler.compile(grammar).map_err(|error| ApiError::new(ErrorKind::Invalid, error.to_string()))
    }

    fn of(engine: &Engine) -> Result<Facts> {
        let tokenizer = engine.model().need_tokenizer()?.clone();
        tokenizer.prepare();
        let template =
            tokenizer.chat_template().map(|source| Template::new(source, &tokenizer)).transpose()?;
        Ok(Facts {
            model: engine.model().clone(),
            tokenizer,
            template,
            n_ctx: engine.limits().n_ctx,
            n_slots: engine.limits().max_spans,
            device: engine.device().name(),
            compiler: OnceLock::new(),
        })
    }
}

impl TextModel {
    /// The model's chat template.
    ///
    /// # Errors
    /// It has none.
    pub(crate) fn template(&self) -> Result<&Template> {
        self.facts.template.as_ref().ok_or_else(|| {
            let message =
                format!("the model `{}` has no chat template; use /v1/completions instead", self.id);
            ApiError::invalid("model", message)
        })
    }
}

impl TextModel {
    /// The prompt that has the model fill a gap, and the tokens that end what fills it.
    ///
    /// # Errors
    /// It was not trained for that.
    pub(crate) fn around_gap(&self, gap: &Gap) -> Result<(Vec<u32>, Vec<u32>)> {
        let tokenizer = &self.facts.tokenizer;
        let tokens = tokenizer.fill_in_middle().ok_or_else(|| {
            let message = format!("the model `{}` has no tokens around a gap, so it fills none", self.id);
            ApiError::invalid("suffix", message)
        })?;
        let prompt = tokenizer.encode_gap(tokens, gap).map_err(engine::Error::from)?;
        Ok((prompt, tokens.ends.clone()))
    }
}

/// A model of the server.
struct Entry {
    id: String,
    /// Loading and unloading, one at a time.
    loaded: tokio::sync::Mutex<Option<Model>>,
    /// What the lists show, without waiting for a load.
    shown: Mutex<Shown>,
    /// Read from its files when they are first asked for.
    details: OnceLock<Arc<ModelDetails>>,
    /// Set when it is known.
    kind: OnceLock<Kind>,
}

impl Entry {
    fn new(id: String) -> Arc<Entry> {
        let (loaded, shown, details, kind) = Default::default();
        Arc::new(Entry { id, loaded, shown, details, kind })
    }
}

#[derive(Default)]
struct Shown {
    model: Option<Model>,
    /// When it may be unloaded; `None`: never.
    expires: Option<Instant>,
    n_users: usize,
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
    /// How long its user waited for it to be loaded.
    pub(crate) load_time: Duration,
}

impl Lease {
    /// The model's id.
    pub(crate) fn id(&self) -> &str {
        &self.entry.id
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
        shown.expires = match self.keep_alive {
            _ if shown.is_unwanted => Some(Instant::now()),
            KeepAlive::Always => None,
            KeepAlive::For(time) => Instant::now().checked_add(time),
        };
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
        let models = Models { loader, entries, keep_alive, max_waiting, created };
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
        let model = match &*loaded {
            Some(model) => model.clone(),
            None => {
                let model = self.load(&entry).await?;
                entry.kind.get_or_init(|| model.kind());
                *loaded = Some(model.clone());
                model
            }
        };
        {
            let mut shown = entry.shown.lock().unwrap_or_else(PoisonError::into_inner);
            shown.model = Some(model.clone());
            shown.n_users += 1;
            shown.is_unwanted = false;
        }
        drop(loaded);
        let keep_alive = keep_alive.unwrap_or(self.keep_alive);
        Ok(Lease { entry, model, keep_alive, load_time: begun.elapsed() })
    }

    async fn load(&self, entry: &Arc<Entry>) -> Result<Model> {
        loop {
            let (loader, id) = (self.loader.clone(), entry.id.clone());
            let begun = Instant::now();
            match spawn(loader, id, self.max_waiting).await {
                Ok(model) => {
                    tracing::info!("loaded {} in {:.2} s", entry.id, begun.elapsed().as_secs_f64());
                    return Ok(model);
                }
                Err(error) if error.kind == ErrorKind::Unavailable && self.unload_one(entry) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Unload the model that nobody has used for longest; whether there was one.
    fn unload_one(&self, not: &Arc<Entry>) -> bool {
        let idle = |entry: &&Arc<Entry>| {
            let shown = entry.shown.lock().unwrap_or_else(PoisonError::into_inner);
            !Arc::ptr_eq(entry, not) && shown.model.is_some() && shown.n_users == 0
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
        let oldest = entries.iter().filter(idle).min_by_key(expires);
        oldest.is_some_and(|entry| unload(entry, |_| true))
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

/// Load on a new thread and stay there. The thread ends, and its memory is free, when all handles are gone and all answers
/// have ended.
async fn spawn(loader: Arc<dyn Loader>, id: String, max_waiting: usize) -> Result<Model> {
    let (tell, told) = oneshot::channel();
    let name = format!("model {id}");
    let spawned = thread::Builder::new().name(name).spawn(move || {
        let loaded = std::panic::catch_unwind(AssertUnwindSafe(|| loader.load(&id)));
        let loaded = match loaded {
            Ok(loaded) => loaded.map_err(|error| {
                let kind = if error.does_not_fit { ErrorKind::Unavailable } else { ErrorKind::Internal };
                ApiError::new(kind, format!("the model `{id}` could not be loaded: {}", error.message))
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
                    .map(|facts| Model::Text(TextModel { id, facts: Arc::new(facts), worker }));
                if tell.send(model).is_ok() {
                    thread.run(*engine);
                }
            }
            Ok(Loaded::Embedder(embedder)) => {
                let stats = Arc::new(Stats::default());
                let (jobs, inbox) = queue(max_waiting, &stats);
                let worker = EmbedderWorker { jobs };
                let (n_dims, max_tokens) = (embedder.n_dims(), embedder.spec().max_tokens);
                let model = EmbedderModel { worker, n_dims, max_tokens, stats: stats.clone() };
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
    });
    spawned.map_err(|error| ApiError::internal(format!("no thread for the model: {error}")))?;
    told.await.map_err(|_| ApiError::internal("the thread that loads the model has died"))?
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
    }
    unloads
}
