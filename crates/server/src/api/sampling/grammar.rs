//! Keys that hold an answer to a grammar, of llama.cpp, vLLM and SGLang.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use text::{Grammar, Trigger};

use runner::{ErrorKind, RequestError, Result};

/// Keys that hold an answer to a grammar. A request has at most one of them.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct GrammarKeys {
    // llama.cpp.
    /// GBNF.
    grammar: Option<String>,
    /// True if the grammar begins after the first trigger in the text.
    grammar_lazy: Option<bool>,
    grammar_triggers: Option<Vec<TriggerKeys>>,
    #[serde(alias = "guided_json")]
    json_schema: Option<Value>,
    // vLLM, with SGLang's names as aliases.
    structured_outputs: Option<Value>,
    structural_tag: Option<Value>,
    #[serde(alias = "regex")]
    guided_regex: Option<String>,
    guided_choice: Option<Vec<String>>,
    #[serde(alias = "ebnf")]
    guided_grammar: Option<String>,
}

/// A trigger in llama-server's form.
#[derive(Clone, Debug, Deserialize)]
struct TriggerKeys {
    /// 0: a token, 1: a word, 2: a regular expression, 3: a regular expression that matches the
    /// whole text.
    #[serde(rename = "type")]
    kind: u32,
    #[serde(default)]
    value: String,
    token: Option<u32>,
}

impl GrammarKeys {
    /// The grammar of the answer, from these keys or from the API's `own`.
    ///
    /// # Errors
    /// More than one is given.
    pub(super) fn grammar(&self, own: Option<Grammar>) -> Result<Option<Grammar>> {
        let tag =
            self.structural_tag.as_ref().filter(|tag| !tag.is_null()).map(structural_tag).transpose()?;
        let structured = self.structured_outputs.as_ref().filter(|outputs| !outputs.is_null());
        let given = [
            own,
            tag,
            structured.map(structured_outputs).transpose()?.flatten(),
            self.json_schema.clone().filter(|schema| !schema.is_null()).map(Grammar::JsonSchema),
            self.guided_regex.clone().map(Grammar::Regex),
            self.guided_choice.clone().map(Grammar::Choice),
            self.guided_grammar.clone().map(|text| of_text("guided_grammar", text)).transpose()?,
            // Clients of llama.cpp send an empty grammar for none.
            self.grammar.clone().filter(|text| !text.is_empty()).map(Grammar::Gbnf),
        ];
        let mut given = given.into_iter().flatten();
        match (given.next(), given.next()) {
            (first, None) => Ok(first),
            (_, Some(_)) => Err(RequestError::new(
                ErrorKind::Invalid,
                "the answer is to follow several grammars, expected one of response_format, json_schema, guided_json, \
                 guided_regex, guided_choice, guided_grammar, structural_tag, structured_outputs and grammar",
            )),
        }
    }

    /// The triggers of a lazy grammar.
    pub(super) fn triggers(&self) -> Result<Option<Arc<[Trigger]>>> {
        if self.grammar_lazy != Some(true) {
            return Ok(None);
        }
        let wrong = |message: String| RequestError::invalid("grammar_triggers", message);
        if self.grammar.as_ref().is_none_or(String::is_empty) {
            let message = "`grammar_lazy` needs `grammar`, which is missing";
            return Err(RequestError::invalid("grammar_lazy", message));
        }
        let trigger = |(index, keys): (usize, &TriggerKeys)| match (keys.kind, keys.token) {
            (0, Some(token)) => Ok(Trigger::Token(token)),
            (0, None) => {
                Err(wrong(format!("`grammar_triggers[{index}].token` is missing, expected a token's id")))
            }
            (1, _) => Ok(Trigger::Word(keys.value.clone())),
            (2, _) => Ok(Trigger::Pattern(keys.value.clone())),
            (3, _) => Ok(Trigger::WholePattern(keys.value.clone())),
            (kind, _) => Err(wrong(format!("`grammar_triggers[{index}].type` is {kind}, expected 0 to 3"))),
        };
        let triggers = self.grammar_triggers.iter().flatten().enumerate().map(trigger);
        let triggers = triggers.collect::<Result<Vec<_>>>()?;
        match triggers.is_empty() {
            true => Err(wrong("`grammar_triggers` is empty, expected at least one trigger".into())),
            false => Ok(Some(triggers.into())),
        }
    }
}

/// The grammar of a structural tag, given as an object or its JSON text.
///
/// # Errors
/// It does not have the form of vLLM and SGLang.
pub(in crate::api) fn structural_tag(tag: &Value) -> Result<Grammar> {
    let parsed = tag.as_str().map(|text| serde_json::from_str(text).unwrap_or_default());
    let grammar = Grammar::of_structural_tag(parsed.as_ref().unwrap_or(tag));
    grammar.map_err(|error| RequestError::invalid("structural_tag", error.to_string()))
}

/// A grammar in GBNF or Lark.
///
/// # Errors
/// Compiling it would take too much memory.
fn of_text(key: &str, text: String) -> Result<Grammar> {
    if !text.contains("::=") {
        text::check_lark(&text).map_err(|error| RequestError::invalid(key, format!("`{key}`: {error}")))?;
    }
    Ok(Grammar::of_text(text))
}

/// The grammar of vLLM's `structured_outputs`.
fn structured_outputs(outputs: &Value) -> Result<Option<Grammar>> {
    let wrong = |key: &str, found: &Value, expected: &str| {
        let path = format!("structured_outputs{key}");
        Err(RequestError::invalid(path.clone(), format!("`{path}` is {found}, expected {expected}")))
    };
    let Some(outputs) = outputs.as_object() else {
        return wrong(
            "",
            outputs,
            "an object with one of json, regex, choice, grammar, json_object, structural_tag",
        );
    };
    let mut grammars = Vec::new();
    for (key, value) in outputs.iter().filter(|(_, value)| !value.is_null()) {
        grammars.push(match (key.as_str(), value) {
            ("json", Value::Object(_) | Value::Bool(_)) => Grammar::JsonSchema(value.clone()),
            ("json", Value::String(text)) => match serde_json::from_str(text) {
                Ok(schema) => Grammar::JsonSchema(schema),
                Err(_) => return wrong(".json", value, "a JSON Schema"),
            },
            ("regex", Value::String(regex)) => Grammar::Regex(regex.clone()),
            ("grammar", Value::String(text)) => of_text("structured_outputs.grammar", text.clone())?,
            ("choice", Value::Array(list)) if list.iter().all(Value::is_string) => {
                Grammar::Choice(list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
            }
            ("json_object", Value::Bool(true)) => Grammar::AnyJson,
            ("json_object", Value::Bool(false)) => continue,
            ("structural_tag", tag) => structural_tag(tag)?,
            ("json" | "regex" | "grammar" | "choice" | "json_object", _) => {
                return wrong(&format!(".{key}"), value, "a value of the key's type");
            }
            (other, _) => return Err(RequestError::unsupported(format!("structured_outputs.{other}"))),
        });
    }
    if grammars.len() > 1 {
        return wrong("", &Value::Object(outputs.clone()), "only one key");
    }
    Ok(grammars.pop())
}
