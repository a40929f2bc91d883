//! Flags that several commands share. What was typed is turned once into what it means, here.

mod names;
mod numbers;
mod sampling;

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use device_cpu::Isa;
use engine::MemoryCap;

pub use names::{FileOrText, Lora, ModelName};
pub use numbers::{Limit, RandomSeed, limit, limit_number, parse_bytes, seed, top_k};
pub use sampling::{OverflowName, SamplingArgs};

/// Which model, and how it is loaded.
#[derive(Args, Clone, Debug)]
pub struct ModelArgs {
    /// A catalog name (`ingle search`), a path to a GGUF or .base file or a folder, hf:org/repo[/file|:QUANT][@revision], or a model
    /// of another program (`ingle list --all`)
    pub model: ModelName,

    #[command(flatten)]
    pub load: LoadArgs,

    #[command(flatten)]
    pub fetch: FetchArgs,

    #[command(flatten)]
    pub verify: VerifyArgs,
}

/// Adapters beside the model.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Adapters")]
pub struct LoraArgs {
    /// An adapter (LoRA) under a name: a folder of PEFT or a GGUF file, and how strongly it applies [default scale: 1]; repeat for more
    #[arg(long, value_name = "NAME=PATH[:SCALE]", value_parser = names::LoraParser)]
    pub lora: Vec<Lora>,
}

/// Adapters beside the model, and which of them a command computes with.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Adapters")]
pub struct AdapterArgs {
    #[command(flatten)]
    pub lora: LoraArgs,

    /// The adapter to use, where --lora loads several
    #[arg(long, value_name = "NAME", requires = "lora")]
    pub adapter: Option<String>,
}

/// What has to hold before a file is used.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Verifying (.base files)")]
pub struct VerifyArgs {
    /// Refuse the file unless this key signed it: the file of a public key, or its 64 hexadecimal digits
    #[arg(long, value_name = "FILE|HEX")]
    pub verify_key: Option<FileOrText>,

    /// Verify the checksum of every tensor first, which reads the whole file
    #[arg(long)]
    pub check: bool,
}

/// Where models come from and where they are kept.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Fetching")]
pub struct FetchArgs {
    /// Where fetched models are kept [default: INGLE_CACHE, or the user's cache folder]
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,

    /// Hugging Face's own cache folder [default: HF_HUB_CACHE, or hub in HF_HOME]
    #[arg(long, value_name = "DIR")]
    pub hf_cache: Option<PathBuf>,

    /// Ollama's folder of models, used where they are [default: OLLAMA_MODELS, or Ollama's own folders]
    #[arg(long, value_name = "DIR")]
    pub ollama_models: Option<PathBuf>,

    /// LM Studio's folder of models, used where they are [default: LM Studio's own folders]
    #[arg(long, value_name = "DIR")]
    pub lmstudio_models: Option<PathBuf>,

    /// Do not fetch the mmproj file (the image encoder) that belongs to a GGUF model of the hub
    #[arg(long)]
    pub no_mmproj: bool,

    /// Use only what is in the cache [also HF_HUB_OFFLINE=1]
    #[arg(long)]
    pub offline: bool,

    /// The Hugging Face hub [default: HF_ENDPOINT, or https://huggingface.co]
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,

    /// Access token for gated and private repositories [default: HF_TOKEN, or the hub's token file]
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,

    /// The proxy for requests to the hub, or "none" [default: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY]
    #[arg(long, value_name = "URL")]
    pub proxy: Option<String>,

    /// Certificate authorities to trust, as a PEM file [default: SSL_CERT_FILE, or the built-in ones]
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,

    /// The Python whose pip fetches wheels [default: INGLE_PYTHON, or the first of python3, python, py]
    #[arg(long, value_name = "FILE")]
    pub python: Option<PathBuf>,

    /// A further argument for `pip download`; repeat for more
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub pip_arg: Vec<String>,

    /// A catalog file to use instead of the built-in one
    #[arg(long, value_name = "FILE")]
    pub catalog: Option<PathBuf>,
}

impl FetchArgs {
    /// The cache folders: flags, then the environment, then the system's.
    pub fn cache(&self) -> hub::Result<hub::Cache> {
        hub::Cache::resolve(self.cache.clone(), self.hf_cache.clone())
    }

