//! The command line: order and length of help, and tips for typing mistakes beyond clap's own.

use std::ffi::OsString;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::Cli;

/// Parses the command line; usage errors and help end the program.
pub fn parse() -> Cli {
    let typed = spelt_out(std::env::args_os());
    let matches = command().try_get_matches_from(typed).unwrap_or_else(|error| improved(error).exit());
    clap::FromArgMatches::from_arg_matches(&matches).unwrap_or_else(|error: clap::Error| error.exit())
}

/// Flags of llama.cpp with one dash and several letters, which clap would parse as several flags.
const LLAMA_FLAGS: [(&str, &str); 8] = [
    ("-ngl", "--gpu-layers"),
    ("-ncmoe", "--cpu-moe-layers"),
    ("-md", "--draft-model"),
    ("-sys", "--system"),
    ("-mm", "--mmproj"),
    ("-np", "--slots"),
    ("-temp", "--temperature"),
    ("-jf", "--json-schema"),
];

/// The arguments with llama.cpp's flags before `--` replaced by their long names.
fn spelt_out(typed: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut is_flag = true;
    let spelt = typed.map(|arg| {
        is_flag &= arg != "--";
        let flag = LLAMA_FLAGS.iter().find(|(short, _)| is_flag && arg == *short);
        flag.map_or(arg, |(_, long)| long.into())
    });
    spelt.collect()
}

/// Headings of flags in the order of help, with the flags that `-h` shows. The other flags are in
/// `--help` only, so that `-h` fits on a screen. Flags that people change often come first, flags
/// of fetching last. Flags without a heading come before all others.
const HEADINGS: [(&str, &[&str]); 16] = [
    ("Access", &["host", "port", "api_key", "tls_cert"]),
    ("Requests", &["max_tokens", "prefix_cache"]),
    ("Server", &["server"]),
    ("Output", &["format", "json", "output_dir", "word_timestamps"]),
    ("Decoding", &["language", "task", "beam_size", "prompt"]),
    ("Running", &[]),
    ("Sampling", &["temperature", "top_p", "seed", "stop", "max_tokens"]),
    ("Default sampling", &["temperature", "top_p"]),
    ("Constrained answers", &["grammar", "json_schema"]),
    ("More samplers", &[]),
    ("Adapters", &[]),
    ("Speculation", &[]),
    ("Prefill", &[]),
    ("Device and memory", &["device", "threads", "gpu_layers", "ctx", "memory"]),
    ("Verifying", &[]),
    ("Fetching", &["cache", "offline"]),
];

/// The place of a flag's heading in [`HEADINGS`].
fn heading_of(arg: &clap::Arg) -> Option<usize> {
    let heading = arg.get_help_heading()?;
    HEADINGS.iter().position(|(known, _)| heading.starts_with(known))
}

/// The commands. Every number may be negative on the command line; its parser checks the range.
pub fn command() -> clap::Command {
    let mut all = Cli::command();
    // With COLUMNS=0, clap would break lines after every word.
    if std::env::var("COLUMNS").is_ok_and(|columns| columns == "0") {
        all = all.term_width(NO_TERMINAL);
    }
    all.mut_subcommands(|command| {
        let notes = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let short = format!("{}`ingle {} --help` describes all flags.", examples(&notes), command.get_name());
        let command = command.after_help(short).after_long_help(paragraphs(&notes));
        let command = command.mut_args(|arg| {
            let arg = if arg.get_action().takes_values() { arg.allow_negative_numbers(true) } else { arg };
            let is_short = |heading: usize| HEADINGS[heading].1.contains(&arg.get_id().as_str());
            match heading_of(&arg).is_none_or(is_short) {
                _ if arg.is_positional() => arg.help_heading(NO_HEADING),
                true => arg,
                false => arg.hide_short_help(true),
            }
        });
        in_order(command)
    })
}

/// The command with its flags sorted by [`HEADINGS`]. Clap prints headings in the order of their
/// first flags.
fn in_order(command: clap::Command) -> clap::Command {
    let flags = command.get_arguments().filter(|arg| !arg.is_positional());
    let mut ranked: Vec<_> = flags.map(|arg| (heading_of(arg), arg.get_id().clone())).collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    let ranked = ranked.into_iter().enumerate();
    // `mut_arg` moves its argument to the end.
    ranked.fold(command, |command, (place, (_, id))| command.mut_arg(id, |arg| arg.display_order(place)))
}

