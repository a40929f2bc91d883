//! Requests of agents, by each API that they use.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use serde_json::{Value, json};

use crate::common::SMOLLM2;
use crate::serve::{CHAT, Server, chat};

#[test]
fn messages_with_betas_and_an_accounting_header_are_answered_from_the_cache() {
    let server = Server::start(&["--deterministic"]);
    let text = |text: &str| json!({ "type": "text", "text": text, "cache_control": { "type": "ephemeral" } });
    let body = |version: &str| {
        json!({
            "model": SMOLLM2.path(), "max_tokens": 3, "temperature": 0, "service_tier": "auto",
            "system": [
                text(&format!("x-anthropic-billing-header: cc_version=2.1.197.{version}; cc_entrypoint=cli;")),
                text(&"Be brief and kind. ".repeat(30)),
            ],
            "messages": [
                { "role": "user", "content": [text("Hello")] },
                { "role": "system", "content": "Answer in French." },
            ],
            "thinking": { "type": "adaptive" }, "output_config": { "effort": "xhigh" }, "mcp_servers": [],
            "context_management": { "edits": [{ "type": "clear_thinking_20251015", "keep": "all" }] },
            "tools": [{ "type": "web_search_20250305", "name": "web_search" }], "container": null,
        })
    };
    let (status, first) = server.post("/v1/messages?beta=true", &body("f42"));
    assert_eq!(status, 200, "{first}");
    let again = server.ok("/v1/messages", &body("123"));
    let usage = |answer: &Value, key: &str| answer["usage"][key].as_u64().unwrap();
    let n_prompt = usage(&first, "input_tokens") + usage(&first, "cache_read_input_tokens");
    assert_eq!(usage(&again, "cache_read_input_tokens"), n_prompt - 1, "{again}");
    let counted = server.ok("/v1/messages/count_tokens", &body("abc"));
    assert_eq!(counted["input_tokens"], n_prompt);
}

#[test]
fn custom_tools_are_called_with_a_text() {
    let server = Server::start(&["--deterministic"]);
    let format = json!({ "type": "grammar", "syntax": "regex", "definition": "[a-z]{3}\n[a-z]{3}" });
    let tool = json!({ "type": "custom", "name": "write", "description": "Write", "format": format });
    let namespace = json!({ "type": "namespace", "name": "n", "tools": [tool] });
    let body = json!({
        "input": "Write two words.", "max_output_tokens": 200, "temperature": 0, "tool_choice": "required",
        "parallel_tool_calls": false, "tools": [namespace, { "type": "web_search" }, { "type": "local_shell" }],
    });
    let answer = server.ok("/v1/responses", &body);
    let call = answer["output"].as_array().unwrap().iter().find(|item| item["type"] == "custom_tool_call");
    let call = call.unwrap_or_else(|| panic!("{answer}"));
    assert_eq!((&call["name"], &call["namespace"]), (&json!("write"), &json!("n")));
    let input = call["input"].as_str().unwrap();
    assert!(input.len() == 7 && input.as_bytes()[3] == b'\n', "{call}");

    let format = json!({ "type": "grammar", "grammar": { "syntax": "regex", "definition": "[a-z]{3}" } });
    let more = json!({
        "max_tokens": 200, "parallel_tool_calls": false, "verbosity": "low", "store": true,
        "tools": [{ "type": "custom", "custom": { "name": "write", "format": format } }, { "type": "web_search" }],
        "tool_choice": { "type": "custom", "custom": { "name": "write" } },
    });
    let whole = server.ok(CHAT, &chat("Write a word.", more.clone()));
    let call = &whole["choices"][0]["message"]["tool_calls"][0];
    assert_eq!((&call["type"], &call["custom"]["name"]), (&json!("custom"), &json!("write")), "{whole}");
    let input = call["custom"]["input"].as_str().unwrap();
    assert_eq!(input.len(), 3);
    let mut streamed = chat("Write a word.", more);
    streamed["stream"] = json!(true);
    let events = server.stream(CHAT, &streamed);
    let calls = events.iter().map(|event| &event["choices"][0]["delta"]["tool_calls"][0]);
    let text: String = calls.filter_map(|call| call["custom"]["input"].as_str()).collect();
    assert_eq!(text, input);
}

#[test]
fn refusals_are_the_client_s_and_name_the_key_alone() {
    let server = Server::start(&[]);
    let user = json!([{ "role": "user", "content": "a" }]);
    let image = json!([{ "role": "user", "content": [
        { "type": "image_url", "image_url": { "url": "data:image/png;base64,QUJD" } },
    ]}]);
    for (path, body, param, code) in [
        (CHAT, json!({ "messages": user, "bad_words": ["a"] }), "bad_words", Some("unsupported_parameter")),
        (CHAT, json!({ "messages": user, "modalities": ["audio"] }), "modalities", Some("unsupported_value")),
        (CHAT, json!({ "messages": image }), "messages[0].content", None),
        (
            "/v1/responses",
            json!({ "input": "a", "background": true }),
            "background",
            Some("unsupported_parameter"),
        ),
        ("/v1/responses", json!({ "input": "a", "include": ["x"] }), "include[0]", Some("unsupported_value")),
        ("/completion", json!({ "prompt": "a", "n_cmpl": 2 }), "n_cmpl", Some("unsupported_parameter")),
    ] {
        let (status, answer) = server.post(path, &body);
        let error = &answer["error"];
        assert_eq!(
            (status, error["param"].as_str(), error["code"].as_str()),
            (400, Some(param), code),
            "{answer}"
        );
        assert_eq!(error["type"], "invalid_request_error");
        assert!(!answer.to_string().contains(".gguf"), "{answer}");
    }
}
