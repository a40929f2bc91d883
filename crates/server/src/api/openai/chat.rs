//! `/v1/chat/completions`

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use text::Grammar;

use super::{
    FINGERPRINT, Stop, StreamOptions, TokenLogprob, add_usage, check_max_tokens, check_n, check_service_tier,
    check_top_logprobs, finish_reason, input_tokens, tool_choice_word, usage_json, wrong_tool_choice,
};
use crate::answer::{Answer, AnswerEvent, Delta, EventKind, ToolCall, Usage};
use crate::api::body::{JsonBody, text_or_null};
use crate::api::sampling::{SamplingKeys, structural_tag};
use crate::api::timing::{TimingKeys, progress_json};
use crate::api::{seconds_now, sse};
use crate::app::App;
use crate::error::{ApiError, Result};
use crate::images;
use crate::request::{Caller, ChatRequest, GenerateOptions, ToolChoice};

#[derive(Deserialize)]
pub(super) struct Body {
    #[serde(default, deserialize_with = "text_or_null")]
    model: String,
    messages: Vec<Value>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
    n: Option<usize>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    #[serde(default)]
    stop: Stop,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    response_format: Option<Value>,
    chat_template_kwargs: Option<Map<String, Value>>,
    reasoning_effort: Option<String>,
    reasoning_format: Option<String>,
    #[serde(alias = "thinking_budget_tokens", alias = "reasoning_budget")]
    thinking_budget: Option<i64>,
    enable_thinking: Option<bool>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    modalities: Option<Vec<String>>,
    service_tier: Option<String>,
    verbosity: Option<String>,
    functions: Option<Value>,
    function_call: Option<Value>,
    web_search_options: Option<Value>,
    store: Option<bool>,
    #[serde(flatten)]
    timing: TimingKeys,
    #[serde(flatten)]
    sampling: SamplingKeys,
}

pub(super) async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<Body>,
) -> Result<Response> {
    let wants_stream = body.stream.unwrap_or(false);
    let include_usage = body.stream_options.unwrap_or_default().include_usage;
    let with_logprobs = body.logprobs.unwrap_or(false);
    let timing = body.timing;
    let answer = app.chat(&caller, request(body)?).await?;
    let frame = Frame {
        id: format!("chatcmpl-{}", caller.request_id),
        created: seconds_now(),
        model: answer.model.clone(),
        with_logprobs,
        with_usage: include_usage,
        timing,
        last_timings: None,
    };
    if wants_stream {
        return Ok(sse::response(stream(answer, frame)));
    }
    whole(answer, frame).await
}

/// The prompt of a chat: llama-server's `/apply-template`.
pub(super) async fn apply_template(
    State(app): State<App>,
    JsonBody(body): JsonBody<Body>,
) -> Result<Json<Value>> {
    let (prompt, _) = app.chat_prompt(request(body)?).await?;
    Ok(Json(json!({ "prompt": prompt })))
}

/// How many tokens the prompt of a chat has: llama-server's `input_tokens`.
pub(super) async fn count_tokens(
    State(app): State<App>,
    JsonBody(body): JsonBody<Body>,
) -> Result<Json<Value>> {
    let (_, tokens) = app.chat_prompt(request(body)?).await?;
    Ok(input_tokens(tokens.len()))
}

