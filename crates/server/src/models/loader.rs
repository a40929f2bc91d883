//! Where models come from: what the program around the server knows of files and devices.

use std::time::Duration;

use engine::{Adapter, Embedder, Engine, Model};
use speech::Transcriber;

use crate::error::{ApiError, ErrorKind, Result};

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
    fn open(&self, name: &str) -> std::result::Result<Model, LoadError> {
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

    /// The adapters that models are loaded with from now on.
    fn adapters(&self) -> Vec<ServedAdapter> {
        Vec::new()
    }

    /// Load a model with this adapter, too, from now on; its name is not in use.
    ///
    /// # Errors
    /// Clients may not do this, or the files are not there.
    fn add_adapter(&self, adapter: ServedAdapter) -> Result<()> {
        let _ = adapter;
        Err(ApiError::new(ErrorKind::Forbidden, "adapters cannot be loaded here"))
    }

    /// Open the files of an adapter among [`Self::adapters`], for a model that is loaded already.
    ///
    /// # Errors
    /// There is none of this name, or its files are not an adapter's.
    fn open_adapter(&self, name: &str) -> std::result::Result<Adapter, LoadError> {
        let message = format!("the adapter {name} cannot be opened here");
        Err(LoadError { message, does_not_fit: false })
    }

    /// Whether whoever started the server is told of models that cannot be loaded, so that the log need not say it too.
    fn tells_of_failures(&self) -> bool {
        false
    }

    /// Load models without the adapter of this name from now on.
    fn remove_adapter(&self, name: &str) {
        let _ = name;
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

/// An adapter (LoRA) of a served model, which requests name instead of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedAdapter {
    /// What requests call it.
    pub name: String,
    /// The id of its model.
    pub model: String,
    /// Where its files are.
    pub path: String,
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
    pub(super) fn of(model: &Model) -> Kind {
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
    /// Compute steps of every size once, so that what a device does at first use is done before a client waits for it; for `most` at
    /// most.
    ///
    /// # Errors
    /// The device failed.
    pub fn warm_up(&mut self, most: Duration) -> Result<()> {
        match self {
            Loaded::Text(engine) => {
                if let Some(left) = engine.warm_up(most)? {
                    tracing::info!(
                        "the warm-up ended after {:.1} s; {left} were left out, and the first of them may take longer",
                        most.as_secs_f64()
                    );
                }
                Ok(())
            }
            // A window is seconds of a processor's work, which the first request may as well do.
            Loaded::Speech(_) if most < Duration::from_secs(1) => Ok(()),
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
