//! Cutting text into words before byte-pair encoding. No merge crosses a cut, so the cuts are part of what a
//! model was trained on: GGUF names them in `tokenizer.ggml.pre`, and each name stands here for its patterns.
//!
//! The patterns are those of the models' own tokenizer.json files, which llama.cpp uses as well. They all end
//! in `\s+(?!\S)|\s+`: a run of spaces leaves its last one to the word behind it. That look-ahead is the only
//! thing in them that no finite automaton can do; it is done here by hand ([`Pass::spaces`]), and the rest by an
//! automaton that takes linear time whatever the text.

use std::ops::Range;
use std::sync::OnceLock;

use regex_automata::meta::Regex;
use regex_automata::{Input, PatternID};

use crate::{Error, Result};

/// One way of cutting. Both what the pattern matches and what lies between two matches are pieces.
struct Pass {
    /// The alternatives, but for the runs of spaces.
    pattern: &'static str,
    /// Whether `|\s+(?!\S)|\s+` follows: a run of spaces is a piece, without its last space if a word follows
    /// and the run is longer than that.
    spaces: bool,
}

/// A [`Pass`] that comes from a file.
pub(crate) struct Cut {
    /// The alternatives, but for the runs of spaces.
    pub(crate) pattern: String,
    /// Whether runs of spaces are cut as well.
    pub(crate) spaces: bool,
}

impl Cut {
    /// The words of GPT-2.
    pub(crate) fn gpt2() -> Cut {
        Cut { pattern: GPT2.pattern.to_owned(), spaces: GPT2.spaces }
    }

    /// Whether both cut alike. Patterns are compared by their text, in which a character may be written by its number.
    fn is(&self, pass: &Pass) -> bool {
        let plain = |pattern: &str| match pattern.contains(r"\u{") {
            false => pattern.to_owned(),
            true => (0x80..0x1_0000).filter_map(char::from_u32).fold(pattern.to_owned(), |text, c| {
                let number = format!("\\u{{{:04X}}}", c as u32);
                if text.contains(&number) { text.replace(&number, c.encode_utf8(&mut [0; 4])) } else { text }
            }),
        };
        self.spaces == pass.spaces && plain(&self.pattern) == plain(pass.pattern)
    }
}

/// A named way of cutting: passes, each cutting the pieces of the one before.
pub(crate) struct Preset {
    passes: &'static [Pass],
    /// A word that is a token is that token, whatever the merges would make of it.
    pub(crate) whole_words: bool,
    /// Whether a BOS token is put first where the file does not say.
    pub(crate) add_bos: bool,
    /// Whether the merges work on characters, with spaces written as U+2581, instead of on bytes.
    pub(crate) characters: bool,
}

const fn pass(pattern: &'static str) -> Pass {
    Pass { pattern, spaces: true }
}

const fn only(pattern: &'static str) -> Pass {
    Pass { pattern, spaces: false }
}

const fn preset(passes: &'static [Pass]) -> Preset {
    Preset { passes, whole_words: false, add_bos: false, characters: false }
}

