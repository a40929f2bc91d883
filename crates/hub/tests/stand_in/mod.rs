//! A local hub for the tests. It responds from memory, records every request, and ends by itself.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ingle_hub::{Cache, Options, Progress, Token};
use sha2::{Digest, Sha256};

/// Lifetime of the server, longer than any test.
const LIFETIME: Duration = Duration::from_secs(60);

/// A request.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub headers: BTreeMap<String, String>,
}

/// A response. Its `Content-Length` is that of the body, unless the headers have one.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Closes the connection after this many bytes of the body.
    pub break_after: Option<usize>,
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, body: body.into(), ..Self::default() }
    }

    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.to_string(), value.to_string()));
        self
    }
}

type Handler = dyn Fn(&Request) -> Reply + Send + Sync;

/// A server on a free port of 127.0.0.1.
pub struct Server {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Request>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let handler: Arc<Handler> = Arc::new(handler);
        let thread = std::thread::spawn({
            let (seen, stop) = (seen.clone(), stop.clone());
            move || {
                let begun = Instant::now();
                let mut connections = Vec::new();
                while !stop.load(Ordering::SeqCst) && begun.elapsed() < LIFETIME && connections.len() < 500 {
                    match listener.accept() {
                        Ok((stream, _)) => {
                            let (handler, seen) = (handler.clone(), seen.clone());
                            connections.push(std::thread::spawn(move || serve(stream, &*handler, &seen)));
                        }
                        Err(_) => std::thread::sleep(Duration::from_millis(1)),
                    }
                }
                for connection in connections {
                    let _ = connection.join();
                }
            }
        });
        Self { address, seen, stop, thread: Some(thread) }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Every request so far.
    pub fn requests(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }

    /// Removes the requests so far; returns the method and path of each.
    pub fn take(&self) -> Vec<String> {
        let seen = std::mem::take(&mut *self.seen.lock().unwrap());
        seen.into_iter().map(|request| format!("{} {}", request.method, request.path)).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves one request of a connection.
fn serve(stream: TcpStream, handler: &Handler, seen: &Mutex<Vec<Request>>) {
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut lines = BufReader::new((&stream).take(64 << 10)).lines().map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    let mut words = first.split(' ').map(str::to_string);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let headers = lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| {
            line.split_once(':').map(|(name, value)| (name.to_lowercase(), value.trim().to_string()))
        })
        .collect();
    let request = Request { method, path, headers };
    seen.lock().unwrap().push(request.clone());
    let reply = handler(&request);

    let mut head = format!("HTTP/1.1 {} Stand-in\r\nConnection: close\r\n", reply.status);
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !reply.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-length")) {
        head.push_str(&format!("Content-Length: {}\r\n", reply.body.len()));
    }
    head.push_str("\r\n");
    let mut out = &stream;
    let _ = out.write_all(head.as_bytes());
    if request.method != "HEAD" {
        let end = reply.break_after.unwrap_or(reply.body.len()).min(reply.body.len());
        let _ = out.write_all(&reply.body[..end]);
    }
    let _ = out.flush();
}

/// A repository's commits, and the failures to simulate.
#[derive(Default)]
pub struct State {
    /// Files of each commit.
    pub commits: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    /// The commit of `main` and of other names.
    pub refs: BTreeMap<String, String>,
    /// For each of the next downloads, the number of bytes after which it breaks.
    pub breaks: VecDeque<usize>,
    /// The content host ignores Range and sends everything.
    pub no_ranges: bool,
    /// The content host sends these bytes instead.
    pub corrupt: Option<Vec<u8>>,
    /// The hub's next replies, before it responds normally.
    pub first: VecDeque<Reply>,
}

/// The hub, and the content host that it redirects large files to: another port, so another origin.
pub struct Hub {
    pub hub: Server,
    pub content: Server,
    pub state: Arc<Mutex<State>>,
}

pub const REPO: &str = "org/model";

/// A commit hash, one digit repeated.
pub fn commit(digit: char) -> String {
    digit.to_string().repeat(40)
}

