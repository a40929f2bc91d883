//! Requests that `ingle serve` accepts: keys and their rates, pages of other sites, other host
//! names, TLS.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::common::{SMOLLM2, error, fixture};
use crate::serve::Server;

/// Status, headers and body of a request with these headers.
fn ask(server: &Server, method: &str, path: &str, headers: &[(&str, &str)]) -> (u16, String, String) {
    let address = server.url.split_once("://").unwrap().1;
    let mut stream = TcpStream::connect(address).unwrap();
    let mut request = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "host") {
        request += &format!("host: {address}\r\n");
    }
    let body = if method == "POST" { r#"{"content":"a"}"# } else { "" };
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    request += &format!("content-length: {}\r\n\r\n{body}", body.len());
    // A server that rejects headers may close the connection before it has read all of them. Its
    // response can be read anyway.
    _ = stream.write_all(request.as_bytes());
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_ascii_lowercase(), body.to_owned())
}

#[test]
fn a_server_without_keys_answers_this_machine_alone() {
    let server = Server::start(&["--allow-host", "box.lan"]);
    let status = |headers: &[(&str, &str)]| ask(&server, "POST", "/tokenize", headers).0;
    assert_eq!(status(&[]), 200);
    assert_eq!(status(&[("host", "localhost")]), 200);
    assert_eq!(status(&[("host", "box.lan:8080")]), 200);
    let (rebound, _, body) = ask(&server, "POST", "/tokenize", &[("host", "evil.org")]);
    assert_eq!(rebound, 403);
    assert!(body.contains("expected localhost or a name given with --allow-host"), "{body}");
    // A form of another site is sent without a preflight.
    let form = [("origin", "https://evil.org"), ("content-type", "text/plain")];
    assert_eq!(status(&form), 403);
    let own = server.url.clone();
    assert_eq!(status(&[("origin", &own)]), 200);
    // Scripts of another site cannot read a response.
    let (_, head, _) = ask(&server, "GET", "/v1/models", &[("origin", "https://evil.org")]);
    assert!(!head.contains("access-control-allow-origin"), "{head}");
    // Headers have limits.
    let many: Vec<(String, String)> = (0..150).map(|i| (format!("x-{i}"), "y".to_owned())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (&**name, &**value)).collect();
    assert_eq!(status(&many), 431);
    let long = "y".repeat(63 << 10);
    assert_eq!(status(&[("x-long", &long)]), 200);
    let (too_long, _, body) =
        ask(&server, "POST", "/tokenize", &[("x-long", &long), ("x-more", &long[..2 << 10])]);
    assert_eq!(too_long, 431);
    assert!(body.contains("expected at most 65536"), "{body}");
}

#[test]
fn keys_come_from_a_file_and_have_their_rates_and_named_sites_may_ask() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "# Three tenants\nfirst # of the house\n\nsecond\nsk-c#d\n").unwrap();
    let keys = keys.to_str().unwrap();
    let site = "https://chat.example.org";
    let server = Server::start(&["--api-key-file", keys, "--rate-limit", "2", "--allow-origin", site]);
    // A preflight has no key.
    let preflight = [
        ("origin", site),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization, x-stainless-os"),
    ];
    let (status, head, _) = ask(&server, "OPTIONS", "/v1/chat/completions", &preflight);
    assert_eq!(status, 200);
    assert!(head.contains(&format!("access-control-allow-origin: {site}")), "{head}");
    assert!(head.contains("access-control-allow-headers: authorization, x-stainless-os"), "{head}");
    let (_, head, _) =
        ask(&server, "OPTIONS", "/v1/chat/completions", &[("origin", "https://b.org"), preflight[1]]);
    assert!(!head.contains("access-control-allow-origin"), "{head}");
    let tokenize = |key: &str| {
        let mut response = server.open("/tokenize", Some(key), &json!({ "content": "a" }));
        let wait = response.headers().get("retry-after").map(|wait| wait.to_str().unwrap().to_owned());
        let body: Value = serde_json::from_str(&response.body_mut().read_to_string().unwrap()).unwrap();
        (response.status().as_u16(), wait, body)
    };
    assert_eq!(tokenize("of the house").0, 401);
    assert_eq!((tokenize("first").0, tokenize("first").0), (200, 200));
    let (status, wait, body) = tokenize("first");
    assert_eq!((status, &body["error"]["code"]), (429, &json!("rate_limit_exceeded")), "{body}");
    assert!((1..=30).contains(&wait.unwrap().parse::<u32>().unwrap()));
    assert_eq!((tokenize("second").0, tokenize("sk-c#d").0), (200, 200));
    assert_eq!(tokenize("sk-c").0, 401, "a key ends where its line does");
    assert_eq!(server.get("/health").0, 200);
}

