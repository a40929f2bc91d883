//! Splitting of text into words before byte-pair encoding. No merge crosses a cut, so models depend
//! on the cuts of their training. [`crate::presets`] lists the patterns by name.
//!
//! Most patterns end in `\s+(?!\S)|\s+`: a run of spaces leaves its last one to the word after it.
//! Look-ahead is their only feature beyond a finite automaton. A [`Rule`] implements it; an
//! automaton does the rest, in linear time for any text.

use std::ops::Range;
use std::sync::OnceLock;

use regex_automata::meta::Regex;
use regex_automata::{Input, PatternID};

use crate::presets::{Alphabet, GPT2, PRESETS, Preset};

/// One way to split. Both the matches of the pattern and the text between them are pieces.
pub(crate) struct Pass {
    /// The alternatives, without those for runs of spaces.
    pub(crate) pattern: &'static str,
    /// The further splitting of a match.
    pub(crate) rule: Rule,
}

/// The further splitting of a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// None.
    Match,
    /// `|\s+(?!\S)|\s+` follows: a run of spaces is a piece, without its last space if a word
    /// follows and the run is longer than that.
    LeaveLastSpace,
    /// `|\s{512}(?!\S)|\s{256}(?!\S)|…|\s{1,2}(?!\S)|\s` follows, with the powers of two from 512
    /// to 4 between.
    SpacesByPowers,
    /// The match is split into groups of three characters, from the right.
    Threes,
    /// `(?=(\d{3})+(?!\d))` for a pattern that matches three digits or more: a cut before each
    /// group of three, counted from the right.
    BeforeThrees,
}

/// A [`Pass`] that comes from a file.
pub(crate) struct Cut {
    /// The alternatives, without those for runs of spaces.
    pub(crate) pattern: String,
    /// True if runs of spaces are split as well.
    pub(crate) spaces: bool,
}

impl Cut {
    /// The words of GPT-2.
    pub(crate) fn gpt2() -> Cut {
        Cut { pattern: GPT2.pattern.to_owned(), spaces: GPT2.rule == Rule::LeaveLastSpace }
    }

    /// Returns true if both split alike. Patterns are compared as text, in which a character may be
    /// written as an escape.
    fn is(&self, pass: &Pass) -> bool {
        let plain = |pattern: &str| match pattern.contains(r"\u{") {
            false => pattern.to_owned(),
            true => (0x80..0x1_0000).filter_map(char::from_u32).fold(pattern.to_owned(), |text, c| {
                let number = format!("\\u{{{:04X}}}", c as u32);
                if text.contains(&number) { text.replace(&number, c.encode_utf8(&mut [0; 4])) } else { text }
            }),
        };
        let rule = if self.spaces { Rule::LeaveLastSpace } else { Rule::Match };
        rule == pass.rule && plain(&self.pattern) == plain(pass.pattern)
    }
}

impl Preset {
    /// Name of the byte-level preset with these cuts, if there is one.
    pub(crate) fn with_cuts(cuts: &[Cut], whole_words: bool) -> Option<&'static str> {
        let found = PRESETS.iter().find(|(_, preset)| {
            preset.alphabet == Alphabet::Bytes
                && preset.whole_words == whole_words
                && preset.passes.len() == cuts.len()
                && cuts.iter().zip(preset.passes).all(|(cut, pass)| cut.is(pass))
        });
        found.and_then(|(names, _)| names.first().copied())
    }
}

/// A [`Preset`] whose patterns are compiled for the first text, so a program that only decodes
/// never compiles them.
pub(crate) struct PreTokenizer {
    preset: &'static Preset,
    passes: OnceLock<Vec<CompiledPass>>,
}

/// A compiled pass.
pub(crate) struct CompiledPass {
    /// The alternatives, and `\s+` as a second pattern if the rule concerns spaces.
    regex: Regex,
    /// Id of the pattern for runs of spaces.
    spaces: Option<PatternID>,
    rule: Rule,
}

impl PreTokenizer {
    pub(crate) fn new(preset: &'static Preset) -> PreTokenizer {
        PreTokenizer { preset, passes: OnceLock::new() }
    }

    fn passes(&self) -> &[CompiledPass] {
        self.passes.get_or_init(|| self.preset.passes.iter().filter_map(Pass::compile).collect())
    }

