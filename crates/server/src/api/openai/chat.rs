//! `/v1/chat/completions`

use std::collections::HashMap;

use axum::Json;
use axum::extract::{Extension, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use text::Grammar;

use super::chat_answer::{ChatFrame, stream, whole};
use super::common::{
    Stop, StreamOptions, check_max_tokens, check_n, check_service_tier, check_top_logprobs, input_tokens,
    tool_choice_word, wrong_tool_choice,
};
use super::tools::{Tools, arguments_of};
use crate::api::body::{JsonBody, text_or_null};
use crate::api::sampling::{SamplingKeys, structural_tag};
use crate::api::timing::TimingKeys;
use crate::api::{named_effort, seconds_now, sse};
use crate::error::HttpResult;
use runner::Effort;
use runner::Runner;
use runner::images;
use runner::{Caller, ChatRequest, GenerateOptions, ToolChoice};
use runner::{RequestError, Result};

#[derive(Deserialize)]
pub(super) struct ChatBody {
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
    State(runner): State<Runner>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<ChatBody>,
) -> HttpResult<Response> {
    let wants_stream = body.stream.unwrap_or(false);
    let include_usage = body.stream_options.unwrap_or_default().include_usage;
    let with_logprobs = body.logprobs.unwrap_or(false);
    let timing = body.timing;
    let (request, tools) = request(body)?;
    let answer = runner.chat(&caller, request).await?;
    let frame = ChatFrame {
        id: format!("chatcmpl-{}", caller.request_id),
        created: seconds_now(),
        model: answer.model.clone(),
        with_logprobs,
        with_usage: include_usage,
        timing,
        last_timings: None,
        tools,
        freeform: HashMap::new(),
    };
    if wants_stream {
        return Ok(sse::response(stream(answer, frame)));
    }
    whole(answer, frame).await
}

/// Renders the prompt of a chat: llama-server's `/apply-template`.
pub(super) async fn apply_template(
    State(runner): State<Runner>,
    JsonBody(body): JsonBody<ChatBody>,
) -> HttpResult<Json<Value>> {
    let (prompt, _) = runner.chat_prompt(request(body)?.0).await?;
    Ok(Json(json!({ "prompt": prompt })))
}

/// Counts the tokens of a chat's prompt: llama-server's `input_tokens`.
pub(super) async fn count_tokens(
    State(runner): State<Runner>,
    JsonBody(body): JsonBody<ChatBody>,
) -> HttpResult<Json<Value>> {
    let (_, tokens) = runner.chat_prompt(request(body)?.0).await?;
    Ok(input_tokens(tokens.len()))
}

/// Converts a body to the inner request, and to the tools as the client knows them.
fn request(body: ChatBody) -> Result<(ChatRequest, Tools)> {
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
        return Err(RequestError::invalid("top_logprobs", "`top_logprobs` needs `logprobs` to be true"));
    }
    body.sampling.apply(&mut options)?;
    check_service_tier(body.service_tier.as_deref(), &mut options);
    let grammar = body.sampling.grammar(response_format("response_format", body.response_format)?)?;
    let effort = body.reasoning_effort.and_then(|effort| named_effort("reasoning_effort", &effort));
    let thinking = effort.and_then(Effort::thinks).or(body.enable_thinking);
    let raw_reasoning = match body.reasoning_format.as_deref() {
        None | Some("auto" | "deepseek") => false,
        Some("none") => true,
        Some(other) => {
            let message = format!("`reasoning_format` is {other:?}, expected auto, deepseek or none");
            return Err(RequestError::invalid("reasoning_format", message));
        }
    };
    // A last message of the assistant is the start of the answer.
    let wants_prompt = body.add_generation_prompt.unwrap_or(true);
    let is_open = !wants_prompt && body.messages.last().is_some_and(|last| last["role"] == "assistant");
    let continue_last = body.continue_final_message.unwrap_or(is_open);
    // Former names of `tools` and `tool_choice`.
    refuse(
        "functions",
        body.functions.is_some_and(|list| list.as_array().is_none_or(|list| !list.is_empty())),
    )?;
    refuse("function_call", body.function_call.is_some_and(|call| call.is_object()))?;
    let ignored = [
        ("web_search_options", body.web_search_options.is_some()),
        ("store", body.store == Some(true)),
        ("verbosity", body.verbosity.is_some_and(|verbosity| verbosity != "medium")),
    ];
    warn_of_ignored(&ignored);
    if let Some(other) = body.modalities.iter().flatten().find(|modality| *modality != "text") {
        return Err(RequestError::unsupported_value("modalities", other, "text alone"));
    }
    if body.messages.is_empty() {
        return Err(RequestError::invalid("messages", "`messages` is empty, expected at least one message"));
    }
    let messages = body.messages.into_iter().enumerate().map(|(index, value)| message(index, value));
    let mut tools = Tools::of_chat(&body.tools.unwrap_or_default())?;
    let tool_choice = tool_choice(body.tool_choice.as_ref(), &mut tools)?;
    let request = ChatRequest {
        model: body.model,
        messages: messages.collect::<Result<_>>()?,
        tools: tools.list(),
        tool_choice,
        parallel_tool_calls: body.parallel_tool_calls.unwrap_or(true),
        grammar,
        template_variables: body.chat_template_kwargs.unwrap_or_default(),
        effort,
        thinking,
        // -1 is no limit, as in llama-server.
        thinking_budget: body.thinking_budget.and_then(|n| usize::try_from(n).ok()),
        continue_last,
        without_generation_prompt: !wants_prompt,
        raw_reasoning,
        options,
    };
    Ok((request, tools))
}

