//! Limits of a grammar's cost, checked before it is compiled.
//!
//! `llguidance` limits the number of its steps between two checks of its budget, but not the work
//! of one step. The derivative of an intersection has as many branches as the product of its parts'
//! branches. Thirty patterns of a few bytes each have 2^30 branches, and need more memory than any
//! machine has. So intersections are limited here by that product, estimated from the patterns'
//! texts.

use regex_syntax::hir::{Hir, HirKind};
use serde_json::Value;

use crate::{Error, Result};

/// Largest grammar, in bytes.
pub const MAX_GRAMMAR: usize = 1 << 20;

/// Longest regular expression, in bytes.
pub const MAX_REGEX: usize = 64 << 10;

/// Maximum number of texts to choose from.
pub const MAX_CHOICES: usize = 4096;

/// Maximum number of nested schemas.
pub const MAX_SCHEMA_DEPTH: usize = 100;

/// Maximum number of branches of all intersections of patterns in a schema or grammar. A branch
/// needs some hundred bytes.
pub const MAX_BRANCHES: f64 = 500_000.0;

/// Maximum number of parts of a schema that are checked. A part counts once for each reference to
/// it.
const MAX_LOOKED_AT: usize = 100_000;

/// Estimated places of a format's regular expression.
const PLACES_OF_FORMAT: f64 = 40.0;

/// Refuses a schema if its intersections of patterns would need too much memory. `allOf` makes
/// intersections, and so do references beside other keys.
///
/// # Errors
/// It is too large, too deep, or has too many patterns in an intersection.
pub fn check_schema(schema: &Value) -> Result<()> {
    let wrong = |what: String| Err(Error::Grammar { what });
    if depth(schema, MAX_SCHEMA_DEPTH + 1) > MAX_SCHEMA_DEPTH {
        return wrong(format!("the schema is nested more than {MAX_SCHEMA_DEPTH} levels deep"));
    }
    let mut look = Look { root: schema, n_left: MAX_LOOKED_AT, branches: 0.0 };
    look.all(schema);
    if look.n_left == 0 {
        return wrong(format!("its references are followed to more than {MAX_LOOKED_AT} places"));
    }
    match look.branches {
        n if n > MAX_BRANCHES => wrong(format!(
            "patterns that must hold at once (`allOf`, `$ref` beside other keys) have about {n:.1e} combinations, expected at most \
             {MAX_BRANCHES:.1e}; expected fewer or shorter patterns in one `allOf`"
        )),
        _ => Ok(()),
    }
}

/// Refuses an untrusted Lark grammar if its intersections (`&`) or schemas would need too much
/// memory.
///
/// # Errors
/// As [`check_schema`].
pub fn check_lark(text: &str) -> Result<()> {
    for (at, mark) in text.match_indices("%json") {
        let rest = text.get(at + mark.len()..).unwrap_or_default();
        if let Some(Ok(schema)) = serde_json::Deserializer::from_str(rest).into_iter::<Value>().next() {
            check_schema(&schema)?;
        }
    }
    let n_and = text.matches('&').count();
    // A bound of each part: the whole text with its counted repetitions expanded.
    let numbers = text.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse::<f64>().ok());
    let places = text.len() as f64 + numbers.sum::<f64>();
    if n_and > 0 && places.powi(n_and as i32 + 1) > MAX_BRANCHES * 100.0 {
        let what = format!(
            "it has {n_and} intersections (`&`) in {} bytes; expected fewer, or a shorter grammar",
            text.len()
        );
        return Err(Error::Grammar { what });
    }
    Ok(())
}

/// Maximum work of regular expressions: the sum of each one's bytes times its repetitions (`?`,
/// `*`, `+`, `{n}`). With many repetitions in a row, each has about as many places to continue.
const MAX_WORK: usize = 16 << 20;

/// Refuses a regular expression that would take long to compile.
///
/// # Errors
/// It would take long.
pub(super) fn check_regex(text: &str) -> Result<()> {
    check_work(work_of(text))
}

/// Refuses a Lark grammar whose regular expressions, including its terminals, would take long to
/// compile.
///
/// # Errors
/// They would take long.
pub(super) fn check_terminals(text: &str) -> Result<()> {
    check_work(terminals(text).into_iter().map(|(length, n)| length.saturating_mul(n)).sum())
}

fn check_work(work: usize) -> Result<()> {
    match work > MAX_WORK {
        true => Err(Error::Grammar {
            what: format!(
                "its expressions would take too long to compile: their bytes times their repetitions (`?`, `*`, `+`, `{{n}}`) are \
                 {work}, expected at most {MAX_WORK}"
            ),
        }),
        false => Ok(()),
    }
}

fn work_of(expression: &str) -> usize {
    expression.len().saturating_mul(n_repetitions(expression))
}

