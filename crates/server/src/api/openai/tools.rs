//! Tools of chats and of Responses: to the model all are functions, to the client some are something else.
//!
//! A function of a namespace has both names in one. A custom tool takes a text: it is a function with one parameter. Tools that run on
//! OpenAI's own servers are left out.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::error::{ApiError, Result};

/// The parameter of a custom tool.
const INPUT: &str = "input";
/// A namespace that only says that its tools are functions.
const FUNCTIONS: &str = "functions";

/// What a call is to the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// Of a function, with arguments in JSON.
    #[default]
    Function,
    /// Of a custom tool, with a text.
    Custom,
    /// Of the client's search for further tools.
    Search,
}

/// A tool by the client's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tool {
    pub(super) kind: Kind,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
}

/// The tools of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Tools {
    /// As templates know them, in order.
    list: Vec<Value>,
    /// By the name that the model knows.
    by_name: BTreeMap<String, Tool>,
}

impl Tools {
    /// # Errors
    /// A tool has no name, or its type is none.
    pub(super) fn of_responses(given: &[Value]) -> Result<Tools> {
        let mut tools = Tools::default();
        tools.add("tools", given, None)?;
        Ok(tools)
    }

    /// Tools that an item of the conversation brings: what a search has found, or what came later.
    ///
    /// # Errors
    /// As [`Self::of_responses`].
    pub(super) fn add_found(&mut self, at: &str, given: &[Value]) -> Result<()> {
        self.add(at, given, None)
    }

    /// # Errors
    /// As [`Self::of_responses`].
    pub(super) fn of_chat(given: &[Value]) -> Result<Tools> {
        let mut tools = Tools::default();
        let mut left_out = Vec::new();
        for (index, tool) in given.iter().enumerate() {
            let at = format!("tools[{index}]");
            match tool["type"].as_str() {
                // Many clients leave it out.
                Some("function") | None if tool["function"]["name"].is_string() => {
                    let function = tool["function"].clone();
                    let named = Tool { name: text(&function["name"]), ..Tool::default() };
                    tools.insert(named, |_| function);
                }
                Some("function") => {
                    return Err(wrong(
                        &format!("{at}.function.name"),
                        &tool["function"]["name"],
                        "a function's name",
                    ));
                }
                Some("custom") => tools.add_custom(&format!("{at}.custom"), &tool["custom"], None)?,
                Some(kind) => left_out.push(format!("{at} ({kind})")),
                None => return Err(wrong(&at, tool, "an object with the type function, and `function`")),
            }
        }
        warn(&left_out);
        Ok(tools)
    }

    fn add(&mut self, at: &str, given: &[Value], namespace: Option<&str>) -> Result<()> {
        let mut left_out = Vec::new();
        for (index, tool) in given.iter().enumerate() {
            let at = format!("{at}[{index}]");
            match tool["type"].as_str() {
                Some("function") => {
                    let name = name(&at, tool)?;
                    let keys = ["description", "parameters", "strict"];
                    let keys = keys.into_iter().filter(|key| !tool[key].is_null());
                    let rest: Map<String, Value> =
                        keys.map(|key| (key.to_owned(), tool[key].clone())).collect();
                    self.insert(
                        Tool { namespace: namespace.map(str::to_owned), name, ..Tool::default() },
                        |name| {
                            let mut function = json!({ "name": name });
                            function
                                .as_object_mut()
                                .into_iter()
                                .for_each(|function| function.extend(rest.clone()));
                            function
                        },
                    );
                }
                Some("custom") => self.add_custom(&at, tool, namespace)?,
                Some("namespace") if namespace.is_none() => {
                    let (namespace, first) = (name(&at, tool)?, self.list.len());
                    let inner = tool["tools"].as_array();
                    let inner = inner
                        .ok_or_else(|| wrong(&format!("{at}.tools"), &tool["tools"], "a list of tools"))?;
                    self.add(&format!("{at}.tools"), inner, Some(&namespace))?;
                    // What its tools are for is said once.
                    if let (Some(first), Some(about)) =
                        (self.list.get_mut(first), tool["description"].as_str())
                    {
                        let own = text(&first["function"]["description"]);
                        first["function"]["description"] = format!("{about}\n\n{own}").trim_end().into();
                    }
                }
                // A search that the client makes is a call as any other.
                Some("tool_search") if tool["execution"] == "client" => {
                    let named = Tool { kind: Kind::Search, namespace: None, name: "tool_search".to_owned() };
                    let (about, parameters) = (tool["description"].clone(), tool["parameters"].clone());
                    self.insert(
                        named,
                        |name| json!({ "name": name, "description": about, "parameters": parameters }),
                    );
                }
                Some(kind) => left_out.push(format!("{at} ({kind})")),
                None => return Err(wrong(&format!("{at}.type"), &tool["type"], "a tool's type")),
            }
        }
        warn(&left_out);
        Ok(())
    }