/// The first examples of a command's notes, for `-h`.
fn examples(notes: &str) -> String {
    let part = notes.split("\n\n").find(|part| part.starts_with("Example"));
    let lines: Vec<&str> = part.unwrap_or_default().lines().take(1 + MAX_EXAMPLES).collect();
    if lines.is_empty() { String::new() } else { lines.join("\n") + "\n\n" }
}

/// Maximum number of examples of a command in `-h`.
const MAX_EXAMPLES: usize = 2;

/// The notes with one line for each paragraph, which clap wraps to the width of the terminal.
/// Examples keep their lines.
fn paragraphs(notes: &str) -> String {
    let joined = notes.split("\n\n").map(|part| match part.starts_with("Example") {
        true => part.to_owned(),
        false => part.replace('\n', " "),
    });
    joined.collect::<Vec<_>>().join("\n\n")
}

/// Columns of help if the terminal's width is unknown.
const NO_TERMINAL: usize = 100;

/// The heading `Options`, which has the flags without their own heading.
const NO_HEADING: Option<&str> = None;

fn improved(mut error: clap::Error) -> clap::Error {
    let context = |error: &clap::Error, kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let typed = context(&error, ContextKind::InvalidSubcommand);
            // Clap's own suggestions miss swapped letters.
            if let Some(near) = nearest(&typed, command().get_subcommands()) {
                error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![near]));
            }
        }
        ErrorKind::InvalidValue if context(&error, ContextKind::InvalidArg).starts_with("--device") => {
            let typed = context(&error, ContextKind::InvalidValue).to_lowercase();
            if ["gpu", "nvidia", "rocm", "hip", "vulkan", "mps", "apple"].contains(&typed.as_str()) {
                let mut plain = clap::Error::new(ErrorKind::InvalidValue).with_cmd(&command());
                // Clap's guess at a value is left out.
                for (kind, value) in error.context().filter(|(kind, _)| *kind != ContextKind::SuggestedValue)
                {
                    plain.insert(kind, value.clone());
                }
                error = plain;
                tip(
                    &mut error,
                    "'cuda' is an NVIDIA GPU, 'metal' is a Mac's GPU, and 'auto' chooses one that is present",
                );
            }
        }
        ErrorKind::ValueValidation
            if context(&error, ContextKind::InvalidValue).starts_with('-')
                && error.get(ContextKind::Suggested).is_none()
                && !says_what_is_expected(&error) =>
        {
            tip(&mut error, "expected a number of at least 0");
        }
        _ => {}
    }
    error
}

fn says_what_is_expected(error: &clap::Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.to_string().contains("expected"))
}

fn tip(error: &mut clap::Error, text: &str) {
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![text.to_owned().into()]));
}

