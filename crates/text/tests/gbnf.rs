//! GBNF: the texts that a grammar accepts, byte by byte, and the errors of invalid grammars.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

use ingle_text::{Grammar, GrammarCompiler, Tokenizer};

use crate::grammar::{compiler, tokenizer};

/// Returns true if the text is complete in the grammar, with the number of bytes that it accepts.
fn takes(tokenizer: &Tokenizer, compiler: &GrammarCompiler, grammar: &str, text: &str) -> (bool, usize) {
    let mut matcher = compiler.compile(&Grammar::Gbnf(grammar.into())).unwrap();
    for (at, c) in text.char_indices() {
        let token = if c == ' ' { "Ġ".to_owned() } else { c.to_string() };
        if matcher.accept(tokenizer.token_id(&token).unwrap()).is_err() {
            return (false, at);
        }
    }
    let mut words = vec![0; tokenizer.n_tokens().div_ceil(32) + 1];
    matcher.mask(&mut words).unwrap();
    let may_end = tokenizer.ends().iter().any(|t| words[*t as usize / 32] >> (t % 32) & 1 == 1);
    (may_end, text.len())
}

const ARITHMETIC: &str = "root ::= (sum \"=\" number \";\")+\nsum ::= term ([-+*/] term)*\n\
    term ::= number | name | \"(\" sum \")\" # the recursion\nnumber ::= [0-9]{1,3}\nname ::= [a-z] [a-z0-9_]*";
const JSON: &str = r##"root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20}"##;

#[test]
fn grammars_accept_their_texts_and_no_others() {
    let tokenizer = tokenizer();
    let compiler = compiler(&tokenizer);
    for (grammar, good, bad) in [
        (ARITHMETIC, &["1=1;", "(a+2)*b_1=3;4=4;"][..], &["1;", "(1=1;", "1234=1;", "1+=2;"][..]),
        (
            JSON,
            &["{}", r#"{"a":[1,-2.5e3,"x\n",{"b":null}],"c":true}"#],
            &["[]", "{a}", r#"{"a":01}"#, r#"{"a":tru}"#],
        ),
        // A longest-match lexer would never return the last letter.
        ("root ::= \"(\" root \")\" | [a-z]* \"z\"", &["z", "zz", "(abz)", "((z))"], &["zA", "(z", "(za)"]),
        // The word `ab` begins with the letter that may precede a `b`.
        (
            "root ::= \"a\" tail | \"ab\" \"c\"\ntail ::= \"b\" tail | \"d\"",
            &["abc", "abd", "ad", "abbd"],
            &["abbc", "ac"],
        ),
        ("root ::= \"x\"{2,3} | \"(\" root \")\"", &["xx", "xxx", "(xx)"], &["xxxx", "x", "(x)"]),
        // Nested repetitions are one.
        ("root ::= b\nb ::= \"x\" (((\"q\"+)*)?)+ b**", &["x", "xqq", "xqxq"], &["", "xp", "qx"]),
        ("root ::= \"a\"?? \"b\"++ \"c\"?+ \"d\"+?", &["b", "abb", "bccdd"], &["aab", "a", "ac"]),
        ("root ::= a a\na ::= \"\" | \"q\" a", &["", "q", "qqq"], &["p"]),
        ("root ::= \"a\" |\n \"b\"\n | [^a-y\\n]", &["a", "b", "z", "A"], &["c", "ab"]),
        ("root ::= . [\\x41-\\u0043] [a-]", &["!A-", "zCa"], &["zDa", "zAb"]),
    ] {
        for text in good {
            assert_eq!(takes(&tokenizer, &compiler, grammar, text), (true, text.len()), "{grammar}\n{text}");
        }
        for text in bad {
            assert!(!takes(&tokenizer, &compiler, grammar, text).0, "{grammar}\n{text}");
        }
    }
}

#[test]
fn errors_name_the_place() {
    let compiler = compiler(&tokenizer());
    for (grammar, expected) in [
        ("root ::= \"a\"\nb = \"c\"", "line 2, column 3"),
        ("root ::= other", "line 1, column 10: the rule \"other\" is not defined"),
        ("a ::= \"a\"", "no rule `root`"),
        ("root ::= \"a\\q\"", "line 1, column 13"),
        ("root ::= [b-a]", "line 1, column 14"),
        ("root ::= []", "empty"),
        ("root ::= (\"a\"", "expected `)`"),
        ("root ::= \"a\"{3,1}", "at least 3"),
        ("root ::= \"a\" root", "never ends"),
        ("root ::= <think>", "not supported"),
        ("root ::= \"a\"\nroot ::= \"b\"", "defined twice"),
    ] {
        let error = compiler.compile(&Grammar::Gbnf(grammar.into())).err().unwrap().to_string();
        assert!(error.contains(expected), "{grammar}\n{error}");
    }
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000));
    assert!(compiler.compile(&Grammar::Gbnf(deep)).is_err());
}

#[test]
fn a_schema_in_lark_cannot_be_lenient() {
    let compiler = compiler(&tokenizer());
    let lark = |options: &str| {
        Grammar::Lark(format!("start: %json {{\"type\": \"string\", \"x-guidance\": {{{options}}}}}"))
    };
    assert!(compiler.compile(&lark("")).is_ok());
    for options in ["\"lenient\": true", "\"leni\\u0065nt\": true"] {
        let error = compiler.compile(&lark(options)).err().unwrap().to_string();
        assert!(error.contains("lenient"), "{error}");
    }
}

/// Long chains of rules end in an error or a matcher, quickly, and never crash the process.
#[test]
fn hostile_chains_of_rules_end_soon() {
    let compiler = compiler(&tokenizer());
    let lark = |n: usize| {
        let rules: String = (0..n).map(|i| format!("a{i}: a{}\n", i + 1)).collect();
        compiler.compile(&Grammar::Lark(format!("start: a0\n{rules}a{n}: \"a\""))).is_ok()
    };
    assert!(lark(4_900) && !lark(20_000));
    for (n, is_taken) in [(450, true), (1_500, false), (6_000, false)] {
        let rule = |i: usize| format!("a{i} ::= \"a\" a{} \"c\" | \"b\"\n", (i + 1) % n);
        let circle: String = (0..n).map(rule).collect();
        let back: String = (0..n).rev().map(rule).collect();
        for rules in [circle, back] {
            let compiled = compiler.compile(&Grammar::Gbnf(format!("root ::= a0\n{rules}")));
            assert_eq!(compiled.is_ok(), is_taken, "{n}: {:?}", compiled.err());
        }
        let doubled: String = (0..n).map(|i| format!("a{i} ::= a{} a{}\n", i + 1, i + 1)).collect();
        let doubled = Grammar::Gbnf(format!("root ::= a0\n{doubled}a{n} ::= \"a\""));
        let error = compiler.compile(&doubled).err().unwrap().to_string();
        assert!(error.contains("elements"), "{error}");
    }
}