/// The inner request of a body.
fn request(body: Body) -> Result<ChatRequest> {
    let n_best = check_top_logprobs("top_logprobs", body.top_logprobs)?;
    let mut options = GenerateOptions {
        n: check_n(body.n)?,
        max_tokens: check_max_tokens("max_completion_tokens", body.max_completion_tokens)?
            .or(check_max_tokens("max_tokens", body.max_tokens)?),
        stop: body.stop.texts(),
        logprobs: body.logprobs.unwrap_or(false).then_some(n_best),
        progress: body.timing.progress(body.stream == Some(true)),
        ..GenerateOptions::default()
    };
    if body.top_logprobs.is_some_and(|n| n > 0) && options.logprobs.is_none() {
        return Err(ApiError::invalid("top_logprobs", "`top_logprobs` needs `logprobs` to be true"));
    }
    body.sampling.apply(&mut options)?;
    check_service_tier(body.service_tier.as_deref(), &mut options)?;
    let grammar = body.sampling.grammar(response_format("response_format", body.response_format)?)?;
    let mut template_variables = body.chat_template_kwargs.unwrap_or_default();
    let mut thinking = body.enable_thinking;
    if let Some(effort) = &body.reasoning_effort {
        thinking = reasoning_effort("reasoning_effort", effort, &mut template_variables)?.or(thinking);
    }
    let raw_reasoning = match body.reasoning_format.as_deref() {
        None | Some("auto" | "deepseek") => false,
        Some("none") => true,
        Some(other) => {
            let message = format!("`reasoning_format` is {other:?}, expected auto, deepseek or none");
            return Err(ApiError::invalid("reasoning_format", message));
        }
    };
    // The last message of the assistant is the beginning of the answer.
    let wants_prompt = body.add_generation_prompt.unwrap_or(true);
    let is_open = !wants_prompt && body.messages.last().is_some_and(|last| last["role"] == "assistant");
    let continue_last = body.continue_final_message.unwrap_or(is_open);
    // What `tools` and `tool_choice` were called before.
    refuse("functions", body.functions.is_some())?;
    refuse("function_call", body.function_call.is_some())?;
    refuse("web_search_options", body.web_search_options.is_some())?;
    refuse("store", body.store == Some(true))?;
    check_verbosity("verbosity", body.verbosity.as_deref())?;
    refuse("modalities", body.modalities.is_some_and(|list| list.iter().any(|modality| modality != "text")))?;
    if body.messages.is_empty() {
        return Err(ApiError::invalid("messages", "`messages` is empty, expected at least one message"));
    }
    let messages = body.messages.into_iter().enumerate().map(|(index, value)| message(index, value));
    let mut tools = body.tools.unwrap_or_default();
    check_tools(&tools)?;
    let tool_choice = tool_choice(body.tool_choice.as_ref(), &mut tools)?;
    Ok(ChatRequest {
        model: body.model,
        messages: messages.collect::<Result<_>>()?,
        tools,
        tool_choice,
        parallel_tool_calls: body.parallel_tool_calls.unwrap_or(true),
        grammar,
        template_variables,
        thinking,
        // -1 is no limit, as llama-server has it.
        thinking_budget: body.thinking_budget.and_then(|n| usize::try_from(n).ok()),
        continue_last,
        without_generation_prompt: !wants_prompt,
        raw_reasoning,
        options,
    })
}

/// Tell the template of an effort; `Some(false)`: the model is not to think.
pub(super) fn reasoning_effort(
    name: &str,
    effort: &str,
    variables: &mut Map<String, Value>,
) -> Result<Option<bool>> {
    match effort {
        "none" => Ok(Some(false)),
        "minimal" => {
            variables.entry("reasoning_effort").or_insert(effort.into());
            Ok(Some(false))
        }
        "low" | "medium" | "high" | "xhigh" => {
            variables.entry("reasoning_effort").or_insert(effort.into());
            Ok(None)
        }
        other => {
            let message =
                format!("`{name}` is {other:?}, expected none, minimal, low, medium, high or xhigh");
            Err(ApiError::invalid(name, message))
        }
    }
}

/// How long answers are is the model's choice, or the prompt's.
pub(super) fn check_verbosity(name: &str, verbosity: Option<&str>) -> Result<()> {
    match verbosity {
        None | Some("medium") => Ok(()),
        Some(other @ ("low" | "high")) => Err(ApiError::not_built(&format!("{name} {other}"))),
        Some(other) => {
            Err(ApiError::invalid(name, format!("`{name}` is {other:?}, expected low, medium or high")))
        }
    }
}

