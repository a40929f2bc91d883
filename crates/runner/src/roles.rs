//! Roles that a chat template accepts in each position, and conversion of conversations to them.
//!
//! Agents send system messages within a conversation, several at its start, and user text right
//! after results of tools. Many templates refuse that, and some drop such messages.

use serde_json::{Value, json};
use text::{Chat, ChatTemplate, ToolPrompt};

/// Abilities of a template, found by rendering test conversations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Roles {
    /// Accepts a system message at the start.
    system: bool,
    /// Accepts two system messages at the start.
    several_systems: bool,
    /// Accepts a system message after other messages, and keeps it there.
    late_system: bool,
    /// Accepts two user messages in a row.
    users_in_a_row: bool,
    /// Accepts a user message after a tool's result.
    user_after_result: bool,
}

impl Roles {
    /// Tests a template, which gets tools by `prompt`.
    pub(crate) fn of(template: &ChatTemplate, prompt: &ToolPrompt) -> Roles {
        // True if all texts appear in order; those of `roles` are "text 0", "text 1", …
        let shows = |roles: &[&str]| {
            let says = |(index, role): (usize, &&str)| match *role {
                "call" => json!({ "role": "assistant", "content": "", "tool_calls": [{
                    "id": "abcdefghi", "type": "function", "function": { "name": "f", "arguments": {} },
                }]}),
                "tool" => json!({
                    "role": "tool", "tool_call_id": "abcdefghi", "name": "f", "content": format!("text {index}"),
                }),
                role => json!({ "role": role, "content": format!("text {index}") }),
            };
            let messages: Vec<Value> = roles.iter().enumerate().map(says).collect();
            let tools = [json!({ "type": "function", "function": {
                "name": "f", "description": "", "parameters": { "type": "object", "properties": {} },
            }})];
            let has_calls = roles.contains(&"call");
            let (messages, tools) = prompt.adapt(&messages, if has_calls { &tools } else { &[] });
            let chat = Chat {
                messages: &messages,
                tools: tools.as_ref(),
                add_generation_prompt: true,
                bos_token: Some(""),
                eos_token: Some(""),
                ..Chat::default()
            };
            let Ok(text) = template.render(&chat) else { return false };
            let mut from = 0;
            (0..roles.len()).filter(|index| roles[*index] != "call").all(|index| {
                let found = text[from..].find(&format!("text {index}"));
                found.inspect(|at| from += at + 1).is_some()
            })
        };
        // A conversation that fails without the tested message says nothing about it.
        let result = shows(&["user", "call", "tool"]);
        Roles {
            system: shows(&["system", "user"]),
            several_systems: shows(&["system", "system", "user"]),
            late_system: shows(&["user", "system", "assistant", "user", "system"]),
            users_in_a_row: shows(&["user", "user"]),
            user_after_result: !result || shows(&["user", "call", "tool", "user"]),
        }
    }

    /// Converts a conversation for the template. System messages that cannot stay become user text.
    pub(crate) fn adapt(&self, messages: Vec<Value>) -> Vec<Value> {
        let mut out: Vec<Value> = Vec::with_capacity(messages.len());
        // Text of a system prompt without a message of its own.
        let mut first: Option<Value> = None;
        for mut message in messages {
            let is_system = message["role"] == "system";
            let begins = out.iter().all(|message| message["role"] == "system");
            match is_system {
                true if begins && !self.system => {
                    let text = message["content"].take();
                    first = Some(match first.take() {
                        Some(before) => joined(before, text),
                        None => text,
                    });
                }
                true if begins => match out.last_mut().filter(|_| !self.several_systems) {
                    Some(last) => append(last, message["content"].take()),
                    None => out.push(message),
                },
                true if self.late_system => out.push(message),
                true => {
                    let text = reminder(message["content"].take());
                    match out.last_mut().filter(|last| last["role"] == "user") {
                        Some(last) => append(last, text),
                        None => self.push_user(json!({ "role": "user", "content": text }), &mut out),
                    }
                }
                false if message["role"] == "user" => {
                    if let Some(before) = first.take() {
                        message["content"] = joined(before, message["content"].take());
                    }
                    self.push_user(message, &mut out);
                }
                false => out.push(message),
            }
        }
        if let Some(text) = first {
            self.push_user(json!({ "role": "user", "content": text }), &mut out);
        }
        out
    }

