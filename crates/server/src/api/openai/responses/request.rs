//! A request's keys: conversion to the inner request, and the keys that the response repeats.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::chat::{response_format, warn_of_ignored};
use super::super::common::{
    check_max_tokens, check_service_tier, check_top_logprobs, new_id, tool_choice_word, wrong_tool_choice,
};
use super::super::tools::{Tool, Tools};
use super::items;
use super::store::Item;
use crate::api::body::text_or_null;
use crate::api::named_effort;
use crate::api::sampling::SamplingKeys;
use crate::api::timing::TimingKeys;
use runner::{ChatRequest, GenerateOptions, ToolChoice};
use runner::{RequestError, Result};

#[derive(Deserialize)]
pub(super) struct ResponseBody {
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
    context_management: Option<Value>,
    // Known keys that are not built. Values that would change the answer are refused.
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

/// Other accepted entries of `include`. Reasoning is in the response unencrypted, and the other
/// entries are about tools that are not offered here.
const INCLUDED: [&str; 7] = [
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.action.sources",
    "web_search_call.results",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
];

impl ResponseBody {
    pub(super) fn wants_logprobs(&self) -> bool {
        self.include.iter().flatten().any(|name| name == LOGPROBS)
    }

    /// Returns true if reasoning is sent as a summary. The summary is the reasoning itself, at any
    /// level of detail.
    pub(super) fn wants_summary(&self) -> bool {
        self.reasoning.as_ref().is_some_and(|reasoning| reasoning.summary.is_some())
    }

    /// Returns true if the oldest messages may be dropped.
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
            return Err(RequestError::unsupported(name));
        }
        if let Some(metadata) = self.metadata.as_ref().filter(|metadata| !metadata.is_null()) {
            check_metadata(metadata)?;
        }
        let verbosity = self.text.as_ref().and_then(|text| text.verbosity.as_deref());
        warn_of_ignored(&[
            ("text.verbosity", verbosity.is_some_and(|verbosity| verbosity != "medium")),
            ("context_management", asks(&self.context_management)),
        ]);
        if self.top_logprobs.is_some_and(|n| n > 0) && !self.wants_logprobs() {
            let message = format!("`top_logprobs` needs `include` to have {LOGPROBS}");
            return Err(RequestError::invalid("top_logprobs", message));
        }
        let is_known = |name: &str| name == LOGPROBS || INCLUDED.contains(&name);
        if let Some((index, other)) =
            self.include.iter().flatten().enumerate().find(|(_, name)| !is_known(name))
        {
            let expected = format!("{LOGPROBS} or {}", INCLUDED.join(", "));
            return Err(RequestError::unsupported_value(format!("include[{index}]"), other, &expected));
        }
        match self.truncation.as_deref() {
            None | Some("disabled" | "auto") => Ok(()),
            Some(other) => {
                let message = format!("`truncation` is {other:?}, expected auto or disabled");
                Err(RequestError::invalid("truncation", message))
            }
        }
    }

    /// The tools, including those that items of the conversation add, and whether they are called.
    fn tools(&self, conversation: &[Item]) -> Result<(Tools, ToolChoice)> {
        let mut tools = Tools::of_responses(self.tools.as_deref().unwrap_or_default())?;
        let brings_tools = |item: &&Item| {
            item["type"]
                .as_str()
                .is_some_and(|kind| ["additional_tools", "tool_search_output"].contains(&kind))
        };
        for item in conversation.iter().filter(brings_tools) {
            let at = format!("{}.tools", item["type"].as_str().unwrap_or_default());
            tools.add_found(&at, item["tools"].as_array().map_or(&[], Vec::as_slice))?;
        }
        let names = |one: &Value| {
            (one["namespace"].as_str().map(str::to_owned), one["name"].as_str().map(str::to_owned))
        };
        let choice = match &self.tool_choice {
            None | Some(Value::Null) => ToolChoice::Auto,
            Some(choice @ Value::Object(_)) => match (choice["type"].as_str(), names(choice)) {
                (Some("function" | "custom"), (namespace, Some(name))) => {
                    ToolChoice::Function(tools.name_of(namespace.as_deref(), &name))
                }
                (Some("allowed_tools"), _) => {
                    let allowed = choice["tools"].as_array().ok_or_else(|| wrong_tool_choice(choice))?;
                    let is_it = |one: &Value, tool: &Tool| match (one["type"].as_str(), names(one)) {
                        (Some("namespace"), (_, name)) => tool.namespace == name,
                        (_, (namespace, name)) => {
                            name.as_deref() == Some(&tool.name)
                                && (namespace.is_none() || namespace == tool.namespace)
                        }
                    };
                    tools.retain(|tool| allowed.iter().any(|one| is_it(one, tool)));
                    tool_choice_word(&choice["mode"])?
                }
                (Some(kind), _) if kind != "function" && kind != "custom" => {
                    let expected = "none, auto, required, a function, a custom tool, or allowed_tools";
                    return Err(RequestError::unsupported_value("tool_choice", kind, expected));
                }
                _ => return Err(wrong_tool_choice(choice)),
            },
            Some(choice) => tool_choice_word(choice)?,
        };
        Ok((tools, choice))
    }

    /// `text.format` in the form of `response_format`.
    fn format(&self) -> Option<Value> {
        let format = self.text.as_ref()?.format.clone()?;
        match format["type"].as_str() {
            Some("json_schema") => Some(json!({ "type": "json_schema", "json_schema": format })),
            _ => Some(format),
        }
    }
}