/// The grammar of `response_format`, which the request calls `name`.
pub(super) fn response_format(name: &str, format: Option<Value>) -> Result<Option<Grammar>> {
    let Some(mut format) = format.filter(|format| !format.is_null()) else { return Ok(None) };
    match format["type"].as_str() {
        Some("text") => Ok(None),
        Some("structural_tag") => structural_tag(&format).map(Some),
        Some("json_object") => Ok(Some(match format["schema"].take() {
            // As llama-server has it.
            schema @ Value::Object(_) => Grammar::JsonSchema(schema),
            Value::Null => Grammar::AnyJson,
            other => {
                let message = format!("`{name}.schema` is {other}, expected a JSON Schema");
                return Err(ApiError::invalid(name, message));
            }
        })),
        Some("json_schema") => match format["json_schema"]["schema"].take() {
            schema @ (Value::Object(_) | Value::Bool(_)) => Ok(Some(Grammar::JsonSchema(schema))),
            other => {
                // Of Responses, a format has its schema itself.
                let key = if name == "response_format" { ".json_schema.schema" } else { ".schema" };
                let message = format!("`{name}{key}` is {other}, expected a JSON Schema");
                Err(ApiError::invalid(name, message))
            }
        },
        _ => {
            let message = format!("`{name}` is {format}, expected the type text, json_object or json_schema");
            Err(ApiError::invalid(name, message))
        }
    }
}

fn refuse(name: &str, asked: bool) -> Result<()> {
    if asked { Err(ApiError::not_built(name)) } else { Ok(()) }
}

/// A message as templates expect it: a content of text parts becomes one text.
fn message(index: usize, mut message: Value) -> Result<Value> {
    let wrong = |key: &str, found: String, expected: &str| {
        let param = format!("messages[{index}]{key}");
        Err(ApiError::invalid(param.clone(), format!("`{param}` is {found}, expected {expected}")))
    };
    let Some(object) = message.as_object_mut() else {
        return wrong("", message.to_string(), "an object with `role` and `content`");
    };
    match object.get("role") {
        Some(Value::String(role)) => match role.as_str() {
            "system" | "user" | "assistant" | "tool" => {}
            // What newer models of OpenAI call a system message.
            "developer" => drop(object.insert("role".into(), "system".into())),
            other => {
                return wrong(".role", format!("{other:?}"), "system, developer, user, assistant or tool");
            }
        },
        other => return wrong(".role", format!("{other:?}"), "a text"),
    }
    let text = match object.get("content") {
        None | Some(Value::Null) => Value::String(String::new()),
        Some(Value::String(_)) => return Ok(message),
        Some(Value::Array(parts)) => {
            let mut found = Vec::with_capacity(parts.len());
            for part in parts {
                match (part["type"].as_str(), part["text"].as_str()) {
                    // The latter two as Responses and vLLM have them.
                    (Some("text" | "input_text" | "output_text"), Some(part)) => {
                        found.push(json!({ "type": "text", "text": part }))
                    }
                    (Some("refusal"), _) => {
                        found.push(
                            json!({ "type": "text", "text": part["refusal"].as_str().unwrap_or_default() }),
                        );
                    }
                    (Some("image_url"), _) => {
                        let url = part.pointer("/image_url/url").unwrap_or(&part["image_url"]);
                        found.push(images::part_of_url(&format!("messages[{index}].content"), url)?);
                    }
                    (
                        Some(
                            kind @ ("file" | "input_file" | "input_audio" | "audio_url" | "video_url"
                            | "input_image"),
                        ),
                        _,
                    ) => {
                        return Err(ApiError::not_built(&format!("messages[{index}].content.type {kind}")));
                    }
                    (kind, _) => {
                        let found = format!("a part of type {}", kind.unwrap_or("unknown"));
                        return wrong(".content", found, "parts of type text or image_url");
                    }
                }
            }
            images::content(found)
        }
        Some(other) => return wrong(".content", other.to_string(), "a text or a list of parts"),
    };
    object.insert("content".into(), text);
    Ok(message)
}

