//! The compatibility table of docs/server.md. Each key of each API is sent to the real server,
//! which must support it or reject it by name.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};

use crate::serve::{CHAT, Server};

/// Marks of the table's start and end in the page.
const BEGIN: &str = "<!-- Written by crates/cli/tests/serve_compatibility.rs. -->\n";
const END: &str = "<!-- End of the table. -->\n";

/// Keys of every API with sampling.
fn sampling() -> Value {
    let common = json!({
        "temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "presence_penalty": 0.5, "frequency_penalty": 0.5,
        "repeat_penalty": 1.1, "repetition_penalty": 1.1, "repeat_last_n": 32, "seed": 7, "logit_bias": { "5": -1 },
        "ignore_eos": true, "min_tokens": 1, "stop_token_ids": [3], "priority": -1, "keep_alive": "5m",
        "cache_prompt": false,
    });
    let samplers = json!({
        "typical_p": 0.9, "top_n_sigma": 1.5, "xtc_probability": 0.5, "xtc_threshold": 0.1,
        "dynatemp_range": 0.1, "dynatemp_exponent": 1.1, "mirostat": 2, "mirostat_tau": 5, "mirostat_eta": 0.1,
        "dry_multiplier": 0.8, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": 64,
        "dry_sequence_breakers": ["\n"], "samplers": ["top_k", "temperature"],
    });
    let grammars = json!({
        "json_schema": { "type": "object" }, "guided_json": { "type": "object" }, "guided_regex": "[a-z]+",
        "guided_choice": ["yes", "no"], "guided_grammar": "start: \"a\"", "grammar": "root ::= \"a\"",
        "structural_tag": {
            "triggers": ["<f"], "structures": [{ "begin": "<f>", "schema": { "type": "object" }, "end": "</f>" }],
        },
        "structured_outputs": { "regex": "a" }, "regex": "[a-z]+", "ebnf": "root ::= \"a\"",
    });
    let unbuilt = json!({
        "allowed_token_ids": [5], "bad_words": ["a"], "chat_template": "x", "documents": [{ "text": "a" }],
        "include_stop_str_in_output": true, "prompt_logprobs": 1, "return_token_ids": true,
        "return_tokens_as_token_ids": true, "skip_special_tokens": false, "truncate_prompt_tokens": 5,
        "use_beam_search": true,
    });
    and(and(and(common, samplers), grammars), unbuilt)
}

fn and(mut keys: Value, more: Value) -> Value {
    keys.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    keys
}

