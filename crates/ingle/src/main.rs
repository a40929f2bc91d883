//! The command line of Ingle: one file a command, under `commands/`.
//!
//! Errors go to stderr with exit status 1; usage errors with 2; a reader that hangs up early is no error.

mod args;
mod choose;
mod client;
mod commands;
mod grammar;
mod interactive;
mod load;
mod mmproj;
mod output;
mod progress;
mod share;
mod sse;

use std::process::ExitCode;

use clap::Parser;

use commands::Command;

/// An inference engine for language models, on the machine in front of you.
#[derive(Parser)]
#[command(name = "ingle", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    /// Say more on stderr; twice for everything
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    verbose: u8,

    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  ingle run smollm2:135m \"Why is the sky blue?\"
  ingle run gemma3:270m                          (an interactive chat)
  ingle bench model.gguf -p 512 -n 128
  ingle inspect model.gguf --plan";

fn main() -> ExitCode {
    let cli = Cli::parse();
    let level = ["warn", "info", "debug"][usize::from(cli.verbose.min(2))];
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(level)
        .with_target(false)
        .without_time()
        .init();
    match std::panic::catch_unwind(|| cli.command.run()) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
        Err(_) => {
            eprintln!("error: this is a defect of Ingle, not of your input; please report the lines above");
            ExitCode::FAILURE
        }
    }
}