fn n_repetitions(expression: &str) -> usize {
    expression.bytes().filter(|byte| b"?*+{".contains(byte)).count()
}

/// Bytes and repetitions of the terminals' definitions, whose names are in capitals, and of the
/// regular expressions in other rules.
fn terminals(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut is_terminal = false;
    for line in text.split('\n') {
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let name = line.trim_start().split(|c| !is_name(c)).next().unwrap_or_default();
        if !name.is_empty() {
            // A line without a definition continues the previous one.
            is_terminal = name.trim_start_matches('_').starts_with(char::is_uppercase);
            found.push((0, 0));
        }
        match (is_terminal, found.last_mut()) {
            (true, Some((length, n))) => {
                *length += line.len();
                *n += n_repetitions(line);
            }
            (_, _) => {
                found.extend(regexes(line).into_iter().map(|regex| (regex.len(), n_repetitions(regex))))
            }
        }
    }
    found
}

/// Texts between slashes, outside of quotes.
fn regexes(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    // Start of the open text, and the character that ends it.
    let mut open: Option<(usize, u8)> = None;
    let mut is_escaped = false;
    for (at, byte) in line.bytes().enumerate() {
        match (open, byte) {
            (_, _) if is_escaped => is_escaped = false,
            (Some(_), b'\\') => is_escaped = true,
            (Some((from, end)), byte) if byte == end => {
                found.extend((end == b'/').then(|| &line[from + 1..at]));
                open = None;
            }
            (None, b'"' | b'/') => open = Some((at, byte)),
            (_, _) => {}
        }
    }
    // The text may continue on the next line.
    found.extend(open.map(|(from, _)| &line[from + 1..]));
    found
}

