//! A parser of server-sent events.

/// A parser of events, which keeps bytes of an incomplete event. Lines end with `\n` or `\r\n`.
#[derive(Default)]
pub struct Reader {
    line: Vec<u8>,
    data: Option<String>,
}

impl Reader {
    /// Adds bytes, which may be cut anywhere. Returns the data of each event that is now complete,
    /// with `\n` between the lines of an event.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut events = Vec::new();
        for &byte in bytes {
            if byte != b'\n' {
                self.line.push(byte);
                continue;
            }
            let line = String::from_utf8_lossy(self.line.strip_suffix(b"\r").unwrap_or(&self.line));
            if line.is_empty() {
                events.extend(self.data.take());
            } else if let Some(data) = line.strip_prefix("data:") {
                let data = data.strip_prefix(' ').unwrap_or(data);
                match &mut self.data {
                    Some(before) => *before = format!("{before}\n{data}"),
                    None => self.data = Some(data.to_owned()),
                }
            }
            self.line.clear();
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_wherever_the_bytes_are_cut() {
        let text =
            ": hello\n\nevent: x\r\ndata: {\"a\":\"é\"}\r\n\r\ndata:one\ndata: two\n\ndata: [DONE]\n\n";
        let expected = ["{\"a\":\"é\"}", "one\ntwo", "[DONE]"];
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let mut reader = Reader::default();
                let mut events = reader.feed(&text.as_bytes()[..first]);
                events.extend(reader.feed(&text.as_bytes()[first..second]));
                events.extend(reader.feed(&text.as_bytes()[second..]));
                assert_eq!(events, expected, "cut at {first} and {second}");
            }
        }
    }

    #[test]
    fn an_event_without_its_blank_line_is_none() {
        assert!(Reader::default().feed(b"data: x\n").is_empty());
    }
}
