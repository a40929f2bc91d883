//! A chat template of any text, rendered with a small conversation: an answer or an error, in bounded time.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::json;

fuzz_target!(|data: &[u8]| {
    let Ok(source) = std::str::from_utf8(data) else { return };
    let Ok(template) = text::ChatTemplate::new(source) else { return };
    let messages = [
        json!({ "role": "user", "content": "Hi <there> \"you\"" }),
        json!({ "role": "assistant", "content": "", "tool_calls": [{ "name": "f", "arguments": { "x": 1.5 } }] }),
    ];
    let chat = text::Chat {
        messages: &messages,
        add_generation_prompt: true,
        bos_token: Some("<s>"),
        eos_token: Some("</s>"),
        ..text::Chat::default()
    };
    let _ = template.render(&chat);
});
