//! Output on a terminal, and output for programs that read stderr.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::common::{GEMMA3, SMOLLM2, ingle, ok};

/// Runs a program on a terminal of some columns, and types each line after the chat's prompt
/// appears.
const TERMINAL: &str = r#"
import fcntl, os, pty, signal, struct, sys, termios
signal.alarm(150)
columns, typed, program = int(sys.argv[1]), sys.argv[2].split("\n") if sys.argv[2] else [], sys.argv[3:]
pid, fd = pty.fork()
if pid == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    os.execv(program[0], program)
seen, n_typed = b"", 0
while True:
    try:
        piece = os.read(fd, 4096)
    except OSError:
        break
    if not piece:
        break
    seen += piece
    # The line editor begins to read: it asks for pasted text in brackets.
    if n_typed < len(typed) and seen.count(b"\x1b[?2004h") > n_typed:
        os.write(fd, typed[n_typed].encode() + b"\r")
        n_typed += 1
sys.stdout.buffer.write(seen)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

/// The output of a terminal of this width.
fn on_terminal(columns: usize, typed: &str, args: &[&str], environment: &[(&str, &str)]) -> String {
    let mut command = Command::new("python3");
    command.args(["-c", TERMINAL, &columns.to_string(), typed, env!("CARGO_BIN_EXE_ingle")]).args(args);
    command.env("TERM", "xterm-256color").env_remove("NO_COLOR").envs(environment.iter().copied());
    let out = command.output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap().replace("\r\n", "\n");
    assert!(out.status.success(), "{args:?}: {text} {}", String::from_utf8_lossy(&out.stderr));
    text
}

const ASK: [&str; 7] = ["--greedy", "-n", "60", "--ctx", "256", "--device", "cpu"];

#[test]
fn an_answer_is_broken_between_words_on_a_terminal_and_nowhere_else() {
    let path = SMOLLM2.path();
    let args = [&["run", &path, "Why is the sky blue?"][..], &ASK].concat();
    let out = ingle(&args);
    let plain = String::from_utf8(out.stdout).unwrap();
    assert!(plain.lines().any(|line| line.len() > 50), "{plain}");
    let shown = on_terminal(40, "", &args, &[("NO_COLOR", "1")]);
    assert!(!shown.contains('\x1b'), "{shown:?}");
    assert!(shown.lines().all(|line| line.chars().count() <= 40), "{shown}");
    // Only blanks at line ends are lost; the last line has the timings.
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (answer, figures) = shown.trim_end().rsplit_once('\n').unwrap();
    assert_eq!(words(answer), words(&plain));
    assert!(figures.starts_with("60 tokens, ") && figures.ends_with(" tok/s"), "{figures}");
    // With colours the figures are dimmed.
    let coloured = on_terminal(200, "", &args, &[]);
    let last = coloured.trim_end().lines().last().unwrap();
    assert!(last.starts_with("\x1b[2m60 tokens, ") && last.ends_with("\x1b[22m"), "{last:?}");
}

#[test]
fn stderr_has_one_line_of_figures_and_with_v_more_without_colours() {
    let path = SMOLLM2.path();
    let said = |args: &[&str]| String::from_utf8(ingle(args).stderr).unwrap();
    for args in
        [&["run", &path, "Hi", "-n", "2", "--ctx", "256"][..], &["complete", &path, "-p", "Hi", "-n", "2"]]
    {
        let quiet = said(args);
        assert_eq!(quiet.lines().count(), 1, "{quiet}");
        assert!(quiet.starts_with("2 tokens"), "{quiet}");
        let verbose = said(&[args, &["-v"]].concat());
        for part in ["device ", "KV type", "first token after"] {
            assert!(verbose.contains(part), "{part} is missing in {verbose}");
        }
        assert!(!verbose.contains('\x1b'), "{verbose:?}");
    }
    assert_eq!(said(&["embed", "minilm:l6", "a cat"]), "");
    assert_eq!(said(&["complete", &path, "-p", "Hi", "-n", "2", "--json"]), "");
}

