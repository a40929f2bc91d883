//! The command line of Ingle: one file a command, under `commands/`.
//!
//! Errors go to stderr with exit status 1; usage errors with 2; a reader that hangs up early is no
//! error.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod args;
mod client;
mod commands;
mod grammar;
mod input;
mod interactive;
mod load;
mod output;
mod progress;
mod sse;
mod tell;
mod usage;
mod wrap;

use std::process::ExitCode;

use clap::Parser;

use commands::Command;
use tell::tell;

/// An inference engine for language models, on the machine in front of you.
#[derive(Parser)]
#[command(name = "ingle", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    /// Say more on stderr; twice for everything
    #[arg(short, long, action = clap::ArgAction::Count, global = true, display_order = 900)]
    verbose: u8,

    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  ingle run smollm2:135m \"Why is the sky blue?\"
  ingle run smollm2:135m                         (an interactive chat)
  ingle serve smollm2:135m                       (a page, and the APIs of OpenAI and Ollama)
  ingle bench model.gguf -p 512 -n 128
  ingle inspect model.gguf --plan";

fn main() -> ExitCode {
    let cli = usage::parse();
    tell::set_verbose(cli.verbose);
    tell::hear_panics();
    let level = ["warn", "info", "debug"][usize::from(cli.verbose.min(2))];
    tracing_subscriber::fmt()
        .with_writer(|| tell::Stderr)
        .with_ansi(tell::has_colour())
        .log_internal_errors(false)
        .with_env_filter(level)
        .with_target(false)
        .without_time()
        .init();
    let outcome = std::panic::catch_unwind(|| cli.command.run());
    let status = match outcome {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            tell!("error: {}", output::message(&error));
            ExitCode::FAILURE
        }
        Err(_) => {
            tell!("error: this is a defect of Ingle, not of your input; please report the lines above");
            ExitCode::FAILURE
        }
    };
    tell::finish();
    status
}
