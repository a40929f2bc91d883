//! Stop strings in a stream: text that could be the beginning of one is held back until it is known not to be.

/// What may be shown after a piece of text was added.
#[derive(Debug, PartialEq, Eq)]
pub struct Released<'a> {
    /// Text that can be no part of a stop string. It stays until the next call.
    pub text: &'a str,
    /// Which stop string ended the text, as an index into the list given. What follows it is dropped.
    pub stop: Option<usize>,
}

/// Text within an answer in which stop strings are not looked for: reasoning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aside {
    /// What begins it.
    pub open: String,
    /// What ends it.
    pub close: String,
    /// The answer begins within it.
    pub has_begun: bool,
    /// It may begin anywhere, and more than once; if not, only where nothing but white space stands before it.
    pub anywhere: bool,
}

/// Where a text is with respect to its [`Aside`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// It may begin.
    Before,
    Within,
    /// It cannot begin any more.
    After,
}

/// Finds what is aside.
#[derive(Clone)]
struct Finder {
    aside: Aside,
    place: Place,
    /// The end of the text so far, in which a mark may have begun.
    tail: String,
}

impl Finder {
    fn new(aside: Aside) -> Finder {
        let place = if aside.has_begun { Place::Within } else { Place::Before };
        Finder { place, tail: String::with_capacity(aside.open.len().max(aside.close.len()) + 1024), aside }
    }

    fn reset(&mut self) {
        self.tail.clear();
        self.place = if self.aside.has_begun { Place::Within } else { Place::Before };
    }

    /// After a piece has come: how many bytes at its end are not aside. More than the piece has: some before it neither.
    fn push(&mut self, piece: &str) -> usize {
        let mut looked = 0;
        self.tail.push_str(piece);
        loop {
            match self.place {
                Place::After => {
                    let outside = self.tail.len() - looked;
                    self.tail.clear();
                    // Nothing was aside in this piece.
                    return if looked == 0 { usize::MAX } else { outside };
                }
                Place::Within => match self.tail[looked..].find(self.aside.close.as_str()) {
                    Some(at) => {
                        looked += at + self.aside.close.len();
                        self.place = if self.aside.anywhere { Place::Before } else { Place::After };
                    }
                    None => {
                        self.keep(self.aside.close.len(), looked);
                        return 0;
                    }
                },
                Place::Before if self.aside.anywhere => {
                    match self.tail[looked..].find(self.aside.open.as_str()) {
                        Some(at) => {
                            looked += at + self.aside.open.len();
                            self.place = Place::Within;
                        }
                        None => {
                            let outside = if looked == 0 { usize::MAX } else { self.tail.len() - looked };
                            self.keep(self.aside.open.len(), looked);
                            return outside;
                        }
                    }
                }
                Place::Before => {
                    let white = self.tail.len() - self.tail.trim_start().len();
                    let text = &self.tail[white..];
                    if text.starts_with(self.aside.open.as_str()) {
                        looked = white + self.aside.open.len();
                        self.place = Place::Within;
                    } else if self.aside.open.starts_with(text) {
                        return usize::MAX;
                    } else {
                        self.place = Place::After;
                    }
                }
            }
        }
    }

    /// Of the text from `from` on, keep an end in which a mark of `len` bytes may have begun.
    fn keep(&mut self, len: usize, from: usize) {
        let at = self.tail.len().saturating_sub(len.saturating_sub(1)).max(from);
        let at = (at..=self.tail.len()).find(|at| self.tail.is_char_boundary(*at)).unwrap_or(at);
        self.tail.drain(..at);
    }
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
    aside: Option<Finder>,
}

impl StopStrings {
    /// For these strings; empty ones are never found.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> StopStrings {
        let stops: Vec<String> = stops.iter().map(|s| s.as_ref().to_owned()).collect();
        let longest = stops.iter().map(String::len).max().unwrap_or(0);
        StopStrings { stops, buffer: String::with_capacity(longest + 1024), shown: 0, aside: None }
    }

    /// The same, looking only outside of what is aside.
    #[must_use]
    pub fn outside(self, aside: Option<Aside>) -> StopStrings {
        // Without stop strings nothing is looked for.
        let aside = aside.filter(|_| self.stops.iter().any(|stop| !stop.is_empty())).map(Finder::new);
        StopStrings { aside, ..self }
    }

    /// Add a piece and get what may be shown. After a stop was found, begin anew with [`StopStrings::reset`].
    pub fn push(&mut self, piece: &str) -> Released<'_> {
        self.buffer.drain(..self.shown);
        let held = self.buffer.len();
        self.buffer.push_str(piece);
        // What is aside is shown at once.
        let outside = self.aside.as_mut().map_or(usize::MAX, |aside| aside.push(piece));
        let from = self.buffer.len().saturating_sub(outside);
        if let Some((stop, start)) = self.find(held.max(from), from) {
            self.shown = start;
            return Released { text: self.buffer.get(..start).unwrap_or_default(), stop: Some(stop) };
        }
        self.shown = self.buffer.len() - self.hold(from);
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
        if let Some(aside) = &mut self.aside {
            aside.reset();
        }
    }

    /// The stop string that is complete first at a byte after `held`, and where it begins: at `from` or after.
    fn find(&self, held: usize, from: usize) -> Option<(usize, usize)> {
        let bytes = self.buffer.as_bytes();
        (held + 1..=bytes.len()).find_map(|end| {
            let complete = |(_, stop): &(usize, &String)| {
                !stop.is_empty() && bytes.get(from..end).is_some_and(|text| text.ends_with(stop.as_bytes()))
            };
            let (stop, text) =
                self.stops.iter().enumerate().filter(complete).max_by_key(|(_, stop)| stop.len())?;
            Some((stop, end - text.len()))
        })
    }

    /// Bytes at the end of the buffer, from `from` on, that are the beginning of a stop string; the most of them.
    fn hold(&self, from: usize) -> usize {
        let bytes = self.buffer.as_bytes().get(from..).unwrap_or_default();
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

    #[test]
    fn what_is_aside_does_not_stop_however_it_is_cut() {
        let think =
            |has_begun| Aside { open: "<a>".into(), close: "</a>".into(), has_begun, anywhere: false };
        let parts = Aside { anywhere: true, ..think(false) };
        let cases = [
            (think(true), "x END y</a> z END", "x END y</a> z ", true),
            (think(false), " <a>x END</a>zéEND", " <a>x END</a>zé", true),
            (think(false), "x END", "x ", true),
            (think(false), "x <a>END", "x <a>", true),
            (think(true), "x END y", "x END y", false),
            (think(false), "<a>EN</a>D", "<a>EN</a>D", false),
            (parts.clone(), "x<a>END</a>y<a>END</a>EEND", "x<a>END</a>y<a>END</a>E", true),
            (parts, "ENx END", "ENx ", true),
        ];
        for (aside, text, expected, stops) in cases {
            for n in 1..=text.chars().count() {
                let mut matcher = StopStrings::new(&["END"]).outside(Some(aside.clone()));
                let (mut shown, mut stopped) = (String::new(), false);
                let chars: Vec<char> = text.chars().collect();
                for piece in chars.chunks(n) {
                    let released = matcher.push(&piece.iter().collect::<String>());
                    shown += released.text;
                    stopped = released.stop.is_some();
                    if stopped {
                        break;
                    }
                }
                if !stopped {
                    shown += matcher.finish();
                }
                assert_eq!((shown.as_str(), stopped), (expected, stops), "{text:?} in pieces of {n}");
            }
        }
    }
}
