//! A request's keys: what is asked of a model, and what the response repeats.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::chat::{reasoning_effort, response_format};
use super::items;
use super::store::new_id;
use crate::api::sampling::SamplingKeys;
use crate::error::{ApiError, Result};
use crate::request::{ChatRequest, GenerateOptions, ToolChoice};

#[derive(Deserialize)]
pub(super) struct Body {
    #[serde(default)]
    model: String,
    pub(super) input: Option<Value>,
    instructions: Option<String>,
    pub(super) previous_response_id: Option<String>,
    max_output_tokens: Option<usize>,
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
    // Known, and not built: refused unless they ask for nothing.
    background: Option<bool>,
    conversation: Option<Value>,
    prompt: Option<Value>,
}

#[derive(Deserialize)]
struct TextKeys {
    format: Option<Value>,
}

#[derive(Deserialize)]
struct ReasoningKeys {
    effort: Option<String>,
}

const LOGPROBS: &str = "message.output_text.logprobs";

impl Body {
    pub(super) fn wants_logprobs(&self) -> bool {
        self.include.iter().flatten().any(|name| name == LOGPROBS)
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
        ];
        if let Some((name, _)) = unbuilt.into_iter().find(|(_, is_asked)| *is_asked) {
            return Err(ApiError::not_built(name));
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
        let wrong = |found: &Value| {
            let expected = "none, auto, required, a function, or allowed_tools";
            ApiError::invalid("tool_choice", format!("`tool_choice` is {found}, expected {expected}"))
        };
        let word = |value: &Value| match value.as_str() {
            Some("auto") => Ok(ToolChoice::Auto),
            Some("none") => Ok(ToolChoice::None),
            Some("required") => Ok(ToolChoice::Required),
            _ => Err(wrong(value)),
        };
        let choice = match &self.tool_choice {
            None | Some(Value::Null) => ToolChoice::Auto,
            Some(choice @ Value::Object(_)) => match (choice["type"].as_str(), choice["name"].as_str()) {
                (Some("function"), Some(name)) => ToolChoice::Function(name.to_owned()),
                (Some("allowed_tools"), _) => {
                    let allowed = choice["tools"].as_array().ok_or_else(|| wrong(choice))?;
                    tools.retain(|tool| allowed.iter().any(|one| one["name"] == tool["function"]["name"]));
                    word(&choice["mode"])?
                }
                _ => return Err(wrong(choice)),
            },
            Some(choice) => word(choice)?,
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

/// What is asked of the model.
///
/// # Errors
/// A key is wrong, or cannot be honoured.
pub(super) fn chat_request(
    body: &Body,
    sampling: &SamplingKeys,
    conversation: &[Value],
) -> Result<ChatRequest> {
    body.check()?;
    let mut options = GenerateOptions {
        max_tokens: body.max_output_tokens,
        logprobs: body.wants_logprobs().then(|| body.top_logprobs.unwrap_or(0)),
        ..GenerateOptions::default()
    };
    sampling.apply(&mut options)?;
    let grammar = sampling.grammar(response_format(body.format())?)?;
    let (tools, tool_choice) = body.tools()?;
    let mut template_variables = body.chat_template_kwargs.clone().unwrap_or_default();
    let effort = body.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_deref());
    let thinking = match effort {
        Some(effort) => reasoning_effort("reasoning.effort", effort, &mut template_variables)?,
        None => None,
    };
    // They hold for this response alone, not for those that go on from it.
    let instructions = body.instructions.iter().map(|text| json!({ "role": "system", "content": text }));
    let messages: Vec<Value> = instructions.chain(items::messages(conversation)?).collect();
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
        ("text", json!({ "format": { "type": "text" } })),
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
    out.insert("service_tier".into(), json!("default"));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::body::part;

    fn request(body: Value) -> Result<ChatRequest> {
        let (body, sampling): (Body, SamplingKeys) = (part(&body, "")?, part(&body, "")?);
        let input = items::of_input(body.input.as_ref(), &|_| None)?;
        chat_request(&body, &sampling, &input)
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
            (json!({ "text": { "format": { "type": "xml" } } }), "response_format"),
            (json!({ "temperature": "hot" }), "temperature"),
        ] {
            let mut body = json!({ "input": "a" });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let error = request(body).unwrap_err();
            assert!(error.message.contains(name), "{error}");
        }
        assert!(request(json!({})).unwrap_err().message.contains("`input` is missing"));
    }
}
