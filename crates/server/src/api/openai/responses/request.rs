//! A request's keys: what is asked of a model, and what the response repeats.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::chat::{check_verbosity, reasoning_effort, response_format};
use super::super::{
    check_max_tokens, check_service_tier, check_top_logprobs, tool_choice_word, wrong_tool_choice,
};
use super::items;
use super::store::{Item, new_id};
use crate::api::body::text_or_null;
use crate::api::sampling::SamplingKeys;
use crate::api::timing::TimingKeys;
use crate::error::{ApiError, Result};
use crate::request::{ChatRequest, GenerateOptions, ToolChoice};

#[derive(Deserialize)]
pub(super) struct Body {
    #[serde(default, deserialize_with = "text_or_null")]
    model: String,
    pub(super) input: Option<Value>,
    instructions: Option<String>,
    pub(super) previous_response_id: Option<String>,
    max_output_tokens: Option<i64>,
    top_logprobs: Option<usize>,
    include: Option<Vec<String>>,
    text: Option<TextKeys>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    reasoning: Option<ReasoningKeys>,
    pub(super) store: Option<bool>,
    pub(super) stream: Option<bool>,
    truncation: Option<String>,
    chat_template_kwargs: Option<Map<String, Value>>,
    metadata: Option<Value>,
    service_tier: Option<String>,
    #[serde(flatten)]
    pub(super) timing: TimingKeys,
    // Known, and not built: refused unless they ask for nothing.
    max_tool_calls: Option<Value>,
    background: Option<bool>,
    conversation: Option<Value>,
    prompt: Option<Value>,
}

#[derive(Deserialize)]
struct TextKeys {
    format: Option<Value>,
    verbosity: Option<String>,
}

#[derive(Deserialize)]
struct ReasoningKeys {
    effort: Option<String>,
    #[serde(alias = "generate_summary")]
    summary: Option<String>,
}

const LOGPROBS: &str = "message.output_text.logprobs";

impl Body {
    pub(super) fn wants_logprobs(&self) -> bool {
        self.include.iter().flatten().any(|name| name == LOGPROBS)
    }

    /// Whether reasoning is given as a summary, which it then is itself: the most detailed one.
    pub(super) fn wants_summary(&self) -> bool {
        self.reasoning.as_ref().is_some_and(|reasoning| reasoning.summary.is_some())
    }

    /// Whether the oldest messages may be left out.
    pub(super) fn truncates(&self) -> bool {
        self.truncation.as_deref() == Some("auto")
    }

    fn check(&self) -> Result<()> {
        let asks = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
        let unbuilt = [
            ("background", self.background == Some(true)),
            ("conversation", asks(&self.conversation)),
            ("prompt", asks(&self.prompt)),
            // It limits calls of tools that run here, and there are none.
            ("max_tool_calls", asks(&self.max_tool_calls)),
        ];
        if let Some((name, _)) = unbuilt.into_iter().find(|(_, is_asked)| *is_asked) {
            return Err(ApiError::not_built(name));
        }
        if let Some(metadata) = self.metadata.as_ref().filter(|metadata| !metadata.is_null()) {
            check_metadata(metadata)?;
        }
        let verbosity = self.text.as_ref().and_then(|text| text.verbosity.as_deref());
        check_verbosity("text.verbosity", verbosity)?;
        match self.reasoning.as_ref().and_then(|reasoning| reasoning.summary.as_deref()) {
            None | Some("auto" | "detailed") => {}
            Some("concise") => return Err(ApiError::not_built("reasoning.summary concise")),
            Some(other) => {
                let message = format!("`reasoning.summary` is {other:?}, expected auto, concise or detailed");
                return Err(ApiError::invalid("reasoning.summary", message));
            }
        }
        if self.top_logprobs.is_some_and(|n| n > 0) && !self.wants_logprobs() {
            let message = format!("`top_logprobs` needs `include` to have {LOGPROBS}");
            return Err(ApiError::invalid("top_logprobs", message));
        }
        // Reasoning is in the response in the clear, so nobody needs it encrypted.
        let known = [LOGPROBS, "reasoning.encrypted_content"];
        if let Some(other) = self.include.iter().flatten().find(|name| !known.contains(&name.as_str())) {
            return Err(ApiError::not_built(&format!("include {other}")));
        }
        match self.truncation.as_deref() {
            None | Some("disabled" | "auto") => Ok(()),
            Some(other) => {
                let message = format!("`truncation` is {other:?}, expected auto or disabled");
                Err(ApiError::invalid("truncation", message))
            }
        }
    }