/// Logs keys that other servers honour and that have no effect here.
pub(super) fn warn_of_ignored(keys: &[(&str, bool)]) {
    for (name, _) in keys.iter().filter(|(_, is_asked)| *is_asked) {
        tracing::warn!("`{name}` is ignored: it is not offered here");
    }
}

/// The grammar of `response_format`, whose key is `name`.
pub(super) fn response_format(name: &str, format: Option<Value>) -> Result<Option<Grammar>> {
    let Some(mut format) = format.filter(|format| !format.is_null()) else { return Ok(None) };
    match format["type"].as_str() {
        Some("text") => Ok(None),
        Some("structural_tag") => structural_tag(&format).map(Some),
        Some("json_object") => Ok(Some(match format["schema"].take() {
            // llama-server's form: the schema directly in the format.
            schema @ Value::Object(_) => Grammar::JsonSchema(schema),
            Value::Null => Grammar::AnyJson,
            other => {
                let message = format!("`{name}.schema` is {other}, expected a JSON Schema");
                return Err(RequestError::invalid(name, message));
            }
        })),
        Some("json_schema") => match format["json_schema"]["schema"].take() {
            schema @ (Value::Object(_) | Value::Bool(_)) => Ok(Some(Grammar::JsonSchema(schema))),
            other => {
                // In Responses the format holds the schema directly.
                let key = if name == "response_format" { ".json_schema.schema" } else { ".schema" };
                let message = format!("`{name}{key}` is {other}, expected a JSON Schema");
                Err(RequestError::invalid(name, message))
            }
        },
        _ => {
            let message = format!("`{name}` is {format}, expected the type text, json_object or json_schema");
            Err(RequestError::invalid(name, message))
        }
    }
}

fn refuse(name: &str, asked: bool) -> Result<()> {
    if asked { Err(RequestError::unsupported(name)) } else { Ok(()) }
}

/// Converts a message for templates: text parts are joined to one text.
fn message(index: usize, mut message: Value) -> Result<Value> {
    let wrong = |key: &str, found: String, expected: &str| {
        let param = format!("messages[{index}]{key}");
        Err(RequestError::invalid(param.clone(), format!("`{param}` is {found}, expected {expected}")))
    };
    let Some(object) = message.as_object_mut() else {
        return wrong("", message.to_string(), "an object with `role` and `content`");
    };
    match object.get("role") {
        Some(Value::String(role)) => match role.as_str() {
            "system" | "user" | "assistant" | "tool" => {}
            // OpenAI's newer name of the system role.
            "developer" => drop(object.insert("role".into(), "system".into())),
            other => {
                return wrong(".role", format!("{other:?}"), "system, developer, user, assistant or tool");
            }
        },
        other => return wrong(".role", format!("{other:?}"), "a text"),
    }
    for call in object.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        if call["type"] == "custom" {
            let arguments = arguments_of(call["custom"]["input"].as_str().unwrap_or_default());
            let function = json!({ "name": call["custom"]["name"], "arguments": arguments });
            *call = json!({ "id": call["id"], "type": "function", "function": function });
        }
    }
    let content = match object.get("content") {
        None | Some(Value::Null) => Value::String(String::new()),
        Some(Value::String(_)) => return Ok(message),
        Some(Value::Array(parts)) => {
            let read = |(n, found)| part(&format!("messages[{index}].content[{n}]"), found);
            images::content(parts.iter().enumerate().map(read).collect::<Result<_>>()?)
        }
        Some(other) => return wrong(".content", other.to_string(), "a text or a list of parts"),
    };
    object.insert("content".into(), content);
    Ok(message)
}

/// Converts a part of a message's content.
fn part(at: &str, part: &Value) -> Result<Value> {
    let text = |key: &str| match part[key].as_str() {
        Some(text) => Ok(json!({ "type": "text", "text": text })),
        None => {
            let path = format!("{at}.{key}");
            Err(RequestError::invalid(path.clone(), format!("`{path}` is {}, expected a text", part[key])))
        }
    };
    match part["type"].as_str() {
        // The latter two names are those of Responses and vLLM.
        Some("text" | "input_text" | "output_text") => text("text"),
        Some("refusal") => text("refusal"),
        Some("image_url") => {
            let url = part.pointer("/image_url/url").unwrap_or(&part["image_url"]);
            images::part_of_url(&format!("{at}.image_url"), url)
        }
        Some(kind) => Err(RequestError::unsupported_value(format!("{at}.type"), kind, "text or image_url")),
        None => {
            let message = format!("`{at}.type` is {}, expected text or image_url", part["type"]);
            Err(RequestError::invalid(format!("{at}.type"), message))
        }
    }
}

