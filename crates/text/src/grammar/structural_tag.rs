//! Structural tags: free text in which a schema holds after a trigger, as in vLLM and SGLang.

use std::fmt::Write;

use serde_json::Value;

use super::{Grammar, SchemaOptions, prepare_schema};
use crate::{Error, Result};

impl Grammar {
    /// Reads `{"structures": [{"begin", "schema", "end"}], "triggers": [text]}`.
    ///
    /// # Errors
    /// A part is missing or wrong, or there is more than one trigger.
    pub fn of_structural_tag(tag: &Value) -> Result<Grammar> {
        let wrong = |what: String| Error::Grammar { what: format!("structural_tag: {what}") };
        let structures = tag["structures"].as_array().filter(|list| !list.is_empty());
        let structures = structures
            .ok_or_else(|| wrong(format!("`structures` is {}, expected at least one", tag["structures"])))?;
        let trigger = match tag["triggers"].as_array().map(Vec::as_slice) {
            Some([Value::String(trigger)]) if !trigger.is_empty() => trigger,
            _ => {
                return Err(wrong(format!("`triggers` is {}, expected a list of one text", tag["triggers"])));
            }
        };
        let mut rules = String::new();
        let mut names = Vec::new();
        for (index, structure) in structures.iter().enumerate() {
            let text = |key: &str| {
                let found = &structure[key];
                found
                    .as_str()
                    .ok_or_else(|| wrong(format!("`structures[{index}].{key}` is {found}, expected a text")))
            };
            let (begin, end) = (text("begin")?, text("end")?);
            let rest = begin.strip_prefix(trigger.as_str()).ok_or_else(|| {
                let expected = format!("expected it to begin with the trigger {trigger:?}");
                wrong(format!("`structures[{index}].begin` is {begin:?}, {expected}"))
            })?;
            let schema = &structure["schema"];
            if !schema.is_object() {
                return Err(wrong(format!(
                    "`structures[{index}].schema` is {schema}, expected a JSON Schema"
                )));
            }
            let prepared = prepare_schema(schema, &SchemaOptions::default())?;
            if let Some(key) = prepared.unenforced.first() {
                // The caller of a structural tag gets no warnings, so this is an error.
                return Err(wrong(format!("`structures[{index}].schema` cannot be enforced: {key}")));
            }
            let quoted = |text: &str| match text {
                "" => String::new(),
                text => Value::from(text).to_string(),
            };
            let schema = prepared.expression();
            // Writing to a String cannot fail.
            let _ = writeln!(rules, "s{index}: {} {schema} {}", quoted(rest), quoted(end));
            names.push(format!("s{index}"));
        }
        let escaped: String = trigger
            .chars()
            .flat_map(|c| ".*+?()[]{}|^$/\\".contains(c).then_some('\\').into_iter().chain([c]))
            .collect();
        let trigger = Value::from(trigger.as_str());
        Ok(Grammar::Lark(format!(
            "start: part* FREE\npart: until ({})\nuntil[suffix={trigger}]: /(?s:.*)/\n\
             FREE: /(?s:.*)/ & ~/(?s:.*){escaped}(?s:.*)/\n{rules}",
            names.join(" | ")
        )))
    }
}
