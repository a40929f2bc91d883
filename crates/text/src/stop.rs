//! Stop strings in a stream: text that could be the beginning of one is held back until it is known not to be.
//!
//! All of them are looked for at once (Aho and Corasick 1975), so a byte costs the same for one string and for many.

use std::sync::Arc;

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, MatchKind};

use crate::{Error, Result};

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

/// Stop strings, ready to be looked for in any number of texts. Cheap to clone; [`Default`] has none.
#[derive(Clone, Debug, Default)]
pub struct Stops(Option<Arc<Searched>>);

#[derive(Debug)]
struct Searched {
    texts: Vec<String>,
    nfa: NFA,
    start: StateID,
    /// By pattern of `nfa`: which of `texts` it is. Empty texts are no patterns.
    patterns: Vec<usize>,
    /// The states by id, and how many bytes of a stop string each has seen.
    depths: Vec<(StateID, usize)>,
    /// Bytes of the longest.
    longest: usize,
}

impl Stops {
    /// Of these strings; empty ones are never found.
    ///
    /// # Errors
    /// They are too large: more than 2 GiB together.
    pub fn new<S: AsRef<str>>(texts: &[S]) -> Result<Stops> {
        let texts: Vec<String> = texts.iter().map(|text| text.as_ref().to_owned()).collect();
        let filled = texts.iter().enumerate().filter(|(_, text)| !text.is_empty());
        let (patterns, found): (Vec<usize>, Vec<&String>) = filled.unzip();
        if found.is_empty() {
            return Ok(Stops(None));
        }
        let too_long = || {
            let len = texts.iter().map(String::len).sum();
            Error::TooLong { what: "the stop strings", len, limit: i32::MAX as usize }
        };
        let nfa = NFA::builder().match_kind(MatchKind::Standard).prefilter(false).build(&found);
        let nfa = nfa.map_err(|_| too_long())?;
        let start = nfa.start_state(Anchored::No).map_err(|_| too_long())?;
        let mut depths = vec![(start, 0)];
        for text in &found {
            let mut state = start;
            for (index, byte) in text.bytes().enumerate() {
                state = nfa.next_state(Anchored::No, state, byte);
                depths.push((state, index + 1));
            }
        }
        depths.sort_unstable();
        depths.dedup();
        let longest = found.iter().map(|text| text.len()).max().unwrap_or(0);
        Ok(Stops(Some(Arc::new(Searched { nfa, start, patterns, depths, longest, texts }))))
    }

    /// Whether there is nothing to look for.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Tell the index of each string that stands somewhere in `bytes`, once or more.
    pub fn within(&self, bytes: &[u8], found: &mut dyn FnMut(usize)) {
        let Some(searched) = &self.0 else { return };
        let mut state = searched.start;
        for byte in bytes {
            state = searched.nfa.next_state(Anchored::No, state, *byte);
            if searched.nfa.is_match(state) {
                let matches = 0..searched.nfa.match_len(state);
                let pattern = |n| searched.patterns.get(searched.nfa.match_pattern(state, n).as_usize());
                matches.filter_map(pattern).for_each(|index| found(*index));
            }
        }
    }

    /// The string of an index into the list given.
    pub fn get(&self, index: usize) -> Option<&str> {
        self.0.as_ref()?.texts.get(index).map(String::as_str)
    }
}

impl Searched {
    /// Bytes at the end of the text in `state` that are the beginning of a stop string; the most of them.
    fn depth(&self, state: StateID) -> usize {
        let found = self.depths.binary_search_by_key(&state, |(state, _)| *state);
        found.ok().and_then(|index| self.depths.get(index)).map_or(0, |(_, depth)| *depth)
    }

    /// The longest stop string that is complete in `state`: which of the texts, and its bytes.
    fn complete(&self, state: StateID) -> Option<(usize, usize)> {
        if !self.nfa.is_match(state) {
            return None;
        }
        // A state has the matches that are suffixes of its own after that, the longest first.
        let index = self.patterns.get(self.nfa.match_pattern(state, 0).as_usize()).copied()?;
        Some((index, self.texts.get(index)?.len()))
    }
}

/// Looks for stop strings in text that comes in pieces. The one that is complete first ends the text; of those that are
/// complete at the same place, the longest. How the text was split into pieces makes no difference.
///
/// Allocates when it is made, and when a piece is longer than any before (1 KiB is held ready).
#[derive(Clone)]
pub struct StopStrings {
    stops: Stops,
    /// After the text so far; of no meaning without stop strings.
    state: Option<StateID>,
    /// Text shown by the last call, then text held back.
    buffer: String,
    /// How much of `buffer` the last call has shown.
    shown: usize,
    aside: Option<AsideFinder>,
}

impl StopStrings {
    /// For these strings.
    pub fn new(stops: Stops) -> StopStrings {
        let (state, longest) =
            stops.0.as_ref().map_or((None, 0), |searched| (Some(searched.start), searched.longest));
        StopStrings { stops, state, buffer: String::with_capacity(longest + 1024), shown: 0, aside: None }
    }

