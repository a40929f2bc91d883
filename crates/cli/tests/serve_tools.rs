//! Tools and reasoning over HTTP, with a real model whose template supports neither.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use std::io::Read;
use std::thread;

use serde_json::{Value, json};

use crate::common::SMOLLM2;
use crate::serve::{CHAT, Server, chat};

fn tools() -> Value {
    json!([
        { "type": "function", "function": {
            "name": "get_weather", "description": "The weather of a city",
            "parameters": {
                "type": "object", "additionalProperties": false, "required": ["city", "days"],
                "properties": { "city": { "type": "string", "maxLength": 20 }, "days": { "type": "integer", "maximum": 9 } },
            },
        }},
        { "type": "function", "function": { "name": "noop", "parameters": { "type": "object", "properties": {} } } },
    ])
}

/// Arguments of a call, which must follow the schema.
#[track_caller]
fn arguments(call: &Value) -> Value {
    assert_eq!(call["type"], "function");
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    if call["function"]["name"] == "get_weather" {
        assert!(arguments["city"].as_str().unwrap().len() <= 80 && arguments["days"].as_i64().unwrap() <= 9);
    }
    arguments
}

#[test]
fn tools_are_called_whole_streamed_and_in_a_batch() {
    let server = Server::start(&["--deterministic", "--slots", "4", "--stream-interval", "0"]);
    let ask = |more: Value| {
        let mut body = chat(
            "What is the weather in Paris?",
            json!({ "tools": tools(), "max_tokens": 200, "parallel_tool_calls": false }),
        );
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let weather = json!({ "type": "function", "function": { "name": "get_weather" } });
    let whole = server.ok(CHAT, &ask(json!({ "tool_choice": weather })));
    let choice = &whole["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &Value::Null),
        "{whole}"
    );
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "get_weather");
    let expected = arguments(call);

    let events = server.stream(CHAT, &ask(json!({ "tool_choice": weather, "stream": true })));
    let deltas: Vec<&Value> = events
        .iter()
        .map(|event| &event["choices"][0]["delta"]["tool_calls"][0])
        .filter(|call| !call.is_null())
        .collect();
    assert_eq!((&deltas[0]["index"], &deltas[0]["function"]["name"]), (&json!(0), &json!("get_weather")));
    assert!(deltas[0]["id"].as_str().unwrap().starts_with("call_"));
    assert!(deltas.len() > 3, "the arguments come in pieces: {deltas:?}");
    let text: String = deltas.iter().filter_map(|call| call["function"]["arguments"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");

    // High temperature, with several calls, and without calls where none are allowed.
    thread::scope(|scope| {
        for seed in 0..4 {
            let (server, ask) = (&server, &ask);
            scope.spawn(move || {
                let more = json!({ "tool_choice": "required", "temperature": 1.3, "seed": seed, "parallel_tool_calls": seed % 2 == 0 });
                let answer = server.ok(CHAT, &ask(more));
                let Some(calls) = answer["choices"][0]["message"]["tool_calls"].as_array() else {
                    panic!("{answer}");
                };
                if answer["choices"][0]["finish_reason"] == "tool_calls" {
                    calls.iter().for_each(|call| drop(arguments(call)));
                }
                assert!(calls.len() == 1 || seed % 2 == 0, "{answer}");
            });
        }
    });
    let none = server.ok(CHAT, &ask(json!({ "tool_choice": "none", "max_tokens": 8 })));
    assert!(none["choices"][0]["message"].get("tool_calls").is_none(), "{none}");

    // The next request has the call and its result, in the form of OpenAI's clients.
    let messages = json!([
        { "role": "user", "content": "What is the weather in Paris?" },
        choice["message"],
        { "role": "tool", "tool_call_id": call["id"], "content": [{ "type": "text", "text": "Rain, 12 degrees" }] },
    ]);
    let again = json!({ "messages": messages, "tools": tools(), "temperature": 0, "max_tokens": 12 });
    server.ok(CHAT, &again);
    let prompt = server.ok("/apply-template", &again)["prompt"].as_str().unwrap().to_owned();
    assert!(prompt.contains("get_weather") && prompt.contains("Rain, 12 degrees"), "{prompt}");

    // An answer that the client began, and invalid ones.
    let body = json!({ "messages": [
        { "role": "user", "content": "Name the capital of France." },
        { "role": "assistant", "content": "The capital of France is" },
    ], "temperature": 0, "max_tokens": 2, "add_generation_prompt": false, "continue_final_message": true });
    assert_eq!(server.ok(CHAT, &body)["choices"][0]["message"]["content"], " Paris.");
    for (more, param) in [
        (json!({ "tool_choice": { "type": "function", "function": { "name": "unknown" } } }), "tool_choice"),
        (json!({ "tool_choice": "perhaps" }), "tool_choice"),
    ] {
        let (status, answer) = server.post(CHAT, &ask(more));
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)), "{answer}");
    }
}

#[test]
fn tools_of_messages_as_anthropic_has_them() {
    let server = Server::start(&["--deterministic"]);
    let body = |stream: bool| {
        json!({
            "model": SMOLLM2.path(), "max_tokens": 100, "temperature": 0, "stream": stream,
            "messages": [{ "role": "user", "content": "What is the weather in Paris?" }],
            "tools": [{ "name": "get_weather", "input_schema": tools()[0]["function"]["parameters"] }],
            "tool_choice": { "type": "tool", "name": "get_weather", "disable_parallel_tool_use": true },
        })
    };
    let whole = server.ok("/v1/messages", &body(false));
    assert_eq!(
        (&whole["stop_reason"], &whole["content"][0]["type"]),
        (&json!("tool_use"), &json!("tool_use")),
        "{whole}"
    );
    assert!(whole["content"][0]["input"]["city"].is_string(), "{whole}");
    let mut stream = String::new();
    server
        .open("/v1/messages", None, &body(true))
        .body_mut()
        .as_reader()
        .read_to_string(&mut stream)
        .unwrap();
    let json: String = stream
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok())
        .filter_map(|event| event["delta"]["partial_json"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), whole["content"][0]["input"]);
}
