//! Messages of this API, made of blocks, converted for chat templates.

use serde_json::{Value, json};

use super::error::wrong;
use runner::images;
use runner::{RequestError, Result};

/// Start of the blocks for Anthropic's accounting. They differ between conversations, so no prefix
/// after them would be a cache hit.
const BILLING: &str = "x-anthropic-billing-header:";

/// Text of a system prompt, given as blocks or as one text.
pub(super) fn system(at: &str, content: &Value) -> Result<String> {
    let is_billing = |text: &Value| text.as_str().is_some_and(|text| text.starts_with(BILLING));
    match content {
        Value::Array(blocks) => {
            let blocks: Vec<(usize, &Value)> =
                blocks.iter().enumerate().filter(|(_, block)| !is_billing(&block["text"])).collect();
            blocks.into_iter().map(|(index, block)| text_of(&format!("{at}[{index}]"), block)).collect()
        }
        Value::String(text) if is_billing(content) => {
            Ok(text.split_once('\n').map_or("", |(_, rest)| rest).to_owned())
        }
        other => text(at, other),
    }
}

/// Text of a content: a string, or blocks of text.
fn text(at: &str, content: &Value) -> Result<String> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => {
            let read = |(index, block)| text_of(&format!("{at}[{index}]"), block);
            blocks.iter().enumerate().map(read).collect()
        }
        other => wrong(at, other, "a text or a list of blocks"),
    }
}

fn text_of(at: &str, block: &Value) -> Result<String> {
    match (block["type"].as_str(), block["text"].as_str()) {
        (Some("text"), Some(text)) => Ok(text.to_owned()),
        (Some("text"), None) => wrong(&format!("{at}.text"), &block["text"], "a text"),
        _ => wrong(&format!("{at}.type"), &block["type"], "text; no other type is allowed here"),
    }
}

/// Converts a message to one message, and one more for each result of a tool.
pub(super) fn message(at: &str, message: &Value, out: &mut Vec<Value>) -> Result<()> {
    match message["role"].as_str() {
        Some("user") => user(&format!("{at}.content"), &message["content"], out),
        Some("assistant") => assistant(&format!("{at}.content"), &message["content"], out),
        Some("system") => {
            let text = system(&format!("{at}.content"), &message["content"])?;
            if !text.is_empty() {
                out.push(json!({ "role": "system", "content": text }));
            }
            Ok(())
        }
        _ => wrong(&format!("{at}.role"), &message["role"], "user, assistant or system"),
    }
}

fn user(at: &str, content: &Value, out: &mut Vec<Value>) -> Result<()> {
    let Value::Array(blocks) = content else {
        out.push(json!({ "role": "user", "content": text(at, content)? }));
        return Ok(());
    };
    let mut parts = Vec::new();
    for (index, block) in blocks.iter().enumerate() {
        let at = format!("{at}[{index}]");
        if block["type"] == "tool_result" {
            out.push(result(&at, block)?);
        } else {
            part(&at, block, false, &mut parts)?;
        }
    }
    // A message with nothing but results adds no message of its own.
    if !parts.is_empty() || blocks.iter().all(|block| block["type"] != "tool_result") {
        out.push(json!({ "role": "user", "content": images::content(parts) }));
    }
    Ok(())
}

/// Text of a tool's result.
fn result(at: &str, block: &Value) -> Result<Value> {
    let Some(id) = block["tool_use_id"].as_str() else {
        return wrong(&format!("{at}.tool_use_id"), &block["tool_use_id"], "a text");
    };
    let mut parts = Vec::new();
    if block["is_error"].as_bool().unwrap_or(false) {
        parts.push(json!({ "type": "text", "text": "Error: " }));
    }
    match &block["content"] {
        Value::Null => {}
        Value::Array(blocks) => {
            for (index, block) in blocks.iter().enumerate() {
                part(&format!("{at}.content[{index}]"), block, true, &mut parts)?;
            }
        }
        found => parts.push(json!({ "type": "text", "text": text(&format!("{at}.content"), found)? })),
    }
    Ok(json!({ "role": "tool", "tool_call_id": id, "content": images::content(parts) }))
}

