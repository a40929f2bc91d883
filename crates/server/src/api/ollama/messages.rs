//! Messages of this API, converted for chat templates.

use serde_json::{Value, json};

use runner::{RequestError, Result};

fn wrong<T>(param: &str, found: &Value, expected: &str) -> Result<T> {
    Err(RequestError::invalid(param, format!("`{param}` is {found}, expected {expected}")))
}

/// Converts all messages of a chat. Results of tools get the ids of their calls, which this API may
/// omit.
pub(super) fn messages(messages: &[Value]) -> Result<Vec<Value>> {
    // Calls without a result so far: id and name.
    let mut open: Vec<(String, String)> = Vec::new();
    let mut n_calls = 0;
    let mut out = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let at = format!("messages[{index}]");
        let images = images(&format!("{at}.images"), &message["images"])?;
        let content = match &message["content"] {
            Value::Null => "",
            Value::String(text) => text,
            other => return wrong(&format!("{at}.content"), other, "a text"),
        };
        let role = match message["role"].as_str() {
            Some(role @ ("system" | "user" | "assistant" | "tool")) => role,
            _ => {
                let expected = "system, user, assistant or tool";
                return wrong(&format!("{at}.role"), &message["role"], expected);
            }
        };
        let mut translated = json!({ "role": role, "content": with_images(images, content) });
        match role {
            "assistant" => {
                if let Some(thinking) = message["thinking"].as_str().filter(|text| !text.is_empty()) {
                    translated["reasoning_content"] = thinking.into();
                }
                let found = calls(&at, &message["tool_calls"], &mut n_calls, &mut open)?;
                if !found.is_empty() {
                    translated["tool_calls"] = found.into();
                }
            }
            "tool" => {
                let name = message["tool_name"].as_str().or(message["name"].as_str());
                let id = message["tool_call_id"].as_str();
                let answered = open.iter().position(|(of, called)| match (id, name) {
                    (Some(id), _) => of == id,
                    (None, Some(name)) => called == name,
                    (None, None) => true,
                });
                let call = answered.map(|at| open.remove(at));
                let (of, called) = call.map_or((None, None), |(id, name)| (Some(id), Some(name)));
                if let Some(id) = id.map(str::to_owned).or(of) {
                    translated["tool_call_id"] = id.into();
                }
                if let Some(name) = name.map(str::to_owned).or(called) {
                    translated["name"] = name.into();
                }
            }
            _ => {}
        }
        out.push(translated);
    }
    Ok(out)
}

/// Converts the calls of an assistant's message; arguments are objects.
fn calls(at: &str, calls: &Value, n: &mut usize, open: &mut Vec<(String, String)>) -> Result<Vec<Value>> {
    let at = format!("{at}.tool_calls");
    let calls = match calls {
        Value::Null => return Ok(Vec::new()),
        Value::Array(calls) => calls,
        other => return wrong(&at, other, "a list of calls"),
    };
    let mut out = Vec::with_capacity(calls.len());
    for (index, call) in calls.iter().enumerate() {
        let at = format!("{at}[{index}].function");
        let function = &call["function"];
        let Some(name) = function["name"].as_str() else {
            return wrong(&format!("{at}.name"), &function["name"], "a text");
        };
        let arguments = match &function["arguments"] {
            Value::Null => json!({}),
            arguments @ Value::Object(_) => arguments.clone(),
            // OpenAI's form: arguments as JSON text.
            Value::String(text) if serde_json::from_str::<Value>(text).is_ok_and(|json| json.is_object()) => {
                serde_json::from_str(text).unwrap_or_default()
            }
            other => return wrong(&format!("{at}.arguments"), other, "an object"),
        };
        *n += 1;
        // Mistral's templates require nine letters and digits.
        let id = call["id"].as_str().map_or_else(|| format!("call{n:05}"), str::to_owned);
        open.push((id.clone(), name.to_owned()));
        let function = json!({ "name": name, "arguments": arguments });
        out.push(json!({ "id": id, "type": "function", "function": function }));
    }
    Ok(out)
}

/// Converts images given in base64 to parts.
pub(super) fn images(at: &str, images: &Value) -> Result<Vec<Value>> {
    let part = |image: &Value| match image.as_str() {
        Some(data) => Ok(runner::images::part(data)),
        None => wrong(at, image, "images in base64"),
    };
    match images {
        Value::Null => Ok(Vec::new()),
        Value::Array(list) => list.iter().map(part).collect(),
        other => wrong(at, other, "a list of images in base64"),
    }
}

/// A content of images followed by a text.
pub(super) fn with_images(mut images: Vec<Value>, text: &str) -> Value {
    images.push(json!({ "type": "text", "text": text }));
    runner::images::content(images)
}

/// Returns true if the last message is the start of the answer.
pub(super) fn is_open(messages: &[Value]) -> bool {
    messages.last().is_some_and(|last| {
        last["role"] == "assistant"
            && last["tool_calls"].is_null()
            && last["content"].as_str().is_some_and(|text| !text.trim().is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_find_their_calls() {
        let call = |name: &str| json!({ "function": { "name": name, "arguments": { "k": 1 } } });
        let found = messages(&[
            json!({ "role": "user", "content": "a", "images": [] }),
            json!({ "role": "assistant", "thinking": "t", "tool_calls": [call("f"), call("g"), call("f")] }),
            json!({ "role": "tool", "tool_name": "g", "content": "1" }),
            json!({ "role": "tool", "content": "2" }),
            json!({ "role": "tool", "tool_name": "f", "content": "3" }),
            json!({ "role": "tool", "tool_name": "h", "content": "4" }),
        ])
        .unwrap();
        assert_eq!(found[1]["reasoning_content"], "t");
        assert_eq!(found[1]["tool_calls"][2]["function"]["arguments"], json!({ "k": 1 }));
        let ids: Vec<_> = found[2..].iter().map(|message| message["tool_call_id"].as_str()).collect();
        assert_eq!(ids, [Some("call00002"), Some("call00001"), Some("call00003"), None]);
        assert_eq!((&found[3]["name"], &found[5]["name"]), (&json!("f"), &json!("h")));
    }

    #[test]
    fn errors_name_the_value() {
        let call = |arguments: Value| {
            let function = json!({ "name": "f", "arguments": arguments });
            json!({ "role": "assistant", "tool_calls": [{ "function": function }] })
        };
        assert!(messages(&[call(json!("{}"))]).is_ok());
        for (message, param) in [
            (json!({ "role": "robot", "content": "a" }), "messages[0].role"),
            (json!({ "content": "a" }), "messages[0].role"),
            (json!({ "role": "user", "content": [] }), "messages[0].content"),
            (json!({ "role": "user", "content": "a", "images": [1] }), "messages[0].images"),
            (json!({ "role": "assistant", "tool_calls": 1 }), "messages[0].tool_calls"),
            (call(json!("x")), "messages[0].tool_calls[0].function.arguments"),
        ] {
            assert_eq!(messages(&[message]).unwrap_err().param.as_deref(), Some(param));
        }
    }

    #[test]
    fn a_last_message_of_the_assistant_is_continued() {
        let last = |message: Value| is_open(&[message]);
        assert!(last(json!({ "role": "assistant", "content": "The" })));
        assert!(!last(json!({ "role": "assistant", "content": " " })));
        assert!(!last(json!({ "role": "assistant", "content": "a", "tool_calls": [1] })));
        assert!(!last(json!({ "role": "user", "content": "a" })));
    }
}
