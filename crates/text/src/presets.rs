//! The pre-tokenizers that GGUF files name in `tokenizer.ggml.pre`.
//!
//! The patterns are those of the models' own tokenizer.json files; llama.cpp knows the same names.
//! Some patterns are simplified in llama.cpp, for example to ASCII capitals; the model's own
//! pattern is used here.

use crate::pre_tokenizer::{Pass, Rule};
use crate::{Error, Result};

/// The alphabet of a vocabulary's merges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alphabet {
    /// Bytes, written in GPT-2's byte alphabet.
    Bytes,
    /// Characters, with spaces written as U+2581 and unknown characters as byte tokens.
    SpaceMark,
    /// Characters as written, with unknown ones as byte tokens.
    Characters,
}

/// A named pre-tokenizer: passes, each of which splits the pieces of the previous one.
pub(crate) struct Preset {
    pub(crate) passes: &'static [Pass],
    /// True if a word that is a token becomes that token, whatever the merges.
    pub(crate) whole_words: bool,
    /// Like `whole_words`, for runs of newlines alone.
    pub(crate) whole_newlines: bool,
    /// True if texts begin with BOS unless the file says otherwise.
    pub(crate) add_bos: bool,
    pub(crate) alphabet: Alphabet,
    /// True if merges are optional; without them the token ids are the ranks.
    pub(crate) ranked: bool,
}

impl Preset {
    const fn new(passes: &'static [Pass]) -> Preset {
        Preset {
            passes,
            whole_words: false,
            whole_newlines: false,
            add_bos: false,
            alphabet: Alphabet::Bytes,
            ranked: false,
        }
    }

    const fn whole_words(passes: &'static [Pass]) -> Preset {
        Preset { whole_words: true, ..Preset::new(passes) }
    }

    const fn space_mark(passes: &'static [Pass]) -> Preset {
        Preset { alphabet: Alphabet::SpaceMark, ..Preset::new(passes) }
    }
}

/// A pass with the usual rule for runs of spaces as its last alternative.
const fn pass(pattern: &'static str) -> Pass {
    Pass { pattern, rule: Rule::LeaveLastSpace }
}

/// A pass with the pattern alone.
const fn only(pattern: &'static str) -> Pass {
    Pass { pattern, rule: Rule::Match }
}