    fn push_user(&self, mut message: Value, out: &mut Vec<Value>) {
        let taken_up = |last: &&mut Value| match last["role"].as_str() {
            Some("user") => !self.users_in_a_row,
            Some("tool") => !self.user_after_result,
            _ => false,
        };
        match out.last_mut().filter(taken_up) {
            Some(last) => append(last, message["content"].take()),
            None => out.push(message),
        }
    }
}

/// The mark by which agents tell a model that a part of the user's message is not from the user.
fn reminder(content: Value) -> Value {
    let text = |text: &str| json!({ "type": "text", "text": text });
    match content {
        Value::Array(parts) => {
            let around = [text("<system-reminder>\n")].into_iter().chain(parts);
            around.chain([text("\n</system-reminder>")]).collect()
        }
        content => {
            let inner = content.as_str().unwrap_or_default();
            format!("<system-reminder>\n{inner}\n</system-reminder>").into()
        }
    }
}

fn append(message: &mut Value, content: Value) {
    message["content"] = joined(message["content"].take(), content);
}

/// Joins two contents, each a text or a list of parts.
fn joined(before: Value, after: Value) -> Value {
    if let (Some(before), Some(after)) = (before.as_str(), after.as_str()) {
        let between = if before.is_empty() || after.is_empty() { "" } else { "\n\n" };
        return format!("{before}{between}{after}").into();
    }
    let parts = |content: Value| match content {
        Value::Array(parts) => parts,
        content => vec![json!({ "type": "text", "text": content })],
    };
    let mut all = parts(before);
    all.push(json!({ "type": "text", "text": "\n\n" }));
    all.extend(parts(after));
    all.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use text::AnswerFormat;

    const CHATML: &str =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
    /// Like Gemma's and Mistral's templates: user and assistant alternate, and there is no system
    /// role.
    const IN_TURN: &str = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) or m.role == 'system' %}\
        {{ raise_exception('in turn') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    /// Shows a system message only at the start.
    const FIRST: &str = "{% if messages[0].role == 'system' %}<sys>{{ messages[0].content }}{% endif %}\
        {% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}";

    fn adapted(template: &str, roles: &[(&str, &str)]) -> Vec<(String, String)> {
        let format = AnswerFormat::detect(template);
        let template = ChatTemplate::new(template).unwrap();
        let roles_of = Roles::of(&template, &ToolPrompt::of(&template, &format));
        let messages = roles.iter().map(|(role, text)| json!({ "role": role, "content": text })).collect();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        roles_of.adapt(messages).iter().map(|m| (text(&m["role"]), text(&m["content"]))).collect()
    }

    fn pairs(given: &[(&str, &str)]) -> Vec<(String, String)> {
        given.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect()
    }

    const AGENT: [(&str, &str); 6] =
        [("system", "a"), ("system", "b"), ("user", "c"), ("system", "d"), ("assistant", "e"), ("user", "f")];

    #[test]
    fn messages_that_the_template_accepts_stay() {
        assert_eq!(adapted(CHATML, &AGENT), pairs(&AGENT));
    }

    #[test]
    fn system_messages_in_the_middle_become_text_of_the_user() {
        let late = "c\n\n<system-reminder>\nd\n</system-reminder>";
        let rest = [("user", late), ("assistant", "e"), ("user", "f")];
        let first = [("system", "a\n\nb")];
        assert_eq!(adapted(FIRST, &AGENT), pairs(&[&first[..], &rest[..]].concat()));
        let late = format!("a\n\nb\n\n{late}");
        assert_eq!(adapted(IN_TURN, &AGENT), pairs(&[("user", &late), ("assistant", "e"), ("user", "f")]));
        let twice = [("user", "a"), ("user", "b")];
        assert_eq!(adapted(IN_TURN, &twice), pairs(&[("user", "a\n\nb")]));
        assert_eq!(adapted(IN_TURN, &[("system", "a")]), pairs(&[("user", "a")]));
    }

    #[test]
    fn parts_are_joined_too() {
        let parts = json!([{ "type": "image" }]);
        let found = joined(json!("a"), parts.clone());
        assert_eq!((found[0]["text"].as_str(), &found[2]), (Some("a"), &parts[0]));
        assert_eq!(reminder(parts)[2]["text"], "\n</system-reminder>");
    }
}
