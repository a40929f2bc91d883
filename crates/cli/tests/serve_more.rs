//! Rare requests: candidates, echoes in streams, lazy grammars, and cached prefixes that outlive
//! the server.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use serde_json::{Value, json};

use crate::serve::{CHAT, Server, chat};

const COMPLETIONS: &str = "/v1/completions";
const TEXT: &str = "The capital of France is";

#[test]
fn candidates_and_echoes_in_streams() {
    let server = Server::start(&["--deterministic"]);
    let body = |more: Value| {
        let mut body = json!({ "prompt": TEXT, "max_tokens": 4, "temperature": 1, "seed": 3 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    // The best of three is one of the three, and the most probable one.
    let all = server.ok(COMPLETIONS, &body(json!({ "n": 3, "logprobs": 0 })));
    let mean = |choice: &Value| {
        let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        logprobs.iter().map(|p| p.as_f64().unwrap()).sum::<f64>() / logprobs.len() as f64
    };
    let choices = all["choices"].as_array().unwrap();
    let likeliest = choices.iter().max_by(|a, b| mean(a).total_cmp(&mean(b))).unwrap();
    let best = server.ok(COMPLETIONS, &body(json!({ "best_of": 3 })));
    assert_eq!(best["choices"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&best["choices"][0]["text"], &best["choices"][0]["logprobs"]),
        (&likeliest["text"], &Value::Null)
    );
    assert_eq!(best["usage"]["completion_tokens"], all["usage"]["completion_tokens"]);

    let echo = |more: Value| {
        let mut body = body(json!({ "echo": true, "temperature": 0 }));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for logprobs in [Value::Null, json!(1)] {
        let whole = server.ok(COMPLETIONS, &echo(json!({ "logprobs": logprobs })))["choices"][0].clone();
        let events = server.stream(COMPLETIONS, &echo(json!({ "logprobs": logprobs, "stream": true })));
        let text: String = events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
        assert_eq!(whole["text"], text);
        for key in ["tokens", "token_logprobs", "text_offset"] {
            let parts = events.iter().filter_map(|event| event["choices"][0]["logprobs"][key].as_array());
            let joined: Vec<Value> = parts.flatten().cloned().collect();
            match whole["logprobs"][key].as_array() {
                Some(expected) => assert_eq!(&joined, expected, "{key}"),
                None => assert!(joined.is_empty()),
            }
        }
    }
}

#[test]
fn grammars_may_wait_for_a_trigger() {
    let server = Server::start(&["--deterministic"]);
    let free = json!({ "prompt": TEXT, "n_predict": 12, "temperature": 0 });
    let free = server.ok("/completion", &free)["content"].as_str().unwrap().to_owned();
    assert!(free.starts_with(" Paris"), "{free}");
    let lazy = |value: &str| {
        json!({
            "prompt": TEXT, "n_predict": 12, "temperature": 0, "grammar": "root ::= \" Paris\" \"!\"{3}",
            "grammar_lazy": true, "grammar_triggers": [{ "type": 1, "value": value }],
        })
    };
    assert_eq!(server.ok("/completion", &lazy(" Paris"))["content"], " Paris!!!");
    // A trigger that never appears changes nothing.
    assert_eq!(server.ok("/completion", &lazy("Berlin"))["content"], free);
    // The request is alone, or has a tool that need not be called.
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } });
    for tools in [json!([]), json!([tool])] {
        let chat = chat(
            "Say yes.",
            json!({
                "max_tokens": 80, "grammar": "root ::= \"e\" [^\\n]{0,24} \"!!\"", "grammar_lazy": true,
                "grammar_triggers": [{ "type": 2, "value": "e" }], "tools": tools,
            }),
        );
        let text = server.ok(CHAT, &chat)["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        let (before, after) = text.split_once('e').unwrap();
        assert!(!before.contains('e') && after.ends_with("!!") && after.len() <= 100, "{text}");
        let counted = server.ok("/chat/completions/input_tokens", &chat)["input_tokens"].clone();
        assert_eq!(counted, server.ok(CHAT, &chat)["usage"]["prompt_tokens"]);
    }
}

#[test]
fn calls_need_tools_and_events_are_sent_once() {
    let server = Server::start(&[]);
    for (path, body) in [
        (CHAT, chat("a", json!({ "tool_choice": "required" }))),
        ("/v1/responses", json!({ "input": "a", "tool_choice": "required" })),
        (
            "/v1/messages",
            json!({ "messages": [{ "role": "user", "content": "a" }], "max_tokens": 1, "tool_choice": { "type": "any" } }),
        ),
    ] {
        let (status, answer) = server.post(path, &body);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains("`tool_choice`"), "{path} {status}: {answer}");
    }
    let kept = server
        .ok("/v1/responses", &json!({ "input": "a", "max_output_tokens": 1, "metadata": { "k": "v" } }));
    assert_eq!(kept["metadata"]["k"], "v");
    let id = kept["id"].as_str().unwrap();
    assert_eq!(server.get(&format!("/v1/responses/{id}?stream=true")).0, 400);
    assert_eq!(server.get(&format!("/v1/responses/{id}?stream=false")).0, 200);
    // A reference means the earlier message, and is listed as a message.
    let message = kept["output"][0]["id"].as_str().unwrap();
    let input = json!([{ "type": "item_reference", "id": message }, { "role": "user", "content": "b" }]);
    let second = server.ok("/v1/responses", &json!({ "input": input, "max_output_tokens": 1 }));
    let items =
        server.get(&format!("/v1/responses/{}/input_items?order=asc", second["id"].as_str().unwrap())).1;
    let items: Value = serde_json::from_str(&items).unwrap();
    assert_eq!(items["data"][0]["id"], message);
    assert_eq!(items["data"][1]["content"][0]["type"], "input_text");
}

#[test]
fn cached_tokens_count_apart_in_anthropic_s_first_event() {
    let server = Server::start(&["--deterministic"]);
    let body = json!({
        "max_tokens": 2, "stream": true, "temperature": 0,
        "messages": [{ "role": "user", "content": "Name a colour of the rainbow, and one that it does not have." }],
    });
    let usage = || {
        let mut response = server.open("/v1/messages", None, &body);
        let text = response.body_mut().read_to_string().unwrap();
        let events = text.split_terminator("\n\n").map(|event| event.split_once("\ndata: ").unwrap().1);
        let events: Vec<Value> = events.map(|data| serde_json::from_str(data).unwrap()).collect();
        let of = |kind: &str| events.iter().find(|event| event["type"] == kind).unwrap();
        let (start, end) = (&of("message_start")["message"]["usage"], &of("message_delta")["usage"]);
        for key in ["input_tokens", "cache_read_input_tokens"] {
            assert_eq!(start[key], end[key], "{text}");
        }
        (start["input_tokens"].as_u64().unwrap(), start["cache_read_input_tokens"].as_u64().unwrap())
    };
    let (first, second) = (usage(), usage());
    assert_eq!(first.1, 0);
    assert_eq!(second, (1, first.0 - 1));
}

#[cfg(unix)]
#[test]
fn cached_prefixes_outlive_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let options = ["--deterministic", "--prefix-cache", path];
    let question =
        "Here are some words: ".to_owned() + &"one two three four five six seven eight nine ten ".repeat(6);
    let body = chat(&question, json!({ "max_tokens": 4 }));
    let server = Server::start(&options);
    let first = server.ok(CHAT, &body);
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert_eq!(cached(&first), 0);
    assert!(server.terminate().success());
    let server = Server::start(&options);
    let second = server.ok(CHAT, &body);
    assert_eq!(second["choices"], first["choices"]);
    let n_prompt = first["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(cached(&second), n_prompt - 1, "{second}");
    drop(server);
    // Another key of the same server does not find the cached prompt.
    let server = Server::start(&[&options[..], &["--api-key", "k"]].concat());
    let mut third = server.open(CHAT, Some("k"), &body);
    let third: Value = serde_json::from_str(&third.body_mut().read_to_string().unwrap()).unwrap();
    assert_eq!(cached(&third), 0);
}
