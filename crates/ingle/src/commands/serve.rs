//! `ingle serve`: models over HTTP.

mod adapters;
mod config;
mod gate;
mod library;
mod sampling;

use std::num::NonZero;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use engine::{Adapter, Embedder, Engine, Governor, LoadOptions, Model, Restored, Speculate, Turns};
use server::{App, KeepAlive, LoadError, Loaded, Loader, Options, PullProgress, ServedAdapter, Tls};
use speech::{Transcriber, TranscriberOptions};

use self::config::ModelConfig;
use self::gate::GateArgs;
use self::sampling::DefaultSamplingArgs;
use crate::args::{FetchArgs, LoadArgs, Lora, LoraArgs, ModelArgs, ModelName, VerifyArgs};
use crate::{load, output, tell};

/// While prompts are computed, answers wait for so many times a step of theirs.
const LATENCY_STEPS: f64 = 2.0;

/// Longest time that steps are computed only to warm up a model. A GPU compiles kernels and records tables at their first use.
const WARM_UP: Duration = Duration::from_secs(10);

/// The same on a CPU, which only touches memory for the first time; what is not warmed up then is a little slower once.
const WARM_UP_CPU: Duration = Duration::from_millis(400);

/// Most bytes of a model's prefixes on the disk.
const MAX_PREFIX_BYTES: u64 = 4 << 30;

/// Serve models over HTTP: the APIs of OpenAI, Anthropic and Ollama, speech included, with continuous batching
#[derive(Args)]
#[command(after_help = "\
The first model answers requests that name none, and is loaded before /health says ok; others are loaded when a request first
names them. A model's id is the name it was started with. Without any MODEL every model in the cache is served (`ingle list`).
Clients with different API keys never share cached prompts.

Examples:
  ingle serve
  ingle serve smollm2:135m
  ingle serve smollm2:135m whisper:base
  ingle serve model.gguf qwen3:4b --port 9000 --keep-alive 1h
  ingle serve model.gguf --host 0.0.0.0 --api-key SECRET
  ingle serve --config models.toml
  curl localhost:8080/v1/chat/completions -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'")]
pub struct Serve {
    /// Catalog names (`ingle list --all`), paths to GGUF or .base files or folders, or hf:org/repo[/file][@revision]
    #[arg(value_name = "MODEL")]
    models: Vec<ModelName>,

    /// Further models, from a TOML file: [[models]] with a source and, as needed, name, ctx, kv_type, slots and latency_target
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// All of them.
    #[arg(skip)]
    configs: Vec<ModelConfig>,

    /// Of the memory of all models.
    #[arg(skip)]
    governor: Option<Arc<Governor>>,

    /// Let clients pull and delete models through Ollama's API, and serve every model in the cache by its name
    #[arg(long)]
    allow_pull: bool,

    /// Let the first model answer requests that name an unknown one, for clients whose model cannot be changed
    #[arg(long, conflicts_with = "allow_pull")]
    any_name: bool,

    /// How many sequences a model computes at once; more wait
    #[arg(long, default_value_t = 16, value_name = "N")]
    slots: usize,

    /// How many requests of a model may wait; more are refused with 429
    #[arg(long, default_value_t = 256, value_name = "N")]
    max_waiting: usize,

    /// Refuse a request with 429 if it would probably wait longer than this for its first token
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    max_wait: u64,

    /// The most tokens of an answer, whatever its request says [default: what the context holds]
    #[arg(long, value_name = "N")]
    max_tokens: Option<NonZero<usize>>,

    /// Aim for at most this time between two tokens of an answer while other prompts are computed [default: twice the time of a
    /// step without prompts]
    #[arg(long, value_name = "MS")]
    latency_target: Option<u64>,

    /// Keep cached prompts in this folder across restarts, at most 4 GiB for each model
    #[arg(long, value_name = "DIR")]
    prefix_cache: Option<PathBuf>,

    /// Let clients load adapters from this folder, at /v1/load_lora_adapter
    #[arg(long, value_name = "DIR")]
    lora_dir: Option<PathBuf>,

    /// All of them, each with its model.
    #[arg(skip)]
    adapters: Mutex<Vec<(String, Lora)>>,

