//! OpenAI's API: <https://platform.openai.com/docs/api-reference>.

mod audio;
mod chat;
mod chat_answer;
mod completions;
pub(in crate::api) mod embeddings;
mod files;
mod lora;
mod page;
mod responses;
mod tools;

use axum::Json;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::extract::{Extension, Path, State};
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ollama::time;
use crate::answer::{Finish, StopReason, TokenInfo, Usage};
use crate::app::App;
use crate::error::{ApiError, Result};
use crate::models::{LoadedStatus, ModelStatus};
use crate::request::{GenerateOptions, Prompt, ToolChoice};

/// All paths of this API.
pub fn router() -> axum::Router<App> {
    axum::Router::new()
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/v1/chat/completions", post(chat::create))
        // As llama-server has them without a version too.
        .route("/models", get(models))
        .route("/chat/completions", post(chat::create))
        .route("/v1/chat/completions/input_tokens", post(chat::count_tokens))
        .route("/chat/completions/input_tokens", post(chat::count_tokens))
        .route("/apply-template", post(chat::apply_template))
        .route("/v1/completions", post(completions::create))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/v1/load_lora_adapter", post(lora::load))
        .route("/v1/unload_lora_adapter", post(lora::unload))
        .merge(files::router())
        .merge(responses::router())
        .route("/v1/audio/transcriptions", post(audio::transcribe))
        .route("/v1/audio/translations", post(audio::translate))
        .layer(Extension(Arc::new(files::Files::default())))
}

/// What a word of `tool_choice` says, in chats and in Responses.
fn tool_choice_word(word: &Value) -> Result<ToolChoice> {
    match word.as_str() {
        Some("auto") => Ok(ToolChoice::Auto),
        Some("none") => Ok(ToolChoice::None),
        Some("required") => Ok(ToolChoice::Required),
        _ => Err(wrong_tool_choice(word)),
    }
}

fn wrong_tool_choice(found: &Value) -> ApiError {
    let expected = "none, auto, required, a function, or allowed_tools";
    ApiError::invalid("tool_choice", format!("`tool_choice` is {found}, expected {expected}"))
}

/// How many tokens a prompt has, as OpenAI's Responses say it.
fn input_tokens(n: usize) -> Json<Value> {
    Json(json!({ "object": "response.input_tokens", "input_tokens": n }))
}

async fn models(State(app): State<App>) -> Json<Value> {
    let created = app.created();
    let models = app.models();
    let models = models.iter().map(|status| model_json(status, created));
    let adapters = app.adapters();
    let adapters = adapters.iter().map(|adapter| lora::adapter_json(adapter, created));
    let data: Vec<Value> = models.chain(adapters).map(|model| also_anthropic(model, created)).collect();
    let id = |model: Option<&Value>| model.map(|model| model["id"].clone());
    Json(json!({
        "object": "list", "data": data, "has_more": false, "first_id": id(data.first()), "last_id": id(data.last()),
    }))
}

async fn model(State(app): State<App>, Path(id): Path<String>) -> Result<Json<Value>> {
    if let Some(adapter) = app.adapters().iter().find(|adapter| adapter.name == id) {
        return Ok(Json(also_anthropic(lora::adapter_json(adapter, app.created()), app.created())));
    }
    let models = app.models();
    match models.iter().find(|status| status.id == id) {
        Some(status) => Ok(Json(also_anthropic(model_json(status, app.created()), app.created()))),
        None => {
            Err(ApiError::no_model(&id, &models.iter().map(|status| status.id.clone()).collect::<Vec<_>>()))
        }
    }
}

/// A model in OpenAI's shape and in Anthropic's at once: both list models at this path, and each one's clients ignore the other's keys.
fn also_anthropic(mut model: Value, created: u64) -> Value {
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(created);
    model["type"] = json!("model");
    model["display_name"] = model["id"].clone();
    model["created_at"] = json!(time(at));
    model
}

fn model_json(status: &ModelStatus, created: u64) -> Value {
    let mut model = json!({ "id": status.id, "object": "model", "created": created, "owned_by": "ingle" });
    if let Some(kind) = status.kind {
        model["capabilities"] = json!(kind.capabilities());
    }
    match &status.loaded {
        // As llama-server and vLLM say it.
        Some(LoadedStatus::Text(text)) => {
            model["max_model_len"] = json!(text.n_ctx);
            model["meta"] = json!({
                "n_ctx": text.n_ctx, "n_ctx_train": text.n_ctx_train, "n_vocab": text.n_vocab, "size": text.file_bytes,
                "device": text.device,
            });
        }
        Some(LoadedStatus::Embedder { n_dims, max_tokens, .. }) => {
            model["max_model_len"] = json!(max_tokens);
            model["meta"] = json!({ "n_embd": n_dims, "n_ctx": max_tokens });
        }
        Some(LoadedStatus::Speech { languages, .. }) => {
            model["meta"] = json!({ "languages": languages });
        }
        None => {}
    }
    model
}

