//! Items of a conversation, and their conversion to messages for templates.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::super::common::new_id;
use super::super::files::File;
use super::super::tools::{Tools, arguments_of};
use super::store::Item;
use runner::images;
use runner::{RequestError, Result};

/// The items of `input`, each with an id and in its full form. `known` resolves references.
pub(super) fn of_input(input: Option<&Value>, known: &dyn Fn(&str) -> Option<Item>) -> Result<Vec<Item>> {
    let item = |index: usize, item: &Value| {
        let mut item = item.clone();
        let path = format!("input[{index}]");
        let Some(object) = item.as_object_mut() else {
            return Err(wrong(&path, &item, "an object"));
        };
        if object.get("type").and_then(Value::as_str) == Some("item_reference") {
            let id = object.get("id").and_then(Value::as_str).unwrap_or_default();
            return known(id).ok_or_else(|| {
                RequestError::invalid(
                    path.clone(),
                    format!("`{path}` refers to `{id}`, which is not known here"),
                )
            });
        }
        if !object.contains_key("type") {
            object.insert("type".into(), json!("message"));
        }
        let prefix = match object.get("type").and_then(Value::as_str) {
            Some("function_call") => "fc",
            Some("function_call_output") => "fco",
            Some("custom_tool_call") => "ctc",
            Some("custom_tool_call_output") => "ctco",
            Some("reasoning") => "rs",
            Some("message") => "msg",
            _ => "item",
        };
        if object.get("id").is_none_or(Value::is_null) {
            object.insert("id".into(), json!(new_id(prefix)));
        }
        if object.get("type").is_some_and(|kind| kind == "message") {
            fill_in(object);
        }
        Ok(Arc::new(item))
    };
    match input {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(text @ Value::String(_)) => {
            Ok(vec![item(0, &json!({ "type": "message", "role": "user", "content": text }))?])
        }
        Some(Value::Array(items)) => items.iter().enumerate().map(|(i, given)| item(i, given)).collect(),
        Some(other) => Err(wrong("input", other, "a text or a list of items")),
    }
}

/// Expands the short form of a message, so that it can be listed.
fn fill_in(message: &mut Map<String, Value>) {
    if let Some(Value::String(text)) = message.get("content") {
        let part = match message.get("role").and_then(Value::as_str) {
            Some("assistant") => json!({ "type": "output_text", "text": text, "annotations": [] }),
            _ => json!({ "type": "input_text", "text": text }),
        };
        message.insert("content".into(), json!([part]));
    }
    message.entry("status").or_insert_with(|| json!("completed"));
}

/// Replaces each `file_id` by the image that it names. The first `n_before` items are from earlier
/// requests.
///
/// # Errors
/// There is no such file.
pub(super) fn with_files(
    items: Vec<Item>,
    n_before: usize,
    file: &dyn Fn(&str) -> Result<Arc<File>>,
) -> Result<Vec<Item>> {
    let is_named = |part: &Value| part["type"] == "input_image" && !part["file_id"].is_null();
    let of_item = |(index, item): (usize, Item)| {
        let keys = ["content", "output"];
        let has_one = |key: &&str| item[*key].as_array().is_some_and(|parts| parts.iter().any(is_named));
        let Some(key) = keys.into_iter().find(has_one) else { return Ok(item) };
        let path = item_path(index, n_before);
        let mut item = Value::clone(&item);
        for (index, part) in item[key].as_array_mut().into_iter().flatten().enumerate() {
            if !is_named(part) {
                continue;
            }
            let path = format!("{path}.{key}[{index}].file_id");
            let id = part["file_id"].as_str().ok_or_else(|| wrong(&path, &part["file_id"], "a file's id"))?;
            let file = file(id).map_err(|error| RequestError { param: Some(path), ..error })?;
            let url = format!("data:;base64,{}", STANDARD.encode(&file.bytes));
            *part = json!({ "type": "input_image", "image_url": url });
        }
        Ok(Arc::new(item))
    };
    items.into_iter().enumerate().map(of_item).collect()
}

/// Path of an item, for messages.
fn item_path(index: usize, n_before: usize) -> String {
    match index.checked_sub(n_before) {
        Some(index) => format!("input[{index}]"),
        None => format!("previous_response_id.items[{index}]"),
    }
}

