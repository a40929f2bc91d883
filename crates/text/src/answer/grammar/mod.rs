//! Grammars that enforce the schemas of calls, in llguidance's dialect of Lark.

mod calls;
mod lark;
mod schema;

use serde_json::{Value, json};

use self::calls::Use;
pub use self::lark::AnswerGrammar;
use self::lark::{ANYTHING, Lark, WHITE, between_slashes, literal};
use super::AnswerFormat;
use super::calls::Tools;
use super::formats::Syntax;
use crate::{Error, Grammar, Result, SchemaOptions, Tokenizer, prepare_schema};

/// The rule for calling tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallChoice<'a> {
    /// The model decides; a call that it begins must be valid.
    Auto,
    /// The answer has at least one call.
    Required,
    /// The answer calls this function.
    Function(&'a str),
}

impl AnswerFormat {
    /// Grammar of an answer to `prompt` that calls `tools`, each in a request's form; more than one
    /// call if `parallel`. With [`CallChoice::Auto`] the answer may also be `content`. For an
    /// answer that may be any text, use [`super::CallGuard`] instead.
    ///
    /// # Errors
    /// No such function; or the schema of `content` cannot be enforced.
    pub fn grammar(
        &self,
        tools: &[Value],
        choice: CallChoice<'_>,
        parallel: bool,
        content: Option<&Grammar>,
        prompt: &str,
        tokenizer: &Tokenizer,
    ) -> Result<AnswerGrammar> {
        let known = Tools::new(tools);
        let called: Vec<(&str, &Value)> = match choice {
            CallChoice::Function(wanted) => known.iter().filter(|(name, _)| *name == wanted).collect(),
            CallChoice::Auto | CallChoice::Required => known.iter().collect(),
        };
        if called.is_empty() {
            let what = match choice {
                CallChoice::Function(name) => format!("the function {name:?} is not among the tools"),
                CallChoice::Auto | CallChoice::Required => "there are no tools to call".into(),
            };
            return Err(Error::Grammar { what });
        }
        let mut lark = Lark::new(tokenizer);
        let calls = calls::forced_calls(self.calls, &called, parallel, &mut lark)?;
        let before = self.before_answer(prompt, &mut lark);
        let start = match (choice, content) {
            (CallChoice::Auto, Some(content)) => {
                let content = content_rule(content, &mut lark)?;
                let content = format!("{} {content}", self.content_header(&lark));
                format!("{before} ({content} | {calls})")
            }
            (CallChoice::Auto | CallChoice::Required | CallChoice::Function(_), _) => {
                format!("{before} {calls}")
            }
        };
        let after = self.silent(&lark);
        Ok(lark.finish(&format!("{start} {after}")))
    }

    /// Grammar of a call of one of `tools` that a model has begun, and of any text after it. The
    /// call begins as [`super::AnswerParser`] says.
    ///
    /// # Errors
    /// Only for a fault of this crate.
    pub(super) fn held_grammar(&self, tools: &Tools, tokenizer: &Tokenizer) -> Result<AnswerGrammar> {
        let called: Vec<(&str, &Value)> = tools.iter().collect();
        let mut lark = Lark::new(tokenizer);
        let call = calls::call(self.calls, &called, Use::Held, &mut lark)?;
        let rest = lark.terminal(ANYTHING);
        let text = match self.calls.syntax {
            // The mark may be followed by text, which its first character tells from a call.
            Syntax::Named { .. } => format!(" | {}", lark.terminal("/([^A-Za-z0-9_](?s:.*))?/")),
            Syntax::Json { .. }
            | Syntax::Tagged(_)
            | Syntax::Pythonic { .. }
            | Syntax::Braces { .. }
            | Syntax::Harmony => String::new(),
        };
        Ok(lark.finish(&format!("{call} {rest}{text}")))
    }

    /// Grammar of `content` after reasoning; without reasoning, the grammar of `content` itself.
    ///
    /// # Errors
    /// The schema cannot be enforced.
    pub fn after_reasoning(
        &self,
        content: Grammar,
        prompt: &str,
        tokenizer: &Tokenizer,
    ) -> Result<AnswerGrammar> {
        // A complete Lark grammar cannot be nested in another.
        if !self.reasons() || matches!(content, Grammar::Lark(_) | Grammar::Gbnf(_)) {
            return Ok(AnswerGrammar { grammar: content, unenforced: Vec::new() });
        }
        let mut lark = Lark::new(tokenizer);
        let before = self.before_answer(prompt, &mut lark);
        let content = content_rule(&content, &mut lark)?;
        let start = format!("{before} {} {content} {}", self.content_header(&lark), self.silent(&lark));
        Ok(lark.finish(&start))
    }

    /// Grammar of the part before an answer's content or calls: reasoning, and marks of sections.
    fn before_answer(&self, prompt: &str, lark: &mut Lark<'_>) -> String {
        if matches!(self.calls.syntax, Syntax::Harmony) {
            // Reasoning, and remarks before calls.
            let begin = format!(
                "({} | {})",
                lark.marks("<|channel|>analysis<|message|>"),
                lark.marks("<|channel|>commentary<|message|>")
            );
            let text = lark.until("<|end|>");
            let again = lark.marks("<|start|>assistant");
            return format!("({begin} {text} {again})*");
        }
        let thought = match self.reasoning {
            None => String::new(),
            Some(reasoning) => {
                let rest = lark.until(reasoning.close);
                match self.begins_thinking(prompt) {
                    true => rest,
                    false => format!("({WHITE} {} {rest})?", lark.marks(reasoning.open)),
                }
            }
        };
        format!("{thought} {WHITE} {}", self.silent(lark))
    }

    /// An optional mark that is not part of content or calls.
    fn silent(&self, lark: &Lark<'_>) -> String {
        let marks: Vec<String> = self.calls.silent.iter().map(|mark| lark.marks(mark)).collect();
        if marks.is_empty() { String::new() } else { format!("({})? {WHITE}", marks.join(" | ")) }
    }

    /// The header directly before content.
    fn content_header(&self, lark: &Lark<'_>) -> String {
        match self.calls.syntax {
            Syntax::Harmony => lark.marks("<|channel|>final<|message|>"),
            Syntax::Json { .. }
            | Syntax::Named { .. }
            | Syntax::Tagged(_)
            | Syntax::Pythonic { .. }
            | Syntax::Braces { .. } => String::new(),
        }
    }
}

/// Adds a rule for the content.
fn content_rule(content: &Grammar, lark: &mut Lark<'_>) -> Result<String> {
    let body = match content {
        Grammar::JsonSchema(schema) => {
            let prepared = prepare_schema(schema, &SchemaOptions::default())?;
            return Ok(lark.prepared(prepared));
        }
        Grammar::AnyJson => {
            let prepared = prepare_schema(&json!({ "type": "object" }), &SchemaOptions::default())?;
            return Ok(lark.prepared(prepared));
        }
        Grammar::Regex(regex) => between_slashes(regex),
        Grammar::Choice(texts) => {
            let texts: Vec<String> = texts.iter().map(|text| literal(text)).collect();
            texts.join(" | ")
        }
        Grammar::Lark(_) | Grammar::Gbnf(_) => {
            let what =
                "a grammar in Lark or GBNF cannot be combined with tool calls; expected only one of them"
                    .into();
            return Err(Error::Grammar { what });
        }
    };
    Ok(lark.rule(&body))
}