/// Reads whether tools are called; `allowed_tools` removes the others.
fn tool_choice(choice: Option<&Value>, tools: &mut Tools) -> Result<ToolChoice> {
    // Mistral's name of `required`.
    let word = |word: &Value| if word == "any" { Ok(ToolChoice::Required) } else { tool_choice_word(word) };
    let name =
        |one: &Value| one["function"]["name"].as_str().or(one["custom"]["name"].as_str()).map(str::to_owned);
    match choice {
        None | Some(Value::Null) => Ok(ToolChoice::Auto),
        Some(choice) if choice["type"] == "allowed_tools" => {
            let allowed = &choice["allowed_tools"];
            let names = allowed["tools"].as_array().ok_or_else(|| wrong_tool_choice(choice))?;
            let names: Vec<String> = names.iter().filter_map(name).collect();
            tools.retain(|tool| names.contains(&tool.name));
            word(&allowed["mode"])
        }
        Some(choice) => match name(choice) {
            Some(name) => Ok(ToolChoice::Function(tools.name_of(None, &name))),
            None => word(choice),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<ChatRequest> {
        request(serde_json::from_value(body).unwrap()).map(|(request, _)| request)
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
    fn hints_are_accepted_and_hosted_tools_dropped() {
        let user = json!([{ "role": "user", "content": "a" }]);
        for hint in [
            json!({ "verbosity": "low", "store": true, "metadata": { "a": "b" }, "user": "u" }),
            json!({ "prompt_cache_key": "k", "safety_identifier": "s", "modalities": ["text"] }),
            json!({ "prediction": { "type": "content", "content": "x" }, "web_search_options": {} }),
            json!({ "service_tier": "priority", "functions": [], "function_call": "auto" }),
            json!({ "reasoning_effort": "much" }),
        ] {
            let mut body = json!({ "messages": user });
            body.as_object_mut().unwrap().extend(hint.as_object().unwrap().clone());
            assert!(read(body).is_ok(), "{hint}");
        }
        let effort = |word: &str| read(json!({ "messages": user, "reasoning_effort": word })).unwrap().effort;
        assert_eq!((effort("xhigh"), effort("none")), (Some(Effort::XHigh), Some(Effort::None)));
        let tools = json!([{ "type": "web_search" }, { "type": "custom", "custom": { "name": "c" } }]);
        let asked = json!({ "messages": [
            { "role": "user", "content": "a" },
            { "role": "assistant", "tool_calls": [
                { "id": "1", "type": "custom", "custom": { "name": "c", "input": "x" } },
            ]},
        ], "tools": tools, "tool_choice": { "type": "custom", "custom": { "name": "c" } } });
        let request = read(asked).unwrap();
        assert_eq!((request.tools.len(), request.tool_choice), (1, ToolChoice::Function("c".into())));
        let function = &request.messages[1]["tool_calls"][0]["function"];
        assert_eq!(function["arguments"], json!({ "input": "x" }).to_string());
    }

    #[test]
    fn errors_name_the_value() {
        let user = json!([{ "role": "user", "content": "a" }]);
        let image = json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }]);
        for (body, param) in [
            (json!({ "messages": [] }), "messages"),
            (json!({ "messages": [{ "role": "robot", "content": "a" }] }), "messages[0].role"),
            (json!({ "messages": image }), "messages[0].content[0].image_url"),
            (
                json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": null }] }] }),
                "messages[0].content[0].text",
            ),
            (json!({ "messages": user, "n": 0 }), "n"),
            (json!({ "messages": user, "max_tokens": -5 }), "max_tokens"),
            (json!({ "messages": user, "top_logprobs": 3 }), "top_logprobs"),
            (json!({ "messages": user, "logprobs": true, "top_logprobs": 129 }), "top_logprobs"),
            (json!({ "messages": user, "modalities": ["text", "audio"] }), "modalities"),
            (json!({ "messages": user, "functions": [{ "name": "f" }] }), "functions"),
            (json!({ "messages": user, "tool_choice": { "x": 1 } }), "tool_choice"),
            (json!({ "messages": user, "tools": [{ "type": "function" }] }), "tools[0].function.name"),
            (json!({ "messages": user, "tools": [{ "name": "f" }] }), "tools[0]"),
            (json!({ "messages": user, "tools": [{ "type": "custom" }] }), "tools[0].custom.name"),
            (
                json!({ "messages": [{ "role": "user", "content": [{ "type": "file", "file": {} }] }] }),
                "messages[0].content[0].type",
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
