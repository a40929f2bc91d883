//! What the handlers of every API share: the models, and the few things that can be asked of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use engine::{Constraint, Governor, MemoryStatus, SamplingChoice};
use text::{Gap, Grammar, Specials, Trigger};
use tokio::sync::watch;

use crate::answer::Answer;
use crate::chat::{Prepared, render};
use crate::details::ModelDetails;
use crate::embedder;
use crate::error::{ApiError, ErrorKind, Result};
use crate::handlers::Handlers;
use crate::lazy::Lazy;
use crate::models::{
    EmbedderModel, Facts, Lease, Loader, ModelStatus, Models, PullProgress, ServedAdapter, TextModel,
};
use crate::preparing::Preparing;
use crate::request::{Caller, ChatRequest, CompletionRequest, GenerateOptions, KeepAlive, Prompt};
use crate::stream::Channel;
use crate::transcriber::{TranscribeRequest, Transcription, open_recording};
use crate::truncate::shorten;
use crate::warnings::Warnings;

/// The state of every handler. Cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Inner>);

struct Inner {
    models: Models,
    max_waiting: usize,
    max_wait: Duration,
    governor: Option<Arc<Governor>>,
    /// Of an answer.
    max_tokens: Option<usize>,
    stream_interval: Duration,
    sampling: SamplingChoice,
    is_ready: AtomicBool,
    is_draining: AtomicBool,
    /// Becomes true when running answers are to end.
    cut: watch::Sender<bool>,
    preparing: Preparing,
    /// The same for grammars, which cannot be stopped while they are compiled: who has none waits for nobody's.
    compiling: Preparing,
    handlers: Handlers,
}

/// Why answers end that a server has no time to finish.
pub(crate) const CUT: &str = "the server is shutting down";

/// What a model is busy with.
#[derive(Clone, Debug)]
pub struct ModelActivity {
    /// The model's id.
    pub id: String,
    /// Sequences at once.
    pub n_slots: usize,
    /// Those that run and those that wait, in order of arrival; `None`: another tenant's, of which nothing is told.
    pub requests: Vec<Option<RequestActivity>>,
}

/// A request on its way.
#[derive(Clone, Debug)]
pub struct RequestActivity {
    /// As in `x-request-id`.
    pub id: String,
    /// Tokens of its prompt.
    pub n_prompt: usize,
    /// Tokens of all its answers so far.
    pub n_decoded: usize,
    /// Since it came.
    pub age: Duration,
}

/// What clients want to know of a model that writes text.
#[derive(Clone, Debug)]
pub struct TextProps {
    /// Its id.
    pub id: String,
    /// Tokens of a sequence.
    pub n_ctx: usize,
    /// Sequences at once.
    pub n_slots: usize,
    /// Its chat template; `None`: a base model.
    pub chat_template: Option<String>,
    /// The text of the token that begins a text; empty if it has none.
    pub bos: String,
    /// The text of the token that ends an answer.
    pub eos: String,
}

/// Texts to embed.
#[derive(Clone, Debug, Default)]
pub struct EmbedRequest {
    /// The model's id; empty: the first.
    pub model: String,
    /// Texts, or tokens.
    pub inputs: Vec<Prompt>,
    /// Whether a text longer than the model takes is cut; if not, it is an error.
    pub truncate: bool,
    /// How long the model stays loaded after this request.
    pub keep_alive: Option<KeepAlive>,
}

/// Vectors of an [`EmbedRequest`].
#[derive(Clone, Debug)]
pub struct Embedded {
    /// The model's id.
    pub model: String,
    /// `(n_inputs, dimensions)`
    pub vectors: Vec<Vec<f32>>,
    /// Tokens of all inputs.
    pub n_tokens: usize,
}