#[test]
fn a_base_model_says_in_a_line_that_it_continues_text() {
    let out = ingle(&["run", &GEMMA3.path(), "Once upon a time", "-n", "2", "--ctx", "64"]);
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.success() && said.lines().count() == 2, "{said}");
    assert!(
        said.lines()
            .next()
            .unwrap()
            .ends_with("is a base model: it continues your text and answers no questions")
    );
}

#[test]
fn the_chat_takes_back_asks_again_saves_and_loads() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("talk.json");
    let file = file.to_str().unwrap();
    let path = SMOLLM2.path();
    let cache = folder.path().join("cache");
    let args = ["run", &path, "--greedy", "-n", "3", "--ctx", "512", "--cache", cache.to_str().unwrap()];
    let typed = format!(
        "Say one\nSay two\n/undo\n/retry\n/save {file}\n/clear\n/undo\n/load {file}\n/show\n/help\n/quit"
    );
    let shown = on_terminal(60, &typed, &args, &[("NO_COLOR", "1")]);
    for part in [
        "message removed",
        "written to",
        "conversation cleared",
        "error: there is no answer to undo",
        "loaded ",
    ] {
        assert!(shown.contains(part), "{part} is missing in {shown}");
    }
    assert!(shown.contains("tokens used") && shown.contains("/load FILE        load a saved"), "{shown}");
    let saved: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let roles: Vec<&str> =
        saved["messages"].as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant"]);
    assert_eq!(saved["messages"][0]["content"], "Say one");
}

#[test]
fn tables_fit_the_terminal() {
    let shown = on_terminal(80, "", &["search", "qwen"], &[]);
    let rows = shown.lines().filter(|line| line.contains("qwen3"));
    assert!(rows.clone().count() > 3 && rows.clone().all(|row| row.chars().count() <= 80), "{shown}");
    assert!(ok(&["search", "qwen"]).lines().any(|row| row.len() > 100));
}

/// Starts a server whose stderr is a pipe; returns its reader, too.
fn serve(more: &[&str]) -> (Child, BufReader<std::process::ChildStderr>, String) {
    let path = SMOLLM2.path();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ingle"));
    command.args(["serve", &path, "--port", "0", "-t", "1", "--ctx", "256", "--no-warmup"]).args(more);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("listening at ") {
        line.clear();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "the server ended");
    }
    let url = line.split("listening at ").nth(1).unwrap().trim().to_owned();
    (child, stderr, url)
}

fn ask(url: &str, body: &serde_json::Value) -> u16 {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(Duration::from_secs(60)))
        .build()
        .into();
    let response = agent.post(format!("{url}/api/chat")).send(body.to_string()).unwrap();
    response.status().as_u16()
}

/// The server must end at SIGTERM with status 0.
fn ends(mut child: Child) {
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None => assert!(begun.elapsed() < Duration::from_secs(50), "SIGTERM does not end the server"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success(), "{status}");
}

#[test]
fn a_server_serves_and_ends_when_nobody_reads_its_stderr() {
    // A context that does not fit gives a warning.
    let warned = json!({
        "model": SMOLLM2.path(), "messages": [{"role": "user", "content": "Hi"}], "stream": false,
        "options": { "num_ctx": 999_999, "num_predict": 1 },
    });
    // The reader closes the pipe.
    let (child, stderr, url) = serve(&[]);
    drop(stderr);
    assert_eq!(ask(&url, &warned), 200);
    ends(child);
    // The reader does not read, so the pipe is full.
    let (child, stderr, url) = serve(&["-vv"]);
    for _ in 0..400 {
        assert_eq!(ask(&url, &json!({ "model": "nobody", "messages": [] })), 404);
    }
    assert_eq!(ask(&url, &warned), 200);
    ends(child);
    drop(stderr);
}

#[test]
fn an_answer_comes_when_stderr_is_full_or_closed() {
    let path = SMOLLM2.path();
    for to in ["2>/dev/full", "2>&-"] {
        let script = format!(
            "exec '{}' run '{path}' Hi -n 2 --ctx 64 -v {to} </dev/null",
            env!("CARGO_BIN_EXE_ingle")
        );
        let out = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert!(out.status.success() && !out.stdout.is_empty(), "{to}: {}", out.status);
    }
}
