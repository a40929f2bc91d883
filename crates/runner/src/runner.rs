//! The runner: models on threads of their own, and operations on them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use engine::{Constraint, Engine, Governor, MemoryStatus, SamplingChoice};
use text::{Gap, Grammar, Specials, Trigger};
use tokio::sync::watch;

use crate::answering::Answer;
use crate::blocking::blocking;
use crate::chat::{Prepared, render};
use crate::details::ModelDetails;
use crate::embedder;
use crate::error::{CUT, ErrorKind, RequestError, Result};
use crate::lazy::Lazy;
use crate::models::{
    EmbedderModel, Facts, Lease, Loader, ModelStatus, Models, PullProgress, ServedAdapter, TextModel,
};
use crate::preparing::Preparing;
use crate::request::{Caller, ChatRequest, CompletionRequest, GenerateOptions, KeepAlive, Prompt};
use crate::stream::Channel;
use crate::transcriber::{TranscribeRequest, open_recording};
use crate::transcription::Transcription;

/// Runs models, and answers requests to them. Cheap to clone.
#[derive(Clone)]
pub struct Runner(Arc<Inner>);

struct Inner {
    models: Models,
    max_waiting: usize,
    max_wait: Duration,
    governor: Option<Arc<Governor>>,
    /// Maximum number of tokens of an answer.
    max_tokens: Option<usize>,
    stream_interval: Duration,
    sampling: SamplingChoice,
    is_ready: AtomicBool,
    is_draining: AtomicBool,
    /// True once running answers must end.
    cut: watch::Sender<bool>,
    preparing: Preparing,
    /// Threads for grammars, whose compilation cannot be stopped. Requests without a grammar never
    /// wait for them.
    compiling: Preparing,
}

/// Requests of a model.
#[derive(Clone, Debug)]
pub struct ModelActivity {
    /// The model's id.
    pub id: String,
    /// Number of concurrent sequences.
    pub n_slots: usize,
    /// Running and waiting requests, in order of arrival; `None` for another tenant's, whose
    /// details stay hidden.
    pub requests: Vec<Option<RequestActivity>>,
}

/// A request that has not ended.
#[derive(Clone, Debug)]
pub struct RequestActivity {
    /// The id in `x-request-id`.
    pub id: String,
    /// Tokens of its prompt.
    pub n_prompt: usize,
    /// Tokens of all its answers so far.
    pub n_decoded: usize,
    /// Time since the request arrived.
    pub age: Duration,
}

/// Properties of a model that generates text.
#[derive(Clone, Debug)]
pub struct TextProps {
    /// The model's id.
    pub id: String,
    /// Context length of a sequence, in tokens.
    pub n_ctx: usize,
    /// Number of concurrent sequences.
    pub n_slots: usize,
    /// The chat template; `None` for a base model.
    pub chat_template: Option<String>,
    /// Text of the BOS token; empty if there is none.
    pub bos: String,
    /// Text of the EOS token; empty if there is none.
    pub eos: String,
}

/// Texts to embed.
#[derive(Clone, Debug, Default)]
pub struct EmbedRequest {
    /// The model's id; empty for the first model.
    pub model: String,
    /// Inputs as texts or tokens.
    pub inputs: Vec<Prompt>,
    /// True if a text longer than the model's context is truncated; false if it is an error.
    pub truncate: bool,
    /// Time that the model stays loaded after this request.
    pub keep_alive: Option<KeepAlive>,
}

/// Vectors of an [`EmbedRequest`].
#[derive(Clone, Debug)]
pub struct Embedded {
    /// The model's id.
    pub model: String,
    /// `(n_inputs, dimensions)`
    pub vectors: Vec<Vec<f32>>,
    /// Number of tokens of all inputs.
    pub n_tokens: usize,
}

/// The operator's settings.
#[derive(Clone, Debug)]
pub struct Options {
    /// Ids of the models, in order; the first serves requests that name none.
    pub models: Vec<String>,
    /// Time that an idle model stays loaded.
    pub keep_alive: KeepAlive,
    /// Maximum number of requests that wait for a slot of a model; further ones get a 429.
    pub max_waiting: usize,
    /// Longest predicted time to the first token; a request that would take longer gets a 429.
    pub max_wait: Duration,
    /// Governor of the memory of all models; at its request idle ones are unloaded.
    pub governor: Option<Arc<Governor>>,
    /// Maximum number of tokens of an answer, whatever its request allows; `None` for the rest of
    /// the context.
    pub max_tokens: Option<usize>,
    /// Least time between two pieces of an answer; text that arrives sooner is merged.
    pub stream_interval: Duration,
    /// Sampling parameters where a request sets none.
    pub sampling: SamplingChoice,
}

