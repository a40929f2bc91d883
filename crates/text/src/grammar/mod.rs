//! Grammars: the tokens that may follow, so that a text is JSON of a schema, matches a regular
//! expression, or follows a grammar.
//!
//! `llguidance` parses the text. This module defines the kinds of grammars, prepares the
//! vocabulary, and sets limits for untrusted grammars.

mod gbnf;
mod limits;
mod schema;
mod structural_tag;
mod translate;
mod triggers;

use std::sync::Arc;

use llguidance::api::{ParserLimits, StopReason, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher as Parser, ParserFactory};
use serde_json::{Value, json};

use crate::{Error, Result, Tokenizer};

pub use limits::{MAX_CHOICES, MAX_GRAMMAR, MAX_REGEX, MAX_SCHEMA_DEPTH, check_lark};
pub use schema::{Prepared, SchemaOptions, prepare_schema, prepare_tool};
pub use triggers::{MAX_TRIGGER, MAX_TRIGGERS, Trigger, Triggers};

/// Stack for compiling a grammar, since `llguidance` follows rules by recursion. Only the used part
/// needs memory.
const STACK: usize = 256 << 20;

/// Maximum number of Earley items of one place: twice the choices and properties of the largest
/// schema.
const MAX_ITEMS: usize = 20_000;

/// Maximum number of lines with a colon in a Lark grammar, an upper bound of its rules. [`STACK`]
/// suffices for a chain of this length.
const MAX_LARK_RULES: usize = 5_000;

/// Options in a schema's `x-guidance` that would allow what the schema forbids.
const PERMISSIVE_OPTIONS: [&str; 2] = ["lenient", "coerce_one_of"];

/// The required form of a text.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// JSON of this schema.
    JsonSchema(Value),
    /// Any JSON object.
    AnyJson,
    /// A text that the regular expression matches as a whole.
    Regex(String),
    /// A choice of these texts.
    Choice(Vec<String>),
    /// A grammar in llguidance's dialect of Lark:
    /// <https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md>.
    Lark(String),
    /// A grammar in GBNF, the format of llama.cpp.
    Gbnf(String),
}

impl Grammar {
    /// A grammar in a dialect detected from its text: GBNF defines rules by `::=`, which Lark does
    /// not have.
    pub fn of_text(text: String) -> Grammar {
        match text.contains("::=") {
            true => Grammar::Gbnf(text),
            false => Grammar::Lark(text),
        }
    }

    /// Bytes of the grammar's texts.
    pub fn n_bytes(&self) -> usize {
        match self {
            Grammar::JsonSchema(schema) => schema.to_string().len(),
            Grammar::AnyJson => 0,
            Grammar::Regex(text) | Grammar::Lark(text) | Grammar::Gbnf(text) => text.len(),
            Grammar::Choice(texts) => texts.iter().map(String::len).sum(),
        }
    }
}

/// Makes matchers for one vocabulary. Cheap to clone.
#[derive(Clone)]
pub struct GrammarCompiler(Arc<ParserFactory>);

