//! The interactive chat: a line editor, and commands that begin with a slash.

use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use engine::SamplingChoice;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Editor, Helper};
use serde_json::Value;

use crate::args::{self, SamplingArgs};
use crate::tell::{self, tell};

/// The slash commands and their descriptions.
const HELP: [(&str, &str); 12] = [
    ("/help", "this list"),
    ("/retry", "another answer to the last message"),
    ("/undo", "remove the last message and its answer"),
    ("/clear", "clear the conversation (the system message stays)"),
    ("/system [TEXT]", "set the system message, or remove it"),
    ("/set", "show the settings"),
    (
        "/set NAME VALUE",
        "change one: temperature, top-k, top-p, min-p, repeat-penalty, presence-penalty, frequency-penalty, penalty-window, seed, \
         max-tokens",
    ),
    ("/image FILE", "add an image (PNG, JPEG or WebP) to the next message"),
    ("/save FILE", "write the conversation as JSON"),
    ("/load FILE", "load a saved conversation"),
    ("/show", "show the model, its device and the used context"),
    ("/quit", "leave (so does Ctrl-D)"),
];

const KEYS: &str = "Ctrl-C stops an answer. A pasted text keeps its lines; to type several lines, begin and end with \"\"\", or end a \
    line with a backslash.";

/// Columns before the description of a command.
const INDENT: usize = 18;

const COMMANDS: [&str; 11] = [
    "/help", "/retry", "/undo", "/clear", "/system ", "/set ", "/image ", "/save ", "/load ", "/show",
    "/quit",
];

/// The other side of the chat: a model in this process, or on a server.
pub trait Partner {
    /// The device or the server that the model runs on.
    fn describe(&self) -> String;

    /// Frees memory while the program waits for input.
    fn rest(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Sends a message; the answer streams to `out` and becomes part of the conversation. Returns
    /// the closing line.
    fn answer(&mut self, message: &str, out: &mut dyn Write) -> anyhow::Result<String>;

    /// Clears the conversation, but not the system message.
    fn clear(&mut self);

    /// Adds an image to the next message.
    fn add_image(&mut self, _path: &Path) -> anyhow::Result<()> {
        anyhow::bail!("images need a model that runs here, without --server")
    }

    /// Sets the system message, or removes it.
    fn set_system(&mut self, text: Option<&str>) -> anyhow::Result<()>;

    /// Sampling flags of the next answer.
    fn sampling(&self) -> &SamplingArgs;

    /// The model's own recommendations; empty for a server's model.
    fn default_sampling(&self) -> SamplingChoice;

    /// Changes the sampling flags, if the values are within their limits.
    fn set_sampling(&mut self, sampling: SamplingArgs) -> anyhow::Result<()>;

    /// The conversation in the form of a file.
    fn saved(&self) -> Value;

    /// Replaces the conversation by a saved one.
    fn loaded(&mut self, saved: &Value) -> anyhow::Result<()>;

    /// Removes the last message and its answer; returns the message.
    fn undo(&mut self) -> anyhow::Result<String>;

    /// The model and the conversation in lines, for /show.
    fn show(&self) -> String;
}

/// The messages of a saved conversation.
pub fn messages(saved: &Value) -> anyhow::Result<Vec<Value>> {
    let expected = "expected {\"messages\": […]}, each with a role and a text, as /save writes it";
    // Files for OpenAI's API may have the list alone.
    let messages = saved["messages"].as_array().or(saved.as_array()).context(expected)?;
    let is_message = |message: &Value| message["role"].is_string() && message["content"].is_string();
    anyhow::ensure!(messages.iter().all(is_message), "{expected} (images are not saved)");
    Ok(messages.clone())
}

/// Reads and answers messages until /quit or the end of the input.
pub fn run(session: &mut dyn Partner, name: &str, history: &Path) -> anyhow::Result<()> {
    let config = Config::builder().auto_add_history(true).bracketed_paste(true).build();
    let mut editor: Editor<Lines, FileHistory> = Editor::with_config(config)?;
    editor.set_helper(Some(Lines));
    // There is no history at the first start.
    let _ = editor.load_history(history);
    tell!("{name} on {}; /help lists the commands", session.describe());
    loop {
        session.rest()?;
        let line = match editor.readline(">>> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => {
                tell!("Ctrl-D or /quit leaves");
                continue;
            }
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(error.into()),
        };
        let message = unwrap_lines(&line);
        if message.trim().is_empty() {
            continue;
        }
        // An error leaves the conversation unchanged.
        let outcome = match message.strip_prefix('/') {
            Some("quit" | "exit" | "bye") => break,
            Some("retry") => session
                .undo()
                .and_then(|message| session.answer(&message, &mut io::stdout()))
                .map(|figures| tell::aside(&figures)),
            Some("help" | "?") => {
                help();
                Ok(())
            }
            Some(command) => obey(session, command).map(|text| tell!("{text}")),
            None => session.answer(&message, &mut io::stdout()).map(|figures| tell::aside(&figures)),
        };
        if let Err(error) = outcome {
            if crate::output::is_broken_pipe(&error) {
                return Err(error);
            }
            tell!("error: {}", crate::output::message(&error));
        }
    }
    if let Some(folder) = history.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    editor.save_history(history).with_context(|| format!("writing {}", history.display()))
}

