//! Words of segments with plausible times, from the words of a window.
//!
//! Attention locates a word well, but not the silence around it, so a word at a pause comes out as
//! long as the pause. Such words are cut to twice the usual length. If words disagree with the
//! marks of time of their segment, the time that is nearer to the other words wins. The rules and
//! constants are those of openai-whisper's `timing.py`.

use crate::transcript::{Word, round_time};
use crate::words::{TimedWord, join_punctuation};

/// Longest usual length of a word, in seconds.
const MAX_MEDIAN: f64 = 0.7;
/// Time by which a word may exceed its segment, in seconds.
const OUTSIDE: f64 = 0.5;
/// Usual lengths that make a pause.
const PAUSE: f64 = 4.0;
const SENTENCE_ENDS: &str = ".。!！?？";

/// A segment according to its marks of time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TimeSpan {
    /// Start in seconds from the start of the audio.
    pub(crate) start: f64,
    /// End in seconds from the start of the audio.
    pub(crate) end: f64,
    /// Number of its text tokens.
    pub(crate) n_tokens: usize,
}

/// Usual length of the words in a window, in seconds.
#[derive(Clone, Copy, Debug)]
struct Usual {
    median: f64,
    /// Twice the median.
    longest: f64,
}

impl Usual {
    fn of(words: &[TimedWord]) -> Usual {
        let mut lengths: Vec<f64> = words.iter().map(|w| w.end - w.start).filter(|l| *l != 0.0).collect();
        lengths.sort_by(f64::total_cmp);
        let middle = lengths.len() / 2;
        let at = |index: usize| lengths.get(index).copied().unwrap_or(0.0);
        let median = match lengths.len() {
            0 => 0.0,
            n if n % 2 == 1 => at(middle),
            _ => (at(middle - 1) + at(middle)) / 2.0,
        };
        let median = median.min(MAX_MEDIAN);
        Usual { median, longest: 2.0 * median }
    }
}

/// Assigns the words of a window that begins at `window_start` to its segments, and adjusts the
/// times of segments to their words. `last_speech` is the end of the last word, and is updated. All
/// times are in seconds.
pub(crate) fn assign(
    mut words: Vec<TimedWord>,
    spans: &mut [TimeSpan],
    window_start: f64,
    last_speech: &mut f64,
    [prepended, appended]: [&str; 2],
) -> Vec<Vec<Word>> {
    let usual = Usual::of(&words);
    cut_at_sentences(&mut words, usual);
    join_punctuation(&mut words, prepended, appended);
    let mut words = words.into_iter().peekable();
    let mut all = Vec::with_capacity(spans.len());
    for span in spans {
        let mut own: Vec<Word> = Vec::new();
        let mut n_tokens = 0;
        while n_tokens < span.n_tokens
            && let Some(word) = words.next()
        {
            n_tokens += word.n_tokens;
            if !word.text.is_empty() {
                own.push(Word {
                    start: round_time(window_start + word.start),
                    end: round_time(window_start + word.end),
                    word: word.text,
                    probability: word.probability,
                });
            }
        }
        if !own.is_empty() {
            cut_after_pause(&mut own, usual, *last_speech);
            agree(&mut own, span, usual);
            *last_speech = span.end;
        }
        all.push(own);
    }
    all
}

/// Limits the mark at the end of a sentence, and the word after it, to the usual length.
fn cut_at_sentences(words: &mut [TimedWord], usual: Usual) {
    if usual.median == 0.0 {
        return;
    }
    let ends = |word: &TimedWord| SENTENCE_ENDS.contains(word.text.as_str());
    for at in 1..words.len() {
        let Some([previous, word]) = words.get_mut(at - 1..=at).and_then(|pair| pair.as_mut_array()) else {
            return;
        };
        if word.end - word.start > usual.longest {
            if ends(word) {
                word.end = word.start + usual.longest;
            } else if ends(previous) {
                word.start = word.end - usual.longest;
            }
        }
    }
}

/// Limits the first words after a pause to the usual length.
fn cut_after_pause(words: &mut [Word], usual: Usual, last_speech: f64) {
    let (first, second) = match words {
        [first, second, ..] => (first, Some(second)),
        [first] => (first, None),
        [] => return,
    };
    let length = |word: &Word| word.end - word.start;
    let both = second.as_ref().is_some_and(|second| second.end - first.start > 2.0 * usual.longest);
    if first.end - last_speech <= PAUSE * usual.median || !(length(first) > usual.longest || both) {
        return;
    }
    if let Some(second) = second.filter(|second| length(second) > usual.longest) {
        let boundary = (second.end / 2.0).max(second.end - usual.longest);
        first.end = boundary;
        second.start = boundary;
    }
    first.start = (first.end - usual.longest).max(0.0);
}

