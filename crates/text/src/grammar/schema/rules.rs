//! Rules of a grammar that is being made, and how llguidance's dialect of Lark writes them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Write;

use serde_json::Value;

/// Rules inside each other and parentheses, after which a rule of its own is written.
const MAX_INLINE: usize = 12;

/// A part of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    /// Nothing can be written here.
    Never,
    Empty,
    /// These bytes.
    Text(String),
    /// A terminal, by its place in a list.
    Token(usize),
    /// A rule, by its place in a list.
    Rule(usize),
    /// A rule with a parameter: an expression of Lark.
    With(usize, &'static str, usize),
    Seq(Vec<Part>),
    Alt(Vec<Part>),
    /// Only if this condition of Lark holds for the rule's parameter.
    When(Box<Part>, String),
    Repeat(Box<Part>, usize, Option<usize>),
    /// As Lark has it.
    Raw(String),
}

impl Part {
    pub(super) fn text(text: impl Into<String>) -> Part {
        Part::Text(text.into())
    }

    pub(super) fn seq(parts: impl IntoIterator<Item = Part>) -> Part {
        let mut flat = Vec::new();
        for part in parts {
            match part {
                Part::Never => return Part::Never,
                Part::Empty => {}
                Part::Seq(parts) => flat.extend(parts),
                part => flat.push(part),
            }
        }
        match flat.len() {
            0 => Part::Empty,
            1 => flat.remove(0),
            _ => Part::Seq(flat),
        }
    }

    pub(super) fn alt(options: impl IntoIterator<Item = Part>) -> Part {
        let mut flat: Vec<Part> = Vec::new();
        for option in options {
            match option {
                Part::Never => {}
                Part::Alt(options) => flat.extend(options),
                option => flat.push(option),
            }
        }
        let mut seen = HashSet::new();
        let is_new: Vec<bool> = flat.iter().map(|option| seen.insert(option)).collect();
        let mut is_new = is_new.into_iter();
        flat.retain(|_| is_new.next().unwrap_or(false));
        match flat.len() {
            0 => Part::Never,
            // A condition is written with the options of a rule.
            1 if !matches!(flat[0], Part::When(..)) => flat.remove(0),
            _ => Part::Alt(flat),
        }
    }

    pub(super) fn repeat(part: Part, min: usize, max: Option<usize>) -> Part {
        match (part, max) {
            (_, Some(0)) | (Part::Empty, _) => Part::Empty,
            (Part::Never, _) if min == 0 => Part::Empty,
            (Part::Never, _) => Part::Never,
            (part, Some(1)) if min == 1 => part,
            (part, max) => Part::Repeat(Box::new(part), min, max),
        }
    }
}

#[derive(Default)]
pub(super) struct Rules {
    bodies: Vec<Part>,
    parametric: Vec<bool>,
    tokens: Vec<String>,
    token_ids: HashMap<String, usize>,
}

impl Rules {
    /// A rule whose body comes later.
    pub(super) fn open(&mut self) -> usize {
        self.bodies.push(Part::Never);
        self.parametric.push(false);
        self.bodies.len() - 1
    }

    pub(super) fn close(&mut self, rule: usize, body: Part) {
        self.bodies[rule] = body;
    }

    pub(super) fn with_parameter(&mut self, rule: usize) {
        self.parametric[rule] = true;
    }

    pub(super) fn len(&self) -> usize {
        self.bodies.len()
    }

    /// A terminal of this expression of Lark.
    pub(super) fn token(&mut self, body: String) -> Part {
        let next = self.tokens.len();
        let id = *self.token_ids.entry(body.clone()).or_insert(next);
        if id == next {
            self.tokens.push(body);
        }
        Part::Token(id)
    }

    /// Leave out what can never end. Whether the first rule is left.
    pub(super) fn prune(&mut self) -> bool {
        let mut ends = vec![false; self.bodies.len()];
        loop {
            let mut has_changed = false;
            // Rules mostly use those that come after them.
            for rule in (0..self.bodies.len()).rev() {
                if !ends[rule] && can_end(&self.bodies[rule], &ends) {
                    ends[rule] = true;
                    has_changed = true;
                }
            }
            if !has_changed {
                break;
            }
        }
        for body in &mut self.bodies {
            *body = pruned(std::mem::replace(body, Part::Never), &ends);
        }
        ends.first() == Some(&true)
    }

    /// The grammar; its first rule is the start.
    ///
    /// # Errors
    /// It has more than `max` rules.
    pub(super) fn lark(&self, max: usize) -> Result<String, String> {
        let mut n_uses = vec![0_usize; self.bodies.len()];
        self.bodies.iter().for_each(|body| count_uses(body, &mut n_uses));
        n_uses[0] = usize::MAX;
        let mut writer = Writer {
            rules: self,
            n_uses,
            queue: VecDeque::from([0]),
            is_written: vec![false; self.bodies.len()],
        };
        writer.is_written[0] = true;
        let mut out = String::new();
        let mut n_rules = 0;
        while let Some(rule) = writer.queue.pop_front() {
            n_rules += 1;
            if n_rules > max {
                return Err(format!("its grammar has over {max} rules"));
            }
            let name = if rule == 0 { "start".into() } else { format!("r{rule}") };
            let parameter = if self.parametric[rule] { "::_" } else { "" };
            let _ = write!(out, "{name}{parameter}: ");
            writer.options(&self.bodies[rule], 0, &mut out);
            out.push('\n');
        }
        for (id, body) in self.tokens.iter().enumerate() {
            let _ = writeln!(out, "T{id}: {body}");
        }
        Ok(out)
    }
}

