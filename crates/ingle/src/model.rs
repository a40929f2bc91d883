//! A model on a thread of its own.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use engine::{EngineLoad, MemoryReport};
use hub::Progress;
use runner::{
    Caller, EmbedRequest, KeepAlive, Kind, LoadError, Loader, Options, Prompt, Runner, SamplingChoice,
    ServedAdapter,
};
pub use speech::{Segment, Task, TranscribeOptions, Word};
use text::{Specials, Tokenizer};

use crate::answer::Answer;
use crate::chat::Chat;
use crate::completion::Completion;
use crate::error::{Error, Result};
use crate::executor::Executor;
use crate::loaded::{LoadedModel, load_any};
use crate::note::Note;
use crate::options::LoadOptions;
use crate::source::ModelSource;

/// The model's name for its runner.
const NAME: &str = "model";

/// Maximum number of requests that wait; callers of a library wait as long as they like.
const MAX_WAITING: usize = 1 << 20;

/// Longest wait for a predicted first token, for the same reason: ten years.
const MAX_WAIT: Duration = Duration::from_secs(10 * 365 * 86_400);

/// A loaded model, which runs on a thread of its own. Cheap to clone; all clones are the same
/// model. Requests of several threads run together, as many at once as
/// [`LoadOptions::n_sequences`]. A model that generates text needs a tokenizer;
/// [`direct`](crate::direct) runs others. The memory is freed after the last clone and the last
/// answer are dropped.
///
/// ```
/// use ingle::{Completion, Generation, LoadOptions, Model, device::DeviceKind};
///
/// let mut options = LoadOptions::default();
/// options.device.kind = DeviceKind::Cpu;
/// options.n_ctx = Some(64);
/// let model = Model::load_with("smollm2:135m", &options)?;
/// let completion = Completion::text("The capital of France is");
/// let answer = model.complete(completion.generation(Generation::greedy().max_tokens(2)))?;
/// assert_eq!(answer.text()?, " Paris.");
/// # Ok::<(), ingle::Error>(())
/// ```
#[derive(Clone)]
pub struct Model(Arc<Inner>);

/// State that a model and its answers share.
pub(crate) struct Inner {
    pub(crate) executor: Executor,
    runner: Runner,
    facts: Facts,
}

/// Facts about a loaded model.
#[derive(Clone)]
struct Facts {
    model: Arc<engine::Model>,
    info: ModelInfo,
    notes: Vec<Note>,
}

/// The kind of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelKind {
    /// Generates text, and has a chat template.
    Chat,
    /// Generates text; it has no chat template.
    Text,
    /// Computes embeddings, or judges pairs of texts.
    Embedder,
    /// Transcribes speech.
    Speech,
}

/// Facts about a loaded model.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelInfo {
    /// The kind.
    pub kind: ModelKind,
    /// Name of the family, such as `llama`.
    pub family: String,
    /// Format of the file, in words.
    pub format: String,
    /// Name of the device, such as `cpu` or `cuda`.
    pub device: String,
    /// Bytes of the model's files.
    pub file_bytes: u64,
    /// Number of tokens of the vocabulary.
    pub n_vocab: usize,
    /// Context length of a sequence in tokens, prompt and answer together; for embedders the
    /// longest text; 0 for speech.
    pub n_ctx: usize,
    /// Number of sequences that run at once; 1 for models that generate no text.
    pub n_sequences: usize,
    /// Number of dimensions of an embedding; 0 for other models.
    pub n_dims: usize,
    /// True if the model sees images.
    pub sees_images: bool,
    /// The memory plan of a model that generates text.
    pub memory: Option<MemoryReport>,
}

/// Vectors of texts.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Embeddings {
    /// `(n_texts, n_dims)`
    pub vectors: Vec<Vec<f32>>,
    /// Number of tokens of all texts.
    pub n_tokens: usize,
}

/// A transcript of a recording.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Transcript {
    /// The segments, in order.
    pub segments: Vec<Segment>,
    /// Code of the spoken language, such as `en`.
    pub language: String,
    /// Length of the recording in seconds.
    pub seconds: f64,
}

impl Transcript {
    /// The text of all segments.
    pub fn text(&self) -> String {
        let text: String = self.segments.iter().map(|segment| segment.text.as_str()).collect();
        text.trim().to_owned()
    }
}