/// Converts a conversation to messages of [`crate::ChatRequest`]. The first `n_before` items are
/// from earlier requests. Items that no model here could have written, such as those of OpenAI's
/// own tools, are skipped.
pub(super) fn messages(items: &[Item], n_before: usize, tools: &Tools) -> Result<Vec<Value>> {
    let mut messages: Vec<Value> = Vec::new();
    // Reasoning belongs to the next answer, which is of the same turn.
    let mut reasoning: Option<String> = None;
    for (index, item) in items.iter().enumerate() {
        let path = item_path(index, n_before);
        match item["type"].as_str() {
            Some("message") => {
                let role = match item["role"].as_str() {
                    Some("developer") => "system",
                    Some(role @ ("system" | "user" | "assistant")) => role,
                    _ => {
                        return Err(wrong(
                            &format!("{path}.role"),
                            &item["role"],
                            "user, assistant, system or developer",
                        ));
                    }
                };
                let content = content(&format!("{path}.content"), &item["content"], false)?;
                let mut message = json!({ "role": role, "content": content });
                if let Some(reasoning) = reasoning.take().filter(|_| role == "assistant") {
                    message["reasoning_content"] = json!(reasoning);
                }
                messages.push(message);
            }
            // Its tools were added to the request's.
            Some("additional_tools") => {}
            Some("agent_message") => {
                let parts = item["content"].as_array().into_iter().flatten();
                let text: String = parts.filter_map(|part| part["text"].as_str()).collect();
                messages.push(json!({ "role": "user", "content": text }));
            }
            Some(kind) if kind.ends_with("_output") && item["call_id"].is_string() => {
                reasoning = None;
                let content = match &item["output"] {
                    Value::Null => item["tools"].to_string().into(),
                    other @ (Value::Object(_) | Value::Bool(_) | Value::Number(_)) => {
                        other.to_string().into()
                    }
                    output => content(&format!("{path}.output"), output, true)?,
                };
                messages.push(json!({ "role": "tool", "tool_call_id": item["call_id"], "content": content }));
            }
            Some("function_call_output" | "custom_tool_call_output") => {
                return Err(wrong(&format!("{path}.call_id"), &item["call_id"], "a call's id"));
            }
            Some("function_call" | "custom_tool_call") => {
                push_call(call(&path, item, tools)?, &mut reasoning, &mut messages)
            }
            // A call of a tool with another form of calls.
            Some(kind) if kind.ends_with("_call") && item["call_id"].is_string() => {
                let arguments =
                    ["arguments", "action", "operation"].into_iter().find(|key| item[key].is_object());
                let arguments = arguments.map_or_else(|| json!({}), |key| item[key].clone());
                let name = tools.name_of(None, kind.trim_end_matches("_call"));
                let function = json!({ "name": name, "arguments": arguments.to_string() });
                let call = json!({ "id": item["call_id"], "type": "function", "function": function });
                push_call(call, &mut reasoning, &mut messages);
            }
            Some("reasoning") => {
                let parts = |key: &str| item[key].as_array().cloned().unwrap_or_default();
                let found = [parts("content"), parts("summary")].into_iter().find(|parts| !parts.is_empty());
                let texts =
                    found.into_iter().flatten().filter_map(|part| part["text"].as_str().map(str::to_owned));
                reasoning = Some(texts.collect::<String>()).filter(|text| !text.is_empty());
            }
            Some(kind) => {
                tracing::debug!("`{path}` is left out: items of type {kind:?} are not supported")
            }
            None => return Err(wrong(&format!("{path}.type"), &item["type"], "an item's type")),
        }
    }
    Ok(messages)
}

/// Converts a call of a function or of a custom tool for templates.
fn call(path: &str, item: &Value, tools: &Tools) -> Result<Value> {
    let key =
        |key: &str| item[key].as_str().ok_or_else(|| wrong(&format!("{path}.{key}"), &item[key], "a text"));
    let arguments = match item["type"] == "custom_tool_call" {
        true => arguments_of(key("input")?),
        false => key("arguments")?.to_owned(),
    };
    let name = tools.name_of(item["namespace"].as_str(), key("name")?);
    let function = json!({ "name": name, "arguments": arguments });
    Ok(json!({ "id": key("call_id")?, "type": "function", "function": function }))
}

