//! Loading: opening files, choosing a device for a model, and making an engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use device::Device;
use device::key_bias::KeyBias;
use engine::{Adapter, DraftModel, Engine, Governor, Model, TokenizerSource};
use hub::Progress;
use weights::{Access, Checkpoint, Map};

use crate::device::{self as devices, ChosenDevice};
use crate::error::{Error, Result};
use crate::fetch::fetch;
use crate::mmproj;
use crate::note::Note;
use crate::options::LoadOptions;
use crate::source::{AdapterSource, ModelSource};

/// An opened model.
#[derive(Debug)]
#[non_exhaustive]
pub struct Opened {
    /// The model: its description, its plan over views of the file, and its tokenizer. It holds no
    /// device memory.
    pub model: Model,
    /// Facts that a user should know.
    pub notes: Vec<Note>,
}

/// A loaded model.
#[non_exhaustive]
pub struct Loaded {
    /// The engine, which has the model and the device.
    pub engine: Engine,
    /// Facts that a user should know.
    pub notes: Vec<Note>,
}

/// Fetches a model if needed, opens it, chooses its device, and makes an engine. Weights are
/// prepared and memory is allocated when it returns.
///
/// # Errors
/// Those of [`open`], [`device_for`] and [`engine`](fn@engine).
pub fn load(source: &ModelSource, options: &LoadOptions, progress: &mut dyn Progress) -> Result<Loaded> {
    let Opened { model, mut notes } = open(source, options, progress)?;
    let chosen = device_for(&model, options)?;
    notes.extend(chosen.notes);
    let engine = engine(Arc::new(model), &chosen.device, options, progress)?;
    Ok(Loaded { engine, notes })
}

/// Fetches a model if needed, and opens it without a device. Weights are read when they are used.
///
/// # Errors
/// Those of [`fetch`] and [`open_fetched`].
pub fn open(source: &ModelSource, options: &LoadOptions, progress: &mut dyn Progress) -> Result<Opened> {
    open_fetched(&fetch(source, &options.hub, progress)?, options)
}

/// Opens a file or folder, with the adapters and the image encoder of the options. With
/// [`LoadOptions::mtp`] it has its own layer for draft tokens.
///
/// # Errors
/// - [`Error::Format`]: a file is damaged, of an unknown format, or fails the verification.
/// - [`Error::Adapter`] and [`Error::Mmproj`]: such a file does not belong to the model.
/// - [`Error::Engine`]: the model is unknown or lacks tensors, or an adapter does not fit.
pub fn open_fetched(path: &Path, options: &LoadOptions) -> Result<Opened> {
    let checkpoint = formats::open_verified(path, options.access, &options.verify)?;
    opened(path, checkpoint, options)
}

/// Opens a GGUF file whose bytes are in memory, which are copied. `name` is for messages, and the
/// tokenizer must be in the file.
///
/// # Errors
/// Those of [`open_fetched`].
pub fn open_gguf(name: &str, bytes: &[u8], options: &LoadOptions) -> Result<Opened> {
    let path = PathBuf::from(name);
    let checkpoint = formats::gguf::parse(Map::from_slice(bytes), &path)?;
    opened(&path, checkpoint, options)
}

fn opened(path: &Path, checkpoint: Checkpoint, options: &LoadOptions) -> Result<Opened> {
    let mut notes = Vec::new();
    let checkpoint = mmproj::attach(path, checkpoint, options, &mut notes)?;
    let adapters = options.adapters.iter().map(|adapter| open_adapter(adapter, options.access));
    let adapters = adapters.collect::<Result<Vec<_>>>()?;
    let model = Model::from_opened_adapted(path, checkpoint, &TokenizerSource::Own, adapters)?;
    let model = if options.mtp { model.predicting()? } else { model };
    Ok(Opened { model, notes })
}

/// Opens an adapter.
///
/// # Errors
/// [`Error::Adapter`]: a file is missing, damaged, or no adapter.
pub fn open_adapter(adapter: &AdapterSource, access: Access) -> Result<Adapter> {
    let name = adapter.name.clone();
    match formats::open_adapter(&adapter.path, access) {
        Ok(checkpoint) => Ok(Adapter { name, checkpoint, factor: adapter.factor }),
        Err(error) => Err(Error::Adapter { name, source: Box::new(error) }),
    }
}

/// Creates the device of the options for a model. With the kind `Auto` it is the first that is
/// present, runs the model, and passes a check of its arithmetic. A model that does not fit in a
/// GPU's memory is split between the GPU and the CPU.
///
/// # Errors
/// The device is absent, or options about it contradict each other or the model. Other problems of
/// the model are errors of [`engine`](fn@engine).
pub fn device_for(model: &Model, options: &LoadOptions) -> Result<ChosenDevice> {
    let engine_options = options.engine_options();
    let runs = |device: &dyn Device| match engine::plan_memory(model, device, &engine_options) {
        Err(engine::Error::Device(error @ device::Error::Unsupported { .. })) => Err(error.into()),
        // Other errors occur on every device, and are reported when the model is loaded.
        Ok(_) | Err(_) => Ok(()),
    };
    let mut chosen = devices::first_that(&options.device, &runs)?;
    chosen.device = devices::split(options, model, chosen.device, &mut chosen.notes)?;
    if let Some(text) = default_kv_type(model, chosen.device.as_ref(), options) {
        tracing::info!("{text}");
    }
    Ok(chosen)
}

