//! Function constants: values set at the creation of a pipeline.

use super::{Kind, Refusal, Rewriter};
use crate::library::ConstantDeclaration;

/// Types of function constants and their sizes in bytes.
pub(crate) const TYPES: &[(&str, u32)] = &[
    ("bool", 1),
    ("char", 1),
    ("uchar", 1),
    ("short", 2),
    ("ushort", 2),
    ("half", 2),
    ("int", 4),
    ("uint", 4),
    ("int32_t", 4),
    ("uint32_t", 4),
    ("float", 4),
    ("long", 8),
    ("ulong", 8),
];

impl Rewriter<'_> {
    /// `constant TYPE NAME [[function_constant(INDEX)]];` at the word `constant`. Returns the next
    /// token to process, or `None` if this is another use of the word.
    pub(super) fn function_constant(&mut self, i: usize) -> Result<Option<usize>, Refusal> {
        let mut at = i + 1;
        while self.t.list.get(at).is_some_and(|t| t.kind == Kind::Word) || self.t.word(at) == "::" {
            at += 1;
        }
        if !self.attribute_at(at) || self.t.word(at + 2) != "function_constant" {
            return Ok(None);
        }
        let (attributes, next) = self.attributes(at)?;
        if attributes.len() != 1 || self.t.word(next) != ";" {
            return Err(self.refuse(at, "expected 'constant TYPE NAME [[function_constant(INDEX)]];'"));
        }
        let index = self.integer(attributes[0].arguments.clone())?;
        let name = self.t.word(at - 1).to_owned();
        let is_type = |k: &usize| !matches!(self.t.word(*k), "const" | "constexpr" | "static");
        let type_name: String = (i + 1..at - 1).filter(is_type).map(|k| self.t.word(k)).collect();
        let first = if i > 0 && self.t.word(i - 1) == "static" { i - 1 } else { i };
        let plain = type_name.trim_start_matches("metal::");
        let Some((_, size)) = TYPES.iter().find(|(t, _)| *t == plain) else {
            return Err(self.refuse(
                i,
                format!("function constant '{name}' of type '{type_name}': only scalars are accepted"),
            ));
        };
        if index > u32::from(u16::MAX) {
            return Err(self.refuse(at, format!("function constant '{name}' has index {index}, past 65535")));
        }
        if let Some(other) = self.constants.iter().find(|c| c.index == index as u16) {
            return Err(self.refuse(
                i,
                format!("function constants '{}' and '{name}' both have index {index}", other.name),
            ));
        }
        let text = format!(
            "static const {type_name} {name} = msl_constant{{{index}}}; \
             static const bool msl_defined_{name} = msl_constant_defined({index});"
        );
        self.replace(first, next + 1, &text);
        self.constants.push(ConstantDeclaration {
            index: index as u16,
            name,
            type_name: plain.to_owned(),
            size: *size,
        });
        Ok(Some(next + 1))
    }

    /// In strict mode, a table in constant memory is not `const`: Metal converts it to `constant T
    /// *`, while OpenCL's address space and `const` are two things.
    pub(super) fn constant_table(&mut self, i: usize) {
        if !self.strict || !self.open.is_empty() {
            return;
        }
        let is_part = |k: usize| self.t.list.get(k).is_some_and(|t| t.kind == Kind::Word);
        let (mut from, mut to) = (i, i + 1);
        while from > 0 && is_part(from - 1) {
            from -= 1;
        }
        while is_part(to) {
            to += 1;
        }
        if self.t.word(to) == "[" && !self.attribute_at(to) {
            for k in from..to {
                if matches!(self.t.word(k), "const" | "constexpr") {
                    self.replace(k, k + 1, "");
                }
            }
        }
    }

    /// `is_function_constant_defined(NAME)`.
    pub(super) fn constant_defined(&mut self, i: usize) -> Result<usize, Refusal> {
        let name = self.t.word(i + 2);
        let known = self.constants.iter().any(|c| c.name == name);
        if self.t.word(i + 1) != "(" || self.t.word(i + 3) != ")" || !known {
            let what =
                "is_function_constant_defined of something that is not a function constant declared above";
            return Err(self.refuse(i, what));
        }
        let text = format!("msl_defined_{name}");
        self.replace(i, i + 4, &text);
        Ok(i + 4)
    }
}
