//! Parser of GBNF, the grammar format of llama.cpp:
//! <https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md>.
//!
//! Tokens (`<think>`, `<[1000]>` and their negations) are not supported and are refused.

use std::collections::HashMap;

/// Maximum number of nested groups.
const MAX_DEPTH: usize = 64;
/// Maximum number of repetitions of one element.
const MAX_REPEAT: u32 = 10_000;
/// Maximum number of elements of a grammar.
const MAX_NODES: usize = 8_000;

/// An index into [`Gbnf::nodes`].
pub(super) type NodeId = usize;

/// An element of a grammar.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum GbnfNode {
    /// A character of these ranges, both ends included, without surrogates.
    Class(Vec<(u32, u32)>),
    /// Elements in sequence.
    Sequence(Vec<NodeId>),
    /// A choice of these elements.
    Choice(Vec<NodeId>),
    /// An element, repeated at least and at most so often.
    Repeat(NodeId, u32, Option<u32>),
    /// A rule by its index.
    Rule(usize),
}

/// A grammar whose names are all defined.
#[derive(Debug)]
pub(super) struct Gbnf {
    pub(super) nodes: Vec<GbnfNode>,
    /// The body of each rule.
    pub(super) rules: Vec<NodeId>,
    pub(super) names: Vec<String>,
    /// Index of the rule `root`.
    pub(super) root: usize,
}

/// Parses a grammar.
///
/// # Errors
/// The text is not GBNF, with line and column.
pub(super) fn parse(text: &str) -> Result<Gbnf, String> {
    let mut parser = GbnfParser {
        chars: text.chars().collect(),
        at: 0,
        nodes: Vec::new(),
        names: Vec::new(),
        by_name: HashMap::new(),
        bodies: Vec::new(),
        first_used: Vec::new(),
    };
    parser.grammar()?;
    let mut rules = Vec::with_capacity(parser.bodies.len());
    for (index, body) in parser.bodies.iter().enumerate() {
        let undefined = || {
            format!(
                "{}: the rule {:?} is not defined",
                parser.place(parser.first_used[index]),
                parser.names[index]
            )
        };
        rules.push(body.ok_or_else(undefined)?);
    }
    let root = *parser.by_name.get("root").ok_or("there is no rule `root`, where every text begins")?;
    Ok(Gbnf { nodes: parser.nodes, rules, names: parser.names, root })
}

struct GbnfParser {
    chars: Vec<char>,
    at: usize,
    nodes: Vec<GbnfNode>,
    names: Vec<String>,
    by_name: HashMap<String, usize>,
    /// Bodies of rules; `None` for a rule that is used but not defined yet.
    bodies: Vec<Option<NodeId>>,
    /// Position of each name's first use.
    first_used: Vec<usize>,
}

impl GbnfParser {
    fn place(&self, at: usize) -> String {
        let before = &self.chars[..at.min(self.chars.len())];
        let line = 1 + before.iter().filter(|c| **c == '\n').count();
        let column = 1 + before.iter().rev().take_while(|c| **c != '\n').count();
        format!("line {line}, column {column}")
    }

    fn wrong<T>(&self, expected: &str) -> Result<T, String> {
        let found = match self.peek() {
            Some(c) => format!("{c:?}"),
            None => "the end".into(),
        };
        Err(format!("{}: found {found}, expected {expected}", self.place(self.at)))
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn starts_with(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(i, c)| self.chars.get(self.at + i) == Some(&c))
    }

    fn skip(&mut self, text: &str) -> bool {
        let found = self.starts_with(text);
        if found {
            self.at += text.chars().count();
        }
        found
    }

