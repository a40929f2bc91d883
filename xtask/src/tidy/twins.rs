//! A crate has one type of a name, so that a name in a signature needs no search.
//!
//! Variants of one type for several targets are one type: those behind `#[cfg]`, and those in files
//! whose module is. Associated types, types inside functions, and tests have scopes of their own.

use super::Finding;
use super::lexer::{Kind, Token, after_closing};
use super::tree::{File, Language, Tree};
use std::collections::BTreeMap;
use std::path::Path;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let for_some_targets = modules_behind_cfg(tree);
    let mut places: BTreeMap<(&Path, String), Vec<(&File, usize)>> = BTreeMap::new();
    for file in tree.in_language(Language::Rust).filter(|file| !file.is_test()) {
        let Some(of_crate) = file.of_crate() else { continue };
        let stem = file.path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if for_some_targets.contains(&(of_crate, stem.to_owned())) {
            continue;
        }
        for (name, line) in types(&file.code()) {
            places.entry((of_crate, name.to_owned())).or_default().push((file, line));
        }
    }
    let twins = places.into_iter().filter(|(_, places)| places.len() > 1);
    let findings = twins.flat_map(|((_, name), places)| {
        let (first, line) = places[0];
        let first = format!("{name} is also in {}:{line}", first.path.display());
        places[1..].iter().map(move |(file, line)| file.finding(*line, first.clone())).collect::<Vec<_>>()
    });
    findings.collect()
}

/// The crate and name of each `mod name;` that has an attribute `cfg`.
fn modules_behind_cfg(tree: &Tree) -> Vec<(&Path, String)> {
    let mut modules = Vec::new();
    for file in tree.in_language(Language::Rust) {
        let (Some(of_crate), code) = (file.of_crate(), file.code()) else { continue };
        for at in 0..code.len().saturating_sub(2) {
            if code[at].is_word("mod") && code[at + 2].is(";") && is_behind_cfg(&code, at) {
                modules.push((of_crate, code[at + 1].text.to_owned()));
            }
        }
    }
    modules
}

/// True if the item whose keyword is at `at` has an attribute `cfg`.
fn is_behind_cfg(code: &[Token<'_>], at: usize) -> bool {
    let mut end = at;
    // Back over the visibility and the attributes.
    while end > 0 && !["}", ";", "{"].iter().any(|mark| code[end - 1].is(mark)) {
        end -= 1;
    }
    code[end..at].iter().any(|token| token.is_word("cfg"))
}

/// The structs, enums, traits and unions of a file outside of functions, impls and tests.
fn types<'a>(code: &[Token<'a>]) -> Vec<(&'a str, usize)> {
    let (mut types, mut at) = (Vec::new(), 0);
    while at + 1 < code.len() {
        let token = code[at];
        let opens_scope = ["fn", "impl", "macro_rules"].iter().any(|keyword| token.is_word(keyword));
        let is_test = token.is_word("mod") && is_behind_cfg(code, at);
        let is_type = ["struct", "enum", "trait", "union"].iter().any(|keyword| token.is_word(keyword));
        if is_type && code[at + 1].kind == Kind::Word && !is_behind_cfg(code, at) {
            types.push((code[at + 1].text, code[at + 1].line));
        }
        if opens_scope || is_test || is_type {
            // Its body, or its end where it has none.
            while at < code.len() && !code[at].is("{") && !code[at].is(";") {
                at = if code[at].is("(") || code[at].is("[") { after_closing(code, at) } else { at + 1 };
            }
            at = if code.get(at).is_some_and(|token| token.is("{")) {
                after_closing(code, at)
            } else {
                at + 1
            };
        } else {
            at += 1;
        }
    }
    types
}

#[cfg(test)]
mod tests {
    use super::super::tree::file;
    use super::*;

    #[test]
    fn types_of_the_same_name_are_found_within_a_crate() {
        let found = |a: &str, b: &str| {
            let files = vec![file("crates/x/src/a.rs", a), file("crates/x/src/b.rs", b)];
            check(&Tree { files }).len()
        };
        assert_eq!(found("pub struct A(u8);", "enum A { B }"), 1);
        assert_eq!(found("struct A;", "#[cfg(unix)] struct A;"), 0);
        assert_eq!(found("struct A;", "#[cfg(test)] mod tests { struct A; } fn f() { struct A; }"), 0);
        assert_eq!(found("struct A; #[cfg(unix)] mod b;", "struct A;"), 0);
        assert_eq!(found("trait T { type A; } struct A;", "impl T for u8 { type A = u8; }"), 0);
    }
}