/// Converts a body to the inner request, and to the tools as the client knows them. The first
/// `n_before` items of the conversation are from earlier requests.
///
/// # Errors
/// A key is wrong, or cannot be honoured.
pub(super) fn chat_request(
    body: &ResponseBody,
    sampling: &SamplingKeys,
    conversation: &[Item],
    n_before: usize,
) -> Result<(ChatRequest, Tools)> {
    body.check()?;
    let n_best = check_top_logprobs("top_logprobs", body.top_logprobs)?;
    let mut options = GenerateOptions {
        max_tokens: check_max_tokens("max_output_tokens", body.max_output_tokens)?,
        logprobs: body.wants_logprobs().then_some(n_best),
        progress: body.timing.progress(body.stream == Some(true)),
        ..GenerateOptions::default()
    };
    sampling.apply(&mut options)?;
    check_service_tier(body.service_tier.as_deref(), &mut options);
    let grammar = sampling.grammar(response_format("text.format", body.format())?)?;
    let (tools, tool_choice) = body.tools(conversation)?;
    let effort = body.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_deref());
    // Instructions hold for this response alone, not for later ones that continue it.
    let instructions = body.instructions.iter().map(|text| json!({ "role": "system", "content": text }));
    let messages: Vec<Value> = instructions.chain(items::messages(conversation, n_before, &tools)?).collect();
    if messages.is_empty() {
        return Err(RequestError::invalid("input", "`input` is missing, expected a text or a list of items"));
    }
    let request = ChatRequest {
        model: body.model.clone(),
        messages,
        tools: tools.list(),
        tool_choice,
        parallel_tool_calls: body.parallel_tool_calls.unwrap_or(true),
        grammar,
        template_variables: body.chat_template_kwargs.clone().unwrap_or_default(),
        effort: effort.and_then(|effort| named_effort("reasoning.effort", effort)),
        options,
        ..ChatRequest::default()
    };
    Ok((request, tools))
}

