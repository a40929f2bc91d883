//! The table of a library's functions and constants, stored as text next to the library in the
//! cache.

use crate::library::{ConstantDeclaration, Function, Parameter, ParameterKind};
use crate::rewrite;

/// Functions and constants as text, for the cache: one item per line, fields separated by tabs,
/// types last.
pub(crate) fn describe(functions: &[Function], constants: &[ConstantDeclaration]) -> String {
    let mut text = String::new();
    for c in constants {
        text.push_str(&format!("constant\t{}\t{}\t{}\t{}\n", c.index, c.size, c.name, c.type_name));
    }
    for f in functions {
        let needed: Vec<String> = f.constants.iter().map(u16::to_string).collect();
        text.push_str(&format!(
            "function\t{}\t{}\t{}\n",
            f.max_threads.unwrap_or(0),
            needed.join(","),
            f.name
        ));
        for p in &f.parameters {
            let (kind, at) = match p.kind {
                ParameterKind::Buffer(i) => ("buffer", i.to_string()),
                ParameterKind::Threadgroup(i) => ("threadgroup", i.to_string()),
                ParameterKind::Position(name) => ("position", name.to_owned()),
            };
            let condition = p.condition.as_deref().unwrap_or("");
            text.push_str(&format!(
                "{kind}\t{at}\t{}\t{}\t{condition}\t{}\n",
                u8::from(p.writable),
                p.name,
                p.type_name
            ));
        }
    }
    text
}

/// The inverse of [`describe`]. The file was written by this version of the crate, so unknown lines
/// do not occur and are skipped.
pub(crate) fn parse(text: &str) -> (Vec<Function>, Vec<ConstantDeclaration>) {
    let (mut functions, mut constants): (Vec<Function>, Vec<ConstantDeclaration>) = Default::default();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        match fields[..] {
            ["constant", index, size, name, type_name] => constants.push(ConstantDeclaration {
                index: index.parse().unwrap_or_default(),
                size: size.parse().unwrap_or_default(),
                name: name.to_owned(),
                type_name: type_name.to_owned(),
            }),
            ["function", max, needed, name] => functions.push(Function {
                name: name.to_owned(),
                parameters: Vec::new(),
                max_threads: max.parse().ok().filter(|n| *n > 0),
                constants: needed.split(',').filter_map(|n| n.parse().ok()).collect(),
            }),
            [kind, at, writable, name, condition, type_name] => {
                let index = at.parse().unwrap_or_default();
                let kind = match kind {
                    "buffer" => ParameterKind::Buffer(index),
                    "threadgroup" => ParameterKind::Threadgroup(index),
                    _ => ParameterKind::Position(rewrite::position(at).unwrap_or_default()),
                };
                if let Some(f) = functions.last_mut() {
                    f.parameters.push(Parameter {
                        name: name.to_owned(),
                        type_name: type_name.to_owned(),
                        kind,
                        writable: writable == "1",
                        condition: (!condition.is_empty()).then(|| condition.to_owned()),
                    });
                }
            }
            _ => {}
        }
    }
    (functions, constants)
}
