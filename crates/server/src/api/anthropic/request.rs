//! A body of the Messages API as the inner chat request.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use text::Grammar;

use crate::api::body::text_or_null;
use crate::api::sampling::SamplingKeys;
use crate::error::{ApiError, Result};
use crate::images;
use crate::request::{ChatRequest, GenerateOptions, ToolChoice};

#[derive(Deserialize)]
pub(super) struct Body {
    #[serde(default, deserialize_with = "text_or_null")]
    model: String,
    messages: Vec<Value>,
    system: Option<Value>,
    pub(super) max_tokens: Option<i64>,
    pub(super) stream: Option<bool>,
    stop_sequences: Option<Vec<String>>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    thinking: Option<Value>,
    output_config: Option<Value>,
    output_format: Option<Value>,
    // Known, and not built: refused unless they ask for nothing.
    container: Option<Value>,
    context_management: Option<Value>,
    mcp_servers: Option<Vec<Value>>,
    #[serde(flatten)]
    sampling: SamplingKeys,
}

/// The inner request of a body.
pub(super) fn request(body: Body) -> Result<ChatRequest> {
    let mut options =
        GenerateOptions { stop: body.stop_sequences.unwrap_or_default(), ..GenerateOptions::default() };
    if let Some(n) = body.max_tokens {
        match usize::try_from(n) {
            Ok(n) if n > 0 => options.max_tokens = Some(n),
            _ => return wrong("max_tokens", &json!(n), "a number above 0"),
        }
    }
    body.sampling.apply(&mut options)?;
    let edits = |keys: &Value| keys["edits"].as_array().is_some_and(|edits| !edits.is_empty());
    let unbuilt = [
        ("container", body.container.is_some()),
        ("context_management", body.context_management.as_ref().is_some_and(edits)),
        ("mcp_servers", body.mcp_servers.is_some_and(|servers| !servers.is_empty())),
    ];
    if let Some((name, _)) = unbuilt.into_iter().find(|(_, is_asked)| *is_asked) {
        return Err(ApiError::not_built(name));
    }
    let config = body.output_config.unwrap_or_default();
    if !(config.is_object() || config.is_null()) {
        return wrong("output_config", &config, "an object with `effort` and `format`");
    }
    let format = body.output_format.as_ref().filter(|format| !format.is_null());
    let format = match (format, &config["format"]) {
        (Some(format), _) => output_format("output_format", format)?,
        (None, Value::Null) => None,
        (None, format) => output_format("output_config.format", format)?,
    };
    let mut template_variables = Map::new();
    match config["effort"].as_str() {
        None if config["effort"].is_null() => {}
        Some(effort @ ("low" | "medium" | "high" | "max")) => {
            template_variables.insert("reasoning_effort".into(), effort.into());
        }
        _ => return wrong("output_config.effort", &config["effort"], "low, medium, high or max"),
    }
    if body.messages.is_empty() {
        return Err(ApiError::invalid("messages", "`messages` is empty, expected at least one message"));
    }
    let mut messages = Vec::new();
    if let Some(system) = body.system.filter(|system| !system.is_null()) {
        messages.push(json!({ "role": "system", "content": text("system", &system)? }));
    }
    for (index, found) in body.messages.iter().enumerate() {
        message(&format!("messages[{index}]"), found, &mut messages)?;
    }
    let (tool_choice, parallel_tool_calls) = tool_choice(body.tool_choice.as_ref())?;
    let (thinking, thinking_budget) = thinking(body.thinking.as_ref())?;
    // A last message of the assistant is the beginning of the answer.
    let continue_last = messages.last().is_some_and(|last| last["role"] == "assistant");
    let tools = body.tools.unwrap_or_default();
    let grammar = body.sampling.grammar(format)?;
    Ok(ChatRequest {
        model: body.model,
        messages,
        tools: tools.iter().enumerate().map(|(index, found)| tool(index, found)).collect::<Result<_>>()?,
        tool_choice,
        parallel_tool_calls,
        grammar,
        template_variables,
        thinking,
        thinking_budget,
        continue_last,
        without_generation_prompt: false,
        raw_reasoning: false,
        options,
    })
}

/// The grammar of `{"type": "json_schema", "schema"}`.
fn output_format(at: &str, format: &Value) -> Result<Option<Grammar>> {
    match (format["type"].as_str(), &format["schema"]) {
        (Some("json_schema"), schema @ Value::Object(_)) => Ok(Some(Grammar::JsonSchema(schema.clone()))),
        _ => wrong(at, format, "type json_schema with a schema"),
    }
}

fn wrong<T>(param: &str, found: &Value, expected: &str) -> Result<T> {
    Err(ApiError::invalid(param, format!("`{param}` is {found}, expected {expected}")))
}