/// Functions are the only tools.
fn check_tools(tools: &[Value]) -> Result<()> {
    for (index, tool) in tools.iter().enumerate() {
        let wrong = |key: &str, found: &Value, expected: &str| {
            let path = format!("tools[{index}]{key}");
            Err(ApiError::invalid(path.clone(), format!("`{path}` is {found}, expected {expected}")))
        };
        match tool["type"].as_str() {
            // Many clients leave it out.
            Some("function") | None if tool["function"]["name"].is_string() => {}
            Some("function") => {
                return wrong(".function.name", &tool["function"]["name"], "a function's name");
            }
            None => return wrong("", tool, "an object with the type function, and `function`"),
            Some(other) => return Err(ApiError::not_built(&format!("tools[{index}].type {other}"))),
        }
    }
    Ok(())
}

/// Whether tools are called; `allowed_tools` leaves only some of them.
fn tool_choice(choice: Option<&Value>, tools: &mut Vec<Value>) -> Result<ToolChoice> {
    // Mistral's word.
    let word = |word: &Value| if word == "any" { Ok(ToolChoice::Required) } else { tool_choice_word(word) };
    match choice {
        None | Some(Value::Null) => Ok(ToolChoice::Auto),
        Some(choice) if choice["type"] == "allowed_tools" => {
            let allowed = &choice["allowed_tools"];
            let names = allowed["tools"].as_array().ok_or_else(|| wrong_tool_choice(choice))?;
            tools.retain(|tool| names.iter().any(|one| one["function"]["name"] == tool["function"]["name"]));
            word(&allowed["mode"])
        }
        Some(choice) => match choice["function"]["name"].as_str() {
            Some(name) => Ok(ToolChoice::Function(name.to_owned())),
            None => word(choice),
        },
    }
}

/// What all chunks of an answer have in common.
struct Frame {
    id: String,
    created: u64,
    model: String,
    with_logprobs: bool,
    /// A stream ends with its usage, which all other chunks then have as `null`.
    with_usage: bool,
    timing: TimingKeys,
    /// The timings of the last event, which the usage repeats.
    last_timings: Option<Value>,
}

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    choices: Vec<ChunkChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_progress: Option<Value>,
}

#[derive(Serialize)]
struct ChunkChoice {
    index: usize,
    delta: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Value>,
    finish_reason: Option<&'static str>,
}

impl Frame {
    fn chunk(&self, choices: Vec<ChunkChoice>) -> Chunk<'_> {
        Chunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.model,
            system_fingerprint: FINGERPRINT,
            choices,
            usage: self.with_usage.then_some(Value::Null),
            timings: None,
            prompt_progress: None,
        }
    }

    fn choice(&self, index: usize, delta: Value, finish_reason: Option<&'static str>) -> Chunk<'_> {
        self.chunk(vec![ChunkChoice { index, delta, logprobs: None, finish_reason }])
    }
}

fn delta_json(delta: Delta, tokens: &mut Vec<TokenLogprob>) -> Option<Value> {
    match delta {
        Delta::Reasoning(text) => Some(json!({ "reasoning_content": text })),
        Delta::Content { text, tokens: infos } => {
            tokens.extend(infos.into_iter().map(TokenLogprob::of));
            Some(json!({ "content": text }))
        }
        Delta::CallBegin { index, id, name } => Some(json!({ "tool_calls": [{
            "index": index, "id": id, "type": "function", "function": { "name": name, "arguments": "" },
        }]})),
        Delta::CallArguments { index, text } => {
            Some(json!({ "tool_calls": [{ "index": index, "function": { "arguments": text } }] }))
        }
        Delta::CallEnd { .. } | Delta::Prompt(_) | Delta::Progress(_) => None,
    }
}