const GPT2: Pass = pass(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+");
const LLAMA3: &[Pass] = &[pass(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
)];
const QWEN2: &[Pass] = &[pass(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
)];
const QWEN35: &[Pass] = &[pass(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+",
)];
/// Digits one by one, then as GPT-2.
const SINGLE_DIGITS: &[Pass] = &[only(r"\p{N}"), GPT2];
const TEKKEN: &[Pass] = &[pass(concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+",
))];
const GPT4O: &[Pass] = &[pass(concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+",
))];
const DEEPSEEK_V3: &[Pass] = &[
    only(r"\p{N}{1,3}"),
    only(r"[一-龥\u{3040}-ゟ゠-ヿ]+"),
    pass(concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
        r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+",
    )),
];
const DEEPSEEK_CODER: &[Pass] = &[
    only(r"[\r\n]"),
    only(r"\s?\p{L}+"),
    only(r"\s?\p{P}+"),
    only(r"[一-龥\u{0800}-一가-\u{D7FF}]+"),
    only(r"\p{N}"),
];
const BAILING: &[Pass] =
    &[pass(r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]")];
const SEED_CODER: &[Pass] =
    &[pass(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+")];
const FALCON: &[Pass] = &[only(r"[\p{P}\$\+<=>\^~\|`]+"), GPT2, only(r"[0-9][0-9][0-9]")];
const DEFAULT: &[Pass] = &[only(r"[\p{P}\$\+<=>\^~\|]+"), GPT2, only(r"\p{N}+"), only(r"[0-9][0-9][0-9]")];
const BLOOM: &[Pass] = &[only(r" ?[^(\s|.,!?…。，、।۔،)]+")];
const VIKING: &[Pass] = &[only(r" ?[^(\s|.,!?…。，、।۔،)]+"), only(r"\p{N}")];
const MINICPM5: &[Pass] = &[
    only(r"\p{N}{1,3}"),
    pass(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
    ),
];
const GEMMA4: &[Pass] = &[only(r"[^\n]+|[\n]+")];

/// Every name known, with what it stands for.
const PRESETS: &[(&[&str], Preset)] = &[
    (&["default"], preset(DEFAULT)),
    (
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "gigachat",
            "a.x-4.0",
            "mellum",
        ],
        preset(&[GPT2]),
    ),
    (&["modern-bert", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4"], preset(&[GPT2])),
    (
        &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        Preset { whole_words: true, add_bos: true, ..preset(LLAMA3) },
    ),
    (&["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], preset(LLAMA3)),
    (&["minicpm5"], Preset { whole_words: true, ..preset(MINICPM5) }),
    (&["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan"], preset(QWEN2)),
    (&["solar-open", "grok-2"], preset(QWEN2)),
    (&["qwen35"], preset(QWEN35)),
    (
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"],
        preset(SINGLE_DIGITS),
    ),
    (&["mellum2"], preset(SINGLE_DIGITS)),
    (&["tekken"], Preset { whole_words: true, add_bos: true, ..preset(TEKKEN) }),
    (&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], preset(GPT4O)),
    (&["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], preset(DEEPSEEK_V3)),
    (&["deepseek-coder"], preset(DEEPSEEK_CODER)),
    (&["bailingmoe", "bailingmoe2", "llada-moe"], preset(BAILING)),
    (&["seed-coder"], preset(SEED_CODER)),
    (&["falcon"], preset(FALCON)),
    (&["bloom", "poro-chat", "gpt3-finnish"], preset(BLOOM)),
    (&["viking"], preset(VIKING)),
    (&["gemma4"], Preset { characters: true, add_bos: true, ..preset(GEMMA4) }),
];

impl Preset {
    /// What `tokenizer.ggml.pre` names.
    ///
    /// # Errors
    /// The name is not known. To guess would cut words where the model never saw them cut, which costs quality
    /// without a word of warning.
    pub(crate) fn named(name: &str) -> Result<&'static Preset> {
        PRESETS.iter().find(|(names, _)| names.contains(&name)).map(|(_, preset)| preset).ok_or_else(|| {
            let names: Vec<&str> = PRESETS.iter().flat_map(|(names, _)| names.iter().copied()).collect();
            Error::Unknown { key: "tokenizer.ggml.pre".into(), found: name.into(), known: names.join(", ") }
        })
    }
}

/// A [`Preset`] whose patterns are compiled when the first text comes, which a program that only writes text
/// out never pays for.
pub(crate) struct PreTokenizer {
    preset: &'static Preset,
    passes: OnceLock<Vec<Compiled>>,
}

struct Compiled {
    /// The alternatives, and as a second pattern `\s+` where the pass has it.
    regex: Regex,
    /// The pattern of the runs of spaces.
    spaces: Option<PatternID>,
}

impl Preset {
    /// The name of the byte-level preset that cuts so, if there is one.
    pub(crate) fn with_cuts(cuts: &[Cut], whole_words: bool) -> Option<&'static str> {
        let found = PRESETS.iter().find(|(_, preset)| {
            !preset.characters
                && preset.whole_words == whole_words
                && preset.passes.len() == cuts.len()
                && cuts.iter().zip(preset.passes).all(|(cut, pass)| cut.is(pass))
        });
        found.and_then(|(names, _)| names.first().copied())
    }
}

impl PreTokenizer {
    pub(crate) fn new(preset: &'static Preset) -> PreTokenizer {
        PreTokenizer { preset, passes: OnceLock::new() }
    }

    fn passes(&self) -> &[Compiled] {
        self.passes.get_or_init(|| self.preset.passes.iter().filter_map(Pass::compile).collect())
    }

    /// Compile the patterns.
    pub(crate) fn prepare(&self) {
        self.passes();
    }

    /// Cut `text` and give each piece, in order; together they are the text.
    pub(crate) fn split(&self, text: &str, piece: &mut dyn FnMut(&str)) {
        split(self.passes(), text, piece);
    }
}

impl Pass {
    /// The patterns are constants of this file and a test compiles every one of them.
    fn compile(&self) -> Option<Compiled> {
        let patterns: &[&str] = if self.spaces { &[self.pattern, r"\s+"] } else { &[self.pattern] };
        let regex = Regex::new_many(patterns).ok()?;
        Some(Compiled { regex, spaces: self.spaces.then(|| PatternID::new(1).ok()).flatten() })
    }
}

/// Cut by the first pass, and what it cut by the others.
fn split(passes: &[Compiled], text: &str, piece: &mut dyn FnMut(&str)) {
    let Some((pass, passes)) = passes.split_first() else { return piece(text) };
    let mut give = |range: Range<usize>| {
        if let Some(part) = text.get(range).filter(|part| !part.is_empty()) {
            split(passes, part, piece);
        }
    };
    let mut at = 0;
    while at < text.len() {
        let Some(found) = pass.regex.search(&Input::new(text).range(at..)) else { break };
        let mut end = found.end();
        if Some(found.pattern()) == pass.spaces && end < text.len() {
            // A word follows, for the run took all the spaces there were: leave it the last, if others remain.
            let last =
                text.get(found.range()).and_then(|run| run.chars().next_back()).map_or(0, char::len_utf8);
            if end - last > found.start() {
                end -= last;
            }
        }
        if end <= at {
            break; // No pattern of ours matches nothing; a loop must end whatever happens.
        }
        give(at..found.start());
        give(found.start()..end);
        at = end;
    }
    give(at..text.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(name: &str, text: &str) -> Vec<String> {
        let pre_tokenizer = PreTokenizer::new(Preset::named(name).unwrap());
        let mut out = Vec::new();
        pre_tokenizer.split(text, &mut |piece| out.push(piece.to_string()));
        assert_eq!(out.concat(), text);
        out
    }

    #[test]
    fn every_pattern_compiles_and_every_name_is_there_once() {
        let mut names = Vec::new();
        for (these, preset) in PRESETS {
            names.extend_from_slice(these);
            for pass in preset.passes {
                assert!(pass.compile().is_some(), "{these:?}: {}", pass.pattern);
            }
        }
        let n_names = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), n_names);
    }

    #[test]
    fn words_are_cut_as_the_models_were_taught() {
        assert_eq!(pieces("gpt-2", "Hello  world's 42!"), ["Hello", " ", " world", "'s", " 42", "!"]);
        assert_eq!(pieces("gpt-2", "a\n\nb\tc  \n"), ["a", "\n", "\n", "b", "\t", "c", "  \n"]);
        assert_eq!(pieces("gpt-2", "   "), ["   "]);
        assert_eq!(pieces("smollm", "in 1234 ways"), ["in", " ", "1", "2", "3", "4", " ways"]);
        assert_eq!(
            pieces("llama3", "I'LL pay 12345\n\n  now"),
            ["I", "'LL", " pay", " ", "123", "45", "\n\n", " ", " now"]
        );
        assert_eq!(pieces("qwen2", "x=10; // né\r\n"), ["x", "=", "1", "0", ";", " //", " né", "\r\n"]);
        assert_eq!(pieces("tekken", "camelCaseHTTP"), ["camel", "Case", "HTTP"]);
        assert_eq!(pieces("gpt-4o", "Don't"), ["Don't"]);
        assert_eq!(pieces("deepseek-v3", "漢字abc1234"), ["漢字", "abc", "123", "4"]);
        assert_eq!(pieces("falcon", "a1234b"), ["a", "123", "4", "b"]);
        assert_eq!(pieces("viking", "ja 12."), ["ja", " ", "1", "2", "."]);
        assert_eq!(pieces("gemma4", "a b\n\nc"), ["a b", "\n\n", "c"]);
        assert_eq!(pieces("gpt-2", ""), [""; 0]);
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known() {
        let error = Preset::named("klingon").err().unwrap().to_string();
        assert!(error.contains("\"klingon\"") && error.contains("qwen2"), "{error}");
    }

    #[test]
    fn long_runs_take_linear_time() {
        for text in [
            " ".repeat(300_000) + "x",
            "a".repeat(300_000),
            "\n ".repeat(150_000) + "x",
            "''".repeat(150_000),
        ] {
            for name in ["default", "smollm", "llama3", "tekken", "deepseek-v3", "deepseek-coder"] {
                pieces(name, &text);
            }
        }
    }
}