    /// The first model has been loaded, and the server is ready.
    #[arg(skip)]
    is_prepared: AtomicBool,

    /// Models that compute on the same processors take turns.
    #[arg(skip)]
    turns: Arc<Turns>,

    /// How long an unused model stays loaded: seconds, 30m, 2h; a negative time keeps it
    #[arg(long, default_value = "-1", value_name = "TIME", allow_hyphen_values = true, value_parser = parse_keep_alive)]
    keep_alive: KeepAlive,

    /// Skip the warm-up after a model is loaded; its first requests take longer
    #[arg(long)]
    no_warmup: bool,

    /// The least time between two pieces of a streamed answer; text that comes faster is sent together
    #[arg(long, default_value_t = 10, value_name = "MS")]
    stream_interval: u64,

    /// Guess tokens with the models' own layers for multi-token prediction, which their files must have (DeepSeek V3, GLM-4.5,
    /// GLM-4.7-Flash, Qwen3-Next, Qwen3.5)
    #[arg(long)]
    mtp: bool,

    /// How many seconds running answers may go on after SIGTERM or Ctrl-C
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    drain: u64,

    #[command(flatten)]
    gate: GateArgs,

    /// An adapter (LoRA) of the first model, which requests then name instead of it: PEFT's folder or a GGUF file; repeat for more
    #[command(flatten)]
    lora: LoraArgs,

    #[command(flatten)]
    sampling: DefaultSamplingArgs,

    #[command(flatten)]
    fetch: FetchArgs,

    #[command(flatten)]
    verify: VerifyArgs,

    #[command(flatten)]
    load: LoadArgs,
}

fn parse_keep_alive(text: &str) -> Result<KeepAlive, String> {
    server::keep_alive(&text.into()).map_err(|error| error.message)
}

