//! Marks of time in the tokens of a window: its segments, and the start of the next window.

use std::ops::Range;

/// A part of a window's tokens, with its time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Piece {
    /// Start in seconds from the start of the audio.
    pub(crate) start: f64,
    /// End in seconds from the start of the audio.
    pub(crate) end: f64,
    /// Range in the window's tokens.
    pub(crate) tokens: Range<usize>,
}

/// The pieces of a window's result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pieces {
    pub(crate) pieces: Vec<Piece>,
    /// Frames from this window's start to the next.
    pub(crate) advance: usize,
    /// True if the last mark of time is not followed by another: there is no speech after it.
    pub(crate) ends_in_silence: bool,
}

/// Position of a window, and meaning of its marks of time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// Index of the first frame.
    pub(crate) seek: usize,
    /// Number of frames; fewer at the end of the sound than in a whole window.
    pub(crate) n_frames: usize,
    /// Frames from one mark of time to the next.
    pub(crate) frames_per_mark: usize,
    /// The token of the mark at the window's start.
    pub(crate) first_mark: u32,
}

/// Maximum number of tokens of the shortest sound. Each second of sound adds more.
const LEAST_TOKENS: usize = 8;
const TOKENS_PER_SECOND: usize = 32;

/// Frames are 10 ms apart.
pub(crate) const FRAMES_PER_SECOND: f64 = 100.0;

impl Window {
    /// Start of the window, in seconds.
    pub(crate) fn start(&self) -> f64 {
        self.seek as f64 / FRAMES_PER_SECOND
    }

    /// Maximum number of tokens of speech in this window, including marks of time. Fast speech has
    /// five words a second, with two or three tokens a word in most languages. A longer text is not
    /// speech, so the search ends there.
    pub(crate) fn max_tokens(&self) -> usize {
        LEAST_TOKENS + self.n_frames * TOKENS_PER_SECOND / FRAMES_PER_SECOND as usize
    }

    /// True if the sound is at least half a second long, so that another temperature may find more.
    pub(crate) fn is_worth_retrying(&self) -> bool {
        self.n_frames as f64 >= FRAMES_PER_SECOND / 2.0
    }

    /// Frames from the window's start to a mark of time; `None` for other tokens.
    fn frames(&self, token: u32) -> Option<usize> {
        Some(token.checked_sub(self.first_mark)? as usize * self.frames_per_mark)
    }

    /// Splits tokens at pairs of marks of time. Text after the last pair is unfinished: the next
    /// window begins at the pair and decodes it again. Without a pair there is one piece, and the
    /// next window begins at the end of this one.
    pub(crate) fn cut(&self, tokens: &[u32]) -> Pieces {
        let is_time = |token: u32| token >= self.first_mark;
        let seconds = |frames: usize| self.start() + frames as f64 / FRAMES_PER_SECOND;
        let ends_in_silence = matches!(tokens, [.., before, last] if !is_time(*before) && is_time(*last));
        let pairs = tokens.windows(2).enumerate();
        let mut cuts: Vec<usize> = pairs
            .filter(|(_, pair)| pair.iter().all(|token| is_time(*token)))
            .map(|(index, _)| index + 1)
            .collect();
        if cuts.is_empty() {
            let last = tokens.iter().rev().find_map(|token| self.frames(*token)).filter(|frames| *frames > 0);
            let end = seconds(last.unwrap_or(self.n_frames));
            let piece = Piece { start: self.start(), end, tokens: 0..tokens.len() };
            return Pieces { pieces: vec![piece], advance: self.n_frames, ends_in_silence };
        }
        if ends_in_silence {
            cuts.push(tokens.len());
        }
        let mut pieces = Vec::with_capacity(cuts.len());
        let (mut from, mut heard) = (0, 0);
        for to in cuts {
            let part = tokens.get(from..to).unwrap_or_default();
            let frames = |token: Option<&u32>| token.and_then(|token| self.frames(*token)).unwrap_or(0);
            heard = frames(part.last());
            pieces.push(Piece {
                start: seconds(frames(part.first())),
                end: seconds(heard),
                tokens: from..to,
            });
            from = to;
        }
        // If the last pair is at the start of the window, the next window would be the same one.
        let advance = if ends_in_silence || heard == 0 { self.n_frames } else { heard };
        Pieces { pieces, advance, ends_in_silence }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window at 30 s with 20 s left; its marks begin at 100.
    const WINDOW: Window = Window { seek: 3000, n_frames: 2000, frames_per_mark: 2, first_mark: 100 };

    fn piece(start: f64, end: f64, tokens: Range<usize>) -> Piece {
        Piece { start, end, tokens }
    }

    #[test]
    fn pairs_cut_and_the_rest_is_heard_again() {
        let found = WINDOW.cut(&[100, 1, 2, 150, 150, 3, 200, 210, 4]);
        let pieces = vec![piece(30.0, 31.0, 0..4), piece(31.0, 32.0, 4..7)];
        assert_eq!(found, Pieces { pieces, advance: 200, ends_in_silence: false });
    }

    #[test]
    fn a_last_mark_alone_is_silence_to_the_end() {
        let found = WINDOW.cut(&[100, 1, 150, 150, 3, 200]);
        let pieces = vec![piece(30.0, 31.0, 0..3), piece(31.0, 32.0, 3..6)];
        assert_eq!(found, Pieces { pieces, advance: 2000, ends_in_silence: true });
        let found = WINDOW.cut(&[100, 1, 150]);
        let pieces = vec![piece(30.0, 31.0, 0..3)];
        assert_eq!(found, Pieces { pieces, advance: 2000, ends_in_silence: true });
    }

    #[test]
    fn without_a_pair_all_is_one() {
        for (tokens, end) in
            [(&[100, 1, 2][..], 50.0), (&[1, 2], 50.0), (&[], 50.0), (&[100, 1, 130, 2], 30.6)]
        {
            let found = WINDOW.cut(tokens);
            assert_eq!(found.pieces, [piece(30.0, end, 0..tokens.len())], "{tokens:?}");
            assert_eq!((found.advance, found.ends_in_silence), (2000, false));
        }
    }

    #[test]
    fn short_sounds_are_short_texts() {
        let of = |n_frames| Window { n_frames, ..WINDOW };
        assert_eq!([1, 5, 100, 3000].map(|n| of(n).max_tokens()), [8, 9, 40, 968]);
        assert_eq!([1, 49, 50].map(|n| of(n).is_worth_retrying()), [false, false, true]);
    }

    #[test]
    fn every_window_goes_on() {
        let found = WINDOW.cut(&[100, 1, 100, 100, 2]);
        assert_eq!(found.advance, 2000);
    }
}
