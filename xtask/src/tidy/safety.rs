//! A SAFETY comment speaks of things that exist: each name in backquotes is found in the function
//! around it, or names a function, a constant, a type or a field of its crate.

use super::Finding;
use super::functions::rust_functions;
use super::lexer::{Kind, Token};
use super::tree::{File, Language, Tree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

pub fn check(tree: &Tree) -> Vec<Finding> {
    // Names that each crate declares.
    let mut declared: BTreeMap<Option<&Path>, BTreeSet<&str>> = BTreeMap::new();
    for file in tree.in_language(Language::Rust) {
        let of_crate = declared.entry(file.of_crate()).or_default();
        for pair in file.code().windows(2) {
            let declares = ["fn", "const", "static", "struct", "enum", "mod", "type", "trait", "macro_rules"];
            if declares.iter().any(|keyword| pair[0].is_word(keyword)) {
                of_crate.insert(pair[1].text);
            }
        }
    }
    let rust = tree.in_language(Language::Rust);
    rust.flat_map(|file| of_file(file, &declared[&file.of_crate()])).collect()
}

fn of_file(file: &File, declared: &BTreeSet<&str>) -> Vec<Finding> {
    let code = file.code();
    let functions = rust_functions(&code);
    let mut findings = Vec::new();
    for (line, comment) in safety_comments(&file.tokens()) {
        let around = functions
            .iter()
            .filter(|f| code[f.first].line <= line && line <= code[f.end - 1].line)
            .max_by_key(|function| function.first);
        // Outside of functions it is about an `unsafe impl`, or about a declaration after it.
        let Some(function) = around else { continue };
        let body: BTreeSet<&str> = code[function.first..function.end].iter().map(|t| t.text).collect();
        for name in quoted_names(&comment) {
            if !body.contains(name) && !declared.contains(name) {
                findings.push(file.finding(line, format!("no `{name}` in {}", function.name)));
            }
        }
    }
    findings
}

/// The SAFETY comments with their first lines; the lines of one comment are joined.
fn safety_comments(tokens: &[Token<'_>]) -> Vec<(usize, String)> {
    let mut comments: Vec<(usize, String)> = Vec::new();
    let mut last_line = None;
    for token in tokens.iter().filter(|token| token.kind == Kind::Comment) {
        let text = token.text.trim_start_matches(['/', '!', '*', ' ']);
        if text.starts_with("SAFETY:") {
            comments.push((token.line, text.to_owned()));
        } else if last_line == Some(token.line - 1)
            && let Some((_, comment)) = comments.last_mut()
        {
            comment.push(' ');
            comment.push_str(text);
        } else {
            last_line = None;
            continue;
        }
        last_line = Some(token.line);
    }
    comments
}

/// The first identifiers of texts in backquotes: `a` of `a.len()` and of `a[i]`.
fn quoted_names(comment: &str) -> impl Iterator<Item = &str> {
    comment.split('`').skip(1).step_by(2).filter_map(|quoted| {
        let end = quoted.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(quoted.len());
        let name = &quoted[..end];
        let is_path = quoted[end..].starts_with("::");
        let is_name = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_') && !is_path;
        let is_type =
            ["f32", "f64", "u8", "i8", "u16", "i16", "u32", "i32", "u64", "usize", "unsafe"].contains(&name);
        (is_name && !is_type).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::super::tree::file;
    use super::*;

    #[test]
    fn names_that_the_function_lacks_are_found() {
        let found = |comment: &str| {
            let text = format!(
                "fn g() {{}}\nfn f(w: &[u8]) {{\n    // SAFETY: {comment}\n    unsafe {{ g() }}\n}}\n"
            );
            let names: Vec<String> =
                check(&Tree { files: vec![file("a.rs", &text)] }).into_iter().map(|f| f.text).collect();
            names.join(",")
        };
        assert_eq!(found("`w` has room, as `g` checked, for `w.len()` `u8`."), "");
        assert_eq!(found("`w` has rows\n    // for `x`."), "no `x` in f");
    }
}
