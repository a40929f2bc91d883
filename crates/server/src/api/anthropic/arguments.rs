//! A call's arguments as they are written, member by member.
//!
//! Clients read all that comes as one JSON object, and so it has to be one, wherever the model stops or errs. A member goes out when
//! it is whole; one that is not never does, since half a command may do what the whole one would not.

use serde_json::{Map, Value};

/// Takes the text of a JSON object in pieces, and gives that of its members that are whole.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    /// What has not gone out.
    held: String,
    /// Bytes of `held` that have been read.
    n_read: usize,
    /// Objects and lists that are open.
    depth: usize,
    in_text: bool,
    is_escaped: bool,
    /// The object has begun to go out.
    has_begun: bool,
    /// Nothing more goes out but what closes the object: it is whole, or what came is no part of one.
    is_over: bool,
    /// What closes it has gone out.
    is_closed: bool,
}

impl Arguments {
    /// What may go out after another piece.
    pub(super) fn push(&mut self, text: &str) -> String {
        let mut out = String::new();
        if !self.is_over {
            self.held.push_str(text);
        }
        while let Some(byte) = self.held.as_bytes().get(self.n_read).copied().filter(|_| !self.is_over) {
            self.n_read += 1;
            if self.ends_member(byte) {
                self.is_over = !self.release(byte == b'}', &mut out);
            }
        }
        out
    }

    /// What closes the object when nothing more comes.
    pub(super) fn finish(&mut self) -> &'static str {
        self.is_over = true;
        let is_open = self.has_begun && !std::mem::replace(&mut self.is_closed, true);
        if is_open { "}" } else { "" }
    }

    /// Whether a member ends with this byte, or what was read is none.
    fn ends_member(&mut self, byte: u8) -> bool {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' if self.in_text => self.is_escaped = true,
            b'"' => self.in_text = !self.in_text,
            _ if self.in_text => {}
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' if self.depth > 1 => self.depth -= 1,
            b'}' | b']' => return true,
            b',' => return self.depth <= 1,
            _ => {}
        }
        false
    }

    /// Give what has been read but its last byte, if it is a member; whether another may follow. A `last` one closes the object.
    fn release(&mut self, last: bool, out: &mut String) -> bool {
        let read: String = self.held.drain(..self.n_read).collect();
        self.n_read = 0;
        let member = &read[..read.len() - 1];
        let Some(member) =
            (if self.has_begun { Some(member) } else { member.trim_start().strip_prefix('{') })
        else {
            return false;
        };
        let parsed = serde_json::from_str::<Map<String, Value>>(&format!("{{{member}}}"));
        match parsed.map(|members| members.len()) {
            Ok(1) => {}
            // Nothing but braces.
            Ok(0) if last && !self.has_begun => {}
            Ok(_) | Err(_) => return false,
        }
        out.push(if self.has_begun { ',' } else { '{' });
        out.push_str(member);
        self.has_begun = true;
        if last {
            out.push('}');
            self.is_closed = true;
        }
        !last
    }
}

/// The object of a call's arguments, whose text need not be one.
pub(super) fn object(text: &str) -> Value {
    let mut arguments = Arguments::default();
    let members = arguments.push(text) + arguments.finish();
    serde_json::from_str(&members).unwrap_or_else(|_| Value::Object(Map::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What goes out of a text that comes in pieces of so many bytes.
    fn written(text: &str, n: usize) -> String {
        let mut arguments = Arguments::default();
        let pieces =
            text.as_bytes().chunks(n).map(|piece| arguments.push(std::str::from_utf8(piece).unwrap()));
        let out: String = pieces.collect();
        out + arguments.finish()
    }

    #[test]
    fn what_goes_out_is_an_object_of_the_members_that_are_whole() {
        for (text, expected) in [
            (r#"{"a": 1, "b": {"c": [1, "}"], "d": {}}}"#, r#"{"a": 1, "b": {"c": [1, "}"], "d": {}}}"#),
            (r#" { "a" : "\"," } "#, r#"{ "a" : "\"," }"#),
            ("{}", "{}"),
            ("{ }", "{ }"),
            (r#"{"command": "rm -rf /home"#, ""),
            (r#"{"a": 1, "command": "rm -rf /home"#, r#"{"a": 1}"#),
            (r#"{"a": 12"#, ""),
            (r#"{"a": 1, b: 2, "c": 3}"#, r#"{"a": 1}"#),
            (r#"{"a": 1,}"#, r#"{"a": 1}"#),
            (r#"{"a": 1} and more, "b": 2}"#, r#"{"a": 1}"#),
            (r#"{"a": [1, 2}, "b": 3}"#, ""),
            (r#"[1, 2]"#, ""),
            ("a, b", ""),
            ("}", ""),
            ("", ""),
        ] {
            for n in [1, 2, 5, 100] {
                assert_eq!(written(text, n), expected, "{text}");
            }
            let whole = if expected.is_empty() { "{}" } else { expected };
            assert_eq!(object(text), serde_json::from_str::<Value>(whole).unwrap(), "{text}");
        }
    }
}
