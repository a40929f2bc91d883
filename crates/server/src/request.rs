//! What every API is translated into: one chat request, one completion request, and the options that they share.

use std::time::Duration;

use engine::SamplingParams;
use serde_json::{Map, Value};
use text::Grammar;

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
    /// Whether the model thinks before it answers; `None`: as its template does by default.
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
        /// What is looked for.
        query: String,
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
    /// Answers to one prompt.
    pub n: usize,
    /// Log-probability of each token, and of so many best; `None`: none.
    pub logprobs: Option<usize>,
    /// The same of each token of the prompt.
    pub prompt_logprobs: Option<usize>,
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
            max_tokens: None,
            min_tokens: 0,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            ignore_end: false,
            n: 1,
            logprobs: None,
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
