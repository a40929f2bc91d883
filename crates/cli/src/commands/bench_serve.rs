//! `ingle bench-serve`: measure an OpenAI server under the load of many clients.
//!
//! Each client is a thread: a run has some hundreds of them at most, and each waits most of the
//! time.

mod client;
mod plan;
mod report;

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::{Value, json};

use client::{Answer, Outcome, Target};
use plan::{Arrivals, Chat, Shape, Workload};
use report::Report;

/// Measure an OpenAI server under the load of many clients
#[derive(Args)]
#[command(after_help = "\
Requests arrive at planned times, whether or not earlier ones are answered. Times to the first token
count from the planned time. With --clients, a fixed number of clients sends one request after the
other instead. The seed fixes the plan. Every request has its own connection, temperature 0 and
ignore_eos. An answer that ends without finish_reason counts as killed.

Examples:
  ingle bench-serve http://localhost:8080 --rate 2
  ingle bench-serve http://localhost:8080 --clients 1,2,4,8,16 --check-solo
  ingle bench-serve http://localhost:8080 --workload overload --memory-tokens 8192 --max-tokens 1024")]
pub struct BenchServe {
    /// The server, for example http://localhost:8080
    #[arg(value_name = "URL")]
    url: String,

    /// Kind of requests
    #[arg(long, value_enum, default_value_t = Workload::Sharegpt)]
    workload: Workload,

    /// Distribution of the times at which requests arrive
    #[arg(long, value_enum, default_value_t = Arrivals::Poisson, conflicts_with = "clients")]
    arrivals: Arrivals,

    /// Mean requests a second
    #[arg(long, default_value_t = 4.0, value_name = "N", conflicts_with = "clients")]
    rate: f64,

    /// Send requests from N clients, each one at a time
    ///
    /// Several numbers are several runs.
    #[arg(long, value_delimiter = ',', value_name = "N,…")]
    clients: Vec<usize>,

    /// Chats of a run
    ///
    /// --workload overload ignores this: it has enough chats to fill the memory.
    #[arg(long, default_value_t = 64, value_name = "N")]
    requests: usize,

    /// Seed of the plan
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,

    /// Maximum number of tokens of an answer
    ///
    /// With --workload overload, every answer has this length.
    #[arg(long, default_value_t = 256, value_name = "N")]
    max_tokens: usize,

    /// Maximum number of words of a prompt; a word is about a token
    #[arg(long, default_value_t = 1024, value_name = "N")]
    max_words: usize,

    /// Words of the long prompt of --workload intruder
    #[arg(long, default_value_t = 16384, value_name = "N")]
    intruder_words: usize,

    /// Tokens that fit in the server's memory
    ///
    /// --workload overload requests 2.5 times this number.
    #[arg(long, default_value_t = 8192, value_name = "N")]
    memory_tokens: usize,

    /// The model [default: the first that the server lists]
    #[arg(long, value_name = "ID")]
    model: Option<String>,

    /// The server's API key [default: INGLE_API_KEY]
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,

    /// Time after which a request counts as an error
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,

    /// Repeat every request alone, and count answers that differ
    #[arg(long)]
    check_solo: bool,

    /// Print a JSON array with one object for each run
    #[arg(long)]
    json: bool,
}

impl BenchServe {
    pub fn run(self) -> anyhow::Result<()> {
        ensure!(
            self.rate.is_finite() && self.rate > 0.0,
            "--rate is {}, expected a number above 0",
            self.rate
        );
        for (name, value) in [
            ("requests", self.requests),
            ("max-tokens", self.max_tokens),
            ("max-words", self.max_words),
            ("intruder-words", self.intruder_words),
            ("memory-tokens", self.memory_tokens),
        ] {
            ensure!(value > 0, "--{name} is 0, expected at least 1");
        }
        ensure!(!self.clients.contains(&0), "--clients has a 0, expected at least one client in each run");
        self.measure()
    }

