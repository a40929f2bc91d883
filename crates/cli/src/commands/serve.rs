//! `ingle serve`: serve models over HTTP.

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
use runner::{KeepAlive, LoadError, Loaded, Loader, Options, PullProgress, Runner, ServedAdapter};
use server::Tls;
use speech::{Transcriber, TranscriberOptions};

use self::config::ModelConfig;
use self::gate::GateArgs;
use self::sampling::DefaultSamplingArgs;
use crate::args::{FetchArgs, LoadArgs, Lora, LoraArgs, ModelArgs, ModelName, VerifyArgs};
use crate::{load, output, tell};

/// The heading of flags about requests, in the help.
const LIMITS: &str = "Requests";

/// Target latency of a token during prefill of other prompts, in decode steps.
const LATENCY_STEPS: f64 = 2.0;

/// Longest warm-up of a model on a GPU, which compiles kernels and records tables at their first
/// use.
const WARM_UP: Duration = Duration::from_secs(10);

/// Longest warm-up of a model on a CPU. It only touches memory, and what it misses is slower only
/// once.
const WARM_UP_CPU: Duration = Duration::from_millis(400);

/// Maximum number of bytes of a model's cached prompts on the disk.
const MAX_PREFIX_BYTES: u64 = 4 << 30;

/// Serve models over HTTP, with the APIs of OpenAI, Anthropic and Ollama
#[derive(Args)]
#[command(after_help = "\
The first model answers requests that name no model. It is loaded before /health reports ok; the
others are loaded at their first request. A model's id is its name on the command line. Without a
MODEL, every model in the cache is served (`ingle list`). Clients with different API keys never
share cached prompts.

Examples:
  ingle serve
  ingle serve smollm2:135m
  ingle serve smollm2:135m whisper:base
  ingle serve model.gguf qwen3:4b --port 9000 --keep-alive 1h
  ingle serve model.gguf --host 0.0.0.0 --api-key SECRET
  ingle serve --config models.toml
  curl localhost:8080/v1/chat/completions -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'")]
pub struct Serve {
    /// The models: catalog names, paths or hf:org/repo
    ///
    /// Catalog names (`ingle search` lists them), paths to GGUF or .base files or to folders, or
    /// hf:org/repo[/file][@revision]. Without any, every model in the cache is served.
    #[arg(value_name = "MODEL")]
    models: Vec<ModelName>,

    /// Serve the models of this TOML file, too
    ///
    /// The file has one [[models]] for each, with the key source. The keys name, ctx, kv_type,
    /// slots and latency_target are optional.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// The models of the command line and of the file.
    #[arg(skip)]
    configs: Vec<ModelConfig>,

    /// The governor of the memory of all models.
    #[arg(skip)]
    governor: Option<Arc<Governor>>,

    /// Let clients pull and delete models
    ///
    /// Clients use Ollama's API for this. Every model in the cache is then served.
    #[arg(long)]
    allow_pull: bool,

    /// Let the first model answer requests that name an unknown model
    ///
    /// This helps clients whose model cannot be configured.
    #[arg(long, conflicts_with = "allow_pull", help_heading = LIMITS)]
    any_name: bool,

    /// Compute at most N requests of a model at once
    #[arg(long, default_value_t = 16, value_name = "N")]
    slots: usize,

    /// Refuse requests with 429 if N already wait for a model
    #[arg(long, default_value_t = 256, value_name = "N", help_heading = LIMITS)]
    max_waiting: usize,

    /// Refuse a request with 429 if its predicted wait is longer
    ///
    /// The wait is the time to the first token.
    #[arg(long, default_value_t = 300, value_name = "SECONDS", help_heading = LIMITS)]
    max_wait: u64,

    /// Limit every answer to N tokens
    ///
    /// [default: the request's limit, or the end of the context]
    #[arg(long, value_name = "N", help_heading = LIMITS)]
    max_tokens: Option<NonZero<usize>>,

    /// Target time between two tokens of an answer
    ///
    /// The target holds during prefill of other prompts. [default: twice the time of a step without
    /// prefill]
    #[arg(long, value_name = "MS", help_heading = LIMITS)]
    latency_target: Option<u64>,

    /// Keep cached prompts in this folder across restarts
    ///
    /// The folder has at most 4 GiB for each model.
    #[arg(long, value_name = "DIR", help_heading = LIMITS)]
    prefix_cache: Option<PathBuf>,

