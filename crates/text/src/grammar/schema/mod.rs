//! JSON Schemas as grammars.
//!
//! - [`node`] and `parse`: what each schema of a document says, its references followed, negations and conditions as choices.
//! - `compile`, `object`, `array`, `number`: sets of such schemas that hold together, as rules.
//! - `pattern`, `format`, `rx`: regular languages of strings.
//! - `rules`: how the rules are written for `llguidance`.
//!
//! What a grammar cannot hold an answer to is left out and named, so that the caller can say so; nothing is left out in silence.

mod array;
mod check;
mod compile;
mod decimal;
mod effort;
mod format;
mod negate;
mod node;
mod number;
mod object;
mod parse;
mod pattern;
mod reference;
mod rules;
mod rx;
mod style;

use std::time::Instant;

use serde_json::{Value, json};

use effort::{Effort, Failure, MAX_TIME};

use crate::Error;

/// How schemas are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchemaOptions {
    /// Objects that list `properties` and do not mention `additionalProperties` may have others, and arrays that list
    /// `prefixItems` more items, by the letter of JSON Schema. A schema's own `x-guidance` says it for itself by `open_objects`.
    pub open_objects: bool,
    /// Properties may come in any order, as in the calls of tools that a model writes by itself. Without it they come in the
    /// order of the schema, which is what clients of structured answers count on.
    pub any_order: bool,
}

/// A schema as a grammar in llguidance's dialect of Lark.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    lark: String,
    /// Keys of the schema that the grammar does not hold an answer to, with where they stand: `uniqueItems at
    /// #/properties/tags`.
    pub unenforced: Vec<String>,
}

impl Prepared {
    /// The whole grammar, with the rule `start`.
    pub fn grammar(&self) -> &str {
        &self.lark
    }

    /// The same as a part of a rule of another grammar.
    pub fn expression(&self) -> String {
        format!("%lark {{\n{}}}", self.lark)
    }
}

/// The grammar of a user's schema.
///
/// # Errors
/// The schema is not valid, allows no value, is too large, or asks to be followed only in part.
pub fn prepare_schema(schema: &Value, options: &SchemaOptions) -> crate::Result<Prepared> {
    let wrong = |what: String| Error::Grammar { what: format!("the schema: {what}") };
    let style = style::Style::of(schema).map_err(wrong)?;
    let options = SchemaOptions { open_objects: style.is_open.unwrap_or(options.open_objects), ..*options };
    let deadline = Instant::now() + MAX_TIME;
    let with = |effort: Effort| -> Result<compile::Compiled, Failure> {
        let nodes = parse::nodes(schema, options.open_objects, effort)?;
        compile::compile(nodes, &style, options, effort, deadline)
    };
    let compiled = match with(Effort::FULL) {
        Err(Failure::Large(_)) => with(Effort::LESS),
        compiled => compiled,
    };
    let compiled = compiled.map_err(|failure| match failure {
        Failure::Large(what) | Failure::Wrong(what) => wrong(what),
    })?;
    let unenforced = compiled.unenforced.iter().map(|(key, place)| format!("{key} at {place}")).collect();
    Ok(Prepared { lark: compiled.lark, unenforced })
}

/// The grammar of the arguments of a tool. One whose schema cannot be followed may have any object, which is reported, so that
/// the other tools of a request keep theirs.
///
/// # Errors
/// None but those of a fault of ours.
pub fn prepare_tool(schema: &Value, options: &SchemaOptions) -> crate::Result<Prepared> {
    // A tool without parameters has none, rather than any.
    let none = json!({ "type": "object", "properties": {} });
    let is_empty = schema.is_null() || schema.as_object().is_some_and(serde_json::Map::is_empty);
    let schema = if is_empty { &none } else { schema };
    match prepare_schema(schema, options) {
        Ok(prepared) => Ok(prepared),
        Err(error) => {
            let mut prepared = prepare_schema(&json!({ "type": "object" }), options)?;
            prepared.unenforced.push(match error {
                Error::Grammar { what } => what,
                other => other.to_string(),
            });
            Ok(prepared)
        }
    }
}

#[cfg(test)]
mod tests;
