//! The commands, one file each.

mod bench;
mod bench_serve;
mod complete;
mod completions;
mod convert;
mod cuda_selftest;
mod diff;
mod embed;
pub mod generate;
mod inspect;
mod keygen;
mod list;
mod logits;
mod metal_selftest;
mod perplexity;
mod plan;
mod profile;
mod ps;
mod pull;
mod rerank;
mod rm;
pub mod run;
mod search;
mod serve;
mod sign;
mod stop;
mod tokenize;
mod transcribe;
mod verify;

use clap::Subcommand;

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    #[command(visible_alias = "chat")]
    Run(run::Run),
    Complete(complete::Complete),
    Serve(serve::Serve),
    Ps(ps::Ps),
    Stop(stop::Stop),
    Bench(bench::Bench),
    BenchServe(bench_serve::BenchServe),
    #[command(visible_alias = "show")]
    Inspect(inspect::Inspect),
    Plan(plan::Plan),
    Tokenize(tokenize::Tokenize),
    Logits(logits::Logits),
    Perplexity(perplexity::Perplexity),
    Diff(diff::Diff),
    Profile(profile::Profile),
    Pull(pull::Pull),
    #[command(visible_alias = "ls")]
    List(list::List),
    Search(search::Search),
    #[command(alias = "remove")]
    Rm(rm::Rm),
    Embed(embed::Embed),
    Rerank(rerank::Rerank),
    #[command(visible_aliases = ["create", "quantize"], alias = "quantise")]
    Convert(convert::Convert),
    Keygen(keygen::Keygen),
    Sign(sign::Sign),
    Verify(verify::Verify),
    Transcribe(transcribe::Transcribe),
    CudaSelftest(cuda_selftest::CudaSelftest),
    MetalSelftest(metal_selftest::MetalSelftest),
    Completions(completions::Completions),
    /// Print the version
    #[command(hide = true)]
    Version,
}

impl Command {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Command::Run(c) => c.run(),
            Command::Complete(c) => c.run(),
            Command::Serve(c) => c.run(),
            Command::Ps(c) => c.run(),
            Command::Stop(c) => c.run(),
            Command::Bench(c) => c.run(),
            Command::BenchServe(c) => c.run(),
            Command::Inspect(c) => c.run(),
            Command::Plan(c) => c.run(),
            Command::Tokenize(c) => c.run(),
            Command::Logits(c) => c.run(),
            Command::Perplexity(c) => c.run(),
            Command::Diff(c) => c.run(),
            Command::Profile(c) => c.run(),
            Command::Pull(c) => c.run(),
            Command::List(c) => c.run(),
            Command::Search(c) => c.run(),
            Command::Rm(c) => c.run(),
            Command::Embed(c) => c.run(),
            Command::Rerank(c) => c.run(),
            Command::Convert(c) => c.run(),
            Command::Keygen(c) => c.run(),
            Command::Sign(c) => c.run(),
            Command::Verify(c) => c.run(),
            Command::Transcribe(c) => c.run(),
            Command::CudaSelftest(c) => c.run(),
            Command::MetalSelftest(c) => c.run(),
            Command::Completions(c) => c.run(),
            Command::Version => crate::output::print_line(concat!("ingle ", env!("CARGO_PKG_VERSION"))),
        }
    }
}
