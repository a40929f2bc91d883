//! Calls in the text after a mark that opens them, as far as the text has come. Everything is read again when more has come:
//! calls are short, and what was found before is found again.

use serde_json::{Map, Value};

use super::formats::{Syntax, Tags};
use super::json::{self, Scan, skip_white};
use super::values::{Dialect, Member};

/// The longest name of a function that is looked for.
const MAX_NAME: usize = 256;

/// A call as far as it has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) name: String,
    /// JSON text; what comes later goes on where this ends.
    pub(super) arguments: String,
    pub(super) is_whole: bool,
}

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) calls: Vec<Found>,
    pub(super) end: End,
}

/// Where calls end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// More may come.
    Open,
    /// What comes from this byte on is something else.
    Closed(usize),
    /// What comes from this byte on is not a call, and was to be one.
    Wrong(usize),
}

/// The tools of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Tools(Vec<(String, Value)>);

impl Tools {
    /// Of `{"type":"function","function":{"name","parameters"}}`, or of the inner objects.
    pub(super) fn new(tools: &[Value]) -> Tools {
        let tool = |tool: &Value| {
            let function = tool.get("function").unwrap_or(tool);
            let parameters = function.get("parameters").filter(|p| !p.is_null());
            Some((
                function["name"].as_str()?.to_owned(),
                parameters.cloned().unwrap_or_else(|| Value::Object(Map::new())),
            ))
        };
        Tools(tools.iter().filter_map(tool).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Names and schemas.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, schema)| (name.as_str(), schema))
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
    }

    /// A parameter's value from its text: texts are as they are, everything else is JSON.
    fn typed(&self, function: &str, key: &str, text: &str) -> Value {
        let schema = self.0.iter().find(|(name, _)| name == function).map(|(_, schema)| schema);
        let kind = schema.and_then(|schema| schema["properties"][key]["type"].as_str());
        if kind == Some("string") {
            return Value::from(text);
        }
        serde_json::from_str(text.trim()).unwrap_or_else(|_| Value::from(text))
    }
}

/// Read the calls of `body`. Where no mark opened it (`is_bare`), only tools that there are can be called.
pub(super) fn read(syntax: &Syntax, body: &str, tools: &Tools, is_bare: bool) -> Reading {
    match syntax {
        Syntax::Json { close, .. } => {
            read_json(body, close, |name| !name.is_empty() && (!is_bare || tools.has(name)))
        }
        Syntax::Named { prefix, separator, close, .. } => read_named(body, prefix, separator, close),
        Syntax::Tagged(tags) => read_tagged(body, tags, tools),
        Syntax::Pythonic { close, .. } => read_pythonic(body, close, tools, is_bare),
        Syntax::Braces { quote, close, .. } => read_braces(body, quote, close),
        // Its channels are read elsewhere.
        Syntax::Harmony => Reading { calls: Vec::new(), end: End::Wrong(0) },
    }
}

/// Whether `text` has come as far as some of `mark`, but not all.
fn is_part_of(text: &str, mark: &str) -> bool {
    text.len() < mark.len() && mark.starts_with(text)
}

/// Where calls that stand one after the other, perhaps in a list, have come to.
struct Series<'a> {
    body: &'a str,
    /// Ends them; empty: the list's end does, or that of the answer.
    close: &'a str,
    /// What may stand between two.
    separators: &'a [u8],
    at: usize,
    in_list: bool,
}