/// The command whose name or alias is most similar to the typed word.
fn nearest<'a>(typed: &str, commands: impl Iterator<Item = &'a clap::Command>) -> Option<String> {
    let named = commands.flat_map(|command| {
        let aliases = command.get_all_aliases().map(move |alias| (alias, command.get_name()));
        std::iter::once((command.get_name(), command.get_name())).chain(aliases)
    });
    let typed = typed.to_lowercase();
    // A typing mistake changes few letters: at most a third, and at most three.
    let most = (typed.chars().count() / 3).clamp(1, 3);
    let distances = named.map(|(name, command)| (strsim::damerau_levenshtein(&typed, name), command));
    let nearest = distances.filter(|(distance, _)| *distance <= most).min_by_key(|(distance, _)| *distance);
    nearest.map(|(_, command)| command.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn flags_of_llama_cpp_are_known() {
        let typed = ["ingle", "run", "m", "-ngl", "9", "--", "-ngl"].map(OsString::from);
        assert_eq!(spelt_out(typed.into_iter()), ["ingle", "run", "m", "--gpu-layers", "9", "--", "-ngl"]);
        for (_, long) in LLAMA_FLAGS {
            let is_there = |command: &clap::Command| {
                command
                    .get_arguments()
                    .any(|arg| arg.get_long().is_some_and(|known| format!("--{known}") == long))
            };
            assert!(command().get_subcommands().any(is_there), "{long}");
        }
    }

    #[test]
    fn flags_of_other_programs_are_accepted() {
        for line in [
            "run m -p hi -n -1 -c 0 -s 7 -t -1 -ngl 99 --temp 0",
            "run m hi --temperature -1 --top-p -0.5",
            "run m hi --n-predict 5 --ctx-size 64 --repeat-last-n -1 --logit-bias 5+1 -sys x",
            "run m hi --think --format json",
            "run m hi --think=high -j {} --chat-template-file f",
            "run m hi --think=false --device CPU --kv-type F16 --memory 8GB",
            "complete m text --ignore-eos --predict 3 --grammar-file g",
            "serve m --host localhost -np 4 --num-ctx 512",
            "show m",
            "ls",
            "create m -o f",
        ] {
            let typed = std::iter::once("ingle").chain(line.split(' ')).map(OsString::from);
            let found = command().try_get_matches_from(spelt_out(typed));
            let found = found.and_then(|matches| <Cli as clap::FromArgMatches>::from_arg_matches(&matches));
            assert!(
                found.is_ok(),
                "{line}: {}",
                found.err().map(|error| error.to_string()).unwrap_or_default()
            );
        }
    }

    /// The help of a command at 100 columns, as `-h` (short) or `--help` prints it.
    fn help(name: &str, is_short: bool) -> String {
        let mut all = command().term_width(100);
        all.build();
        let mut found = match all.find_subcommand_mut(name) {
            Some(found) => found.clone().term_width(100),
            None => all,
        };
        match is_short {
            true => found.render_help().to_string(),
            false => found.render_long_help().to_string(),
        }
    }

    fn names() -> Vec<String> {
        let all = command();
        let names = all.get_subcommands().map(|command| command.get_name().to_owned());
        names.chain(["ingle".to_owned()]).collect()
    }

    #[test]
    fn short_help_fits_on_a_screen() {
        for name in names() {
            let text = help(&name, true);
            assert!(text.lines().count() <= 50, "{name}: {} lines\n{text}", text.lines().count());
        }
        // The most common flags of each section are there, in this order.
        let text = help("run", true);
        let order = ["<MODEL>", "--system", "--temperature", "--device", "--offline"];
        let places = order.map(|flag| text.find(flag).unwrap_or_else(|| panic!("{flag}\n{text}")));
        assert!(places.is_sorted(), "{text}");
    }

    #[test]
    fn every_heading_and_flag_of_the_table_exists() {
        let all = command();
        let args = || all.get_subcommands().flat_map(clap::Command::get_arguments);
        for (place, (heading, flags)) in HEADINGS.iter().enumerate() {
            let of_heading: Vec<_> = args().filter(|arg| heading_of(arg) == Some(place)).collect();
            assert!(!of_heading.is_empty(), "{heading}");
            for flag in *flags {
                assert!(of_heading.iter().any(|arg| arg.get_id() == *flag), "{heading}: {flag}");
            }
        }
        let unknown = args().filter(|arg| heading_of(arg).is_none()).filter_map(clap::Arg::get_help_heading);
        assert_eq!(unknown.collect::<Vec<_>>(), [""; 0]);
    }

    #[test]
    fn notes_are_wrapped_once() {
        let serve = help("serve", false);
        let at = serve.find("The first model answers").unwrap();
        let first = serve[at..].lines().next().unwrap();
        assert!(first.len() > 80 && first.len() <= 100, "{first}");
        assert!(serve.contains("\n  ingle serve smollm2:135m\n"));
    }

    #[test]
    fn commands_that_are_misspelt_are_guessed() {
        let commands = command();
        let near = |typed: &str| nearest(typed, commands.get_subcommands());
        for (typed, expected) in [
            ("rnu", "run"),
            ("sevre", "serve"),
            ("lst", "list"),
            ("Inspct", "inspect"),
            ("quantise", "convert"),
        ] {
            assert_eq!(near(typed).as_deref(), Some(expected), "{typed}");
        }
        assert_eq!(near("frobnicate"), None);
    }
}