    /// Let clients load adapters from this folder
    ///
    /// Clients send a request to /v1/load_lora_adapter.
    #[arg(long, value_name = "DIR", help_heading = "Adapters")]
    lora_dir: Option<PathBuf>,

    /// All adapters, each with its model.
    #[arg(skip)]
    adapters: Mutex<Vec<(String, Lora)>>,

    /// True once the first model is loaded and the server is ready.
    #[arg(skip)]
    is_prepared: AtomicBool,

    /// Turns of the models that share the CPU.
    #[arg(skip)]
    turns: Arc<Turns>,

    /// Unload a model that is unused for this time
    ///
    /// The time is in seconds, or such as 30m or 2h; a negative time keeps models loaded.
    #[arg(long, default_value = "-1", value_name = "TIME", allow_hyphen_values = true, value_parser = parse_keep_alive)]
    keep_alive: KeepAlive,

    /// Do not warm up a model after loading it
    ///
    /// The first requests then take longer.
    #[arg(long, help_heading = LIMITS)]
    no_warmup: bool,

    /// Send at most one piece of an answer in this time
    ///
    /// Tokens that are generated faster are sent together.
    #[arg(long, default_value_t = 10, value_name = "MS", help_heading = LIMITS)]
    stream_interval: u64,

    /// Draft tokens with the models' own layers for multi-token prediction
    ///
    /// The files must have such layers (DeepSeek V3, GLM-4.5, GLM-4.7-Flash, Qwen3-Next, Qwen3.5).
    #[arg(long, help_heading = LIMITS)]
    mtp: bool,

    /// Time for running answers after SIGTERM or Ctrl-C
    #[arg(long, default_value_t = 30, value_name = "SECONDS", help_heading = LIMITS)]
    drain: u64,

    #[command(flatten)]
    gate: GateArgs,

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
        // A full pipe of stderr must not stop the server.
        tell::apart().context("starting the thread that writes to stderr")?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(http_threads())
            .thread_name("http")
            .enable_all()
            .build()
            .context("starting the HTTP threads")?;
        let served = runtime.block_on(self.serve());
        // Tasks that still load or wait are not needed any more.
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
        let runner = Runner::new(options, serve.clone());
        tell!("listening at {scheme}://{address}");
        let preparing = runner.clone();
        let prepared = async move {
            let begun = std::time::Instant::now();
            preparing.prepare().await?;
            serve.is_prepared.store(true, Ordering::Relaxed);
            tell!("ready after {:.1} s", begun.elapsed().as_secs_f64());
            // Only a failure of `prepare` ends the server.
            std::future::pending::<anyhow::Result<()>>().await
        };
        tokio::select! {
            served = server::serve(listener, runner, gate, shutdown(), interrupted_again(), drain) => Ok(served?),
            failed = prepared => failed,
        }
    }

    /// The configuration of a model; a pulled model has only its name.
    fn config_of(&self, name: &str) -> ModelConfig {
        let found = self.configs.iter().find(|config| config.name() == name);
        found.cloned().unwrap_or_else(|| ModelConfig::named(&ModelName::from(name)))
    }

    /// Loads a model. The flag is true if it runs on the CPU.
    fn make(&self, name: &str) -> anyhow::Result<(Loaded, bool)> {
        let config = self.config_of(name);
        let model = ModelArgs {
            model: config.source(),
            fetch: self.fetch.clone(),
            verify: self.verify.clone(),
            load: config.load_args(&self.load),
        };
        let mut loading = model.options()?;
        loading.adapters = self.adapters_of(name).iter().map(Lora::source).collect();
        let opened = load::open(&model.model, &loading)?;
        let writes_text = opened.spec().encoder.is_none() && opened.embedding().is_err();
        let guesses = self.mtp && writes_text;
        let opened: Arc<Model> = Arc::new(if guesses { opened.predicting()? } else { opened });
        let options = LoadOptions {
            speculate: if guesses { Speculate::Auto } else { Speculate::Off },
            n_sequences: config.slots.unwrap_or(self.slots),
            token_latency: config.latency_target.or(self.latency_target).map(Duration::from_millis),
            latency_steps: Some(LATENCY_STEPS),
            // Pieces of an answer are not sent faster.
            least_latency: Duration::from_millis(self.stream_interval).mul_f64(LATENCY_STEPS),
            governor: self.governor.clone(),
            ..loading.engine_options()
        };
        anyhow::ensure!(
            writes_text || loading.adapters.is_empty(),
            "{name} generates no text, so it cannot have adapters"
        );
        if opened.spec().encoder.is_some() {
            let device = load::device(&loading.device)?;
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
        let device = load::device_for(&opened, &loading)?;
        let on_cpu = device.name() == "cpu";
        let turns = on_cpu.then(|| self.turns.clone());
        let options = LoadOptions { turns, ..options };
        if let Ok(embedding) = opened.embedding() {
            // `--ctx` of the server is for models that generate text: an embedder keeps its own
            // limit.
            let most = |n: usize| if config.ctx.is_some() { n } else { n.min(embedding.max_tokens) };
            let options = LoadOptions { n_ctx: options.n_ctx.map(most), ..options };
            return Ok((Loaded::Embedder(Box::new(Embedder::new(opened, &device, &options)?)), on_cpu));
        }
        let mut engine = Engine::new(opened, &device, &options)?;
        if let Some(folder) = &self.prefix_cache {
            // Without cached prompts the server is only slower, so the error is a warning.
            match engine.keep_prefixes(folder, MAX_PREFIX_BYTES) {
                Ok(restored) => {
                    let Restored { n_prefixes, n_tokens, notes } = restored;
                    tracing::info!("{name}: restored {n_prefixes} cached prompts of {n_tokens} tokens");
                    notes.iter().for_each(|note| tracing::warn!("{name}: {note}"));
                }
                Err(error) => tell!("warning: {name}: {error}"),
            }
        }
        Ok((Loaded::Text(Box::new(engine)), on_cpu))
    }
}

