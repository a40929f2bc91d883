//! Presentation of tools and calls to a template.

use serde_json::{Map, Value, json};

use super::AnswerFormat;
use crate::{Chat, ChatTemplate};

/// Abilities of a template with tools, found by test renderings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolPrompt {
    /// True if the template writes tools and calls.
    knows_tools: bool,
    /// True if the template needs the arguments of earlier calls as JSON text, not as objects.
    wants_text: bool,
    /// True if the template accepts a system message.
    takes_system: bool,
}

/// Text to look for in test renderings.
const NEEDLE: &str = "needle in the arguments";

impl ToolPrompt {
    /// Tests a template.
    pub fn of(template: &ChatTemplate, format: &AnswerFormat) -> ToolPrompt {
        let user = json!({ "role": "user", "content": "question" });
        let shows = |messages: &[Value], tools: Option<&Value>, needle: &str| {
            let chat = Chat { messages, tools, bos_token: Some(""), eos_token: Some(""), ..Chat::default() };
            template.render(&chat).is_ok_and(|text| text.contains(needle))
        };
        let system = json!({ "role": "system", "content": NEEDLE });
        let tools = json!([{ "type": "function", "function": {
            "name": "f", "description": "", "parameters": { "type": "object", "properties": {} },
        }}]);
        let with_arguments = |arguments: Value| {
            let function = json!({ "name": "f", "arguments": arguments });
            let calls = json!([{ "id": "abcdefghi", "type": "function", "function": function }]);
            let call = json!({ "role": "assistant", "content": "", "tool_calls": calls });
            shows(&[user.clone(), call], Some(&tools), NEEDLE)
        };
        let object = json!({ "x": NEEDLE });
        ToolPrompt {
            knows_tools: format.knows_tools(),
            takes_system: shows(&[system, user.clone()], None, NEEDLE),
            wants_text: !with_arguments(object.clone()) && with_arguments(object.to_string().into()),
        }
    }

    /// Converts messages and tools to the form that the template expects.
    pub fn adapt(&self, messages: &[Value], tools: &[Value]) -> (Vec<Value>, Option<Value>) {
        if self.knows_tools {
            let messages = messages.iter().map(|message| self.with_arguments(message)).collect();
            return (messages, (!tools.is_empty()).then(|| Value::Array(tools.to_vec())));
        }
        let mut adapted = Vec::with_capacity(messages.len() + 1);
        for message in messages {
            push_plain(message, &mut adapted);
        }
        if !tools.is_empty() {
            self.tell(tools, &mut adapted);
        }
        (adapted, None)
    }

    /// A message whose calls have arguments in the template's form.
    fn with_arguments(&self, message: &Value) -> Value {
        let mut message = message.clone();
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten() {
            let arguments = match call.get_mut("function") {
                Some(function) => function.get_mut("arguments"),
                None => call.get_mut("arguments"),
            };
            let Some(arguments) = arguments else { continue };
            match (&*arguments, self.wants_text) {
                (Value::String(text), false) => {
                    if let Ok(object @ Value::Object(_)) = serde_json::from_str(text) {
                        *arguments = object;
                    } else if text.trim().is_empty() {
                        *arguments = Value::Object(Map::new());
                    }
                }
                (Value::Object(_), true) => *arguments = Value::from(arguments.to_string()),
                _ => {}
            }
        }
        message
    }

    /// Describes tools in the prompt, for a template without support for them.
    fn tell(&self, tools: &[Value], messages: &mut Vec<Value>) {
        let mut text = String::from(
            "You can call these functions. Each is described by a JSON object with a schema of its parameters.\n\n",
        );
        for tool in tools {
            let function = tool.get("function").unwrap_or(tool);
            text.push_str(&format!("{function}\n"));
        }
        text.push_str(
            "\nTo call one, write nothing but a JSON object with its name and its arguments between these marks:\n\
             <tool_call>\n{\"name\": \"NAME\", \"arguments\": {\"PARAMETER\": \"VALUE\"}}\n</tool_call>\n\
             What it returns comes in the next message. Call a function only if you need it for your answer.",
        );
        let place = if self.takes_system { "system" } else { "user" };
        match messages.iter_mut().find(|message| message["role"] == place) {
            // Templates accept a system message only at the start.
            Some(message) => {
                let old = message["content"].as_str().unwrap_or_default();
                let whole =
                    if self.takes_system { format!("{old}\n\n{text}") } else { format!("{text}\n\n{old}") };
                message["content"] = Value::from(whole);
            }
            None => messages.insert(0, json!({ "role": place, "content": text })),
        }
    }
}

/// Appends calls and their results as text.
fn push_plain(message: &Value, adapted: &mut Vec<Value>) {
    let text = message["content"].as_str().unwrap_or_default();
    if message["role"] == "tool" {
        let text = format!("<tool_response>\n{text}\n</tool_response>");
        match adapted.last_mut().filter(|last| last["role"] == "user") {
            // Results of several calls form one message, since many templates require user and
            // assistant to alternate.
            Some(last) => {
                let before = last["content"].as_str().unwrap_or_default();
                last["content"] = Value::from(format!("{before}\n{text}"));
            }
            None => adapted.push(json!({ "role": "user", "content": text })),
        }
        return;
    }
    let mut message = message.clone();
    let calls = message.as_object_mut().and_then(|fields| fields.remove("tool_calls"));
    if let Some(Value::Array(calls)) = calls {
        let mut text = text.to_owned();
        for call in &calls {
            let function = call.get("function").unwrap_or(call);
            let arguments = match &function["arguments"] {
                Value::String(text) => {
                    serde_json::from_str(text).unwrap_or_else(|_| Value::from(text.as_str()))
                }
                other => other.clone(),
            };
            let call = json!({ "name": function["name"], "arguments": arguments });
            let separator = if text.is_empty() { "" } else { "\n" };
            text.push_str(&format!("{separator}<tool_call>\n{call}\n</tool_call>"));
        }
        message["content"] = Value::from(text);
    }
    adapted.push(message);
}