impl Model {
    /// Loads a model by its path, its name in the catalog, or `hf:org/repo`, which is fetched if
    /// needed.
    ///
    /// # Errors
    /// The model cannot be found, fetched or read, does not fit in memory, or the device fails.
    pub fn load(source: impl Into<ModelSource>) -> Result<Model> {
        Model::load_with(source, &LoadOptions::default())
    }

    /// Like [`Self::load`], with options.
    ///
    /// # Errors
    /// As [`Self::load`]; an option is outside its limits.
    pub fn load_with(source: impl Into<ModelSource>, options: &LoadOptions) -> Result<Model> {
        Model::load_telling(source, options, hub::Silent)
    }

    /// Like [`Self::load_with`]; `progress` receives the progress of a download.
    ///
    /// # Errors
    /// As [`Self::load_with`].
    pub fn load_telling(
        source: impl Into<ModelSource>,
        options: &LoadOptions,
        progress: impl Progress + Send + 'static,
    ) -> Result<Model> {
        let executor = Executor::start().map_err(Error::Thread)?;
        let (runner, origin) = Model::runner(source.into(), options, Box::new(progress));
        let prepared = executor.wait(runner.load("", None)).map(drop);
        Model::loaded(executor, runner, &origin, prepared)
    }

    /// Like [`Self::load_with`], for async code of any runtime.
    ///
    /// # Errors
    /// As [`Self::load_with`].
    pub async fn load_async(source: impl Into<ModelSource>, options: &LoadOptions) -> Result<Model> {
        let executor = Executor::start().map_err(Error::Thread)?;
        let (runner, origin) = Model::runner(source.into(), options, Box::new(hub::Silent));
        let loading = runner.clone();
        let prepared = executor.within(async move { loading.load("", None).await.map(drop) }).await;
        Model::loaded(executor, runner, &origin, prepared)
    }

    fn runner(
        source: ModelSource,
        options: &LoadOptions,
        progress: Box<dyn Progress + Send>,
    ) -> (Runner, Arc<Origin>) {
        let origin = Arc::new(Origin {
            source,
            options: options.clone(),
            progress: Mutex::new(progress),
            facts: OnceLock::new(),
            failed: Mutex::new(None),
        });
        let options = Options {
            models: vec![NAME.to_owned()],
            keep_alive: KeepAlive::Always,
            max_waiting: MAX_WAITING,
            max_wait: MAX_WAIT,
            governor: None,
            max_tokens: None,
            stream_interval: Duration::ZERO,
            sampling: SamplingChoice::default(),
        };
        (Runner::new(options, origin.clone()), origin)
    }

    fn loaded(
        executor: Executor,
        runner: Runner,
        origin: &Origin,
        prepared: runner::Result<()>,
    ) -> Result<Model> {
        if let Err(error) = prepared {
            let own = origin.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
            return Err(own.unwrap_or_else(|| error.into()));
        }
        let facts = origin.facts.get().cloned();
        let facts = facts.ok_or_else(|| Error::failed("the model has no description".to_owned()))?;
        Ok(Model(Arc::new(Inner { executor, runner, facts })))
    }

    /// Facts about the model.
    pub fn info(&self) -> &ModelInfo {
        &self.0.facts.info
    }

    /// Facts about loading that a user should know, such as a GPU that is not used.
    pub fn notes(&self) -> &[Note] {
        &self.0.facts.notes
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// The model's files have none, or it is broken.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        Ok(self.0.facts.model.need_tokenizer()?)
    }

