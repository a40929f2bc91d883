//! A call's arguments as a stream of whole members.
//!
//! Clients parse all pieces together as one JSON object, so they must form one, wherever the model
//! stops or errs. A member is sent when it is complete. An incomplete member is never sent: half a
//! command may do harm that the whole would not.

use serde_json::{Map, Value};

/// Receives the text of a JSON object in pieces and returns the text of its complete members.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    /// Text that has not been sent.
    held: String,
    /// Bytes of `held` that have been scanned.
    n_read: usize,
    /// Depth of open objects and lists.
    depth: usize,
    in_text: bool,
    is_escaped: bool,
    /// True if a part of the object has been sent.
    has_begun: bool,
    /// True if only the closing brace may still be sent: the object is complete, or the text is not
    /// part of one.
    is_over: bool,
    /// True if the closing brace has been sent.
    is_closed: bool,
}

impl Arguments {
    /// Adds a piece and returns the text that may be sent.
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

    /// Returns the text that closes the object at the end of the call.
    pub(super) fn finish(&mut self) -> &'static str {
        self.is_over = true;
        let is_open = self.has_begun && !std::mem::replace(&mut self.is_closed, true);
        if is_open { "}" } else { "" }
    }

    /// Returns true if this byte ends a member, or shows that the text is not an object.
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

    /// Sends the scanned text without its last byte, if it is a member. Returns true if another
    /// member may follow. A `last` member closes the object.
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
            // The object is empty.
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

/// The object of a call's arguments, whose text may be invalid.
pub(super) fn object(text: &str) -> Value {
    let mut arguments = Arguments::default();
    let members = arguments.push(text) + arguments.finish();
    serde_json::from_str(&members).unwrap_or_else(|_| Value::Object(Map::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text that is sent if `text` arrives in pieces of `n` bytes.
    fn written(text: &str, n: usize) -> String {
        let mut arguments = Arguments::default();
        let pieces =
            text.as_bytes().chunks(n).map(|piece| arguments.push(std::str::from_utf8(piece).unwrap()));
        let out: String = pieces.collect();
        out + arguments.finish()
    }

    #[test]
    fn the_sent_text_is_an_object_of_complete_members() {
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