fn call_json(call: ToolCall) -> Value {
    let function = json!({ "name": call.name, "arguments": call.arguments });
    json!({ "id": call.id, "type": "function", "function": function })
}

/// Where a stream of frames is.
enum At {
    Begin,
    Answer,
    Usage,
    Done,
    End,
}

fn stream(answer: Answer, frame: Frame) -> impl Stream<Item = Bytes> + Send {
    let begun = (At::Begin, answer, frame, Usage::default());
    futures_util::stream::unfold(begun, move |(at, mut answer, mut frame, mut usage)| async move {
        match at {
            At::Begin => {
                let choice = |index| ChunkChoice {
                    index,
                    delta: json!({ "role": "assistant", "content": "", "refusal": null }),
                    logprobs: None,
                    finish_reason: None,
                };
                let bytes = sse::data(&frame.chunk((0..answer.n_choices()).map(choice).collect()));
                Some((bytes, (At::Answer, answer, frame, usage)))
            }
            At::Answer => loop {
                let Some(AnswerEvent { choice, kind, timings }) = answer.next().await else {
                    let at = if frame.with_usage { At::Usage } else { At::Done };
                    return Some((Bytes::new(), (at, answer, frame, usage)));
                };
                let timings = frame.timing.of_event(&timings);
                frame.last_timings.clone_from(&timings);
                let chunk = match kind {
                    EventKind::Delta(Delta::Progress(progress)) => {
                        let prompt_progress = Some(progress_json(&progress));
                        let timings = frame.timing.of_prompt(&progress);
                        Chunk { prompt_progress, timings, ..frame.choice(choice, json!({}), None) }
                    }
                    EventKind::Delta(delta) => {
                        let mut tokens = Vec::new();
                        let Some(delta) = delta_json(delta, &mut tokens) else { continue };
                        let logprobs = frame.with_logprobs.then(|| json!({ "content": tokens }));
                        let choice = ChunkChoice { index: choice, delta, logprobs, finish_reason: None };
                        Chunk { timings, ..frame.chunk(vec![choice]) }
                    }
                    EventKind::Done(finish) => {
                        add_usage(&mut usage, finish.usage);
                        match finish_reason(&finish) {
                            Ok(reason) => Chunk { timings, ..frame.choice(choice, json!({}), Some(reason)) },
                            Err(error) => return Some((sse::error(&error), (At::End, answer, frame, usage))),
                        }
                    }
                };
                let bytes = sse::data(&chunk);
                return Some((bytes, (At::Answer, answer, frame, usage)));
            },
            At::Usage => {
                let (usage_now, timings) = (Some(usage_json(usage)), frame.last_timings.take());
                let bytes = sse::data(&Chunk { usage: usage_now, timings, ..frame.chunk(Vec::new()) });
                Some((bytes, (At::Done, answer, frame, usage)))
            }
            At::Done => Some((Bytes::from_static(b"data: [DONE]\n\n"), (At::End, answer, frame, usage))),
            At::End => None,
        }
    })
}

