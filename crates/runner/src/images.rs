//! Images in messages, as each API sends them and as templates expect them.
//!
//! Within the runner, the content of a message with images is a list of parts:
//! `{"type":"text","text":…}` and `{"type":"image","data":…}` with the file in base64.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use engine::{Model, Picture};
use serde_json::{Value, json};

use crate::error::{RequestError, Result};
use crate::preparing::Work;

/// Maximum number of images of a request.
pub const MAX_IMAGES: usize = 64;

/// The part of an image in base64.
pub fn part(data: &str) -> Value {
    json!({ "type": "image", "data": data })
}

/// The part of an image in a data URL.
///
/// # Errors
/// It is another URL.
pub fn part_of_url(at: &str, url: &Value) -> Result<Value> {
    let data = url.as_str().and_then(|url| url.strip_prefix("data:")).and_then(|url| url.split_once(','));
    match data {
        Some((kind, data)) if kind.ends_with(";base64") => Ok(part(data)),
        _ => {
            let start: String = url.as_str().unwrap_or_default().chars().take(40).collect();
            let expected = "a URL with the image's data, data:image/png;base64,…; images are not downloaded";
            Err(RequestError::invalid(at, format!("`{at}` is {start:?}, expected {expected}")))
        }
    }
}

/// The content of a message: one text if there are only texts, since every template accepts that.
pub fn content(parts: Vec<Value>) -> Value {
    if parts.iter().any(|part| part["type"] == "image") {
        return parts.into();
    }
    parts.iter().filter_map(|part| part["text"].as_str()).collect::<String>().into()
}

/// Replaces images in messages by parts that templates expect, and decodes them for the model.
///
/// # Errors
/// The model sees no images, and a part has no `or_note`; there are too many; or one is broken.
pub(crate) fn take(messages: &mut [Value], model: &Model, work: &Work) -> Result<Vec<Arc<Picture>>> {
    let mut pictures = Vec::new();
    for (index, message) in messages.iter_mut().enumerate() {
        let Some(Value::Array(parts)) = message.get_mut("content") else { continue };
        for part in parts.iter_mut().filter(|part| part["type"] == "image") {
            let at = format!("messages[{index}].content");
            let wrong = |message: String| RequestError::invalid(at.clone(), format!("`{at}`: {message}"));
            if pictures.len() == MAX_IMAGES {
                return Err(wrong(format!(
                    "found more than {MAX_IMAGES} images, expected at most {MAX_IMAGES}"
                )));
            }
            work.goes_on()?;
            let spec = match model.need_vision() {
                Ok(spec) => spec,
                Err(_) if part["or_note"] == true => {
                    *part = json!({ "type": "text", "text": "[an image, which this model cannot see]" });
                    continue;
                }
                // The engine's message names files, which clients must not see.
                Err(_) => return Err(wrong("this model sees no images, expected text alone".into())),
            };
            let data = part["data"].as_str().unwrap_or_default();
            let file =
                STANDARD.decode(data).map_err(|error| wrong(format!("image: {error}, expected base64")))?;
            let picture = vision::picture(spec, &file).map_err(|error| wrong(error.to_string()))?;
            pictures.push(Arc::new(picture));
            *part = json!({ "type": "image" });
        }
        // A content of notes alone is one text again.
        if parts.iter().all(|part| part["type"] == "text") {
            message["content"] = content(std::mem::take(parts));
        }
    }
    Ok(pictures)
}

/// Messages of texts only, with the model's mark for each image, for templates that know no parts.
pub(crate) fn as_texts(messages: &[Value], model: &Model) -> Vec<Value> {
    let mark = model.vision().map_or("", |spec| spec.tower.marks.placeholder);
    let text = |part: &Value| match part["type"] == "image" {
        true => mark.to_owned(),
        false => part["text"].as_str().unwrap_or_default().to_owned(),
    };
    let of = |message: &Value| {
        let mut message = message.clone();
        let content = message["content"].as_array().map(|parts| parts.iter().map(text).collect::<String>());
        if let Some(content) = content {
            message["content"] = content.into();
        }
        message
    };
    messages.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_data_urls_are_accepted() {
        let found = part_of_url("u", &json!("data:image/png;base64,QUJD")).unwrap();
        assert_eq!(found, part("QUJD"));
        for url in [
            json!("https://example.org/a.png"),
            json!("file:///etc/passwd"),
            json!("data:image/png,x"),
            json!(3),
        ] {
            let error = part_of_url("u", &url).unwrap_err();
            assert!(error.message.contains("not downloaded"), "{}", error.message);
        }
    }

    #[test]
    fn texts_alone_stay_one_text() {
        let text = |text: &str| json!({ "type": "text", "text": text });
        assert_eq!(content(vec![text("a"), text("b")]), json!("ab"));
        assert_eq!(content(vec![part("x"), text("b")]), json!([part("x"), text("b")]));
    }
}
