//! What was typed wrongly: tips beyond those that clap has.

use std::ffi::OsString;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::Cli;

/// The command line; usage errors and help end the program.
pub fn parse() -> Cli {
    let typed = spelt_out(std::env::args_os());
    let matches = command().try_get_matches_from(typed).unwrap_or_else(|error| improved(error).exit());
    clap::FromArgMatches::from_arg_matches(&matches).unwrap_or_else(|error: clap::Error| error.exit())
}

/// Flags of llama.cpp that have one dash and several letters, which a parser of flags takes for several flags.
const OF_LLAMA: [(&str, &str); 8] = [
    ("-ngl", "--gpu-layers"),
    ("-ncmoe", "--cpu-moe-layers"),
    ("-md", "--draft-model"),
    ("-sys", "--system"),
    ("-mm", "--mmproj"),
    ("-np", "--slots"),
    ("-temp", "--temperature"),
    ("-jf", "--json-schema"),
];

/// What was typed, with those spelt out that stand before `--`.
fn spelt_out(typed: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut is_flag = true;
    let spelt = typed.map(|arg| {
        is_flag &= arg != "--";
        let flag = OF_LLAMA.iter().find(|(short, _)| is_flag && arg == *short);
        flag.map_or(arg, |(_, long)| long.into())
    });
    spelt.collect()
}

/// The flags of each command that people look for, in this order, before all others; those stand under their headings.
const FIRST: [(&str, &[&str]); 3] = [
    (
        "run",
        &[
            "system",
            "image",
            "max_tokens",
            "temperature",
            "seed",
            "json_schema",
            "ctx",
            "device",
            "server",
            "json",
        ],
    ),
    (
        "complete",
        &[
            "prompt",
            "file",
            "tokens",
            "max_tokens",
            "temperature",
            "seed",
            "json_schema",
            "ctx",
            "device",
            "json",
        ],
    ),
    ("serve", &["host", "port", "api_key", "ctx", "device", "slots", "keep_alive", "config", "allow_pull"]),
];

/// The commands. A number is a value, also a negative one: what it means is said by whoever reads it.
pub fn command() -> clap::Command {
    let numbers = |arg: clap::Arg| match arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    };
    let mut all = Cli::command();
    // Clap would break lines after every word.
    if std::env::var("COLUMNS").is_ok_and(|columns| columns == "0") {
        all = all.term_width(NO_TERMINAL);
    }
    all.mut_subcommands(|command| {
        let first =
            FIRST.iter().find(|(name, _)| *name == command.get_name()).map_or(&[][..], |(_, ids)| ids);
        let notes = command.get_after_help().map(|notes| paragraphs(&notes.to_string()));
        let command = match notes {
            Some(notes) => command.after_help(notes),
            None => command,
        };
        let mut n_others = 0;
        command.mut_args(numbers).mut_args(|arg| match first.iter().position(|id| arg.get_id() == *id) {
            Some(place) => arg.help_heading(NO_HEADING).display_order(place),
            None if arg.is_positional() => arg.help_heading(NO_HEADING),
            None => {
                n_others += 1;
                arg.display_order(first.len() + n_others)
            }
        })
    })
}

/// Notes whose paragraphs have no line ends but that of their last line, for the terminal is not as wide as the source. Examples keep
/// theirs.
fn paragraphs(notes: &str) -> String {
    let joined = notes.split("\n\n").map(|part| match part.starts_with("Example") {
        true => part.to_owned(),
        false => part.replace('\n', " "),
    });
    joined.collect::<Vec<_>>().join("\n\n")
}

/// Columns of help where nothing says how many there are.
const NO_TERMINAL: usize = 100;

/// Under `Options`, where arguments without a heading stand.
const NO_HEADING: Option<&str> = None;

fn improved(mut error: clap::Error) -> clap::Error {
    let context = |error: &clap::Error, kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let typed = context(&error, ContextKind::InvalidSubcommand);
            // Clap's guesses miss swapped letters.
            if let Some(near) = nearest(&typed, command().get_subcommands()) {
                error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![near]));
            }
        }
        ErrorKind::InvalidValue if context(&error, ContextKind::InvalidArg).starts_with("--device") => {
            let typed = context(&error, ContextKind::InvalidValue).to_lowercase();
            if ["gpu", "nvidia", "rocm", "hip", "vulkan", "mps", "apple"].contains(&typed.as_str()) {
                let mut plain = clap::Error::new(ErrorKind::InvalidValue).with_cmd(&command());
                // All but the guess at a value.
                for (kind, value) in error.context().filter(|(kind, _)| *kind != ContextKind::SuggestedValue)
                {
                    plain.insert(kind, value.clone());
                }
                error = plain;
                tip(
                    &mut error,
                    "'cuda' is an NVIDIA GPU, 'metal' that of a Mac; 'auto' takes one that is here",
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

/// The command whose name, or an alias of which, has the fewest letters that differ from what was typed.
fn nearest<'a>(typed: &str, commands: impl Iterator<Item = &'a clap::Command>) -> Option<String> {
    let named = commands.flat_map(|command| {
        let aliases = command.get_all_aliases().map(move |alias| (alias, command.get_name()));
        std::iter::once((command.get_name(), command.get_name())).chain(aliases)
    });
    let typed = typed.to_lowercase();
    // Half of a short name, a third of a long one.
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
        for (_, long) in OF_LLAMA {
            let is_there = |command: &clap::Command| {
                command
                    .get_arguments()
                    .any(|arg| arg.get_long().is_some_and(|known| format!("--{known}") == long))
            };
            assert!(command().get_subcommands().any(is_there), "{long}");
        }
    }

    #[test]
    fn what_users_of_other_programs_type_is_taken() {
        for line in [
            "run m -p hi -n -1 -c 0 -s 7 -t -1 -ngl 99 --temp 0",
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

    #[test]
    fn notes_are_wrapped_once() {
        let notes = |name: &str| {
            let mut command = command();
            command.build();
            let found = command.find_subcommand_mut(name).unwrap();
            found.clone().term_width(100).render_long_help().to_string()
        };
        let serve = notes("serve");
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