/// Sets the start and end of a segment to those of its words, unless a word is too far outside the
/// segment's marks.
fn agree(words: &mut [Word], span: &mut TimeSpan, usual: Usual) {
    if let Some(first) = words.first_mut() {
        if span.start < first.end && span.start - OUTSIDE > first.start {
            first.start = (first.end - usual.median).min(span.start).max(0.0);
        } else {
            span.start = first.start;
        }
    }
    if let Some(last) = words.last_mut() {
        if span.end > last.start && span.end + OUTSIDE < last.end {
            last.end = (last.start + usual.median).max(span.end);
        } else {
            span.end = last.end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &str, start: f64, end: f64) -> TimedWord {
        TimedWord { text: text.into(), n_tokens: 1, start, end, probability: 0.5 }
    }

    fn run(
        words: Vec<TimedWord>,
        spans: &mut [TimeSpan],
        last_speech: &mut f64,
    ) -> Vec<Vec<(String, f64, f64)>> {
        let found = assign(words, spans, 30.0, last_speech, ["\"", ".,\""]);
        let plain = |w: Word| (w.word, w.start, round_time(w.end));
        found.into_iter().map(|words| words.into_iter().map(plain).collect()).collect()
    }

    #[test]
    fn words_go_to_their_segments() {
        let words =
            vec![word(" a", 0.0, 0.5), word(" b", 0.5, 1.0), word(".", 1.0, 1.1), word(" c", 1.2, 1.6)];
        let mut spans = vec![
            TimeSpan { start: 30.0, end: 31.2, n_tokens: 3 },
            TimeSpan { start: 31.2, end: 32.0, n_tokens: 1 },
            TimeSpan { start: 32.0, end: 33.0, n_tokens: 2 },
        ];
        let mut last_speech = 29.9;
        let found = run(words, &mut spans, &mut last_speech);
        let at = |text: &str, start, end| (text.to_string(), start, end);
        assert_eq!(
            found,
            [vec![at(" a", 30.0, 30.5), at(" b.", 30.5, 31.0)], vec![at(" c", 31.2, 31.6)], vec![]]
        );
        assert_eq!((spans[0].end, spans[1].start, spans[1].end), (31.0, 31.2, 31.6));
        assert_eq!((last_speech, spans[2].end), (31.6, 33.0));
    }

    #[test]
    fn the_first_word_after_a_pause_is_cut() {
        // The usual length is 0.5: a first word of 9 s begins where a word of 1 s would.
        let words = vec![word(" a", 0.0, 9.0), word(" b", 9.0, 9.5), word(" c", 9.5, 10.0)];
        let mut spans = vec![TimeSpan { start: 30.0, end: 40.0, n_tokens: 3 }];
        let found = run(words, &mut spans, &mut 0.0);
        assert_eq!(found[0][0], (" a".to_string(), 38.0, 39.0));
        assert_eq!(spans[0].start, 38.0);
    }

    #[test]
    fn a_long_mark_at_the_end_of_a_sentence_is_cut() {
        let words =
            vec![word(" a", 0.0, 0.4), word(".", 0.4, 6.0), word(" b", 6.0, 6.4), word(" c", 6.4, 6.8)];
        let mut spans = vec![
            TimeSpan { start: 30.0, end: 31.0, n_tokens: 2 },
            TimeSpan { start: 36.0, end: 37.0, n_tokens: 2 },
        ];
        let found = run(words, &mut spans, &mut 29.0);
        assert_eq!(found[0], [(" a.".to_string(), 30.0, 30.4)]);
        assert_eq!(found[1][0], (" b".to_string(), 36.0, 36.4));
    }

    #[test]
    fn marks_of_time_win_over_words_far_outside() {
        let words = vec![word(" a", 0.0, 2.0), word(" b", 2.0, 2.2), word(" c", 2.2, 4.0)];
        let mut spans = vec![TimeSpan { start: 31.5, end: 32.5, n_tokens: 3 }];
        // The median is 1.8, limited to 0.7: the last word ends no earlier than its start plus 0.7.
        let found = run(words, &mut spans, &mut 29.9);
        assert_eq!(found[0][0].1, 31.3);
        assert_eq!(found[0][2], (" c".to_string(), 32.2, 32.9));
        assert_eq!((spans[0].start, spans[0].end), (31.5, 32.5));
    }

    #[test]
    fn no_words_no_change() {
        let mut spans = vec![TimeSpan { start: 1.0, end: 2.0, n_tokens: 4 }];
        assert_eq!(run(vec![], &mut spans, &mut 0.5), [vec![]]);
        assert_eq!(spans[0], TimeSpan { start: 1.0, end: 2.0, n_tokens: 4 });
    }
}
