//! What the handlers of every API share: the models, and the few things that can be asked of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use engine::{CancelFlag, Constraint, Governor, MemoryStatus, Request};
use text::{Gap, ShowSpecial, Specials};

use crate::answer::Answer;
use crate::chat::{Prepared, prepare_chat, render};
use crate::defaults::SamplingChoice;
use crate::details::ModelDetails;
use crate::error::{ApiError, ErrorKind, Result};
use crate::lazy::Lazy;
use crate::models::{Lease, Loader, ModelStatus, Models, PullProgress, ServedAdapter, TextModel};
use crate::request::{Caller, ChatRequest, CompletionRequest, GenerateOptions, KeepAlive, Prompt};
use crate::stream::Channel;
use crate::transcriber::{TranscribeRequest, Transcription};

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
}

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
        }));
        if let Some(governor) = &app.0.governor {
            let weak = Arc::downgrade(&app.0);
            let unload = move || weak.upgrade().is_some_and(|inner| inner.models.unload_idle());
            governor.set_unload_idle(Arc::new(unload));
        }
        app
    }

    /// Fill in the operator's values of sampling where the request has none. [`Self::chat`] and [`Self::complete`] do it too.
    pub fn fill_in(&self, options: &mut GenerateOptions) {
        self.0.sampling.fill(&options.given, &mut options.sampling);
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
        blocking(move || {
            let specials = if parse_special { Specials::Parse } else { Specials::Literal };
            let tokens = match with_start {
                true => facts.tokenizer.encode_with_bos(&text, specials),
                false => facts.tokenizer.encode(&text, specials),
            };
            let tokens = tokens.map_err(engine::Error::from)?;
            Ok(tokens.into_iter().map(|id| (id, facts.tokenizer.token_bytes(id).to_vec())).collect())
        })
        .await
    }

    /// The bytes of each token.
    ///
    /// # Errors
    /// No such model, or a token that it does not have.
    pub async fn text_of(&self, model: &str, tokens: &[u32]) -> Result<Vec<(u32, Vec<u8>)>> {
        let lease = self.0.models.get(model, None).await?;
        let tokenizer = &lease.text()?.facts.tokenizer;
        let bytes = |&id: &u32| match (id as usize) < tokenizer.n_tokens() {
            true => Ok((id, tokenizer.token_bytes(id).to_vec())),
            false => {
                let expected = tokenizer.n_tokens();
                let message = format!("token {id} is not in the vocabulary, expected ids below {expected}");
                Err(ApiError::new(ErrorKind::Invalid, message))
            }
        };
        tokens.iter().map(bytes).collect()
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
    pub async fn chat(&self, caller: &Caller, request: ChatRequest) -> Result<Answer> {
        request.check_choice()?;
        let lease = self.0.models.get(&request.model, request.options.keep_alive).await?;
        let model = lease.text()?.clone();
        let prepared = blocking(move || prepare_chat(&model, request)).await?;
        self.start(caller, lease, prepared).await
    }

    /// The text of a chat's prompt, and its tokens.
    ///
    /// # Errors
    /// As [`Self::chat`].
    pub async fn chat_prompt(&self, request: ChatRequest) -> Result<(String, Vec<u32>)> {
        let lease = self.0.models.get(&request.model, request.options.keep_alive).await?;
        let model = lease.text()?.clone();
        blocking(move || render(&model, &request).map(|prompt| (prompt.text, prompt.tokens))).await
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
                let (tokens, ends) = blocking(move || model.around_gap(&gap)).await?;
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
        let matcher = match grammar {
            Some(grammar) => Some(blocking(move || model.matcher(&grammar)).await?),
            None => None,
        };
        let tokenizer = lease.text()?.facts.tokenizer.clone();
        let constraint = matcher.map(|matcher| match options.triggers.clone() {
            Some(triggers) => Box::new(Lazy::new(triggers, tokenizer, matcher)) as Box<dyn Constraint>,
            None => Box::new(matcher),
        });
        let prepared = Prepared {
            tokens,
            images: Vec::new(),
            constraint,
            reading: None,
            stop_outside: Vec::new(),
            options,
        };
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
        let found = lease.embedder()?.worker.embed(inputs, truncate).await?;
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
        let stream =
            blocking(move || audio::AudioStream::from_bytes(file, file_name).map_err(ApiError::from)).await?;
        Transcription::start(lease, stream, options)
    }

    fn refuse_if_draining(&self) -> Result<()> {
        match self.0.is_draining.load(Ordering::Relaxed) {
            true => Err(ApiError::new(ErrorKind::Unavailable, "the server is shutting down")),
            false => Ok(()),
        }
    }

    async fn start(&self, caller: &Caller, lease: Lease, prepared: Prepared) -> Result<Answer> {
        let Prepared { mut tokens, images, constraint, reading, stop_outside, mut options } = prepared;
        self.fill_in(&mut options);
        let model = lease.text()?.clone();
        let TextModel { facts, worker, .. } = &model;
        self.refuse_if_draining()?;
        if !options.context.is_empty() {
            // A text begins once. Where messages begin with the same token, it stays.
            let bos = facts.tokenizer.bos();
            let n_bos = tokens.iter().filter(|token| Some(**token) == bos).count();
            let begins = n_bos == 1 && tokens.first().copied() == bos;
            tokens.splice(..usize::from(begins), options.context.iter().copied());
        }
        if tokens.is_empty() {
            return Err(ApiError::new(
                ErrorKind::Invalid,
                "the prompt is empty, expected at least one token",
            ));
        }
        if tokens.len() >= facts.n_ctx {
            return Err(ApiError::context_length(tokens.len(), facts.n_ctx));
        }
        // At once, without waiting for the engine.
        let n_free = facts.n_slots.saturating_sub(worker.stats.running.get() as usize);
        if worker.n_waiting() + options.n > self.0.max_waiting + n_free {
            return Err(ApiError {
                retry_after: Some(Duration::from_millis(worker.stats.predicted_wait_ms.get())),
                ..ApiError::overloaded(worker.n_waiting(), self.0.max_waiting)
            });
        }
        let n_prompt = tokens.len();
        let context = tokens.clone();
        let request = |choice: usize| {
            let mut sampling = options.sampling.clone();
            sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(choice as u64));
            sampling.logprobs = options.logprobs.is_some();
            sampling.n_best_logprobs = options.logprobs.unwrap_or(0);
            sampling.drawn_logprobs = options.drawn_logprobs;
            Request {
                images: images.clone(),
                sampling,
                max_tokens: [options.max_tokens, self.0.max_tokens].into_iter().flatten().min(),
                min_tokens: options.min_tokens,
                stop: options.stop.clone(),
                stop_outside: stop_outside.clone(),
                stop_tokens: options.stop_tokens.clone(),
                prompt_logprobs: options.prompt_logprobs,
                progress: options.progress,
                constraint: constraint.clone(),
                show_special: reading.as_ref().map_or_else(ShowSpecial::default, |(_, shown)| shown.clone()),
                ignore_end: options.ignore_end,
                reuse: options.cache_prompt,
                salt: caller.tenant,
                adapter: lease.adapter.clone(),
                tenant: caller.tenant,
                priority: options.priority,
                deadline: options.timeout.and_then(|time| Instant::now().checked_add(time)),
                ..Request::new(tokens.clone())
            }
        };
        let requests: Vec<Request> = (0..options.n).map(request).collect();
        let cancel: Vec<CancelFlag> = requests.iter().map(|request| request.cancel.clone()).collect();
        let channel = Channel::new(caller, n_prompt, cancel);
        let reader = reading.map(|(reader, _)| reader);
        let with_tokens = options.with_tokens || options.logprobs.is_some();
        let interval = self.0.stream_interval;
        let answer =
            Answer::new(lease, facts.clone(), channel.clone(), context, reader, with_tokens, interval);
        worker.generate(requests, channel, self.0.max_wait).await?;
        Ok(answer)
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

/// Run what takes longer than a task of tokio should.
pub(crate) async fn blocking<T: Send + 'static>(
    run: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let joined = tokio::task::spawn_blocking(run).await;
    joined.map_err(|error| ApiError::internal(format!("a task failed: {error}")))?
}
