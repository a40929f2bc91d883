//! JSON that is still being written: as far as it has come.

use std::ops::Range;

/// What a scan finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scan {
    /// It ends before this byte.
    Ends(usize),
    /// The text ends before it does.
    Open,
    /// What was expected does not stand at this byte.
    Wrong(usize),
}

/// The first byte from `at` on that is not white space.
pub(super) fn skip_white(text: &str, at: usize) -> usize {
    let rest = &text[at..];
    at + (rest.len() - rest.trim_start().len())
}

/// The text in quotes that begins at `at`.
fn string(text: &str, at: usize) -> Scan {
    let bytes = text.as_bytes();
    if bytes.get(at) != Some(&b'"') {
        return if at >= text.len() { Scan::Open } else { Scan::Wrong(at) };
    }
    let mut i = at + 1;
    while let Some(byte) = bytes.get(i) {
        match byte {
            b'"' => return Scan::Ends(i + 1),
            b'\\' => i += 2,
            _ => i += 1,
        }
    }
    Scan::Open
}

/// The value that begins at `at`. What is between brackets is not looked at closely.
pub(super) fn value(text: &str, at: usize) -> Scan {
    let bytes = text.as_bytes();
    match bytes.get(at) {
        None => Scan::Open,
        Some(b'"') => string(text, at),
        Some(b'{' | b'[') => {
            let mut open = Vec::new();
            let mut i = at;
            while let Some(byte) = bytes.get(i) {
                match byte {
                    b'{' | b'[' => open.push(*byte),
                    b'}' | b']' => {
                        let matching = if *byte == b'}' { b'{' } else { b'[' };
                        if open.pop() != Some(matching) {
                            return Scan::Wrong(i);
                        }
                        if open.is_empty() {
                            return Scan::Ends(i + 1);
                        }
                    }
                    b'"' => match string(text, i) {
                        Scan::Ends(end) => {
                            i = end;
                            continue;
                        }
                        other => return other,
                    },
                    _ => {}
                }
                i += 1;
            }
            Scan::Open
        }
        Some(b'-' | b'0'..=b'9' | b't' | b'f' | b'n') => {
            let is_part = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'+' | b'.');
            let len = bytes[at..].iter().take_while(|b| is_part(b)).count();
            if at + len == bytes.len() { Scan::Open } else { Scan::Ends(at + len) }
        }
        Some(_) => Scan::Wrong(at),
    }
}

/// An object's members as far as they have come.
#[derive(Debug)]
pub(super) struct Object {
    /// Keys and the bytes of their values; the last value may go on if the object is open.
    pub(super) members: Vec<(String, Range<usize>)>,
    /// Whether the last member's value is whole.
    pub(super) last_is_whole: bool,
    /// Where the object ends.
    pub(super) scan: Scan,
}

/// The object that begins at `at`.
pub(super) fn object(text: &str, at: usize) -> Object {
    let mut found = Object { members: Vec::new(), last_is_whole: true, scan: Scan::Open };
    let bytes = text.as_bytes();
    if bytes.get(at) != Some(&b'{') {
        found.scan = if at == text.len() { Scan::Open } else { Scan::Wrong(at) };
        return found;
    }
    let mut i = skip_white(text, at + 1);
    if bytes.get(i) == Some(&b'}') {
        found.scan = Scan::Ends(i + 1);
        return found;
    }
    loop {
        let key = match string(text, i) {
            Scan::Ends(end) => serde_json::from_str::<String>(&text[i..end]).map(|key| (key, end)),
            Scan::Open => return found,
            Scan::Wrong(at) => {
                found.scan = Scan::Wrong(at);
                return found;
            }
        };
        let Ok((key, end)) = key else {
            found.scan = Scan::Wrong(i);
            return found;
        };
        i = skip_white(text, end);
        match bytes.get(i) {
            None => return found,
            Some(b':') => i = skip_white(text, i + 1),
            Some(_) => {
                found.scan = Scan::Wrong(i);
                return found;
            }
        }
        let scan = value(text, i);
        let end = match scan {
            Scan::Ends(end) | Scan::Wrong(end) => end,
            Scan::Open => text.len(),
        };
        found.members.push((key, i..end));
        found.last_is_whole = matches!(scan, Scan::Ends(_));
        if !found.last_is_whole {
            found.scan = scan;
            return found;
        }
        i = skip_white(text, end);
        match bytes.get(i) {
            None => return found,
            Some(b',') => i = skip_white(text, i + 1),
            Some(b'}') => {
                found.scan = Scan::Ends(i + 1);
                return found;
            }
            Some(_) => {
                found.scan = Scan::Wrong(i);
                return found;
            }
        }
    }
}
