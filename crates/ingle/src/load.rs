//! From flags to a model that runs: fetch, device, options.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use device::key_bias::KeyBias;
use device::{Device, KvType, Numerics};
use device_parallel::ParallelDevice;
use engine::{Adapter, DraftModel, Engine, Governor, LoadOptions, Model, Picture, Prefill, TokenizerSource};
use formats::Verify;
use formats::base::PublicKey;
use weights::{Access, Checkpoint};

use crate::args::{
    AdapterArgs, DeviceArgs, DeviceName, FetchArgs, FileOrText, KvBudget, KvTypeName, LoadArgs, Lora,
    LoraArgs, ModelArgs, ModelName, PrefillArgs, PrefillName, SpeculateArgs, SpeculateName, VerifyArgs,
    WeightsName,
};
use crate::choose;
use crate::mmproj;
use crate::progress::Bar;
use crate::share;
use crate::tell::tell;

/// Make sure that a model is on this machine; where it lies.
pub fn fetch(model: &ModelName, args: &FetchArgs) -> anyhow::Result<PathBuf> {
    let reference = model.reference()?;
    Ok(args.place(&reference, &args.options()?, &mut Bar::default())?)
}

/// Fetch and open a model; nothing of a device is taken yet.
pub fn open(args: &ModelArgs) -> anyhow::Result<Model> {
    open_adapted(args, &LoraArgs::default())
}

/// The same with adapters.
pub fn open_adapted(args: &ModelArgs, lora: &LoraArgs) -> anyhow::Result<Model> {
    let path = fetch(&args.model, &args.fetch)?;
    let checkpoint = open_checkpoint(&path, access(&args.load.device), &args.verify)?;
    let tower = args.load.mmproj.as_deref();
    let checkpoint = mmproj::attach(&path, checkpoint, tower, access(&args.load.device))?;
    let adapters = lora.lora.iter().map(|lora| adapter(lora, access(&args.load.device)));
    let adapters = adapters.collect::<anyhow::Result<Vec<_>>>()?;
    Ok(Model::from_opened_adapted(&path, checkpoint, &TokenizerSource::Own, adapters)?)
}

/// Open an adapter.
pub fn adapter(lora: &Lora, access: Access) -> anyhow::Result<Adapter> {
    let checkpoint = formats::open_adapter(&lora.path, access)
        .with_context(|| format!("opening the adapter {}", lora.name))?;
    Ok(Adapter { name: lora.name.clone(), checkpoint, factor: lora.factor })
}

/// The adapter that a command computes with: the one that `--adapter` names, or the only one that there is.
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

/// Open a file or folder, verified as the flags ask.
pub fn open_checkpoint(path: &Path, access: Access, args: &VerifyArgs) -> anyhow::Result<Checkpoint> {
    let key = args.verify_key.as_ref().map(public_key).transpose()?;
    Ok(formats::open_verified(path, access, &Verify { key, checksums: args.check })?)
}

/// A public key: a file of 32 bytes, or 64 hexadecimal digits.
pub fn public_key(given: &FileOrText) -> anyhow::Result<PublicKey> {
    let text = given.text().unwrap_or_default();
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let Some(digits) = digits.filter(|digits| digits.len() == 64) else {
        return Ok(PublicKey::read(given.path())?);
    };
    let bytes: [u8; 32] = std::array::from_fn(|i| digits[2 * i] << 4 | digits[2 * i + 1]);
    PublicKey::from_bytes(&bytes).with_context(|| format!("{text} is no ed25519 public key"))
}

/// How files are brought in.
pub fn access(args: &DeviceArgs) -> Access {
    match args.weights {
        WeightsName::Mapped => Access::Map,
        WeightsName::Copied => Access::Read,
    }
}

/// The device that the flags name, or the first that is here.
pub fn device(args: &DeviceArgs) -> anyhow::Result<Arc<dyn Device>> {
    device_that(args, &|_| Ok(()))
}

