//! Loading of models as the flags ask: fetching, opening, options of the engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use device::key_bias::KeyBias;
use device::{Device, KvType, Numerics};
use engine::{Adapter, DraftModel, Engine, Governor, LoadOptions, Model, Picture, Prefill, TokenizerSource};
use formats::Verify;
use formats::base::PublicKey;
use weights::{Access, Checkpoint};

use crate::args::{
    AdapterArgs, DeviceArgs, FetchArgs, FileOrText, KvBudget, KvTypeName, LoadArgs, Lora, LoraArgs,
    ModelArgs, ModelName, PrefillArgs, PrefillName, SpeculateArgs, SpeculateName, VerifyArgs, WeightsName,
};
use crate::devices;
use crate::mmproj;
use crate::progress::Bar;
use crate::share;
use crate::tell::tell;

/// Fetches a model if needed; returns its path.
pub fn fetch(model: &ModelName, args: &FetchArgs) -> anyhow::Result<PathBuf> {
    let reference = model.reference()?;
    Ok(args.place(&reference, &args.options()?, &mut Bar::default())?)
}

/// Fetches and opens a model, without a device.
pub fn open(args: &ModelArgs) -> anyhow::Result<Model> {
    open_adapted(args, &LoraArgs::default())
}

/// Like [`open`], with adapters.
pub fn open_adapted(args: &ModelArgs, lora: &LoraArgs) -> anyhow::Result<Model> {
    let path = fetch(&args.model, &args.fetch)?;
    let checkpoint = open_checkpoint(&path, access(&args.load.device), &args.verify)?;
    let tower = args.load.mmproj.as_deref();
    let checkpoint = mmproj::attach(&path, checkpoint, tower, access(&args.load.device))?;
    let adapters = lora.lora.iter().map(|lora| adapter(lora, access(&args.load.device)));
    let adapters = adapters.collect::<anyhow::Result<Vec<_>>>()?;
    Ok(Model::from_opened_adapted(&path, checkpoint, &TokenizerSource::Own, adapters)?)
}

