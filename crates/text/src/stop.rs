//! Stop strings in a stream. Text that may begin a stop string is held back until that is decided.
//!
//! All strings are searched at once (Aho and Corasick 1975), so the time for each byte does not
//! depend on their number.

use std::sync::Arc;

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, MatchKind};

use crate::{Asides, Error, Result};

/// Result of adding a piece of text.
#[derive(Debug, PartialEq, Eq)]
pub struct Released<'a> {
    /// Text that cannot be part of a stop string. It is valid until the next call.
    pub text: &'a str,
    /// The stop string that ended the text, as an index into the given list. Text after it is
    /// dropped.
    pub stop: Option<usize>,
}

/// Compiled stop strings for any number of texts. Cheap to clone; [`Default`] has none.
#[derive(Clone, Debug, Default)]
pub struct Stops(Option<Arc<Searched>>);

#[derive(Debug)]
struct Searched {
    texts: Vec<String>,
    nfa: NFA,
    start: StateID,
    /// Index into `texts` of each pattern of `nfa`. Empty texts have no pattern.
    patterns: Vec<usize>,
    /// States by id, each with its number of bytes of a stop string.
    depths: Vec<(StateID, usize)>,
    /// Bytes of the longest string.
    longest: usize,
}

impl Stops {
    /// Compiles these strings; empty ones are never found.
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

    /// Returns true if there is no string to find.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Passes on the index of each string that occurs in `bytes`.
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

    /// The string of an index into the given list.
    pub fn get(&self, index: usize) -> Option<&str> {
        self.0.as_ref()?.texts.get(index).map(String::as_str)
    }
}

impl Searched {
    /// Bytes at the end of the text in `state` that begin a stop string, as many as possible.
    fn depth(&self, state: StateID) -> usize {
        let found = self.depths.binary_search_by_key(&state, |(state, _)| *state);
        found.ok().and_then(|index| self.depths.get(index)).map_or(0, |(_, depth)| *depth)
    }

    /// The longest stop string that is complete in `state`: its index and its bytes.
    fn complete(&self, state: StateID) -> Option<(usize, usize)> {
        if !self.nfa.is_match(state) {
            return None;
        }
        // A state's matches begin with the longest; the others are its suffixes.
        let index = self.patterns.get(self.nfa.match_pattern(state, 0).as_usize()).copied()?;
        Some((index, self.texts.get(index)?.len()))
    }
}

/// Finds stop strings in text that arrives in pieces. The first complete string ends the text; of
/// those complete at the same byte, the longest. The result does not depend on the pieces.
///
/// It allocates when it is made, for a piece longer than any before (1 KiB is preallocated), and
/// while it follows asides.
#[derive(Clone)]
pub struct StopStrings {
    stops: Stops,
    /// The state after the text so far; unused without stop strings.
    state: Option<StateID>,
    /// Text released by the last call, then text held back.
    buffer: String,
    /// Bytes of `buffer` that the last call released.
    shown: usize,
    asides: Option<Asides>,
}

impl StopStrings {
    /// Makes a search for these strings.
    pub fn new(stops: Stops) -> StopStrings {
        let (state, longest) =
            stops.0.as_ref().map_or((None, 0), |searched| (Some(searched.start), searched.longest));
        StopStrings { stops, state, buffer: String::with_capacity(longest + 1024), shown: 0, asides: None }
    }

    /// Restricts the search to text outside of asides.
    #[must_use]
    pub fn outside(self, asides: Option<Asides>) -> StopStrings {
        // Without stop strings there is no search.
        StopStrings { asides: asides.filter(|_| !self.stops.is_empty()), ..self }
    }