impl<'a> Series<'a> {
    fn new(body: &'a str, close: &'a str, separators: &'a [u8]) -> Series<'a> {
        let at = skip_white(body, 0);
        let in_list = body[at..].starts_with('[');
        Series { body, close, separators, at: at + usize::from(in_list), in_list }
    }

    /// Go to where the next call is to begin; `is_first`: there was none.
    ///
    /// # Errors
    /// None begins: how the calls end.
    fn next(&mut self, is_first: bool) -> Result<usize, End> {
        let closed = |at: usize| Err(if is_first { End::Wrong(0) } else { End::Closed(at) });
        loop {
            self.at = skip_white(self.body, self.at);
            let rest = &self.body[self.at..];
            if rest.is_empty() || is_part_of(rest, self.close) {
                return Err(End::Open);
            }
            if !self.close.is_empty() && rest.starts_with(self.close) {
                return closed(self.at + self.close.len());
            }
            match rest.as_bytes()[0] {
                b']' if self.in_list => {
                    self.in_list = false;
                    self.at += 1;
                    if self.close.is_empty() {
                        return closed(self.at);
                    }
                }
                byte if !is_first && self.separators.contains(&byte) => self.at += 1,
                _ => return Ok(self.at),
            }
        }
    }
}

fn read_json(body: &str, close: &str, is_fine: impl Fn(&str) -> bool) -> Reading {
    let mut calls = Vec::new();
    let mut series = Series::new(body, close, b",;");
    let end = loop {
        let at = match series.next(calls.is_empty()) {
            Ok(at) => at,
            Err(end) => break end,
        };
        let object = json::object(body, at);
        let (call, is_named) = json_call(body, &object);
        if is_named && !is_fine(&call.name) {
            break End::Wrong(at);
        }
        match (object.scan, is_named) {
            (Scan::Open, false) => break End::Open,
            (Scan::Wrong(_) | Scan::Ends(_), false) => break End::Wrong(at),
            (scan, true) => {
                calls.push(call);
                match scan {
                    Scan::Open => break End::Open,
                    Scan::Wrong(wrong) => break End::Wrong(wrong),
                    Scan::Ends(end) => series.at = end,
                }
            }
        }
    };
    Reading { calls, end }
}

/// The call that an object is, and whether its name is known.
fn json_call(body: &str, object: &json::Object) -> (Found, bool) {
    let mut call = Found {
        name: String::new(),
        arguments: String::new(),
        is_whole: matches!(object.scan, Scan::Ends(_)),
    };
    let mut is_named = false;
    let n = object.members.len();
    for (i, (key, range)) in object.members.iter().enumerate() {
        let is_whole = i + 1 < n || object.last_is_whole;
        let text = &body[range.clone()];
        match key.as_str() {
            "name" | "tool_name" if is_whole => {
                if let Ok(name) = serde_json::from_str::<String>(text) {
                    (call.name, is_named) = (name, true);
                }
            }
            "arguments" | "parameters" => match text.as_bytes().first() {
                Some(b'{') => text.clone_into(&mut call.arguments),
                // JSON in a text.
                Some(b'"') if is_whole => {
                    call.arguments = serde_json::from_str(text).unwrap_or_default();
                }
                _ => {}
            },
            _ => {}
        }
    }
    if call.is_whole && call.arguments.trim().is_empty() {
        call.arguments = "{}".into();
    }
    (call, is_named)
}

fn read_named(body: &str, prefix: &str, separator: &str, close: &str) -> Reading {
    let none = |end: End| Reading { calls: Vec::new(), end };
    let Some(header) = body.find(separator) else {
        return none(if body.len() > MAX_NAME { End::Wrong(0) } else { End::Open });
    };
    if header > MAX_NAME {
        return none(End::Wrong(0));
    }
    let name = body[..header].trim();
    let name = name.strip_prefix(prefix).unwrap_or(name);
    // `[CALL_ID]…` and `:0` number calls, which are numbered here.
    let name = name.split("[CALL_ID]").next().unwrap_or(name);
    let name = match name.rsplit_once(':') {
        Some((name, number)) if number.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => name,
    };
    if name.is_empty() {
        return none(End::Wrong(0));
    }
    let at = skip_white(body, header + separator.len());
    let (end, is_whole) = match json::object(body, at).scan {
        Scan::Wrong(wrong) if wrong == at => return none(End::Wrong(0)),
        Scan::Wrong(wrong) => {
            let call =
                Found { name: name.to_owned(), arguments: body[at..wrong].to_owned(), is_whole: false };
            return Reading { calls: vec![call], end: End::Wrong(wrong) };
        }
        Scan::Open if at == body.len() => return none(End::Open),
        Scan::Open => (body.len(), false),
        Scan::Ends(end) => (end, true),
    };
    let call = Found { name: name.to_owned(), arguments: body[at..end].to_owned(), is_whole };
    let rest = &body[end..];
    let closed = match is_whole {
        false => End::Open,
        true if rest.starts_with(close) => End::Closed(end + close.len()),
        true if is_part_of(rest, close) => End::Open,
        true => End::Closed(end),
    };
    Reading { calls: vec![call], end: closed }
}

/// Arguments that come one after the other.
struct Members {
    text: String,
    n: usize,
}

impl Members {
    fn new() -> Members {
        Members { text: "{".into(), n: 0 }
    }

    fn push(&mut self, key: &str, value: &Value) {
        let separator = if self.n == 0 { "" } else { ", " };
        self.text.push_str(&format!("{separator}{}: {value}", Value::from(key)));
        self.n += 1;
    }