    /// The same, looking only outside of what is aside.
    #[must_use]
    pub fn outside(self, asides: Vec<Aside>) -> StopStrings {
        // Without stop strings nothing is looked for.
        let is_needed = !asides.is_empty() && !self.stops.is_empty();
        StopStrings { aside: is_needed.then(|| AsideFinder::new(asides)), ..self }
    }

    /// Add a piece and get what may be shown. After a stop was found, begin anew with [`StopStrings::reset`].
    pub fn push(&mut self, piece: &str) -> Released<'_> {
        self.buffer.drain(..self.shown);
        let mut at = self.buffer.len();
        self.buffer.push_str(piece);
        while at < self.buffer.len() {
            let rest = self.buffer.get(at..).unwrap_or_default();
            let (n, is_aside) = self.aside.as_mut().map_or((rest.len(), false), |aside| aside.next(rest));
            let end = at + n;
            if !is_aside && let Some((stop, start)) = self.find(at, end) {
                self.shown = start;
                return Released { text: self.buffer.get(..start).unwrap_or_default(), stop: Some(stop) };
            }
            at = end;
            if is_aside || self.aside.as_ref().is_some_and(AsideFinder::is_within) {
                // No stop string reaches over the border of what is aside.
                self.begin();
            }
        }
        // What is aside is shown at once.
        self.shown = self.buffer.len() - self.n_held();
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
        self.begin();
        if let Some(aside) = &mut self.aside {
            aside.reset();
        }
    }

    fn begin(&mut self) {
        self.state = self.stops.0.as_ref().map(|searched| searched.start);
    }

    /// The stop string that is complete first at a byte from `begin` on and before `end`, and where it begins.
    fn find(&mut self, begin: usize, end: usize) -> Option<(usize, usize)> {
        let (searched, state) = (self.stops.0.as_ref()?, self.state.as_mut()?);
        let bytes = self.buffer.as_bytes().get(begin..end).unwrap_or_default();
        bytes.iter().enumerate().find_map(|(index, byte)| {
            *state = searched.nfa.next_state(Anchored::No, *state, *byte);
            let (stop, len) = searched.complete(*state)?;
            Some((stop, (begin + index + 1).saturating_sub(len)))
        })
    }

    /// Bytes at the end of the buffer that are the beginning of a stop string; the most of them.
    fn n_held(&self) -> usize {
        let held = self.stops.0.as_ref().zip(self.state).map_or(0, |(searched, state)| searched.depth(state));
        held.min(self.buffer.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Push a text in pieces of `n` characters; give what was shown and which stop was found.
    fn run(stops: &[&str], text: &str, n: usize) -> (String, Option<usize>) {
        let mut matcher = StopStrings::new(Stops::new(stops).unwrap());
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

    /// As the definition says: at each byte every string, and at the end of a piece every beginning of each.
    fn slowly(stops: &[String], text: &str) -> (String, Option<usize>) {
        for end in 1..=text.len() {
            let found = stops
                .iter()
                .enumerate()
                .filter(|(_, stop)| !stop.is_empty() && text.as_bytes()[..end].ends_with(stop.as_bytes()));
            if let Some((index, stop)) = found.max_by_key(|(_, stop)| stop.len()) {
                return (text[..end - stop.len()].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    #[test]
    fn many_strings_are_found_as_the_definition_says() {
        let mut seed = 7_u64;
        let mut below = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        };
        for _ in 0..2000 {
            let mut word = |most: u64| -> String {
                let n = below(most);
                (0..n).map(|_| ['a', 'b', 'é'][below(3) as usize]).collect()
            };
            let mut stops: Vec<String> = (0..5).map(|_| word(6)).collect();
            let text = word(30);
            stops.sort();
            stops.dedup();
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let owned: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
            for n in 1..4 {
                assert_eq!(run(&stops, &text, n), slowly(&owned, &text), "{stops:?} {text:?} {n}");
            }
        }
    }

    #[test]
    fn a_byte_costs_the_same_for_many_strings() {
        let stops: Vec<String> = (0..50_000).map(|n| format!("{n:05}")).collect();
        let mut matcher = StopStrings::new(Stops::new(&stops).unwrap());
        let begun = std::time::Instant::now();
        for n in 0..100_000 {
            assert_eq!(matcher.push(if n % 2 == 0 { "12a" } else { "4 " }).stop, None);
        }
        // Each string at each byte would take an hour.
        assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{:?}", begun.elapsed());
    }

    #[test]
    fn text_that_is_no_beginning_is_shown_at_once() {
        let mut matcher = StopStrings::new(Stops::new(&["</s>"]).unwrap());
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
                let mut matcher = StopStrings::new(Stops::new(&["END"]).unwrap()).outside(asides.clone());
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