/// The device that the flags name, or the first that is here and runs the model.
pub fn device_for(args: &LoadArgs, model: &Model) -> anyhow::Result<Arc<dyn Device>> {
    let device =
        device_that(&args.device, &|device| match engine::plan_memory(model, device, &options(args)) {
            Err(engine::Error::Device(error @ device::Error::Unsupported { .. })) => Err(error.into()),
            // What else is wrong is wrong on every device, and is said when the model is loaded.
            Ok(_) | Err(_) => Ok(()),
        })?;
    let device = share::shared(args, model, device)?;
    if let Some(chosen) = default_kv_type(args, device.as_ref(), model) {
        tracing::info!("{chosen}");
    }
    Ok(device)
}

/// For people: how a device stores keys and values if no flag says so; `None`: a flag does, or the model has none.
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

fn device_that(
    args: &DeviceArgs,
    runs: &dyn Fn(&dyn Device) -> anyhow::Result<()>,
) -> anyhow::Result<Arc<dyn Device>> {
    if let [_, _, ..] = args.gpus[..] {
        return several(args);
    }
    match (args.device, &args.gpus[..]) {
        (DeviceName::Auto, []) => {}
        (name, []) => return named_device(name, args),
        // A GPU that is named is meant.
        (DeviceName::Auto | DeviceName::Cuda, _) => return named_device(DeviceName::Cuda, args),
        (DeviceName::Cpu | DeviceName::Reference | DeviceName::Metal | DeviceName::MetalEmulated, _) => {
            anyhow::bail!("{OTHER_DEVICE}")
        }
    }
    let metal = || -> anyhow::Result<Arc<dyn Device>> {
        let device: Arc<dyn Device> = metal::apple(false, args.metal_encoder)?;
        Ok(device)
    };
    let cuda = || named_device(DeviceName::Cuda, args);
    let cpu = || named_device(DeviceName::Cpu, args);
    let mut candidates = vec![choose::Candidate { name: "cuda", make: &cuda, check: Some(&cuda::tolerance) }];
    // Elsewhere nobody expects it, and nobody needs to read that it is not there.
    if cfg!(target_os = "macos") {
        candidates.push(choose::Candidate { name: "metal", make: &metal, check: Some(&choose::tolerance) });
    }
    candidates.push(choose::Candidate { name: "cpu", make: &cpu, check: None });
    let cache = hub::Cache::resolve(None, None).map(|cache| cache.root().join("self-checks")).ok();
    let choice = choose::choose(&candidates, runs, cache.as_deref())?;
    tracing::info!("{}", choice.reason);
    if choice.device.name() != "cuda" && has_nvidia_gpu() {
        choice.passed_over.iter().for_each(|why| tell!("note: a GPU is not used: {why}"));
    }
    Ok(choice.device)
}

/// Whether the system sees a GPU of NVIDIA's, with a driver or without: where there is none, nobody needs to read that it is not used.
fn has_nvidia_gpu() -> bool {
    if Path::new("/dev/nvidia0").exists() {
        return true;
    }
    let devices = std::fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    let is = |folder: &Path, file: &str, begins: &str| {
        std::fs::read_to_string(folder.join(file)).is_ok_and(|text| text.starts_with(begins))
    };
    // The vendor's number, and the class of display controllers.
    devices
        .map(|device| device.path())
        .any(|path| is(&path, "vendor", "0x10de") && is(&path, "class", "0x03"))
}

/// The CPU with the threads and the instruction set of the flags.
pub fn cpu(args: &DeviceArgs) -> anyhow::Result<device_cpu::CpuDevice> {
    Ok(device_cpu::CpuDevice::new(device_cpu::Options { threads: args.threads, isa: args.isa })?)
}

/// The device of a name.
pub fn named_device(name: DeviceName, args: &DeviceArgs) -> anyhow::Result<Arc<dyn Device>> {
    Ok(match name {
        DeviceName::Auto | DeviceName::Cpu => Arc::new(cpu(args)?),
        DeviceName::Reference => Arc::new(match args.threads {
            Some(n_threads) => device_reference::Reference::new(n_threads),
            None => device_reference::Reference::default(),
        }),
        DeviceName::Cuda => cuda::device(first_gpu(args))?,
        DeviceName::Metal => metal::apple(false, args.metal_encoder)?,
        DeviceName::MetalEmulated => metal::emulated(args.threads)?,
    })
}

