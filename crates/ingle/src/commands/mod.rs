//! The commands, one file each.

mod bench;
mod complete;
mod completions;
mod embed;
pub mod generate;
mod inspect;
mod list;
mod logits;
mod perplexity;
mod plan;
mod profile;
mod pull;
mod rm;
pub mod run;
mod tokenize;
mod transcribe;

use clap::Subcommand;

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    Run(run::Run),
    Complete(complete::Complete),
    Bench(bench::Bench),
    Inspect(inspect::Inspect),
    Plan(plan::Plan),
    Tokenize(tokenize::Tokenize),
    Logits(logits::Logits),
    Perplexity(perplexity::Perplexity),
    Profile(profile::Profile),
    Pull(pull::Pull),
    List(list::List),
    Rm(rm::Rm),
    Embed(embed::Embed),
    Transcribe(transcribe::Transcribe),
    Completions(completions::Completions),
}

impl Command {
    /// Do it.
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Command::Run(c) => c.run(),
            Command::Complete(c) => c.run(),
            Command::Bench(c) => c.run(),
            Command::Inspect(c) => c.run(),
            Command::Plan(c) => c.run(),
            Command::Tokenize(c) => c.run(),
            Command::Logits(c) => c.run(),
            Command::Perplexity(c) => c.run(),
            Command::Profile(c) => c.run(),
            Command::Pull(c) => c.run(),
            Command::List(c) => c.run(),
            Command::Rm(c) => c.run(),
            Command::Embed(c) => c.run(),
            Command::Transcribe(c) => c.run(),
            Command::Completions(c) => c.run(),
        }
    }
}
