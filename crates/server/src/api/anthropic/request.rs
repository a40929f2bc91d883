//! Conversion of a Messages body to the inner chat request.

use serde::Deserialize;
use serde_json::{Value, json};
use text::Grammar;

use super::blocks::{message, system};
use super::error::wrong;
use crate::api::body::text_or_null;
use crate::api::sampling::SamplingKeys;
use runner::{ChatRequest, GenerateOptions, ToolChoice};
use runner::{RequestError, Result};

#[derive(Deserialize)]
pub(super) struct MessagesBody {
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
    // Keys that only Anthropic's servers can honour. An answer without them is still useful, so
    // they are ignored.
    container: Option<Value>,
    context_management: Option<Value>,
    mcp_servers: Option<Value>,
    #[serde(flatten)]
    sampling: SamplingKeys,
}

/// Converts a body to the inner request.
pub(super) fn request(body: MessagesBody) -> Result<ChatRequest> {
    let mut options =
        GenerateOptions { stop: body.stop_sequences.unwrap_or_default(), ..GenerateOptions::default() };
    if let Some(n) = body.max_tokens {
        match usize::try_from(n) {
            Ok(n) if n > 0 => options.max_tokens = Some(n),
            _ => return wrong("max_tokens", &json!(n), "a number above 0"),
        }
    }
    body.sampling.apply(&mut options)?;
    let hosted = [
        ("container", body.container.is_some_and(|container| !container.is_null())),
        ("context_management", body.context_management.as_ref().is_some_and(asks_for_edits)),
        (
            "mcp_servers",
            body.mcp_servers.is_some_and(|list| list.as_array().is_none_or(|list| !list.is_empty())),
        ),
    ];
    for (name, _) in hosted.into_iter().filter(|(_, is_asked)| *is_asked) {
        tracing::warn!("`{name}` is ignored: it is not offered here");
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
    let effort = match &config["effort"] {
        Value::Null => None,
        Value::String(word) => crate::api::named_effort("output_config.effort", word),
        other => return wrong("output_config.effort", other, "an effort such as low, medium, high or max"),
    };
    if body.messages.is_empty() {
        return Err(RequestError::invalid("messages", "`messages` is empty, expected at least one message"));
    }
    let mut messages = Vec::new();
    if let Some(found) = body.system.filter(|system| !system.is_null()) {
        messages.push(json!({ "role": "system", "content": system("system", &found)? }));
    }
    for (index, found) in body.messages.iter().enumerate() {
        message(&format!("messages[{index}]"), found, &mut messages)?;
    }
    let (tool_choice, parallel_tool_calls) = tool_choice(body.tool_choice.as_ref())?;
    let (thinking, thinking_budget) = thinking(body.thinking.as_ref())?;
    // A last message of the assistant is the start of the answer.
    let continue_last = messages.last().is_some_and(|last| last["role"] == "assistant");
    let tools = body.tools.unwrap_or_default();
    let tools = tools.iter().enumerate().map(|(index, found)| tool(index, found));
    let tools: Vec<Option<Value>> = tools.collect::<Result<_>>()?;
    let grammar = body.sampling.grammar(format)?;
    Ok(ChatRequest {
        model: body.model,
        messages,
        tools: tools.into_iter().flatten().collect(),
        tool_choice,
        parallel_tool_calls,
        grammar,
        effort,
        thinking,
        thinking_budget,
        continue_last,
        options,
        ..ChatRequest::default()
    })
}

/// The grammar of `{"type": "json_schema", "schema"}`.
fn output_format(at: &str, format: &Value) -> Result<Option<Grammar>> {
    match (format["type"].as_str(), &format["schema"]) {
        (Some("json_schema"), schema @ Value::Object(_)) => Ok(Some(Grammar::JsonSchema(schema.clone()))),
        _ => wrong(at, format, "type json_schema with a schema"),
    }
}

/// Returns true if the request edits the conversation. Edits are ignored: earlier tokens are cache
/// hits, so they cost little.
fn asks_for_edits(keys: &Value) -> bool {
    let changes = |edit: &Value| edit["type"] != "clear_thinking_20251015" || edit["keep"] != "all";
    keys["edits"].as_array().is_some_and(|edits| edits.iter().any(changes))
}

/// Converts a tool for templates; `None` for a tool that only Anthropic's servers or models have.
fn tool(index: usize, tool: &Value) -> Result<Option<Value>> {
    let at = format!("tools[{index}]");
    match &tool["type"] {
        Value::Null => {}
        Value::String(kind) if kind == "custom" => {}
        Value::String(kind) => {
            let found = client_tool(kind, tool);
            if found.is_none() {
                tracing::warn!(
                    "`{at}` is left out: only Anthropic's servers or models have tools of type {kind:?}"
                );
            }
            return Ok(found);
        }
        other => return wrong(&format!("{at}.type"), other, "a text"),
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
    Ok(Some(json!({ "type": "function", "function": function })))
}

/// Converts a tool of Anthropic that the client runs. Anthropic's models know its parameters, so
/// requests omit them.
fn client_tool(kind: &str, tool: &Value) -> Option<Value> {
    let (name, description, properties, required) = match kind.rsplit_once('_').map_or(kind, |(name, _)| name)
    {
        "bash" => (
            "bash",
            "Runs a command in a persistent shell and returns its output.",
            json!({ "command": { "type": "string" }, "restart": { "type": "boolean" } }),
            json!([]),
        ),
        "text_editor" => (
            "str_replace_based_edit_tool",
            "Views and edits files. `view` needs a path, `create` file_text, `str_replace` old_str and new_str, `insert` \
             insert_line and insert_text.",
            json!({
                "command": { "enum": ["view", "create", "str_replace", "insert"] }, "path": { "type": "string" },
                "file_text": { "type": "string" }, "old_str": { "type": "string" }, "new_str": { "type": "string" },
                "insert_line": { "type": "integer" }, "insert_text": { "type": "string" },
                "view_range": { "type": "array", "items": { "type": "integer" } },
            }),
            json!(["command", "path"]),
        ),
        "memory" => (
            "memory",
            "Views and edits files below /memories, which are kept between conversations. `view` and `delete` need a path, `create` \
             file_text, `str_replace` old_str and new_str, `insert` insert_line and insert_text, `rename` old_path and new_path.",
            json!({
                "command": { "enum": ["view", "create", "str_replace", "insert", "delete", "rename"] },
                "path": { "type": "string" }, "file_text": { "type": "string" }, "old_str": { "type": "string" },
                "new_str": { "type": "string" }, "insert_line": { "type": "integer" },
                "insert_text": { "type": "string" }, "old_path": { "type": "string" },
                "new_path": { "type": "string" }, "view_range": { "type": "array", "items": { "type": "integer" } },
            }),
            json!(["command"]),
        ),
        _ => return None,
    };
    let name = tool["name"].as_str().unwrap_or(name);
    let parameters = json!({
        "type": "object", "properties": properties, "required": required, "additionalProperties": false,
    });
    let function = json!({ "name": name, "description": description, "parameters": parameters });
    Some(json!({ "type": "function", "function": function }))
}

/// Reads whether tools are called, and whether several may be called at once.
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
        // The model decides, by the default of its template.
        (Some("adaptive"), _) => Ok((None, None)),
        (Some(kind), _) if kind != "enabled" => {
            tracing::warn!("`thinking.type` {kind:?} is treated as adaptive");
            Ok((None, None))
        }
        (Some("enabled"), Some(budget)) if budget > 0 => Ok((Some(true), usize::try_from(budget).ok())),
        _ => wrong("thinking", thinking, "type disabled, adaptive, or enabled with budget_tokens above 0"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner::Effort;

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
        let effort = |word: &str| {
            let request = read(json!({ "messages": user, "output_config": { "effort": word } })).unwrap();
            request.effort
        };
        assert_eq!((effort("low"), effort("xhigh")), (Some(Effort::Low), Some(Effort::XHigh)));
        assert_eq!((effort("ultracode"), effort("much")), (Some(Effort::Max), None));
    }

    #[test]
    fn requests_of_claude_code_are_accepted() {
        let text =
            |text: &str| json!({ "type": "text", "text": text, "cache_control": { "type": "ephemeral" } });
        let request = read(json!({
            "model": "m", "max_tokens": 32000, "stream": true, "speed": "fast", "service_tier": "auto",
            "system": [text("x-anthropic-billing-header: cc_version=2.1.197.123;"), text("s")],
            "messages": [
                { "role": "user", "content": [text("a")] }, { "role": "system", "content": "b" },
            ],
            "metadata": { "user_id": "u" }, "thinking": { "type": "adaptive" },
            "context_management": { "edits": [{ "type": "clear_thinking_20251015", "keep": "all" }] },
            "output_config": { "effort": "high" }, "mcp_servers": [], "container": null,
            "tools": [
                { "name": "f", "input_schema": { "type": "object" }, "cache_control": { "type": "ephemeral" } },
                { "type": "web_search_20250305", "name": "web_search", "max_uses": 8 },
                { "type": "bash_20250124", "name": "bash" }, { "type": "memory_20250818", "name": "memory" },
                { "type": "computer_20250124", "name": "computer" },
            ],
        }))
        .unwrap();
        assert_eq!(request.messages[0], json!({ "role": "system", "content": "s" }));
        assert_eq!(request.messages[2], json!({ "role": "system", "content": "b" }));
        let names: Vec<&str> =
            request.tools.iter().map(|tool| tool["function"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["f", "bash", "memory"]);
        let user = json!([{ "role": "user", "content": "a" }]);
        for hosted in [
            json!({ "messages": user, "mcp_servers": [{ "type": "url" }] }),
            json!({ "messages": user, "container": "c" }),
            json!({ "messages": user, "context_management": { "edits": [{ "type": "x" }] } }),
            json!({ "messages": user, "thinking": { "type": "auto" } }),
        ] {
            assert!(read(hosted).is_ok());
        }
    }

    #[test]
    fn errors_name_the_value() {
        let user = json!([{ "role": "user", "content": "a" }]);
        let image = json!([{ "role": "user", "content": [{ "type": "image", "source": {} }] }]);
        for (body, param) in [
            (json!({ "messages": [] }), "messages"),
            (json!({ "messages": [{ "role": "robot", "content": "a" }] }), "messages[0].role"),
            (json!({ "messages": image }), "messages[0].content[0].source.type"),
            (json!({ "messages": user, "max_tokens": 0 }), "max_tokens"),
            (json!({ "messages": user, "tools": [{ "name": "f" }] }), "tools[0].input_schema"),
            (json!({ "messages": user, "tool_choice": { "type": "tool" } }), "tool_choice"),
            (json!({ "messages": user, "thinking": { "type": "enabled" } }), "thinking"),
            (json!({ "messages": user, "output_format": {} }), "output_format"),
            (json!({ "messages": user, "output_config": { "format": 7 } }), "output_config.format"),
            (json!({ "messages": user, "output_config": "high" }), "output_config"),
            (json!({ "messages": user, "output_config": [] }), "output_config"),
            (json!({ "messages": user, "output_config": { "effort": 7 } }), "output_config.effort"),
        ] {
            assert_eq!(read(body).unwrap_err().param.as_deref(), Some(param));
        }
    }
}
