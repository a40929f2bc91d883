//! Every kernel of a GPU device is named by its host code, or by a header that other kernels use.

use super::Finding;
use super::lexer::{Kind, Token, after_closing};
use super::tree::{File, Language, Tree};
use std::collections::BTreeSet;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let named = names_of_hosts(tree);
    let kernels = tree.in_language(Language::Cpp).filter(|file| !file.is_test());
    let findings = kernels.flat_map(|file| {
        let mut unnamed = entries(&file.code());
        unnamed.retain(|(name, _)| !is_launched(&named, file, name) && !is_used(tree, file, name));
        unnamed.into_iter().map(|(name, line)| file.finding(line, format!("no host code names {name}")))
    });
    findings.collect()
}

/// The words of our Rust code outside of comments.
fn names_of_hosts(tree: &Tree) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for file in tree.in_language(Language::Rust) {
        for token in file.code() {
            names.extend(token.text.split(|c: char| !c.is_alphanumeric() && c != '_'));
        }
    }
    names
}

/// The names and lines of functions that a host launches: `kernel void name(` of Metal and
/// `__global__ void name(` of CUDA.
fn entries<'a>(code: &[Token<'a>]) -> Vec<(&'a str, usize)> {
    let mut entries = Vec::new();
    for (at, token) in code.iter().enumerate() {
        let is_entry = token.is_word("kernel") || token.is_word("__global__");
        if !is_entry || code.get(at + 1).is_none_or(|next| next.kind != Kind::Word) {
            continue;
        }
        let mut at = at + 1;
        // Attributes with arguments, such as the bounds of a launch, stand before the name.
        while code.get(at).is_some_and(|token| token.kind == Kind::Word) {
            let name = code[at];
            at += 1;
            if code.get(at).is_some_and(|token| token.is("(")) {
                if !name.text.starts_with("__") {
                    entries.push((name.text, name.line));
                    break;
                }
                at = after_closing(code, at);
            }
        }
    }
    entries
}

/// True if host code names the kernel, or what follows the stem of its file in its name.
fn is_launched(named: &BTreeSet<&str>, file: &File, name: &str) -> bool {
    let stem = file.path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let rest = name.strip_prefix(stem).filter(|rest| !rest.is_empty());
    named.contains(name) || rest.is_some_and(|rest| named.contains(rest))
}

/// True if the kernel is a header's template or macro, and another kernel file names it.
fn is_used(tree: &Tree, file: &File, name: &str) -> bool {
    let is_macro = name.chars().all(|c| c.is_uppercase() || c == '_');
    let is_header = file.path.extension().is_some_and(|extension| extension == "h" || extension == "cuh");
    let mut others = tree.in_language(Language::Cpp).filter(|other| other.path != file.path);
    is_macro || is_header && others.any(|other| other.text.contains(name))
}

#[cfg(test)]
mod tests {
    use super::super::tree::file;
    use super::*;

    #[test]
    fn kernels_that_no_host_names_are_found() {
        let metal = "kernel void used(int x) {}\nkernel void unused(int x) {}\nkernel void a_two() {}";
        let files = vec![
            file("crates/x/src/kernels/a.metal", metal),
            file("crates/x/src/b.rs", "launch(\"used\", \"_two\")"),
        ];
        let names: Vec<String> = check(&Tree { files }).into_iter().map(|finding| finding.text).collect();
        assert_eq!(names, ["no host code names unused"]);
    }
}