/// Appends a call. Calls of one answer form one message, with the text before them.
fn push_call(call: Value, reasoning: &mut Option<String>, messages: &mut Vec<Value>) {
    let mut message = match messages.pop_if(|last| last["role"] == "assistant") {
        Some(message) => message,
        None => json!({ "role": "assistant", "content": "" }),
    };
    match message["tool_calls"].as_array_mut() {
        Some(calls) => calls.push(call),
        None => message["tool_calls"] = json!([call]),
    }
    if let Some(reasoning) = reasoning.take() {
        let before = message["reasoning_content"].as_str().map(|before| format!("{before}\n"));
        message["reasoning_content"] = json!(before.unwrap_or_default() + &reasoning);
    }
    messages.push(message);
}

/// Converts a content: a text, or parts of text and images. In a tool's result, a note replaces an
/// image that the model cannot see.
fn content(path: &str, content: &Value, of_tool: bool) -> Result<Value> {
    let text = |text: &str| json!({ "type": "text", "text": text });
    let part = |(index, part): (usize, &Value)| match (part["type"].as_str(), part["text"].as_str()) {
        (Some("input_text" | "output_text" | "text"), Some(found)) => Ok(text(found)),
        (Some("refusal"), _) => Ok(text(part["refusal"].as_str().unwrap_or_default())),
        // Only OpenAI can decrypt it.
        (Some("encrypted_content"), _) => Ok(text("")),
        // The model decides the resolution itself, so `detail` has no effect.
        (Some("input_image"), _) => {
            let mut image = images::part_of_url(&format!("{path}[{index}].image_url"), &part["image_url"])?;
            if of_tool {
                image["or_note"] = true.into();
            }
            Ok(image)
        }
        (Some(kind @ ("input_file" | "input_audio")), _) => Err(RequestError::unsupported_value(
            format!("{path}[{index}].type"),
            kind,
            "input_text or input_image",
        )),
        _ => Err(wrong(
            &format!("{path}[{index}]"),
            part,
            "a part with type input_text and text, or input_image and image_url",
        )),
    };
    match content {
        Value::String(_) => Ok(content.clone()),
        Value::Array(parts) => {
            Ok(images::content(parts.iter().enumerate().map(part).collect::<Result<_>>()?))
        }
        other => Err(wrong(path, other, "a text or a list of parts")),
    }
}