/// Depth of nested lists and objects, counted up to `most`.
fn depth(value: &Value, most: usize) -> usize {
    if most == 0 {
        return 0;
    }
    let inner = |value: &Value| depth(value, most - 1);
    match value {
        Value::Array(values) => 1 + values.iter().map(inner).max().unwrap_or(0),
        Value::Object(values) => 1 + values.values().map(inner).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Traversal of a schema.
struct Look<'a> {
    root: &'a Value,
    /// Number of parts that may still be visited.
    n_left: usize,
    /// Branches of all intersections so far.
    branches: f64,
}

impl<'a> Look<'a> {
    /// Adds the intersections of `schema` and of everything in it.
    fn all(&mut self, schema: &'a Value) {
        match schema {
            Value::Object(keys) => {
                if keys.contains_key("allOf") || keys.contains_key("$ref") {
                    self.intersect(&[schema], 0);
                }
                keys.values().for_each(|value| self.all(value));
            }
            Value::Array(values) => values.iter().for_each(|value| self.all(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// Adds the branches of schemas that hold at the same place, and of their properties and items.
    fn intersect(&mut self, schemas: &[&'a Value], depth: usize) {
        if depth > MAX_SCHEMA_DEPTH || self.n_left == 0 {
            return;
        }
        let mut parts = Vec::new();
        schemas.iter().for_each(|schema| self.parts(schema, 0, &mut parts));
        let branches: f64 = schemas.iter().map(|schema| self.branches(schema, 0).0).product();
        if parts.len() > 1 {
            self.branches += branches - 1.0;
        }
        // Schemas of the same property in several parts are intersected too.
        let mut properties: Vec<(&str, Vec<&'a Value>)> = Vec::new();
        let mut add = |name: &'a str, schema: &'a Value| match properties.iter_mut().find(|(n, _)| *n == name)
        {
            Some((_, found)) => found.push(schema),
            None => properties.push((name, vec![schema])),
        };
        for part in parts {
            let Value::Object(keys) = part else { continue };
            for (name, schema) in keys.get("properties").and_then(Value::as_object).into_iter().flatten() {
                add(name, schema);
            }
            for name in ["items", "additionalProperties", "contains", "propertyNames"] {
                if let Some(schema) = keys.get(name) {
                    // A key that no property has, since property keys get a letter before them.
                    add(name, schema);
                }
            }
        }
        for (_, schemas) in properties.into_iter().filter(|(_, schemas)| schemas.len() > 1) {
            self.intersect(&schemas, depth + 1);
        }
    }

    /// Schemas that hold together with `schema`, and its alternatives.
    fn parts(&mut self, schema: &'a Value, depth: usize, parts: &mut Vec<&'a Value>) {
        if self.n_left == 0 || depth > MAX_SCHEMA_DEPTH {
            return;
        }
        self.n_left -= 1;
        parts.push(schema);
        if let Some(target) = self.target(schema) {
            self.parts(target, depth + 1, parts);
        }
        for name in ["allOf", "anyOf", "oneOf"] {
            for part in schema.get(name).and_then(Value::as_array).into_iter().flatten() {
                self.parts(part, depth + 1, parts);
            }
        }
    }

    /// Number of branches of the strings that a schema allows, at least 1, and true if it has
    /// patterns.
    fn branches(&mut self, schema: &'a Value, depth: usize) -> (f64, bool) {
        if self.n_left == 0 || depth > MAX_SCHEMA_DEPTH {
            return (1.0, false);
        }
        self.n_left -= 1;
        let mut all = (1.0, false);
        let mut and = |(branches, has): (f64, bool)| {
            if has {
                all = (all.0 * f64::max(branches, 1.0), true);
            }
        };
        if let Some(pattern) = schema.get("pattern").and_then(Value::as_str) {
            and((places_of(pattern), true));
        }
        if schema.get("format").is_some_and(Value::is_string) {
            and((PLACES_OF_FORMAT, true));
        }
        if let Some(target) = self.target(schema) {
            and(self.branches(target, depth + 1));
        }
        for part in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            and(self.branches(part, depth + 1));
        }
        for name in ["anyOf", "oneOf"] {
            let mut any = (0.0, false);
            for part in schema.get(name).and_then(Value::as_array).into_iter().flatten() {
                let (branches, has) = self.branches(part, depth + 1);
                any = (any.0 + branches, any.1 || has);
            }
            and(any);
        }
        all
    }

    /// The target of a schema's reference within the document.
    fn target(&self, schema: &'a Value) -> Option<&'a Value> {
        let pointer = schema.get("$ref")?.as_str()?.strip_prefix('#')?;
        self.root.pointer(pointer)
    }
}

/// Places of a pattern's text with counted repetitions expanded, an upper bound of a derivative's
/// branches.
fn places_of(pattern: &str) -> f64 {
    match regex_syntax::Parser::new().parse(pattern) {
        Ok(parsed) => places(&parsed).max(1.0),
        // A pattern in another dialect, with lookahead for example, or one that is refused when
        // compiled.
        Err(_) => pattern.len() as f64,
    }
}

fn places(parsed: &Hir) -> f64 {
    match parsed.kind() {
        HirKind::Empty | HirKind::Look(_) => 0.0,
        HirKind::Literal(literal) => literal.0.len() as f64,
        HirKind::Class(_) => 1.0,
        HirKind::Capture(capture) => places(&capture.sub),
        HirKind::Repetition(repetition) => {
            let n = repetition.max.unwrap_or(repetition.min).max(1);
            places(&repetition.sub) * f64::from(n)
        }
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().map(places).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(schema: &Value) -> Option<String> {
        check_schema(schema).err().map(|error| error.to_string())
    }

    #[test]
    fn intersections_are_bounded_by_the_product_of_their_parts() {
        let all_of = |patterns: Vec<String>| {
            let parts: Vec<Value> =
                patterns.into_iter().map(|pattern| json!({ "pattern": pattern })).collect();
            json!({ "type": "string", "allOf": parts })
        };
        // Patterns of password rules.
        let rules = ["[a-z]", "[A-Z]", "[0-9]", "^[^ ]*$"].map(str::to_owned).to_vec();
        assert_eq!(refused(&all_of(rules)), None);
        for n in [20, 300] {
            let error = refused(&all_of((0..n).map(|i| format!("^.*x.{{0,{i}}}$")).collect())).unwrap();
            assert!(error.contains("`allOf`"), "{error}");
        }
        // References, a property, an alternative and items are intersected too.
        let defs: Vec<Value> = (1..20).map(|i| json!({ "pattern": format!("^.*x.{{0,{i}}}$") })).collect();
        let refs: Vec<Value> = (0..19).map(|i| json!({ "$ref": format!("#/$defs/{i}") })).collect();
        let of = |wrap: fn(&Value) -> Value| json!({ "$defs": defs, "allOf": refs.iter().map(wrap).collect::<Vec<_>>() });
        assert!(refused(&of(Value::clone)).is_some());
        assert!(refused(&of(|part| json!({ "properties": { "a": part } }))).is_some());
        assert!(refused(&of(|part| json!({ "items": part }))).is_some());
        assert!(refused(&of(|part| json!({ "anyOf": [part, { "type": "null" }] }))).is_some());
        // Different properties are not intersected.
        let apart: Vec<Value> = (0..200)
            .map(|i| json!({ "properties": { format!("p{i}"): { "pattern": "^[a-z]{1,64}$" } } }))
            .collect();
        assert_eq!(refused(&json!({ "allOf": apart })), None);
        // Alternatives are not intersected.
        let any: Vec<Value> = (0..200).map(|i| json!({ "pattern": format!("^.*x.{{0,{i}}}$") })).collect();
        assert_eq!(refused(&json!({ "anyOf": any })), None);
    }

    /// The worst accepted schema is compiled or refused, with little memory and time.
    #[test]
    fn accepted_schemas_need_bounded_memory() {
        let words: Vec<Vec<u8>> = (b' '..=b'~').map(|byte| vec![byte]).collect();
        let trie = llguidance::toktrie::TokTrie::from(
            &llguidance::toktrie::TokRxInfo::new(words.len() as u32, 0),
            &words,
        );
        let env: std::sync::Arc<llguidance::toktrie::ApproximateTokEnv> =
            std::sync::Arc::new(llguidance::toktrie::ApproximateTokEnv::new(trie));
        let env: llguidance::toktrie::TokEnv = env;
        let mut factory = llguidance::ParserFactory::new_simple(&env).unwrap();
        factory.quiet();
        let begun = std::time::Instant::now();
        for (n, of) in [(3, "^.*x.{0,70}$"), (2, "^.*x.{0,600}$"), (17, "^.*x$"), (11, "^.*[a-z].*$")] {
            let parts: Vec<Value> = (0..n)
                .map(|i| json!({ "pattern": of.replace('x', &char::from(b'a' + i).to_string()) }))
                .collect();
            let schema = json!({ "type": "string", "allOf": parts });
            assert_eq!(refused(&schema), None, "{n} {of}");
            let top = llguidance::api::TopLevelGrammar::from_json_schema(schema);
            // Either result is fine.
            drop(factory.create_parser(top));
        }
        assert!(begun.elapsed() < std::time::Duration::from_secs(120), "{:?}", begun.elapsed());
    }

    #[test]
    fn references_that_double_are_refused() {
        let mut defs = serde_json::Map::new();
        for n in 0..60 {
            let next = json!({ "$ref": format!("#/$defs/d{}", n + 1) });
            defs.insert(format!("d{n}"), json!({ "allOf": [next, next] }));
        }
        defs.insert("d60".into(), json!({ "pattern": "a" }));
        let begun = std::time::Instant::now();
        assert!(refused(&json!({ "$ref": "#/$defs/d0", "$defs": defs })).is_some());
        // Cyclic references end too.
        let circle = json!({ "$defs": { "a": { "allOf": [{ "$ref": "#/$defs/a" }] } }, "$ref": "#/$defs/a" });
        assert_eq!(refused(&circle), None);
        let tree = json!({ "properties": { "next": { "$ref": "#" }, "name": { "pattern": "^a+$" } } });
        assert_eq!(refused(&tree), None);
        assert!(begun.elapsed() < std::time::Duration::from_secs(20));
    }

    #[test]
    fn expressions_are_bounded_by_their_bytes_times_their_repetitions() {
        assert_eq!(regexes(r#""a/b" /c\/d/ "\"/" /e/ "f"#), [r"c\/d", "e", "f"]);
        let of = "start: A /b+c*/\nA: \"a\"\n | \"b\"?\n_B: A";
        assert_eq!(terminals(of), [(0, 0), (4, 2), (13, 1), (5, 0)]);
        let optional = "a?".repeat(3000);
        let half = &optional[..4000];
        assert!(check_regex(&optional).is_err() && check_regex(half).is_ok());
        for long in [
            format!("start: /{optional}/"),
            format!("start: A\nA: /{optional}/"),
            format!("start: A\nA: /{half}/\n | /{half}/"),
            format!("start: \"a/b\" /{optional}/"),
            format!("start: {}", format!("/{half}/ ").repeat(20)),
            format!("start: A\nA: {}", "\"a\"? ".repeat(3000)),
        ] {
            assert!(check_terminals(&long).is_err(), "{long:.40}");
        }
        // Long texts and lists of words are within the limits.
        let words: Vec<String> = (0..9000).map(|n| format!("\"word{n}\"")).collect();
        let enumeration = "/b?".repeat(50_000);
        let texts = format!("start: W | %json {{ \"enum\": [\"{enumeration}\"] }}\nW: {}", words.join(" | "));
        check_terminals(&texts).unwrap();
        check_regex(&"a|b|".repeat(16_000)).unwrap();
    }

    #[test]
    fn intersections_of_lark_are_bounded() {
        assert!(check_lark("start: A\nA: /[a-z]+/ & ~/.*end/").is_ok());
        let many: Vec<String> = (0..20).map(|i| format!("/.*x.{{0,{i}}}/")).collect();
        assert!(check_lark(&format!("start: A\nA: {}", many.join(" & "))).is_err());
        let patterns: Vec<Value> =
            (0..20).map(|i| json!({ "pattern": format!("^.*x.{{0,{i}}}$") })).collect();
        assert!(check_lark(&format!("start: %json {}", json!({ "allOf": patterns }))).is_err());
        let deep = format!("{}1{}", "[".repeat(101), "]".repeat(101));
        assert!(refused(&serde_json::from_str(&deep).unwrap()).unwrap().contains("100 levels"));
    }
}
