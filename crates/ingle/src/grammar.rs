//! `--grammar` and its kin: what an answer must be.

use anyhow::{Context, bail};
use clap::Args;
use engine::{Constraint, Model};
use text::{Grammar, GrammarCompiler};

use crate::args::FileOrText;

/// What the answer must be; one of these at most.
#[derive(Args, Clone, Debug)]
#[group(multiple = false)]
#[command(next_help_heading = "Constrained answers (one of these)")]
pub struct GrammarArgs {
    /// The answer follows this grammar in GBNF, llama.cpp's format: a file, or the grammar itself
    #[arg(long, alias = "grammar-file", value_name = "FILE|TEXT")]
    grammar: Option<FileOrText>,

    /// The answer is JSON that follows this schema: a file, or the schema itself; json for any JSON
    #[arg(short = 'j', long, visible_alias = "format", alias = "json-schema-file", value_name = "FILE|TEXT")]
    json_schema: Option<FileOrText>,

    /// The answer as a whole matches this regular expression
    #[arg(long, value_name = "REGEX")]
    regex: Option<String>,

    /// The answer follows this grammar in llguidance's dialect of Lark: a file, or the grammar itself
    #[arg(long, value_name = "FILE|TEXT")]
    lark: Option<FileOrText>,
}

impl GrammarArgs {
    /// What holds an answer to it; `None` if nothing was asked for.
    ///
    /// # Errors
    /// The grammar cannot be read or compiled, or the model has no tokenizer.
    pub fn constraint(&self, model: &Model) -> anyhow::Result<Option<Box<dyn Constraint>>> {
        let Some(grammar) = self.read()? else { return Ok(None) };
        let compiler = GrammarCompiler::new(model.need_tokenizer()?, model.n_vocab())?;
        Ok(Some(Box::new(compiler.compile(&grammar)?)))
    }

    /// The grammar that was asked for.
    ///
    /// # Errors
    /// It cannot be read.
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

/// The content of a file of this name if there is one; else the text, which has `part` if it is what was expected.
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