/// sha256 in lower-case hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes that differ everywhere, so that a wrong offset shows.
pub fn bytes(n: usize, seed: u32) -> Vec<u8> {
    (0..n as u32).map(|i| (i.wrapping_add(seed).wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

impl Hub {
    /// Starts a hub with one commit, `main`, of these files. Files ending in `.gguf` or
    /// `.safetensors` count as large.
    pub fn start(files: &[(&str, Vec<u8>)]) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let content = Server::start({
            let state = state.clone();
            move |request| content_host(request, &mut state.lock().unwrap())
        });
        let hub = Server::start({
            let (state, content) = (state.clone(), content.url());
            move |request| hub_host(request, &mut state.lock().unwrap(), &content)
        });
        let hub = Self { hub, content, state };
        hub.publish("main", &commit('a'), files);
        hub
    }

    /// Sets the commit of `revision`, with these files.
    pub fn publish(&self, revision: &str, commit: &str, files: &[(&str, Vec<u8>)]) {
        let mut state = self.state.lock().unwrap();
        let files = files.iter().map(|(name, bytes)| (name.to_string(), bytes.clone())).collect();
        state.commits.insert(commit.to_string(), files);
        state.refs.insert(revision.to_string(), commit.to_string());
    }

    pub fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    /// Options for this hub: a token, short waits.
    pub fn options(&self) -> Options {
        options(&self.hub.url())
    }
}

/// Options for a hub at `endpoint`: a token, short waits.
pub fn options(endpoint: &str) -> Options {
    Options {
        endpoint: endpoint.to_string(),
        token: Some(Token::new("hf_secret").unwrap()),
        retries: 3,
        backoff: Duration::from_millis(1),
        connect_timeout: Duration::from_secs(5),
        silence_timeout: Duration::from_secs(5),
        ..Options::default()
    }
}

fn is_large(file: &str) -> bool {
    file.ends_with(".gguf") || file.ends_with(".safetensors")
}

/// `GET /api/models/org/model/revision/REV` and `HEAD|GET /org/model/resolve/REV/FILE`.
fn hub_host(request: &Request, state: &mut State, content: &str) -> Reply {
    if let Some(reply) = state.first.pop_front() {
        return reply;
    }
    let error =
        |code: &str| Reply::new(404, "").with("X-Error-Code", code).with("X-Error-Message", "not here");
    let meaning = |revision: &str| {
        let revision = revision.replace("%2F", "/");
        let commit = state.refs.get(&revision).cloned().unwrap_or(revision);
        state.commits.get(&commit).map(|files| (commit, files))
    };
    if let Some(query) = request.path.strip_prefix("/api/models?search=") {
        let found = serde_json::json!([
            { "id": REPO, "downloads": 7, "query": query }, { "id": "../etc", "downloads": 1 }, { "id": "a/b" }
        ]);
        return Reply::new(200, found.to_string());
    }
    if let Some(revision) = request.path.strip_prefix(&format!("/api/models/{REPO}/revision/")) {
        let Some((commit, files)) = meaning(revision) else { return error("RevisionNotFound") };
        let names: Vec<_> = files.keys().map(|name| serde_json::json!({ "rfilename": name })).collect();
        return Reply::new(200, serde_json::json!({ "sha": commit, "siblings": names }).to_string());
    }
    let Some((revision, file)) =
        request.path.strip_prefix(&format!("/{REPO}/resolve/")).and_then(|rest| rest.split_once('/'))
    else {
        return error("RepoNotFound");
    };
    let Some((commit, files)) = meaning(revision) else { return error("RevisionNotFound") };
    let Some(bytes) = files.get(file) else { return error("EntryNotFound") };
    let hash = sha256(bytes);
    if is_large(file) {
        return Reply::new(302, "moved")
            .with("Location", format!("{content}/{hash}?Signature=secret"))
            .with("X-Repo-Commit", commit)
            .with("X-Linked-Etag", format!("\"{hash}\""))
            .with("X-Linked-Size", bytes.len());
    }
    ranged(request, bytes, state.no_ranges)
        .with("X-Repo-Commit", commit)
        .with("ETag", format!("\"{}\"", &hash[..40]))
}

/// `GET /SHA256`. Rejects a request with a token, which must not reach this host.
fn content_host(request: &Request, state: &mut State) -> Reply {
    if request.headers.contains_key("authorization") {
        return Reply::new(400, "a token came here");
    }
    let hash = request.path.trim_start_matches('/').split('?').next().unwrap_or_default().to_string();
    let found =
        state.commits.values().flat_map(|files| files.values()).find(|bytes| sha256(bytes) == hash).cloned();
    let Some(bytes) = state.corrupt.clone().or(found) else { return Reply::new(404, "") };
    let mut reply = ranged(request, &bytes, state.no_ranges).with("ETag", "\"an-etag-of-its-own\"");
    reply.break_after = state.breaks.pop_front();
    reply
}

/// All bytes, or those that `Range: bytes=N-` requests.
fn ranged(request: &Request, bytes: &[u8], no_ranges: bool) -> Reply {
    let start = request
        .headers
        .get("range")
        .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    match start {
        Some(start) if !no_ranges && start < bytes.len() => Reply::new(206, &bytes[start..])
            .with("Content-Range", format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len())),
        Some(start) if !no_ranges && start >= bytes.len() => Reply::new(416, ""),
        _ => Reply::new(200, bytes),
    }
}

/// Records the progress of a fetch.
#[derive(Debug, Default)]
pub struct Course {
    /// For each `start`: name, total bytes, advanced bytes, and true if finished.
    pub files: Vec<(String, Option<u64>, u64, bool)>,
    pub notes: Vec<String>,
}

impl Progress for Course {
    fn start(&mut self, name: &str, total_bytes: Option<u64>) {
        self.files.push((name.to_string(), total_bytes, 0, false));
    }

    fn advance(&mut self, bytes: u64) {
        self.files.last_mut().unwrap().2 += bytes;
    }

    fn finish(&mut self) {
        self.files.last_mut().unwrap().3 = true;
    }

    fn note(&mut self, text: &str) {
        self.notes.push(text.to_string());
    }
}

/// An empty cache in its own folder.
pub fn cache() -> (tempfile::TempDir, Cache) {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::new(folder.path().join("ingle"), folder.path().join("hub"));
    (folder, cache)
}