    /// Make sure that a model is on this machine; where it lies. A path needs no cache, so that none has to be found for it.
    pub fn place(
        &self,
        reference: &hub::ModelRef,
        options: &hub::Options,
        progress: &mut dyn hub::Progress,
    ) -> hub::Result<PathBuf> {
        hub::find_outside(reference, options)
            .unwrap_or_else(|| hub::fetch(reference, &self.cache()?, options, progress))
    }

    /// The catalog: the built-in one, or the file that a flag names.
    pub fn catalog(&self) -> hub::Result<Option<hub::Catalog>> {
        self.catalog.as_deref().map(hub::Catalog::load).transpose()
    }

    /// How to fetch: flags over the environment.
    pub fn options(&self) -> hub::Result<hub::Options> {
        let mut options = hub::Options::from_env()?;
        if let Some(endpoint) = &self.endpoint {
            options.endpoint.clone_from(endpoint);
        }
        if let Some(token) = &self.token {
            options.token = Some(hub::Token::new(token)?);
        }
        match self.proxy.as_deref() {
            Some("none") => options.proxy = hub::ProxyChoice::Direct,
            Some(address) => options.proxy = hub::ProxyChoice::Address(address.to_owned()),
            None => {}
        }
        options.certificates = self.ca_file.clone().or(options.certificates);
        options.python = self.python.clone().or(options.python);
        options.pip_arguments.clone_from(&self.pip_arg);
        options.catalog = self.catalog()?;
        options.stores = hub::Stores::resolve(self.ollama_models.clone(), self.lmstudio_models.clone());
        options.offline |= self.offline;
        options.towers = !self.no_mmproj;
        Ok(options)
    }
}

/// The device, and how the file is brought in.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Device and memory")]
pub struct DeviceArgs {
    /// Where to run
    #[arg(long, value_enum, ignore_case = true, default_value_t = DeviceName::Auto)]
    pub device: DeviceName,

    /// The GPUs to use, by their indices in nvidia-smi. Several share every layer; their number must divide the model's heads
    /// [default: 0]. (With --device reference: as many interpreters, for tests)
    #[arg(long, value_name = "INDEX,...", value_delimiter = ',')]
    pub gpus: Vec<usize>,

    /// Worker threads [default, or -1: the processors that this process may use]
    #[arg(short, long, value_name = "N", default_value = "-1", hide_default_value = true, value_parser = limit)]
    pub threads: Limit,

    /// Use this instruction set instead of the best that the processor reports
    #[arg(long, value_parser = isa_parser())]
    pub isa: Option<Isa>,

    /// How the file is loaded: mapped, so that the system reads and drops pages as needed, or copied into memory, for files that may
    /// change while they are in use
    #[arg(long, value_enum, default_value_t = WeightsName::Mapped)]
    pub weights: WeightsName,

    /// How work is ordered on a Mac's GPU: try `fenced` or `serial` if `concurrent` hangs
    #[arg(long, value_enum, default_value_t = MetalEncoder::Concurrent)]
    pub metal_encoder: MetalEncoder,
}

/// The device and the sizes.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Device and memory")]
pub struct LoadArgs {
    #[command(flatten)]
    pub device: DeviceArgs,

    /// The mmproj file (the image encoder) of a GGUF model [default: the file beside it whose name begins with mmproj]
    #[arg(long, value_name = "FILE")]
    pub mmproj: Option<PathBuf>,

    /// Compute this many of the model's last layers on the device, and the others on the CPU; -1 is the default [default: all, or as
    /// many as fit in the GPU's memory]
    #[arg(long, visible_alias = "n-gpu-layers", value_name = "N", conflicts_with = "gpus", default_value = "-1",
        hide_default_value = true, value_parser = limit)]
    pub gpu_layers: Limit,

    /// Compute the experts of this many first layers on the CPU, and all else on the device; a large number means all layers
    /// [default: 0, or as few as let the rest fit in the GPU's memory]
    #[arg(long, visible_alias = "n-cpu-moe", value_name = "N", conflicts_with = "gpus")]
    pub cpu_moe_layers: Option<usize>,

    /// Context length in tokens [default, or 0: the model's own, or the longest that fits in memory]
    #[arg(short, long, aliases = ["ctx-size", "num-ctx"], value_name = "TOKENS", default_value = "0", hide_default_value = true,
        value_parser = numbers::context)]
    pub ctx: Limit,

    /// The type of cached keys and values [default: i16 on cpu, f16 on cuda and metal, f32 on reference]
    #[arg(long, value_enum, ignore_case = true)]
    pub kv_type: Option<KvTypeName>,

    /// The most memory that this process may take, all models together: bytes (8GiB), a share of the machine's memory (50%), or max:
    /// whatever is free, also while it runs
    #[arg(long, value_name = "BYTES|PERCENT|max", default_value = "max", value_parser = parse_memory)]
    pub memory: MemoryCap,

    /// The most memory for keys and values of all sequences and cached prompts: bytes (512M, 4G), or auto: what memory allows
    #[arg(long, value_name = "BYTES|auto", default_value = "auto", value_parser = parse_budget)]
    pub kv_budget: KvBudget,

    /// The most prompt tokens that are computed in one step [default: what suits the device, mostly 512]
    #[arg(long, value_name = "TOKENS")]
    pub chunk: Option<usize>,

    /// Fix the order of all sums, so that neither batching nor chunking changes an answer
    #[arg(long)]
    pub deterministic: bool,
}