    fn call(self, name: &str, is_whole: bool) -> Found {
        let close = if is_whole { "}" } else { "" };
        Found { name: name.to_owned(), arguments: self.text + close, is_whole }
    }
}

fn read_tagged(body: &str, tags: &Tags, tools: &Tools) -> Reading {
    let mut calls = Vec::new();
    let mut at = 0;
    let end = loop {
        at = skip_white(body, at);
        let rest = &body[at..];
        if rest.starts_with(tags.close) {
            break if calls.is_empty() { End::Wrong(0) } else { End::Closed(at + tags.close.len()) };
        }
        if rest.is_empty() || is_part_of(rest, tags.close) || is_part_of(rest, tags.name_before) {
            break End::Open;
        }
        let Some(header) = rest.strip_prefix(tags.name_before) else { break End::Wrong(at) };
        let ends_name = |c: char| c == '<' || tags.name_after.starts_with(c);
        let Some(len) = header.find(ends_name) else {
            break if header.len() > MAX_NAME { End::Wrong(at) } else { End::Open };
        };
        let name = header[..len].trim();
        if name.is_empty() || len > MAX_NAME {
            break End::Wrong(at);
        }
        let after = &header[len..];
        if is_part_of(after, tags.name_after) {
            break End::Open;
        }
        at += tags.name_before.len() + len;
        if after.starts_with(tags.name_after) {
            at += tags.name_after.len();
        }
        let (call, end) = read_parameters(body, at, name, tags, tools);
        calls.push(call);
        match end {
            End::Closed(next) => at = next,
            end => break end,
        }
    };
    Reading { calls, end }
}

/// The parameters of a call from `at` on; closed before what closes all calls.
fn read_parameters(body: &str, mut at: usize, name: &str, tags: &Tags, tools: &Tools) -> (Found, End) {
    let mut members = Members::new();
    loop {
        at = skip_white(body, at);
        let rest = &body[at..];
        let ends = if tags.end.is_empty() { tags.close } else { tags.end };
        if rest.starts_with(ends) {
            return (members.call(name, true), End::Closed(at + tags.end.len()));
        }
        if is_part_of(rest, ends) || is_part_of(rest, tags.key_before) {
            return (members.call(name, false), End::Open);
        }
        let Some(inside) = rest.strip_prefix(tags.key_before) else {
            return (members.call(name, false), End::Wrong(at));
        };
        // Between the marks after a key there may be white space.
        let mut marks = tags.key_after.split('\n');
        let Some(first) = marks.next() else { return (members.call(name, false), End::Wrong(at)) };
        let Some(key_len) = inside.find(first) else { return (members.call(name, false), End::Open) };
        let key = inside[..key_len].trim();
        let mut value = &inside[key_len + first.len()..];
        for mark in marks {
            value = value.trim_start();
            let Some(after) = value.strip_prefix(mark) else {
                let end = if is_part_of(value, mark) { End::Open } else { End::Wrong(at) };
                return (members.call(name, false), end);
            };
            value = after;
        }
        let Some(value_len) = value.find(tags.value_after) else {
            return (members.call(name, false), End::Open);
        };
        let text = &value[..value_len];
        let text = text.strip_prefix('\n').unwrap_or(text);
        let text = text.strip_suffix('\n').unwrap_or(text);
        members.push(key, &tools.typed(name, key, text));
        at = body.len() - value.len() + value_len + tags.value_after.len();
    }
}

fn read_pythonic(body: &str, close: &str, tools: &Tools, is_bare: bool) -> Reading {
    let mut calls = Vec::new();
    let mut series = Series::new(body, close, b",");
    let end = loop {
        let at = match series.next(calls.is_empty()) {
            Ok(at) => at,
            Err(end) => break end,
        };
        let rest = &body[at..];
        let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-');
        let len = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        if len == rest.len() && len <= MAX_NAME {
            break End::Open;
        }
        let name = &rest[..len];
        if len == 0 || len > MAX_NAME || !rest[len..].starts_with('(') || (is_bare && !tools.has(name)) {
            break End::Wrong(at);
        }
        let (call, end) = members(body, at + len + 1, name, Dialect::Python, (b'=', b')'));
        calls.push(call);
        match end {
            End::Closed(next) => series.at = next,
            end => break end,
        }
    };
    Reading { calls, end }
}

fn read_braces(body: &str, quote: &'static str, close: &str) -> Reading {
    let none = |end: End| Reading { calls: Vec::new(), end };
    let Some(len) = body.find('{') else {
        return none(if body.len() > MAX_NAME { End::Wrong(0) } else { End::Open });
    };
    let name = body[..len].trim();
    if name.is_empty() || len > MAX_NAME {
        return none(End::Wrong(0));
    }
    let (call, end) = members(body, len + 1, name, Dialect::Quoted(quote), (b':', b'}'));
    let end = match end {
        End::Closed(at) => {
            let at = skip_white(body, at);
            match &body[at..] {
                rest if rest.starts_with(close) => End::Closed(at + close.len()),
                rest if is_part_of(rest, close) => End::Open,
                _ => End::Closed(at),
            }
        }
        other => other,
    };
    Reading { calls: vec![call], end }
}

/// Members from `at` on, each a key, a separator and a value, up to the byte that closes them.
fn members(
    body: &str,
    mut at: usize,
    name: &str,
    dialect: Dialect,
    (separator, close): (u8, u8),
) -> (Found, End) {
    let mut members = Members::new();
    loop {
        at = skip_white(body, at);
        match body.as_bytes().get(at) {
            None => return (members.call(name, false), End::Open),
            Some(byte) if *byte == close => return (members.call(name, true), End::Closed(at + 1)),
            Some(b',') if members.n > 0 => at += 1,
            Some(_) => match dialect.member(body, at, separator, 0) {
                Member::Is(key, value, end) => {
                    members.push(&key, &value);
                    at = end;
                }
                Member::Open => return (members.call(name, false), End::Open),
                Member::Wrong => return (members.call(name, false), End::Wrong(at)),
            },
        }
    }
}