fn can_end(part: &Part, ends: &[bool]) -> bool {
    match part {
        Part::Never => false,
        Part::Empty | Part::Text(_) | Part::Token(_) | Part::Raw(_) => true,
        Part::Rule(rule) | Part::With(rule, _, _) => ends[*rule],
        Part::Seq(parts) => parts.iter().all(|part| can_end(part, ends)),
        Part::Alt(options) => options.iter().any(|option| can_end(option, ends)),
        Part::When(part, _) => can_end(part, ends),
        Part::Repeat(part, min, _) => *min == 0 || can_end(part, ends),
    }
}

fn pruned(part: Part, ends: &[bool]) -> Part {
    match part {
        Part::Never | Part::Empty | Part::Text(_) | Part::Token(_) | Part::Raw(_) => part,
        Part::Rule(rule) | Part::With(rule, _, _) if !ends[rule] => Part::Never,
        Part::Rule(_) | Part::With(..) => part,
        Part::Seq(parts) => Part::seq(parts.into_iter().map(|part| pruned(part, ends))),
        Part::Alt(options) => Part::alt(options.into_iter().map(|option| pruned(option, ends))),
        // A required property that can have no value leaves no way to the end.
        Part::When(part, condition) => match pruned(*part, ends) {
            Part::Never => Part::Never,
            part => Part::When(Box::new(part), condition),
        },
        Part::Repeat(part, min, max) => Part::repeat(pruned(*part, ends), min, max),
    }
}

fn count_uses(part: &Part, n_uses: &mut [usize]) {
    match part {
        Part::Never | Part::Empty | Part::Text(_) | Part::Token(_) | Part::Raw(_) => {}
        Part::Rule(rule) | Part::With(rule, _, _) => n_uses[*rule] = n_uses[*rule].saturating_add(1),
        Part::Seq(parts) | Part::Alt(parts) => parts.iter().for_each(|part| count_uses(part, n_uses)),
        Part::When(part, _) | Part::Repeat(part, _, _) => count_uses(part, n_uses),
    }
}

struct Writer<'a> {
    rules: &'a Rules,
    n_uses: Vec<usize>,
    queue: VecDeque<usize>,
    is_written: Vec<bool>,
}

impl Writer<'_> {
    /// Options of a rule or between parentheses.
    fn options(&mut self, part: &Part, depth: usize, out: &mut String) {
        let Part::Alt(options) = part else { return self.option(part, depth, out) };
        for (n, option) in options.iter().enumerate() {
            if n > 0 {
                out.push_str(" | ");
            }
            self.option(option, depth, out);
        }
    }

    fn option(&mut self, part: &Part, depth: usize, out: &mut String) {
        match part {
            Part::When(part, condition) => {
                self.option(part, depth, out);
                let _ = write!(out, " %if {condition}");
            }
            Part::Seq(parts) => {
                for (n, part) in parts.iter().enumerate() {
                    if n > 0 {
                        out.push(' ');
                    }
                    match part {
                        // Used only here and a sequence itself: needs no parentheses.
                        Part::Rule(rule) if self.is_inline(*rule, depth) => {
                            let body = &self.rules.bodies[*rule];
                            match body {
                                Part::Seq(_) => self.option(body, depth + 1, out),
                                body => self.atom(body, depth + 1, out),
                            }
                        }
                        part => self.atom(part, depth, out),
                    }
                }
            }
            Part::Rule(rule) if self.is_inline(*rule, depth) => {
                let body = &self.rules.bodies[*rule];
                match body {
                    Part::Alt(_) => self.atom(body, depth + 1, out),
                    body => self.option(body, depth + 1, out),
                }
            }
            part => self.atom(part, depth, out),
        }
    }

    fn is_inline(&self, rule: usize, depth: usize) -> bool {
        let body = &self.rules.bodies[rule];
        let is_small =
            matches!(body, Part::Text(_) | Part::Token(_) | Part::Raw(_) | Part::Empty | Part::Never);
        is_small || (self.n_uses[rule] == 1 && depth < MAX_INLINE && !self.rules.parametric[rule])
    }

    fn atom(&mut self, part: &Part, depth: usize, out: &mut String) {
        match part {
            // Pruned before, except where nothing is left at all.
            Part::Never => out.push_str("/[^\\x00-\\x{10ffff}]/"),
            Part::Empty => out.push_str("\"\""),
            Part::Text(text) => out.push_str(&literal(text)),
            Part::Token(token) => {
                let _ = write!(out, "T{token}");
            }
            Part::Raw(text) => out.push_str(text),
            Part::Rule(rule) if self.is_inline(*rule, depth) => {
                let body = &self.rules.bodies[*rule];
                self.atom(body, depth + 1, out);
            }
            Part::Rule(rule) => {
                self.want(*rule);
                let _ = write!(out, "r{rule}");
            }
            Part::With(rule, expression, argument) => {
                self.want(*rule);
                let _ = write!(out, "r{rule}::{}", expression.replace("{}", &argument.to_string()));
            }
            Part::Seq(_) | Part::Alt(_) | Part::When(..) => {
                out.push('(');
                self.options(part, depth + 1, out);
                out.push(')');
            }
            Part::Repeat(part, min, max) => {
                out.push('(');
                self.options(part, depth + 1, out);
                let _ = match (min, max) {
                    (0, Some(1)) => write!(out, ")?"),
                    (0, None) => write!(out, ")*"),
                    (min, None) => write!(out, "){{{min},}}"),
                    (min, Some(max)) => write!(out, "){{{min},{max}}}"),
                };
            }
        }
    }

    fn want(&mut self, rule: usize) {
        if !std::mem::replace(&mut self.is_written[rule], true) {
            self.queue.push_back(rule);
        }
    }
}

/// A text in quotes. Lark wants DEL escaped, which JSON does not.
fn literal(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}