impl Runner {
    /// Makes a runner; no model is loaded yet.
    pub fn new(options: Options, loader: Arc<dyn Loader>) -> Runner {
        let runner = Runner(Arc::new(Inner {
            models: Models::new(options.models, loader, options.keep_alive, options.max_waiting),
            max_waiting: options.max_waiting,
            max_wait: options.max_wait,
            governor: options.governor,
            max_tokens: options.max_tokens,
            stream_interval: options.stream_interval,
            sampling: options.sampling,
            is_ready: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
            cut: watch::Sender::new(false),
            preparing: Preparing::new(),
            compiling: Preparing::of_half(),
        }));
        if let Some(governor) = &runner.0.governor {
            let weak = Arc::downgrade(&runner.0);
            let unload = move || weak.upgrade().is_some_and(|inner| inner.models.unload_idle());
            governor.set_unload_idle(Arc::new(unload));
        }
        runner
    }

    /// Fills in sampling parameters that the request omits: the operator's, or else those that the
    /// model's makers recommend. [`Self::chat`] and [`Self::complete`] do it too.
    ///
    /// # Errors
    /// No such model, or it does not generate text.
    pub async fn fill_in(&self, model: &str, options: &mut GenerateOptions) -> Result<()> {
        let lease = self.0.models.get(model, None).await?;
        self.fill_in_for(lease.text()?, options);
        Ok(())
    }

    pub(crate) fn fill_in_for(&self, model: &TextModel, options: &mut GenerateOptions) {
        options.given.complete(self.0.sampling, model.facts.model.sampling(), &mut options.sampling);
    }

    /// Usage and limit of each memory; empty without a governor.
    pub fn memory(&self) -> Vec<MemoryStatus> {
        self.0.governor.as_ref().map_or_else(Vec::new, |governor| governor.status())
    }

    /// Loads the first model, if there is one, and marks the server as ready.
    ///
    /// # Errors
    /// The model cannot be loaded.
    pub async fn prepare(&self) -> Result<()> {
        // A server may start without a model and pull one later.
        if !self.0.models.names().is_empty() {
            drop(self.0.models.get("", None).await?);
        }
        self.0.is_ready.store(true, Ordering::Relaxed);
        let runner = self.clone();
        drop(tokio::task::spawn_blocking(move || runner.0.models.find_kinds()));
        Ok(())
    }

    /// Returns true if requests can be answered now: the first model is loaded, and the server is
    /// not shutting down.
    pub fn is_ready(&self) -> bool {
        self.0.is_ready.load(Ordering::Relaxed) && !self.0.is_draining.load(Ordering::Relaxed)
    }

    /// Refuses new requests from now on; running ones continue.
    pub fn drain(&self) {
        self.0.is_draining.store(true, Ordering::Relaxed);
    }

    /// Saves the cached prefixes of all loaded models, where that is enabled. For shutdown.
    pub async fn save_prefixes(&self) {
        for TextModel { worker, .. } in self.0.models.texts() {
            worker.save().await;
        }
    }

    /// Unloads models that have been idle for long enough. The caller runs it from time to time.
    pub fn unload_expired(&self) {
        self.0.models.unload_expired(Instant::now());
    }

    /// The models, loaded or not.
    pub fn models(&self) -> Vec<ModelStatus> {
        self.0.models.list()
    }

    /// The adapters of models, which requests name instead of a model.
    pub fn adapters(&self) -> Vec<ServedAdapter> {
        self.0.models.adapters()
    }

    /// Loads an adapter after the model's running answers have ended. The adapter belongs to the
    /// first model if it names none.
    ///
    /// # Errors
    /// Clients may not do this; the name is in use and `replace` is false; the files are missing or
    /// do not fit the model.
    pub async fn load_adapter(&self, adapter: ServedAdapter, replace: bool) -> Result<()> {
        self.refuse_if_draining()?;
        self.0.models.load_adapter(adapter, replace).await
    }

