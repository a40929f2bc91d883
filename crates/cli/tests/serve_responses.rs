//! OpenAI's Responses API, with the real binary and a real model.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use serde_json::{Value, json};

use crate::serve::Server;

const RESPONSES: &str = "/v1/responses";

fn ask(server: &Server, key: &str, body: &Value) -> (u16, Value) {
    let mut response = server.open(RESPONSES, Some(key), body);
    let text = response.body_mut().read_to_string().unwrap();
    (response.status().as_u16(), serde_json::from_str(&text).unwrap())
}

/// Status and body of a request without a body.
fn request(server: &Server, method: &str, path: &str, key: &str) -> (u16, Value) {
    let (agent, url) = (Server::agent(), format!("{}{RESPONSES}/{path}", server.url));
    let bearer = format!("Bearer {key}");
    let response = match method {
        "DELETE" => agent.delete(url).header("authorization", bearer).call(),
        _ => agent.get(url).header("authorization", bearer).call(),
    };
    let mut response = response.unwrap();
    let text = response.body_mut().read_to_string().unwrap();
    (response.status().as_u16(), serde_json::from_str(&text).unwrap())
}

fn body(input: Value, more: Value) -> Value {
    let mut body = json!({ "input": input, "temperature": 0, "max_output_tokens": 12 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn responses_are_made_streamed_kept_and_continued() {
    let server = Server::start(&["--deterministic", "--api-key", "one", "--api-key", "two"]);
    let (status, first) =
        ask(&server, "one", &body(json!("What is a hearth?"), json!({ "instructions": "Be brief." })));
    assert_eq!(status, 200, "{first}");
    assert_eq!((&first["object"], &first["status"]), (&json!("response"), &json!("incomplete")));
    assert_eq!(first["incomplete_details"]["reason"], "max_output_tokens");
    let text = first["output"][0]["content"][0]["text"].as_str().unwrap();
    assert_eq!((text.is_empty(), &first["usage"]["output_tokens"]), (false, &json!(12)));
    // Events give the same result in order, and the last event has the whole response.
    let streamed = body(
        json!("What is a hearth?"),
        json!({ "instructions": "Be brief.", "stream": true, "store": false }),
    );
    let mut response = server.open(RESPONSES, Some("one"), &streamed);
    let stream = response.body_mut().read_to_string().unwrap();
    let mut said = String::new();
    let mut events = Vec::new();
    for (n, event) in stream.split_terminator("\n\n").enumerate() {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(
            (name.strip_prefix("event: "), &data["sequence_number"]),
            (data["type"].as_str(), &json!(n))
        );
        if data["type"] == "response.output_text.delta" {
            said.push_str(data["delta"].as_str().unwrap());
        }
        events.push(data);
    }
    assert_eq!(said, text);
    assert_eq!(events[0]["type"], "response.created");
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(last["response"]["output"][0]["content"][0]["text"], text);
    // A continued response has the earlier messages, but not the instructions.
    let id = first["id"].as_str().unwrap();
    let (_, second) = ask(&server, "one", &body(json!("Why?"), json!({ "previous_response_id": id })));
    let n_tokens = |response: &Value| response["usage"]["input_tokens"].as_u64().unwrap();
    assert!(n_tokens(&second) > n_tokens(&first), "{second}");
    let (_, items) =
        request(&server, "GET", &format!("{}/input_items", second["id"].as_str().unwrap()), "one");
    assert_eq!(items["data"].as_array().unwrap().len(), 1);
    assert_eq!(items["data"][0]["content"][0]["text"], "Why?");
    // A response is stored for its tenant until it is deleted, unless the request forbids storing.
    assert_eq!(request(&server, "GET", id, "one").1["output"], first["output"]);
    assert_eq!(request(&server, "GET", id, "two").0, 404);
    assert_eq!(ask(&server, "two", &body(json!("Why?"), json!({ "previous_response_id": id }))).0, 404);
    assert_eq!(request(&server, "GET", last["response"]["id"].as_str().unwrap(), "one").0, 404);
    assert_eq!(request(&server, "DELETE", id, "two").0, 404);
    assert_eq!(request(&server, "DELETE", id, "one").1["deleted"], true);
    assert_eq!(request(&server, "GET", id, "one").0, 404);
}

#[test]
fn functions_schemas_and_long_conversations() {
    let server = Server::start(&["--ctx", "256"]);
    let parameters = json!({
        "type": "object", "required": ["city"], "additionalProperties": false,
        "properties": { "city": { "type": "string", "maxLength": 12 } },
    });
    let tool = json!({ "type": "function", "name": "weather", "parameters": parameters });
    let more = json!({ "tools": [tool.clone()], "tool_choice": "required", "parallel_tool_calls": false, "max_output_tokens": 60 });
    let called = server.ok(RESPONSES, &body(json!("The weather in Paris?"), more));
    let call = &called["output"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("weather")), "{called}");
    // A function that is forced is called once.
    let named = json!({ "type": "function", "name": "weather" });
    let once = body(
        json!("The weather in Paris?"),
        json!({ "tools": [tool], "tool_choice": named, "max_output_tokens": 100 }),
    );
    let found = server.ok(RESPONSES, &once);
    assert_eq!(
        (&found["status"], found["output"].as_array().unwrap().len()),
        (&json!("completed"), 1),
        "{found}"
    );
    let counted = server.ok("/v1/responses/input_tokens", &once);
    assert_eq!(counted["input_tokens"], found["usage"]["input_tokens"], "{counted}");
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["city"].is_string(), "{call}");
    let format = json!({ "type": "json_schema", "name": "place", "schema": parameters });
    let formed = server.ok(
        RESPONSES,
        &body(json!("Where?"), json!({ "text": { "format": format }, "max_output_tokens": 60 })),
    );
    let text = formed["output"][0]["content"][0]["text"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(text).unwrap()["city"].is_string(), "{text}");
    // An input longer than the context is an error, or loses its oldest messages.
    let turn =
        |role: &str| json!({ "role": role, "content": "one two three four five six seven eight ".repeat(4) });
    let long: Vec<Value> = (0..9).map(|n| turn(if n % 2 == 0 { "user" } else { "assistant" })).collect();
    let (status, refused) = server.post(RESPONSES, &body(json!(long), json!({})));
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("context_length_exceeded")), "{refused}");
    let cut = server.ok(RESPONSES, &body(json!(long), json!({ "truncation": "auto" })));
    assert!(cut["usage"]["input_tokens"].as_u64() < Some(256), "{cut}");
    for (more, status, words) in [
        (json!({ "tool_choice": { "type": "web_search" } }), 400, "web_search"),
        (json!({ "background": true }), 400, "background"),
        (json!({ "previous_response_id": "resp_none" }), 404, "resp_none"),
        (json!({ "max_output_tokens": "many" }), 400, "`max_output_tokens`"),
    ] {
        let (found, answer) = server.post(RESPONSES, &body(json!("a"), more));
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(found == status && message.contains(words), "{found}: {answer}");
    }
}
