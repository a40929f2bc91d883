//! `ingle serve`: models over HTTP.

mod library;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use engine::{Embedder, Engine, LoadOptions, Model};
use server::{Access, App, KeepAlive, LoadError, Loaded, Loader, Options, PullProgress};

use crate::args::{FetchArgs, LoadArgs, ModelArgs, VerifyArgs};
use crate::load;

/// Serve models over HTTP: the APIs of OpenAI, Anthropic and Ollama, with continuous batching
#[derive(Args)]
#[command(after_help = "\
The first model answers requests that name none, and is loaded before /health says ok; others are loaded when they are first
asked for. A model's id is the name it was started with. Every API key is a tenant of its own: no two share cached prompts.

Examples:
  ingle serve smollm2:135m
  ingle serve model.gguf gemma3:270m --port 9000 --keep-alive 1h
  ingle serve model.gguf --host 0.0.0.0 --api-key SECRET
  curl localhost:8080/v1/chat/completions -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'")]
pub struct Serve {
    /// Catalog names (`ingle list --all`), paths to GGUF or .base files or folders, or hf:org/repo[/file][@revision]
    #[arg(required = true, value_name = "MODEL")]
    models: Vec<String>,

    /// Address to listen at; another than this machine's own needs --api-key or --insecure
    #[arg(long, default_value = "127.0.0.1", value_name = "IP")]
    host: IpAddr,

    /// Port to listen at; 0 takes a free one, printed on stderr
    #[arg(long, default_value_t = 8080, value_name = "PORT")]
    port: u16,

    /// Answer only requests with this key; repeat for more, each a tenant of its own
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,

    /// Listen at any address without a key
    #[arg(long)]
    insecure: bool,

    /// Let clients pull and delete models through Ollama's API, and serve every model in the cache by its name
    #[arg(long)]
    allow_pull: bool,

    /// Sequences that a model computes at once; more wait
    #[arg(long, default_value_t = 16, value_name = "N")]
    slots: usize,

    /// Requests of a model that wait; more are refused with 429
    #[arg(long, default_value_t = 256, value_name = "N")]
    max_waiting: usize,

    /// Most milliseconds between two tokens of an answer while the prompts of others are computed
    #[arg(long, default_value_t = 200, value_name = "MS")]
    latency_target: u64,

    /// How long a model stays loaded when nobody uses it: seconds, or as 30m or 2h; negative keeps it
    #[arg(long, default_value = "-1", value_name = "TIME", allow_hyphen_values = true, value_parser = parse_keep_alive)]
    keep_alive: KeepAlive,

    /// Say ok before anything has been computed
    #[arg(long)]
    no_warmup: bool,

    /// On SIGTERM or Ctrl-C, let running answers go on for so many seconds
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    drain: u64,

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
    pub fn run(self) -> anyhow::Result<()> {
        let mut names = self.models.clone();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            bail!("the model {} is named twice", twice[0]);
        }
        if !self.host.is_loopback() && self.api_key.is_empty() && !self.insecure {
            bail!(
                "{} can be reached from other machines, and anybody there could use the models; give --api-key, or \
                 --insecure if that is what you want",
                self.host
            );
        }
        ensure!(!self.api_key.iter().any(String::is_empty), "an --api-key is empty");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("http")
            .enable_all()
            .build()
            .context("starting the HTTP threads")?;
        runtime.block_on(self.serve())
    }

    async fn serve(self) -> anyhow::Result<()> {
        let address = (self.host, self.port);
        let listener = tokio::net::TcpListener::bind(address)
            .await
            .with_context(|| format!("listening at {}:{}", self.host, self.port))?;
        let address = listener.local_addr()?;
        let options = Options {
            models: self.models.clone(),
            keep_alive: self.keep_alive,
            max_waiting: self.max_waiting,
        };
        let access = Access::new(&self.api_key);
        let (warm_up, drain) = (!self.no_warmup, Duration::from_secs(self.drain));
        let app = App::new(options, Arc::new(self));
        eprintln!("listening at http://{address}");
        let preparing = app.clone();
        let prepared = async move {
            let begun = std::time::Instant::now();
            preparing.prepare(warm_up).await?;
            eprintln!("ready after {:.1} s", begun.elapsed().as_secs_f64());
            // Only a failure ends the server.
            std::future::pending::<anyhow::Result<()>>().await
        };
        tokio::select! {
            served = server::serve(listener, app, access, shutdown(), drain) => Ok(served?),
            failed = prepared => failed,
        }
    }

    fn make(&self, name: &str) -> anyhow::Result<Loaded> {
        let model = ModelArgs {
            model: name.to_owned(),
            fetch: self.fetch.clone(),
            verify: self.verify.clone(),
            load: self.load.clone(),
        };
        let opened: Arc<Model> = Arc::new(load::open(&model)?);
        let device = load::device_for(&self.load, &opened)?;
        let options = LoadOptions {
            n_sequences: self.slots,
            token_latency: Some(Duration::from_millis(self.latency_target)),
            ..load::options(&self.load)
        };
        ensure!(
            opened.spec().encoder.is_none(),
            "it transcribes speech, which is not served yet; use `ingle transcribe`"
        );
        if opened.embedding().is_ok() {
            return Ok(Loaded::Embedder(Box::new(Embedder::new(opened, &device, &options)?)));
        }
        Ok(Loaded::Text(Box::new(Engine::new(opened, &device, &options)?)))
    }
}

impl Loader for Serve {
    fn load(&self, name: &str) -> Result<Loaded, LoadError> {
        self.make(name).map_err(|error| {
            let does_not_fit =
                matches!(error.downcast_ref::<engine::Error>(), Some(engine::Error::DoesNotFit(_)));
            LoadError { message: format!("{error:#}"), does_not_fit }
        })
    }

    fn open(&self, name: &str) -> Result<Model, LoadError> {
        self.look_into(name).map_err(|error| LoadError { message: format!("{error:#}"), does_not_fit: false })
    }

    fn installed(&self) -> Vec<String> {
        self.in_cache()
    }

    fn resolve(&self, name: &str) -> Option<String> {
        self.name_in_cache(name)
    }

    fn pull(&self, name: &str, progress: &mut dyn FnMut(PullProgress)) -> server::Result<()> {
        self.fetch_for_client(name, progress)
    }

    fn delete(&self, name: &str) -> server::Result<()> {
        self.delete_for_client(name)
    }
}

/// Ends at SIGTERM or Ctrl-C.
async fn shutdown() {
    let interrupt = async {
        if let Err(error) = tokio::signal::ctrl_c().await {
            tracing::warn!("Ctrl-C cannot be heard: {error}");
            std::future::pending::<()>().await;
        }
    };
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
        () = interrupt => {}
        () = terminate => {}
    }
    eprintln!("shutting down");
}
