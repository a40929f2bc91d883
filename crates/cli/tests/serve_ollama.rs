//! Ollama's API, with the real binary and requests of its clients.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{SMOLLM2, ok};
use crate::serve::Server;

/// The lines of a streamed response.
#[track_caller]
fn lines(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let mut response = server.open(path, None, body);
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    let text = response.body_mut().read_to_string().unwrap();
    assert!(text.ends_with('\n'));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The body with greedy sampling.
fn greedy(mut body: Value, more: Value) -> Value {
    body["options"] = json!({ "temperature": 0, "repeat_penalty": 1, "num_predict": 12 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn get(server: &Server, path: &str) -> Value {
    let (status, text) = server.get(path);
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

#[test]
fn chats_prompts_and_lists() {
    let server = Server::start(&["--deterministic", "--ctx", "512"]);
    let model = SMOLLM2.path();
    let question = json!([{ "role": "user", "content": "What is the capital of France?" }]);
    let chat = |more: Value| greedy(json!({ "model": model, "messages": question }), more);

    // Streaming is the default, and gives the same text.
    let pieces = lines(&server, "/api/chat", &chat(json!({})));
    let (last, pieces) = pieces.split_last().unwrap();
    let text: String = pieces.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect();
    assert!(text.len() > 10 && pieces.len() > 3, "{text}");
    let of_openai = json!({ "messages": question, "temperature": 0, "max_tokens": 12 });
    assert_eq!(server.ok("/v1/chat/completions", &of_openai)["choices"][0]["message"]["content"], text);
    assert!(pieces.iter().all(|line| line["done"] == false && line["model"] == *model));
    assert_eq!(
        (&last["done"], &last["done_reason"], &last["eval_count"]),
        (&json!(true), &json!("length"), &json!(12))
    );
    assert!(last["prompt_eval_count"].as_u64() > Some(10), "{last}");
    for name in ["total_duration", "load_duration", "eval_duration", "prompt_eval_duration"] {
        let nanoseconds = last[name].as_u64().unwrap();
        assert!(
            nanoseconds > 0 && nanoseconds < last["total_duration"].as_u64().unwrap() + 1,
            "{name}: {last}"
        );
    }
    assert!(last["created_at"].as_str().unwrap().ends_with('Z'));
    let named = format!("{model}:latest");
    let whole = server.ok("/api/chat", &chat(json!({ "stream": false, "model": named, "think": false })));
    assert_eq!(whole["message"], json!({ "role": "assistant", "content": text }));

    grammars_and_tools(&server, &question, &chat);
    // A chat longer than the context loses its oldest messages, unless the request forbids it.
    let words = "word ".repeat(20);
    let roles = ["user", "assistant"].into_iter().cycle().take(40);
    let long = roles.map(|role| json!({ "role": role, "content": words }));
    let messages: Vec<Value> = long.chain([question[0].clone()]).collect();
    let cut = server.ok("/api/chat", &chat(json!({ "stream": false, "messages": messages })));
    let n_prompt = cut["prompt_eval_count"].as_u64().unwrap();
    assert!((400..512).contains(&n_prompt), "{cut}");
    let (status, refused) =
        server.post("/api/chat", &chat(json!({ "messages": messages, "truncate": false })));
    assert_eq!(status, 400, "{refused}");

    let prompt =
        |more: Value| greedy(json!({ "model": model, "prompt": "What is the capital of France?" }), more);
    contexts(&server, &prompt);
    errors(&server, &chat, &prompt);
    // Endpoints that list things.
    assert_eq!(Server::agent().head(&server.url).call().unwrap().status(), 200);
    assert!(get(&server, "/api/version")["version"].is_string());
    let tags = get(&server, "/api/tags");
    let entry = &tags["models"][0];
    assert_eq!((&entry["name"], &entry["model"]), (&json!(model), &json!(model)));
    assert_eq!(entry["digest"].as_str().unwrap().len(), 64);
    assert_eq!(entry["size"], std::fs::metadata(&model).unwrap().len());
    let details = json!({ "parent_model": "", "format": "gguf", "family": "llama", "families": ["llama"],
        "parameter_size": "134.52M", "quantization_level": "Q4_1" });
    assert_eq!(entry["details"], details);
    let shown = server.ok("/api/show", &json!({ "name": model }));
    assert_eq!((&shown["details"], &shown["capabilities"]), (&details, &json!(["completion", "tools"])));
    assert_eq!(shown["model_info"]["llama.context_length"], 8192);
    assert!(shown["template"].as_str().unwrap().contains("<|im_start|>"));
}

/// Adds keys to a request.
type Request<'a> = &'a dyn Fn(Value) -> Value;

/// Grammars, log-probabilities, a continued answer, and tools.
fn grammars_and_tools(server: &Server, question: &Value, chat: Request<'_>) {
    let schema = json!({
        "type": "object", "required": ["city"], "additionalProperties": false,
        "properties": { "city": { "enum": ["Paris", "Rome"] } },
    });
    let body = chat(
        json!({ "stream": false, "format": schema, "logprobs": true, "top_logprobs": 2, "options": {} }),
    );
    let found = server.ok("/api/chat", &body);
    let city: Value = serde_json::from_str(found["message"]["content"].as_str().unwrap()).unwrap();
    assert!(city["city"] == "Paris" || city["city"] == "Rome", "{found}");
    let first = &found["logprobs"][0];
    assert!(
        first["logprob"].as_f64().unwrap() <= 0.0 && first["top_logprobs"].as_array().unwrap().len() == 2
    );
    let asked = json!({ "role": "user", "content": "Name the capital of France." });
    let begun = json!([asked, { "role": "assistant", "content": "The capital of France is" }]);
    let on = server.ok("/api/chat", &chat(json!({ "stream": false, "messages": begun })));
    assert!(on["message"]["content"].as_str().unwrap().starts_with(" Paris"), "{on}");
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": {
        "type": "object", "properties": { "city": { "type": "string" } } } } });
    let called = json!([
        question[0],
        { "role": "assistant", "tool_calls": [{ "function": { "name": "f", "arguments": { "city": "Paris" } } }] },
        { "role": "tool", "tool_name": "f", "content": "It is." },
    ]);
    server.ok("/api/chat", &chat(json!({ "stream": false, "messages": called, "tools": [tool] })));
    // With an example in the chat, the model calls the tool. The call is complete, with an object
    // of arguments.
    let shown = ["Rome", "Oslo", "Lima"].into_iter().flat_map(|city| {
        let call = json!({ "function": { "name": "get_weather", "arguments": { "city": city } } });
        let question = format!("What is the weather in {city}?");
        [json!({ "role": "user", "content": question }), json!({ "role": "assistant", "tool_calls": [call] })]
    });
    let asked = json!({ "role": "user", "content": "What is the weather in Paris?" });
    let messages: Vec<Value> = shown.chain([asked]).collect();
    let weather = json!({ "type": "function", "function": { "name": "get_weather", "description": "Weather of a city",
        "parameters": { "type": "object", "required": ["city"], "properties": { "city": { "type": "string" } } } } });
    let options = json!({ "temperature": 0, "repeat_penalty": 1, "num_predict": 60 });
    let pieces = lines(
        server,
        "/api/chat",
        &chat(json!({ "messages": messages, "tools": [weather], "options": options })),
    );
    let calls: Vec<&Value> = pieces.iter().filter_map(|line| line["message"]["tool_calls"].get(0)).collect();
    assert_eq!(
        calls[0]["function"],
        json!({ "index": 0, "name": "get_weather", "arguments": { "city": "Paris" } })
    );
    assert!(calls[0]["id"].as_str().unwrap().starts_with("call_"));
    assert_eq!(pieces.last().unwrap()["done_reason"], "stop");
}

/// Prompts with the template, raw, and with the context of an earlier answer.
fn contexts(server: &Server, prompt: Request<'_>) {
    let pieces = lines(server, "/api/generate", &prompt(json!({ "system": "Answer in one word." })));
    let (last, pieces) = pieces.split_last().unwrap();
    let told: String = pieces.iter().map(|line| line["response"].as_str().unwrap()).collect();
    assert!(told.len() > 2, "{told}");
    let context = last["context"].as_array().unwrap();
    let n_context = last["prompt_eval_count"].as_u64().unwrap() + last["eval_count"].as_u64().unwrap();
    assert!((context.len() as u64).abs_diff(n_context) <= 1, "{last}");
    let tokens = server.ok("/detokenize", &json!({ "tokens": context }));
    assert!(tokens["content"].as_str().unwrap().contains(&told), "{tokens}");
    let again = server.ok(
        "/api/generate",
        &prompt(json!({ "stream": false, "context": context, "prompt": "And of Italy?" })),
    );
    assert!(again["prompt_eval_count"].as_u64().unwrap() > n_context, "{again}");
    // SmolLM2's messages begin with its BOS token, which must not be lost.
    let tokens = server.ok("/detokenize", &json!({ "tokens": again["context"] }));
    assert_eq!(tokens["content"].as_str().unwrap().matches("<|im_start|>system").count(), 2, "{tokens}");
    let raw = json!({ "stream": false, "raw": true, "prompt": "The capital of France is" });
    let raw = server.ok("/api/generate", &prompt(raw));
    assert!(raw["response"].as_str().unwrap().starts_with(" Paris") && raw["context"].is_null(), "{raw}");
}

/// An error is a text that names the fault.
fn errors(server: &Server, chat: Request<'_>, prompt: Request<'_>) {
    let model = SMOLLM2.path();
    for (path, body, status, words) in [
        ("/api/chat", chat(json!({ "model": "gpt-9" })), 404, "not found"),
        ("/api/chat", chat(json!({ "think": true })), 400, "does not support thinking"),
        (
            "/api/chat",
            chat(json!({ "messages": [{ "role": "user", "content": "a", "images": ["aGk="] }] })),
            400,
            "sees no images",
        ),
        ("/api/chat", chat(json!({ "format": { "type": "nonsense" } })), 400, "grammar"),
        ("/api/chat", chat(json!({ "options": { "temperature": "hot" } })), 400, "options.temperature"),
        ("/api/chat", chat(json!({ "stream": "yes" })), 400, "`stream`"),
        ("/api/generate", prompt(json!({ "template": "{{ .Prompt }}" })), 400, "template"),
        ("/api/generate", prompt(json!({ "images": ["aGk="] })), 400, "sees no images"),
        ("/api/generate", prompt(json!({ "raw": true, "system": "a" })), 400, "raw"),
        ("/api/generate", prompt(json!({ "context": [99_999_999] })), 400, "99999999"),
        ("/api/embed", json!({ "model": model, "input": "a" }), 400, "no embeddings"),
        ("/api/show", json!({ "model": "gpt-9" }), 404, "not found"),
        ("/api/show", json!({}), 400, "`model` is missing"),
        ("/api/create", json!({ "model": "a", "from": "b" }), 400, "/api/create"),
        ("/api/copy", json!({}), 400, "not offered"),
        ("/api/pull", json!({ "model": "smollm2:135m" }), 403, "--allow-pull"),
        ("/api/embed", json!({ "input": [1] }), 400, "expected a text"),
        ("/api/nothing", json!({}), 404, "nothing at POST /api/nothing"),
    ] {
        let (found, answer) = server.post(path, &body);
        let error = answer["error"].as_str().unwrap_or_else(|| panic!("{path}: {answer}"));
        assert!(found == status && error.contains(words), "{path} {found}: {answer}");
    }
    assert_eq!(server.get("/api/chat").0, 405);
}

/// SmolLM2 with a template for reasoning, of the same length as its own, so that nothing else in
/// the file moves.
fn thinking_model(folder: &std::path::Path) -> String {
    let inspected: Value = serde_json::from_str(&ok(&["inspect", &SMOLLM2.path(), "--json"])).unwrap();
    let own = inspected["metadata"]["tokenizer.chat_template"].as_str().unwrap();
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n\
        {% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}";
    let template = format!("{template}{{#{}#}}", " ".repeat(own.len() - template.len() - 4));
    let mut bytes = std::fs::read(SMOLLM2.path()).unwrap();
    let at = bytes.windows(own.len()).position(|window| window == own.as_bytes()).unwrap();
    bytes[at..at + own.len()].copy_from_slice(template.as_bytes());
    let path = folder.join("thinking.gguf");
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn reasoning_is_apart() {
    let folder = tempfile::tempdir().unwrap();
    let model = thinking_model(folder.path());
    let server = Server::start(&[&model, "--deterministic"]);
    let shown = server.ok("/api/show", &json!({ "model": model }));
    assert_eq!(shown["capabilities"], json!(["completion", "tools", "thinking"]));
    let messages = json!([{ "role": "user", "content": "Why is the sky blue?" }]);
    let asked = |more: Value| greedy(json!({ "model": model, "messages": messages, "prompt": "Why?" }), more);
    let both = |line: &Value| {
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        (text("thinking"), text("content") + &text("response"))
    };
    for think in [json!(true), json!("low"), Value::Null] {
        let pieces = lines(&server, "/api/chat", &asked(json!({ "think": think })));
        let (thinking, content): (String, String) = pieces.iter().map(|line| both(&line["message"])).unzip();
        assert!(thinking.len() > 5 && content.is_empty(), "{pieces:?}");
        let whole = server.ok("/api/chat", &asked(json!({ "think": think, "stream": false })));
        assert_eq!(whole["message"]["thinking"], thinking);
        let generated = server.ok("/api/generate", &asked(json!({ "think": think, "stream": false })));
        let (thinking, content) = both(&generated);
        assert!(thinking.len() > 5 && content.is_empty(), "{generated}");
    }
    let (thinking, content) =
        both(&server.ok("/api/chat", &asked(json!({ "think": false, "stream": false })))["message"]);
    assert!(thinking.is_empty() && content.len() > 5, "{content}");
}

#[test]
fn models_are_loaded_and_unloaded_when_asked() {
    let server = Server::start(&["minilm:l6", "--keep-alive", "-1"]);
    let loaded = || -> Vec<String> {
        let models = get(&server, "/api/ps")["models"].as_array().unwrap().clone();
        models.iter().map(|model| model["name"].as_str().unwrap().to_owned()).collect()
    };
    let model = SMOLLM2.path();
    assert_eq!(loaded(), std::slice::from_ref(&model));
    // The model's details are available before it is loaded, and do not load it.
    let shown = server.ok("/api/show", &json!({ "model": "minilm:l6" }));
    assert_eq!(
        (&shown["capabilities"], &shown["details"]["format"]),
        (&json!(["embedding"]), &json!("safetensors"))
    );
    assert_eq!(loaded(), std::slice::from_ref(&model));

    let embed = |more: Value| {
        let mut body = json!({ "model": "minilm:l6", "input": ["A hearth is warm.", "Ice"] });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.ok("/api/embed", &body)
    };
    let found = embed(json!({}));
    assert!(
        found["load_duration"].as_u64() > Some(1_000_000) && found["prompt_eval_count"].as_u64() > Some(4)
    );
    let numbers = |vector: &Value| -> Vec<f64> {
        vector.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let vector = numbers(&found["embeddings"][1]);
    assert!((vector.iter().map(|x| x * x).sum::<f64>() - 1.0).abs() < 1e-5 && vector.len() == 384);
    let short = embed(json!({ "input": "Ice", "dimensions": 16 }));
    assert!(short["load_duration"].as_u64() < Some(1_000_000), "{short}");
    assert_eq!(short["embeddings"][0].as_array().unwrap().len(), 16);
    let old = server.ok("/api/embeddings", &json!({ "model": "minilm:l6", "prompt": "Ice" }));
    assert!(numbers(&old["embedding"]).iter().zip(&vector).all(|(a, b)| (a - b).abs() < 1e-5));
    // Long texts are cut, unless the request forbids it.
    let long = "word ".repeat(600);
    embed(json!({ "input": long }));
    let body = json!({ "model": "minilm:l6", "input": long, "truncate": false });
    assert_eq!(server.post("/api/embed", &body).0, 400);
    assert_eq!(embed(json!({ "input": [] }))["embeddings"], json!([]));
    assert_eq!(loaded(), [model.clone(), "minilm:l6".to_owned()]);

    // A request without a prompt loads or unloads the model.
    let ask = |path: &str, more: Value| {
        let mut body = json!({ "model": model });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.ok(path, &body)
    };
    let unloaded = ask("/api/chat", json!({ "messages": [], "keep_alive": 0 }));
    assert_eq!((&unloaded["done_reason"], &unloaded["message"]["content"]), (&json!("unload"), &json!("")));
    assert_eq!(loaded(), ["minilm:l6"]);
    let loading = ask("/api/generate", json!({ "keep_alive": "1h" }));
    assert_eq!((&loading["done_reason"], &loading["done"]), (&json!("load"), &json!(true)));
    let ps = get(&server, "/api/ps");
    let hour = ps["models"][0]["expires_at"].as_str().unwrap();
    assert!(hour < "2200" && ps["models"][1]["expires_at"].as_str() > Some("2200"), "{ps}");
    assert_eq!(
        (&ps["models"][0]["context_length"], &ps["models"][0]["size_vram"]),
        (&json!(8192), &json!(0))
    );
    // A model in use is unloaded after its answer.
    let body = json!({ "model": model, "prompt": "Tell a story.", "keep_alive": "1h", "options": { "num_predict": 60 } });
    let response = server.open("/api/generate", None, &body);
    ask("/api/generate", json!({ "keep_alive": "0s" }));
    let text = response.into_body().read_to_string().unwrap();
    assert!(text.lines().last().unwrap().contains("\"done\":true"), "{text}");
    let begun = Instant::now();
    // The other model may also be unloaded if the machine is short of memory.
    while loaded().contains(&model) {
        assert!(begun.elapsed() < Duration::from_secs(20), "it stays loaded: {}", get(&server, "/api/ps"));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_is_pulled_is_served_until_it_is_deleted() {
    // A cache of this test, in which SmolLM2 looks fetched.
    let cache = tempfile::tempdir().unwrap();
    let file = std::path::PathBuf::from(SMOLLM2.path());
    let folder = cache.path().join("wheels").join("smollm2-135m");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(&file, folder.join(file.file_name().unwrap())).unwrap();
    // A hub's cache with a model that another program fetched.
    let hub = tempfile::tempdir().unwrap();
    let foreign = hub.path().join("models--foo--bar/snapshots").join("a".repeat(40)).join("m.gguf");
    std::fs::create_dir_all(foreign.parent().unwrap()).unwrap();
    std::fs::copy(&file, &foreign).unwrap();
    let foreign_name = format!("hf:foo/bar/m.gguf@{}", "a".repeat(40));
    let folders = ["--cache", cache.path().to_str().unwrap(), "--hf-cache", hub.path().to_str().unwrap()];
    let server = Server::start(&[&folders[..], &["--allow-pull", "--offline"]].concat());
    let names = || -> Vec<String> {
        let models = get(&server, "/api/tags")["models"].as_array().unwrap().clone();
        models.iter().map(|model| model["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(), [SMOLLM2.path(), foreign_name.clone(), SMOLLM2.name.to_owned()]);
    let ask = |name: &str| {
        let options = json!({ "num_predict": 1 });
        server.post(
            "/api/generate",
            &json!({ "model": name, "prompt": "a", "stream": false, "options": options }),
        )
    };
    assert_eq!(ask("smollm2:135m:latest").0, 200);
    let pulled = lines(&server, "/api/pull", &json!({ "model": "SmolLM2:135m" }));
    assert_eq!(pulled.last().unwrap(), &json!({ "status": "success" }));
    assert_eq!(
        server.ok("/api/pull", &json!({ "name": SMOLLM2.name, "stream": false })),
        json!({ "status": "success" })
    );

    let delete = |name: &str| {
        let url = format!("{}/api/delete", server.url);
        let request = ureq::http::Request::delete(url).body(json!({ "model": name }).to_string()).unwrap();
        let mut response = Server::agent().run(request).unwrap();
        (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
    };
    assert_eq!(delete(SMOLLM2.name), (200, String::new()));
    assert!(!folder.exists());
    assert_eq!(names(), [SMOLLM2.path(), foreign_name.clone()]);
    let (status, gone) = ask(SMOLLM2.name);
    assert!(status == 404 && gone["error"].as_str().unwrap().contains("not found"), "{gone}");
    assert_eq!(delete(SMOLLM2.name).0, 404);
    // Clients can neither delete nor read files that Ingle did not fetch.
    for name in ["hf:foo/bar", "hf:foo/bar/m.gguf", &foreign_name] {
        let (status, said) = delete(name);
        assert!(status == 403 && said.contains("Ingle has no record of fetching"), "{status} {said}");
    }
    assert!(foreign.is_file());
    assert_eq!(delete("ollama:x").0, 403);
    // The response does not reveal the existence of other files.
    assert_eq!((delete("Cargo.toml").0, delete("Cargo.tom").0), (404, 404));
    assert_eq!(delete(&SMOLLM2.path()).0, 403);
    assert_eq!(ask("/etc/passwd").0, 404);
    let (status, offline) = server.post("/api/pull", &json!({ "model": "gemma3:270m-base" }));
    assert!(status == 503 && offline["error"].as_str().unwrap().contains("offline"), "{offline}");
    assert_eq!(server.post("/api/pull", &json!({ "model": "llama9" })).0, 404);
    assert_eq!(server.post("/api/pull", &json!({ "model": "./x.gguf" })).0, 404);
}