    fn measure(&self) -> anyhow::Result<()> {
        let timeout = Duration::from_secs(self.timeout);
        let target = Target::new(&self.url, self.api_key.clone(), self.model.clone(), timeout)?;
        let shape = Shape {
            workload: self.workload,
            arrivals: self.arrivals,
            seed: self.seed,
            n_requests: self.requests,
            rate: self.rate,
            max_tokens: self.max_tokens,
            max_words: self.max_words,
            intruder_words: self.intruder_words,
            memory_tokens: self.memory_tokens,
        };
        let runs = match self.clients.is_empty() {
            true => vec![None],
            false => self.clients.iter().copied().map(Some).collect(),
        };
        let mut reports = Vec::new();
        for (clients, seed) in runs.into_iter().zip(self.seed..) {
            // Each run has its own seed, because the server may have cached the prompts of the last
            // run.
            let chats = plan::plan(&Shape { seed, ..shape.clone() });
            let begun = Instant::now();
            let answers = match clients {
                None => open_loop(&target, chats, begun)?,
                Some(n) => closed_loop(&target, chats, n)?,
            };
            let mut report = Report::new(clients, begun, &answers);
            if self.check_solo {
                report.different = Some(count_different(&target, &answers));
            }
            if !self.json {
                // `println!` would panic if the reader of stdout hangs up.
                writeln!(std::io::stdout(), "{}", report.table())?;
            }
            reports.push(report);
        }
        if self.json {
            writeln!(std::io::stdout(), "{}", serde_json::to_string_pretty(&reports)?)?;
        }
        Ok(())
    }
}

/// Starts each chat at its planned time.
fn open_loop(target: &Target, chats: Vec<Chat>, begun: Instant) -> anyhow::Result<Vec<Answer>> {
    std::thread::scope(|scope| {
        let mut clients = Vec::new();
        for chat in chats {
            let scheduled = begun + chat.at;
            std::thread::sleep(scheduled.saturating_duration_since(Instant::now()));
            clients.push(client(scope, move || converse(target, chat, scheduled))?);
        }
        answers(clients)
    })
}

/// Runs `n_clients` clients, each with one chat after the other.
fn closed_loop(target: &Target, chats: Vec<Chat>, n_clients: usize) -> anyhow::Result<Vec<Answer>> {
    let chats = &Mutex::new(VecDeque::from(chats));
    let next = || chats.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    std::thread::scope(|scope| {
        let all = move || {
            let chats = std::iter::from_fn(next);
            chats.flat_map(|chat| converse(target, chat, Instant::now())).collect()
        };
        let clients = (0..n_clients).map(|_| client(scope, all)).collect::<anyhow::Result<Vec<_>>>()?;
        answers(clients)
    })
}

/// Starts the thread of a client.
fn client<'scope>(
    scope: &'scope Scope<'scope, '_>,
    run: impl FnOnce() -> Vec<Answer> + Send + 'scope,
) -> anyhow::Result<ScopedJoinHandle<'scope, Vec<Answer>>> {
    Builder::new().name("client".to_owned()).spawn_scoped(scope, run).context("starting a client")
}

/// Waits for the clients.
fn answers(clients: Vec<ScopedJoinHandle<'_, Vec<Answer>>>) -> anyhow::Result<Vec<Answer>> {
    let mut answers = Vec::new();
    for client in clients {
        answers.extend(client.join().map_err(|_| anyhow::anyhow!("a client failed"))?);
    }
    Ok(answers)
}

/// Number of complete answers that differ from the answer to the same request alone.
fn count_different(target: &Target, answers: &[Answer]) -> usize {
    let complete = answers.iter().filter(|answer| answer.outcome == Outcome::Done);
    let is_different = |answer: &&Answer| {
        let again = target.ask(answer.messages.clone(), answer.n_answer, Instant::now(), None);
        again.text != answer.text
    };
    complete.filter(is_different).count()
}

/// Runs the turns of a chat, which ends early if a turn has no complete answer.
fn converse(target: &Target, chat: Chat, mut scheduled: Instant) -> Vec<Answer> {
    let (mut messages, mut answers) = (Vec::<Value>::new(), Vec::new());
    for turn in chat.turns {
        messages.push(json!({ "role": "user", "content": turn.text }));
        let answer = target.ask(messages.clone().into(), turn.n_answer, scheduled, chat.hang_up_after);
        messages.push(json!({ "role": "assistant", "content": answer.text }));
        scheduled = answer.ended;
        let done = answer.outcome == Outcome::Done;
        answers.push(answer);
        if !done {
            break;
        }
    }
    answers
}