    fn add_custom(&mut self, at: &str, tool: &Value, namespace: Option<&str>) -> Result<()> {
        let (named, format) = (name(at, tool)?, &tool["format"]);
        let mut input = json!({ "type": "string" });
        let mut about = text(&tool["description"]);
        // In a chat, the grammar has an object of its own.
        let grammar = if format["grammar"].is_object() { &format["grammar"] } else { format };
        if format["type"] == "grammar" {
            let (syntax, definition) = (text(&grammar["syntax"]), text(&grammar["definition"]));
            // Of a grammar within a JSON string, a regular expression can be enforced; Lark is told.
            if syntax == "regex" {
                input["pattern"] = format!("^(?:{definition})$").into();
            }
            about.push_str(&format!(
                "\n\n`{INPUT}` is a text that follows this grammar ({syntax}):\n{definition}"
            ));
        } else {
            about.push_str(&format!("\n\n`{INPUT}` is plain text."));
        }
        let tool = Tool { kind: Kind::Custom, namespace: namespace.map(str::to_owned), name: named };
        self.insert(tool, |name| {
            json!({ "name": name, "description": about.trim_start(), "parameters": {
                "type": "object", "properties": { INPUT: input }, "required": [INPUT], "additionalProperties": false,
            }})
        });
        Ok(())
    }

    /// Add a tool under a name that no other has; one that is there already is replaced.
    fn insert(&mut self, tool: Tool, function: impl FnOnce(&str) -> Value) {
        let is_it = |known: &Tool| known.namespace == tool.namespace && known.name == tool.name;
        let known = self.by_name.iter().find(|(_, known)| is_it(known)).map(|(name, _)| name.clone());
        let name = known.unwrap_or_else(|| {
            let plain = flat(tool.namespace.as_deref(), &tool.name);
            let mut others = (2..).map(|n| format!("{plain}_{n}"));
            match self.by_name.contains_key(&plain) {
                true => others.find(|name| !self.by_name.contains_key(name)).unwrap_or_default(),
                false => plain,
            }
        });
        let function = json!({ "type": "function", "function": function(&name) });
        match self.list.iter_mut().find(|known| known["function"]["name"] == name.as_str()) {
            Some(known) => *known = function,
            None => self.list.push(function),
        }
        self.by_name.insert(name, tool);
    }

    /// The tools as templates know them.
    pub(super) fn list(&self) -> Vec<Value> {
        self.list.clone()
    }

    /// Leave those that `stays` says.
    pub(super) fn retain(&mut self, stays: impl Fn(&Tool) -> bool) {
        self.by_name.retain(|_, tool| stays(tool));
        self.list.retain(|tool| {
            tool["function"]["name"].as_str().is_some_and(|name| self.by_name.contains_key(name))
        });
    }

    /// What a call of this name is to the client. A name that the model made up is a function's.
    pub(super) fn called(&self, name: &str) -> Tool {
        let known = self.by_name.get(name).cloned();
        known.unwrap_or_else(|| Tool { name: name.to_owned(), ..Tool::default() })
    }