/// The device's default type of keys and values, as a sentence. `None` if the options set the type,
/// or if the model has no keys and values.
pub fn default_kv_type(model: &Model, device: &dyn Device, options: &LoadOptions) -> Option<String> {
    if options.kv_type.is_some() {
        return None;
    }
    let (kv_type, n_layers) = (*device.kv_types().first()?, model.plan().kv.layers.len());
    if n_layers == 0 {
        return None;
    }
    let mut text = format!("KV type {}: the default of {}", engine::kv_type_name(kv_type), device.name());
    let biases = KeyBias::of_layers(std::slice::from_ref(model.plan()));
    let n_biased = biases.iter().flatten().count();
    if kv_type.is_quantized() && n_biased > 0 {
        text.push_str(&format!(" (keys of {n_biased} of {n_layers} layers without their biases)"));
    }
    Some(text)
}

/// Makes the engine of a model on its device, with a governor of memory and with the draft model of
/// the options, which is fetched if needed.
///
/// # Errors
/// - [`Error::Engine`]: the model does not fit in memory, generates no text, an option is outside
///   its limits, or the device fails.
/// - Those of [`open`], for the draft model.
pub fn engine(
    model: Arc<Model>,
    device: &Arc<dyn Device>,
    options: &LoadOptions,
    progress: &mut dyn Progress,
) -> Result<Engine> {
    let governor = Some(Governor::start(options.memory)?);
    let engine_options = engine::LoadOptions { governor, ..options.engine_options() };
    let mut engine = Engine::new(model, device, &engine_options)?;
    if let Some(wanted) = engine.memory().n_ctx_reduced_from {
        let n_ctx = engine.limits().n_ctx;
        tracing::info!(
            "context: {n_ctx} tokens, because the model's own {wanted} tokens do not fit in memory"
        );
    }
    if let Some(source) = &options.draft_model {
        let draft = open(source, &options.for_draft_model(), progress)?.model;
        engine.set_proposer(Box::new(DraftModel::new(Arc::new(draft), &engine, &engine_options)?));
    }
    Ok(engine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceKind;
    use engine::{Request, SamplingParams};
    use formats::convert::{self, Options, Plan, Target};
    use hub::Silent;

    fn llama() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models/llama")
    }

    fn options() -> LoadOptions {
        let mut options = LoadOptions { n_ctx: Some(64), ..LoadOptions::default() };
        options.device.kind = DeviceKind::Reference;
        options.device.threads = Some(1);
        options
    }

    /// The four tokens after a prompt.
    fn answer(opened: Opened, options: &LoadOptions) -> Vec<u32> {
        let device = device_for(&opened.model, options).unwrap().device;
        let mut engine = engine(Arc::new(opened.model), &device, options, &mut Silent).unwrap();
        let request = Request::new(vec![1, 20, 30]);
        let request = Request { max_tokens: Some(4), sampling: SamplingParams::greedy(), ..request };
        engine.complete(request).unwrap().tokens
    }

    /// Writes a folder's model as GGUF.
    fn gguf(source: &Path, output: &Path) {
        let checkpoint = formats::open(source, Access::Map).unwrap();
        let spec = model::ModelSpec::from_checkpoint(&checkpoint).unwrap();
        let export = model::to_gguf(&checkpoint, &spec, "m", None).unwrap();
        let target = Target::parse("gguf").unwrap();
        let options = Options { target, profile: None, requantize: false, force: false };
        let plan = Plan::new(&export, &options).unwrap();
        convert::run(&export, &plan, "m", &[], output, &options, &mut |_| {}).unwrap();
    }

    #[test]
    fn bytes_in_memory_answer_as_their_file_does() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("m.gguf");
        gguf(&llama(), &file);
        let options = options();
        let of_file = answer(open_fetched(&file, &options).unwrap(), &options);
        let bytes = std::fs::read(&file).unwrap();
        let opened = open_gguf("m.gguf", &bytes, &options).unwrap();
        assert_eq!((answer(opened, &options), of_file.len()), (of_file, 4));
        let error = open_gguf("m.gguf", &bytes[..100], &options).unwrap_err();
        assert!(matches!(error, Error::Format(_)) && error.to_string().contains("m.gguf"), "{error}");
    }

    #[test]
    fn a_file_that_only_looks_like_the_image_encoder_is_a_note() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("m.gguf");
        gguf(&llama(), &file);
        let tower = folder.path().join("mmproj-m.gguf");
        std::fs::copy(&file, &tower).unwrap();
        let opened = open_fetched(&file, &options()).unwrap();
        assert!(matches!(&opened.notes[..], [Note::WithoutImages { file, .. }] if *file == tower));
        // A file that the options name must fit.
        let named = LoadOptions { mmproj: Some(tower), ..options() };
        assert!(matches!(open_fetched(&file, &named), Err(Error::Mmproj { .. })));
    }

    #[test]
    fn errors_name_the_option_or_the_adapter() {
        let model = open_fetched(&llama(), &options()).unwrap().model;
        let refused = |options: LoadOptions| device_for(&model, &options).err().unwrap().to_string();
        let without_experts = LoadOptions { cpu_moe_layers: Some(1), ..options() };
        assert!(refused(without_experts).contains("cpu_moe_layers needs a mixture of experts"));
        let mut on_cpu = LoadOptions { gpu_layers: Some(1), ..options() };
        on_cpu.device.kind = DeviceKind::Cpu;
        assert!(refused(on_cpu).contains("gpu_layers splits a model between a GPU and the CPU"));
        let adapters = vec![AdapterSource::new("style", "absent")];
        let error = open_fetched(&llama(), &LoadOptions { adapters, ..options() });
        assert_eq!(error.err().unwrap().to_string(), "opening the adapter style");
    }
}
