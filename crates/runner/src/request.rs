//! The inner requests to which every API is translated: a chat request, a completion request, and
//! their shared options.

use std::sync::Arc;
use std::time::Duration;

use engine::{SamplingChoice, SamplingParams};
use serde_json::{Map, Value};
use text::{Grammar, Trigger};

use crate::effort::Effort;
use crate::error::{RequestError, Result};

/// The client of a request. The access layer adds it to every request as an extension.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Id of the request in the log and in `x-request-id`.
    pub request_id: String,
    /// Tenant of the request's key; 0 without keys. Tenants do not share cached prefixes, and each
    /// gets its part of the machine.
    pub tenant: u64,
}

/// A chat, whose messages are rendered by the model's template.
#[derive(Clone, Debug, Default)]
pub struct ChatRequest {
    /// The model's id; empty for the first model.
    pub model: String,
    /// Messages in the form of chat templates: objects with `role` and `content` (a text, or a list
    /// of parts), `tool_calls`, `tool_call_id`, `name`, `reasoning_content`.
    pub messages: Vec<Value>,
    /// Tools, each as `{"type":"function","function":{"name","description","parameters"}}`.
    pub tools: Vec<Value>,
    /// The rule for calling tools.
    pub tool_choice: ToolChoice,
    /// True if an answer may have several calls.
    pub parallel_tool_calls: bool,
    /// Grammar of the answer's content.
    pub grammar: Option<Grammar>,
    /// Further variables of the template, such as `enable_thinking`.
    pub template_variables: Map<String, Value>,
    /// Reasoning effort; `None` for the template's default.
    pub effort: Option<Effort>,
    /// Switches reasoning on or off, whatever the effort; `None` for the template's default.
    pub thinking: Option<bool>,
    /// Maximum number of tokens of reasoning, after which it is closed.
    pub thinking_budget: Option<usize>,
    /// True if the last message is the start of the answer.
    pub continue_last: bool,
    /// True if the prompt does not end with the start of an answer.
    pub without_generation_prompt: bool,
    /// True if reasoning is returned as content, with its marks.
    pub raw_reasoning: bool,
    /// Options that all requests have.
    pub options: GenerateOptions,
}

impl ChatRequest {
    /// Checks that a required call is possible.
    ///
    /// # Errors
    /// The answer must be a call, and there is no tool to call.
    pub(crate) fn check_choice(&self) -> Result<()> {
        let is_tool = |name: &str| self.tools.iter().any(|tool| tool["function"]["name"] == name);
        let message = match &self.tool_choice {
            ToolChoice::Auto | ToolChoice::None => return Ok(()),
            ToolChoice::Required if !self.tools.is_empty() => return Ok(()),
            ToolChoice::Required => {
                "`tool_choice` requires a call, expected `tools` to have a tool".to_owned()
            }
            ToolChoice::Function(name) if is_tool(name) => return Ok(()),
            ToolChoice::Function(name) => {
                format!("`tool_choice` requires a call of `{name}`, expected one of `tools`")
            }
        };
        Err(RequestError::invalid("tool_choice", message))
    }

    /// Returns true if another call may follow. A function chosen by name is called once, as
    /// OpenAI's clients expect: a model forced to call one function may not know when to stop.
    pub(crate) fn may_call_again(&self) -> bool {
        self.parallel_tool_calls && !matches!(self.tool_choice, ToolChoice::Function(_))
    }

    /// Tools that may be called.
    pub(crate) fn called_tools(&self) -> &[Value] {
        match self.tool_choice {
            ToolChoice::None => &[],
            ToolChoice::Auto | ToolChoice::Required | ToolChoice::Function(_) => &self.tools,
        }
    }
}

/// The rule for calling tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// The model calls no tool.
    None,
    /// The model calls at least one tool.
    Required,
    /// The model calls this tool.
    Function(String),
}

/// A text to be completed.
#[derive(Clone, Debug, Default)]
pub struct CompletionRequest {
    /// The model's id; empty for the first model.
    pub model: String,
    /// The text or tokens to continue.
    pub prompt: Prompt,
    /// Text after the gap, for models that fill in the middle.
    pub suffix: Option<String>,
    /// Other files for the context of `suffix`: names and texts.
    pub files: Vec<(String, String)>,
    /// Grammar of the completion.
    pub grammar: Option<Grammar>,
    /// Options that all requests have.
    pub options: GenerateOptions,
}

/// A prompt as text or as tokens.
#[derive(Clone, Debug)]
pub enum Prompt {
    /// A text, tokenised with the model's start tokens. Control tokens in it are parsed if
    /// `parse_special`.
    Text {
        /// The text.
        text: String,
        /// True if `<|im_start|>` and others are parsed as control tokens; false if they are text.
        parse_special: bool,
    },
    /// Tokens, used as they are.
    Tokens(Vec<u32>),
    /// A pair that a reranking model judges, with the model's own marks.
    Pair {
        /// The query, the same for all pairs of a request.
        query: Arc<str>,
        /// The document to compare with the query.
        document: String,
    },
}

impl Default for Prompt {
    fn default() -> Prompt {
        Prompt::Text { text: String::new(), parse_special: true }
    }
}

/// Options of generation, the same for every API.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// Tokens before the prompt, from [`crate::Answer::context`] of an earlier answer.
    pub context: Vec<u32>,
    /// Sampling parameters. `logprobs` below controls log-probabilities.
    pub sampling: SamplingParams,
    /// The sampling parameters that the request itself gave. Defaults of the operator fill in the
    /// others.
    pub given: SamplingChoice,
    /// Maximum number of tokens of an answer; `None` for no limit but the context's.
    pub max_tokens: Option<usize>,
    /// Least tokens of an answer.
    pub min_tokens: usize,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// Tokens that end the answer.
    pub stop_tokens: Vec<u32>,
    /// True if end tokens do not end the answer.
    pub ignore_end: bool,
    /// Triggers of a lazy grammar; `None` if the grammar holds from the start.
    pub triggers: Option<Arc<[Trigger]>>,
    /// Number of answers to the prompt.
    pub n: usize,
    /// Number of most likely tokens to report, with log-probabilities, beside each token; `None`
    /// for no log-probabilities.
    pub logprobs: Option<usize>,
    /// True if log-probabilities are those after all sampling steps.
    pub drawn_logprobs: bool,
    /// Like `logprobs`, for the tokens of the prompt.
    pub prompt_logprobs: Option<usize>,
    /// True if progress of prefill is reported.
    pub progress: bool,
    /// True if each piece comes with its tokens, even without log-probabilities.
    pub with_tokens: bool,
    /// True if the prefix cache is used for the prompt.
    pub cache_prompt: bool,
    /// Priority; requests with higher values go first.
    pub priority: i32,
    /// Time after which the answer is useless.
    pub timeout: Option<Duration>,
    /// Time that the model stays loaded after this request.
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

/// Time that an idle model stays loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// The model stays loaded for this time; zero unloads it at once.
    For(Duration),
    /// The model stays loaded until memory is short.
    Always,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_function_is_called_once() {
        let named = ToolChoice::Function("f".into());
        for (tool_choice, may_repeat) in
            [(ToolChoice::Required, true), (ToolChoice::Auto, true), (named, false)]
        {
            let request = ChatRequest { tool_choice, parallel_tool_calls: true, ..ChatRequest::default() };
            assert_eq!(request.may_call_again(), may_repeat, "{:?}", request.tool_choice);
        }
    }

    #[test]
    fn a_required_call_needs_a_tool() {
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
