//! A loaded model, and the thread that it is computed on.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, mpsc};
use std::thread;

use engine::{TextEncoder, WeightFiles};
use tokio::sync::oneshot;

use super::loader::{Kind, Loaded, Loader};
use super::text::{Facts, TextModel};
use crate::embedder::{self, EmbedderWorker};
use crate::error::{ErrorKind, RequestError, Result};
use crate::paths::without_folders;
use crate::queue::queue;
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
    /// Checks that its files are those that were loaded.
    ///
    /// # Errors
    /// A file has changed; the error says which and how.
    pub(super) fn check_files(&self) -> engine::Result<()> {
        match self {
            Model::Text(model) => model.facts.model.weight_files().check_unchanged(),
            Model::Embedder(model) => model.weight_files.check_unchanged(),
            Model::Speech(model) => model.weight_files.check_unchanged(),
        }
    }

    pub(super) fn stats(&self) -> &Stats {
        match self {
            Model::Text(model) => &model.worker.stats,
            Model::Embedder(model) => &model.stats,
            Model::Speech(model) => &model.stats,
        }
    }

    pub(super) fn kind(&self) -> Kind {
        match self {
            Model::Text(model) if model.facts.template.is_some() => Kind::Chat,
            Model::Text(_) => Kind::Text,
            Model::Embedder(_) => Kind::Embedder,
            Model::Speech(_) => Kind::Speech,
        }
    }

    /// This model for a request of `tenant`.
    pub(super) fn of_tenant(self, tenant: u64) -> Model {
        match self {
            Model::Text(model) => Model::Text(TextModel { tenant, ..model }),
            Model::Embedder(_) | Model::Speech(_) => self,
        }
    }
}

/// A model that computes embeddings, and the handle of its thread.
#[derive(Clone)]
pub(crate) struct EmbedderModel {
    pub(crate) worker: EmbedderWorker,
    /// Tokenises texts.
    pub(crate) encoder: TextEncoder,
    pub(crate) n_dims: usize,
    pub(crate) max_tokens: usize,
    pub(crate) stats: Arc<Stats>,
    pub(super) weight_files: WeightFiles,
}

/// Disconnects when a model's thread ends; no value is ever sent.
pub(super) type ThreadEnd = mpsc::Receiver<()>;

/// Loads a model on a new thread, which then runs it. The thread ends and frees its memory after
/// all handles are dropped and all answers have ended.
pub(super) async fn spawn(
    loader: Arc<dyn Loader>,
    id: String,
    max_waiting: usize,
) -> Result<(Model, ThreadEnd)> {
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
                RequestError::new(kind, format!("the model `{id}` could not be loaded: {words}"))
            }),
            Err(_) => Err(RequestError::internal(format!("loading the model `{id}` panicked; see the log"))),
        };
        // A model that no request waits for any more is dropped.
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
        // The engine has been dropped, so its memory is free.
        drop(ends);
    });
    spawned.map_err(|error| RequestError::internal(format!("no thread for the model: {error}")))?;
    let model =
        told.await.map_err(|_| RequestError::internal("the thread that loads the model has died"))??;
    Ok((model, ended))
}
