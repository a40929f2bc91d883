//! The channel between a model's thread and the reader of an answer.
//!
//! The engine's thread writes and a tokio task reads. Unread output is merged to one piece for each
//! choice. A slow reader therefore costs only its own answer's memory, and the writer never waits.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use engine::{CancelFlag, FinishReason, Progress, Timings};
use tokio::sync::Notify;

use crate::request::Caller;

/// A token of the engine's output.
#[derive(Clone, Debug)]
pub(crate) struct ChosenToken {
    pub(crate) id: u32,
    pub(crate) logprob: Option<f32>,
    /// The most likely tokens at this position: ids and log-probabilities.
    pub(crate) top: Vec<(u32, f32)>,
}

/// End of a choice.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) reason: FinishReason,
    pub(crate) timings: Timings,
    pub(crate) seed: u64,
}

/// Output of one choice since its last read.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub(crate) text: String,
    pub(crate) tokens: Vec<ChosenToken>,
    /// Tokens of the prompt except the first.
    pub(crate) prompt: Vec<ChosenToken>,
    /// Progress of prefill, oldest first; only the first and last of the unread reports.
    pub(crate) progress: Vec<Progress>,
    /// Times at its last token.
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

    /// Adds a report of prefill progress. A slow reader gets the first and the latest.
    pub(crate) fn note_progress(&mut self, progress: Progress) {
        self.progress.truncate(1);
        self.progress.push(progress);
    }
}

/// Output of all choices.
#[derive(Debug)]
struct Pieces {
    /// Unread output, `(n_choices)`.
    new: Vec<Piece>,
    /// True for choices that have ended, `(n_choices)`.
    is_over: Vec<bool>,
}

/// A channel, shared by writer and reader.
#[derive(Debug)]
pub(crate) struct Channel {
    pieces: Mutex<Pieces>,
    wake: Notify,
    /// Wakes a reader that paces itself when a choice has ended.
    ended: Notify,
    /// Cancel flags of the choices.
    cancel: Vec<CancelFlag>,
    /// Facts for lists of running requests.
    pub(crate) activity: Activity,
}

/// Facts about a running request.
#[derive(Debug)]
pub(crate) struct Activity {
    pub(crate) request_id: String,
    /// Tenant of the request.
    pub(crate) tenant: u64,
    pub(crate) n_prompt: usize,
    pub(crate) n_decoded: AtomicUsize,
    /// Cached tokens of the prompt; known from the first token on.
    pub(crate) n_cached: AtomicUsize,
    pub(crate) since: Instant,
}

impl Channel {
    /// Makes a channel with one choice for each flag.
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

    /// Writes to a choice that has not ended, and wakes the reader. Called by the engine's thread.
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

    /// Ends all choices that are still running, with this reason.
    pub(crate) fn fail(&self, reason: &str) {
        for choice in 0..self.n_choices() {
            let reason = FinishReason::Failed(reason.to_owned());
            self.write(choice, |piece| {
                piece.ended = Some(Ended { reason, timings: piece.timings, seed: 0 });
            });
        }
        // The engine must not continue it.
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

    /// Waits until `time`, or until a choice has ended.
    pub(crate) async fn pause(&self, time: Instant) {
        tokio::select! {
            () = tokio::time::sleep_until(time.into()) => {}
            () = self.ended.notified() => {}
        }
    }

    /// Waits for output of a choice and moves it into `piece`, which is cleared first. Returns the
    /// choice.
    pub(crate) async fn read(&self, piece: &mut Piece) -> usize {
        loop {
            if let Some(choice) = self.take(0, piece) {
                return choice;
            }
            self.wake.notified().await;
        }
    }

    /// Waits for output of a choice, without reading it.
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

    /// Like [`Self::read`], without waiting, for choices from `first` on.
    pub(crate) fn take(&self, first: usize, piece: &mut Piece) -> Option<usize> {
        piece.clear();
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let mut of_choices = pieces.new.iter_mut().enumerate().skip(first);
        let (choice, found) = of_choices.find(|(_, piece)| !piece.is_empty())?;
        std::mem::swap(found, piece);
        Some(choice)
    }

    /// Puts back unused output before what has arrived since.
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

    /// Cancels all choices; no reader is left.
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
    async fn unread_output_comes_as_one_piece() {
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
    fn unread_progress_has_its_first_and_last_report() {
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
    fn an_ended_choice_does_not_change() {
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
