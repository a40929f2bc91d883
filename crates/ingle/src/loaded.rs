//! Loading a model of any kind: one that generates text, computes embeddings or transcribes speech.

use std::sync::Arc;

use engine::Embedder;
use hub::Progress;
use runner::{Kind, Loaded};
use speech::{Transcriber, TranscriberOptions};

use crate::device;
use crate::error::Result;
use crate::load::{self, Opened};
use crate::note::Note;
use crate::options::LoadOptions;
use crate::source::ModelSource;

/// A loaded model of any kind.
pub(crate) struct LoadedModel {
    pub(crate) loaded: Loaded,
    pub(crate) model: Arc<engine::Model>,
    /// Name of its device.
    pub(crate) device: String,
    pub(crate) notes: Vec<Note>,
}

/// Number of sequences that run at once, if the options do not say it.
const N_SEQUENCES: usize = 8;

/// Fetches a model if needed, and loads it as what it is.
///
/// # Errors
/// Those of [`load::open`], [`load::device_for`] and [`load::engine`].
pub(crate) fn load_any(
    source: &ModelSource,
    options: &LoadOptions,
    progress: &mut dyn Progress,
) -> Result<LoadedModel> {
    let n_sequences = Some(options.n_sequences.unwrap_or(N_SEQUENCES));
    let options = &LoadOptions { n_sequences, ..options.clone() };
    let Opened { model, mut notes, .. } = load::open(source, options, progress)?;
    let model = Arc::new(model);
    let engine_options = options.engine_options();
    let kind = Kind::of(&model);
    let chosen = match kind {
        Kind::Speech => device::create(&options.device)?,
        Kind::Embedder | Kind::Chat | Kind::Text => load::device_for(&model, options)?,
    };
    notes.extend(chosen.notes);
    let device = chosen.device;
    let loaded = match kind {
        Kind::Speech => {
            let of_speech = TranscriberOptions {
                kv_type: engine_options.kv_type,
                numerics: engine_options.numerics,
                check_memory: engine_options.check_memory,
                ..TranscriberOptions::default()
            };
            Loaded::Speech(Box::new(Transcriber::new(&model, &device, &of_speech)?))
        }
        Kind::Embedder => Loaded::Embedder(Box::new(Embedder::new(model.clone(), &device, &engine_options)?)),
        Kind::Chat | Kind::Text => {
            Loaded::Text(Box::new(load::engine(model.clone(), &device, options, progress)?))
        }
    };
    Ok(LoadedModel { loaded, model, device: device.name().to_owned(), notes })
}
