//! Splits Rust, C++, CUDA and Metal sources into tokens, as far as the rules need them.

/// The kind of a [`Token`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An identifier, a keyword or a number.
    Word,
    /// A string, with its quotes.
    Text,
    /// A character, or a lifetime.
    Character,
    /// A comment, with its marks and without the end of its line.
    Comment,
    /// One character of punctuation.
    Mark,
}

/// A token of a source file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token<'a> {
    pub kind: Kind,
    pub text: &'a str,
    /// The line on which the token begins, from 1.
    pub line: usize,
}

impl Token<'_> {
    /// True if this is the punctuation `mark`.
    pub fn is(&self, mark: &str) -> bool {
        self.kind == Kind::Mark && self.text == mark
    }

    /// True if this is the identifier or keyword `word`.
    pub fn is_word(&self, word: &str) -> bool {
        self.kind == Kind::Word && self.text == word
    }
}

/// The tokens of `source`, in order. What is left open at the end of the file ends there.
pub fn tokens(source: &str) -> Vec<Token<'_>> {
    let (mut tokens, mut at, mut line) = (Vec::new(), 0, 1);
    while let Some(first) = source[at..].chars().next() {
        let rest = &source[at..];
        let (kind, length) = match first {
            c if c.is_whitespace() => {
                line += usize::from(c == '\n');
                at += c.len_utf8();
                continue;
            }
            '/' if rest.starts_with("//") => (Kind::Comment, rest.find('\n').unwrap_or(rest.len())),
            '/' if rest.starts_with("/*") => {
                (Kind::Comment, rest.find("*/").map_or(rest.len(), |end| end + 2))
            }
            'r' | 'b' | 'c' if raw_string(rest).is_some() => (Kind::Text, raw_string(rest).unwrap_or(1)),
            '"' => (Kind::Text, quoted(rest, '"')),
            '\'' => (Kind::Character, character(rest)),
            c if is_of_word(c) => (Kind::Word, rest.find(|c| !is_of_word(c)).unwrap_or(rest.len())),
            c => (Kind::Mark, c.len_utf8()),
        };
        let text = &rest[..length];
        tokens.push(Token { kind, text, line });
        line += text.matches('\n').count();
        at += length;
    }
    tokens
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The length of a raw string such as `r#"..."#` or `br"..."` at the start of `rest`.
fn raw_string(rest: &str) -> Option<usize> {
    let after = rest.trim_start_matches(['b', 'c']).strip_prefix('r')?;
    let hashes = &after[..after.len() - after.trim_start_matches('#').len()];
    let body = after[hashes.len()..].strip_prefix('"')?;
    let end = body.find(&format!("\"{hashes}")).map_or(body.len(), |end| end + 1 + hashes.len());
    Some(rest.len() - body.len() + end)
}

/// Length of a text from its opening quote to the next quote that is not escaped.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

/// The length of a character, or of a lifetime, at the start of `rest`.
fn character(rest: &str) -> usize {
    let mut inner = rest[1..].chars();
    match (inner.next(), inner.next()) {
        (Some('\\'), _) => quoted(rest, '\''),
        (Some(c), Some('\'')) => 2 + c.len_utf8(),
        // A lifetime, or C++'s separator of thousands.
        _ => 1 + rest[1..].find(|c| !is_of_word(c)).unwrap_or(rest.len() - 1),
    }
}

/// The index after the bracket that closes the one at `open`; the number of tokens where none does.
pub fn after_closing(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        if token.kind != Kind::Mark {
            continue;
        }
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_characters_lifetimes_and_comments_are_told_apart() {
        let source = "let a: &'a str = \"x \\\" // y\"; // z\nb'\\'' r#\"q\"\"#; 'c' /* d\n */ e";
        let found: Vec<(Kind, &str, usize)> = tokens(source)
            .iter()
            .filter(|t| t.kind != Kind::Mark)
            .map(|t| (t.kind, t.text, t.line))
            .collect();
        let expected = [
            (Kind::Word, "let", 1),
            (Kind::Word, "a", 1),
            (Kind::Character, "'a", 1),
            (Kind::Word, "str", 1),
            (Kind::Text, "\"x \\\" // y\"", 1),
            (Kind::Comment, "// z", 1),
            (Kind::Word, "b", 2),
            (Kind::Character, "'\\''", 2),
            (Kind::Text, "r#\"q\"\"#", 2),
            (Kind::Character, "'c'", 2),
            (Kind::Comment, "/* d\n */", 2),
            (Kind::Word, "e", 3),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn brackets_are_matched_outside_strings() {
        let tokens = tokens("{ (\"}\") } x");
        assert!(tokens[after_closing(&tokens, 0)].is_word("x"));
    }
}
