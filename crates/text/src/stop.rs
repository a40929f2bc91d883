//! Stop strings in a stream: text that could be the beginning of one is held back until it is known not to be.

/// What may be shown after a piece of text was added.
#[derive(Debug, PartialEq, Eq)]
pub struct Released<'a> {
    /// Text that can be no part of a stop string. It stays until the next call.
    pub text: &'a str,
    /// Which stop string ended the text, as an index into the list given. What follows it is dropped.
    pub stop: Option<usize>,
}

/// Text within an answer in which stop strings are not looked for: reasoning, or a call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aside {
    /// What begins it.
    pub open: String,
    /// What ends it; empty: nothing does.
    pub close: String,
    /// The answer begins within it.
    pub has_begun: bool,
    /// It may begin anywhere; if not, only where nothing but white space and other asides stand before it.
    pub anywhere: bool,
}

/// Where a text is with respect to its [`Aside`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Outside, and nothing but white space has come there.
    Start,
    /// Outside, after some text.
    Text,
    /// In the aside of this index.
    Within(usize),
}

/// Finds what is aside, in text that comes in pieces.
#[derive(Clone, Debug)]
pub struct AsideFinder {
    asides: Vec<Aside>,
    place: Place,
    /// The end of the text so far, in which a mark may have begun.
    tail: String,
    /// Bytes of the longest mark.
    longest: usize,
}

impl AsideFinder {
    /// For an answer with these asides.
    pub fn new(asides: Vec<Aside>) -> AsideFinder {
        let marks = asides.iter().flat_map(|aside| [aside.open.len(), aside.close.len()]);
        let longest = marks.max().unwrap_or(0);
        let mut finder =
            AsideFinder { asides, place: Place::Start, tail: String::with_capacity(longest + 1024), longest };
        finder.reset();
        finder
    }

    fn reset(&mut self) {
        self.tail.clear();
        self.place = self.asides.iter().position(|aside| aside.has_begun).map_or(Place::Start, Place::Within);
    }

    /// Whether the text so far ends within an aside.
    pub fn is_within(&self) -> bool {
        matches!(self.place, Place::Within(_))
    }

    /// Take the beginning of `text`, up to where an aside begins or ends: how many bytes these are, and whether they are aside.
    /// The mark that begins an aside is not; the one that ends it is.
    pub fn next(&mut self, text: &str) -> (usize, bool) {
        let n_before = self.tail.len();
        self.tail.push_str(text);
        match self.place {
            Place::Within(index) => {
                let close = self.asides.get(index).map_or("", |aside| aside.close.as_str());
                let found = if close.is_empty() { None } else { self.tail.find(close) };
                match found.map(|at| (at + close.len()).saturating_sub(n_before)) {
                    Some(n) => {
                        let at_start = self.asides.get(index).is_some_and(|aside| !aside.anywhere);
                        self.place = if at_start { Place::Start } else { Place::Text };
                        self.tail.clear();
                        (n, true)
                    }
                    None => {
                        self.keep_end();
                        (text.len(), true)
                    }
                }
            }
            Place::Start => {
                let white = self.tail.len() - self.tail.trim_start().len();
                let found = &self.tail[white..];
                let mut may_begin = found.is_empty();
                let mut begun = None;
                for (index, aside) in self.asides.iter().enumerate() {
                    if found.starts_with(aside.open.as_str()) {
                        begun = Some((index, (white + aside.open.len()).saturating_sub(n_before)));
                        break;
                    }
                    may_begin |= aside.open.starts_with(found);
                }
                match begun {
                    Some((index, n)) => {
                        self.enter(index);
                        (n, false)
                    }
                    None if may_begin => (text.len(), false),
                    None => {
                        self.place = Place::Text;
                        self.next_in_text(n_before, text.len())
                    }
                }
            }
            Place::Text => self.next_in_text(n_before, text.len()),
        }
    }