/// What the operator decides.
#[derive(Clone, Debug)]
pub struct Options {
    /// Ids of the models, in order; the first answers requests that name none.
    pub models: Vec<String>,
    /// How long a model stays loaded when nobody uses it.
    pub keep_alive: KeepAlive,
    /// Most requests that wait for a slot of a model; more are refused with 429.
    pub max_waiting: usize,
    /// Longest time to the first token, as predicted; what would take longer is refused with 429.
    pub max_wait: Duration,
    /// Who governs the memory of all models; idle ones are unloaded where it asks for that.
    pub governor: Option<Arc<Governor>>,
    /// Most tokens of an answer, whatever its request asks for; `None`: as far as the context holds.
    pub max_tokens: Option<usize>,
    /// Least time between two pieces of an answer; text that comes faster is given together.
    pub stream_interval: Duration,
    /// How tokens are chosen where a request does not say.
    pub sampling: SamplingChoice,
}

impl App {
    /// Nothing is loaded yet.
    pub fn new(options: Options, loader: Arc<dyn Loader>) -> App {
        let app = App(Arc::new(Inner {
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
            handlers: Handlers::new(),
        }));
        if let Some(governor) = &app.0.governor {
            let weak = Arc::downgrade(&app.0);
            let unload = move || weak.upgrade().is_some_and(|inner| inner.models.unload_idle());
            governor.set_unload_idle(Arc::new(unload));
        }
        app
    }

    /// Fill in how tokens are chosen where the request does not say: as the operator says, or else as the model's makers recommend.
    /// [`Self::chat`] and [`Self::complete`] do it too.
    ///
    /// # Errors
    /// No such model, or it writes no text.
    pub async fn fill_in(&self, model: &str, options: &mut GenerateOptions) -> Result<()> {
        let lease = self.0.models.get(model, None).await?;
        self.fill_in_for(lease.text()?, options);
        Ok(())
    }

    pub(crate) fn fill_in_for(&self, model: &TextModel, options: &mut GenerateOptions) {
        options.given.complete(self.0.sampling, model.facts.model.sampling(), &mut options.sampling);
    }

    /// What is held of each memory, and what may be; empty without a governor.
    pub fn memory(&self) -> Vec<MemoryStatus> {
        self.0.governor.as_ref().map_or_else(Vec::new, |governor| governor.status())
    }

    /// Load the first model, if there is one, and be ready.
    ///
    /// # Errors
    /// It cannot be loaded.
    pub async fn prepare(&self) -> Result<()> {
        // A server may begin without a model and be given one.
        if !self.0.models.names().is_empty() {
            drop(self.0.models.get("", None).await?);
        }
        self.0.is_ready.store(true, Ordering::Relaxed);
        let app = self.clone();
        drop(tokio::task::spawn_blocking(move || app.0.models.find_kinds()));
        Ok(())
    }

    /// Whether requests can be answered now: the first model has been loaded, and the server is not shutting down.
    pub fn is_ready(&self) -> bool {
        self.0.is_ready.load(Ordering::Relaxed) && !self.0.is_draining.load(Ordering::Relaxed)
    }

    /// From now on new requests are refused; those that run end.
    pub fn drain(&self) {
        self.0.is_draining.store(true, Ordering::Relaxed);
    }

    /// Have the cached prefixes of all loaded models written, where they are kept. For the end of a server.
    pub async fn save_prefixes(&self) {
        for TextModel { worker, .. } in self.0.models.texts() {
            worker.save().await;
        }
    }

    /// Unload models that nobody has used for long enough. To be called now and then.
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

    /// Serve an adapter of a model, once the model's running answers have ended; of the first model if it names none.
    ///
    /// # Errors
    /// Clients may not do this; its name is in use, unless `replace`; its files are not there, or do not fit the model.
    pub async fn load_adapter(&self, adapter: ServedAdapter, replace: bool) -> Result<()> {
        self.refuse_if_draining()?;
        self.0.models.load_adapter(adapter, replace).await
    }

    /// Serve an adapter no longer, once the model's running answers have ended.
    ///
    /// # Errors
    /// There is no such adapter, or the model cannot be loaded without it.
    pub async fn unload_adapter(&self, name: &str) -> Result<()> {
        self.refuse_if_draining()?;
        self.0.models.unload_adapter(name).await
    }

