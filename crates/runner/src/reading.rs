//! Parsing of an answer's text to deltas: reasoning, content and tool calls.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use text::{AnswerFormat, AnswerParser, AnswerPart, ChatTemplate, Tokenizer, ToolPrompt};

use crate::answer::{Delta, TokenInfo};
use crate::roles::Roles;

/// A chat template, and the format of answers to its prompts.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) template: Arc<ChatTemplate>,
    pub(crate) format: AnswerFormat,
    pub(crate) prompt: ToolPrompt,
    pub(crate) roles: Roles,
    /// Special tokens that the parser must see, in ascending order.
    pub(crate) shown: Arc<[u32]>,
}

impl Template {
    /// Compiles a template from its source.
    ///
    /// # Errors
    /// It is not a valid template.
    pub(crate) fn new(source: &str, tokenizer: &Tokenizer) -> Result<Template, engine::Error> {
        let template = Arc::new(ChatTemplate::new(source)?);
        let format = AnswerFormat::detect(source).with_vocabulary(tokenizer);
        let shown = format.shown_tokens(tokenizer)?;
        let prompt = ToolPrompt::of(&template, &format);
        Ok(Template { roles: Roles::of(&template, &prompt), prompt, template, format, shown: shown.into() })
    }
}

/// Parses one of `n` answers.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    parser: AnswerParser,
    has_short_ids: bool,
    parts: Vec<AnswerPart>,
    /// Tokens of reasoning. A piece that ends it counts in proportion to its text.
    n_reasoning: f64,
}

impl Reader {
    pub(crate) fn new(parser: AnswerParser, format: &AnswerFormat) -> Reader {
        Reader { parser, has_short_ids: format.has_short_ids(), parts: Vec::new(), n_reasoning: 0.0 }
    }

    /// Parses a piece of text that consists of `n_tokens`. `tokens` are those to report.
    pub(crate) fn push(&mut self, text: &str, n_tokens: usize, tokens: Vec<TokenInfo>) -> Vec<Delta> {
        let was_reasoning = self.parser.is_reasoning();
        self.parser.push(text, &mut self.parts);
        self.count(was_reasoning, n_tokens);
        self.deltas(tokens)
    }

    /// Returns the text that was held back, at the end of the answer.
    pub(crate) fn finish(&mut self) -> Vec<Delta> {
        self.parser.finish(&mut self.parts);
        self.deltas(Vec::new())
    }

    /// Returns true if the answer called a tool.
    pub(crate) fn has_calls(&self) -> bool {
        self.parser.n_calls() > 0
    }

    /// Number of reasoning tokens.
    pub(crate) fn n_reasoning(&self) -> usize {
        self.n_reasoning.round() as usize
    }

    fn count(&mut self, was_reasoning: bool, n_tokens: usize) {
        let (mut reasoning, mut all) = (0, 0);
        for part in &self.parts {
            match part {
                AnswerPart::Reasoning(text) => {
                    reasoning += text.len();
                    all += text.len();
                }
                AnswerPart::Content(text) | AnswerPart::CallArguments { text, .. } => all += text.len(),
                AnswerPart::CallBegin { name, .. } => all += name.len(),
                AnswerPart::CallEnd { .. } => {}
            }
        }
        let share = match all {
            // The piece has only marks and white space.
            0 if was_reasoning => 1.0,
            0 => 0.0,
            all => reasoning as f64 / all as f64,
        };
        self.n_reasoning += share * n_tokens as f64;
    }

    fn deltas(&mut self, mut tokens: Vec<TokenInfo>) -> Vec<Delta> {
        let mut deltas: Vec<Delta> = Vec::with_capacity(self.parts.len());
        for part in self.parts.drain(..) {
            deltas.push(match part {
                AnswerPart::Reasoning(text) => Delta::Reasoning(text),
                AnswerPart::Content(text) => Delta::Content { text, tokens: std::mem::take(&mut tokens) },
                AnswerPart::CallBegin { index, name } => {
                    Delta::CallBegin { index, id: call_id(self.has_short_ids), name }
                }
                AnswerPart::CallArguments { index, text } => Delta::CallArguments { index, text },
                AnswerPart::CallEnd { index } => Delta::CallEnd { index },
            });
        }
        if !tokens.is_empty() {
            deltas.push(Delta::Content { text: String::new(), tokens });
        }
        deltas
    }
}

/// A unique id of a call. Mistral's templates require nine letters and digits.
fn call_id(is_short: bool) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    static KEYS: std::sync::OnceLock<RandomState> = std::sync::OnceLock::new();
    let mut hasher = KEYS.get_or_init(RandomState::new).build_hasher();
    hasher.write_u64(NEXT.fetch_add(1, Ordering::Relaxed));
    let mut bits = hasher.finish();
    let mut id = if is_short { String::new() } else { "call_".to_owned() };
    for _ in 0..9 {
        id.push(char::from_digit((bits % 36) as u32, 36).unwrap_or('0'));
        bits /= 36;
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(template: &str) -> Reader {
        let format = AnswerFormat::detect(template);
        let tools = [serde_json::json!({ "type": "function", "function": { "name": "f" } })];
        Reader::new(format.parser("<think>", &tools), &format)
    }

    #[test]
    fn tokens_of_reasoning_are_counted() {
        let mut reader = reader("<think><tool_call>");
        assert_eq!(reader.push("Hm", 1, vec![]), [Delta::Reasoning("Hm".into())]);
        assert_eq!(reader.push("</think>", 1, vec![]), []);
        assert_eq!(reader.push("Yes.", 2, vec![]).len(), 1);
        assert_eq!((reader.n_reasoning(), reader.has_calls()), (2, false));
    }

    #[test]
    fn calls_have_names_of_their_own() {
        let mut reader = reader("<tool_call>");
        let call = "<tool_call>{\"name\": \"f\"}</tool_call>";
        let deltas = reader.push(&format!("{call}{call}"), 9, vec![]);
        let ids: Vec<&String> = deltas
            .iter()
            .filter_map(|delta| if let Delta::CallBegin { id, .. } = delta { Some(id) } else { None })
            .collect();
        assert_eq!(ids.len(), 2);
        assert!(ids[0] != ids[1] && ids[0].starts_with("call_"));
        assert!(reader.has_calls());
        let short = call_id(true);
        assert!(short.len() == 9 && short.bytes().all(|b| b.is_ascii_alphanumeric()));
    }
}