impl Serve {
    pub fn run(mut self) -> anyhow::Result<()> {
        self.governor = Some(Governor::start(self.load.memory)?);
        self.configs = self.models.iter().map(ModelConfig::named).collect();
        if let Some(file) = &self.config {
            self.configs.extend(config::read(file)?);
        }
        let mut names: Vec<&str> = self.configs.iter().map(ModelConfig::name).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            bail!("the model {} is named twice", twice[0]);
        }
        if self.configs.is_empty() && !self.allow_pull && self.in_cache().is_empty() {
            bail!(
                "there is no model to serve: name one, as in `ingle serve smollm2:135m`, or fetch one with `ingle pull NAME`"
            );
        }
        self.name_adapters()?;
        self.sampling.choice().check()?;
        // A log that nobody reads must not stop the server.
        tell::apart().context("starting the thread that writes to stderr")?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(http_threads())
            .thread_name("http")
            .enable_all()
            .build()
            .context("starting the HTTP threads")?;
        let served = runtime.block_on(self.serve());
        // Whatever still loads or waits is of no use any more.
        runtime.shutdown_background();
        served
    }

    async fn serve(self) -> anyhow::Result<()> {
        let (listener, gate) = self.gate.open(self.prefix_cache.as_deref())?;
        let scheme = if gate.tls.is_some() { "https" } else { "http" };
        let address = listener.local_addr()?;
        if let Some(tls) = gate.tls.clone() {
            tokio::spawn(reload_certificates(tls));
        }
        let options = Options {
            models: self.configs.iter().map(|config| config.name().to_owned()).collect(),
            keep_alive: self.keep_alive,
            max_waiting: self.max_waiting,
            max_wait: Duration::from_secs(self.max_wait),
            governor: self.governor.clone(),
            max_tokens: self.max_tokens.map(NonZero::get),
            stream_interval: Duration::from_millis(self.stream_interval),
            sampling: self.sampling.choice(),
        };
        let drain = Duration::from_secs(self.drain);
        let serve = Arc::new(self);
        let app = App::new(options, serve.clone());
        tell!("listening at {scheme}://{address}");
        let preparing = app.clone();
        let prepared = async move {
            let begun = std::time::Instant::now();
            preparing.prepare().await?;
            serve.is_prepared.store(true, Ordering::Relaxed);
            tell!("ready after {:.1} s", begun.elapsed().as_secs_f64());
            // Only a failure ends the server.
            std::future::pending::<anyhow::Result<()>>().await
        };
        tokio::select! {
            served = server::serve(listener, app, gate, shutdown(), interrupted_again(), drain) => Ok(served?),
            failed = prepared => failed,
        }
    }

    /// What was said of a model; a pulled one has only its name.
    fn config_of(&self, name: &str) -> ModelConfig {
        let found = self.configs.iter().find(|config| config.name() == name);
        found.cloned().unwrap_or_else(|| ModelConfig::named(&ModelName::from(name)))
    }

    /// A model of this name, and whether it runs on the CPU.
    fn make(&self, name: &str) -> anyhow::Result<(Loaded, bool)> {
        let config = self.config_of(name);
        let model = ModelArgs {
            model: config.source(),
            fetch: self.fetch.clone(),
            verify: self.verify.clone(),
            load: config.load_args(&self.load),
        };
        let lora = LoraArgs { lora: self.adapters_of(name) };
        let opened = load::open_adapted(&model, &lora)?;
        let writes_text = opened.spec().encoder.is_none() && opened.embedding().is_err();
        let guesses = self.mtp && writes_text;
        let opened: Arc<Model> = Arc::new(if guesses { opened.predicting()? } else { opened });
        let options = LoadOptions {
            speculate: if guesses { Speculate::Auto } else { Speculate::Off },
            n_sequences: config.slots.unwrap_or(self.slots),
            token_latency: config.latency_target.or(self.latency_target).map(Duration::from_millis),
            latency_steps: Some(LATENCY_STEPS),
            // Pieces of an answer do not come faster.
            least_latency: Duration::from_millis(self.stream_interval).mul_f64(LATENCY_STEPS),
            governor: self.governor.clone(),
            ..load::options(&model.load)
        };
        anyhow::ensure!(
            writes_text || lora.lora.is_empty(),
            "{name} writes no text, and adapters are for models that do"
        );
        if opened.spec().encoder.is_some() {
            let device = load::device(&model.load.device)?;
            let on_cpu = device.name() == "cpu";
            let options = TranscriberOptions {
                kv_type: options.kv_type,
                numerics: options.numerics,
                check_memory: options.check_memory,
                turns: on_cpu.then(|| self.turns.clone()),
                ..TranscriberOptions::default()
            };
            let transcriber = Transcriber::new(&opened, &device, &options)?;
            return Ok((Loaded::Speech(Box::new(transcriber)), on_cpu));
        }
        let device = load::device_for(&model.load, &opened)?;
        let on_cpu = device.name() == "cpu";
        let turns = on_cpu.then(|| self.turns.clone());
        let options = LoadOptions { turns, ..options };
        if let Ok(embedding) = opened.embedding() {
            // `--ctx` of the server is for models that write: an embedder takes no more than it was made for.
            let most = |n: usize| if config.ctx.is_some() { n } else { n.min(embedding.max_tokens) };
            let options = LoadOptions { n_ctx: options.n_ctx.map(most), ..options };
            return Ok((Loaded::Embedder(Box::new(Embedder::new(opened, &device, &options)?)), on_cpu));
        }
        let mut engine = Engine::new(opened, &device, &options)?;
        if let Some(folder) = &self.prefix_cache {
            // A server without what was computed before is slower, and nothing else.
            match engine.keep_prefixes(folder, MAX_PREFIX_BYTES) {
                Ok(restored) => {
                    let Restored { n_prefixes, n_tokens, notes } = restored;
                    tracing::info!(
                        "{name}: {n_prefixes} cached prefixes of {n_tokens} tokens are here again"
                    );
                    notes.iter().for_each(|note| tracing::warn!("{name}: {note}"));
                }
                Err(error) => tell!("warning: {name}: {error}"),
            }
        }
        Ok((Loaded::Text(Box::new(engine)), on_cpu))
    }
}

impl Serve {
    /// As clients are told it.
    fn load_error(&self, error: &anyhow::Error) -> LoadError {
        LoadError { message: self.told_to_clients(&output::message(error)), does_not_fit: false }
    }
}