/// Status of a request with these lines.
fn raw(server: &Server, lines: &[u8]) -> u16 {
    let mut stream = TcpStream::connect(server.url.split_once("://").unwrap().1).unwrap();
    stream.write_all(&[lines, b"connection: close\r\n\r\n"].concat()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_request_names_one_host() {
    let server = Server::start(&[]);
    for (lines, status) in [
        (&b"GET /props HTTP/1.1\r\nhost: localhost\r\n"[..], 200),
        (b"GET /props HTTP/1.1\r\nhost: [::1]:80\r\n", 200),
        (b"GET /props HTTP/1.0\r\n", 200),
        (b"GET /props HTTP/1.1\r\nhost: evil.org\r\n", 403),
        (b"GET /props HTTP/1.1\r\n", 400),
        (b"GET / HTTP/1.1\r\n", 400),
        (b"GET /props HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n", 400),
        (b"GET /props HTTP/1.1\r\nhost: evil.org\r\nHost: localhost\r\n", 400),
        (b"GET /props HTTP/1.1\r\nhost: ev\xffil.org\r\n", 400),
        (b"GET /props HTTP/1.1\r\nhost: [localhost]x\r\n", 400),
        (b"GET /props HTTP/1.1\r\nhost: \r\n", 400),
        (b"GET http://evil.org/props HTTP/1.1\r\nhost: localhost\r\n", 400),
    ] {
        assert_eq!(raw(&server, lines), status, "{}", String::from_utf8_lossy(lines));
    }
}

#[test]
fn pages_of_other_sites_have_no_model_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("models.toml");
    std::fs::write(&config, format!("[[models]]\nname = \"second\"\nsource = {:?}\n", SMOLLM2.path()))
        .unwrap();
    let server = Server::start(&["--config", config.to_str().unwrap()]);
    let is_loaded = || ask(&server, "GET", "/api/ps", &[]).2.contains("\"second\"");
    for path in ["/tokenizer_info?model=second", "/props?model=second"] {
        for from in [
            ("origin", "https://evil.org"),
            ("origin", "null"),
            // Requests of an image, a frame or a link.
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            assert_eq!(ask(&server, "GET", path, &[from]).0, 403, "{path} {from:?}");
        }
    }
    assert!(!is_loaded());
    assert_eq!(ask(&server, "GET", "/", &[("sec-fetch-site", "cross-site")]).0, 200);
    assert_eq!(ask(&server, "GET", "/props?model=second", &[("sec-fetch-site", "none")]).0, 200);
    assert!(is_loaded());
}

#[test]
fn tls_with_a_certificate_and_its_key() {
    let [cert, key] = ["crt", "key"].map(|end| fixture(&format!("tls/localhost.{end}")));
    let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
    let server = Server::start(&["--tls-cert", cert, "--tls-key", key]);
    assert!(server.url.starts_with("https://"), "{}", server.url);
    let answer = server.ok("/tokenize", &json!({ "content": "a b" }));
    assert_eq!(answer["count"], 2);
    let message = error(&["serve", "x.gguf", "--tls-cert", key, "--tls-key", key]);
    assert!(message.contains("holds no certificate"), "{message}");
}

#[test]
fn errors_name_files_without_their_folders() {
    let folder = tempfile::tempdir().unwrap();
    let (config, broken) = (folder.path().join("models.toml"), folder.path().join("broken model.gguf"));
    std::fs::write(&broken, "GGUF and nothing more").unwrap();
    std::fs::write(&config, format!("[[models]]\nname = \"broken\"\nsource = {broken:?}\n")).unwrap();
    let server = Server::start(&["--config", config.to_str().unwrap()]);
    let (status, said) = server.post("/v1/completions", &json!({ "model": "broken", "prompt": "a" }));
    let said = said["error"]["message"].as_str().unwrap().to_owned();
    assert!(status == 500 && said.contains("broken model.gguf"), "{status} {said}");
    assert!(!said.contains(folder.path().to_str().unwrap()), "{said}");
    // The id of the first model is its path, which the operator typed.
    let image = json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,aaaa" } });
    let body = json!({ "messages": [{ "role": "user", "content": [image] }] });
    let (status, said) = server.post("/v1/chat/completions", &body);
    let said = said["error"]["message"].as_str().unwrap().to_owned();
    let place = SMOLLM2.path();
    let folder = std::path::Path::new(&place).parent().unwrap().to_str().unwrap().to_owned();
    assert!(status == 400 && said.contains("sees no images") && !said.contains(&folder), "{status} {said}");
}