/// A text, or blocks of text.
fn text(at: &str, content: &Value) -> Result<String> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => {
            let read =
                |(index, block): (usize, &Value)| match (block["type"].as_str(), block["text"].as_str()) {
                    (Some("text"), Some(text)) => Ok(text.to_owned()),
                    _ => wrong(
                        &format!("{at}[{index}].type"),
                        &block["type"],
                        "text: this model takes nothing else",
                    ),
                };
            blocks.iter().enumerate().map(read).collect()
        }
        other => wrong(at, other, "a text or a list of blocks"),
    }
}

/// One message becomes one, and one more for each result of a tool.
fn message(at: &str, message: &Value, out: &mut Vec<Value>) -> Result<()> {
    let role = match message["role"].as_str() {
        Some(role @ ("user" | "assistant")) => role,
        _ => return wrong(&format!("{at}.role"), &message["role"], "user or assistant"),
    };
    let at = format!("{at}.content");
    let Value::Array(blocks) = &message["content"] else {
        out.push(json!({ "role": role, "content": text(&at, &message["content"])? }));
        return Ok(());
    };
    let (mut content, mut reasoning, mut calls) = (Vec::new(), String::new(), Vec::new());
    for (index, block) in blocks.iter().enumerate() {
        let at = format!("{at}[{index}]");
        let string = |key: &str| match block[key].as_str() {
            Some(text) => Ok(text),
            None => wrong(&format!("{at}.{key}"), &block[key], "a text"),
        };
        match (role, block["type"].as_str()) {
            (_, Some("text")) => content.push(json!({ "type": "text", "text": string("text")? })),
            ("user", Some("image")) => {
                match (block["source"]["type"].as_str(), block["source"]["data"].as_str()) {
                    (Some("base64"), Some(data)) => content.push(images::part(data)),
                    (Some("url"), _) => content
                        .push(images::part_of_url(&format!("{at}.source.url"), &block["source"]["url"])?),
                    _ => {
                        return wrong(
                            &format!("{at}.source.type"),
                            &block["source"]["type"],
                            "base64, with data",
                        );
                    }
                }
            }
            ("assistant", Some("thinking")) => reasoning.push_str(string("thinking")?),
            // Only its maker can read it.
            ("assistant", Some("redacted_thinking")) => {}
            ("assistant", Some("tool_use")) => calls.push(json!({
                "id": string("id")?, "type": "function",
                "function": { "name": string("name")?, "arguments": block["input"] },
            })),
            ("user", Some("tool_result")) => {
                let id = string("tool_use_id")?;
                let result = match &block["content"] {
                    Value::Null => String::new(),
                    found => text(&format!("{at}.content"), found)?,
                };
                let failed = block["is_error"].as_bool().unwrap_or(false);
                let result = if failed { format!("Error: {result}") } else { result };
                out.push(json!({ "role": "tool", "tool_call_id": id, "content": result }));
            }
            _ => {
                return wrong(
                    &format!("{at}.type"),
                    &block["type"],
                    "a block that this role may have and this model takes",
                );
            }
        }
    }
    // A message of results alone says nothing else.
    let only_results = role == "user" && content.is_empty() && !blocks.is_empty();
    if !only_results {
        let mut message = json!({ "role": role, "content": images::content(content) });
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        out.push(message);
    }
    Ok(())
}

fn tool(index: usize, tool: &Value) -> Result<Value> {
    let at = format!("tools[{index}]");
    if !matches!(tool["type"].as_str(), None | Some("custom")) {
        return wrong(&format!("{at}.type"), &tool["type"], "custom: tools run where the client is");
    }
    let Some(name) = tool["name"].as_str() else {
        return wrong(&format!("{at}.name"), &tool["name"], "a text");
    };
    if !tool["input_schema"].is_object() {
        return wrong(&format!("{at}.input_schema"), &tool["input_schema"], "a JSON schema");
    }
    let mut function = json!({ "name": name, "parameters": tool["input_schema"] });
    if !tool["description"].is_null() {
        function["description"] = tool["description"].clone();
    }
    Ok(json!({ "type": "function", "function": function }))
}

/// Whether tools are called, and more than one at once.
fn tool_choice(choice: Option<&Value>) -> Result<(ToolChoice, bool)> {
    let Some(choice) = choice.filter(|choice| !choice.is_null()) else { return Ok((ToolChoice::Auto, true)) };
    let parallel = !choice["disable_parallel_tool_use"].as_bool().unwrap_or(false);
    let chosen = match (choice["type"].as_str(), choice["name"].as_str()) {
        (Some("auto"), _) => ToolChoice::Auto,
        (Some("any"), _) => ToolChoice::Required,
        (Some("none"), _) => ToolChoice::None,
        (Some("tool"), Some(name)) => ToolChoice::Function(name.to_owned()),
        _ => return wrong("tool_choice", choice, "type auto, any, none, or tool with a name"),
    };
    Ok((chosen, parallel))
}