pub(crate) const GPT2: Pass = pass(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+");
const LLAMA3_PATTERN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+";
const LLAMA3: &[Pass] = &[pass(LLAMA3_PATTERN)];
const JAIS2: &[Pass] = &[Pass { pattern: LLAMA3_PATTERN, rule: Rule::SpacesByPowers }];
const QWEN2_PASS: Pass =
    pass(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+");
const QWEN2: &[Pass] = &[QWEN2_PASS];
const QWEN35: &[Pass] = &[pass(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+",
)];
/// Qwen2's pattern without English contractions, since in Turkish a suffix follows the apostrophe.
const UFAKZEKA: &[Pass] = &[pass(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+")];
const LINES: Pass = only(r"[^\n]+|[\n]+");
const LAGUNA: &[Pass] = &[LINES, QWEN2_PASS];
/// Single digits, then GPT-2's pattern.
const SINGLE_DIGITS: &[Pass] = &[only(r"\p{N}"), GPT2];
const TEKKEN: &[Pass] = &[pass(concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+",
))];
const GPT4O_PASS: Pass = pass(concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+",
));
const GPT4O: &[Pass] = &[GPT4O_PASS];
/// Digits in threes from the right unless a letter follows, then GPT-4o's pattern.
const TINY_AYA: &[Pass] = &[Pass { pattern: r"\d+\b", rule: Rule::Threes }, GPT4O_PASS];
/// GPT-4o's pattern, with runs of Han characters apart, and single digits.
const YOUTU: &[Pass] = &[
    only(concat!(
        r"[\u{AC00}-\u{D7A3}\u{3131}-\u{318E}]+",
        r"|[\u{FF01}\u{2026}\u{201C}\u{201D}\u{2018}\u{2019}\u{2014}\u{FF1A}\u{FF1B}\u{FF0C}\u{3001}-\u{303F}\u{FE30}-\u{FE4F}]+",
        r"|[\u{3105}-\u{312F}]+|[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+",
    )),
    pass(concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+",
    )),
];
const KIMI_K2: &[Pass] = &[pass(concat!(
    r"\p{Han}+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
))];
const UP_TO_THREE_DIGITS: Pass = only(r"\p{N}{1,3}");
const HAN_AND_KANA: Pass = only(r"[一-龥\u{3040}-ゟ゠-ヿ]+");
const DEEPSEEK_V3_WORDS: Pass = pass(concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+",
));
const DEEPSEEK_V3: &[Pass] = &[UP_TO_THREE_DIGITS, HAN_AND_KANA, DEEPSEEK_V3_WORDS];
const SPARK: &[Pass] = &[
    UP_TO_THREE_DIGITS,
    HAN_AND_KANA,
    pass(concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
        r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]",
    )),
    only(r"\p{N}"),
];
const AFMOE: &[Pass] = &[
    Pass { pattern: r"\p{N}+", rule: Rule::Threes },
    only(concat!(
        r"[\u{4E00}-\u{9FFF}\u{3400}-\u{4DBF}\u{8C48}-\u{FAFF}\u{3040}-\u{309F}\u{30A0}-\u{30FF}\u{FF65}-\u{FF9F}",
        r"\u{2F00}-\u{2FDF}\u{0E40}-\u{0E7F}\u{0E80}-\u{0EFF}\u{1780}-\u{17FF}\u{1000}-\u{109F}\u{AA60}-\u{AA7F}",
        r"\u{A9E0}-\u{A9FF}\u{AC00}-\u{D7AF}\u{1100}-\u{11FF}]+",
    )),
    DEEPSEEK_V3_WORDS,
];
const DEEPSEEK_CODER: &[Pass] = &[
    only(r"[\r\n]"),
    only(r"\s?\p{L}+"),
    only(r"\s?\p{P}+"),
    only(r"[一-龥\u{0800}-一가-\u{D7FF}]+"),
    only(r"\p{N}"),
];
/// The letters that had two cases when the model was made.
const DEEPSEEK_LLM: &[Pass] = &[
    only(r"[\r\n]"),
    only(concat!(
        r"\s?[A-Za-z\u{00B5}\u{00C0}-\u{00D6}\u{00D8}-\u{00F6}\u{00F8}-\u{01BA}\u{01BC}-\u{01BF}\u{01C4}-\u{0293}",
        r"\u{0295}-\u{02AF}\u{0370}-\u{0373}\u{0376}\u{0377}\u{037B}-\u{037D}\u{037F}\u{0386}\u{0388}-\u{038A}\u{038C}",
        r"\u{038E}-\u{03A1}\u{03A3}-\u{03F5}\u{03F7}-\u{0481}\u{048A}-\u{052F}\u{0531}-\u{0556}\u{10A0}-\u{10C5}",
        r"\u{13A0}-\u{13F5}\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}",
        r"\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}",
        r"\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}",
        r"\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}",
        r"\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}\u{2139}",
        r"\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}\u{2CEB}-\u{2CEE}",
        r"\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}\u{A78B}-\u{A78E}",
        r"\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}",
        r"\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}",
        r"\u{1E900}-\u{1E943}]+",
    )),
    only(r"\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+"),
    only(r"\s+$"),
    only(r"[一-龥\u{0800}-一가-\u{D7FF}]+"),
    only(r"\p{N}+"),
];
const BAILING: &[Pass] =
    &[pass(r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]")];
const SEED_CODER: &[Pass] =
    &[pass(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+")];
/// Words with the single spaces between them are one piece.
const EXAONE_MOE: &[Pass] = &[pass(concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]",
))];
const FALCON: &[Pass] = &[only(r"[\p{P}\$\+<=>\^~\|`]+"), GPT2, only(r"[0-9][0-9][0-9]")];
const DEFAULT: &[Pass] = &[only(r"[\p{P}\$\+<=>\^~\|]+"), GPT2, only(r"\p{N}+"), only(r"[0-9][0-9][0-9]")];
const BLOOM: &[Pass] = &[only(r" ?[^(\s|.,!?…。，、।۔،)]+")];
const VIKING: &[Pass] = &[only(r" ?[^(\s|.,!?…。，、।۔،)]+"), only(r"\p{N}")];
const MINICPM5: &[Pass] = &[
    UP_TO_THREE_DIGITS,
    pass(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
    ),
];
/// Special tokens first: the model's own tokenizer finds sentinels and image tokens by their
/// patterns.
const CHAMELEON: &[Pass] = &[
    only(r"<sentinel:[0-9]+>"),
    only(r"IMGIMG[A-I]{1,4}Z"),
    only(r"[\t\n]|    |  "),
    only(r"\p{N}"),
    only(r"[\p{P}!-/:-@\[-`{-~]"),
    GPT2,
];
/// Splits only at numbers, and those in threes from the right.
const SUPERBPE: &[Pass] = &[only(r"\p{N}+"), Pass { pattern: r"\d{3,}", rule: Rule::BeforeThrees }];

/// Runs of characters other than white space.
const WORDS: &[Pass] = &[only(r"\S+")];

/// All known names with their presets. An export writes the first of several equal ones.
pub(crate) const PRESETS: &[(&[&str], Preset)] = &[
    (&["default"], Preset::new(DEFAULT)),
    (
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "jina-v1-en",
            "jina-v2-code",
            "jina-v2-es",
            "jina-v2-de",
            "roberta-bpe",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
        ],
        Preset::new(&[GPT2]),
    ),
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
        Preset { add_bos: true, ..Preset::whole_words(LLAMA3) },
    ),
    (&["dbrx", "smaug-bpe", "chatglm-bpe"], Preset::new(LLAMA3)),
    (&["glm4", "glm5"], Preset::whole_words(LLAMA3)),
    (&["jais-2"], Preset::new(JAIS2)),
    (&["minicpm5"], Preset::whole_words(MINICPM5)),
    (
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        Preset::new(QWEN2),
    ),
    (&["qwen35"], Preset::new(QWEN35)),
    (&["ufakzeka"], Preset::new(UFAKZEKA)),
    (&["laguna"], Preset::new(LAGUNA)),
    (
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        Preset::new(SINGLE_DIGITS),
    ),
    (&["tekken"], Preset { add_bos: true, ..Preset::whole_words(TEKKEN) }),
    (&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], Preset::new(GPT4O)),
    (&["granite-embed-multi-97m"], Preset::whole_words(GPT4O)),
    (&["tiny_aya", "cohere2moe"], Preset::new(TINY_AYA)),
    (&["youtu"], Preset::whole_words(YOUTU)),
    (&["kimi-k2"], Preset { ranked: true, ..Preset::new(KIMI_K2) }),
    (&["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], Preset::new(DEEPSEEK_V3)),
    (&["spark2_5"], Preset::new(SPARK)),
    (&["afmoe"], Preset::new(AFMOE)),
    (&["deepseek-coder"], Preset::new(DEEPSEEK_CODER)),
    (&["deepseek-llm"], Preset::new(DEEPSEEK_LLM)),
    (&["bailingmoe", "bailingmoe2", "llada-moe"], Preset::new(BAILING)),
    (&["seed-coder"], Preset::new(SEED_CODER)),
    (&["exaone-moe"], Preset::new(EXAONE_MOE)),
    (&["falcon"], Preset::new(FALCON)),
    (&["bloom", "poro-chat", "gpt3-finnish"], Preset::new(BLOOM)),
    (&["viking"], Preset::new(VIKING)),
    (&["chameleon"], Preset { add_bos: true, ..Preset::new(CHAMELEON) }),
    (&["superbpe"], Preset::new(SUPERBPE)),
    (
        &["gemma4", "granite-embed-multi-311m"],
        Preset { add_bos: true, whole_newlines: true, ..Preset::space_mark(&[LINES]) },
    ),
    (&["sarvam-moe"], Preset::space_mark(&[LINES])),
    (&["whitespace"], Preset { alphabet: Alphabet::Characters, ..Preset::new(WORDS) }),
];

impl Preset {
    /// The preset that `tokenizer.ggml.pre` names.
    ///
    /// # Errors
    /// The name is unknown. A guess could split words differently than in training, which lowers
    /// quality without a warning.
    pub(crate) fn named(name: &str) -> Result<&'static Preset> {
        PRESETS.iter().find(|(names, _)| names.contains(&name)).map(|(_, preset)| preset).ok_or_else(|| {
            let names: Vec<&str> = PRESETS.iter().flat_map(|(names, _)| names.iter().copied()).collect();
            Error::Unknown { key: "tokenizer.ggml.pre".into(), found: name.into(), known: names.join(", ") }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pre_tokenizer::PreTokenizer;

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
    fn words_are_split_as_in_training() {
        assert_eq!(pieces("gpt-2", "Hello  world's 42!"), ["Hello", " ", " world", "'s", " 42", "!"]);
        assert_eq!(pieces("gpt-2", "a\n\nb\tc  \n"), ["a", "\n", "\n", "b", "\t", "c", "  \n"]);
        assert_eq!(pieces("gpt-2", "   "), ["   "]);
        assert_eq!(pieces("smollm", "in 1234 ways"), ["in", " ", "1", "2", "3", "4", " ways"]);
        assert_eq!(
            pieces("llama3", "I'LL pay 12345\n\n  now"),
            ["I", "'LL", " pay", " ", "123", "45", "\n\n", " ", " now"]
        );
        assert_eq!(pieces("qwen2", "x=10; // né\r\n"), ["x", "=", "1", "0", ";", " //", " né", "\r\n"]);
        assert_eq!(pieces("ufakzeka", "Ali'den it's"), ["Ali", "'den", " it", "'s"]);
        assert_eq!(pieces("laguna", "a\n\n b"), ["a", "\n\n", " b"]);
        assert_eq!(pieces("tekken", "camelCaseHTTP"), ["camel", "Case", "HTTP"]);
        assert_eq!(pieces("gpt-4o", "Don't"), ["Don't"]);
        assert_eq!(pieces("deepseek-v3", "漢字abc1234"), ["漢字", "abc", "123", "4"]);
        assert_eq!(pieces("spark2_5", "12 a\n\n"), ["1", "2", " a", "\n", "\n"]);
        assert_eq!(pieces("youtu", "漢字，abC 12"), ["漢字", "，", "ab", "C", " ", "1", "2"]);
        assert_eq!(pieces("kimi-k2", "看world漢1234 x"), ["看", "world", "漢", "123", "4", " x"]);
        assert_eq!(pieces("deepseek-llm", "a b漢12 \r\n"), ["a", " b", "漢", "12", " ", "\r", "\n"]);
        assert_eq!(pieces("deepseek-llm", "x  y  "), ["x", " ", " y", "  "]);
        assert_eq!(pieces("exaone-moe", "to be, or"), ["to be", ",", " or"]);
        assert_eq!(pieces("falcon", "a1234b"), ["a", "123", "4", "b"]);
        assert_eq!(pieces("viking", "ja 12."), ["ja", " ", "1", "2", "."]);
        assert_eq!(pieces("chameleon", "IMGIMGABZ    a1"), ["IMGIMGABZ", "    ", "a", "1"]);
        // Later passes split the pieces of earlier ones.
        assert_eq!(pieces("chameleon", "<sentinel:1>"), ["<", "sentinel", ":", "1", ">"]);
        assert_eq!(pieces("gemma4", "a b\n\nc"), ["a b", "\n\n", "c"]);
        assert_eq!(pieces("whitespace", "a  bc"), ["a", "  ", "bc"]);
        assert_eq!(pieces("gpt-2", ""), [""; 0]);
    }

    #[test]
    fn digits_come_in_threes_from_the_right() {
        assert_eq!(pieces("afmoe", "1234567"), ["1", "234", "567"]);
        assert_eq!(pieces("afmoe", "123456a"), ["123", "456", "a"]);
        assert_eq!(pieces("tiny_aya", "12345 1234x"), ["12", "345", " ", "123", "4", "x"]);
        assert_eq!(
            pieces("superbpe", "in 1234567 or 12 ways"),
            ["in ", "1", "234", "567", " or ", "12", " ways"]
        );
        // No cut where digits end within a number.
        assert_eq!(pieces("superbpe", "12½3456½"), ["12½3", "456½"]);
    }

    #[test]
    fn runs_of_spaces_are_split_by_powers_of_two() {
        let lengths = |text: &str| pieces("jais-2", text).iter().map(String::len).collect::<Vec<_>>();
        assert_eq!(lengths(&" ".repeat(7)), [4, 2, 1]);
        assert_eq!(lengths(&(" ".repeat(8) + "x")), [4, 2, 1, 2]);
        assert_eq!(lengths(&(" ".repeat(9) + "1")), [8, 1, 1]);
        assert_eq!(lengths(&(" ".repeat(1025) + "!")), [512, 512, 2]);
        assert_eq!(lengths("  \n  x"), [3, 1, 2]);
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known() {
        let error = Preset::named("klingon").err().unwrap().to_string();
        assert!(error.contains("\"klingon\"") && error.contains("qwen2"), "{error}");
    }

    #[test]
    fn long_runs_take_linear_time() {
        for text in [
            " ".repeat(60_000) + "x",
            "a".repeat(60_000),
            "1".repeat(60_000) + "a",
            "\n ".repeat(30_000) + "x",
            "''".repeat(30_000),
        ] {
            for (names, _) in PRESETS {
                pieces(names[0], &text);
            }
        }
    }
}
