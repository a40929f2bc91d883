//! Stop strings in a stream: text that could be the beginning of one is held back until it is known not to be.

/// What may be shown after a piece of text was added.
#[derive(Debug, PartialEq, Eq)]
pub struct Released<'a> {
    /// Text that can be no part of a stop string. It stays until the next call.
    pub text: &'a str,
    /// Which stop string ended the text, as an index into the list given. What follows it is dropped.
    pub stop: Option<usize>,
}

/// Looks for stop strings in text that comes in pieces. The one that is complete first ends the text; of those that are
/// complete at the same place, the longest. How the text was split into pieces makes no difference.
///
/// Allocates when it is made, and when a piece is longer than any before (1 KiB is held ready).
#[derive(Clone)]
pub struct StopStrings {
    stops: Vec<String>,
    /// Text shown by the last call, then text held back.
    buffer: String,
    /// How much of `buffer` the last call has shown.
    shown: usize,
}

impl StopStrings {
    /// For these strings; empty ones are never found.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> StopStrings {
        let stops: Vec<String> = stops.iter().map(|s| s.as_ref().to_owned()).collect();
        let longest = stops.iter().map(String::len).max().unwrap_or(0);
        StopStrings { stops, buffer: String::with_capacity(longest + 1024), shown: 0 }
    }

    /// Add a piece and get what may be shown. After a stop was found, begin anew with [`StopStrings::reset`].
    pub fn push(&mut self, piece: &str) -> Released<'_> {
        self.buffer.drain(..self.shown);
        let held = self.buffer.len();
        self.buffer.push_str(piece);
        if let Some((stop, start)) = self.find(held) {
            self.shown = start;
            return Released { text: self.buffer.get(..start).unwrap_or_default(), stop: Some(stop) };
        }
        self.shown = self.buffer.len() - self.hold();
        Released { text: self.buffer.get(..self.shown).unwrap_or_default(), stop: None }
    }

    /// The end of the text: what was held back after all.
    pub fn finish(&mut self) -> &str {
        self.buffer.drain(..self.shown);
        self.shown = self.buffer.len();
        &self.buffer
    }

    /// Forget all text, and begin anew.
    pub fn reset(&mut self) {
        self.buffer.clear();
        self.shown = 0;
    }

    /// The stop string that is complete first at a byte after `held`, and where it begins.
    fn find(&self, held: usize) -> Option<(usize, usize)> {
        let bytes = self.buffer.as_bytes();
        (held + 1..=bytes.len()).find_map(|end| {
            let complete = |(_, stop): &(usize, &String)| {
                !stop.is_empty() && bytes.get(..end).is_some_and(|text| text.ends_with(stop.as_bytes()))
            };
            let (stop, text) =
                self.stops.iter().enumerate().filter(complete).max_by_key(|(_, stop)| stop.len())?;
            Some((stop, end - text.len()))
        })
    }

    /// Bytes at the end of the buffer that are the beginning of a stop string; the most of them.
    fn hold(&self) -> usize {
        let bytes = self.buffer.as_bytes();
        let of_stop = |stop: &String| {
            let stop = stop.as_bytes();
            let most = stop.len().saturating_sub(1).min(bytes.len());
            (1..=most).rev().find(|&n| stop.get(..n).is_some_and(|beginning| bytes.ends_with(beginning)))
        };
        self.stops.iter().filter_map(of_stop).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Push a text in pieces of `n` characters; give what was shown and which stop was found.
    fn run(stops: &[&str], text: &str, n: usize) -> (String, Option<usize>) {
        let mut matcher = StopStrings::new(stops);
        let mut shown = String::new();
        let chars: Vec<char> = text.chars().collect();
        for piece in chars.chunks(n) {
            let released = matcher.push(&piece.iter().collect::<String>());
            shown += released.text;
            if released.stop.is_some() {
                return (shown, released.stop);
            }
        }
        shown += matcher.finish();
        (shown, None)
    }

    #[test]
    fn the_cut_makes_no_difference() {
        let cases: [(&[&str], &str, &str, Option<usize>); 9] = [
            (&["END"], "a EN ENDb", "a EN ", Some(0)),
            (&["END"], "EEN", "EEN", None),
            (&["abcd", "bc"], "xabcd", "xa", Some(1)),
            (&["bc", "abc"], "xabc", "x", Some(1)),
            (&["\n\n", "User:"], "Hi\nUser: \n\n", "Hi\n", Some(1)),
            (&["é😀"], "éé😀x", "é", Some(0)),
            (&[""], "text", "text", None),
            (&[], "text", "text", None),
            (&["aab"], "aaab", "a", Some(0)),
        ];
        for (stops, text, shown, stop) in cases {
            for n in 1..=text.chars().count() {
                assert_eq!(run(stops, text, n), (shown.to_string(), stop), "{stops:?} {text:?} {n}");
            }
        }
    }

    #[test]
    fn text_that_is_no_beginning_is_shown_at_once() {
        let mut matcher = StopStrings::new(&["</s>"]);
        assert_eq!(matcher.push("Hello <"), Released { text: "Hello ", stop: None });
        assert_eq!(matcher.push("b>"), Released { text: "<b>", stop: None });
        assert_eq!(matcher.push("x</s>y"), Released { text: "x", stop: Some(0) });
        matcher.reset();
        assert_eq!(matcher.push("y"), Released { text: "y", stop: None });
        assert_eq!(matcher.finish(), "");
    }
}
