//! What calls of tools are held to, kept between requests: clients send the same tools with every one, and to prepare and compile a
//! hundred schemas takes longer than all else of a short request.

use std::sync::Arc;

use engine::Constraint;
use serde_json::Value;
use text::{AnswerFormat, CallChoice, Grammar, HeldCalls, Tokenizer};

use crate::error::{ApiError, Result};
use crate::matchers::Source;
use crate::models::TextModel;
use crate::request::{ChatRequest, ToolChoice};
use crate::warnings;

/// All that it depends on, for one model.
#[derive(Clone, PartialEq)]
pub(crate) struct CallsKey {
    tools: Vec<Value>,
    /// Reasoning is content as it is written.
    raw_reasoning: bool,
    /// `None`: calls may come, and any text.
    forced: Option<Forced>,
}

/// Of an answer that must be a call, or content of a grammar.
#[derive(Clone, PartialEq)]
struct Forced {
    choice: ToolChoice,
    parallel: bool,
    content: Option<Grammar>,
    begins_thinking: bool,
}

impl Source for CallsKey {
    fn size(&self) -> usize {
        let content = self.forced.as_ref().and_then(|forced| forced.content.as_ref());
        let tools = self.tools.iter().map(|tool| tool.to_string().len());
        tools.sum::<usize>() + content.map_or(0, Grammar::n_bytes)
    }
}

/// An answer to `prompt`, read as `format`, in which tools may be called.
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

    /// Calls that may come.
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

    /// Calls that must come, or `content`. A tool whose schema cannot be enforced takes any object.
    ///
    /// # Errors
    /// No such tool, or the content's grammar cannot stand beside calls.
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
        let forced = Forced {
            choice: self.request.tool_choice.clone(),
            parallel,
            content: content.cloned(),
            begins_thinking: self.format.begins_thinking(self.prompt),
        };
        let held =
            self.kept(Some(forced), || calls(self.tools()).or_else(|_| calls(&loosened())).map_err(wrong))?;
        let matcher = held.matcher().ok_or_else(|| ApiError::internal("calls that must come are free"))?;
        Ok(Box::new(matcher.clone()))
    }

    fn kept(&self, forced: Option<Forced>, make: impl FnOnce() -> Result<HeldCalls>) -> Result<HeldCalls> {
        let (tools, raw_reasoning) = (self.tools().to_vec(), self.request.raw_reasoning);
        let held = self.model.held_calls(&CallsKey { tools, raw_reasoning, forced }, make)?;
        warnings::unenforced(held.unenforced());
        if let Some(matcher) = held.matcher() {
            warnings::unenforced(matcher.unenforced());
        }
        Ok(held)
    }
}

fn wrong(error: text::Error) -> ApiError {
    ApiError::invalid("tools", error.to_string())
}
