//! The client's side of a transcription: its events, or all of them together.

use audio::AudioStream;
use engine::CancelFlag;
use speech::{Segment, TranscribeOptions};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;

use crate::error::{CUT, ErrorKind, RequestError, Result};
use crate::models::Lease;
use crate::queue::{Place, died};
use crate::transcriber::{Heard, TranscribeJob, TranscriptEvent};

/// The whole result of a recording.
#[derive(Clone, Debug, Default)]
pub struct Transcript {
    /// The segments, in order.
    pub segments: Vec<Segment>,
    /// Facts about the recording.
    pub heard: Heard,
}

/// A running transcription. Dropping it cancels what is left.
pub struct Transcription {
    /// The model's id.
    pub model: String,
    events: UnboundedReceiver<Result<TranscriptEvent>>,
    cancel: CancelFlag,
    /// True once running transcriptions must end.
    cut: watch::Receiver<bool>,
    _place: Place,
    /// Keeps the model loaded until the transcript has ended.
    _lease: Lease,
}

impl Transcription {
    /// Queues a recording.
    ///
    /// # Errors
    /// The model does not transcribe, the queue is full, or the thread has died.
    pub(crate) fn start(
        lease: Lease,
        (stream, file_name): (AudioStream, String),
        options: TranscribeOptions,
        cut: watch::Receiver<bool>,
    ) -> Result<Transcription> {
        let (sender, events) = unbounded_channel();
        let cancel = CancelFlag::default();
        let job = TranscribeJob { stream, file_name, options, cancel: cancel.clone(), events: sender };
        let place = lease.speech()?.jobs.send(job)?;
        Ok(Transcription { model: lease.id().to_owned(), events, cancel, cut, _place: place, _lease: lease })
    }

    /// Returns the next event. None follows [`TranscriptEvent::Done`] or an error.
    ///
    /// # Errors
    /// The recording or the device failed.
    pub async fn next(&mut self) -> Result<TranscriptEvent> {
        tokio::select! {
            event = self.events.recv() => event.unwrap_or_else(|| Err(died())),
            Ok(_) = self.cut.wait_for(|is_cut| *is_cut) => Err(RequestError::new(ErrorKind::Unavailable, CUT)),
        }
    }

    /// Collects all events.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn collect(mut self) -> Result<Transcript> {
        let mut segments = Vec::new();
        loop {
            match self.next().await? {
                TranscriptEvent::Segment(segment) => segments.push(segment),
                TranscriptEvent::Done(heard) => return Ok(Transcript { segments, heard }),
            }
        }
    }
}

impl Drop for Transcription {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}
