//! What every API is translated into: one chat request, one completion request, and the options that they share.

use std::sync::Arc;
use std::time::Duration;

use engine::{SamplingChoice, SamplingParams};
use serde_json::{Map, Value};
use text::{Grammar, Trigger};

use crate::effort::Effort;
use crate::error::{ApiError, Result};

/// Who asks: set by the layer that checks keys, an extension of every request.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Names the request in the log and in `x-request-id`.
    pub request_id: String,
    /// Whose key it is: 0 without keys. Tenants share neither prefixes nor more than their part of the machine.
    pub tenant: u64,
}

/// A chat: messages through the model's template.
#[derive(Clone, Debug, Default)]
pub struct ChatRequest {
    /// The model's id; empty: the only one, or the first.
    pub model: String,
    /// As chat templates see them: objects with `role` and `content` (a text, or a list of parts), `tool_calls`, `tool_call_id`,
    /// `name`, `reasoning_content`.
    pub messages: Vec<Value>,
    /// `{"type":"function","function":{"name","description","parameters"}}` each.
    pub tools: Vec<Value>,
    /// Whether the model must, may or may not call them.
    pub tool_choice: ToolChoice,
    /// More than one call in an answer.
    pub parallel_tool_calls: bool,
    /// What the answer's content must be.
    pub grammar: Option<Grammar>,
    /// Further variables of the template, such as `enable_thinking`.
    pub template_variables: Map<String, Value>,
    /// How much the model thinks; `None`: as its template does by default.
    pub effort: Option<Effort>,
    /// Whether the model thinks before it answers, whatever the effort; `None`: as its template does by default.
    pub thinking: Option<bool>,
    /// Most tokens of reasoning; then it is closed.
    pub thinking_budget: Option<usize>,
    /// The last message is the beginning of the answer, which goes on from there.
    pub continue_last: bool,
    /// The prompt does not end with the beginning of an answer.
    pub without_generation_prompt: bool,
    /// Reasoning is given as content, with its marks.
    pub raw_reasoning: bool,
    /// Everything else.
    pub options: GenerateOptions,
}

impl ChatRequest {
    /// # Errors
    /// A call is to come, and there is no tool that could be called.
    pub(crate) fn check_choice(&self) -> Result<()> {
        let is_tool = |name: &str| self.tools.iter().any(|tool| tool["function"]["name"] == name);
        let message = match &self.tool_choice {
            ToolChoice::Auto | ToolChoice::None => return Ok(()),
            ToolChoice::Required if !self.tools.is_empty() => return Ok(()),
            ToolChoice::Required => {
                "`tool_choice` asks for a call, expected `tools` to have a tool".to_owned()
            }
            ToolChoice::Function(name) if is_tool(name) => return Ok(()),
            ToolChoice::Function(name) => {
                format!("`tool_choice` asks for a call of `{name}`, expected one of `tools`")
            }
        };
        Err(ApiError::invalid("tool_choice", message))
    }

    /// Whether a call may follow another. A function that is named is called once, as OpenAI's clients expect: a model that is
    /// held to calls of one function may not know when to end.
    pub(crate) fn may_call_again(&self) -> bool {
        self.parallel_tool_calls && !matches!(self.tool_choice, ToolChoice::Function(_))
    }

    /// The tools that may be called.
    pub(crate) fn called_tools(&self) -> &[Value] {
        match self.tool_choice {
            ToolChoice::None => &[],
            ToolChoice::Auto | ToolChoice::Required | ToolChoice::Function(_) => &self.tools,
        }
    }
}

/// Whether tools are called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// No tool is called.
    None,
    /// At least one is called.
    Required,
    /// This one is called.
    Function(String),
}

/// A text to go on with.
#[derive(Clone, Debug, Default)]
pub struct CompletionRequest {
    /// The model's id; empty: the only one, or the first.
    pub model: String,
    /// What is continued.
    pub prompt: Prompt,
    /// Text that follows the gap, for models that fill in the middle.
    pub suffix: Option<String>,
    /// With `suffix`: other files to know of, names and texts.
    pub files: Vec<(String, String)>,
    /// What the text must be.
    pub grammar: Option<Grammar>,
    /// Everything else.
    pub options: GenerateOptions,
}