/// Checks pairs of texts: at most 16, keys of at most 64 characters, values of at most 512.
fn check_metadata(metadata: &Value) -> Result<()> {
    let wrong = |path: String, found: String, expected: &str| {
        let message = format!("`{path}` is {found}, expected {expected}");
        Err(RequestError::invalid(path, message))
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

/// Fields that the response repeats from the request, and its id.
pub(super) fn echo(body: &ResponseBody, given: &Value) -> Map<String, Value> {
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
    use runner::Effort;

    fn request(body: Value) -> Result<ChatRequest> {
        let (body, sampling): (ResponseBody, SamplingKeys) = (part(&body, "")?, part(&body, "")?);
        let input = items::of_input(body.input.as_ref(), &|_| None)?;
        chat_request(&body, &sampling, &input, 0).map(|(request, _)| request)
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
    fn requests_of_codex_are_accepted() {
        let function =
            |name: &str| json!({ "type": "function", "name": name, "parameters": { "type": "object" } });
        let text = |text: &str| json!([{ "type": "input_text", "text": text }]);
        let body = json!({
            "stream": true, "store": false, "tool_choice": "auto", "parallel_tool_calls": true, "max_tool_calls": 3,
            "reasoning": { "summary": "concise", "effort": "xhigh" }, "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "k", "client_metadata": { "x": "y" }, "service_tier": "priority",
            "text": { "verbosity": "low" }, "safety_identifier": "s", "stream_options": { "include_obfuscation": false },
            "tools": [
                function("exec_command"),
                { "type": "namespace", "name": "agents", "tools": [function("close")] },
                { "type": "custom", "name": "apply_patch", "format": { "type": "grammar", "syntax": "lark", "definition": "x" } },
                { "type": "web_search", "external_web_access": false },
                { "type": "tool_search", "execution": "client", "description": "d", "parameters": { "type": "object" } },
            ],
            "input": [
                { "type": "additional_tools", "role": "developer", "tools": [
                    { "type": "namespace", "name": "functions", "tools": [{ "type": "custom", "name": "exec" }] },
                ]},
                { "type": "message", "role": "developer", "content": text("a") },
                { "type": "message", "role": "developer", "content": text("b") },
                { "type": "message", "role": "user", "content": text("c") },
                { "type": "reasoning", "summary": [], "content": null, "encrypted_content": "x" },
                { "type": "web_search_call", "status": "completed", "action": { "type": "search", "query": "q" } },
                { "type": "local_shell_call", "call_id": "1", "action": { "type": "exec", "command": ["ls"] } },
                { "type": "local_shell_call_output", "call_id": "1", "output": "a.txt" },
                { "type": "function_call", "call_id": "2", "namespace": "agents", "name": "close", "arguments": "{}" },
                { "type": "function_call_output", "call_id": "2", "output": "closed" },
                { "type": "custom_tool_call", "call_id": "3", "name": "apply_patch", "input": "*** Begin" },
                { "type": "custom_tool_call_output", "call_id": "3", "output": [{ "type": "input_text", "text": "Done" }] },
                { "type": "tool_search_call", "call_id": "4", "execution": "client", "arguments": { "query": "q" } },
                { "type": "tool_search_output", "call_id": "4", "execution": "client", "tools": [function("found")] },
                { "type": "compaction", "encrypted_content": "x" },
                { "type": "something_new", "text": "x" },
            ],
        });
        let found = request(body).unwrap();
        let names: Vec<&str> =
            found.tools.iter().map(|tool| tool["function"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["exec_command", "agents__close", "apply_patch", "tool_search", "exec", "found"]);
        let call = |index: usize| &found.messages[index]["tool_calls"][0]["function"];
        let roles: Vec<&str> =
            found.messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
        let pair = ["assistant", "tool"];
        assert_eq!(roles, [&["system", "system", "user"][..], &pair, &pair, &pair, &pair].concat());
        assert_eq!(
            (&call(3)["name"], &found.messages[4]["content"]),
            (&json!("local_shell"), &json!("a.txt"))
        );
        assert_eq!(call(5)["name"], "agents__close");
        assert_eq!(call(7)["arguments"], json!({ "input": "*** Begin" }).to_string());
        assert_eq!(
            (&call(9)["name"], &found.messages[8]["content"]),
            (&json!("tool_search"), &json!("Done"))
        );
    }

    #[test]
    fn unsupported_values_are_refused_by_name() {
        for (more, name) in [
            (json!({ "background": true }), "background"),
            (json!({ "conversation": "conv_1" }), "conversation"),
            (json!({ "tools": [{ "name": "f" }] }), "tools[0].type"),
            (json!({ "tool_choice": { "type": "web_search" } }), "tool_choice"),
            (json!({ "include": ["thoughts"] }), "include[0]"),
            (json!({ "truncation": "some" }), "truncation"),
            (json!({ "tool_choice": "maybe" }), "tool_choice"),
            (json!({ "reasoning": { "effort": 7 } }), "reasoning.effort"),
            (json!({ "text": { "format": { "type": "xml" } } }), "`text.format`"),
            (json!({ "text": { "format": { "type": "json_schema" } } }), "`text.format.schema`"),
            (json!({ "text": { "format": { "type": "json_object", "schema": 3 } } }), "`text.format.schema`"),
            (json!({ "max_output_tokens": -7 }), "max_output_tokens"),
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
    fn tiers_and_efforts_change_the_request() {
        let found = request(json!({
            "input": "a", "service_tier": "flex", "reasoning": { "effort": "minimal", "summary": "auto" },
            "metadata": { "k": "v" }, "text": { "verbosity": "medium" }, "max_tool_calls": null,
        }))
        .unwrap();
        assert_eq!((found.effort, found.options.priority), (Some(Effort::Minimal), -1));
        let found =
            request(json!({ "input": "a", "service_tier": "auto", "reasoning": { "effort": "low" } }));
        let found = found.unwrap();
        assert_eq!((found.effort, found.options.priority), (Some(Effort::Low), 0));
    }
}