async fn whole(answer: Answer, frame: Frame) -> Result<Response> {
    let mut usage = Usage::default();
    let mut choices = Vec::new();
    for (index, collected) in answer.collect().await?.into_iter().enumerate() {
        let Some(finish) = &collected.finish else {
            return Err(ApiError::internal("an answer ended without saying so"));
        };
        add_usage(&mut usage, finish.usage);
        let reason = finish_reason(finish)?;
        // With nothing but calls there is no content.
        let content =
            (!collected.content.is_empty() || collected.calls.is_empty()).then_some(collected.content);
        let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
        if !collected.calls.is_empty() {
            message["tool_calls"] = collected.calls.into_iter().map(call_json).collect();
        }
        if !collected.reasoning.is_empty() {
            message["reasoning_content"] = collected.reasoning.into();
        }
        let logprobs = frame.with_logprobs.then(|| {
            let tokens: Vec<TokenLogprob> = collected.tokens.into_iter().map(TokenLogprob::of).collect();
            json!({ "content": tokens })
        });
        choices.push(json!({
            "index": index, "message": message, "logprobs": logprobs, "finish_reason": reason,
        }));
    }
    let response = json!({
        "id": frame.id, "object": "chat.completion", "created": frame.created, "model": frame.model,
        "system_fingerprint": FINGERPRINT, "choices": choices, "usage": usage_json(usage),
    });
    Ok(Json(response).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<ChatRequest> {
        request(serde_json::from_value(body).unwrap())
    }

    #[test]
    fn a_body_becomes_a_request() {
        let request = read(json!({
            "model": null, "max_tokens": 5, "stop": "x", "n": 2, "temperature": 0, "user": "u",
            "messages": [
                { "role": "developer", "content": "d" },
                { "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] },
            ],
        }))
        .unwrap();
        assert_eq!((request.model.as_str(), &request.messages[0]["role"]), ("", &json!("system")));
        assert_eq!(request.messages[1]["content"], "ab");
        assert_eq!((request.options.n, request.options.max_tokens), (2, Some(5)));
        assert_eq!(request.options.stop, ["x"]);
    }

    #[test]
    fn tools_may_be_narrowed() {
        let tool = |name: &str| json!({ "type": "function", "function": { "name": name } });
        let asked = |choice: Value| {
            let user = json!([{ "role": "user", "content": [{ "type": "input_text", "text": "a" }] }]);
            let body = json!({ "messages": user, "tools": [tool("f"), tool("g")], "tool_choice": choice });
            read(body).map(|request| (request.tools.len(), request.tool_choice)).unwrap()
        };
        let allowed = json!({ "mode": "required", "tools": [tool("g")] });
        let allowed = json!({ "type": "allowed_tools", "allowed_tools": allowed });
        assert_eq!(asked(allowed), (1, ToolChoice::Required));
        assert_eq!(asked(json!("any")), (2, ToolChoice::Required));
        assert_eq!(asked(tool("g")), (2, ToolChoice::Function("g".into())));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let user = json!([{ "role": "user", "content": "a" }]);
        let image = json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }]);
        for (body, param) in [
            (json!({ "messages": [] }), "messages"),
            (json!({ "messages": [{ "role": "robot", "content": "a" }] }), "messages[0].role"),
            (json!({ "messages": image }), "messages[0].content"),
            (json!({ "messages": user, "n": 0 }), "n"),
            (json!({ "messages": user, "max_tokens": -5 }), "max_tokens"),
            (json!({ "messages": user, "top_logprobs": 3 }), "top_logprobs"),
            (json!({ "messages": user, "logprobs": true, "top_logprobs": 129 }), "top_logprobs"),
            (json!({ "messages": user, "service_tier": "fast" }), "service_tier"),
            (json!({ "messages": user, "verbosity": "low" }), "verbosity low"),
            (json!({ "messages": user, "store": true }), "store"),
            (json!({ "messages": user, "tool_choice": { "x": 1 } }), "tool_choice"),
            (json!({ "messages": user, "tools": [{ "type": "function" }] }), "tools[0].function.name"),
            (json!({ "messages": user, "tools": [{ "name": "f" }] }), "tools[0]"),
            (json!({ "messages": user, "tools": [{ "type": "custom" }] }), "tools[0].type custom"),
            (
                json!({ "messages": [{ "role": "user", "content": [{ "type": "file", "file": {} }] }] }),
                "messages[0].content.type file",
            ),
            (json!({ "messages": user, "response_format": { "type": "xml" } }), "response_format"),
            (
                json!({ "messages": user, "response_format": { "type": "json_object", "schema": 3 } }),
                "response_format",
            ),
        ] {
            assert_eq!(read(body).unwrap_err().param.as_deref(), Some(param));
        }
    }
}
