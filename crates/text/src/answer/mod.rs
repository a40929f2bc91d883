//! Parts of an answer: reasoning, content and tool calls. Each family of models writes its own
//! marks around them, which the text of the chat template reveals.

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

/// The formats of a model's tool calls and reasoning.
#[derive(Clone, Copy, Debug)]
pub struct AnswerFormat {
    calls: &'static CallFormat,
    reasoning: Option<&'static Reasoning>,
    /// True if the template mentions reasoning, false if only the vocabulary does.
    is_reasoning_told: bool,
}

impl CallFormat {
    /// Marks that open calls, each with the format of its calls; the empty mark if calls may have
    /// none.
    fn opens(&'static self) -> impl Iterator<Item = (&'static str, &'static CallFormat)> {
        // The mark before the name suffices if the opening mark is missing.
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
    /// Detects the format of a chat template.
    pub fn detect(template: &str) -> AnswerFormat {
        let has = |text: &&str| template.contains(text);
        let calls = FORMATS.iter().find(|format| format.evidence.iter().all(has)).unwrap_or(&GENERIC);
        let reasoning = match calls.is_harmony() {
            true => None,
            false => REASONINGS.iter().find(|reasoning| template.contains(reasoning.open)),
        };
        AnswerFormat { calls, reasoning, is_reasoning_told: reasoning.is_some() }
    }

    /// Adds reasoning that the template does not mention, if the vocabulary has tokens for its
    /// marks.
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

    /// Name for people: `hermes`, `llama3`, …
    pub fn name(&self) -> &'static str {
        self.calls.name
    }

    /// Returns true if the template supports tools; otherwise [`ToolPrompt`] describes them to the
    /// model.
    pub fn knows_tools(&self) -> bool {
        !self.calls.evidence.is_empty()
    }

    /// Returns true if the model reasons before it answers, or can.
    pub fn reasons(&self) -> bool {
        self.is_reasoning_told || matches!(self.calls.syntax, Syntax::Harmony)
    }

    /// Texts that the parser must see, so special tokens in them must not be hidden.
    pub fn marks(&self) -> Vec<&'static str> {
        let mut marks = self.calls.marks();
        if let Some(reasoning) = self.reasoning {
            marks.extend([reasoning.open, reasoning.close]);
        }
        marks.retain(|mark| !mark.is_empty());
        marks
    }

    /// Special tokens of the marks, which the parser must see, in ascending order.
    ///
    /// # Errors
    /// A mark cannot be tokenised.
    pub fn shown_tokens(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
        let mut shown = Vec::new();
        for mark in self.marks() {
            // A mark may be a token, or contain tokens.
            let tokens = tokenizer.encode(mark, Specials::Parse)?;
            shown.extend(tokens.into_iter().filter(|id| tokenizer.is_special(*id) && !tokenizer.is_end(*id)));
        }
        shown.sort_unstable();
        shown.dedup();
        Ok(shown)
    }

    /// Marks that begin and end reasoning; `None` without reasoning between two marks.
    pub fn reasoning_marks(&self) -> Option<(&'static str, &'static str)> {
        self.reasoning.map(|reasoning| (reasoning.open, reasoning.close))
    }

    /// Finds the parts of an answer to `prompt` in which stop strings do not count: reasoning and
    /// calls of `tools`.
    pub fn asides(&self, prompt: &str, tools: &[Value]) -> Asides {
        Asides::new(self.parser(prompt, tools))
    }

    /// This format without reasoning, which then stays in the content.
    pub fn without_reasoning(self) -> AnswerFormat {
        AnswerFormat { reasoning: None, is_reasoning_told: false, ..self }
    }

    /// Returns true if the template requires call ids of nine letters and digits.
    pub fn has_short_ids(&self) -> bool {
        self.calls.name.starts_with("mistral")
    }

    /// Returns true if an answer to this prompt begins within reasoning.
    pub fn begins_thinking(&self, prompt: &str) -> bool {
        self.reasoning.is_some_and(|reasoning| prompt.trim_end().ends_with(reasoning.open))
    }

    /// Makes a parser of an answer to `prompt`, a rendered chat. `tools` are in a request's form.
    /// Without tools, text that looks like a call is content.
    pub fn parser(&self, prompt: &str, tools: &[Value]) -> AnswerParser {
        let is_thinking = self.begins_thinking(prompt);
        AnswerParser::new(self.calls, self.reasoning, Tools::new(tools), is_thinking, prompt)
    }
}