impl Serve {
    /// The error in the form that clients see.
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
            // Before the server is ready, the first model's error goes to the operator, with all
            // paths.
            let is_first = self.configs.first().is_some_and(|config| config.name() == name);
            let whole = output::message(&error);
            let message = match is_first && !self.is_prepared.load(Ordering::Relaxed) {
                true => whole,
                false => self.told_to_clients(&whole),
            };
            LoadError { message, does_not_fit }
        })
    }

    /// True until the server is ready: a failure then ends it.
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

    fn add_adapter(&self, adapter: ServedAdapter) -> runner::Result<()> {
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

    fn pull(&self, name: &str, progress: &mut dyn FnMut(PullProgress)) -> runner::Result<()> {
        self.fetch_for_client(name, progress)
    }

    fn delete(&self, name: &str) -> runner::Result<()> {
        self.delete_for_client(name)
    }
}

/// Number of HTTP threads. With two threads each token wakes both, because the thread that writes
/// it wakes the other to look for work. On few cores this takes time from the model.
fn http_threads() -> usize {
    let n_cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    if n_cores > 4 { 2 } else { 1 }
}

/// Reads the certificate again at each SIGHUP.
#[cfg(unix)]
async fn reload_certificates(tls: Tls) {
    let mut signals = match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()) {
        Ok(signals) => signals,
        Err(error) => return tracing::warn!("cannot listen for SIGHUP: {error}"),
    };
    while signals.recv().await.is_some() {
        match tls.reload() {
            Ok(()) => tracing::info!("read the certificate again"),
            Err(error) => tracing::error!("the old certificate stays in use: {error}"),
        }
    }
}

#[cfg(not(unix))]
async fn reload_certificates(_: Tls) {}

/// Waits for Ctrl-C.
async fn interrupt() {
    if let Err(error) = tokio::signal::ctrl_c().await {
        tracing::warn!("cannot listen for Ctrl-C: {error}");
        std::future::pending::<()>().await;
    }
}

/// Waits for the next Ctrl-C, which ends running answers.
async fn interrupted_again() {
    interrupt().await;
    tell!("ending running answers");
}

/// Waits for SIGTERM or Ctrl-C.
async fn shutdown() {
    #[cfg(unix)]
    let terminate = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signal) => drop(signal.recv().await),
            Err(error) => {
                tracing::warn!("cannot listen for SIGTERM: {error}");
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
    tell!("shutting down after running answers; Ctrl-C ends them");
}
