//! Tools of chats and of Responses. All are functions to the model; some are something else to the
//! client.
//!
//! A function of a namespace gets a name that joins both names. A custom tool, which accepts a
//! text, is a function with one parameter. Tools that run on OpenAI's own servers are dropped.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use runner::{RequestError, Result};

/// The parameter of a custom tool.
const INPUT: &str = "input";
/// A namespace that only marks its tools as functions.
const FUNCTIONS: &str = "functions";

/// Type of a call to the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ToolKind {
    /// A call of a function, with arguments in JSON.
    #[default]
    Function,
    /// A call of a custom tool, with a text.
    Custom,
    /// A call of the client's tool search.
    Search,
}

/// A tool under the client's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tool {
    pub(super) kind: ToolKind,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
}

/// The tools of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Tools {
    /// Tools as templates expect them, in order.
    list: Vec<Value>,
    /// Tools by the name that the model sees.
    by_name: BTreeMap<String, Tool>,
}

impl Tools {
    /// Reads the tools of a Responses request.
    ///
    /// # Errors
    /// A tool has no name, or an unknown type.
    pub(super) fn of_responses(given: &[Value]) -> Result<Tools> {
        let mut tools = Tools::default();
        tools.add("tools", given, None)?;
        Ok(tools)
    }

    /// Adds tools that an item of the conversation brings: results of a search, or later additions.
    ///
    /// # Errors
    /// As [`Self::of_responses`].
    pub(super) fn add_found(&mut self, at: &str, given: &[Value]) -> Result<()> {
        self.add(at, given, None)
    }

