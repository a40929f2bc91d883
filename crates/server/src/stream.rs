//! Between a model's thread and the reader of an answer.
//!
//! The engine's thread writes, a task of tokio's reads. What the reader has not taken yet is kept as one piece for each choice, so a
//! slow reader costs memory for its own answer and nothing else; the writer never waits.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use engine::{CancelFlag, FinishReason, Progress, Timings};
use tokio::sync::Notify;

use crate::request::Caller;

/// A token as the engine gave it.
#[derive(Clone, Debug)]
pub(crate) struct ChosenToken {
    pub(crate) id: u32,
    pub(crate) logprob: Option<f32>,
    /// The likeliest in its place: ids and log-probabilities.
    pub(crate) top: Vec<(u32, f32)>,
}

/// How a choice ended.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) reason: FinishReason,
    pub(crate) timings: Timings,
    pub(crate) seed: u64,
}

/// What one choice has said since its reader looked last.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub(crate) text: String,
    pub(crate) tokens: Vec<ChosenToken>,
    /// Tokens of the prompt, all but the first.
    pub(crate) prompt: Vec<ChosenToken>,
    /// How far the prompt is, oldest first; the first and the last of what came.
    pub(crate) progress: Vec<Progress>,
    /// At its last token.
    pub(crate) timings: Timings,
    pub(crate) ended: Option<Ended>,
}

impl Piece {
    fn is_empty(&self) -> bool {
        self.text.is_empty()
            && self.tokens.is_empty()
            && self.prompt.is_empty()
            && self.progress.is_empty()
            && self.ended.is_none()
    }

    fn clear(&mut self) {
        self.text.clear();
        self.tokens.clear();
        self.prompt.clear();
        self.progress.clear();
        self.timings = Timings::default();
        self.ended = None;
    }

    /// The prompt is so far. A slow reader learns where it began and where it is.
    pub(crate) fn note_progress(&mut self, progress: Progress) {
        self.progress.truncate(1);
        self.progress.push(progress);
    }
}

/// What all choices have said.
#[derive(Debug)]
struct Pieces {
    /// `(n_choices)` since the reader looked last.
    new: Vec<Piece>,
    /// `(n_choices)` whether it has ended: nothing follows.
    is_over: Vec<bool>,
}

/// Shared by the two sides.
#[derive(Debug)]
pub(crate) struct Channel {
    pieces: Mutex<Pieces>,
    wake: Notify,
    /// A choice has ended: a reader that paces itself is not to wait.
    ended: Notify,
    /// Of each choice, and one for all that a fork may add.
    cancel: Vec<CancelFlag>,
    /// For lists of what runs.
    pub(crate) activity: Activity,
}

/// What is known of a request while it runs.
#[derive(Debug)]
pub(crate) struct Activity {
    pub(crate) request_id: String,
    /// Whose request it is.
    pub(crate) tenant: u64,
    pub(crate) n_prompt: usize,
    pub(crate) n_decoded: AtomicUsize,
    /// Of the prompt; known from the first token on.
    pub(crate) n_cached: AtomicUsize,
    pub(crate) since: Instant,
}

impl Channel {
    /// For as many choices as there are flags.
    pub(crate) fn new(caller: &Caller, n_prompt: usize, cancel: Vec<CancelFlag>) -> Arc<Channel> {
        Arc::new(Channel {
            pieces: Mutex::new(Pieces {
                new: cancel.iter().map(|_| Piece::default()).collect(),
                is_over: vec![false; cancel.len()],
            }),
            wake: Notify::new(),
            ended: Notify::new(),
            cancel,
            activity: Activity {
                request_id: caller.request_id.clone(),
                tenant: caller.tenant,
                n_prompt,
                n_decoded: AtomicUsize::new(0),
                n_cached: AtomicUsize::new(0),
                since: Instant::now(),
            },
        })
    }

    /// The engine's side: add to a choice, unless it has ended, and wake the reader.
    pub(crate) fn write(&self, choice: usize, add: impl FnOnce(&mut Piece)) {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let Pieces { new, is_over } = &mut *pieces;
        let (Some(piece), Some(is_over)) = (new.get_mut(choice), is_over.get_mut(choice)) else { return };
        if *is_over {
            return;
        }
        add(piece);
        *is_over = piece.ended.is_some();
        let has_ended = *is_over;
        drop(pieces);
        if has_ended {
            self.ended.notify_one();
        }
        self.wake.notify_one();
    }

    /// End what has not ended: it cannot go on, for this reason.
    pub(crate) fn fail(&self, reason: &str) {
        for choice in 0..self.n_choices() {
            let reason = FinishReason::Failed(reason.to_owned());
            self.write(choice, |piece| {
                piece.ended = Some(Ended { reason, timings: piece.timings, seed: 0 });
            });
        }
        // Nobody is to go on computing it.
        self.cancel();
    }

    pub(crate) fn n_choices(&self) -> usize {
        self.cancel.len()
    }

    pub(crate) fn note_cached(&self, n: usize) {
        self.activity.n_cached.store(n, Ordering::Relaxed);
    }

    pub(crate) fn note_token(&self) {
        self.activity.n_decoded.fetch_add(1, Ordering::Relaxed);
    }