/// The base request of each path, and the keys that are added one by one.
fn paths() -> Vec<(&'static str, Value, Value)> {
    let user = json!([{ "role": "user", "content": "a" }]);
    let schema = json!({ "type": "object", "properties": {} });
    let tool = json!([{ "type": "function", "function": { "name": "f", "parameters": schema } }]);
    let chat = json!({
        "max_tokens": 1, "max_completion_tokens": 1, "n": 2, "stop": ["x"], "logprobs": true, "stream": true,
        "stream_options": { "include_usage": true }, "tools": tool, "tool_choice": "none", "parallel_tool_calls": false,
        "response_format": { "type": "json_object" },
    });
    let more_chat = json!({
        "chat_template_kwargs": { "a": 1 }, "reasoning_effort": "low",
        "reasoning_format": "none", "thinking_budget": 5, "enable_thinking": false, "add_generation_prompt": true,
        "continue_final_message": false, "service_tier": "flex", "verbosity": "low", "modalities": ["text", "audio"],
        "functions": [{ "name": "f" }], "function_call": { "name": "f" }, "web_search_options": {}, "store": true,
        "metadata": { "a": "b" }, "user": "u", "prompt_cache_key": "k", "safety_identifier": "s",
        "prediction": { "type": "content", "content": "x" },
        "timings_per_token": true, "return_progress": true,
    });
    let completions = json!({
        "n": 2, "best_of": 2, "stop": "x", "logprobs": 2, "echo": true, "stream": true,
        "timings_per_token": true, "return_progress": true,
    });
    let responses = json!({
        "instructions": "b", "max_output_tokens": 1, "include": ["message.output_text.logprobs"],
        "text": { "format": { "type": "json_object" } }, "tools": [{ "type": "function", "name": "f", "parameters": schema }],
        "tool_choice": "none", "parallel_tool_calls": false, "reasoning": { "effort": "low", "summary": "auto" },
        "store": false, "stream": true, "truncation": "auto", "metadata": { "a": "b" }, "service_tier": "flex",
        "temperature": 0.5, "top_p": 0.5, "timings_per_token": true, "return_progress": true, "background": true, "conversation": "conv_1", "prompt": { "id": "p" },
        "max_tool_calls": 3, "prompt_cache_key": "k", "safety_identifier": "s", "user": "u",
        "context_management": [{ "type": "compaction", "compact_threshold": 1000 }],
    });
    let messages = json!({
        "system": "b", "stop_sequences": ["x"], "temperature": 0.5, "top_p": 0.9, "top_k": 5, "stream": true,
        "tools": [{ "name": "f", "input_schema": schema }], "tool_choice": { "type": "auto" },
        "thinking": { "type": "disabled" }, "metadata": { "user_id": "u" },
        "output_format": { "type": "json_schema", "schema": schema },
        "output_config": { "effort": "low" }, "mcp_servers": [{ "type": "url", "url": "u", "name": "n" }],
        "container": "c", "context_management": { "edits": [{ "type": "clear_tool_uses_20250919" }] },
    });
    let completion = json!({
        "stop": ["x"], "n_probs": 2, "return_tokens": true, "response_fields": ["content"], "stream": true,
        "t_max_predict_ms": 10_000, "post_sampling_probs": true, "return_progress": true, "timings_per_token": true,
        "n_indent": 2, "n_keep": 5, "n_cmpl": 2, "lora": [{ "id": 0, "scale": 1 }],
    });
    vec![
        (CHAT, json!({ "messages": user, "max_tokens": 1 }), and(and(chat, more_chat), sampling())),
        ("/v1/completions", json!({ "prompt": "a", "max_tokens": 1 }), and(completions, sampling())),
        ("/v1/responses", json!({ "input": "a", "max_output_tokens": 1 }), responses),
        ("/v1/messages", json!({ "messages": user, "max_tokens": 1 }), messages),
        ("/completion", json!({ "prompt": "a", "n_predict": 1 }), and(completion, sampling())),
    ]
}

#[test]
fn every_key_is_honoured_or_refused_by_name_and_the_page_says_which() {
    let server = Server::start(&[]);
    let mut table =
        String::from("| path | keys that work | known keys that are refused by name |\n|---|---|---|\n");
    for (path, base, keys) in paths() {
        let (mut works, mut refused) = (Vec::new(), Vec::new());
        for (key, value) in keys.as_object().unwrap() {
            let mut body = base.clone();
            body[key] = value.clone();
            let mut response = server.open(path, None, &body);
            let text = response.body_mut().read_to_string().unwrap();
            match response.status().as_u16() {
                200 => works.push(format!("`{key}`")),
                400 if text.contains(&format!("\"{key}\",\"code\":\"unsupported_")) => {
                    refused.push(format!("`{key}`"))
                }
                status => panic!("{path} with {key}: {status} {text}"),
            }
        }
        let refused = if refused.is_empty() { "none".to_owned() } else { refused.join(", ") };
        writeln!(table, "| `{path}` | {} | {refused} |", works.join(", ")).unwrap();
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/server.md");
    let page = std::fs::read_to_string(&file).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page has a place for the table");
    let (found, after) = rest.split_once(END).expect("the table has an end");
    if found != table {
        let new = Path::new(env!("CARGO_TARGET_TMPDIR")).join("server.md");
        std::fs::write(&new, [before, BEGIN, &table, END, after].concat()).unwrap();
        panic!("docs/server.md is out of date; the new page is {}", new.display());
    }
}