    /// When the server was started, in seconds of Unix time.
    pub fn created(&self) -> u64 {
        self.0.models.created
    }

    /// What runs now on each loaded model, as far as it is `caller`'s to know.
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

    /// Load a model if it is not, and keep it loaded until what is returned is dropped, and for `keep_alive` after that.
    ///
    /// # Errors
    /// No such model, or it cannot be loaded.
    pub async fn load(&self, model: &str, keep_alive: Option<KeepAlive>) -> Result<Ready> {
        Ok(Ready(self.0.models.get(model, keep_alive).await?))
    }

    /// Unload a model, at once or when the last request that uses it has ended; its id.
    ///
    /// # Errors
    /// No such model.
    pub async fn unload(&self, model: &str) -> Result<String> {
        self.0.models.unload(model).await
    }

    /// What a model is, as its files say; it is not loaded for it.
    ///
    /// # Errors
    /// No such model, or it is not on this machine.
    pub async fn details(&self, model: &str) -> Result<(String, Arc<ModelDetails>)> {
        self.0.models.details(model).await
    }

    /// Fetch a model, to be served from now on.
    ///
    /// # Errors
    /// Clients may not do this, there is no such model, or fetching failed.
    pub async fn pull(
        &self,
        model: String,
        mut progress: impl FnMut(PullProgress) + Send + 'static,
    ) -> Result<()> {
        let app = self.clone();
        blocking(move || app.0.models.pull(&model, &mut progress)).await
    }

    /// Unload a model and remove its files.
    ///
    /// # Errors
    /// Clients may not do this, there is no such model, or its files were not fetched by us.
    pub async fn delete(&self, model: &str) -> Result<()> {
        self.0.models.delete(model).await
    }

    /// Tokens of a text.
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

    /// The bytes of each token.
    ///
    /// # Errors
    /// No such model, or a token that it does not have.
    pub async fn text_of(&self, model: &str, tokens: &[u32]) -> Result<Vec<(u32, Vec<u8>)>> {
        let lease = self.0.models.get(model, None).await?;
        let (facts, tokens) = (lease.text()?.facts.clone(), tokens.to_vec());
        self.0.preparing.run(move |_| tokens.iter().map(|id| bytes_of(&facts, *id)).collect()).await
    }

    /// What clients want to know of a model that writes text.
    ///
    /// # Errors
    /// No such model, or it writes no text.
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

    /// Answer a chat.
    ///
    /// # Errors
    /// No such model; the messages or options are wrong; the prompt is too long; or the queue is.
    pub async fn chat(&self, caller: &Caller, request: impl Into<Arc<ChatRequest>>) -> Result<Answer> {
        let request = request.into();
        request.check_choice()?;
        let lease = self.0.models.get(&request.model, request.options.keep_alive).await?;
        let prepared = self.prepare_answer(lease.text()?.clone(), request).await?;
        self.start(caller, lease, prepared).await
    }

    /// The text of a chat's prompt, and its tokens.
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

    /// How many of a chat's oldest messages have to go so that the others fit; `None`: more than may. The prompt is rendered a few
    /// times.
    ///
    /// # Errors
    /// As [`Self::chat`].
    pub(crate) async fn shortened(&self, request: Arc<ChatRequest>) -> Result<Option<(usize, ChatRequest)>> {
        let lease = self.0.models.get(&request.model, request.options.keep_alive).await?;
        let model = lease.text()?.clone();
        self.0.preparing.run(move |work| shorten(&model, &request, work)).await
    }