/// Runs a slash command; returns the text to print.
fn obey(session: &mut dyn Partner, command: &str) -> anyhow::Result<String> {
    let (verb, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    let rest = rest.trim();
    match verb {
        "clear" => {
            session.clear();
            Ok("conversation cleared".into())
        }
        "system" => {
            session.set_system((!rest.is_empty()).then_some(rest))?;
            Ok(if rest.is_empty() { "no system message" } else { "system message set" }.into())
        }
        "set" if rest.is_empty() => Ok(settings(session.sampling(), session.default_sampling())),
        "set" => {
            let (name, value) = rest.split_once(char::is_whitespace).context("expected /set NAME VALUE")?;
            set(session, name, value.trim())?;
            Ok(settings(session.sampling(), session.default_sampling()))
        }
        "image" => {
            anyhow::ensure!(!rest.is_empty(), "expected /image FILE");
            session.add_image(Path::new(rest))?;
            Ok(format!("{rest} belongs to the next message"))
        }
        "save" => {
            anyhow::ensure!(!rest.is_empty(), "expected /save FILE");
            std::fs::write(rest, serde_json::to_vec_pretty(&session.saved())?)
                .with_context(|| format!("writing {rest}"))?;
            Ok(format!("written to {rest}"))
        }
        "load" => {
            anyhow::ensure!(!rest.is_empty(), "expected /load FILE");
            let text = std::fs::read_to_string(rest).with_context(|| format!("reading {rest}"))?;
            let saved = serde_json::from_str(&text).with_context(|| format!("{rest}: expected JSON"))?;
            session.loaded(&saved).with_context(|| rest.to_owned())?;
            Ok(format!("loaded {rest}"))
        }
        "undo" => {
            session.undo()?;
            Ok("message removed".into())
        }
        "show" => Ok(session.show()),
        _ => anyhow::bail!("found /{verb}, expected one of {}", COMMANDS.map(str::trim).join(" ")),
    }
}

/// Prints the commands and settings.
fn help() {
    for (command, does) in HELP {
        tell::hanging(&format!("{command:<INDENT$}{does}"), INDENT);
    }
    tell!("\n{KEYS}");
}

fn set(session: &mut dyn Partner, name: &str, value: &str) -> anyhow::Result<()> {
    fn parse<T: std::str::FromStr>(value: &str) -> anyhow::Result<T> {
        value.parse().ok().with_context(|| format!("found {value:?}, expected a number"))
    }
    let mut changed = session.sampling().clone();
    match name.replace('_', "-").as_str() {
        "temperature" | "temp" => {
            changed.temperature = Some(parse(value)?);
            changed.greedy = false;
        }
        "top-k" => changed.top_k = Some(args::top_k(value).map_err(anyhow::Error::msg)?),
        "top-p" => changed.top_p = Some(parse(value)?),
        "min-p" => changed.min_p = Some(parse(value)?),
        "repeat-penalty" => changed.repeat_penalty = Some(parse(value)?),
        "presence-penalty" => changed.presence_penalty = parse(value)?,
        "frequency-penalty" => changed.frequency_penalty = parse(value)?,
        "penalty-window" => {
            changed.penalty_window = Some(args::limit_number(value).map_err(anyhow::Error::msg)?);
        }
        "typical-p" => changed.more.typical_p = parse(value)?,
        "top-n-sigma" => changed.more.top_n_sigma = parse(value)?,
        "xtc-probability" => changed.more.xtc_probability = parse(value)?,
        "xtc-threshold" => changed.more.xtc_threshold = parse(value)?,
        "dynatemp-range" => changed.more.dynatemp_range = parse(value)?,
        "mirostat" => changed.more.mirostat = parse(value)?,
        "dry-multiplier" => changed.more.dry_multiplier = parse(value)?,
        "seed" if value == "random" => changed.seed = None,
        "seed" => changed.seed = args::seed(value).map_err(anyhow::Error::msg)?,
        "max-tokens" if value == "none" => changed.max_tokens = None,
        "max-tokens" => changed.max_tokens = args::limit(value).map_err(anyhow::Error::msg)?,
        _ => anyhow::bail!("found {name:?}, expected a setting that /help lists"),
    }
    session.set_sampling(changed)
}

fn settings(s: &SamplingArgs, default: SamplingChoice) -> String {
    fn shown<T: ToString>(said: Option<T>, default: Option<T>, usual: &str) -> String {
        said.or(default).map_or_else(|| usual.into(), |value| value.to_string())
    }
    let option = |value: Option<String>, none: &str| value.unwrap_or_else(|| none.into());
    let (said, unknown) = (s.choice(), "the server's default");
    let penalty = if default.temperature.is_some() { ["1", "64"] } else { [unknown, unknown] };
    format!(
        "temperature {}, top-k {}, top-p {}, min-p {}, repeat-penalty {}, presence-penalty {}, frequency-penalty {}, \
         penalty-window {}, seed {}, max-tokens {}",
        shown(said.temperature, default.temperature, unknown),
        shown(said.top_k, default.top_k, unknown),
        shown(said.top_p, default.top_p, unknown),
        shown(said.min_p, default.min_p, unknown),
        shown(said.repeat_penalty, default.repeat_penalty, penalty[0]),
        s.presence_penalty,
        s.frequency_penalty,
        shown(said.penalty_window, default.penalty_window, penalty[1]),
        option(s.seed.map(|n| n.to_string()), "random"),
        option(s.max_tokens.map(|n| n.to_string()), "none")
    )
}

/// The message in a typed text, without triple quotes or backslashes at the ends of lines.
fn unwrap_lines(line: &str) -> String {
    match line.trim().strip_prefix("\"\"\"").and_then(|rest| rest.strip_suffix("\"\"\"")) {
        Some(inside) => inside.trim_matches('\n').to_owned(),
        None => line.replace("\\\n", "\n"),
    }
}

/// True if the message continues on another line.
fn is_open(line: &str) -> bool {
    let text = line.trim();
    let quoted = text.starts_with("\"\"\"") && (text.len() < 6 || !text.ends_with("\"\"\""));
    quoted || (!text.starts_with("\"\"\"") && line.ends_with('\\'))
}

/// Completes commands, and detects the end of a message.
struct Lines;

impl Validator for Lines {
    fn validate(&self, context: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        Ok(if is_open(context.input()) {
            ValidationResult::Incomplete
        } else {
            ValidationResult::Valid(None)
        })
    }
}

impl Completer for Lines {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        _: usize,
        _: &rustyline::Context,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let matching = COMMANDS.iter().filter(|c| line.starts_with('/') && c.starts_with(line));
        Ok((0, matching.map(|c| (*c).to_owned()).collect()))
    }
}

impl Hinter for Lines {
    type Hint = String;
}

impl Highlighter for Lines {}

impl Helper for Lines {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_lines_make_one_message() {
        assert!(is_open("\"\"\"one"));
        assert!(is_open("\"\"\""));
        assert!(!is_open("\"\"\"one\ntwo\"\"\""));
        assert!(is_open("one\\"));
        assert!(!is_open("one"));
        assert_eq!(unwrap_lines("\"\"\"\none\ntwo\n\"\"\""), "one\ntwo");
        assert_eq!(unwrap_lines("one\\\ntwo"), "one\ntwo");
        assert_eq!(unwrap_lines("say \"\"\" plainly"), "say \"\"\" plainly");
    }
}
