//! A scanner of incomplete JSON, character by character.

/// The role of the next character in a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scan {
    /// The character belongs to the value, which continues.
    More,
    /// The character is the last of the value.
    Last,
    /// The value ended before the character.
    Before,
    /// The character cannot continue the value.
    Wrong,
}

/// Position in a value. Text between its brackets is not validated.
#[derive(Clone, Debug, Default)]
pub(super) struct JsonScan {
    /// The open brackets.
    open: Vec<u8>,
    in_string: bool,
    is_escaped: bool,
    has_begun: bool,
}

impl JsonScan {
    pub(super) fn step(&mut self, c: char) -> Scan {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        if self.in_string {
            match c {
                _ if self.is_escaped => self.is_escaped = false,
                '\\' => self.is_escaped = true,
                '"' => {
                    self.in_string = false;
                    return if self.open.is_empty() { Scan::Last } else { Scan::More };
                }
                _ => {}
            }
            return Scan::More;
        }
        let is_inside = !self.open.is_empty();
        match c {
            '"' if is_first || is_inside => self.in_string = true,
            '{' | '[' if is_first || is_inside => self.open.push(c as u8),
            '}' | ']' if is_inside => {
                let matching = if c == '}' { b'{' } else { b'[' };
                if self.open.pop() != Some(matching) {
                    return Scan::Wrong;
                }
                if self.open.is_empty() {
                    return Scan::Last;
                }
            }
            _ if is_inside => {}
            '-' | '0'..='9' | 't' | 'f' | 'n' => {}
            '+' | '.' | 'a'..='z' | 'A'..='Z' if !is_first => {}
            _ if is_first => return Scan::Wrong,
            _ => return Scan::Before,
        }
        Scan::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(text: &str) -> (usize, Scan) {
        let mut scan = JsonScan::default();
        for (at, c) in text.char_indices() {
            let step = scan.step(c);
            if step != Scan::More {
                return (at, step);
            }
        }
        (text.len(), Scan::More)
    }

    #[test]
    fn values_end_where_they_end() {
        for (text, end) in [
            ("{\"a\": \"}\\\"\"} x", (11, Scan::Last)),
            ("[1, [2]]", (7, Scan::Last)),
            ("\"a\\\\\"b", (4, Scan::Last)),
            ("-1.5e+3,", (7, Scan::Before)),
            ("true}", (4, Scan::Before)),
            ("{]", (1, Scan::Wrong)),
            ("x", (0, Scan::Wrong)),
            ("{\"a\": 1", (7, Scan::More)),
        ] {
            assert_eq!(scan(text), end, "{text}");
        }
    }
}