fn wrong(path: &str, found: &Value, expected: &str) -> RequestError {
    RequestError::invalid(path, format!("`{path}` is {found}, expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_reasoning_become_one_message_of_the_assistant() {
        let input = json!([
            { "role": "developer", "content": "Be brief." },
            { "role": "user", "content": [{ "type": "input_text", "text": "Weather" }, { "type": "input_text", "text": "?" }] },
            { "type": "reasoning", "summary": [], "content": [{ "type": "reasoning_text", "text": "Hm." }] },
            { "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}" },
            { "type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "c1", "output": "sunny" },
            { "type": "item_reference", "id": "msg_x" },
        ]);
        let known = |id: &str| {
            (id == "msg_x").then(|| {
                Arc::new(json!({ "type": "message", "id": id, "role": "assistant", "content": "Yes." }))
            })
        };
        let items = of_input(Some(&input), &known).unwrap();
        assert!(items.iter().all(|item| item["id"].is_string()));
        let found = messages(&items, 0, &Tools::default()).unwrap();
        let call = |id: &str, name: &str| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": "{}" } });
        assert_eq!(
            json!(found),
            json!([
                { "role": "system", "content": "Be brief." },
                { "role": "user", "content": "Weather?" },
                { "role": "assistant", "content": "", "tool_calls": [call("c1", "f"), call("c2", "g")], "reasoning_content": "Hm." },
                { "role": "tool", "tool_call_id": "c1", "content": "sunny" },
                { "role": "assistant", "content": "Yes." },
            ])
        );
    }

    #[test]
    fn errors_name_the_path() {
        let error = |input: Value| {
            let items = of_input(Some(&input), &|_| None);
            items.and_then(|items| messages(&items, 0, &Tools::default())).unwrap_err().to_string()
        };
        assert!(error(json!(7)).contains("`input` is 7"));
        assert!(error(json!([{ "role": "nobody", "content": "a" }])).contains("`input[0].role`"));
        let part = |part: Value| json!([{ "role": "user", "content": [part] }]);
        let image = part(json!({ "type": "input_image", "image_url": "https://example.org/a.png" }));
        let found = error(image);
        assert!(
            found.contains("`input[0].content[0].image_url`") && found.contains("not downloaded"),
            "{found}"
        );
        let file = part(json!({ "type": "input_file", "file_id": "f" }));
        assert!(error(file).contains("`input[0].content[0].type` is input_file"));
        assert!(error(json!([{ "type": "item_reference", "id": "gone" }])).contains("`gone`"));
        assert!(
            error(json!([{ "type": "function_call_output", "output": "" }])).contains("`input[0].call_id`")
        );
    }

    #[test]
    fn images_may_be_named_by_their_files() {
        let image = json!({ "type": "input_image", "file_id": "f" });
        let given = json!([
            { "role": "user", "content": [{ "type": "input_text", "text": "a" }, image] },
            { "type": "function_call_output", "call_id": "c1", "output": [image] },
        ]);
        let items = of_input(Some(&given), &|_| None).unwrap();
        let file = |id: &str| match id {
            "f" => Ok(Arc::new(File::of_bytes(b"ABC"))),
            _ => Err(RequestError::new(runner::ErrorKind::NotFound, "none")),
        };
        let found = messages(&with_files(items.clone(), 0, &file).unwrap(), 0, &Tools::default()).unwrap();
        let image = json!({ "type": "image", "data": "QUJD" });
        assert_eq!((&found[0]["content"][1], &found[1]["content"][0]["data"]), (&image, &image["data"]));
        assert_eq!(items[0]["content"][1]["file_id"], "f", "what is kept names the file");
        let error = with_files(items, 1, &|_| file("gone")).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("previous_response_id.items[0].content[1].file_id"));
    }

    #[test]
    fn images_are_parts_of_their_messages_and_of_results() {
        let image =
            json!({ "type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,QUJD" });
        let look = json!({ "type": "input_text", "text": "Look:" });
        let input = json!([
            { "role": "user", "content": [look, image] },
            { "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "c1", "output": [image] },
        ]);
        let found = messages(&of_input(Some(&input), &|_| None).unwrap(), 0, &Tools::default()).unwrap();
        let image = json!({ "type": "image", "data": "QUJD" });
        assert_eq!(found[0]["content"], json!([{ "type": "text", "text": "Look:" }, image]));
        assert_eq!(found[2]["content"], json!([{ "type": "image", "data": "QUJD", "or_note": true }]));
    }

    #[test]
    fn reasoning_stays_in_its_turn() {
        let input = json!([
            { "type": "reasoning", "content": [{ "type": "reasoning_text", "text": "Cut off." }] },
            { "role": "user", "content": "Again" },
            { "role": "assistant", "content": "Yes." },
            { "type": "reasoning", "summary": [{ "type": "summary_text", "text": "Look." }] },
            { "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "c1", "output": "sunny" },
            { "role": "assistant", "content": "Sunny." },
        ]);
        let found = messages(&of_input(Some(&input), &|_| None).unwrap(), 0, &Tools::default()).unwrap();
        let thoughts: Vec<&Value> = found.iter().map(|message| &message["reasoning_content"]).collect();
        assert_eq!(json!(thoughts), json!([null, "Look.", null, null]));
        assert_eq!(found[1]["tool_calls"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn messages_are_listed_in_their_full_form() {
        let input = json!([{ "role": "user", "content": "a" }, { "role": "assistant", "content": "b" }]);
        let items = of_input(Some(&input), &|_| None).unwrap();
        assert_eq!(items[0]["content"], json!([{ "type": "input_text", "text": "a" }]));
        assert_eq!(items[1]["content"][0]["type"], "output_text");
        assert_eq!((&items[0]["type"], &items[0]["status"]), (&json!("message"), &json!("completed")));
    }

    #[test]
    fn an_index_counts_the_request_s_own_items() {
        let input = json!([{ "role": "user", "content": "a" }, { "role": "nobody", "content": "a" }]);
        let items = of_input(Some(&input), &|_| None).unwrap();
        assert_eq!(
            messages(&items, 1, &Tools::default()).unwrap_err().param.as_deref(),
            Some("input[0].role")
        );
    }
}