/// Opens an adapter.
pub fn adapter(lora: &Lora, access: Access) -> anyhow::Result<Adapter> {
    let checkpoint = formats::open_adapter(&lora.path, access)
        .with_context(|| format!("opening the adapter {}", lora.name))?;
    Ok(Adapter { name: lora.name.clone(), checkpoint, factor: lora.factor })
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

/// Opens a file or folder, and verifies it if the flags ask for that.
pub fn open_checkpoint(path: &Path, access: Access, args: &VerifyArgs) -> anyhow::Result<Checkpoint> {
    let key = args.verify_key.as_ref().map(public_key).transpose()?;
    Ok(formats::open_verified(path, access, &Verify { key, checksums: args.check })?)
}

/// Reads a public key: a file of 32 bytes, or 64 hexadecimal digits.
pub fn public_key(given: &FileOrText) -> anyhow::Result<PublicKey> {
    let text = given.text().unwrap_or_default();
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let Some(digits) = digits.filter(|digits| digits.len() == 64) else {
        return Ok(PublicKey::read(given.path())?);
    };
    let bytes: [u8; 32] = std::array::from_fn(|i| digits[2 * i] << 4 | digits[2 * i + 1]);
    PublicKey::from_bytes(&bytes).with_context(|| format!("{text} is not an ed25519 public key"))
}

/// Access to weight files: mapped or read.
pub fn access(args: &DeviceArgs) -> Access {
    match args.weights {
        WeightsName::Mapped => Access::Map,
        WeightsName::Copied => Access::Read,
    }
}

/// Creates the device of the flags; with `auto`, the first that is present and runs the model.
pub fn device_for(args: &LoadArgs, model: &Model) -> anyhow::Result<Arc<dyn Device>> {
    let device = devices::device_that(&args.device, &|device| match engine::plan_memory(
        model,
        device,
        &options(args),
    ) {
        Err(engine::Error::Device(error @ device::Error::Unsupported { .. })) => Err(error.into()),
        // Other errors occur on every device, and are reported when the model is loaded.
        Ok(_) | Err(_) => Ok(()),
    })?;
    let device = share::shared(args, model, device, &options(args))?;
    if let Some(chosen) = default_kv_type(args, device.as_ref(), model) {
        tracing::info!("{chosen}");
    }
    Ok(device)
}

/// The device's default type of keys and values, as a sentence. `None` if a flag sets the type, or
/// if the model has no keys and values.
pub fn default_kv_type(args: &LoadArgs, device: &dyn Device, model: &Model) -> Option<String> {
    if args.kv_type.is_some() {
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

/// The options with the speculation of the flags, or with `default`.
pub fn speculating(
    options: LoadOptions,
    speculate: &SpeculateArgs,
    default: SpeculateName,
) -> anyhow::Result<LoadOptions> {
    Ok(LoadOptions { speculate: speculate.speculate(default)?, max_draft: speculate.draft_max, ..options })
}

/// The model, with its own layer for drafting if the flags ask for that.
pub fn guessing(model: Model, speculate: &SpeculateArgs) -> anyhow::Result<Model> {
    Ok(if speculate.mtp { model.predicting()? } else { model })
}

/// Loads a model on its device, with the draft model of the flags. `default` is the speculation
/// without such flags.
pub fn engine(
    model: Arc<Model>,
    device: &Arc<dyn Device>,
    args: &ModelArgs,
    options: LoadOptions,
    speculate: &SpeculateArgs,
    default: SpeculateName,
) -> anyhow::Result<Engine> {
    let options = speculating(options, speculate, default)?;
    let options = LoadOptions { governor: Some(Governor::start(args.load.memory)?), ..options };
    let mut engine = Engine::new(model, device, &options)?;
    if let Some(wanted) = engine.memory().n_ctx_reduced_from {
        let n_ctx = engine.limits().n_ctx;
        tracing::info!(
            "context: {n_ctx} tokens, because the model's own {wanted} tokens do not fit in memory"
        );
    }
    if let Some(name) = &speculate.draft_model {
        let draft = open(&ModelArgs { model: name.clone(), ..args.clone() })?;
        engine.set_proposer(Box::new(DraftModel::new(Arc::new(draft), &engine, &options)?));
    }
    Ok(engine)
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

/// The options of the engine for these flags.
pub fn options(args: &LoadArgs) -> LoadOptions {
    LoadOptions {
        n_ctx: args.ctx,
        kv_type: args.kv_type.map(kv_type),
        kv_budget: match args.kv_budget {
            KvBudget::Auto => None,
            KvBudget::Bytes(bytes) => Some(bytes),
        },
        chunk: args.chunk,
        numerics: numerics(args.deterministic),
        ..LoadOptions::default()
    }
}

/// The device's type of keys and values.
pub fn kv_type(name: KvTypeName) -> KvType {
    match name {
        KvTypeName::F32 => KvType::F32,
        KvTypeName::F16 => KvType::F16,
        KvTypeName::I16 => KvType::I16,
        KvTypeName::I8 => KvType::I8,
        KvTypeName::Q8_0 => KvType::Q8_0,
        KvTypeName::Fp8 => KvType::Fp8,
    }
}

/// The arithmetic of the device.
pub fn numerics(deterministic: bool) -> Numerics {
    if deterministic { Numerics::Deterministic } else { Numerics::Fast }
}

/// The way in which the prompt is computed.
pub fn prefill(args: &PrefillArgs) -> Prefill {
    match args.prefill {
        PrefillName::Batched => Prefill::Batched,
        PrefillName::PerToken => Prefill::PerToken,
    }
}

/// Number of rows whose logits are computed together when every position is scored.
pub const SCORED_ROWS: usize = 64;

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
