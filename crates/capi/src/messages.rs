//! Messages and tools in OpenAI's form.

use serde_json::{Value, json};

use crate::boundary::{Failure, Outcome};

/// JSON that a caller passed as a text.
pub(crate) fn json(text: &str, name: &str) -> Outcome<Value> {
    serde_json::from_str(text).map_err(|error| Failure::argument(format!("{name} is no JSON: {error}")))
}

/// The objects of a JSON array.
pub(crate) fn objects(text: &str, name: &str) -> Outcome<Vec<Value>> {
    match json(text, name)? {
        Value::Array(values) if values.iter().all(Value::is_object) => Ok(values),
        _ => Err(Failure::argument(format!("{name} is no JSON array of objects"))),
    }
}

/// The messages of a chat. Contents of parts become a text, or the parts that the library expects
/// if there are images.
pub(crate) fn messages(text: &str) -> Outcome<Vec<Value>> {
    let mut messages = objects(text, "messages")?;
    for (index, message) in messages.iter_mut().enumerate() {
        let at = format!("messages[{index}]");
        if !message["role"].is_string() {
            return Err(Failure::argument(format!("{at} has no role")));
        }
        if let Some(Value::Array(parts)) = message.get_mut("content") {
            let made: Vec<Value> =
                parts.iter().map(|part| content_part(part, &at)).collect::<Outcome<_>>()?;
            message["content"] = match made.iter().any(|part| part["type"] == "image") {
                true => made.into(),
                false => made.iter().filter_map(|part| part["text"].as_str()).collect::<String>().into(),
            };
        }
    }
    Ok(messages)
}

fn content_part(part: &Value, at: &str) -> Outcome<Value> {
    match part["type"].as_str() {
        Some("text") if part["text"].is_string() => Ok(part.clone()),
        Some("image_url") => {
            let url = part["image_url"]["url"].as_str().unwrap_or_default();
            let data = url.strip_prefix("data:").and_then(|url| url.split_once(";base64,"));
            let expected = "data:image/png;base64,… (images are not downloaded)";
            let wrong = || Failure::argument(format!("image_url of {at} is no URL of the form {expected}"));
            data.map(|(_, data)| json!({ "type": "image", "data": data })).ok_or_else(wrong)
        }
        _ => Err(Failure::argument(format!("{at} has a part that is neither text nor image_url: {part}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_become_texts_and_images() {
        let found = messages(
            r#"[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
                {"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}},
                                          {"type":"text","text":"c"}]}]"#,
        );
        let found = found.map_err(|failure| failure.message);
        let image = json!({ "type": "image", "data": "AA" });
        let expected = vec![
            json!({ "role": "user", "content": "ab" }),
            json!({ "role": "user", "content": [image, { "type": "text", "text": "c" }] }),
        ];
        assert_eq!(found, Ok(expected));
        for wrong in [r#"[{"content":"a"}]"#, "{}", r#"[{"role":"user","content":[{"type":"x"}]}]"#] {
            assert!(messages(wrong).is_err(), "{wrong}");
        }
    }
}
