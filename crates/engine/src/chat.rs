//! A conversation: messages, and their tokens by the model's chat template.
//!
//! Each turn renders and tokenises all messages anew; the prefix cache finds the tokens that are
//! computed already. So a template may use all earlier turns (drop old reasoning, count turns). A
//! conversation that is edited, saved or continued elsewhere needs no other path.

use std::sync::Arc;

use serde_json::{Map, Value as Json, json};
use text::{Chat, ChatTemplate, Specials, Tokenizer};

use crate::{Error, Model, Result};

/// Messages, and the template and tokenizer that turn them into a prompt.
#[derive(Debug)]
pub struct Conversation {
    tokenizer: Arc<Tokenizer>,
    template: Arc<ChatTemplate>,
    bos_text: Option<String>,
    eos_text: Option<String>,
    messages: Vec<Json>,
    tools: Option<Json>,
    extra: Map<String, Json>,
}

impl Conversation {
    /// An empty conversation with the model's own template.
    ///
    /// # Errors
    /// The model has no tokenizer or no template, or the template is not valid.
    pub fn new(model: &Model) -> Result<Conversation> {
        let source = model.need_tokenizer()?.chat_template();
        let source = source.ok_or_else(|| Error::NoChatTemplate { file: model.path().to_owned() })?;
        Conversation::with_template(model, Arc::new(ChatTemplate::new(source)?))
    }

    /// An empty conversation with this template, which several conversations may share.
    ///
    /// # Errors
    /// The model has no tokenizer.
    pub fn with_template(model: &Model, template: Arc<ChatTemplate>) -> Result<Conversation> {
        let tokenizer = model.need_tokenizer()?.clone();
        let text_of = |id: Option<u32>| id.map(|id| tokenizer.token_text(id));
        Ok(Conversation {
            bos_text: text_of(tokenizer.bos()),
            eos_text: text_of(tokenizer.eos()),
            tokenizer,
            template,
            messages: Vec::new(),
            tools: None,
            extra: Map::new(),
        })
    }

    /// The messages, as the template sees them: objects with `role` and `content`.
    pub fn messages(&self) -> &[Json] {
        &self.messages
    }

    /// Replace all messages.
    pub fn set_messages(&mut self, messages: Vec<Json>) {
        self.messages = messages;
    }

    /// Add any message, such as a tool's answer.
    pub fn push(&mut self, message: Json) {
        self.messages.push(message);
    }

    /// Add a message of the user.
    pub fn push_user(&mut self, content: &str) {
        self.push(json!({"role": "user", "content": content}));
    }

    /// Add an answer of the model.
    pub fn push_assistant(&mut self, content: &str) {
        self.push(json!({"role": "assistant", "content": content}));
    }

    /// Remove and return the last message.
    pub fn pop(&mut self) -> Option<Json> {
        self.messages.pop()
    }

    /// Set or replace the system message at the beginning, or remove it (`None`).
    pub fn set_system(&mut self, content: Option<&str>) {
        if self.messages.first().is_some_and(|m| m["role"] == "system") {
            self.messages.remove(0);
        }
        if let Some(content) = content {
            self.messages.insert(0, json!({"role": "system", "content": content}));
        }
    }

    /// Remove all messages but the system message.
    pub fn clear(&mut self) {
        let keep = usize::from(self.messages.first().is_some_and(|m| m["role"] == "system"));
        self.messages.truncate(keep);
    }

    /// JSON schemas of tools that the template may offer.
    pub fn set_tools(&mut self, tools: Option<Json>) {
        self.tools = tools;
    }

    /// Set a further variable of the template, such as `enable_thinking`.
    pub fn set_variable(&mut self, name: &str, value: Json) {
        self.extra.insert(name.to_owned(), value);
    }

    /// The text of the conversation so far. With `add_generation_prompt` it ends where the model's
    /// answer begins.
    ///
    /// # Errors
    /// The template refuses the messages, or fails.
    pub fn render(&self, add_generation_prompt: bool) -> Result<String> {
        Ok(self.template.render(&Chat {
            messages: &self.messages,
            tools: self.tools.as_ref(),
            documents: None,
            add_generation_prompt,
            bos_token: self.bos_text.as_deref(),
            eos_token: self.eos_text.as_deref(),
            extra: Some(&self.extra),
            now: None,
        })?)
    }

    /// The tokens of the conversation up to where the model's answer begins. Special tokens in the
    /// text are parsed. As in transformers, no start token is added beyond the template's own.
    ///
    /// # Errors
    /// As [`Self::render`].
    pub fn prompt(&self) -> Result<Vec<u32>> {
        Ok(self.tokenizer.encode(&self.render(true)?, Specials::Parse)?)
    }
}