    /// Reads the tools of a chat request.
    ///
    /// # Errors
    /// As [`Self::of_responses`].
    pub(super) fn of_chat(given: &[Value]) -> Result<Tools> {
        let mut tools = Tools::default();
        let mut left_out = Vec::new();
        for (index, tool) in given.iter().enumerate() {
            let at = format!("tools[{index}]");
            match tool["type"].as_str() {
                // Many clients omit the type.
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
                    // The description of a namespace is shown once, with its first tool.
                    if let (Some(first), Some(about)) =
                        (self.list.get_mut(first), tool["description"].as_str())
                    {
                        let own = text(&first["function"]["description"]);
                        first["function"]["description"] = format!("{about}\n\n{own}").trim_end().into();
                    }
                }
                // A search that the client runs is an ordinary call.
                Some("tool_search") if tool["execution"] == "client" => {
                    let named =
                        Tool { kind: ToolKind::Search, namespace: None, name: "tool_search".to_owned() };
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
        // Chats nest the grammar in an object of its own.
        let grammar = if format["grammar"].is_object() { &format["grammar"] } else { format };
        if format["type"] == "grammar" {
            let (syntax, definition) = (text(&grammar["syntax"]), text(&grammar["definition"]));
            // Within a JSON string a regular expression can be enforced. A Lark grammar cannot, so
            // its text is shown to the model.
            if syntax == "regex" {
                input["pattern"] = format!("^(?:{definition})$").into();
            }
            about.push_str(&format!(
                "\n\n`{INPUT}` is a text that follows this grammar ({syntax}):\n{definition}"
            ));
        } else {
            about.push_str(&format!("\n\n`{INPUT}` is plain text."));
        }
        let tool = Tool { kind: ToolKind::Custom, namespace: namespace.map(str::to_owned), name: named };
        self.insert(tool, |name| {
            json!({ "name": name, "description": about.trim_start(), "parameters": {
                "type": "object", "properties": { INPUT: input }, "required": [INPUT], "additionalProperties": false,
            }})
        });
        Ok(())
    }

    /// Adds a tool under a unique name, or replaces the same tool.
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

    /// The tools as templates expect them.
    pub(super) fn list(&self) -> Vec<Value> {
        self.list.clone()
    }

    /// Keeps only the tools for which `stays` returns true.
    pub(super) fn retain(&mut self, stays: impl Fn(&Tool) -> bool) {
        self.by_name.retain(|_, tool| stays(tool));
        self.list.retain(|tool| {
            tool["function"]["name"].as_str().is_some_and(|name| self.by_name.contains_key(name))
        });
    }

    /// The tool of a call by its name. An unknown name, which the model made up, is a function.
    pub(super) fn called(&self, name: &str) -> Tool {
        let known = self.by_name.get(name).cloned();
        known.unwrap_or_else(|| Tool { name: name.to_owned(), ..Tool::default() })
    }

    /// The model's name of a client's tool, of this request or an earlier one.
    pub(super) fn name_of(&self, namespace: Option<&str>, name: &str) -> String {
        let is_it = |tool: &Tool| tool.namespace.as_deref() == namespace && tool.name == name;
        let known = self.by_name.iter().find(|(_, tool)| is_it(tool));
        known.map_or_else(|| flat(namespace, name), |(name, _)| name.clone())
    }
}

/// Joins names to letters, digits, `_` and `-`, which templates and grammars accept.
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

fn wrong(at: &str, found: &Value, expected: &str) -> RequestError {
    RequestError::invalid(at, format!("`{at}` is {found}, expected {expected}"))
}

fn warn(left_out: &[String]) {
    if !left_out.is_empty() {
        tracing::warn!("tools of types that are not offered here are left out: {}", left_out.join(", "));
    }
}

/// Arguments of a custom tool's call with this text.
pub(super) fn arguments_of(input: &str) -> String {
    json!({ INPUT: input }).to_string()
}

/// Decodes the text of a custom tool's call while its arguments are written. Arguments of another
/// shape are the text themselves.
#[derive(Debug, Default)]
pub(super) struct Freeform {
    at: FreeformState,
    /// Possible start of the arguments; all of them if they have another shape.
    head: String,
    hex: String,
    /// First half of a surrogate pair, which JSON writes as two escapes.
    high: Option<u16>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FreeformState {
    #[default]
    Head,
    Text,
    Escape,
    Hex,
    End,
    Other,
}

impl Freeform {
    /// Adds a piece of the arguments and returns more text.
    pub(super) fn push(&mut self, piece: &str) -> String {
        let mut out = String::new();
        for c in piece.chars() {
            match self.at {
                FreeformState::Head => {
                    self.head.push(c);
                    match begins(&self.head) {
                        Some(true) => self.at = FreeformState::Text,
                        Some(false) => {}
                        None => self.at = FreeformState::Other,
                    }
                }
                FreeformState::Text => match c {
                    '\\' => self.at = FreeformState::Escape,
                    '"' => self.at = FreeformState::End,
                    c => out.push(c),
                },
                FreeformState::Escape => {
                    self.at = FreeformState::Text;
                    match c {
                        'u' => self.at = FreeformState::Hex,
                        'n' => out.push('\n'),
                        't' => out.push('\t'),
                        'r' => out.push('\r'),
                        'b' => out.push('\u{8}'),
                        'f' => out.push('\u{c}'),
                        c => out.push(c),
                    }
                }
                FreeformState::Hex => {
                    self.hex.push(c);
                    if self.hex.chars().count() == 4 {
                        self.at = FreeformState::Text;
                        self.unit(&mut out);
                    }
                }
                FreeformState::End => {}
                FreeformState::Other => self.head.push(c),
            }
        }
        out
    }

    /// Returns the rest of the text at the end of the call.
    pub(super) fn finish(&mut self) -> String {
        match self.at {
            FreeformState::Head | FreeformState::Other => std::mem::take(&mut self.head),
            FreeformState::Text | FreeformState::Escape | FreeformState::Hex | FreeformState::End => {
                String::new()
            }
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

/// The text of complete arguments.
pub(super) fn input_of(arguments: &str) -> String {
    let mut freeform = Freeform::default();
    freeform.push(arguments) + &freeform.finish()
}

/// True if `head` begins with `{"input": "`, false if it is a start of that; `None` otherwise.
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
        assert_eq!(tools.called("mcp__files__patch").kind, ToolKind::Custom);
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
        assert_eq!(tools.called("c").kind, ToolKind::Custom);
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
