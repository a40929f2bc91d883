//! The tokens that may follow a hypothesis, and their probabilities.
//!
//! A hypothesis is text between marks of time. A mark begins the text, another ends it, and the
//! next text begins with a mark again: `<|0.00|> one<|1.20|><|1.20|> two<|2.40|>`. Marks of time
//! never decrease. If all marks together are more probable than any single word, the next token is
//! a mark. (These are the rules of openai-whisper's decoding.)

use std::ops::Range;

use model::SpeechTokens;

use crate::math;
use crate::options::TranscribeOptions;

/// Seconds from one mark of time to the next: a window has marks from 0.00 to 30.00 s.
const SECONDS_PER_MARK: f32 = 0.02;

/// The rules for one vocabulary.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    eot: u32,
    /// The mark of 0.00 s; all larger ids up to `end_mark` are marks of time.
    first_mark: u32,
    /// The id after the last mark of time.
    end_mark: u32,
    /// The last mark of time with which a hypothesis may begin.
    last_initial_mark: u32,
    timestamps: bool,
    /// Ids that are never allowed, ascending.
    suppress: Vec<u32>,
    /// Ids that are not allowed at the start.
    suppress_begin: Vec<u32>,
}

/// The tokens that may come next, before suppressed tokens are removed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Allowed {
    /// Text, and in it the ids below `eot`.
    text: bool,
    /// The end token, and other special tokens that are not marks of time.
    marks: bool,
    /// Marks of time that are allowed.
    times: Range<u32>,
}

/// The tokens that may come next, and the normaliser of their log-probabilities.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scored {
    /// Ranges of allowed ids. Single ids inside them may have a logit of minus infinity.
    pub(crate) ids: [Range<usize>; 2],
    /// The normaliser: `log p = logit - normaliser`.
    pub(crate) normaliser: f32,
}

impl Rules {
    /// Creates the rules for a vocabulary with marks up to `n_vocab`, and windows of `n_marks`
    /// marks.
    pub(crate) fn new(
        tokens: &SpeechTokens,
        n_marks: usize,
        n_vocab: usize,
        options: &TranscribeOptions,
    ) -> Rules {
        let first_mark = tokens.timestamp_begin;
        let end_mark = (first_mark as usize).saturating_add(n_marks).min(n_vocab) as u32;
        let n_initial = (options.max_initial_timestamp / SECONDS_PER_MARK).round() as u32;
        let mut suppress = match options.suppress_non_speech {
            true => tokens.suppress.clone(),
            false => Vec::new(),
        };
        let specials = [
            tokens.sot,
            tokens.sot_prev,
            tokens.sot_lm,
            tokens.no_speech,
            tokens.no_timestamps,
            tokens.transcribe,
            tokens.translate,
        ];
        // A model of one language may use its end token as a task, and the end must stay allowed.
        suppress.extend(specials.into_iter().filter(|id| *id != tokens.eot));
        suppress.retain(|id| *id != tokens.eot && (*id as usize) < n_vocab);
        suppress.sort_unstable();
        suppress.dedup();
        let mut suppress_begin = match options.suppress_blank {
            true => tokens.suppress_begin.clone(),
            false => Vec::new(),
        };
        suppress_begin.retain(|id| (*id as usize) < n_vocab);
        Rules {
            eot: tokens.eot,
            first_mark,
            end_mark,
            last_initial_mark: first_mark.saturating_add(n_initial),
            timestamps: options.timestamps && first_mark < end_mark,
            suppress,
            suppress_begin,
        }
    }

    /// The token that ends a hypothesis.
    pub(crate) fn eot(&self) -> u32 {
        self.eot
    }

    fn is_time(&self, token: u32) -> bool {
        token >= self.first_mark
    }

    /// The tokens that may follow a hypothesis.
    fn allowed(&self, tokens: &[u32]) -> Allowed {
        if !self.timestamps {
            return Allowed { text: true, marks: true, times: 0..0 };
        }
        let Some((&last, before)) = tokens.split_last() else {
            let end = self.last_initial_mark.saturating_add(1).min(self.end_mark);
            return Allowed { text: false, marks: false, times: self.first_mark..end };
        };
        let latest = tokens.iter().rev().copied().find(|&token| self.is_time(token));
        if !self.is_time(last) {
            // Text continues, or ends at a later time than its start.
            let from = latest.map_or(self.first_mark, |mark| mark + 1);
            return Allowed { text: true, marks: true, times: from..self.end_mark };
        }
        match before.last() {
            // Text has ended: the next token is the end, or a mark at the same time or later.
            Some(&before) if !self.is_time(before) => {
                Allowed { text: false, marks: true, times: last..self.end_mark }
            }
            // Text must follow.
            _ => Allowed { text: true, marks: true, times: 0..0 },
        }
    }

