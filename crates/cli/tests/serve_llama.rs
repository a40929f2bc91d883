//! llama-server's own endpoints, with the real binary and a real model.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use serde_json::{Value, json};

use crate::common::{SMOLLM2, error};
use crate::serve::{CHAT, Server, chat};

const TEXT: &str = "The capital of France is";

#[test]
fn completions_as_llama_server_has_them() {
    let server = Server::start(&["--deterministic"]);
    let ask = |more: Value| {
        let mut body = json!({ "prompt": TEXT, "n_predict": 3, "temperature": 0 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.ok("/completion", &body)
    };
    let whole = ask(json!({ "n_probs": 2, "return_tokens": true }));
    // The probabilities are those of the draw: after top-k and the temperature.
    let drawn = json!({ "n_probs": 5, "post_sampling_probs": true, "temperature": 1.5, "top_k": 3, "top_p": 1, "min_p": 0, "seed": 1 });
    for token in ask(drawn)["completion_probabilities"].as_array().unwrap() {
        let top = token["top_probs"].as_array().unwrap();
        let sum: f64 = top.iter().map(|one| one["prob"].as_f64().unwrap()).sum();
        assert!(top.len() == 3 && (sum - 1.0).abs() < 1e-3, "{token}");
        assert!(
            top.iter().any(|one| (&one["id"], &one["prob"]) == (&token["id"], &token["prob"])),
            "{token}"
        );
        assert!(token["logprob"].is_null() && token["top_logprobs"].is_null());
    }
    let greedy = ask(json!({ "n_probs": 5, "post_sampling_probs": true }));
    let certain = &greedy["completion_probabilities"][0];
    assert_eq!((&certain["prob"], certain["top_probs"].as_array().unwrap().len()), (&json!(1.0), 1));
    let text = whole["content"].as_str().unwrap();
    assert!(text.starts_with(" Paris"), "{whole}");
    assert_eq!((&whole["stop"], &whole["stop_type"]), (&json!(true), &json!("limit")));
    assert_eq!((&whole["tokens_predicted"], &whole["tokens_evaluated"]), (&json!(3), &json!(5)));
    assert_eq!(whole["generation_settings"]["n_predict"], 3);
    let probabilities = whole["completion_probabilities"].as_array().unwrap();
    assert_eq!((probabilities.len(), &probabilities[0]["token"]), (3, &json!(" Paris")));
    assert_eq!(probabilities[0]["top_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(whole["tokens"][0], probabilities[0]["id"]);
    assert!(whole["timings"]["predicted_per_second"].as_f64() > Some(0.0), "{whole}");
    // Prompts as tokens, as tokens and text, and as a list.
    let tokens = server.ok("/tokenize", &json!({ "content": TEXT, "add_special": true }))["tokens"].clone();
    assert_eq!(ask(json!({ "prompt": tokens }))["content"], text);
    let first = tokens[0].clone();
    let rest = TEXT.strip_prefix("The").unwrap();
    assert_eq!(ask(json!({ "prompt": [first, rest] }))["content"], text);
    let several =
        ask(json!({ "prompt": [TEXT, tokens], "response_fields": ["content", "timings/prompt_n"] }));
    assert_eq!(several[0]["content"], several[1]["content"]);
    assert_eq!(several[0].as_object().unwrap().len(), 2);
    assert!(several[0]["timings/prompt_n"].is_number(), "{several}");
    // A stop word is named, and is not part of the answer.
    let stopped = ask(json!({ "stop": "aris", "n_predict": -1 }));
    let found = ["content", "stop_type", "stopping_word"].map(|key| stopped[key].as_str().unwrap());
    assert_eq!(found, [" P", "word", "aris"]);
    let grammar = ask(json!({ "grammar": "root ::= \"yes\" | \"no\"" }));
    assert!(["yes", "no"].contains(&grammar["content"].as_str().unwrap()), "{grammar}");
    assert_eq!(grammar["stop_type"], "eos");
    // The last event of a stream has the timings, and no `[DONE]` follows.
    let body = json!({ "prompt": TEXT, "n_predict": 3, "temperature": 0, "stream": true });
    let mut response = server.open("/completion", None, &body);
    let stream = response.body_mut().read_to_string().unwrap();
    let events: Vec<Value> = stream
        .split_terminator("\n\n")
        .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
        .collect();
    let said: String = events.iter().map(|event| event["content"].as_str().unwrap()).collect();
    assert_eq!(said, text);
    let (last, before) = events.split_last().unwrap();
    assert!(before.iter().all(|event| event["stop"] == false), "{stream}");
    assert!(before.iter().all(|event| !event["tokens"].as_array().unwrap().is_empty()), "{stream}");
    assert_eq!((&last["stop"], &last["tokens_predicted"]), (&json!(true), &json!(3)));

    for (path, body, status, words) in [
        ("/completion", json!({}), 400, "`prompt` is missing"),
        ("/completion", json!({ "prompt": [1, -1] }), 400, "`prompt` has -1"),
        ("/completion", json!({ "prompt": "a", "temperature": "hot" }), 400, "`temperature`"),
        ("/completion", json!({ "prompt": "a", "n_keep": 5 }), 400, "n_keep"),
        ("/infill", json!({ "input_prefix": "a", "input_suffix": "b" }), 400, "no fill-in-the-middle tokens"),
        ("/v1/completions", json!({ "prompt": "a", "suffix": "b" }), 400, "no fill-in-the-middle tokens"),
        ("/v1/completions", json!({ "prompt": [1], "suffix": "b" }), 400, "that is text"),
    ] {
        let (found, answer) = server.post(path, &body);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(found == status && message.contains(words), "{path} {found}: {answer}");
    }
    let props: Value = serde_json::from_str(&server.get("/props").1).unwrap();
    assert_eq!((&props["total_slots"], &props["eos_token"]), (&json!(16), &json!("<|im_end|>")));
    assert_eq!(props["model_alias"], SMOLLM2.path());
    assert!(props["chat_template"].as_str().unwrap().contains("<|im_start|>"), "{props}");
}

#[test]
fn streams_tell_how_far_the_prompt_is_and_how_long_tokens_take() {
    let server = Server::start(&["--deterministic", "--stream-interval", "0"]);
    // The prompt is longer than a step.
    let prompt = "one two three four ".repeat(400);
    let keys =
        json!({ "timings_per_token": true, "return_progress": true, "stream": true, "temperature": 0 });
    let with = |mut body: Value| {
        body.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        body
    };
    let check = |events: &[Value], n_prompt: u64| {
        let progress: Vec<&Value> =
            events.iter().map(|event| &event["prompt_progress"]).filter(|found| !found.is_null()).collect();
        let processed: Vec<u64> = progress.iter().map(|p| p["processed"].as_u64().unwrap()).collect();
        assert!(processed.len() > 1 && processed.is_sorted_by(|a, b| a < b), "{processed:?}");
        assert_eq!(
            (progress[0]["cache"].as_u64(), *processed.last().unwrap()),
            (Some(processed[0]), n_prompt)
        );
        assert!(progress.iter().all(|p| p["total"] == n_prompt && p["time_ms"].is_number()), "{progress:?}");
        let begins = events.iter().position(|event| !event["prompt_progress"].is_null()).unwrap();
        let timings = events.iter().map(|event| &event["timings"]["predicted_n"]);
        let n_predicted: Vec<u64> = timings.filter_map(Value::as_u64).collect();
        assert!(n_predicted.is_sorted(), "{n_predicted:?}");
        assert!((1..=4).contains(n_predicted.last().unwrap()), "{n_predicted:?}");
        // The first event comes before anything is computed.
        assert_eq!(
            (&events[begins]["timings"]["prompt_n"], &events[begins]["timings"]["prompt_ms"]),
            (&json!(0), &json!(0.0))
        );
    };
    let body = with(json!({ "prompt": prompt, "n_predict": 4 }));
    let read = |body: &Value| -> Vec<Value> {
        let text = server.open("/completion", None, body).body_mut().read_to_string().unwrap();
        let events = text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap());
        events.map(|event| serde_json::from_str(event).unwrap()).collect()
    };
    let events = read(&body);
    let n_prompt = events.last().unwrap()["tokens_evaluated"].as_u64().unwrap();
    check(&events, n_prompt);
    assert_eq!(events[0]["prompt_progress"]["cache"], 0);
    // The second time nearly the whole prompt is cached.
    let events = read(&body);
    check(&events, n_prompt);
    assert!(events[0]["prompt_progress"]["cache"].as_u64().unwrap() > n_prompt / 2, "{}", events[0]);
    let events = server.stream(CHAT, &with(chat(&prompt, json!({ "max_tokens": 4 }))));
    let progress = events.iter().find(|event| !event["prompt_progress"].is_null()).unwrap();
    check(&events, progress["prompt_progress"]["total"].as_u64().unwrap());
    assert_eq!(progress["choices"][0]["delta"], json!({}));
    // `/v1/completions` has texts in place of deltas. Responses report progress in their own
    // events.
    let body = json!({ "prompt": prompt, "max_tokens": 4, "stream_options": { "include_usage": true } });
    let events = server.stream("/v1/completions", &with(body));
    let progress = events.iter().find(|event| !event["prompt_progress"].is_null()).unwrap();
    check(&events, progress["prompt_progress"]["total"].as_u64().unwrap());
    assert_eq!(progress["choices"][0]["text"], "");
    assert!(!events.last().unwrap()["timings"].is_null(), "the usage has the timings");
    assert!(events.iter().rev().skip(1).all(|event| event.get("usage") == Some(&Value::Null)), "{events:?}");
    let body = json!({ "input": prompt, "max_output_tokens": 4, "ignore_eos": true });
    let events = named_events(&server, &with(body));
    let progress = events.iter().find(|event| !event["prompt_progress"].is_null()).unwrap();
    check(&events, progress["prompt_progress"]["total"].as_u64().unwrap());
    assert_eq!(progress["type"], "response.in_progress");
    let timed = |kind: &str| events.iter().any(|e| e["type"] == kind && !e["timings"].is_null());
    assert!(timed("response.output_text.delta") && timed("response.incomplete"), "{events:?}");
    assert!(events.iter().enumerate().all(|(n, event)| event["sequence_number"] == n), "{events:?}");
    // Progress is only reported on request.
    let events = server.stream(CHAT, &chat("Hello", json!({ "max_tokens": 2, "stream": true })));
    assert!(events.iter().all(|e| e["timings"].is_null() && e["prompt_progress"].is_null()), "{events:?}");
}

#[test]
fn the_operator_says_how_tokens_are_chosen_where_a_request_does_not() {
    let server = Server::start(&[
        "--deterministic",
        "--temp",
        "0.25",
        "--top-k",
        "7",
        "--seed",
        "42",
        "--repeat-penalty",
        "1.5",
    ]);
    let params = |answer: &Value| {
        let found = &answer["generation_settings"];
        ["temperature", "top_k", "seed", "repeat_penalty", "top_p"].map(|key| found[key].clone())
    };
    let ask = |more: Value| {
        let mut body = json!({ "prompt": TEXT, "n_predict": 2 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.ok("/completion", &body)
    };
    assert_eq!(params(&ask(json!({}))), [json!(0.25), json!(7), json!(42), json!(1.5), json!(0.95_f32)]);
    let own = json!({ "temperature": 0.5, "seed": 1, "top_p": 0.5, "repeat_last_n": 0 });
    assert_eq!(params(&ask(own)), [json!(0.5), json!(7), json!(1), json!(1.0), json!(0.5)]);
    let props: Value = serde_json::from_str(&server.get("/props").1).unwrap();
    assert_eq!(props["default_generation_settings"]["params"]["top_k"], 7);
    // A seed gives the same answer by every API.
    let text = |answer: Value| answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let answers =
        [0, 1].map(|_| text(server.ok(CHAT, &chat("Tell me a story.", json!({ "max_tokens": 12 })))));
    assert_eq!(answers[0], answers[1]);
    let message = json!([{ "role": "user", "content": "Tell me a story." }]);
    let ollama = |options: Value| {
        let body = json!({ "messages": message, "stream": false, "options": options });
        server.ok("/api/chat", &body)["message"]["content"].as_str().unwrap().to_owned()
    };
    // The operator's values override the model's, and the request's override both.
    assert_eq!(ollama(json!({ "num_predict": 12 })), ollama(json!({ "num_predict": 12, "top_k": 7 })));
    let wrong = error(&["serve", &SMOLLM2.path(), "--min-p", "1.5"]);
    assert!(wrong.contains("min_p"), "{wrong}");
}

/// Keys of clients of llama-server and of evaluations that OpenAI's API does not have.
#[test]
fn names_biases_and_tokens_as_others_send_them() {
    let server = Server::start(&["--any-name", "--deterministic", "--max-tokens", "5"]);
    // The model is an unknown name, missing, or `null`; paths have no version.
    for model in [json!("gpt-4o"), json!(null)] {
        let mut body = crate::serve::chat("Hello", json!({ "max_tokens": 2 }));
        body["model"] = model;
        let answer = server.ok("/chat/completions", &body);
        assert_eq!(
            (&answer["model"], &answer["usage"]["completion_tokens"]),
            (&json!(SMOLLM2.path()), &json!(2))
        );
        assert!(answer["system_fingerprint"].as_str().unwrap().starts_with('b'), "{answer}");
    }
    assert_eq!(server.get("/models").1, server.get("/v1/models").1);
    // Biases are pairs of texts or tokens; false forbids a token.
    let ask = |more: Value| {
        let mut body = json!({ "prompt": TEXT, "n_predict": 1, "temperature": 0 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.ok("/completion", &body)["content"].as_str().unwrap().to_owned()
    };
    let paris = server.ok("/tokenize", &json!({ "content": " Paris" }))["tokens"][0].clone();
    assert_eq!(ask(json!({})), " Paris");
    for bias in [json!([[" Paris", -100]]), json!([[paris, false]]), json!({ " Paris": -100 })] {
        assert_ne!(ask(json!({ "logit_bias": bias })), " Paris", "{bias}");
    }
    for bias in [json!([[" Paris"]]), json!([[" Paris", "no"]]), json!(7)] {
        let body = json!({ "prompt": TEXT, "logit_bias": bias });
        assert_eq!(server.post("/completion", &body).0, 400, "{bias}");
    }
    // The smallest of the limits applies.
    let answer = server.ok("/completion", &json!({ "prompt": TEXT, "ignore_eos": true }));
    assert_eq!((&answer["tokens_predicted"], &answer["stop_type"]), (&json!(5), &json!("limit")));
    // Tokenisation in vLLM's form.
    let tokens =
        server.ok("/tokenize", &json!({ "prompt": TEXT, "add_special_tokens": false }))["tokens"].clone();
    assert_eq!(server.ok("/detokenize", &json!({ "tokens": tokens }))["prompt"], TEXT);
    let info: Value = serde_json::from_str(&server.get("/tokenizer_info").1).unwrap();
    assert_eq!(info["eos_token"], "<|im_end|>");
    // The error of a prompt that is too long has both lengths.
    let (status, answer) = server.post("/v1/completions", &json!({ "prompt": "a ".repeat(20_000) }));
    let found = (status, answer["error"]["n_prompt_tokens"].as_u64() > answer["error"]["n_ctx"].as_u64());
    assert_eq!(found, (400, true), "{answer}");
}

/// The events of a streamed response.
fn named_events(server: &Server, body: &Value) -> Vec<Value> {
    let text = server.open("/v1/responses", None, body).body_mut().read_to_string().unwrap();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}