    /// Skips spaces and comments, and line ends if `lines`.
    fn space(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\n' | '\r' if lines => self.at += 1,
                '#' => {
                    while self.peek().is_some_and(|c| c != '\n' && c != '\r') {
                        self.at += 1;
                    }
                }
                _ => return,
            }
        }
    }

    fn push(&mut self, node: GbnfNode) -> Result<NodeId, String> {
        if self.nodes.len() >= MAX_NODES {
            return Err(format!("{}: more than {MAX_NODES} elements", self.place(self.at)));
        }
        self.nodes.push(node);
        Ok(self.nodes.len() - 1)
    }

    fn name(&mut self) -> Option<(usize, usize)> {
        let begin = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_') {
            self.at += 1;
        }
        let name: String = self.chars[begin..self.at].iter().collect();
        if name.is_empty() {
            return None;
        }
        if let Some(index) = self.by_name.get(&name) {
            return Some((*index, begin));
        }
        let index = self.names.len();
        self.by_name.insert(name.clone(), index);
        self.names.push(name);
        self.bodies.push(None);
        self.first_used.push(begin);
        Some((index, begin))
    }

    fn grammar(&mut self) -> Result<(), String> {
        self.space(true);
        while self.peek().is_some() {
            let Some((rule, begin)) = self.name() else { return self.wrong("the name of a rule") };
            if self.bodies[rule].is_some() {
                return Err(format!(
                    "{}: the rule {:?} is defined twice",
                    self.place(begin),
                    self.names[rule]
                ));
            }
            self.space(false);
            if !self.skip("::=") {
                return self.wrong("`::=` after the name of a rule");
            }
            self.space(true);
            let body = self.choice(0)?;
            self.bodies[rule] = Some(body);
            if !matches!(self.peek(), None | Some('\n' | '\r')) {
                return self.wrong("an element, `|`, or the end of the line");
            }
            self.space(true);
        }
        Ok(())
    }

    fn choice(&mut self, depth: usize) -> Result<NodeId, String> {
        let mut options = vec![self.sequence(depth)?];
        loop {
            let end = self.at;
            // No rule begins with a bar, so a line that begins with one continues this rule.
            self.space(true);
            if !self.skip("|") {
                if depth == 0 {
                    self.at = end;
                }
                break;
            }
            self.space(true);
            options.push(self.sequence(depth)?);
        }
        match options.as_slice() {
            [one] => Ok(*one),
            _ => self.push(GbnfNode::Choice(options)),
        }
    }

    fn sequence(&mut self, depth: usize) -> Result<NodeId, String> {
        let mut parts = Vec::new();
        loop {
            self.space(depth > 0);
            let part = match self.peek() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.at += 1;
                    self.push(GbnfNode::Class(all_but(&[])))?
                }
                Some('(') if depth == MAX_DEPTH => {
                    return Err(format!("{}: more than {MAX_DEPTH} nested groups", self.place(self.at)));
                }
                Some('(') => {
                    self.at += 1;
                    self.space(true);
                    let group = self.choice(depth + 1)?;
                    if !self.skip(")") {
                        return self.wrong("`)`");
                    }
                    group
                }
                Some('<' | '!') => {
                    let place = self.place(self.at);
                    return Err(format!(
                        "{place}: tokens such as <think> are not supported in a grammar yet"
                    ));
                }
                Some(c) if c.is_ascii_alphanumeric() || c == '-' || c == '_' => match self.name() {
                    Some((rule, _)) => self.push(GbnfNode::Rule(rule))?,
                    None => return self.wrong("the name of a rule"),
                },
                _ => break,
            };
            let part = self.repeats(part, depth)?;
            parts.push(part);
        }
        match parts.as_slice() {
            [one] => Ok(*one),
            _ => self.push(GbnfNode::Sequence(parts)),
        }
    }

    /// Parses the operators after an element.
    fn repeats(&mut self, mut node: NodeId, depth: usize) -> Result<NodeId, String> {
        for _ in 0..MAX_DEPTH {
            self.space(depth > 0);
            let (min, max) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    self.at += 1;
                    let (min, max) = self.bounds(depth)?;
                    node = self.repeat(node, min, max)?;
                    continue;
                }
                _ => return Ok(node),
            };
            self.at += 1;
            node = self.repeat(node, min, max)?;
        }
        self.wrong("fewer operators after one element")
    }

    /// Makes a repetition. Nested repetitions by `?`, `*` or `+` are merged to one. The parser
    /// would otherwise find each text in every way of splitting it, which takes seconds for
    /// `x*********`.
    fn repeat(&mut self, node: NodeId, min: u32, max: Option<u32>) -> Result<NodeId, String> {
        let is_operator = |min: u32, max: Option<u32>| min <= 1 && max.is_none_or(|max| max == 1);
        if let Some(&GbnfNode::Repeat(part, part_min, part_max)) = self.nodes.get(node)
            && is_operator(min, max)
            && is_operator(part_min, part_max)
        {
            return self.push(GbnfNode::Repeat(part, min * part_min, max.and(part_max)));
        }
        self.push(GbnfNode::Repeat(node, min, max))
    }

    fn bounds(&mut self, depth: usize) -> Result<(u32, Option<u32>), String> {
        self.space(depth > 0);
        let min = self.number()?;
        self.space(depth > 0);
        let mut max = Some(min);
        if self.skip(",") {
            self.space(depth > 0);
            max = match self.peek() {
                Some('}') => None,
                _ => Some(self.number()?),
            };
            self.space(depth > 0);
        }
        if max.is_some_and(|max| max < min) {
            return self.wrong(&format!("a repetition of at least {min} times"));
        }
        if !self.skip("}") {
            return self.wrong("`}` after a repetition");
        }
        Ok((min, max))
    }

    fn number(&mut self) -> Result<u32, String> {
        let begin = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        let digits: String = self.chars[begin..self.at].iter().collect();
        match digits.parse() {
            Ok(number) if number <= MAX_REPEAT => Ok(number),
            _ => {
                self.at = begin;
                self.wrong(&format!("a number of repetitions up to {MAX_REPEAT}"))
            }
        }
    }

    fn literal(&mut self) -> Result<NodeId, String> {
        self.at += 1;
        let mut parts = Vec::new();
        while self.peek() != Some('"') {
            let c = self.char()?;
            parts.push(self.push(GbnfNode::Class(vec![(c, c)]))?);
        }
        self.at += 1;
        match parts.as_slice() {
            [one] => Ok(*one),
            _ => self.push(GbnfNode::Sequence(parts)),
        }
    }

    fn class(&mut self) -> Result<NodeId, String> {
        let begin = self.at;
        self.at += 1;
        let negated = self.skip("^");
        let mut ranges = Vec::new();
        while self.peek() != Some(']') {
            let first = self.char()?;
            let mut last = first;
            if self.peek() == Some('-') && self.chars.get(self.at + 1).is_some_and(|c| *c != ']') {
                self.at += 1;
                last = self.char()?;
            }
            if last < first {
                return self.wrong("a range whose end is not before its beginning");
            }
            ranges.push((first, last));
        }
        self.at += 1;
        let all = all_but(&ranges);
        let ranges = if negated { all } else { all_but(&all) };
        if ranges.is_empty() {
            return Err(format!("{}: the class of characters is empty", self.place(begin)));
        }
        self.push(GbnfNode::Class(ranges))
    }

    /// Parses a character of a literal or a class.
    fn char(&mut self) -> Result<u32, String> {
        let Some(c) = self.peek() else { return self.wrong("a character") };
        self.at += 1;
        if c != '\\' {
            return Ok(c as u32);
        }
        let Some(escape) = self.peek() else { return self.wrong("a character after the backslash") };
        let n_digits = match escape {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            'n' | 'r' | 't' | '\\' | '"' | '[' | ']' => {
                self.at += 1;
                return Ok(match escape {
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    same => same,
                } as u32);
            }
            _ => return self.wrong("one of x, u, U, n, r, t, \\, \", [ and ] after the backslash"),
        };
        self.at += 1;
        let mut code = 0;
        for _ in 0..n_digits {
            let Some(digit) = self.peek().and_then(|c| c.to_digit(16)) else {
                return self.wrong(&format!("{n_digits} hexadecimal digits"));
            };
            code = (code << 4) | digit;
            self.at += 1;
        }
        match char::from_u32(code) {
            Some(_) => Ok(code),
            None => Err(format!(
                "{}: found U+{code:X}, expected at most U+10FFFF and no surrogate",
                self.place(self.at)
            )),
        }
    }
}

/// The characters outside of these ranges, in order, without surrogates.
fn all_but(ranges: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let mut out: Vec<(u32, u32)> = ranges.to_vec();
    out.push((0xd800, 0xdfff));
    out.sort_unstable();
    let (mut free, mut next) = (Vec::new(), 0);
    for (first, last) in out {
        if first > next {
            free.push((next, first - 1));
        }
        next = next.max(last + 1);
    }
    if next <= 0x10_ffff {
        free.push((next, 0x10_ffff));
    }
    free
}