    /// The name by which the model knows a tool of the client, be it among these or of an earlier request.
    pub(super) fn name_of(&self, namespace: Option<&str>, name: &str) -> String {
        let is_it = |tool: &Tool| tool.namespace.as_deref() == namespace && tool.name == name;
        let known = self.by_name.iter().find(|(_, tool)| is_it(tool));
        known.map_or_else(|| flat(namespace, name), |(name, _)| name.clone())
    }
}

/// One name of letters, digits, `_` and `-`, which is what templates and grammars take.
fn flat(namespace: Option<&str>, name: &str) -> String {
    match namespace.filter(|namespace| *namespace != FUNCTIONS) {
        None => name.to_owned(),
        Some(namespace) => {
            let joined = format!("{}__{}", namespace.trim_end_matches('_'), name.trim_start_matches('_'));
            let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
            joined.chars().map(plain).collect()
        }
    }
}

fn name(at: &str, tool: &Value) -> Result<String> {
    let found = &tool["name"];
    let name = found.as_str().filter(|name| !name.is_empty()).map(str::to_owned);
    name.ok_or_else(|| wrong(&format!("{at}.name"), found, "a tool's name"))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn wrong(at: &str, found: &Value, expected: &str) -> ApiError {
    ApiError::invalid(at, format!("`{at}` is {found}, expected {expected}"))
}

fn warn(left_out: &[String]) {
    if !left_out.is_empty() {
        tracing::warn!("tools of types that are not offered here are left out: {}", left_out.join(", "));
    }
}

/// The arguments of a custom tool's call with this text.
pub(super) fn arguments_of(input: &str) -> String {
    json!({ INPUT: input }).to_string()
}

/// Reads the text out of a custom tool's arguments as they are written. What has another shape is itself the text.
#[derive(Debug, Default)]
pub(super) struct Freeform {
    at: At,
    /// What may be the beginning of the arguments; where it is none, all of them.
    head: String,
    hex: String,
    /// The first half of a character that JSON writes as two.
    high: Option<u16>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    #[default]
    Head,
    Text,
    Escape,
    Hex,
    End,
    Other,
}

impl Freeform {
    /// More text, after another piece of the arguments.
    pub(super) fn push(&mut self, piece: &str) -> String {
        let mut out = String::new();
        for c in piece.chars() {
            match self.at {
                At::Head => {
                    self.head.push(c);
                    match begins(&self.head) {
                        Some(true) => self.at = At::Text,
                        Some(false) => {}
                        None => self.at = At::Other,
                    }
                }
                At::Text => match c {
                    '\\' => self.at = At::Escape,
                    '"' => self.at = At::End,
                    c => out.push(c),
                },
                At::Escape => {
                    self.at = At::Text;
                    match c {
                        'u' => self.at = At::Hex,
                        'n' => out.push('\n'),
                        't' => out.push('\t'),
                        'r' => out.push('\r'),
                        'b' => out.push('\u{8}'),
                        'f' => out.push('\u{c}'),
                        c => out.push(c),
                    }
                }
                At::Hex => {
                    self.hex.push(c);
                    if self.hex.chars().count() == 4 {
                        self.at = At::Text;
                        self.unit(&mut out);
                    }
                }
                At::End => {}
                At::Other => self.head.push(c),
            }
        }
        out
    }

    /// What is left when the call has ended.
    pub(super) fn finish(&mut self) -> String {
        match self.at {
            At::Head | At::Other => std::mem::take(&mut self.head),
            At::Text | At::Escape | At::Hex | At::End => String::new(),
        }
    }

    fn unit(&mut self, out: &mut String) {
        let unit = u16::from_str_radix(&std::mem::take(&mut self.hex), 16).unwrap_or(0xfffd);
        if (0xd800..0xdc00).contains(&unit) {
            self.high = Some(unit);
            return;
        }
        let units: Vec<u16> = self.high.take().into_iter().chain([unit]).collect();
        out.push_str(&String::from_utf16_lossy(&units));
    }
}

/// The text of whole arguments.
pub(super) fn input_of(arguments: &str) -> String {
    let mut freeform = Freeform::default();
    freeform.push(arguments) + &freeform.finish()
}

/// Whether this is `{"input": "`, or the beginning of it; `None`: neither.
fn begins(head: &str) -> Option<bool> {
    let mut rest = head;
    for part in ["{", "\"input\"", ":", "\""] {
        rest = rest.trim_start();
        match rest.strip_prefix(part) {
            Some(after) => rest = after,
            None => return part.starts_with(rest).then_some(false),
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str) -> Value {
        json!({ "type": "function", "name": name, "parameters": { "type": "object" } })
    }

    fn names(tools: &Tools) -> Vec<String> {
        tools.list().iter().map(|tool| text(&tool["function"]["name"])).collect()
    }

    #[test]
    fn namespaces_are_flattened_and_hosted_tools_left_out() {
        let tools = Tools::of_responses(&[
            function("f"),
            json!({ "type": "namespace", "name": "mcp__files__", "description": "Files.", "tools": [
                function("_read"), function("write it"), { "type": "custom", "name": "patch" },
            ]}),
            json!({ "type": "namespace", "name": "functions", "tools": [function("f")] }),
            json!({ "type": "web_search", "external_web_access": false }),
            json!({ "type": "local_shell" }),
        ])
        .unwrap();
        let expected = ["f", "mcp__files__read", "mcp__files__write_it", "mcp__files__patch", "f_2"];
        assert_eq!(names(&tools), expected);
        assert_eq!(tools.list()[1]["function"]["description"], "Files.");
        let called = tools.called("mcp__files__read");
        assert_eq!((called.namespace.as_deref(), called.name.as_str()), (Some("mcp__files__"), "_read"));
        assert_eq!(tools.called("mcp__files__patch").kind, Kind::Custom);
        assert_eq!(tools.called("f_2").namespace.as_deref(), Some("functions"));
        assert_eq!(tools.called("none"), Tool { name: "none".into(), ..Tool::default() });
        assert_eq!(tools.name_of(Some("functions"), "f"), "f_2");
        assert_eq!(tools.name_of(Some("before"), "f"), "before__f");
        let error = Tools::of_responses(&[
            json!({ "type": "namespace", "name": "n", "tools": [{ "type": "function" }] }),
        ]);
        assert_eq!(error.unwrap_err().param.as_deref(), Some("tools[0].tools[0].name"));
    }

    #[test]
    fn custom_tools_have_one_text() {
        let format = json!({ "type": "grammar", "syntax": "regex", "definition": "[a-z]+" });
        let tools =
            Tools::of_responses(&[json!({ "type": "custom", "name": "c", "format": format })]).unwrap();
        let parameters = tools.list()[0]["function"]["parameters"].clone();
        assert_eq!(parameters["properties"]["input"]["pattern"], "^(?:[a-z]+)$");
        let format =
            json!({ "type": "grammar", "grammar": { "syntax": "lark", "definition": "start: \"a\"" } });
        let tools =
            Tools::of_chat(&[json!({ "type": "custom", "custom": { "name": "c", "format": format } })])
                .unwrap();
        let about = text(&tools.list()[0]["function"]["description"]);
        assert!(about.contains("(lark):\nstart: \"a\""), "{about}");
        assert_eq!(tools.called("c").kind, Kind::Custom);
    }

    #[test]
    fn a_custom_tool_s_text_is_read_as_it_is_written() {
        let texts = ["plain", "a \"b\" \\ \n\t é 𝄞 \u{1}", ""];
        for text in texts {
            let arguments = arguments_of(text);
            let escaped = arguments.replace('𝄞', "\\ud834\\udd1e").replace('é', "\\u00e9");
            for arguments in [format!(" {arguments} "), escaped] {
                assert_eq!(input_of(&arguments), text);
                let mut freeform = Freeform::default();
                let pieces: String = arguments.chars().map(|c| freeform.push(&c.to_string())).collect();
                assert_eq!(pieces + &freeform.finish(), text);
            }
        }
        for other in ["*** Begin Patch", "{\"patch\": \"a\"}", "{\"in", "\"a\""] {
            assert_eq!(input_of(other), other);
        }
        assert_eq!(input_of("{\"input\": \"cut of\\"), "cut of");
    }
}
