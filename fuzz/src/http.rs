//! Request bodies of every API. An invalid one is refused with a 4xx status, never with a 5xx.
//!
//! The server has no model that loads, so the target fuzzes only how requests are read.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use runner::{KeepAlive, LoadError, Loaded, Loader, Options, Runner, SamplingChoice};
use serde_json::Value;
use server::{Access, Origins};
use tokio::runtime::Runtime;
use tower::ServiceExt;

const NO_MODEL: &str = "this server has no model that loads";

/// Refuses every model.
struct Nothing;

impl Loader for Nothing {
    fn load(&self, _: &str) -> Result<Loaded, LoadError> {
        Err(LoadError { message: NO_MODEL.to_owned(), does_not_fit: false })
    }
}

struct Served {
    router: Router,
    runtime: Runtime,
    /// Methods and paths that accept a body.
    paths: Vec<(String, String)>,
}

fn served() -> &'static Served {
    static SERVED: OnceLock<Served> = OnceLock::new();
    SERVED.get_or_init(|| {
        let options = Options {
            models: vec!["model".to_owned()],
            keep_alive: KeepAlive::Always,
            max_waiting: 8,
            max_wait: Duration::from_secs(300),
            governor: None,
            max_tokens: None,
            stream_interval: Duration::ZERO,
            sampling: SamplingChoice::default(),
        };
        let runner = Runner::new(options, Arc::new(Nothing));
        let router =
            server::router(runner, Access::new(&[], &[0; 32], None), Origins::new(&[]).expect("no origins"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let api: Value =
            serde_json::from_str(include_str!("../../crates/server/src/api/openapi.json")).expect("JSON");
        let of_path = |(path, methods): (&String, &Value)| {
            let path = path.replace("{id}", "x");
            let methods = methods.as_object().into_iter().flatten().map(|(method, _)| method.to_uppercase());
            methods.map(|method| (method, path.clone())).collect::<Vec<_>>()
        };
        let paths = api["paths"].as_object().into_iter().flatten().flat_map(of_path);
        Served { router, runtime, paths: paths.filter(|(method, _)| method != "GET").collect() }
    })
}

/// Sends an input to the path that its first byte selects; the rest is the body.
pub(crate) fn run(data: &[u8]) {
    let Some((path, body)) = data.split_first() else { return };
    let served = served();
    let (method, path) = &served.paths[usize::from(*path) % served.paths.len()];
    let kind = match path.contains("audio") || path.ends_with("/files") {
        true => "multipart/form-data; boundary=X",
        false => "application/json",
    };
    let request = Request::builder()
        .method(method.as_str())
        .uri(path)
        .header("host", "localhost")
        .header("content-type", kind)
        .body(Body::from(body.to_vec()))
        .expect("a request");
    served.runtime.block_on(async {
        let answer = served.router.clone().oneshot(request).await.expect("an answer");
        let status = answer.status();
        if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED {
            let body = answer.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            let body = String::from_utf8_lossy(&body);
            assert!(body.contains(NO_MODEL), "{method} {path}: {status} {body}");
        }
    });
}

/// Seeds: a valid body for each path, and for each path a body that is valid in parts.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let chat = r#"{"model":"model","messages":[{"role":"system","content":"x"},{"role":"user","content":[{"type":"text","text":"Hi"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"x":{"type":"number"}}}}}],"tool_choice":"auto","stream":true,"stop":["a"],"logit_bias":{"1":1},"temperature":0.5,"top_p":0.9,"n":2,"max_tokens":5,"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object"}}}}"#;
    let text = r#"{"model":"model","prompt":"Hi","input":["Hi"],"content":"Hi","tokens":[1],"query":"q","documents":["a"],"n_predict":5,"stop":["a"],"dry_sequence_breakers":["a"],"grammar":"root ::= \"a\"","options":{"temperature":1,"stop":"a"},"samplers":["top_k"],"keep_alive":"5m","logprobs":1,"max_tokens":5}"#;
    let anthropic = r#"{"model":"model","max_tokens":5,"system":[{"type":"text","text":"x"}],"messages":[{"role":"user","content":[{"type":"text","text":"Hi"},{"type":"tool_result","tool_use_id":"a","content":"b"}]}],"tools":[{"name":"f","input_schema":{"type":"object"}}],"thinking":{"type":"enabled","budget_tokens":1024}}"#;
    let responses = r#"{"model":"model","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"Hi"}]},{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"a","output":"b"}],"tools":[{"type":"function","name":"f","parameters":{"type":"object"}}],"reasoning":{"effort":"low"},"text":{"format":{"type":"text"}}}"#;
    let form = "--X\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nmodel\r\n--X\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF\r\n--X\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nuser_data\r\n--X--\r\n";
    let mut seeds = Vec::new();
    for (i, _) in served().paths.iter().enumerate() {
        for body in [chat, text, anthropic, responses, form] {
            seeds.push([&[i as u8], body.as_bytes()].concat());
        }
    }
    seeds
}