/// A prompt as text or as tokens.
#[derive(Clone, Debug)]
pub enum Prompt {
    /// Tokenised as the model was trained to see a text begin; marks in it become their tokens if `parse_special`.
    Text {
        /// The text.
        text: String,
        /// Whether `<|im_start|>` and its kin are marks, or text.
        parse_special: bool,
    },
    /// As they are.
    Tokens(Vec<u32>),
    /// A pair that a model judges, with the marks that it was trained to see.
    Pair {
        /// What is looked for; of all pairs of a request the same.
        query: Arc<str>,
        /// What may fit it.
        document: String,
    },
}

impl Default for Prompt {
    fn default() -> Prompt {
        Prompt::Text { text: String::new(), parse_special: true }
    }
}

/// How an answer is made, whatever the API.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// Tokens before the prompt, as [`crate::Answer::context`] of an earlier answer gave them.
    pub context: Vec<u32>,
    /// How tokens are chosen; log-probabilities are asked for by `logprobs` below.
    pub sampling: SamplingParams,
    /// What the request itself said of `sampling`; the rest is the operator's to say.
    pub given: SamplingChoice,
    /// Most tokens of an answer; `None`: until the model ends or the context is full.
    pub max_tokens: Option<usize>,
    /// The answer does not end before it has so many.
    pub min_tokens: usize,
    /// Texts that end it.
    pub stop: Vec<String>,
    /// Tokens that end it.
    pub stop_tokens: Vec<u32>,
    /// Go on when the model says that it has ended.
    pub ignore_end: bool,
    /// What the grammar waits for; `None`: it holds from the beginning.
    pub triggers: Option<Arc<[Trigger]>>,
    /// Answers to one prompt.
    pub n: usize,
    /// Log-probability of each token, and of so many best; `None`: none.
    pub logprobs: Option<usize>,
    /// They are those with which the token was drawn, after all that changes them.
    pub drawn_logprobs: bool,
    /// The same of each token of the prompt.
    pub prompt_logprobs: Option<usize>,
    /// Tell how far the prompt is while it is computed.
    pub progress: bool,
    /// Each piece of the answer comes with its tokens, with or without log-probabilities.
    pub with_tokens: bool,
    /// Reuse and keep what is computed of the prompt.
    pub cache_prompt: bool,
    /// Higher goes first.
    pub priority: i32,
    /// The answer is of no use after this time.
    pub timeout: Option<Duration>,
    /// How long the model stays loaded after this request.
    pub keep_alive: Option<KeepAlive>,
}

impl Default for GenerateOptions {
    fn default() -> GenerateOptions {
        GenerateOptions {
            context: Vec::new(),
            sampling: SamplingParams::default(),
            given: SamplingChoice::default(),
            max_tokens: None,
            min_tokens: 0,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            ignore_end: false,
            triggers: None,
            n: 1,
            logprobs: None,
            drawn_logprobs: false,
            progress: false,
            with_tokens: false,
            prompt_logprobs: None,
            cache_prompt: true,
            priority: 0,
            timeout: None,
            keep_alive: None,
        }
    }
}

/// How long a model stays loaded when nobody uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// This long; zero unloads it at once.
    For(Duration),
    /// Until memory is short.
    Always,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_that_is_named_is_called_once() {
        let named = ToolChoice::Function("f".into());
        for (tool_choice, may_repeat) in
            [(ToolChoice::Required, true), (ToolChoice::Auto, true), (named, false)]
        {
            let request = ChatRequest { tool_choice, parallel_tool_calls: true, ..ChatRequest::default() };
            assert_eq!(request.may_call_again(), may_repeat, "{:?}", request.tool_choice);
        }
    }

    #[test]
    fn a_call_that_must_come_needs_a_tool() {
        let tools = vec![serde_json::json!({ "type": "function", "function": { "name": "f" } })];
        let check = |tool_choice: ToolChoice, tools: &[Value]| {
            let request = ChatRequest { tool_choice, tools: tools.to_vec(), ..ChatRequest::default() };
            request.check_choice().map_err(|error| error.param)
        };
        let wrong = Err(Some("tool_choice".to_owned()));
        assert_eq!(check(ToolChoice::Required, &[]), wrong);
        assert_eq!(check(ToolChoice::Function("f".into()), &[]), wrong);
        assert_eq!(check(ToolChoice::Function("g".into()), &tools), wrong);
        assert_eq!(check(ToolChoice::Function("f".into()), &tools), Ok(()));
        assert_eq!(check(ToolChoice::Required, &tools), Ok(()));
        assert_eq!(check(ToolChoice::Auto, &[]), Ok(()));
    }
}
