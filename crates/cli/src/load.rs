//! Loading of models as the flags ask: the library's steps, with progress and notes on stderr.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use device::Device;
use engine::{Engine, Model, Picture, Prefill};
use ingle::device::{ChosenDevice, DeviceOptions};
use ingle::direct::EngineOptions;
use ingle::{LoadOptions, Note};
use weights::{Access, Checkpoint};

use crate::args::{AdapterArgs, FetchArgs, ModelName, PrefillArgs, PrefillName, VerifyArgs};
use crate::progress::Bar;
use crate::tell::tell;

/// Fetches a model if needed; returns its path.
pub fn fetch(model: &ModelName, args: &FetchArgs) -> anyhow::Result<PathBuf> {
    Ok(ingle::direct::fetch(&model.source(), &args.hub()?, &mut Bar::default())?)
}

/// Fetches and opens a model, without a device.
pub fn open(model: &ModelName, options: &LoadOptions) -> anyhow::Result<Model> {
    let opened = ingle::direct::open(&model.source(), options, &mut Bar::default())?;
    tell_notes(&opened.notes);
    Ok(opened.model)
}

/// Prints notes of the library, which names options where users know flags.
pub fn tell_notes(notes: &[Note]) {
    for note in notes {
        if let Note::Split { .. } = note {
            tell!("note: {note} (--gpu-layers and --cpu-moe-layers override)");
        } else {
            tell!("note: {note}");
        }
    }
}

/// The adapter that a command computes with: that of `--adapter`, or the only one loaded.
pub fn chosen_adapter(args: &AdapterArgs) -> anyhow::Result<Option<Arc<str>>> {
    match (&args.lora.lora[..], args.adapter.as_deref()) {
        (_, Some(name)) => Ok(Some(name.into())),
        ([], None) => Ok(None),
        ([only], None) => Ok(Some(only.name.as_str().into())),
        (several, None) => {
            let names: Vec<_> = several.iter().map(|lora| lora.name.as_str()).collect();
            anyhow::bail!("several adapters are loaded; choose one with --adapter: {}", names.join(", "))
        }
    }
}

/// Opens a file or folder, and verifies it with `--check` and `--verify-key`.
pub fn open_checkpoint(path: &Path, access: Access, args: &VerifyArgs) -> anyhow::Result<Checkpoint> {
    Ok(formats::open_verified(path, access, &args.verify()?)?)
}

/// Creates a device; with `auto`, the first that is present.
pub fn device(options: &DeviceOptions) -> anyhow::Result<Arc<dyn Device>> {
    Ok(noted(ingle::device::create(options)?))
}

/// Creates the device for a model; with `auto`, the first that is present and runs the model.
pub fn device_for(model: &Model, options: &LoadOptions) -> anyhow::Result<Arc<dyn Device>> {
    Ok(noted(ingle::direct::device_for(model, options)?))
}

fn noted(chosen: ChosenDevice) -> Arc<dyn Device> {
    tell_notes(&chosen.notes);
    chosen.device
}

/// Makes the engine of a model on its device, with the draft model of the options.
pub fn engine(model: Arc<Model>, device: &Arc<dyn Device>, options: &LoadOptions) -> anyhow::Result<Engine> {
    Ok(ingle::direct::engine(model, device, options, &mut Bar::default())?)
}

/// Runs `engine` and, on another thread, `beside`, which needs only the tokenizer. If both fail,
/// the error of `beside` is returned, because it is found sooner.
pub fn both<T: Send>(
    engine: impl FnOnce() -> anyhow::Result<Engine>,
    beside: impl FnOnce() -> anyhow::Result<T> + Send,
) -> anyhow::Result<(Engine, T)> {
    std::thread::scope(|scope| {
        let beside = std::thread::Builder::new().name("tokenizer".to_owned()).spawn_scoped(scope, beside)?;
        let engine = engine();
        let beside = beside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok((engine?, beside))
    })
}

/// The way in which the prompt is computed.
pub fn prefill(args: &PrefillArgs) -> Prefill {
    match args.prefill {
        PrefillName::Batched => Prefill::Batched,
        PrefillName::PerToken => Prefill::PerToken,
    }
}

/// Number of rows whose logits are computed together when every position is scored.
const SCORED_ROWS: usize = 64;

/// Makes an engine that scores every position of a text.
pub fn scoring_engine(
    model: &Arc<Model>,
    device: &Arc<dyn Device>,
    options: &LoadOptions,
) -> anyhow::Result<Engine> {
    let options = EngineOptions { n_outputs: Some(SCORED_ROWS), ..options.engine_options() };
    Ok(Engine::new(model.clone(), device, &options)?)
}

/// `--validate-prefill`: computes the prompt in both ways.
///
/// # Errors
/// The results differ too much.
pub fn validate(engine: &mut Engine, args: &PrefillArgs, tokens: &[u32]) -> anyhow::Result<()> {
    if args.validate_prefill {
        let check = engine.validate_prefill(tokens)?;
        tell!(
            "prefill check passed: {} positions, RMS difference {:.6}, bound {:.6}, largest {:.6}",
            check.n_positions,
            check.rms,
            check.bound,
            check.max
        );
    }
    Ok(())
}

/// Reads images and preprocesses them for a vision model.
pub fn images(model: &Model, paths: &[PathBuf]) -> anyhow::Result<Vec<Arc<Picture>>> {
    let read = |path: &PathBuf| {
        let spec = model.need_vision()?;
        let length = std::fs::metadata(path).with_context(|| format!("reading {}", path.display()))?.len();
        anyhow::ensure!(
            length <= vision::MAX_BYTES as u64,
            "{}: {length} bytes, expected at most {}",
            path.display(),
            vision::MAX_BYTES
        );
        let file = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        let picture = vision::picture(spec, &file).with_context(|| path.display().to_string())?;
        Ok(Arc::new(picture))
    };
    paths.iter().map(read).collect()
}

/// Arbitrary token ids for measurements: the same in each run, spread over the vocabulary.
pub fn arbitrary_tokens(n: usize, n_vocab: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * 7919 + 13) % n_vocab) as u32).collect()
}