    /// The tools as templates know them, and whether they are called.
    fn tools(&self) -> Result<(Vec<Value>, ToolChoice)> {
        let tool = |(index, tool): (usize, &Value)| match (tool["type"].as_str(), &tool["name"]) {
            (Some("function"), Value::String(_)) => {
                let keys = ["name", "description", "parameters", "strict"];
                let given = keys.into_iter().filter(|key| !tool[key].is_null());
                let function: Map<String, Value> =
                    given.map(|key| (key.to_owned(), tool[key].clone())).collect();
                Ok(json!({ "type": "function", "function": function }))
            }
            (Some("function"), found) => {
                let path = format!("tools[{index}].name");
                Err(ApiError::invalid(
                    path.clone(),
                    format!("`{path}` is {found}, expected a function's name"),
                ))
            }
            (kind, _) => Err(ApiError::not_built(&format!("tools[{index}].type {}", kind.unwrap_or("null")))),
        };
        let mut tools: Vec<Value> =
            self.tools.iter().flatten().enumerate().map(tool).collect::<Result<_>>()?;
        let choice = match &self.tool_choice {
            None | Some(Value::Null) => ToolChoice::Auto,
            Some(choice @ Value::Object(_)) => match (choice["type"].as_str(), choice["name"].as_str()) {
                (Some("function"), Some(name)) => ToolChoice::Function(name.to_owned()),
                (Some("allowed_tools"), _) => {
                    let allowed = choice["tools"].as_array().ok_or_else(|| wrong_tool_choice(choice))?;
                    tools.retain(|tool| allowed.iter().any(|one| one["name"] == tool["function"]["name"]));
                    tool_choice_word(&choice["mode"])?
                }
                _ => return Err(wrong_tool_choice(choice)),
            },
            Some(choice) => tool_choice_word(choice)?,
        };
        Ok((tools, choice))
    }

    /// `text.format`, as the chat API has it in `response_format`.
    fn format(&self) -> Option<Value> {
        let format = self.text.as_ref()?.format.clone()?;
        match format["type"].as_str() {
            Some("json_schema") => Some(json!({ "type": "json_schema", "json_schema": format })),
            _ => Some(format),
        }
    }
}

/// What is asked of the model; the first `n_before` items of the conversation are of earlier requests.
///
/// # Errors
/// A key is wrong, or cannot be honoured.
pub(super) fn chat_request(
    body: &Body,
    sampling: &SamplingKeys,
    conversation: &[Item],
    n_before: usize,
) -> Result<ChatRequest> {
    body.check()?;
    let n_best = check_top_logprobs("top_logprobs", body.top_logprobs)?;
    let mut options = GenerateOptions {
        max_tokens: check_max_tokens("max_output_tokens", body.max_output_tokens)?,
        logprobs: body.wants_logprobs().then_some(n_best),
        progress: body.timing.progress(body.stream == Some(true)),
        ..GenerateOptions::default()
    };
    sampling.apply(&mut options)?;
    check_service_tier(body.service_tier.as_deref(), &mut options)?;
    let grammar = sampling.grammar(response_format("text.format", body.format())?)?;
    let (tools, tool_choice) = body.tools()?;
    let mut template_variables = body.chat_template_kwargs.clone().unwrap_or_default();
    let effort = body.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_deref());
    let thinking = match effort {
        Some(effort) => reasoning_effort("reasoning.effort", effort, &mut template_variables)?,
        None => None,
    };
    // They hold for this response alone, not for those that go on from it.
    let instructions = body.instructions.iter().map(|text| json!({ "role": "system", "content": text }));
    let messages: Vec<Value> = instructions.chain(items::messages(conversation, n_before)?).collect();
    if messages.is_empty() {
        return Err(ApiError::invalid("input", "`input` is missing, expected a text or a list of items"));
    }
    Ok(ChatRequest {
        model: body.model.clone(),
        messages,
        tools,
        tool_choice,
        parallel_tool_calls: body.parallel_tool_calls.unwrap_or(true),
        grammar,
        template_variables,
        thinking,
        options,
        ..ChatRequest::default()
    })
}

/// Pairs of texts: at most 16, keys of at most 64 characters, values of at most 512.
fn check_metadata(metadata: &Value) -> Result<()> {
    let wrong = |path: String, found: String, expected: &str| {
        let message = format!("`{path}` is {found}, expected {expected}");
        Err(ApiError::invalid(path, message))
    };
    let Some(pairs) = metadata.as_object() else {
        return wrong("metadata".into(), metadata.to_string(), "an object of texts");
    };
    if pairs.len() > 16 {
        return wrong("metadata".into(), format!("{} pairs", pairs.len()), "at most 16");
    }
    for (key, value) in pairs {
        let path = || format!("metadata.{}", key.chars().take(64).collect::<String>());
        if key.chars().count() > 64 {
            return wrong(path(), format!("a key of {} characters", key.chars().count()), "at most 64");
        }
        match value.as_str().map(|text| text.chars().count()) {
            None => return wrong(path(), value.to_string(), "a text"),
            Some(n) if n > 512 => return wrong(path(), format!("a text of {n} characters"), "at most 512"),
            Some(_) => {}
        }
    }
    Ok(())
}

