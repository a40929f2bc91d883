//! Functions have at most 100 lines, in Rust, C++ and kernels.
//!
//! One `match` over all Ops may be longer: its arms are a table. A function counts as one if at
//! least [`TABLE`] of its arms begin with an Op. A kernel may be longer if its first comment gives
//! the registers that a cut costs, since compilers allocate registers by function.

use super::Finding;
use super::lexer::{Kind, Token, after_closing};
use super::tree::{File, Language, Tree};

const LINES: usize = 100;
const TABLE: usize = 20;

pub fn check(tree: &Tree) -> Vec<Finding> {
    tree.files.iter().flat_map(of_file).collect()
}

fn of_file(file: &File) -> Vec<Finding> {
    let code = file.code();
    let functions = match file.language {
        Language::Rust => rust_functions(&code),
        Language::Cpp => cpp_functions(&code),
        Language::Hash | Language::Markdown => Vec::new(),
    };
    let too_long = functions.into_iter().filter(|function| function.n_lines(&code) > LINES);
    let lines: Vec<&str> = file.text.lines().collect();
    let is_allowed = |function: &Function<'_>| {
        let (first, last) = (code[function.first].line, code[function.end - 1].line);
        function.is_table_of_ops(&code)
            || (file.language == Language::Cpp && costs_registers(&lines[first..last]))
    };
    let findings = too_long.filter(|function| !is_allowed(function)).map(|function| {
        let n = function.n_lines(&code);
        file.finding(code[function.first].line, format!("{} has {n} lines", function.name))
    });
    findings.collect()
}

/// True if the body begins with a comment on the registers that a cut costs, with their number.
fn costs_registers(body: &[&str]) -> bool {
    let comment: String = body.iter().map_while(|line| line.trim_start().strip_prefix("//")).collect();
    comment.starts_with(" One function: ")
        && comment.contains("registers")
        && comment.contains(|c: char| c.is_ascii_digit())
}

/// A function: its name, and the range of its tokens from its first one to its last bracket.
pub struct Function<'a> {
    pub name: &'a str,
    pub first: usize,
    pub end: usize,
}

impl Function<'_> {
    fn n_lines(&self, code: &[Token<'_>]) -> usize {
        code[self.end - 1].line - code[self.first].line + 1
    }

    fn is_table_of_ops(&self, code: &[Token<'_>]) -> bool {
        let body = &code[self.first..self.end];
        let is_arm =
            |at: &usize| body[*at].is_word("Op") && (*at == 0 || body[*at - 1].line < body[*at].line);
        let after_bar = |at: &usize| body[*at].is_word("Op") && *at > 0 && body[*at - 1].is("|");
        (0..body.len()).filter(|at| is_arm(at) || after_bar(at)).count() >= TABLE
    }
}

/// The functions with bodies, nested ones included.
pub fn rust_functions<'a>(code: &[Token<'a>]) -> Vec<Function<'a>> {
    let mut functions = Vec::new();
    for first in 0..code.len().saturating_sub(1) {
        if !code[first].is_word("fn") || code[first + 1].kind != Kind::Word {
            continue;
        }
        // The body is the first brace outside of parentheses; a declaration ends with a semicolon.
        let mut at = first + 2;
        while at < code.len() && !code[at].is("{") && !code[at].is(";") {
            at = if code[at].is("(") || code[at].is("[") { after_closing(code, at) } else { at + 1 };
        }
        if code.get(at).is_some_and(|token| token.is("{")) {
            functions.push(Function { name: code[first + 1].text, first, end: after_closing(code, at) });
        }
    }
    functions
}

/// The functions with bodies: a name, parentheses, and a brace, outside of other functions.
fn cpp_functions<'a>(code: &[Token<'a>]) -> Vec<Function<'a>> {
    let (mut functions, mut at) = (Vec::new(), 0);
    while at + 1 < code.len() {
        if code[at].kind != Kind::Word || !code[at + 1].is("(") {
            at += 1;
            continue;
        }
        let mut body = after_closing(code, at + 1);
        while code.get(body).is_some_and(|t| ["const", "noexcept", "override"].contains(&t.text)) {
            body += 1;
        }
        if code.get(body).is_some_and(|token| token.is("{")) {
            let end = after_closing(code, body);
            functions.push(Function { name: code[at].text, first: at, end });
            at = end;
        } else {
            at += 1;
        }
    }
    functions
}

#[cfg(test)]
mod tests {
    use super::super::tree::file;
    use super::*;

    #[test]
    fn long_functions_are_found_and_tables_of_ops_are_not() {
        let of = |path: &str, line: &str| {
            let body = line.repeat(101);
            let head = if path.ends_with("rs") { "fn f(x: [u8; 2]) -> u8" } else { "void f(int x)" };
            of_file(&file(path, &format!("{head} {{\n{body}}}\n"))).len()
        };
        assert_eq!(of("a.rs", "a();\n"), 1);
        assert_eq!(of("a.cu", "a();\n"), 1);
        assert_eq!(of("a.rs", "Op::Add { a } => b(),\n"), 0);
        let reason = "// One function: a cut takes 60 registers (56).\n";
        let kernel = |comment: &str| format!("void f(int x) {{\n{comment}{}}}\n", "a();\n".repeat(101));
        assert_eq!(of_file(&file("a.cu", &kernel(reason))).len(), 0);
        assert_eq!(of_file(&file("a.cu", &kernel("// One function: it is fast.\n"))).len(), 1);
        assert_eq!(of_file(&file("a.rs", &format!("fn f() {{\n{}}}", "a();\n".repeat(98)))).len(), 0);
    }
}
