//! What an answer is made of: reasoning, content and calls of tools. Models write them between marks, each family its own; which
//! these are is known from the text of the chat template.

mod asides;
mod calls;
mod formats;
mod grammar;
mod guard;
mod harmony;
mod json;
mod kinds;
mod parser;
mod prompt;
mod readers;
#[cfg(test)]
mod tests;
mod values;

pub use asides::Asides;
pub use grammar::{AnswerGrammar, CallChoice};
pub use guard::{CallGuard, HeldCalls};
pub use parser::{AnswerParser, AnswerPart};
pub use prompt::ToolPrompt;

use calls::Tools;
use formats::{CallFormat, FORMATS, GENERIC, REASONINGS, Reasoning, Syntax};
use serde_json::Value;

use crate::{Result, Specials, Tokenizer};

/// How a model calls tools and thinks.
#[derive(Clone, Copy, Debug)]
pub struct AnswerFormat {
    calls: &'static CallFormat,
    reasoning: Option<&'static Reasoning>,
    /// Whether the template knows of reasoning, and not the vocabulary alone.
    is_reasoning_told: bool,
}

impl CallFormat {
    /// The marks that open calls, with the format of what they open; an empty one where a call may
    /// stand without.
    fn opens(&'static self) -> impl Iterator<Item = (&'static str, &'static CallFormat)> {
        // A mark before the name is enough where the one before it was left out.
        let named = match &self.syntax {
            Syntax::Tagged(tags) => Some(tags.name_before).filter(|mark| !mark.is_empty()),
            Syntax::Json { .. }
            | Syntax::Named { .. }
            | Syntax::Pythonic { .. }
            | Syntax::Braces { .. }
            | Syntax::Harmony => None,
        };
        let own = self.open.iter().copied().chain(named).map(move |mark| (mark, self));
        let others = self.also.into_iter();
        own.chain(others.flat_map(|also| also.open.iter().map(move |mark| (*mark, also))))
    }

    /// The marks around calls and within them.
    fn marks(&'static self) -> Vec<&'static str> {
        let mut marks: Vec<&'static str> = self.silent.to_vec();
        marks.extend(self.opens().map(|(open, _)| open));
        marks.push(self.close);
        match &self.syntax {
            Syntax::Json { .. } | Syntax::Pythonic { .. } => {}
            Syntax::Named { prefix, separator, .. } => marks.extend([*prefix, separator, "[CALL_ID]"]),
            Syntax::Tagged(tags) => {
                marks.extend([tags.skipped, tags.key_before, tags.value_after, tags.end]);
                marks.extend(tags.key_after.iter().copied().flatten());
            }
            Syntax::Braces { quote } => marks.push(quote),
            Syntax::Harmony => marks.extend(harmony::MARKS),
        }
        marks.extend(self.also.into_iter().flat_map(CallFormat::marks));
        marks
    }
}

impl AnswerFormat {
    /// The format that a chat template writes.
    pub fn detect(template: &str) -> AnswerFormat {
        let has = |text: &&str| template.contains(text);
        let calls = FORMATS.iter().find(|format| format.evidence.iter().all(has)).unwrap_or(&GENERIC);
        let reasoning = match calls.syntax {
            Syntax::Harmony => None,
            _ => REASONINGS.iter().find(|reasoning| template.contains(reasoning.open)),
        };
        AnswerFormat { calls, reasoning, is_reasoning_told: reasoning.is_some() }
    }

    /// The same where reasoning may come that the template does not speak of: the vocabulary has
    /// tokens for the marks around it.
    pub fn with_vocabulary(self, tokenizer: &Tokenizer) -> AnswerFormat {
        let is_token = |mark: &str| tokenizer.token_id(mark).is_some();
        let mut reasonings = REASONINGS.iter();
        let found = reasonings.find(|reasoning| is_token(reasoning.open) && is_token(reasoning.close));
        match self.calls.syntax {
            Syntax::Harmony => self,
            Syntax::Json { .. }
            | Syntax::Named { .. }
            | Syntax::Tagged(_)
            | Syntax::Pythonic { .. }
            | Syntax::Braces { .. } => AnswerFormat { reasoning: self.reasoning.or(found), ..self },
        }
    }

    /// For people: `hermes`, `llama3`, …
    pub fn name(&self) -> &'static str {
        self.calls.name
    }

    /// Whether the template itself knows tools; if not, [`ToolPrompt`] tells the model of them.
    pub fn knows_tools(&self) -> bool {
        !self.calls.evidence.is_empty()
    }

    /// Whether the model thinks before it answers, or can.
    pub fn reasons(&self) -> bool {
        self.is_reasoning_told || matches!(self.calls.syntax, Syntax::Harmony)
    }

    /// Texts that the parser must see. Special tokens in them must not be hidden.
    pub fn marks(&self) -> Vec<&'static str> {
        let mut marks = self.calls.marks();
        if let Some(reasoning) = self.reasoning {
            marks.extend([reasoning.open, reasoning.close]);
        }
        marks.retain(|mark| !mark.is_empty());
        marks
    }

    /// Special tokens that the parser must see, ascending: those of the marks.
    ///
    /// # Errors
    /// A mark cannot be tokenised.
    pub fn shown_tokens(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
        let mut shown = Vec::new();
        for mark in self.marks() {
            // A mark may be a token, or have tokens in it.
            let tokens = tokenizer.encode(mark, Specials::Parse)?;
            shown.extend(tokens.into_iter().filter(|id| tokenizer.is_special(*id) && !tokenizer.is_end(*id)));
        }
        shown.sort_unstable();
        shown.dedup();
        Ok(shown)
    }

    /// The texts that begin and end reasoning; `None`: there is none, or it is not between two marks.
    pub fn reasoning_marks(&self) -> Option<(&'static str, &'static str)> {
        self.reasoning.map(|reasoning| (reasoning.open, reasoning.close))
    }

    /// Where in an answer to this prompt stop strings do not count: in what is only thought, and in
    /// calls of `tools`.
    pub fn asides(&self, prompt: &str, tools: &[Value]) -> Asides {
        Asides::new(self.parser(prompt, tools))
    }

    /// The same without reasoning, which then is content as it is written.
    pub fn without_reasoning(self) -> AnswerFormat {
        AnswerFormat { reasoning: None, is_reasoning_told: false, ..self }
    }

    /// Whether the template wants names of calls that are nine letters and digits.
    pub fn has_short_ids(&self) -> bool {
        self.calls.name.starts_with("mistral")
    }

    /// Whether an answer to this prompt begins within reasoning.
    pub fn begins_thinking(&self, prompt: &str) -> bool {
        self.reasoning.is_some_and(|reasoning| prompt.trim_end().ends_with(reasoning.open))
    }

    /// Reads an answer to `prompt`, a rendered chat. Without `tools`, each as a request has them, what looks like a call is text.
    pub fn parser(&self, prompt: &str, tools: &[Value]) -> AnswerParser {
        let is_thinking = self.begins_thinking(prompt);
        AnswerParser::new(self.calls, self.reasoning, Tools::new(tools), is_thinking, prompt)
    }
}