/// The error of `--gpus` beside another device.
const OTHER_DEVICE: &str =
    "--gpus says which of NVIDIA's GPUs compute: expected --device cuda, found another";

/// The GPU that the flags name, where they name one.
pub fn first_gpu(args: &DeviceArgs) -> usize {
    args.gpus.first().copied().unwrap_or(0)
}

/// Several devices that share every layer.
fn several(args: &DeviceArgs) -> anyhow::Result<Arc<dyn Device>> {
    if let Some((index, gpu)) = args.gpus.iter().enumerate().find(|(i, gpu)| args.gpus[..*i].contains(gpu)) {
        anyhow::bail!("--gpus names GPU {gpu} again at place {}, expected each once", index + 1);
    }
    let ranks = match args.device {
        DeviceName::Auto | DeviceName::Cuda => cuda::group(&args.gpus)?,
        DeviceName::Reference => {
            let n_threads = args.threads.unwrap_or_else(device_cpu::default_threads);
            let n = args.gpus.len();
            let ranks = device_reference::Reference::group(n, n_threads.div_ceil(n));
            ranks.into_iter().map(|rank| Arc::new(rank) as Arc<dyn Device>).collect()
        }
        DeviceName::Cpu | DeviceName::Metal | DeviceName::MetalEmulated => anyhow::bail!("{OTHER_DEVICE}"),
    };
    Ok(Arc::new(ParallelDevice::new(ranks)?))
}

/// The CUDA device, where there is one.
pub mod cuda {
    use super::*;
    use device_check::Case;

    /// The GPU with this index.
    #[cfg(any(target_os = "linux", target_os = "windows"))]
    pub fn device(index: usize) -> anyhow::Result<Arc<device_cuda::CudaDevice>> {
        Ok(Arc::new(device_cuda::CudaDevice::new(index)?))
    }

    /// GPUs as the ranks of one group.
    #[cfg(any(target_os = "linux", target_os = "windows"))]
    pub fn group(indices: &[usize]) -> anyhow::Result<Vec<Arc<dyn Device>>> {
        let ranks = device_cuda::CudaDevice::group(indices, device_cuda::Reach::Any)?;
        Ok(ranks.into_iter().map(|rank| Arc::new(rank) as Arc<dyn Device>).collect())
    }

    #[cfg(not(any(target_os = "linux", target_os = "windows")))]
    pub fn group(_indices: &[usize]) -> anyhow::Result<Vec<Arc<dyn Device>>> {
        anyhow::bail!("--device cuda runs on Linux and Windows, and this is {}", std::env::consts::OS)
    }

    /// The same, without the copies of weights that only make it faster.
    #[cfg(any(target_os = "linux", target_os = "windows"))]
    pub fn frugal(index: usize) -> anyhow::Result<Arc<device_cuda::CudaDevice>> {
        let device = device_cuda::CudaDevice::new(index)?;
        let profile = device_cuda::Profile { most_packed: 0, persistent: false, ..device.profile().clone() };
        Ok(Arc::new(device.with_profile(profile)))
    }

    #[cfg(not(any(target_os = "linux", target_os = "windows")))]
    pub use device as frugal;

    #[cfg(not(any(target_os = "linux", target_os = "windows")))]
    pub fn device(_index: usize) -> anyhow::Result<Arc<dyn Device>> {
        anyhow::bail!("--device cuda runs on Linux and Windows, and this is {}", std::env::consts::OS)
    }

    /// What its arithmetic needs of a case.
    #[cfg(any(target_os = "linux", target_os = "windows"))]
    pub fn tolerance(case: &Case) -> f32 {
        device_cuda::selftest::tolerance(case)
    }

    #[cfg(not(any(target_os = "linux", target_os = "windows")))]
    pub fn tolerance(case: &Case) -> f32 {
        choose::tolerance(case)
    }
}

/// The Metal device, where there is one.
pub mod metal {
    use super::*;

    #[cfg(target_os = "macos")]
    pub use device_metal::gpu::apple::{AppleGpu, Options};
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    pub use device_metal::gpu::emulated::{EmulatedGpu, Options};