    /// Go on with a text.
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
                return Err(ApiError::invalid(
                    "suffix",
                    "`suffix` needs a `prompt` that is text, found tokens",
                ));
            }
            (Prompt::Tokens(tokens), None) => tokens,
            (Prompt::Pair { .. }, _) => {
                return Err(ApiError::invalid("prompt", "a pair of texts is for models that rank"));
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

    /// Vectors of texts.
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

    /// Write down speech.
    ///
    /// # Errors
    /// No such model, it does not hear, it does not know the language, the file is no recording, or the queue is too long.
    pub async fn transcribe(&self, request: TranscribeRequest) -> Result<Transcription> {
        self.refuse_if_draining()?;
        let TranscribeRequest { model, file, file_name, options, keep_alive } = request;
        let lease = self.0.models.get(&model, keep_alive).await?;
        lease.speech()?.check(&options)?;
        let name = file_name.clone();
        let stream = self.0.preparing.run(move |_| open_recording(file, name)).await?;
        Transcription::start(lease, (stream, file_name), options, self.0.cut.subscribe())
    }

    /// Where work is done that grows with a request.
    pub(crate) fn preparing(&self) -> &Preparing {
        &self.0.preparing
    }

    /// Where grammars are compiled.
    pub(crate) fn compiling(&self) -> &Preparing {
        &self.0.compiling
    }

    /// Threads for handlers of large requests.
    pub(crate) fn handlers(&self) -> &Handlers {
        &self.0.handlers
    }

    /// Most requests that wait, and how long.
    pub(crate) fn most_waiting(&self) -> (usize, Duration) {
        (self.0.max_waiting, self.0.max_wait)
    }

    /// Most tokens of an answer, and the least time between two pieces of it.
    pub(crate) fn pace(&self) -> (Option<usize>, Duration) {
        (self.0.max_tokens, self.0.stream_interval)
    }

    /// End what still runs, each answer with an error. To be called when there is no more time.
    pub fn cut(&self) {
        self.0.cut.send_replace(true);
        for TextModel { worker, .. } in self.0.models.texts() {
            worker.active().iter().for_each(|channel| channel.fail(CUT));
        }
    }

    pub(crate) fn refuse_if_draining(&self) -> Result<()> {
        match self.0.is_draining.load(Ordering::Relaxed) {
            true => Err(ApiError::new(ErrorKind::Unavailable, "the server is shutting down")),
            false => Ok(()),
        }
    }
}

/// A model that is loaded, and stays so until this is dropped.
pub struct Ready(Lease);

impl Ready {
    /// The model's id.
    pub fn id(&self) -> &str {
        self.0.id()
    }

    /// How long it took to load it; next to nothing if it was loaded.
    pub fn load_time(&self) -> Duration {
        self.0.load_time
    }

    /// Tokens of a sequence of a model that writes text.
    pub fn n_ctx(&self) -> Option<usize> {
        self.0.text().ok().map(|model| model.facts.n_ctx)
    }

    /// Whether it has a chat template.
    pub fn chats(&self) -> bool {
        self.0.text().is_ok_and(|model| model.template().is_ok())
    }

    /// Whether its template knows of reasoning.
    pub fn reasons(&self) -> bool {
        self.0.text().and_then(TextModel::template).is_ok_and(|template| template.format.reasons())
    }
}

/// What holds an answer to a grammar, from its beginning or from a trigger on.
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

/// The tokens of a text, and their bytes.
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

/// A token and its bytes.
fn bytes_of(facts: &Facts, id: u32) -> Result<(u32, Vec<u8>)> {
    let expected = facts.tokenizer.n_tokens();
    match (id as usize) < expected {
        true => Ok((id, facts.tokenizer.token_bytes(id).to_vec())),
        false => {
            let message = format!("token {id} is not in the vocabulary, expected ids below {expected}");
            Err(ApiError::new(ErrorKind::Invalid, message))
        }
    }
}

/// Run what waits for files or for the network: it does not grow with a request.
pub(crate) async fn blocking<T: Send + 'static>(
    run: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let warnings = Warnings::current();
    let joined = tokio::task::spawn_blocking(move || warnings.within(run)).await;
    joined.map_err(|error| ApiError::internal(format!("a task failed: {error}")))?
}