    /// Unloads an adapter after the model's running answers have ended.
    ///
    /// # Errors
    /// There is no such adapter, or the model cannot be loaded without it.
    pub async fn unload_adapter(&self, name: &str) -> Result<()> {
        self.refuse_if_draining()?;
        self.0.models.unload_adapter(name).await
    }

    /// Start time of the server, as Unix time in seconds.
    pub fn created(&self) -> u64 {
        self.0.models.created
    }

    /// Requests of each loaded model, with the details that `caller` may see.
    pub fn activity(&self, caller: &Caller) -> Vec<ModelActivity> {
        let request = |channel: Arc<Channel>| {
            let activity = &channel.activity;
            (activity.tenant == caller.tenant).then(|| RequestActivity {
                id: activity.request_id.clone(),
                n_prompt: activity.n_prompt,
                n_decoded: activity.n_decoded.load(Ordering::Relaxed),
                age: activity.since.elapsed(),
            })
        };
        let model = |model: TextModel| ModelActivity {
            n_slots: model.facts.n_slots,
            requests: model.worker.active().into_iter().map(request).collect(),
            id: model.id,
        };
        self.0.models.texts().into_iter().map(model).collect()
    }

    /// Loads a model if necessary. It stays loaded until the result is dropped, and for
    /// `keep_alive` after that.
    ///
    /// # Errors
    /// No such model, or it cannot be loaded.
    pub async fn load(&self, model: &str, keep_alive: Option<KeepAlive>) -> Result<Ready> {
        Ok(Ready(self.0.models.get(model, keep_alive).await?))
    }

    /// Leases a model, as [`Self::load`] does.
    pub(crate) async fn lease(&self, model: &str, keep_alive: Option<KeepAlive>) -> Result<Lease> {
        self.0.models.get(model, keep_alive).await
    }

    /// Runs a function with a model's engine between two of its steps.
    ///
    /// # Errors
    /// No such model, it does not generate text, or its thread has died.
    pub async fn with_engine<T: Send + 'static>(
        &self,
        model: &str,
        run: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T> {
        let lease = self.0.models.get(model, None).await?;
        lease.text()?.worker.with_engine(run).await
    }

    /// Unloads a model, after the last request that uses it has ended. Returns its id.
    ///
    /// # Errors
    /// No such model.
    pub async fn unload(&self, model: &str) -> Result<String> {
        self.0.models.unload(model).await
    }

    /// Details of a model from its files, without loading it.
    ///
    /// # Errors
    /// No such model, or it is not on this machine.
    pub async fn details(&self, model: &str) -> Result<(String, Arc<ModelDetails>)> {
        self.0.models.details(model).await
    }

    /// Downloads a model and serves it from now on.
    ///
    /// # Errors
    /// Clients may not do this, there is no such model, or the download failed.
    pub async fn pull(
        &self,
        model: String,
        mut progress: impl FnMut(PullProgress) + Send + 'static,
    ) -> Result<()> {
        let runner = self.clone();
        blocking(move || runner.0.models.pull(&model, &mut progress)).await
    }

    /// Unloads a model and deletes its files.
    ///
    /// # Errors
    /// Clients may not do this, there is no such model, or this program did not download its files.
    pub async fn delete(&self, model: &str) -> Result<()> {
        self.0.models.delete(model).await
    }

    /// Tokenises a text.
    ///
    /// # Errors
    /// No such model, or the text is too long.
    pub async fn tokenize(
        &self,
        model: &str,
        text: String,
        with_start: bool,
        parse_special: bool,
    ) -> Result<Vec<(u32, Vec<u8>)>> {
        let lease = self.0.models.get(model, None).await?;
        let facts = lease.text()?.facts.clone();
        self.0.preparing.run(move |_| tokenize(&facts, &text, with_start, parse_special)).await
    }

    /// Returns the bytes of each token.
    ///
    /// # Errors
    /// No such model, or a token outside its vocabulary.
    pub async fn text_of(&self, model: &str, tokens: &[u32]) -> Result<Vec<(u32, Vec<u8>)>> {
        let lease = self.0.models.get(model, None).await?;
        let (facts, tokens) = (lease.text()?.facts.clone(), tokens.to_vec());
        self.0.preparing.run(move |_| tokens.iter().map(|id| bytes_of(&facts, *id)).collect()).await
    }