    /// The same after some text; the last `n` bytes of the tail are new.
    fn next_in_text(&mut self, n_before: usize, n: usize) -> (usize, bool) {
        let marks = self.asides.iter().enumerate().filter(|(_, aside)| aside.anywhere);
        let found = marks.filter_map(|(index, aside)| {
            Some((self.tail.find(aside.open.as_str())?, std::cmp::Reverse(aside.open.len()), index))
        });
        match found.min() {
            Some((at, std::cmp::Reverse(len), index)) => {
                self.enter(index);
                ((at + len).saturating_sub(n_before), false)
            }
            None => {
                self.keep_end();
                (n, false)
            }
        }
    }

    fn enter(&mut self, index: usize) {
        self.place = Place::Within(index);
        self.tail.clear();
    }

    /// Keep the end of the tail in which a mark may have begun.
    fn keep_end(&mut self) {
        let at = self.tail.len().saturating_sub(self.longest.saturating_sub(1));
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
    aside: Option<AsideFinder>,
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
    pub fn outside(self, asides: Vec<Aside>) -> StopStrings {
        // Without stop strings nothing is looked for.
        let is_needed = !asides.is_empty() && self.stops.iter().any(|stop| !stop.is_empty());
        StopStrings { aside: is_needed.then(|| AsideFinder::new(asides)), ..self }
    }

    /// Add a piece and get what may be shown. After a stop was found, begin anew with [`StopStrings::reset`].
    pub fn push(&mut self, piece: &str) -> Released<'_> {
        self.buffer.drain(..self.shown);
        let held = self.buffer.len();
        self.buffer.push_str(piece);
        // What was held back is outside; `from` is where the text begins in which a stop string may stand whole.
        let (mut from, mut at) = (0, held);
        while at < self.buffer.len() {
            let rest = self.buffer.get(at..).unwrap_or_default();
            let (n, is_aside) = self.aside.as_mut().map_or((rest.len(), false), |aside| aside.next(rest));
            let end = at + n;
            if !is_aside && let Some((stop, start)) = self.find(at, from, end) {
                self.shown = start;
                return Released { text: self.buffer.get(..start).unwrap_or_default(), stop: Some(stop) };
            }
            at = end;
            if is_aside || self.aside.as_ref().is_some_and(AsideFinder::is_within) {
                from = at;
            }
        }
        // What is aside is shown at once.
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

    /// The stop string that is complete first at a byte after `held` and up to `last`, and where it begins: at `from` or after.
    fn find(&self, held: usize, from: usize, last: usize) -> Option<(usize, usize)> {
        let bytes = self.buffer.as_bytes();
        (held + 1..=last).find_map(|end| {
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
        let call = Aside { open: "<c>".into(), close: "</c>".into(), has_begun: false, anywhere: true };
        let rest = Aside { open: "[C]".into(), close: String::new(), ..call.clone() };
        let bare = Aside { open: "{".into(), anywhere: false, ..rest.clone() };
        let cases = [
            (vec![think(true)], "x END y</a> z END", "x END y</a> z ", true),
            (vec![think(false)], " <a>x END</a>zéEND", " <a>x END</a>zé", true),
            (vec![think(false)], "x END", "x ", true),
            (vec![think(false)], "x <a>END", "x <a>", true),
            (vec![think(true)], "x END y", "x END y", false),
            (vec![think(false)], "<a>EN</a>D", "<a>EN</a>D", false),
            (vec![parts.clone()], "x<a>END</a>y<a>END</a>EEND", "x<a>END</a>y<a>END</a>E", true),
            (vec![parts], "ENx END", "ENx ", true),
            // A stop before an aside ends the text, however the text comes.
            (vec![call.clone()], "x END<c>END</c>", "x ", true),
            (vec![call.clone()], "<c>END</c>EN<c>D</c>END", "<c>END</c>EN<c>D</c>", true),
            (vec![think(false), call.clone()], "<a>END</a> <c>END</c> END", "<a>END</a> <c>END</c> ", true),
            (vec![think(false), call], "y <c>END</c><a>END", "y <c>END</c><a>", true),
            (vec![rest], "y [C]END [C] END", "y [C]END [C] END", false),
            (vec![bare.clone()], " {END", " {END", false),
            (vec![bare], "x {END", "x {", true),
        ];
        for (asides, text, expected, stops) in cases {
            for n in 1..=text.chars().count() {
                let mut matcher = StopStrings::new(&["END"]).outside(asides.clone());
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
