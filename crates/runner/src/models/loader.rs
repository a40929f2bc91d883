//! The source of models: the interface to the program that knows files and devices.

use std::time::Duration;

use engine::{Adapter, Embedder, Engine, Model};
use speech::Transcriber;

use crate::error::{ErrorKind, RequestError, Result};

/// Loads models. The implementation alone knows devices and file formats.
pub trait Loader: Send + Sync + 'static {
    /// Loads the model of this name. Runs on the model's own thread.
    ///
    /// # Errors
    /// The file, the device or the memory failed, in words for people. With `does_not_fit`, the
    /// caller may unload another model and try again.
    fn load(&self, name: &str) -> std::result::Result<Loaded, LoadError>;

    /// Reads a model's description, without downloads and without memory of a device.
    ///
    /// # Errors
    /// It is not on this machine, or is not a model.
    fn open(&self, name: &str) -> std::result::Result<Model, LoadError> {
        let message = format!("the files of `{name}` cannot be read here");
        Err(LoadError { message, does_not_fit: false })
    }

    /// Names of further models on this machine that may be served.
    fn installed(&self) -> Vec<String> {
        Vec::new()
    }

    /// The served name of such a model, if `name` denotes one.
    fn resolve(&self, name: &str) -> Option<String> {
        let _ = name;
        None
    }

    /// The adapters that future loads of models include.
    fn adapters(&self) -> Vec<ServedAdapter> {
        Vec::new()
    }

    /// Includes this adapter in future loads. Its name is not in use.
    ///
    /// # Errors
    /// Clients may not do this, or the files are missing.
    fn add_adapter(&self, adapter: ServedAdapter) -> Result<()> {
        let _ = adapter;
        Err(RequestError::new(ErrorKind::Forbidden, "adapters cannot be loaded here"))
    }

    /// Opens the files of an adapter of [`Self::adapters`], for a loaded model.
    ///
    /// # Errors
    /// There is none of this name, or its files are not an adapter's.
    fn open_adapter(&self, name: &str) -> std::result::Result<Adapter, LoadError> {
        let message = format!("the adapter {name} cannot be opened here");
        Err(LoadError { message, does_not_fit: false })
    }

    /// Returns true if the loader itself reports models that cannot be loaded, so that the log does
    /// not repeat it.
    fn tells_of_failures(&self) -> bool {
        false
    }

    /// Excludes the adapter of this name from future loads.
    fn remove_adapter(&self, name: &str) {
        let _ = name;
    }

    /// Downloads a model, to be served from now on.
    ///
    /// # Errors
    /// Clients may not do this; there is no such model; the network or the disk failed.
    fn pull(&self, name: &str, progress: &mut dyn FnMut(PullProgress)) -> Result<()> {
        let _ = (name, progress);
        Err(RequestError::new(ErrorKind::Forbidden, "models cannot be pulled here"))
    }

    /// Deletes the files of a downloaded model.
    ///
    /// # Errors
    /// Clients may not do this; this program did not download the files; the disk failed.
    fn delete(&self, name: &str) -> Result<()> {
        let _ = name;
        Err(RequestError::new(ErrorKind::Forbidden, "models cannot be deleted here"))
    }
}

/// An adapter (LoRA) of a served model, which requests name instead of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedAdapter {
    /// The adapter's name in requests.
    pub name: String,
    /// The id of its model.
    pub model: String,
    /// Path of its files.
    pub path: String,
}

/// Progress of downloading a file of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullProgress {
    /// The file's name.
    pub file: String,
    /// Length in bytes, if the remote server reports it.
    pub total: Option<u64>,
    /// Bytes downloaded so far.
    pub completed: u64,
}

/// The kind of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Generates text and has a chat template.
    Chat,
    /// Generates text without a chat template.
    Text,
    /// Computes embeddings.
    Embedder,
    /// Transcribes speech.
    Speech,
}

impl Kind {
    /// The kind of an opened model.
    pub fn of(model: &Model) -> Kind {
        let chats = || model.need_tokenizer().is_ok_and(|tokenizer| tokenizer.chat_template().is_some());
        match () {
            () if model.spec().encoder.is_some() => Kind::Speech,
            () if model.embedding().is_ok() => Kind::Embedder,
            () if chats() => Kind::Chat,
            () => Kind::Text,
        }
    }

    /// Capabilities, as lists of models name them.
    pub fn capabilities(self) -> &'static [&'static str] {
        match self {
            Kind::Chat => &["completion", "chat"],
            Kind::Text => &["completion"],
            Kind::Embedder => &["embedding"],
            Kind::Speech => &["transcription"],
        }
    }
}

/// A loaded model, which its thread runs.
pub enum Loaded {
    /// A model that generates text.
    Text(Box<Engine>),
    /// A model that computes embeddings.
    Embedder(Box<Embedder>),
    /// A model that transcribes speech.
    Speech(Box<Transcriber>),
}

impl Loaded {
    /// Computes steps of every size once, so that no client waits for a device's first use. Stops
    /// after `most`.
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
            // A window takes seconds of CPU time, which the first request may spend as well.
            Loaded::Speech(_) if most < Duration::from_secs(1) => Ok(()),
            Loaded::Embedder(embedder) => Ok(embedder.embed_tokens(&[&[0]]).map(drop)?),
            Loaded::Speech(transcriber) => Ok(transcriber.warm_up()?),
        }
    }
}

/// Reason why a model was not loaded.
#[derive(Clone, Debug)]
pub struct LoadError {
    /// The reason in words for people.
    pub message: String,
    /// True if there is not enough memory now.
    pub does_not_fit: bool,
}