    /// Properties of a model that generates text.
    ///
    /// # Errors
    /// No such model, or it does not generate text.
    pub async fn text_props(&self, model: &str) -> Result<TextProps> {
        let lease = self.0.models.get(model, None).await?;
        let TextModel { id, facts, .. } = lease.text()?;
        let text = |token: Option<u32>| {
            let bytes = token.map(|token| facts.tokenizer.token_bytes(token)).unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        Ok(TextProps {
            id: id.clone(),
            n_ctx: facts.n_ctx,
            n_slots: facts.n_slots,
            chat_template: facts.tokenizer.chat_template().map(str::to_owned),
            bos: text(facts.tokenizer.bos()),
            eos: text(facts.tokenizer.eos()),
        })
    }

    /// Answers a chat.
    ///
    /// # Errors
    /// No such model; the messages or options are wrong; the prompt is too long; the queue is full.
    pub async fn chat(&self, caller: &Caller, request: impl Into<Arc<ChatRequest>>) -> Result<Answer> {
        let request = request.into();
        request.check_choice()?;
        let lease = self.0.models.get(&request.model, request.options.keep_alive).await?;
        let prepared = self.prepare_answer(lease.text()?.clone(), request).await?;
        self.start(caller, lease, prepared).await
    }

    /// Renders a chat's prompt as text and as tokens.
    ///
    /// # Errors
    /// As [`Self::chat`].
    pub async fn chat_prompt(&self, request: ChatRequest) -> Result<(String, Vec<u32>)> {
        let lease = self.0.models.get(&request.model, request.options.keep_alive).await?;
        let model = lease.text()?.clone();
        let render = move |work: &_| {
            render(&model, &request, &request.messages, work).map(|prompt| (prompt.text, prompt.tokens))
        };
        self.0.preparing.run(render).await
    }

    /// Completes a text.
    ///
    /// # Errors
    /// As [`Self::chat`].
    pub async fn complete(&self, caller: &Caller, request: CompletionRequest) -> Result<Answer> {
        let CompletionRequest { model, prompt, suffix, files, grammar, mut options } = request;
        let lease = self.0.models.get(&model, options.keep_alive).await?;
        let tokens = match (prompt, suffix) {
            (Prompt::Text { text: before, .. }, Some(after)) => {
                let model = lease.text()?.clone();
                let gap = Gap { before, after, files };
                let (tokens, ends) = self.0.preparing.run(move |_| model.around_gap(&gap)).await?;
                options.stop_tokens.extend(ends);
                tokens
            }
            (Prompt::Tokens(_), Some(_)) => {
                return Err(RequestError::invalid(
                    "suffix",
                    "`suffix` needs a `prompt` that is text, found tokens",
                ));
            }
            (Prompt::Tokens(tokens), None) => tokens,
            (Prompt::Pair { .. }, _) => {
                return Err(RequestError::invalid(
                    "prompt",
                    "found a pair of texts, which only reranking models accept",
                ));
            }
            (Prompt::Text { text, parse_special }, None) => {
                let tokens = self.tokenize(lease.id(), text, true, parse_special).await?;
                tokens.into_iter().map(|(id, _)| id).collect()
            }
        };
        let model = lease.text()?.clone();
        let triggers = options.triggers.clone();
        let constraint = match grammar {
            Some(grammar) => {
                Some(self.0.compiling.run(move |_| constraint(&model, &grammar, triggers.as_deref())).await?)
            }
            None => None,
        };
        let prepared =
            Prepared { tokens, images: Vec::new(), constraint, reading: None, stop_outside: None, options };
        self.start(caller, lease, prepared).await
    }

    /// Computes vectors of texts.
    ///
    /// # Errors
    /// No such model, it does not embed, or a text is too long.
    pub async fn embed(&self, request: EmbedRequest) -> Result<Embedded> {
        self.refuse_if_draining()?;
        let EmbedRequest { model, inputs, truncate, keep_alive } = request;
        let lease = self.0.models.get(&model, keep_alive).await?;
        let EmbedderModel { worker, encoder, .. } = lease.embedder()?;
        let encoder = encoder.clone();
        let tokens =
            self.0.preparing.run(move |work| embedder::encode(&encoder, &inputs, truncate, work)).await?;
        let found = worker.embed(tokens).await?;
        Ok(Embedded { model: lease.id().to_owned(), vectors: found.vectors, n_tokens: found.n_tokens })
    }

    /// Transcribes speech.
    ///
    /// # Errors
    /// No such model; it does not transcribe or does not know the language; the file is no
    /// recording; the queue is full.
    pub async fn transcribe(&self, request: TranscribeRequest) -> Result<Transcription> {
        self.refuse_if_draining()?;
        let TranscribeRequest { model, file, file_name, options, keep_alive } = request;
        let lease = self.0.models.get(&model, keep_alive).await?;
        lease.speech()?.check(&options)?;
        let name = file_name.clone();
        let stream = self.0.preparing.run(move |_| open_recording(file, name)).await?;
        Transcription::start(lease, (stream, file_name), options, self.0.cut.subscribe())
    }

    /// Threads for work that grows with a request.
    pub fn preparing(&self) -> &Preparing {
        &self.0.preparing
    }

    /// Threads that compile grammars.
    pub(crate) fn compiling(&self) -> &Preparing {
        &self.0.compiling
    }

    /// Maximum number of waiting requests, and the longest wait.
    pub(crate) fn most_waiting(&self) -> (usize, Duration) {
        (self.0.max_waiting, self.0.max_wait)
    }

    /// Maximum number of tokens of an answer, and the least time between two of its pieces.
    pub(crate) fn pace(&self) -> (Option<usize>, Duration) {
        (self.0.max_tokens, self.0.stream_interval)
    }

    /// Ends running answers with an error. For the end of the grace period.
    pub fn cut(&self) {
        self.0.cut.send_replace(true);
        for TextModel { worker, .. } in self.0.models.texts() {
            worker.active().iter().for_each(|channel| channel.fail(CUT));
        }
    }

    pub(crate) fn refuse_if_draining(&self) -> Result<()> {
        match self.0.is_draining.load(Ordering::Relaxed) {
            true => Err(RequestError::new(ErrorKind::Unavailable, CUT)),
            false => Ok(()),
        }
    }
}

/// A model that stays loaded until this is dropped.
pub struct Ready(Lease);

impl Ready {
    /// The model's id.
    pub fn id(&self) -> &str {
        self.0.id()
    }