    /// Wait until `time`, or until a choice has ended.
    pub(crate) async fn pause(&self, time: Instant) {
        tokio::select! {
            () = tokio::time::sleep_until(time.into()) => {}
            () = self.ended.notified() => {}
        }
    }

    /// The reader's side: wait until a choice has something to say, and take it into `piece`, which is cleared first.
    pub(crate) async fn read(&self, piece: &mut Piece) -> usize {
        loop {
            if let Some(choice) = self.take(0, piece) {
                return choice;
            }
            self.wake.notified().await;
        }
    }

    /// Wait until a choice has something to say, and leave it.
    pub(crate) async fn wait(&self) {
        loop {
            {
                let pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
                if pieces.new.iter().any(|piece| !piece.is_empty()) {
                    return;
                }
            }
            self.wake.notified().await;
        }
    }

    /// The same without waiting, of the choices from `first` on.
    pub(crate) fn take(&self, first: usize, piece: &mut Piece) -> Option<usize> {
        piece.clear();
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let mut of_choices = pieces.new.iter_mut().enumerate().skip(first);
        let (choice, found) = of_choices.find(|(_, piece)| !piece.is_empty())?;
        std::mem::swap(found, piece);
        Some(choice)
    }

    /// Put back what was taken and not used, before what has come since.
    pub(crate) fn give_back(&self, choice: usize, piece: &mut Piece) {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(since) = pieces.new.get_mut(choice) {
            std::mem::swap(since, piece);
            since.text.push_str(&piece.text);
            since.tokens.append(&mut piece.tokens);
            since.prompt.append(&mut piece.prompt);
            since.timings = piece.timings;
            since.ended = since.ended.take().or(piece.ended.take());
        }
    }

    /// Nobody reads any more.
    pub(crate) fn cancel(&self) {
        self.cancel.iter().for_each(CancelFlag::cancel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller() -> Caller {
        Caller { request_id: "r".into(), tenant: 0 }
    }

    #[tokio::test]
    async fn what_was_not_read_comes_as_one_piece() {
        let channel = Channel::new(&caller(), 1, vec![CancelFlag::default(), CancelFlag::default()]);
        for text in ["a", "b", "c"] {
            channel.write(1, |piece| piece.text.push_str(text));
        }
        let mut piece = Piece::default();
        assert_eq!(channel.read(&mut piece).await, 1);
        assert_eq!(piece.text, "abc");
        channel.write(0, |piece| piece.text.push('x'));
        channel.write(1, |piece| piece.text.push('y'));
        let mut all = String::new();
        for _ in 0..2 {
            channel.read(&mut piece).await;
            all.push_str(&piece.text);
        }
        assert_eq!(all, "xy");
        assert!(channel.take(0, &mut piece).is_none());
    }

    #[test]
    fn progress_that_was_not_read_is_where_it_began_and_where_it_is() {
        let mut piece = Piece::default();
        assert!(piece.is_empty());
        for n_done in [0, 10, 20, 30] {
            piece.note_progress(Progress { n_done, ..Progress::default() });
        }
        assert!(!piece.is_empty());
        assert_eq!(piece.progress.iter().map(|progress| progress.n_done).collect::<Vec<_>>(), [0, 30]);
        piece.clear();
        assert!(piece.is_empty());
    }

    #[tokio::test]
    async fn a_pause_ends_with_the_answer() {
        let channel = Channel::new(&caller(), 1, vec![CancelFlag::default()]);
        let begun = Instant::now();
        channel.write(0, |piece| piece.text.push('a'));
        channel.pause(begun + std::time::Duration::from_millis(30)).await;
        assert!(begun.elapsed() >= std::time::Duration::from_millis(30));
        let ended = Ended { reason: FinishReason::MaxTokens, timings: Timings::default(), seed: 0 };
        channel.write(0, |piece| piece.ended = Some(ended));
        channel.pause(begun + std::time::Duration::from_secs(60)).await;
        assert!(begun.elapsed() < std::time::Duration::from_secs(50));
    }

    #[test]
    fn what_has_ended_stays_as_it_ended() {
        let channel = Channel::new(&caller(), 1, vec![CancelFlag::default(), CancelFlag::default()]);
        let ended = Ended { reason: FinishReason::MaxTokens, timings: Timings::default(), seed: 0 };
        channel.write(0, |piece| piece.ended = Some(ended));
        let mut piece = Piece::default();
        assert_eq!(channel.take(0, &mut piece), Some(0));
        channel.fail("the end");
        channel.write(1, |piece| piece.text.push('x'));
        assert_eq!(channel.take(0, &mut piece), Some(1));
        let reason = piece.ended.as_ref().map(|ended| &ended.reason);
        assert!(
            matches!(reason, Some(FinishReason::Failed(words)) if words == "the end")
                && piece.text.is_empty()
        );
        assert_eq!(channel.take(0, &mut piece), None);
    }

    #[tokio::test]
    async fn a_reader_that_waits_is_woken() {
        let channel = Channel::new(&caller(), 1, vec![CancelFlag::default()]);
        let writer = channel.clone();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            writer.write(0, |piece| piece.text.push('z'));
        });
        let mut piece = Piece::default();
        channel.read(&mut piece).await;
        assert_eq!(piece.text, "z");
        thread.join().unwrap();
    }
}