impl GrammarCompiler {
    /// Makes a compiler for models with `n_vocab` outputs; those beyond the vocabulary are never
    /// allowed.
    ///
    /// # Errors
    /// No token ends an answer, or the library refuses the vocabulary.
    pub fn new(tokenizer: &Tokenizer, n_vocab: usize) -> Result<GrammarCompiler> {
        let wrong = |what: String| Error::Grammar { what };
        let ends: Vec<u32> = tokenizer.ends().iter().copied().filter(|id| (*id as usize) < n_vocab).collect();
        let Some(first_end) = ends.first() else {
            return Err(wrong("no token of the vocabulary ends an answer".into()));
        };
        let word = |id: usize| {
            let bytes = tokenizer.token_bytes(id as u32);
            match tokenizer.is_special(id as u32) && !bytes.is_empty() {
                // Special tokens are not text, so grammars must name them.
                true => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
                false => bytes.to_vec(),
            }
        };
        let words: Vec<Vec<u8>> = (0..n_vocab).map(word).collect();
        let trie = TokTrie::from(&TokRxInfo::new(n_vocab as u32, *first_end), &words).with_eos_tokens(&ends);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices);
        let mut factory = factory.map_err(|error| wrong(error.to_string()))?;
        factory.quiet();
        *factory.limits_mut() =
            ParserLimits { verbose_errors: false, max_items_in_row: MAX_ITEMS, ..ParserLimits::default() };
        Ok(GrammarCompiler(Arc::new(factory)))
    }

    /// Compiles a grammar to a matcher at the start of a text.
    ///
    /// # Errors
    /// The grammar is not valid, is too large, or uses an unsupported feature.
    pub fn compile(&self, grammar: &Grammar) -> Result<Matcher> {
        let failed =
            |error: std::io::Error| Error::Grammar { what: format!("no thread to compile it: {error}") };
        std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().name("grammar".into()).stack_size(STACK);
            let thread = builder.spawn_scoped(scope, || self.compile_here(grammar)).map_err(failed)?;
            thread.join().unwrap_or_else(|_| Err(Error::Grammar { what: "compiling it has panicked".into() }))
        })
    }

    fn compile_here(&self, grammar: &Grammar) -> Result<Matcher> {
        let wrong = |what: String| Error::Grammar { what };
        let size = grammar.n_bytes();
        if size > MAX_GRAMMAR {
            return Err(wrong(format!("it has {size} bytes, expected at most {MAX_GRAMMAR}")));
        }
        match grammar {
            Grammar::Regex(text) if text.len() > MAX_REGEX => {
                let n = text.len();
                return Err(wrong(format!("the expression has {n} bytes, expected at most {MAX_REGEX}")));
            }
            Grammar::Choice(texts) if texts.len() > MAX_CHOICES => {
                let n = texts.len();
                return Err(wrong(format!(
                    "it has {n} texts to choose from, expected at most {MAX_CHOICES}"
                )));
            }
            Grammar::JsonSchema(_)
            | Grammar::AnyJson
            | Grammar::Regex(_)
            | Grammar::Choice(_)
            | Grammar::Lark(_)
            | Grammar::Gbnf(_) => {}
        }
        let mut unenforced = Vec::new();
        let mut of_schema = |schema: &Value| -> Result<TopLevelGrammar> {
            let prepared = prepare_schema(schema, &SchemaOptions::default())?;
            unenforced = prepared.unenforced.clone();
            Ok(TopLevelGrammar::from_lark(prepared.grammar().to_owned()))
        };
        let top = match grammar {
            Grammar::JsonSchema(schema) => of_schema(schema)?,
            Grammar::AnyJson => of_schema(&json!({ "type": "object" }))?,
            Grammar::Regex(text) => {
                limits::check_regex(text)?;
                TopLevelGrammar::from_regex(text)
            }
            Grammar::Choice(texts) if texts.is_empty() => {
                return Err(wrong("there is nothing to choose from, expected at least one text".into()));
            }
            Grammar::Choice(texts) => {
                let texts: Vec<String> =
                    texts.iter().map(|text| Value::from(text.as_str()).to_string()).collect();
                TopLevelGrammar::from_lark(format!("start: {}", texts.join(" | ")))
            }
            Grammar::Lark(text) => {
                let n_rules = text.lines().filter(|line| line.contains(':')).count();
                if n_rules > MAX_LARK_RULES {
                    return Err(wrong(format!("it has {n_rules} rules, expected at most {MAX_LARK_RULES}")));
                }
                limits::check_terminals(text)?;
                if let Some(option) = permissive_option_in_lark(text) {
                    return Err(wrong(format!(
                        "x-guidance of a schema in it sets {option:?}, which would let through what the schema \
                         forbids; expected it to be false or absent"
                    )));
                }
                TopLevelGrammar::from_lark(text.clone())
            }
            Grammar::Gbnf(text) => {
                let lark = gbnf::parse(text).and_then(translate::to_lark).map_err(wrong)?;
                TopLevelGrammar::from_lark(lark)
            }
        };
        let parser = self.0.create_parser(top).map_err(|error| wrong(said(&format!("{error:#}"))))?;
        let parser = Parser::new(Ok(parser));
        match parser.get_error() {
            Some(error) => Err(wrong(said(&error))),
            None => Ok(Matcher { parser, unenforced: unenforced.into() }),
        }
    }
}