    /// Compiles the patterns.
    pub(crate) fn prepare(&self) {
        self.passes();
    }

    /// Splits `text` and passes each piece on, in order; joined they are the text.
    pub(crate) fn split(&self, text: &str, piece: &mut dyn FnMut(&str)) {
        split(self.passes(), text, piece);
    }
}

impl Pass {
    /// Compiles a pass. The patterns are constants, and a test compiles all of them.
    pub(crate) fn compile(&self) -> Option<CompiledPass> {
        let has_spaces = match self.rule {
            Rule::LeaveLastSpace | Rule::SpacesByPowers => true,
            Rule::Match | Rule::Threes | Rule::BeforeThrees => false,
        };
        let patterns: &[&str] = if has_spaces { &[self.pattern, r"\s+"] } else { &[self.pattern] };
        let regex = Regex::new_many(patterns).ok()?;
        let spaces = has_spaces.then(|| PatternID::new(1).ok()).flatten();
        Some(CompiledPass { regex, spaces, rule: self.rule })
    }
}

/// Splits by the first pass, and its pieces by the others.
fn split(passes: &[CompiledPass], text: &str, piece: &mut dyn FnMut(&str)) {
    let Some((pass, passes)) = passes.split_first() else { return piece(text) };
    let mut give = |range: Range<usize>| {
        if let Some(part) = text.get(range).filter(|part| !part.is_empty()) {
            split(passes, part, piece);
        }
    };
    // `from` is the end of the last piece, and `at` the start of the next search.
    let (mut from, mut at) = (0, 0);
    while at < text.len() {
        let Some(found) = pass.regex.search(&Input::new(text).range(at..)) else { break };
        if found.end() <= at {
            break; // No pattern here matches the empty text; this guarantees that the loop ends.
        }
        let matched = text.get(found.range()).unwrap_or_default();
        at = found.end();
        match pass.rule {
            Rule::LeaveLastSpace | Rule::SpacesByPowers if Some(found.pattern()) == pass.spaces => {
                give(from..found.start());
                from = found.start();
                let word_follows = at < text.len(); // The run has all spaces at this place.
                let cut: fn(&str, bool, &mut dyn FnMut(usize)) =
                    if pass.rule == Rule::SpacesByPowers { by_powers } else { without_last };
                cut(matched, word_follows, &mut |len| {
                    give(from..from + len);
                    from += len;
                });
                at = from;
            }
            Rule::Match | Rule::LeaveLastSpace | Rule::SpacesByPowers => {
                give(from..found.start());
                give(found.range());
                from = at;
            }
            Rule::Threes | Rule::BeforeThrees => {
                let before = pass.rule == Rule::BeforeThrees;
                let n = matched.chars().count();
                if !before || n.is_multiple_of(3) {
                    give(from..found.start());
                    from = found.start();
                }
                for (index, (offset, _)) in matched.char_indices().enumerate().skip(1) {
                    if (n - index).is_multiple_of(3) {
                        give(from..found.start() + offset);
                        from = found.start() + offset;
                    }
                }
                if !before {
                    give(from..at);
                    from = at;
                }
            }
        }
    }
    give(from..text.len());
}

/// Passes on the length in bytes of the piece of a run of spaces, for `\s+(?!\S)|\s+`.
fn without_last(run: &str, word_follows: bool, piece: &mut dyn FnMut(usize)) {
    let last = run.chars().next_back().map_or(0, char::len_utf8);
    piece(if word_follows && run.len() > last { run.len() - last } else { run.len() });
}

/// Passes on the lengths in bytes of the pieces of a run of spaces, for [`Rule::SpacesByPowers`].
/// Before a word, the last of several spaces is left to the pattern, whose alternatives come first.
fn by_powers(run: &str, word_follows: bool, piece: &mut dyn FnMut(usize)) {
    let mut chars = run.chars();
    let mut left = run.chars().count();
    loop {
        // A power may match the whole rest only at the end of the text.
        let limit = if word_follows { left - 1 } else { left };
        let take = if limit == 0 { 1 } else { 1 << limit.ilog2().min(9) };
        piece(chars.by_ref().take(take).map(char::len_utf8).sum());
        left -= take;
        if left == 0 || (left == 1 && word_follows) {
            break;
        }
    }
}