/// How an answer is sped up by guessing it.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Speculation (guesses change the speed, not how a token is chosen)")]
pub struct SpeculateArgs {
    /// When to verify guessed tokens: auto where measurements say that it pays; ngram whenever the text repeats itself; draft
    /// whenever the draft model or --mtp has a guess [default: auto; off in bench and, unless a draft model or --mtp is given, for
    /// answers that --greedy or --seed make repeatable]
    #[arg(long, value_enum, value_name = "WHEN")]
    pub speculate: Option<SpeculateName>,

    /// A smaller model with the same vocabulary that guesses tokens: a name or a path, as for MODEL
    #[arg(long, visible_alias = "model-draft", value_name = "MODEL")]
    pub draft_model: Option<ModelName>,

    /// Guess with the model's own layer for multi-token prediction, if the file has one (DeepSeek V3, GLM-4.5, GLM-4.7-Flash,
    /// Qwen3-Next, Qwen3.5)
    #[arg(long, conflicts_with = "draft_model")]
    pub mtp: bool,

    /// The most guesses in a step
    #[arg(long, value_name = "N", default_value_t = engine::DEFAULT_DRAFT)]
    pub draft_max: usize,
}

impl SpeculateArgs {
    /// Whether tokens of a request may be guessed: not if it would give the same answer each time and nobody asked for
    /// guesses.
    pub fn allows(&self, sampling: &engine::SamplingParams, deterministic: bool) -> bool {
        let asked = self.speculate.is_some() || self.has_model();
        let repeatable = sampling.temperature == 0.0 || sampling.top_k == 1 || sampling.seed.is_some();
        asked || deterministic || !repeatable
    }

    /// Whether a model guesses, another one or its own layer.
    fn has_model(&self) -> bool {
        self.mtp || self.draft_model.is_some()
    }

    /// What is asked for, or `default`; checked against the draft model.
    pub fn speculate(&self, default: SpeculateName) -> anyhow::Result<engine::Speculate> {
        let has_model = self.has_model();
        let default = if has_model { SpeculateName::Auto } else { default };
        let found = self.speculate.unwrap_or(default);
        Ok(match (found, has_model) {
            (SpeculateName::Auto, _) => engine::Speculate::Auto,
            (SpeculateName::Off, false) => engine::Speculate::Off,
            (SpeculateName::Ngram, false) | (SpeculateName::Draft, true) => engine::Speculate::Always,
            (SpeculateName::Draft, false) => anyhow::bail!("--speculate draft needs --draft-model or --mtp"),
            (SpeculateName::Off | SpeculateName::Ngram, true) => {
                let name = if self.mtp { "--mtp" } else { "--draft-model" };
                anyhow::bail!("{name} goes with --speculate auto or draft")
            }
        })
    }
}

/// Where the computed prompt is kept between runs.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Computing the prompt")]
pub struct PromptCacheArgs {
    /// Keep the computed prompt in this file, and reuse what it holds of this prompt; a file belongs to one model and its settings
    #[arg(long, value_name = "FILE")]
    pub prompt_cache: Option<PathBuf>,

    /// Read the prompt cache, but never write it
    #[arg(long, requires = "prompt_cache")]
    pub prompt_cache_ro: bool,
}

