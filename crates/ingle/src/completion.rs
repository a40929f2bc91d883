//! Completions: texts that are continued without a chat template.

use runner::{CompletionRequest, Prompt};

use crate::generation::Generation;

/// A text or tokens to continue, and options of the answer.
///
/// ```
/// use ingle::{Completion, Generation};
///
/// let completion = Completion::text("The capital of France is").generation(Generation::greedy());
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Completion {
    prompt: Prompt,
    suffix: Option<String>,
    generation: Generation,
}

impl Completion {
    /// Continues a text. The model's start tokens are added, and control tokens in the text are
    /// parsed.
    pub fn text(text: impl Into<String>) -> Completion {
        Completion::of(Prompt::Text { text: text.into(), parse_special: true })
    }

    /// Continues a text in which control tokens are plain text.
    pub fn literal_text(text: impl Into<String>) -> Completion {
        Completion::of(Prompt::Text { text: text.into(), parse_special: false })
    }

    /// Continues tokens, to which nothing is added.
    pub fn tokens(tokens: Vec<u32>) -> Completion {
        Completion::of(Prompt::Tokens(tokens))
    }

    fn of(prompt: Prompt) -> Completion {
        Completion { prompt, suffix: None, generation: Generation::default() }
    }

    /// Fills the gap before this text, with models that were trained for that.
    pub fn suffix(mut self, text: impl Into<String>) -> Completion {
        self.suffix = Some(text.into());
        self
    }

    /// Options of the answer.
    pub fn generation(mut self, generation: Generation) -> Completion {
        self.generation = generation;
        self
    }

    pub(crate) fn into_request(self) -> CompletionRequest {
        let Generation { options, grammar, adapter } = self.generation;
        let (prompt, suffix) = (self.prompt, self.suffix);
        CompletionRequest { model: adapter, prompt, suffix, files: Vec::new(), grammar, options }
    }
}

/// A text to continue.
impl From<&str> for Completion {
    fn from(text: &str) -> Completion {
        Completion::text(text)
    }
}