/// What the response repeats of the request, and its id.
pub(super) fn echo(body: &Body, given: &Value) -> Map<String, Value> {
    let or = |key: &str, default: Value| match &given[key] {
        Value::Null => default,
        value => value.clone(),
    };
    let mut out = Map::new();
    out.insert("id".into(), json!(new_id("resp")));
    out.insert("object".into(), json!("response"));
    for (key, default) in [
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("max_tool_calls", Value::Null),
        ("metadata", json!({})),
        ("parallel_tool_calls", json!(true)),
        ("previous_response_id", Value::Null),
        ("prompt_cache_key", Value::Null),
        ("reasoning", json!({ "effort": null, "summary": null })),
        ("safety_identifier", Value::Null),
        ("store", json!(true)),
        ("temperature", Value::Null),
        ("text", json!({ "format": { "type": "text" }, "verbosity": "medium" })),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("top_p", Value::Null),
        ("top_logprobs", json!(body.top_logprobs.unwrap_or(0))),
        ("truncation", json!("disabled")),
        ("user", Value::Null),
    ] {
        out.insert(key.into(), or(key, default));
    }
    out.insert("background".into(), json!(false));
    let tier = body.service_tier.as_deref().filter(|tier| *tier != "auto").unwrap_or("default");
    out.insert("service_tier".into(), json!(tier));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::body::part;

    fn request(body: Value) -> Result<ChatRequest> {
        let (body, sampling): (Body, SamplingKeys) = (part(&body, "")?, part(&body, "")?);
        let input = items::of_input(body.input.as_ref(), &|_| None)?;
        chat_request(&body, &sampling, &input, 0)
    }

    #[test]
    fn tools_are_as_templates_know_them_and_may_be_narrowed() {
        let tool =
            |name: &str| json!({ "type": "function", "name": name, "parameters": { "type": "object" } });
        let body = |choice: Value| json!({ "input": "a", "instructions": "b", "tools": [tool("f"), tool("g")], "tool_choice": choice });
        let found = request(body(json!({ "type": "function", "name": "g" }))).unwrap();
        assert_eq!(found.tool_choice, ToolChoice::Function("g".into()));
        assert_eq!(found.tools[0]["function"]["name"], "f");
        assert_eq!(found.messages[0], json!({ "role": "system", "content": "b" }));
        let allowed = json!({ "type": "allowed_tools", "mode": "required", "tools": [{ "type": "function", "name": "g" }] });
        let found = request(body(allowed)).unwrap();
        assert_eq!((found.tools.len(), found.tool_choice), (1, ToolChoice::Required));
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        for (more, name) in [
            (json!({ "background": true }), "background"),
            (json!({ "conversation": "conv_1" }), "conversation"),
            (json!({ "tools": [{ "type": "web_search" }] }), "web_search"),
            (json!({ "include": ["file_search_call.results"] }), "file_search_call.results"),
            (json!({ "truncation": "some" }), "truncation"),
            (json!({ "tool_choice": "maybe" }), "tool_choice"),
            (json!({ "reasoning": { "effort": "much" } }), "reasoning.effort"),
            (json!({ "text": { "format": { "type": "xml" } } }), "`text.format`"),
            (json!({ "text": { "format": { "type": "json_schema" } } }), "`text.format.schema`"),
            (json!({ "text": { "format": { "type": "json_object", "schema": 3 } } }), "`text.format.schema`"),
            (json!({ "max_output_tokens": -7 }), "max_output_tokens"),
            (json!({ "text": { "verbosity": "low" } }), "text.verbosity"),
            (json!({ "reasoning": { "summary": "concise" } }), "reasoning.summary"),
            (json!({ "reasoning": { "summary": "long" } }), "reasoning.summary"),
            (json!({ "max_tool_calls": 3 }), "max_tool_calls"),
            (json!({ "service_tier": "priority" }), "service_tier"),
            (json!({ "service_tier": 7 }), "service_tier"),
            (json!({ "metadata": { "a": 7 } }), "metadata.a"),
            (json!({ "metadata": [] }), "metadata"),
            (json!({ "metadata": { "a": "x".repeat(513) } }), "metadata.a"),
            (json!({ "top_logprobs": 3 }), "top_logprobs"),
            (json!({ "top_logprobs": 129, "include": [LOGPROBS] }), "top_logprobs"),
            (json!({ "temperature": "hot" }), "temperature"),
        ] {
            let mut body = json!({ "input": "a" });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let error = request(body).unwrap_err();
            assert!(error.message.contains(name), "{error}");
        }
        assert!(request(json!({})).unwrap_err().message.contains("`input` is missing"));
    }

    #[test]
    fn tiers_and_efforts_change_what_is_asked() {
        let found = request(json!({
            "input": "a", "service_tier": "flex", "reasoning": { "effort": "minimal", "summary": "auto" },
            "metadata": { "k": "v" }, "text": { "verbosity": "medium" }, "max_tool_calls": null,
        }))
        .unwrap();
        assert_eq!((found.thinking, found.options.priority), (Some(false), -1));
        let found =
            request(json!({ "input": "a", "service_tier": "auto", "reasoning": { "effort": "low" } }));
        let found = found.unwrap();
        assert_eq!((found.thinking, found.options.priority), (None, 0));
    }
}