impl PromptCacheArgs {
    /// Give the engine what the file holds, if one is named.
    pub fn open(&self, engine: &mut engine::Engine) -> anyhow::Result<Option<engine::PromptCache>> {
        let Some(file) = &self.prompt_cache else { return Ok(None) };
        let cache = engine::PromptCache::open(engine, file)?;
        tracing::info!("{} holds a prompt of {} tokens", file.display(), cache.n_tokens());
        Ok(Some(cache))
    }

    /// Keep the prompt, if there is a file for it that may be written.
    pub fn save(
        &self,
        cache: Option<&mut engine::PromptCache>,
        engine: &mut engine::Engine,
        prompt: &[u32],
    ) -> anyhow::Result<()> {
        if let Some(cache) = cache.filter(|_| !self.prompt_cache_ro) {
            let n_tokens = cache.save(engine, prompt)?;
            tracing::info!("the prompt cache holds {n_tokens} tokens");
        }
        Ok(())
    }
}

/// How a prompt is computed, for commands that compute one.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Computing the prompt")]
pub struct PrefillArgs {
    /// How the prompt is computed; per-token is slow, for checks
    #[arg(long, value_enum, default_value_t = PrefillName::Batched)]
    pub prefill: PrefillName,

    /// Compute the prompt in both ways, and fail if the results differ by more than the arithmetic allows
    #[arg(long)]
    pub validate_prefill: bool,
}

/// `--weights`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WeightsName {
    Mapped,
    Copied,
}

/// `--device`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeviceName {
    /// The first of cuda, metal and cpu that is present, runs the model and passes a check of its arithmetic
    Auto,
    /// The processor
    Cpu,
    /// The reference interpreter: plain f32, slow
    Reference,
    /// NVIDIA's GPUs: the first, or those that --gpus names
    Cuda,
    /// The GPU of a Mac with Apple Silicon
    Metal,
    /// The Metal shaders in an emulator on Linux: for tests, very slow, needs clang
    MetalEmulated,
}

/// `--metal-encoder`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MetalEncoder {
    /// Dispatches side by side, with barriers; Metal orders command buffers
    Concurrent,
    /// The same, with a fence of our own between command buffers
    Fenced,
    /// One dispatch after the other
    Serial,
}

#[cfg(target_os = "macos")]
impl MetalEncoder {
    /// As the device calls it.
    pub fn mode(self) -> device_metal::gpu::EncoderMode {
        match self {
            MetalEncoder::Concurrent => device_metal::gpu::EncoderMode::Concurrent,
            MetalEncoder::Fenced => device_metal::gpu::EncoderMode::Fenced,
            MetalEncoder::Serial => device_metal::gpu::EncoderMode::Serial,
        }
    }
}

/// `--isa`: the names that the device gives.
fn isa_parser() -> impl TypedValueParser<Value = Isa> {
    PossibleValuesParser::new(Isa::ALL.map(Isa::name))
        .try_map(|name| Isa::from_name(&name).ok_or("not an instruction set"))
}

/// `--kv-type`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvTypeName {
    F32,
    F16,
    I16,
    I8,
    #[value(name = "q8_0")]
    Q8_0,
    /// E4M3 with a scale for each vector
    Fp8,
}

/// `--kv-budget`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvBudget {
    Auto,
    Bytes(u64),
}

/// `auto`, or a number of bytes with its unit.
fn parse_budget(text: &str) -> Result<KvBudget, String> {
    if text == "auto" {
        return Ok(KvBudget::Auto);
    }
    let expected = "expected auto or a number of bytes such as 1073741824, 1024M or 1G";
    parse_bytes(text).map(KvBudget::Bytes).ok_or_else(|| expected.to_owned())
}

/// `max`, a part of the memory in percent, or a number of bytes.
pub fn parse_memory(text: &str) -> Result<MemoryCap, String> {
    let percent = |text: &str| text.parse::<f64>().ok().filter(|part| *part > 0.0 && *part <= 100.0);
    let cap = match text.strip_suffix('%') {
        _ if text == "max" => Some(MemoryCap::Max),
        Some(part) => percent(part).map(|part| MemoryCap::Share(part / 100.0)),
        None => parse_bytes(text).map(MemoryCap::Bytes),
    };
    cap.ok_or_else(|| {
        "expected max, a share of the memory such as 50%, or bytes such as 8GiB or 512M".to_owned()
    })
}

/// `--prefill`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PrefillName {
    Batched,
    PerToken,
}

/// `--speculate`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SpeculateName {
    Off,
    Auto,
    Ngram,
    Draft,
}