    /// The tokens of a text, with the model's start tokens. Control tokens in the text are parsed.
    ///
    /// # Errors
    /// As [`Self::tokenizer`].
    pub fn tokenize(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.tokenizer()?.encode_with_bos(text, Specials::Parse)?)
    }

    /// The text of tokens, without control tokens. Bytes that are no UTF-8 become `�`.
    ///
    /// # Errors
    /// As [`Self::tokenizer`]; a token is not in the vocabulary.
    pub fn detokenize(&self, tokens: &[u32]) -> Result<String> {
        let tokenizer = self.tokenizer()?;
        let n_vocab = tokenizer.n_tokens();
        if let Some(position) = tokens.iter().position(|&token| token as usize >= n_vocab) {
            let token = tokens[position];
            return Err(engine::Error::TokenOutOfRange { token, position, n_vocab }.into());
        }
        Ok(tokenizer.decode(tokens, true))
    }

    /// The prompt of a chat, as text and as tokens.
    ///
    /// # Errors
    /// The model has no chat template, or it refuses the messages.
    pub fn render(&self, chat: impl Into<Chat>) -> Result<(String, Vec<u32>)> {
        let Inner { executor, runner, .. } = &*self.0;
        Ok(executor.wait(runner.chat_prompt(chat.into().into_request()))?)
    }

    /// Answers a chat. It returns once the request is queued; the answer waits for each piece.
    ///
    /// # Errors
    /// The model has no chat template, it refuses the messages, an option is wrong, or the prompt
    /// is longer than the context.
    pub fn chat(&self, chat: impl Into<Chat>) -> Result<Answer> {
        let Inner { executor, runner, .. } = &*self.0;
        let answer = executor.wait(runner.chat(&caller(), chat.into().into_request()))?;
        Ok(Answer::new(answer, self.0.clone()))
    }

    /// Like [`Self::chat`], for async code of any runtime.
    ///
    /// # Errors
    /// As [`Self::chat`].
    pub async fn chat_async(&self, chat: impl Into<Chat>) -> Result<Answer> {
        let (inner, request) = (self.0.clone(), chat.into().into_request());
        let runner = inner.runner.clone();
        let answer = async move { runner.chat(&caller(), request).await };
        Ok(Answer::new(inner.executor.within(answer).await?, inner))
    }

    /// Continues a text or tokens, as [`Self::chat`] answers a chat.
    ///
    /// # Errors
    /// An option is wrong, or the prompt is empty or longer than the context.
    pub fn complete(&self, completion: impl Into<Completion>) -> Result<Answer> {
        let Inner { executor, runner, .. } = &*self.0;
        let answer = executor.wait(runner.complete(&caller(), completion.into().into_request()))?;
        Ok(Answer::new(answer, self.0.clone()))
    }

    /// Like [`Self::complete`], for async code of any runtime.
    ///
    /// # Errors
    /// As [`Self::complete`].
    pub async fn complete_async(&self, completion: impl Into<Completion>) -> Result<Answer> {
        let (inner, request) = (self.0.clone(), completion.into().into_request());
        let runner = inner.runner.clone();
        let answer = async move { runner.complete(&caller(), request).await };
        Ok(Answer::new(inner.executor.within(answer).await?, inner))
    }

    /// Vectors of texts, which are computed together.
    ///
    /// # Errors
    /// The model computes no embeddings, or a text is longer than its context.
    pub fn embed<T: AsRef<str>>(&self, texts: &[T]) -> Result<Embeddings> {
        let text = |text: &T| Prompt::Text { text: text.as_ref().to_owned(), parse_special: false };
        let found = self.embed_prompts(texts.iter().map(text).collect())?;
        Ok(Embeddings { vectors: found.vectors, n_tokens: found.n_tokens })
    }

    /// Scores of documents for a query, in their order; larger is better.
    ///
    /// # Errors
    /// The model is no reranker, or a pair is longer than its context.
    pub fn rerank<T: AsRef<str>>(&self, query: &str, documents: &[T]) -> Result<Vec<f32>> {
        let query: Arc<str> = query.into();
        let pair =
            |document: &T| Prompt::Pair { query: query.clone(), document: document.as_ref().to_owned() };
        let found = self.embed_prompts(documents.iter().map(pair).collect())?;
        Ok(found.vectors.iter().map(|score| score.first().copied().unwrap_or(f32::NAN)).collect())
    }

    fn embed_prompts(&self, inputs: Vec<Prompt>) -> Result<runner::Embedded> {
        let Inner { executor, runner, .. } = &*self.0;
        let request = EmbedRequest { inputs, truncate: false, ..EmbedRequest::default() };
        Ok(executor.wait(runner.embed(request))?)
    }

    /// Transcribes a recording: the bytes of a WAV, AIFF, MP3, M4A, FLAC or OGG Vorbis file.
    ///
    /// # Errors
    /// The model transcribes no speech or does not know the language, or the file is no recording.
    pub fn transcribe(&self, file: Vec<u8>, options: TranscribeOptions) -> Result<Transcript> {
        let Inner { executor, runner, .. } = &*self.0;
        let file_name = "the recording".to_owned();
        let request =
            runner::TranscribeRequest { file, file_name, options, ..runner::TranscribeRequest::default() };
        let runner::Transcript { segments, heard } =
            executor.wait(async { runner.transcribe(request).await?.collect().await })?;
        Ok(Transcript { segments, language: heard.language, seconds: heard.seconds })
    }

    /// Runs a function with the engine between two of its steps, and waits for it: for what the
    /// other methods do not offer, such as scores, prompt caches or figures of the KV cache.
    ///
    /// # Errors
    /// The model generates no text, or its thread has died.
    pub fn with_engine<T: Send + 'static>(
        &self,
        run: impl FnOnce(&mut engine::Engine) -> T + Send + 'static,
    ) -> Result<T> {
        let Inner { executor, runner, .. } = &*self.0;
        Ok(executor.wait(runner.with_engine("", run))?)
    }

    /// Figures of the requests that run and wait, and of the KV cache.
    ///
    /// # Errors
    /// As [`Self::with_engine`].
    pub fn activity(&self) -> Result<EngineLoad> {
        self.with_engine(|engine| engine.load())
    }

    /// Frees the model's memory, after running answers have ended, and waits for that. A later
    /// request loads it again.
    ///
    /// # Errors
    /// The model's thread did not end in time.
    pub fn unload(&self) -> Result<()> {
        let Inner { executor, runner, .. } = &*self.0;
        executor.wait(runner.unload(""))?;
        Ok(())
    }
}

