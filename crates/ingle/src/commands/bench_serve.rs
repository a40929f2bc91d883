//! `ingle bench-serve`: the load of many clients on any OpenAI server.

mod client;
mod plan;
mod report;

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
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
Requests arrive when the plan says, whether or not earlier ones are answered, and times to first token count from then. With
--clients so many clients ask one request after the other instead. The seed fixes the plan. Every request has a connection of
its own, temperature 0 and ignore_eos. An answer that ends without finish_reason counts as killed.

Examples:
  ingle bench-serve http://localhost:8080 --rate 2
  ingle bench-serve http://localhost:8080 --clients 1,2,4,8,16 --check-solo
  ingle bench-serve http://localhost:8080 --workload overload --memory-tokens 8192 --max-tokens 1024")]
pub struct BenchServe {
    /// The server, as http://host:port
    #[arg(value_name = "URL")]
    url: String,

    /// What the requests look like
    #[arg(long, value_enum, default_value_t = Workload::Sharegpt)]
    workload: Workload,

    /// When requests arrive
    #[arg(long, value_enum, default_value_t = Arrivals::Poisson, conflicts_with = "clients")]
    arrivals: Arrivals,

    /// Mean requests a second
    #[arg(long, default_value_t = 4.0, value_name = "N", conflicts_with = "clients")]
    rate: f64,

    /// So many clients instead, each with one request at a time; a list gives a run for each
    #[arg(long, value_delimiter = ',', value_name = "N,...")]
    clients: Vec<usize>,

    /// Chats of a run; overload has as many as fill the memory
    #[arg(long, default_value_t = 64, value_name = "N")]
    requests: usize,

    /// What the plan is drawn from
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,

    /// Most tokens of an answer; of overload, all of them
    #[arg(long, default_value_t = 256, value_name = "N")]
    max_tokens: usize,

    /// Most words of a prompt, about a token each
    #[arg(long, default_value_t = 1024, value_name = "N")]
    max_words: usize,

    /// Words of the long prompt of --workload intruder
    #[arg(long, default_value_t = 16384, value_name = "N")]
    intruder_words: usize,

    /// Tokens that the server's memory holds; overload asks for 2.5 times as many
    #[arg(long, default_value_t = 8192, value_name = "N")]
    memory_tokens: usize,

    /// Model to ask for; the first that the server lists without it
    #[arg(long, value_name = "ID")]
    model: Option<String>,

    /// Key that the server wants
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,

    /// Seconds after which a request counts as an error
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,

    /// Ask every question again alone, and count answers that differ
    #[arg(long)]
    check_solo: bool,

    /// Print a JSON array with an object for each run
    #[arg(long)]
    json: bool,
}

impl BenchServe {
    pub fn run(self) -> anyhow::Result<()> {
        ensure!(self.rate.is_finite() && self.rate > 0.0, "--rate is {}; it must be above 0", self.rate);
        for (name, value) in [
            ("requests", self.requests),
            ("max-tokens", self.max_tokens),
            ("max-words", self.max_words),
            ("intruder-words", self.intruder_words),
            ("memory-tokens", self.memory_tokens),
        ] {
            ensure!(value > 0, "--{name} is 0; it must be at least 1");
        }
        ensure!(!self.clients.contains(&0), "--clients has a 0; a run needs at least one client");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("starting the runtime of the clients")?;
        runtime.block_on(self.measure())
    }

    async fn measure(&self) -> anyhow::Result<()> {
        let mut target = Target::new(&self.url, self.api_key.clone(), Duration::from_secs(self.timeout))?;
        target.model = match &self.model {
            Some(model) => model.clone(),
            None => target.first_model().await?,
        };
        let target = Arc::new(target);
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
            // Another seed for each run: the prompts of the last may be cached.
            let chats = plan::plan(&Shape { seed, ..shape.clone() });
            let begun = Instant::now();
            let answers = match clients {
                None => Self::open_loop(&target, chats, begun).await?,
                Some(n) => Self::closed_loop(&target, chats, n).await?,
            };
            let mut report = Report::new(clients, begun, &answers);
            if self.check_solo {
                report.different = Some(Self::count_different(&target, &answers).await);
            }
            if !self.json {
                // A reader that hangs up early is no error, which println! would make a panic.
                writeln!(std::io::stdout(), "{}", report.table())?;
            }
            reports.push(report);
        }
        if self.json {
            writeln!(std::io::stdout(), "{}", serde_json::to_string_pretty(&reports)?)?;
        }
        Ok(())
    }

    async fn open_loop(
        target: &Arc<Target>,
        chats: Vec<Chat>,
        begun: Instant,
    ) -> anyhow::Result<Vec<Answer>> {
        let tasks: Vec<_> = chats
            .into_iter()
            .map(|chat| {
                let target = target.clone();
                tokio::spawn(async move {
                    let scheduled = begun + chat.at;
                    tokio::time::sleep_until(scheduled.into()).await;
                    converse(&target, chat, scheduled).await
                })
            })
            .collect();
        let mut answers = Vec::new();
        for task in tasks {
            answers.extend(task.await.context("a client failed")?);
        }
        Ok(answers)
    }

    async fn closed_loop(
        target: &Arc<Target>,
        chats: Vec<Chat>,
        n_clients: usize,
    ) -> anyhow::Result<Vec<Answer>> {
        let chats = Arc::new(Mutex::new(VecDeque::from(chats)));
        let clients: Vec<_> = (0..n_clients)
            .map(|_| {
                let (target, chats) = (target.clone(), chats.clone());
                tokio::spawn(async move {
                    let mut answers = Vec::new();
                    loop {
                        let next = chats.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                        let Some(chat) = next else { return answers };
                        answers.extend(converse(&target, chat, Instant::now()).await);
                    }
                })
            })
            .collect();
        let mut answers = Vec::new();
        for client in clients {
            answers.extend(client.await.context("a client failed")?);
        }
        Ok(answers)
    }

    /// How many whole answers differ from the same question asked when nobody else asks.
    async fn count_different(target: &Target, answers: &[Answer]) -> usize {
        let mut n_different = 0;
        for answer in answers.iter().filter(|answer| answer.outcome == Outcome::Done) {
            let again = target.ask(answer.messages.clone(), answer.n_answer, Instant::now(), None).await;
            n_different += usize::from(again.text != answer.text);
        }
        n_different
    }
}

/// The turns of one chat; one that is not answered in full ends it.
async fn converse(target: &Target, chat: Chat, mut scheduled: Instant) -> Vec<Answer> {
    let (mut messages, mut answers) = (Vec::<Value>::new(), Vec::new());
    for turn in chat.turns {
        messages.push(json!({ "role": "user", "content": turn.text }));
        let asked = messages.clone().into();
        let answer = target.ask(asked, turn.n_answer, scheduled, chat.hang_up_after).await;
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