/// The option by which a schema weakens its own enforcement. `llguidance` reads `x-guidance` only
/// at the root.
fn permissive_option(schema: &Value) -> Option<&'static str> {
    let options = schema.get("x-guidance")?;
    let is_set = |option: &&str| options.get(option).is_some_and(|value| *value != Value::Bool(false));
    PERMISSIVE_OPTIONS.into_iter().find(is_set)
}

/// Like [`permissive_option`], for `%json` schemas in a Lark grammar. Similar text in comments
/// counts too.
fn permissive_option_in_lark(text: &str) -> Option<&'static str> {
    let schema = |(at, mark): (usize, &str)| {
        serde_json::Deserializer::from_str(&text[at + mark.len()..]).into_iter::<Value>().next()?.ok()
    };
    text.match_indices("%json").filter_map(schema).find_map(|schema| permissive_option(&schema))
}

/// The position of a text in its grammar.
pub struct Matcher {
    parser: Parser,
    unenforced: Arc<[String]>,
}

impl Matcher {
    /// Keys of a schema that the matcher does not enforce, with their paths.
    pub fn unenforced(&self) -> &[String] {
        &self.unenforced
    }

    /// Sets the bits of the allowed tokens in `words` `(n_vocab.div_ceil(32))`, which are 0: bit `t
    /// % 32` of word `t / 32`. End tokens are allowed where the text may end. No bit is set if no
    /// token of the vocabulary can continue.
    ///
    /// # Errors
    /// The grammar takes more work than allowed.
    pub fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        let mask = match self.parser.compute_mask_or_eos() {
            Ok(mask) => mask,
            // `llguidance` does not otherwise distinguish this case from a failure.
            Err(error) if error.to_string().contains(&StopReason::NoExtensionBias.to_string()) => {
                return Ok(());
            }
            Err(error) => return Err(failed(error)),
        };
        for (word, bits) in words.iter_mut().zip(mask.as_slice()) {
            *word = *bits;
        }
        Ok(())
    }

    /// Accepts a token that [`Self::mask`] allowed.
    ///
    /// # Errors
    /// The token is not allowed, or the grammar takes more work than allowed.
    pub fn accept(&mut self, token: u32) -> Result<()> {
        self.parser.consume_token(token).map_err(failed)
    }

    /// Rolls back the last `n_tokens`.
    ///
    /// # Errors
    /// There were fewer.
    pub fn roll_back(&mut self, n_tokens: usize) -> Result<()> {
        self.parser.rollback(n_tokens).map_err(failed)
    }

    /// Number of leading tokens that are allowed one after the other.
    pub fn n_valid(&mut self, tokens: &[u32]) -> usize {
        self.parser.validate_tokens(tokens).unwrap_or(0)
    }

    /// Returns true if only the end may follow.
    pub fn is_over(&self) -> bool {
        self.parser.is_stopped()
    }
}

impl Clone for Matcher {
    fn clone(&self) -> Matcher {
        Matcher { parser: self.parser.deep_clone(), unenforced: self.unenforced.clone() }
    }
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Grammar { what: said(&error.to_string()) }
}

/// An error of `llguidance` without its parser's state. The library panics if a grammar exceeds a
/// limit that it does not check.
fn said(error: &str) -> String {
    let words = error.split("\n<").next().unwrap_or_default();
    match words.contains("panic: ") {
        true => "it is too large to be compiled".to_owned(),
        false => words.to_owned(),
    }
}