/// The library's requests belong to nobody.
fn caller() -> Caller {
    Caller { request_id: String::new(), tenant: 0 }
}

/// The source of a model, from which its thread loads it, again after a failure.
struct Origin {
    source: ModelSource,
    options: LoadOptions,
    progress: Mutex<Box<dyn Progress + Send>>,
    facts: OnceLock<Facts>,
    /// The error of the last load, which the runner passes on only in words.
    failed: Mutex<Option<Error>>,
}

impl Loader for Origin {
    fn load(&self, _name: &str) -> std::result::Result<runner::Loaded, LoadError> {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let LoadedModel { loaded, model, device, notes } =
            load_any(&self.source, &self.options, &mut **progress).map_err(|error| {
                let message = error.to_string();
                *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                LoadError { message, does_not_fit: false }
            })?;
        self.facts.get_or_init(|| Facts { info: info(&loaded, &model, device), model, notes });
        Ok(loaded)
    }

    fn adapters(&self) -> Vec<ServedAdapter> {
        let adapter = |adapter: &crate::source::AdapterSource| ServedAdapter {
            name: adapter.name.clone(),
            model: NAME.to_owned(),
            path: adapter.path.display().to_string(),
        };
        self.options.adapters.iter().map(adapter).collect()
    }

    fn tells_of_failures(&self) -> bool {
        true
    }
}

fn info(loaded: &runner::Loaded, model: &engine::Model, device: String) -> ModelInfo {
    let (n_ctx, n_sequences, n_dims, memory) = match loaded {
        runner::Loaded::Text(engine) => {
            (engine.limits().n_ctx, engine.load().n_slots, 0, Some(engine.memory().clone()))
        }
        runner::Loaded::Embedder(embedder) => (embedder.spec().max_tokens, 1, embedder.n_dims(), None),
        runner::Loaded::Speech(_) => (0, 1, 0, None),
    };
    ModelInfo {
        kind: match Kind::of(model) {
            Kind::Chat => ModelKind::Chat,
            Kind::Text => ModelKind::Text,
            Kind::Embedder => ModelKind::Embedder,
            Kind::Speech => ModelKind::Speech,
        },
        family: model.spec().family.name.to_owned(),
        format: model.format().to_owned(),
        device,
        file_bytes: model.file_bytes(),
        n_vocab: model.n_vocab(),
        n_ctx,
        n_sequences,
        n_dims,
        sees_images: model.need_vision().is_ok(),
        memory,
    }
}