/// Converts a block of a user or of a tool's result for templates. Some blocks of a result cannot
/// be shown to this model. An agent cannot take them back, so a note replaces each.
fn part(at: &str, block: &Value, of_tool: bool, parts: &mut Vec<Value>) -> Result<()> {
    let text = |text: &str| json!({ "type": "text", "text": text });
    let source = &block["source"];
    match (block["type"].as_str(), source["type"].as_str()) {
        (Some("text"), _) => parts.push(text(&text_of(at, block)?)),
        (Some("image"), Some("base64")) if source["data"].is_string() => {
            let mut image = images::part(source["data"].as_str().unwrap_or_default());
            // The model gets a note if it sees no images; for a user's image the client gets an
            // error.
            if of_tool {
                image["or_note"] = true.into();
            }
            parts.push(image);
        }
        (Some("image"), Some("url")) => {
            parts.push(images::part_of_url(&format!("{at}.source.url"), &source["url"])?);
        }
        (Some("image"), _) => {
            return wrong(&format!("{at}.source.type"), &source["type"], "base64 with data, or url");
        }
        (Some("document"), Some("text")) => parts.push(text(source["data"].as_str().unwrap_or_default())),
        (Some("document"), Some("content")) => match &source["content"] {
            Value::Array(blocks) => {
                for (index, block) in blocks.iter().enumerate() {
                    part(&format!("{at}.source.content[{index}]"), block, of_tool, parts)?;
                }
            }
            content => parts.push(text(content.as_str().unwrap_or_default())),
        },
        (Some("search_result"), _) => {
            for block in block["content"].as_array().into_iter().flatten() {
                parts.push(text(block["text"].as_str().unwrap_or_default()));
            }
        }
        (Some(kind), _) if of_tool => {
            tracing::warn!("`{at}` is left out: a block of type {kind:?} cannot be shown to this model");
            parts.push(text(&format!("[a block of type {kind} that cannot be shown]")));
        }
        // Notes of the client for servers that keep containers or search for tools.
        (Some("container_upload" | "tool_reference"), _) => {
            tracing::warn!("`{at}` is left out: this server has no containers and no search for tools");
        }
        (Some("document"), kind) => {
            let found = kind.unwrap_or("missing");
            let at = format!("{at}.source.type");
            return Err(RequestError::unsupported_value(at, found, "text or content"));
        }
        (Some(kind), _) => {
            let expected = "text, image, document, search_result or tool_result";
            return Err(RequestError::unsupported_value(format!("{at}.type"), kind, expected));
        }
        (None, _) => return wrong(&format!("{at}.type"), &block["type"], "a block's type"),
    }
    Ok(())
}

fn assistant(at: &str, content: &Value, out: &mut Vec<Value>) -> Result<()> {
    let Value::Array(blocks) = content else {
        out.push(json!({ "role": "assistant", "content": text(at, content)? }));
        return Ok(());
    };
    let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    for (index, block) in blocks.iter().enumerate() {
        let at = format!("{at}[{index}]");
        let string = |key: &str| match block[key].as_str() {
            Some(text) => Ok(text),
            None => wrong(&format!("{at}.{key}"), &block[key], "a text"),
        };
        match block["type"].as_str() {
            Some("text") => content.push_str(string("text")?),
            Some("thinking") => reasoning.push_str(string("thinking")?),
            // Only Anthropic can decrypt it.
            Some("redacted_thinking") => {}
            Some("tool_use") => calls.push(json!({
                "id": string("id")?, "type": "function",
                "function": { "name": string("name")?, "arguments": block["input"] },
            })),
            // Summary of the conversation so far.
            Some("compaction") => content.push_str(block["content"].as_str().unwrap_or_default()),
            // Calls and results of another server's own tools.
            Some(kind) => tracing::warn!("`{at}` is left out: a block of type {kind:?} is not known here"),
            None => return wrong(&format!("{at}.type"), &block["type"], "a block's type"),
        }
    }
    let mut message = json!({ "role": "assistant", "content": content });
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    out.push(message);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(given: Value) -> Result<Vec<Value>> {
        let mut out = Vec::new();
        message("m", &given, &mut out)?;
        Ok(out)
    }

    #[test]
    fn billing_blocks_are_for_no_model() {
        let block = |text: &str| json!({ "type": "text", "text": text });
        let header = "x-anthropic-billing-header: cc_version=2.1.197.123; cc_entrypoint=sdk-cli;";
        let blocks = json!([block(header), block("a"), block("b")]);
        assert_eq!(system("system", &blocks).unwrap(), "ab");
        assert_eq!(system("system", &json!(format!("{header}\na"))).unwrap(), "a");
        assert_eq!(system("system", &json!(header)).unwrap(), "");
        assert_eq!(read(json!({ "role": "system", "content": [block(header)] })).unwrap(), [] as [Value; 0]);
        let error = system("system", &json!([block(header), { "type": "image" }])).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("system[1].type"));
    }

    #[test]
    fn blocks_of_servers_and_agents_are_left_out_or_noted() {
        let found = read(json!({ "role": "assistant", "content": [
            { "type": "server_tool_use", "id": "s", "name": "web_search", "input": {} },
            { "type": "web_search_tool_result", "tool_use_id": "s", "content": [] },
            { "type": "compaction", "content": "before" },
            { "type": "text", "text": " after" },
        ]}));
        assert_eq!(found.unwrap()[0]["content"], "before after");
        let pdf = json!({ "type": "document", "source": { "type": "base64", "media_type": "application/pdf", "data": "" } });
        let image = json!({ "type": "image", "source": { "type": "base64", "data": "QUJD" } });
        let result =
            |content: Value| json!({ "type": "tool_result", "tool_use_id": "1", "content": content });
        let found = read(json!({ "role": "user", "content": [
            result(json!([pdf, { "type": "tool_reference", "tool_name": "f" }])), result(json!([image])),
        ]}))
        .unwrap();
        assert_eq!(found.len(), 2);
        assert!(found[0]["content"].as_str().unwrap().contains("type document"), "{found:?}");
        assert_eq!(found[1]["content"][0]["or_note"], true);
        let error = read(json!({ "role": "user", "content": [pdf] })).unwrap_err();
        assert_eq!(error.code, Some("unsupported_value"));
        let text = json!({ "type": "document", "source": { "type": "text", "data": "d" } });
        assert_eq!(read(json!({ "role": "user", "content": [text] })).unwrap()[0]["content"], "d");
    }
}
