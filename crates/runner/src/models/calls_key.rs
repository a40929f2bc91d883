//! Key of a model's cache of constraints for tool calls.

use serde_json::Value;
use text::Grammar;

use crate::matchers::Source;
use crate::request::ToolChoice;

/// The facts that the constraint depends on, for one model.
#[derive(Clone, PartialEq)]
pub(crate) struct CallsKey {
    pub(crate) tools: Vec<Value>,
    /// True if reasoning stays in the content.
    pub(crate) raw_reasoning: bool,
    /// Facts of a forced answer; `None` if calls are optional and any text is allowed.
    pub(crate) forced: Option<ForcedKey>,
}

/// Facts of an answer that must be a call, or content of a grammar.
#[derive(Clone, PartialEq)]
pub(crate) struct ForcedKey {
    pub(crate) choice: ToolChoice,
    pub(crate) parallel: bool,
    pub(crate) content: Option<Grammar>,
    pub(crate) begins_thinking: bool,
}

impl Source for CallsKey {
    fn size(&self) -> usize {
        let content = self.forced.as_ref().and_then(|forced| forced.content.as_ref());
        let tools = self.tools.iter().map(|tool| tool.to_string().len());
        tools.sum::<usize>() + content.map_or(0, Grammar::n_bytes)
    }
}