impl Loader for Serve {
    fn load(&self, name: &str) -> Result<Loaded, LoadError> {
        let mut loaded = self.make(name);
        if let (Ok((loaded, on_cpu)), false) = (&mut loaded, self.no_warmup) {
            let most = if *on_cpu { WARM_UP_CPU } else { WARM_UP };
            loaded
                .warm_up(most)
                .map_err(|error| LoadError { message: error.message, does_not_fit: false })?;
        }
        loaded.map(|(loaded, _)| loaded).map_err(|error| {
            let refused = |error: &device::Error| matches!(error, device::Error::OutOfMemory { .. });
            let does_not_fit = match (error.downcast_ref(), error.downcast_ref()) {
                (Some(engine::Error::DoesNotFit(_)), _) => true,
                (_, Some(speech::Error::Device(error))) => refused(error),
                _ => false,
            };
            // Before the server is ready, the first model's error is the operator's.
            let is_first = self.configs.first().is_some_and(|config| config.name() == name);
            let whole = output::message(&error);
            let message = match is_first && !self.is_prepared.load(Ordering::Relaxed) {
                true => whole,
                false => self.told_to_clients(&whole),
            };
            LoadError { message, does_not_fit }
        })
    }

    /// Until the server is ready, a failure ends it.
    fn tells_of_failures(&self) -> bool {
        !self.is_prepared.load(Ordering::Relaxed)
    }

    fn open(&self, name: &str) -> Result<Model, LoadError> {
        self.look_into(name).map_err(|error| self.load_error(&error))
    }

    fn installed(&self) -> Vec<String> {
        self.in_cache()
    }

    fn adapters(&self) -> Vec<ServedAdapter> {
        self.served_adapters()
    }

    fn add_adapter(&self, adapter: ServedAdapter) -> server::Result<()> {
        self.add_for_client(adapter)
    }

    fn open_adapter(&self, name: &str) -> Result<Adapter, LoadError> {
        self.open_served(name).map_err(|error| self.load_error(&error))
    }

    fn remove_adapter(&self, name: &str) {
        self.with_adapters(|adapters| adapters.retain(|(_, lora)| lora.name != name));
    }

    fn resolve(&self, name: &str) -> Option<String> {
        let first = || self.configs.first().filter(|_| self.any_name).map(|config| config.name().to_owned());
        self.name_in_cache(name).or_else(first)
    }

    fn pull(&self, name: &str, progress: &mut dyn FnMut(PullProgress)) -> server::Result<()> {
        self.fetch_for_client(name, progress)
    }

    fn delete(&self, name: &str) -> server::Result<()> {
        self.delete_for_client(name)
    }
}

/// Threads that write answers. With two, each token wakes both: the one that writes it wakes the other to look for more. On few
/// cores that takes time from the model.
fn http_threads() -> usize {
    let n_cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    if n_cores > 4 { 2 } else { 1 }
}

/// At SIGHUP, read the certificate again.
#[cfg(unix)]
async fn reload_certificates(tls: Tls) {
    let mut signals = match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()) {
        Ok(signals) => signals,
        Err(error) => return tracing::warn!("SIGHUP cannot be heard: {error}"),
    };
    while signals.recv().await.is_some() {
        match tls.reload() {
            Ok(()) => tracing::info!("read the certificate again"),
            Err(error) => tracing::error!("the certificate stays as it was: {error}"),
        }
    }
}

#[cfg(not(unix))]
async fn reload_certificates(_: Tls) {}

/// Ends at Ctrl-C.
async fn interrupt() {
    if let Err(error) = tokio::signal::ctrl_c().await {
        tracing::warn!("Ctrl-C cannot be heard: {error}");
        std::future::pending::<()>().await;
    }
}

/// Ends at the next Ctrl-C after it was first awaited: somebody does not want to wait for answers that still run.
async fn interrupted_again() {
    interrupt().await;
    tell!("ending at once");
}

/// Ends at SIGTERM or Ctrl-C.
async fn shutdown() {
    #[cfg(unix)]
    let terminate = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signal) => drop(signal.recv().await),
            Err(error) => {
                tracing::warn!("SIGTERM cannot be heard: {error}");
                std::future::pending::<()>().await;
            }
        }
    };
    #[cfg(not(unix))]
    let terminate = std::future::pending::<()>();
    tokio::select! {
        () = interrupt() => {}
        () = terminate => {}
    }
    tell!("shutting down; Ctrl-C ends answers that still run at once");
}
