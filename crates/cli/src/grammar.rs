//! Flags that constrain an answer: `--grammar`, `--json-schema`, `--regex` and `--lark`.

use anyhow::{Context, bail};
use clap::Args;
use engine::{Constraint, Model};
use text::{Grammar, GrammarCompiler};

use crate::args::FileOrText;

/// A constraint of the answer; at most one flag may be given.
#[derive(Args, Clone, Debug)]
#[group(multiple = false)]
#[command(next_help_heading = "Constrained answers (one of these flags)")]
pub struct GrammarArgs {
    /// Constrain the answer by a grammar in GBNF
    ///
    /// GBNF is llama.cpp's format. The value is a file or the grammar itself.
    #[arg(long, alias = "grammar-file", value_name = "FILE|TEXT")]
    grammar: Option<FileOrText>,

    /// Constrain the answer to JSON of this schema
    ///
    /// The value is a file or the schema itself, or json for any JSON.
    #[arg(short = 'j', long, visible_alias = "format", alias = "json-schema-file", value_name = "FILE|TEXT")]
    json_schema: Option<FileOrText>,

    /// Constrain the answer by a regular expression
    ///
    /// The whole answer matches it.
    #[arg(long, value_name = "REGEX")]
    regex: Option<String>,

    /// Constrain the answer by a grammar in Lark
    ///
    /// The dialect is llguidance's. The value is a file or the grammar itself.
    #[arg(long, value_name = "FILE|TEXT")]
    lark: Option<FileOrText>,
}

impl GrammarArgs {
    /// The compiled constraint; `None` without such a flag.
    ///
    /// # Errors
    /// The grammar cannot be read or compiled, or the model has no tokenizer.
    pub fn constraint(&self, model: &Model) -> anyhow::Result<Option<Box<dyn Constraint>>> {
        let Some(grammar) = self.read()? else { return Ok(None) };
        let compiler = GrammarCompiler::new(model.need_tokenizer()?, model.n_vocab())?;
        Ok(Some(Box::new(compiler.compile(&grammar)?)))
    }

    /// The grammar of the flags; `None` without such a flag.
    ///
    /// # Errors
    /// The grammar cannot be read.
    pub fn read(&self) -> anyhow::Result<Option<Grammar>> {
        if let Some(given) = &self.grammar {
            return Ok(Some(Grammar::Gbnf(file_or_text("--grammar", given, "GBNF", "::=")?)));
        }
        if let Some(given) = &self.json_schema {
            let text = file_or_text("--json-schema", given, "a JSON Schema", "")?;
            if text == "json" {
                return Ok(Some(Grammar::AnyJson));
            }
            let schema = serde_json::from_str(&text).with_context(|| {
                let found = given.path();
                format!(
                    "--json-schema: found {found:?}, expected a file with a JSON Schema, or the schema itself"
                )
            })?;
            return Ok(Some(Grammar::JsonSchema(schema)));
        }
        if let Some(given) = &self.lark {
            return Ok(Some(Grammar::Lark(file_or_text("--lark", given, "Lark", "start")?)));
        }
        Ok(self.regex.clone().map(Grammar::Regex))
    }
}

/// The content of the file of this name, or else the text itself, which must contain `part`.
fn file_or_text(flag: &str, given: &FileOrText, expected: &str, part: &str) -> anyhow::Result<String> {
    if let Some(content) = given.read() {
        return content.with_context(|| format!("{flag}: reading {}", given.path().display()));
    }
    let text = given.text().with_context(|| flag.to_owned())?;
    if !text.contains(part) {
        bail!("{flag}: found {text:?}, which is neither a file nor {expected}");
    }
    Ok(text.to_owned())
}