    /// Time that loading took; almost 0 if the model was loaded already.
    pub fn load_time(&self) -> Duration {
        self.0.load_time
    }

    /// Context length of a sequence in tokens, of a model that generates text.
    pub fn n_ctx(&self) -> Option<usize> {
        self.0.text().ok().map(|model| model.facts.n_ctx)
    }

    /// Returns true if the model has a chat template.
    pub fn chats(&self) -> bool {
        self.0.text().is_ok_and(|model| model.template().is_ok())
    }

    /// Returns true if the model's template supports reasoning.
    pub fn reasons(&self) -> bool {
        self.0.text().and_then(TextModel::template).is_ok_and(|template| template.format.reasons())
    }
}

/// The constraint that enforces a grammar, from the start of the answer or from a trigger on.
fn constraint(
    model: &TextModel,
    grammar: &Grammar,
    triggers: Option<&[Trigger]>,
) -> Result<Box<dyn Constraint>> {
    let (facts, matcher) = (&model.facts, model.matcher(grammar)?);
    Ok(match triggers {
        Some(triggers) => Box::new(Lazy::new(facts.triggers(triggers)?, facts.tokenizer.clone(), matcher)),
        None => Box::new(matcher),
    })
}

/// Tokens of a text with their bytes.
fn tokenize(facts: &Facts, text: &str, with_start: bool, parse_special: bool) -> Result<Vec<(u32, Vec<u8>)>> {
    facts.check_text("prompt", text.len())?;
    let specials = if parse_special { Specials::Parse } else { Specials::Literal };
    let tokens = match with_start {
        true => facts.tokenizer.encode_with_bos(text, specials),
        false => facts.tokenizer.encode(text, specials),
    };
    let tokens = tokens.map_err(engine::Error::from)?;
    Ok(tokens.into_iter().map(|id| (id, facts.tokenizer.token_bytes(id).to_vec())).collect())
}

/// A token with its bytes.
fn bytes_of(facts: &Facts, id: u32) -> Result<(u32, Vec<u8>)> {
    let expected = facts.tokenizer.n_tokens();
    match (id as usize) < expected {
        true => Ok((id, facts.tokenizer.token_bytes(id).to_vec())),
        false => {
            let message = format!("token {id} is not in the vocabulary, expected ids below {expected}");
            Err(RequestError::new(ErrorKind::Invalid, message))
        }
    }
}