    /// Adds a piece and returns the text that may be shown. After a stop string, start over with
    /// [`StopStrings::reset`].
    pub fn push(&mut self, piece: &str) -> Released<'_> {
        self.buffer.drain(..self.shown);
        let mut at = self.buffer.len();
        self.buffer.push_str(piece);
        while at < self.buffer.len() {
            let rest = self.buffer.get(at..).unwrap_or_default();
            let (n, is_aside) = self.asides.as_mut().map_or((rest.len(), false), |asides| asides.next(rest));
            let end = at + n;
            if !is_aside && let Some((stop, start)) = self.find(at, end) {
                self.shown = start;
                return Released { text: self.buffer.get(..start).unwrap_or_default(), stop: Some(stop) };
            }
            at = end;
            if is_aside || self.asides.as_ref().is_some_and(Asides::is_within) {
                // No stop string spans the border of an aside.
                self.begin();
            }
        }
        // Asides are released at once.
        self.shown = self.buffer.len() - self.n_held();
        Released { text: self.buffer.get(..self.shown).unwrap_or_default(), stop: None }
    }

    /// Ends the text and returns the text held back.
    pub fn finish(&mut self) -> &str {
        self.buffer.drain(..self.shown);
        self.shown = self.buffer.len();
        &self.buffer
    }

    /// Forgets all text and starts over.
    pub fn reset(&mut self) {
        self.buffer.clear();
        self.shown = 0;
        self.begin();
        if let Some(asides) = &mut self.asides {
            asides.reset();
        }
    }

    fn begin(&mut self) {
        self.state = self.stops.0.as_ref().map(|searched| searched.start);
    }

    /// The stop string that is complete first, at a byte in `begin..end`, and its start.
    fn find(&mut self, begin: usize, end: usize) -> Option<(usize, usize)> {
        let (searched, state) = (self.stops.0.as_ref()?, self.state.as_mut()?);
        let bytes = self.buffer.as_bytes().get(begin..end).unwrap_or_default();
        bytes.iter().enumerate().find_map(|(index, byte)| {
            *state = searched.nfa.next_state(Anchored::No, *state, *byte);
            let (stop, len) = searched.complete(*state)?;
            Some((stop, (begin + index + 1).saturating_sub(len)))
        })
    }

    /// Bytes at the end of the buffer that begin a stop string, as many as possible.
    fn n_held(&self) -> usize {
        let held = self.stops.0.as_ref().zip(self.state).map_or(0, |(searched, state)| searched.depth(state));
        held.min(self.buffer.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds a text in pieces of `n` characters. Returns the released text and the stop string
    /// found.
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
    fn the_pieces_make_no_difference() {
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

    /// The definition: at each byte every string, and at the end of a piece every start of each.
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
        // Comparing every string at every byte would take an hour.
        assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{:?}", begun.elapsed());
    }

    #[test]
    fn text_that_begins_no_stop_string_is_released_at_once() {
        let mut matcher = StopStrings::new(Stops::new(&["</s>"]).unwrap());
        assert_eq!(matcher.push("Hello <"), Released { text: "Hello ", stop: None });
        assert_eq!(matcher.push("b>"), Released { text: "<b>", stop: None });
        assert_eq!(matcher.push("x</s>y"), Released { text: "x", stop: Some(0) });
        matcher.reset();
        assert_eq!(matcher.push("y"), Released { text: "y", stop: None });
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn asides_do_not_stop_whatever_the_pieces() {
        use crate::AnswerFormat;
        let tools = [serde_json::json!({ "type": "function", "function": { "name": "f" } })];
        let (hermes, llama3, mistral, harmony) = (
            AnswerFormat::detect("<think> <tool_call>"),
            AnswerFormat::detect("tools \"parameters\":"),
            AnswerFormat::detect("[TOOL_CALLS] [ARGS]"),
            AnswerFormat::detect("<|channel|> <|message|>"),
        );
        let call = "<tool_call>{\"name\": \"f\", \"arguments\": {\"END\": 1}}</tool_call>";
        let bare = "{\"name\": \"f\", \"parameters\": {\"END\": 1}}";
        let channels =
            "<|channel|>analysis<|message|>END<|end|><|start|>assistant<|channel|>final<|message|>a ";
        let in_message = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\":\"END\"}";
        // Format, prompt, answer, released text, and true if it stops.
        let cases: Vec<(AnswerFormat, &str, String, String, bool)> = vec![
            (hermes, "<think>", "x END y</think> z END".into(), "x END y</think> z ".into(), true),
            (hermes, "", " <think>x END</think>zéEND".into(), " <think>x END</think>zé".into(), true),
            (hermes, "", "x END".into(), "x ".into(), true),
            (hermes, "", "x <think>END".into(), "x <think>".into(), true),
            (hermes, "<think>", "x END y".into(), "x END y".into(), false),
            (hermes, "", "<think>EN</think>D".into(), "<think>EN</think>D".into(), false),
            (hermes, "", "ENx END ".into(), "ENx ".into(), true),
            // A stop string before an aside ends the text, whatever the pieces.
            (hermes, "", format!("x END{call}"), "x ".into(), true),
            (hermes, "", format!("{call}EN{call}D END"), format!("{call}EN{call}D "), true),
            (
                hermes,
                "",
                format!("<think>END</think> {call} END"),
                format!("<think>END</think> {call} "),
                true,
            ),
            // A mark in prose opens no call.
            (hermes, "", "The <tool_call> mark. END".into(), "The <tool_call> mark. ".into(), true),
            (hermes, "", "`<tool_call>`END".into(), "`<tool_call>`".into(), true),
            (hermes, "", "<tool_call>END".into(), "<tool_call>".into(), true),
            (
                mistral,
                "",
                "y [TOOL_CALLS]f[ARGS]{\"a\": \"END\"} END".into(),
                "y [TOOL_CALLS]f[ARGS]{\"a\": \"END\"} ".into(),
                true,
            ),
            (mistral, "", "The [TOOL_CALLS] mark. END".into(), "The [TOOL_CALLS] mark. ".into(), true),
            (llama3, "", format!(" {bare}"), format!(" {bare}"), false),
            (llama3, "", "x {END".into(), "x {".into(), true),
            (llama3, "", "{\"answer\": \"END\"}".into(), "{\"answer\": \"".into(), true),
            (harmony, "", in_message.into(), in_message.into(), false),
            (harmony, "", format!("{channels}END"), channels.into(), true),
        ];
        for (format, prompt, text, expected, stops) in cases {
            for n in 1..=text.chars().count() {
                let asides = format.asides(prompt, &tools);
                let mut matcher = StopStrings::new(Stops::new(&["END"]).unwrap()).outside(Some(asides));
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
                assert_eq!(
                    (shown.as_str(), stopped),
                    (expected.as_str(), stops),
                    "{text:?} in pieces of {n}"
                );
            }
        }
    }
}
