//! Constraints of tool calls, cached between requests. Clients send the same tools with every
//! request, and compiling a hundred schemas takes longer than the rest of a short request.

use std::sync::Arc;

use engine::Constraint;
use serde_json::Value;
use text::{AnswerFormat, CallChoice, Grammar, HeldCalls, Tokenizer};

use crate::error::{RequestError, Result};
use crate::models::{CallsKey, ForcedKey, TextModel};
use crate::request::{ChatRequest, ToolChoice};
use crate::warnings;

/// An answer to `prompt` in the given `format`, which may call tools.
pub(crate) struct ToolCalls<'a> {
    pub(crate) model: &'a TextModel,
    pub(crate) request: &'a ChatRequest,
    pub(crate) format: AnswerFormat,
    pub(crate) prompt: &'a str,
}

impl ToolCalls<'_> {
    fn tools(&self) -> &[Value] {
        self.request.called_tools()
    }

    fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.model.facts.tokenizer
    }

    /// The constraint of optional calls.
    ///
    /// # Errors
    /// A mark of the format cannot be tokenised.
    pub(crate) fn free(&self) -> Result<Box<dyn Constraint>> {
        let compile = |grammar: &Grammar| self.model.compile_tools(grammar);
        let make = || Ok(self.format.held_calls(self.tools(), self.tokenizer(), compile));
        let held = self.kept(None, make)?;
        let parallel = self.request.may_call_again();
        let guard = self.format.guard(held, self.tools(), parallel, self.prompt, self.tokenizer());
        Ok(Box::new(guard.map_err(wrong)?))
    }

    /// The constraint of an answer that must call a tool, or be `content`. A tool whose schema
    /// cannot be enforced accepts any object.
    ///
    /// # Errors
    /// No such tool, or the content's grammar cannot be combined with calls.
    pub(crate) fn forced(&self, content: Option<&Grammar>) -> Result<Box<dyn Constraint>> {
        let compile = |grammar: &Grammar| self.model.compile_tools(grammar);
        let parallel = self.request.may_call_again();
        let choice = match &self.request.tool_choice {
            ToolChoice::Auto | ToolChoice::None => CallChoice::Auto,
            ToolChoice::Required => CallChoice::Required,
            ToolChoice::Function(name) => CallChoice::Function(name),
        };
        let calls = |tools: &[Value]| {
            let calls =
                self.format.grammar(tools, choice, parallel, content, self.prompt, self.tokenizer())?;
            Ok::<_, text::Error>(HeldCalls::new(compile(&calls.grammar)?, calls.unenforced))
        };
        let loosened = || self.format.loosened(self.tools(), self.tokenizer(), compile);
        let forced = ForcedKey {
            choice: self.request.tool_choice.clone(),
            parallel,
            content: content.cloned(),
            begins_thinking: self.format.begins_thinking(self.prompt),
        };
        let held =
            self.kept(Some(forced), || calls(self.tools()).or_else(|_| calls(&loosened())).map_err(wrong))?;
        let matcher =
            held.matcher().ok_or_else(|| RequestError::internal("required calls have no grammar"))?;
        Ok(Box::new(matcher.clone()))
    }

    fn kept(&self, forced: Option<ForcedKey>, make: impl FnOnce() -> Result<HeldCalls>) -> Result<HeldCalls> {
        let (tools, raw_reasoning) = (self.tools().to_vec(), self.request.raw_reasoning);
        let held = self.model.held_calls(&CallsKey { tools, raw_reasoning, forced }, make)?;
        warnings::unenforced(held.unenforced());
        if let Some(matcher) = held.matcher() {
            warnings::unenforced(matcher.unenforced());
        }
        Ok(held)
    }
}

fn wrong(error: text::Error) -> RequestError {
    RequestError::invalid("tools", error.to_string())
}
