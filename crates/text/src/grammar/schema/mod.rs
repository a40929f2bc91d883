//! Compilation of JSON Schemas to grammars.
//!
//! - [`node`] and `parse`: the restrictions of each schema of a document, with references resolved,
//!   and negations and conditions as choices.
//! - `compile`, `object`, `array`, `number`: sets of schemas that hold together, as rules.
//! - `pattern`, `format`, `rx`: regular languages of strings.
//! - `rules`: writing rules for `llguidance`.
//!
//! A key that a grammar cannot enforce is dropped and reported, so that the caller can tell the
//! client.

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

/// Options for reading schemas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchemaOptions {
    /// Allows further properties of objects that list `properties` without `additionalProperties`,
    /// and further items of arrays with `prefixItems`, as JSON Schema defines it. A schema may set
    /// this itself with `open_objects` in `x-guidance`.
    pub open_objects: bool,
    /// Allows properties in any order, as models write them in tool calls. Otherwise they follow
    /// the order of the schema, on which clients of structured outputs rely.
    pub any_order: bool,
}

/// A schema as a grammar in llguidance's dialect of Lark.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    lark: String,
    /// Keys of the schema that the grammar does not enforce, with their paths: `uniqueItems at
    /// #/properties/tags`.
    pub unenforced: Vec<String>,
}

impl Prepared {
    /// The whole grammar, with the rule `start`.
    pub fn grammar(&self) -> &str {
        &self.lark
    }

    /// The grammar as an expression within a rule of another grammar.
    pub fn expression(&self) -> String {
        format!("%lark {{\n{}}}", self.lark)
    }
}

/// Compiles a user's schema.
///
/// # Errors
/// The schema is not valid, allows no value, is too large, or weakens its own enforcement.
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

/// Compiles the schema of a tool's arguments. A schema that cannot be enforced allows any object
/// and is reported, so that the other tools of a request stay enforced.
///
/// # Errors
/// Only for a fault of this crate.
pub fn prepare_tool(schema: &Value, options: &SchemaOptions) -> crate::Result<Prepared> {
    // A tool without parameters accepts none, instead of any.
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