fn thinking(thinking: Option<&Value>) -> Result<(Option<bool>, Option<usize>)> {
    let Some(thinking) = thinking.filter(|thinking| !thinking.is_null()) else { return Ok((None, None)) };
    match (thinking["type"].as_str(), thinking["budget_tokens"].as_u64()) {
        (Some("disabled"), _) => Ok((Some(false), None)),
        // The model decides, as its template has it.
        (Some("adaptive"), _) => Ok((None, None)),
        (Some("enabled"), Some(budget)) if budget > 0 => Ok((Some(true), usize::try_from(budget).ok())),
        _ => wrong("thinking", thinking, "type disabled, adaptive, or enabled with budget_tokens above 0"),
    }
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
            "model": "m", "max_tokens": 5, "stop_sequences": ["x"], "top_k": 3,
            "system": [{ "type": "text", "text": "s" }],
            "tools": [{ "name": "f", "input_schema": { "type": "object" } }],
            "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
            "thinking": { "type": "enabled", "budget_tokens": 9 },
            "guided_regex": "[a-z]+",
            "messages": [
                { "role": "user", "content": "a" },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "t", "signature": "" },
                    { "type": "tool_use", "id": "1", "name": "f", "input": { "k": 1 } },
                ]},
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "1", "is_error": true, "content": "no" },
                    { "type": "text", "text": "go on" },
                ]},
            ],
        }))
        .unwrap();
        let roles: Vec<_> =
            request.messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool", "user"]);
        assert_eq!(request.messages[2]["tool_calls"][0]["function"]["arguments"]["k"], 1);
        assert_eq!(request.messages[2]["reasoning_content"], "t");
        assert_eq!(request.messages[3]["content"], "Error: no");
        assert_eq!((request.tool_choice, request.parallel_tool_calls), (ToolChoice::Required, false));
        assert_eq!((request.thinking, request.thinking_budget), (Some(true), Some(9)));
        assert_eq!((request.options.max_tokens, request.options.sampling.top_k), (Some(5), 3));
        assert_eq!(request.options.stop, ["x"]);
        assert!(!request.continue_last && request.grammar.is_some());
    }

    #[test]
    fn answers_may_have_a_schema_and_an_effort() {
        let schema = json!({ "type": "object" });
        let format = json!({ "type": "json_schema", "schema": schema });
        let user = json!([{ "role": "user", "content": "a" }]);
        for body in [
            json!({ "messages": user, "output_format": format }),
            json!({ "messages": user, "output_config": { "format": format, "effort": "high" } }),
        ] {
            assert_eq!(read(body).unwrap().grammar, Some(Grammar::JsonSchema(schema.clone())));
        }
        let request = read(json!({ "messages": user, "output_config": { "effort": "low" } })).unwrap();
        assert_eq!(
            (request.template_variables["reasoning_effort"].as_str(), request.grammar),
            (Some("low"), None)
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        let user = json!([{ "role": "user", "content": "a" }]);
        let image = json!([{ "role": "user", "content": [{ "type": "image", "source": {} }] }]);
        for (body, param) in [
            (json!({ "messages": [] }), "messages"),
            (json!({ "messages": [{ "role": "system", "content": "a" }] }), "messages[0].role"),
            (json!({ "messages": image }), "messages[0].content[0].source.type"),
            (json!({ "messages": user, "max_tokens": 0 }), "max_tokens"),
            (json!({ "messages": user, "tools": [{ "name": "f" }] }), "tools[0].input_schema"),
            (json!({ "messages": user, "tool_choice": { "type": "tool" } }), "tool_choice"),
            (json!({ "messages": user, "thinking": { "type": "enabled" } }), "thinking"),
            (json!({ "messages": user, "mcp_servers": [{ "type": "url" }] }), "mcp_servers"),
            (
                json!({ "messages": user, "context_management": { "edits": [{ "type": "x" }] } }),
                "context_management",
            ),
            (json!({ "messages": user, "output_format": {} }), "output_format"),
            (json!({ "messages": user, "output_config": { "format": 7 } }), "output_config.format"),
            (json!({ "messages": user, "output_config": "high" }), "output_config"),
            (json!({ "messages": user, "output_config": [] }), "output_config"),
            (json!({ "messages": user, "output_config": { "effort": "much" } }), "output_config.effort"),
        ] {
            assert_eq!(read(body).unwrap_err().param.as_deref(), Some(param));
        }
    }
}