    /// Applies the rules to the logits `(n_vocab)` after `tokens`: suppressed logits become minus
    /// infinity.
    pub(crate) fn score(&self, tokens: &[u32], logits: &mut [f32]) -> Scored {
        let mut forbid = |ids: &[u32]| {
            for &id in ids {
                if let Some(logit) = logits.get_mut(id as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        };
        forbid(&self.suppress);
        if tokens.is_empty() {
            forbid(&self.suppress_begin);
        }
        let allowed = self.allowed(tokens);
        let n = logits.len();
        let clip = |range: Range<u32>| (range.start as usize).min(n)..(range.end as usize).min(n);
        let text = clip(match (allowed.text, allowed.marks) {
            (true, true) => 0..self.first_mark,
            (true, false) => 0..self.eot,
            (false, true) => self.eot..self.first_mark,
            (false, false) => 0..0,
        });
        let times = clip(allowed.times);
        let of = |range: &Range<usize>| logits.get(range.clone()).unwrap_or_default();
        let highest = math::max(of(&text));
        let (of_text, of_times) = match highest {
            f32::NEG_INFINITY => (highest, math::log_sum_exp(of(&times))),
            _ => (highest + math::sum_exp(of(&text), highest).ln(), math::log_sum_exp(of(&times))),
        };
        // All marks of time together are more probable than any other token.
        if of_times > highest {
            return Scored { ids: [0..0, times], normaliser: of_times };
        }
        Scored { ids: [text, times], normaliser: math::log_add_exp(of_text, of_times) }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A vocabulary with text 0 to 9, eot 10, special tokens 11 to 17, and marks 20 to 29 (0.00 to
    /// 0.18 s).
    pub(crate) fn tokens() -> SpeechTokens {
        SpeechTokens {
            eot: 10,
            sot: 11,
            multilingual: true,
            languages: vec![("en".into(), 18)],
            translate: 12,
            transcribe: 13,
            sot_lm: 14,
            sot_prev: 15,
            no_speech: 16,
            no_timestamps: 17,
            timestamp_begin: 20,
            suppress: vec![3, 12],
            suppress_begin: vec![5, 10],
        }
    }

    fn rules(options: &TranscribeOptions) -> Rules {
        Rules::new(&tokens(), 10, 40, options)
    }

    fn timed() -> Rules {
        rules(&TranscribeOptions { max_initial_timestamp: 0.04, ..TranscribeOptions::default() })
    }

    #[test]
    fn marks_of_time_come_in_pairs_and_never_go_back() {
        let rules = timed();
        let allowed = |tokens: &[u32]| rules.allowed(tokens);
        let only = |times: Range<u32>| Allowed { text: false, marks: false, times };
        assert_eq!(allowed(&[]), only(20..23));
        let text = Allowed { text: true, marks: true, times: 0..0 };
        assert_eq!(allowed(&[21]), text);
        assert_eq!(allowed(&[21, 1]), Allowed { text: true, marks: true, times: 22..30 });
        assert_eq!(allowed(&[21, 1, 25]), Allowed { text: false, marks: true, times: 25..30 });
        assert_eq!(allowed(&[21, 1, 25, 26]), text);
        assert_eq!(allowed(&[21, 1, 25, 26, 2]), Allowed { text: true, marks: true, times: 27..30 });
    }

    #[test]
    fn suppressed_tokens_have_no_probability() {
        let free = TranscribeOptions { timestamps: false, ..TranscribeOptions::default() };
        let mut logits = vec![0.0; 40];
        let scored = rules(&free).score(&[], &mut logits);
        let out: Vec<usize> = (0..20).filter(|id| logits[*id] == f32::NEG_INFINITY).collect();
        assert_eq!(out, [3, 5, 10, 11, 12, 13, 14, 15, 16, 17]);
        assert_eq!(scored.ids, [0..20, 0..0]);
        assert!((scored.normaliser - 10f32.ln()).abs() < 1e-6);
        let mut logits = vec![0.0; 40];
        rules(&free).score(&[1], &mut logits);
        assert!(logits[5] == 0.0 && logits[10] == 0.0, "only first");
        let all = TranscribeOptions { suppress_non_speech: false, suppress_blank: false, ..free };
        let mut logits = vec![0.0; 40];
        rules(&all).score(&[], &mut logits);
        assert!(logits[3] == 0.0 && logits[5] == 0.0 && logits[12] == f32::NEG_INFINITY);
    }

    #[test]
    fn likely_marks_of_time_together_win() {
        let rules = timed();
        // Eight marks at 0 sum to e^2.08. A word at 2 is less probable, and a word at 2.2 more.
        let mut logits = vec![-10.0; 40];
        logits[22..30].fill(0.0);
        logits[1] = 2.0;
        let scored = rules.score(&[21, 1], &mut logits.clone());
        assert_eq!(scored.ids, [0..0, 22..30]);
        assert!((scored.normaliser - 8f32.ln()).abs() < 1e-5);
        logits[1] = 2.2;
        let scored = rules.score(&[21, 1], &mut logits);
        assert_eq!(scored.ids, [0..20, 22..30]);
        let exact = (8.0 + 2.2f64.exp() + 11.0 * (-10f64).exp()).ln();
        assert!((f64::from(scored.normaliser) - exact).abs() < 1e-4);
    }

    #[test]
    fn short_rows_and_small_vocabularies_are_no_danger() {
        let rules = timed();
        for n in [0, 5, 12, 25] {
            rules.score(&[21, 1], &mut vec![0.5; n]);
            rules.score(&[], &mut vec![0.5; n]);
        }
    }
}