    /// `tensors`: tiles are multiplied by the tensor units of an M5, which nobody has tried.
    #[cfg(target_os = "macos")]
    pub fn apple(
        tensors: bool,
        encoder: crate::args::MetalEncoder,
    ) -> anyhow::Result<Arc<device_metal::MetalDevice<AppleGpu>>> {
        use device_metal::{MetalDevice, Profile};
        let gpu = AppleGpu::new(&Options {
            cache: cache().ok(),
            tensors,
            any_family: false,
            encoder: encoder.mode(),
        })?;
        let profile = Profile { tensor: tensors, ..Profile::new(device_metal::gpu::Gpu::facts(&gpu)) };
        Ok(Arc::new(MetalDevice::with_profile(gpu, profile)))
    }

    #[cfg(not(target_os = "macos"))]
    pub fn apple(_tensors: bool, _encoder: crate::args::MetalEncoder) -> anyhow::Result<Arc<dyn Device>> {
        anyhow::bail!(
            "--device metal needs a Mac with Apple Silicon, and this is {}; use --device cpu \
             (--device metal-emulated runs the same shaders on Linux, very slowly, for tests)",
            std::env::consts::OS
        )
    }

    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    pub fn emulated(threads: Option<usize>) -> anyhow::Result<Arc<device_metal::MetalDevice<EmulatedGpu>>> {
        let threads = threads.unwrap_or_else(device_cpu::default_threads);
        let options = Options { threads, ..Options::new(cache()?) };
        Ok(Arc::new(device_metal::MetalDevice::new(EmulatedGpu::new(&options)?)))
    }

    #[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
    pub fn emulated(_threads: Option<usize>) -> anyhow::Result<Arc<dyn Device>> {
        anyhow::bail!("--device metal-emulated runs on Linux on x86-64; use --device cpu")
    }

    /// Where compiled shaders are kept.
    #[cfg(any(target_os = "macos", all(target_os = "linux", target_arch = "x86_64")))]
    pub fn cache() -> anyhow::Result<PathBuf> {
        Ok(hub::Cache::resolve(None, None)?.root().join("shaders"))
    }
}

/// The options with what the flags say of guesses, or `default`.
pub fn speculating(
    options: LoadOptions,
    speculate: &SpeculateArgs,
    default: SpeculateName,
) -> anyhow::Result<LoadOptions> {
    Ok(LoadOptions { speculate: speculate.speculate(default)?, max_draft: speculate.draft_max, ..options })
}

/// The model with its own layer that guesses, if the flags ask for that.
pub fn guessing(model: Model, speculate: &SpeculateArgs) -> anyhow::Result<Model> {
    Ok(if speculate.mtp { model.predicting()? } else { model })
}

/// A model on its device, with what guesses for it; `default` is what is done about guesses if no flag says so.
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
            "context: {n_ctx} tokens instead of the {wanted} that the model was trained for, which do not fit in memory"
        );
    }
    if let Some(name) = &speculate.draft_model {
        let draft = open(&ModelArgs { model: name.clone(), ..args.clone() })?;
        engine.set_proposer(Box::new(DraftModel::new(Arc::new(draft), &engine, &options)?));
    }
    Ok(engine)
}

/// A model made ready, and beside it, on a thread of its own, what needs only its tokenizer. Where both fail, the error is the
/// latter's, which is found sooner.
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

/// The sizes and the arithmetic that the flags ask for.
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

/// How keys and values are stored.
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

/// Which arithmetic.
pub fn numerics(deterministic: bool) -> Numerics {
    if deterministic { Numerics::Deterministic } else { Numerics::Fast }
}

/// How the flags ask for the prompt to be computed.
pub fn prefill(args: &PrefillArgs) -> Prefill {
    match args.prefill {
        PrefillName::Batched => Prefill::Batched,
        PrefillName::PerToken => Prefill::PerToken,
    }
}

/// Positions whose logits are computed together when every position is scored.
pub const SCORED_ROWS: usize = 64;

/// `--validate-prefill`: compute the prompt both ways, fail if they differ too much.
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

/// Read pictures and make them ready for a model that sees.
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

/// Token ids that mean nothing, for measuring: the same on each run, spread over the vocabulary.
pub fn arbitrary_tokens(n: usize, n_vocab: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * 7919 + 13) % n_vocab) as u32).collect()
}
