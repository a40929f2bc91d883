//! Chats: messages, tools, and how the model may reason.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use runner::{ChatRequest, images};
pub use runner::{Effort, ToolChoice};
use serde_json::{Value, json};

use crate::answer::Reply;
use crate::generation::Generation;

/// A chat: messages, which the model's template renders, and options of the answer.
///
/// ```
/// use ingle::{Chat, Generation};
///
/// let mut chat = Chat::new().system("Answer briefly.").user("Why is the sky blue?");
/// chat = chat.generation(Generation::new().max_tokens(100));
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Chat {
    request: ChatRequest,
    generation: Generation,
}

impl Default for Chat {
    fn default() -> Chat {
        let request = ChatRequest { parallel_tool_calls: true, ..ChatRequest::default() };
        Chat { request, generation: Generation::default() }
    }
}

impl Chat {
    /// A chat without messages.
    pub fn new() -> Chat {
        Chat::default()
    }

    /// A chat of messages in OpenAI's form: objects with `role`, `content` (a text), and for calls
    /// `tool_calls`, `tool_call_id` and `name`.
    pub fn of_messages(messages: Vec<Value>) -> Chat {
        let mut chat = Chat::new();
        chat.request.messages = messages;
        chat
    }

    /// Adds a system message.
    pub fn system(self, text: impl Into<String>) -> Chat {
        self.message(json!({ "role": "system", "content": text.into() }))
    }

    /// Adds a message of the user.
    pub fn user(self, text: impl Into<String>) -> Chat {
        self.message(json!({ "role": "user", "content": text.into() }))
    }

    /// Adds a message of the user about images: files of PNG, JPEG or WebP.
    pub fn user_with_images<'a>(
        self,
        text: impl Into<String>,
        files: impl IntoIterator<Item = &'a [u8]>,
    ) -> Chat {
        let mut parts: Vec<Value> =
            files.into_iter().map(|file| images::part(&STANDARD.encode(file))).collect();
        parts.push(json!({ "type": "text", "text": text.into() }));
        self.message(json!({ "role": "user", "content": parts }))
    }

    /// Adds an earlier answer of the model.
    pub fn assistant(self, text: impl Into<String>) -> Chat {
        self.message(json!({ "role": "assistant", "content": text.into() }))
    }

    /// Adds the model's answer, with its reasoning and its calls.
    pub fn reply(self, reply: &Reply) -> Chat {
        self.message(reply.to_message())
    }

    /// Adds the result of a tool's call.
    pub fn tool_result(self, call_id: impl Into<String>, content: impl Into<String>) -> Chat {
        self.message(json!({
            "role": "tool", "tool_call_id": call_id.into(), "content": content.into(),
        }))
    }

    /// Adds a message in the form of [`Self::of_messages`].
    pub fn message(mut self, message: Value) -> Chat {
        self.request.messages.push(message);
        self
    }

    /// The messages so far, in the form of [`Self::of_messages`].
    pub fn messages(&self) -> &[Value] {
        &self.request.messages
    }

    /// Offers a function to the model; `parameters` is the JSON Schema of its arguments.
    pub fn tool(self, name: &str, description: &str, parameters: Value) -> Chat {
        self.tool_json(json!({
            "type": "function",
            "function": { "name": name, "description": description, "parameters": parameters },
        }))
    }

    /// Offers a tool in OpenAI's form.
    pub fn tool_json(mut self, tool: Value) -> Chat {
        self.request.tools.push(tool);
        self
    }

    /// The rule for calling tools; the model decides by default.
    pub fn tool_choice(mut self, choice: ToolChoice) -> Chat {
        self.request.tool_choice = choice;
        self
    }

    /// False if an answer may have one call only.
    pub fn parallel_tool_calls(mut self, parallel: bool) -> Chat {
        self.request.parallel_tool_calls = parallel;
        self
    }

    /// Switches reasoning on or off, for models that can do both.
    pub fn thinking(mut self, thinks: bool) -> Chat {
        self.request.thinking = Some(thinks);
        self
    }

    /// Effort of reasoning, for models that know efforts.
    pub fn effort(mut self, effort: Effort) -> Chat {
        self.request.effort = Some(effort);
        self
    }

    /// Maximum number of tokens of reasoning, after which it is closed.
    pub fn thinking_budget(mut self, n_tokens: usize) -> Chat {
        self.request.thinking_budget = Some(n_tokens);
        self
    }

    /// Sets a variable of the chat template.
    pub fn template_variable(mut self, name: impl Into<String>, value: Value) -> Chat {
        self.request.template_variables.insert(name.into(), value);
        self
    }

    /// True if the last message is the start of the answer, which the model continues.
    pub fn continue_last(mut self, continues: bool) -> Chat {
        self.request.continue_last = continues;
        self
    }

    /// Options of the answer.
    pub fn generation(mut self, generation: Generation) -> Chat {
        self.generation = generation;
        self
    }

    pub(crate) fn into_request(self) -> ChatRequest {
        let Generation { options, grammar, adapter } = self.generation;
        ChatRequest { model: adapter, grammar, options, ..self.request }
    }
}

/// A chat of one message of the user.
impl From<&str> for Chat {
    fn from(text: &str) -> Chat {
        Chat::new().user(text)
    }
}