/// What made an answer, as llama-server says it: `b` and the build.
const FINGERPRINT: &str = concat!("b", env!("CARGO_PKG_VERSION"));

/// A text, tokens, or several of either.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text, a list of tokens, or a list of texts or of such lists")]
pub(in crate::api) enum Prompts {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
}

impl Prompts {
    fn list(self) -> Vec<Prompt> {
        let text = |text| Prompt::Text { text, parse_special: true };
        match self {
            Prompts::Text(one) => vec![text(one)],
            Prompts::Tokens(tokens) => vec![Prompt::Tokens(tokens)],
            Prompts::Texts(texts) => texts.into_iter().map(text).collect(),
            Prompts::TokenLists(lists) => lists.into_iter().map(Prompt::Tokens).collect(),
        }
    }
}

/// `stop`: one text or several.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
enum Stop {
    #[default]
    None,
    One(String),
    Several(Vec<String>),
}

impl Stop {
    fn texts(self) -> Vec<String> {
        match self {
            Stop::None => Vec::new(),
            Stop::One(text) => vec![text],
            Stop::Several(texts) => texts,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

/// Answers of one request.
const MAX_N: usize = 128;

fn check_n(n: Option<usize>) -> Result<usize> {
    match n.unwrap_or(1) {
        n if (1..=MAX_N).contains(&n) => Ok(n),
        n => Err(ApiError::invalid("n", format!("`n` is {n}, expected a number from 1 to {MAX_N}"))),
    }
}

fn check_max_tokens(name: &str, value: Option<i64>) -> Result<Option<usize>> {
    match value {
        // Clients of llama.cpp say -1 for no limit.
        None | Some(-1) => Ok(None),
        Some(n) if n >= 0 => Ok(Some(n as usize)),
        Some(n) => Err(ApiError::invalid(name, format!("`{name}` is {n}, expected a number of tokens"))),
    }
}

/// The number of best tokens to be told of.
fn check_top_logprobs(name: &str, n: Option<usize>) -> Result<usize> {
    match n.unwrap_or(0) {
        n if n <= engine::MAX_BEST_LOGPROBS => Ok(n),
        n => {
            let most = engine::MAX_BEST_LOGPROBS;
            Err(ApiError::invalid(name, format!("`{name}` is {n}, expected at most {most}")))
        }
    }
}

/// `service_tier`: `flex` lets others go first; nothing puts a request before others.
fn check_service_tier(tier: Option<&str>, options: &mut GenerateOptions) {
    if tier == Some("flex") {
        options.priority = options.priority.min(-1);
    }
}

fn usage_json(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": { "cached_tokens": usage.cached_tokens },
        "completion_tokens_details": { "reasoning_tokens": usage.reasoning_tokens },
    })
}

/// The usage of a request: its prompt counts once, however many answers it has.
fn add_usage(sum: &mut Usage, of_choice: Usage) {
    sum.prompt_tokens = of_choice.prompt_tokens;
    sum.cached_tokens = sum.cached_tokens.max(of_choice.cached_tokens);
    sum.completion_tokens += of_choice.completion_tokens;
    sum.reasoning_tokens += of_choice.reasoning_tokens;
}

/// `finish_reason`
///
/// # Errors
/// The answer failed, or ran out of time.
fn finish_reason(finish: &Finish) -> Result<&'static str> {
    match &finish.reason {
        StopReason::End | StopReason::StopString(_) | StopReason::StopToken(_) | StopReason::Cancelled => {
            Ok("stop")
        }
        StopReason::MaxTokens | StopReason::ContextFull => Ok("length"),
        StopReason::ToolCalls => Ok("tool_calls"),
        StopReason::Timeout => Err(ApiError::new(crate::ErrorKind::Timeout, "the request's time is over")),
        StopReason::Ungrammatical(words) => Err(ApiError::ungrammatical(words)),
        StopReason::Failed(message) => Err(ApiError::internal(message.clone())),
    }
}

/// A token of `logprobs.content`.
#[derive(Serialize)]
struct TokenLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
    /// `None`: it is itself one of the best.
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<TokenLogprob>>,
}

impl TokenLogprob {
    fn of(token: TokenInfo) -> TokenLogprob {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let top = token.top.into_iter().map(|(_, bytes, logprob)| TokenLogprob {
            token: text(&bytes),
            logprob,
            bytes,
            top_logprobs: None,
        });
        TokenLogprob {
            token: text(&token.bytes),
            // JSON has no infinity; OpenAI's documentation gives -9999 for what is not likely at all.
            logprob: token.logprob.filter(|logprob| logprob.is_finite()).unwrap_or(-9999.0),
            top_logprobs: Some(top.collect()),
            bytes: token.bytes,
        }
    }
}
