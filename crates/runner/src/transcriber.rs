//! A model that transcribes speech, on a thread of its own; another thread decodes the recording.
//! Recordings are computed one at a time, in order of arrival.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use audio::AudioStream;
use engine::{CancelFlag, WeightFiles};
use speech::{AudioFeatures, Features, Segment, Task, TranscribeOptions, Transcriber};
use tokio::sync::mpsc::UnboundedSender;

use crate::error::{ErrorKind, RequestError, Result};
use crate::paths::without_folders;
use crate::queue::{Receiver, Sender, queue};
use crate::request::KeepAlive;
use crate::stats::Stats;

/// Maximum number of seconds of a recording.
pub const MAX_SECONDS_OF_SPEECH: u64 = 2 * 3600;

/// A recording to transcribe.
#[derive(Clone, Debug, Default)]
pub struct TranscribeRequest {
    /// The model's id; empty for the first model.
    pub model: String,
    /// A whole audio file, of any format that [`audio`] reads.
    pub file: Vec<u8>,
    /// Name of the file, for messages.
    pub file_name: String,
    /// Options of the transcription.
    pub options: TranscribeOptions,
    /// Time that the model stays loaded after this request.
    pub keep_alive: Option<KeepAlive>,
}

/// An event of a transcription.
#[derive(Clone, Debug)]
pub enum TranscriptEvent {
    /// The next segment.
    Segment(Segment),
    /// The end of the transcript.
    Done(Heard),
}

/// Facts about the recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heard {
    /// Code of the spoken language.
    pub language: String,
    /// Length of the recording in seconds.
    pub seconds: f64,
}

/// A model that transcribes speech, and the handle of its thread.
#[derive(Clone)]
pub(crate) struct SpeechModel {
    id: String,
    /// Codes of its languages.
    pub(crate) languages: Arc<[String]>,
    /// True if the model can translate.
    is_multilingual: bool,
    pub(crate) stats: Arc<Stats>,
    pub(crate) weight_files: WeightFiles,
    pub(crate) jobs: Sender<TranscribeJob>,
}

impl SpeechModel {
    /// Makes the handle, and the queue for its thread.
    pub(crate) fn new(
        id: String,
        transcriber: &Transcriber,
        max_waiting: usize,
    ) -> (SpeechModel, Receiver<TranscribeJob>) {
        let stats = Arc::new(Stats::default());
        let (jobs, inbox) = queue(max_waiting, &stats);
        let mut languages: Vec<String> = transcriber.languages().map(str::to_owned).collect();
        let is_multilingual = !languages.is_empty();
        if !is_multilingual {
            languages.push("en".into());
        }
        let weight_files = transcriber.weight_files().clone();
        let languages = languages.into();
        (SpeechModel { id, languages, is_multilingual, stats, weight_files, jobs }, inbox)
    }

    /// Checks options before the request is queued.
    ///
    /// # Errors
    /// The model does not know the language or cannot translate, or an option is outside its
    /// limits.
    pub(crate) fn check(&self, options: &TranscribeOptions) -> Result<()> {
        if options.task == Task::Translate && !self.is_multilingual {
            let message = format!(
                "the model `{}` knows English only and cannot translate; expected a multilingual one, or \
                 /v1/audio/transcriptions",
                self.id
            );
            return Err(RequestError::invalid("model", message));
        }
        if let Some(language) = options.language.as_ref().filter(|code| !self.languages.contains(code)) {
            let known: Vec<String> = self
                .languages
                .iter()
                .map(|code| format!("{code} ({})", speech::language_name(code)))
                .collect();
            let message = format!(
                "the model `{}` does not know the language `{language}`; expected one of {}",
                self.id,
                known.join(", ")
            );
            return Err(RequestError::invalid("language", message));
        }
        // The loader compiled the model for the default beams, and no request can set others.
        Ok(options.check(TranscribeOptions::default().beam_size)?)
    }
}

/// A queued recording.
pub(crate) struct TranscribeJob {
    pub(crate) stream: AudioStream,
    /// Name of the file, for messages.
    pub(crate) file_name: String,
    pub(crate) options: TranscribeOptions,
    pub(crate) cancel: CancelFlag,
    pub(crate) events: UnboundedSender<Result<TranscriptEvent>>,
}

/// Runs jobs until all senders are dropped.
pub(crate) fn run(mut transcriber: Transcriber, jobs: &Receiver<TranscribeJob>, stats: &Arc<Stats>) {
    let of_steps = stats.clone();
    transcriber.set_on_step(Box::new(move || of_steps.pulse.again()));
    while let Some((job, running)) = jobs.recv() {
        let _beat = stats.pulse.begin();
        let events = job.events.clone();
        let done = catch_unwind(AssertUnwindSafe(|| transcribe(&mut transcriber, job, stats)));
        let done =
            done.unwrap_or_else(|_| Err(RequestError::internal("the transcription panicked; see the log")));
        if let Err(error) = &done
            && error.kind == ErrorKind::Internal
        {
            tracing::error!("a transcription failed: {error}");
        }
        // The slot must be free before the client can send its next request.
        drop(running);
        // The client may have disconnected.
        drop(events.send(done.map(TranscriptEvent::Done)));
    }
}

fn transcribe(transcriber: &mut Transcriber, job: TranscribeJob, stats: &Stats) -> Result<Heard> {
    let TranscribeJob { stream, file_name, options, cancel, events } = job;
    let stream = stream.ahead(file_name, MOST_DECODING)?;
    let features = AudioFeatures::new(stream, transcriber.n_features())?;
    let mut features =
        Bounded { features, begun: Instant::now(), cancel: cancel.clone(), stats, exceeded: None };
    let mut on_segment = |segment: Segment| {
        stats.tokens_generated.add(segment.tokens.len() as u64);
        // Without a reader the flag is set too.
        events.send(Ok(TranscriptEvent::Segment(segment))).map_err(|_| speech::Error::Cancelled)
    };
    let summary = transcriber.transcribe(&mut features, &options, &cancel, &mut on_segment);
    if let Some(error) = features.exceeded {
        return Err(error);
    }
    if cancel.is_cancelled() {
        // No client waits for it.
        return Ok(Heard::default());
    }
    let (summary, features) = (summary?, features.features);
    if let Some(damage) = features.damage() {
        tracing::warn!("a recording is damaged: {damage}");
    }
    Ok(Heard { language: summary.language, seconds: features.seconds() })
}

/// Opens a file to transcribe.
///
/// # Errors
/// It is not a recording, or its header gives a length above the limit.
pub(crate) fn open_recording(file: Vec<u8>, name: String) -> Result<AudioStream> {
    let stream = AudioStream::from_bytes(file, name)?;
    match stream.info().seconds {
        Some(seconds) if seconds > MAX_SECONDS_OF_SPEECH as f64 => Err(too_long(seconds)),
        Some(_) | None => Ok(stream),
    }
}

fn too_long(seconds: f64) -> RequestError {
    let message = format!(
        "`file` has {seconds:.0} s of sound, expected at most {MAX_SECONDS_OF_SPEECH}; long recordings can be sent in parts"
    );
    RequestError::invalid("file", message)
}

/// Longest time of one transcription, during which others wait.
const MOST_TIME: Duration = Duration::from_secs(3600);

/// Longest time to decode a second of sound, which usually takes milliseconds.
const MOST_DECODING: Duration = Duration::from_secs(20);

/// The features of a recording, up to the limits of one request. The header need not give the
/// length.
struct Bounded<'a> {
    features: AudioFeatures,
    begun: Instant,
    cancel: CancelFlag,
    stats: &'a Stats,
    exceeded: Option<RequestError>,
}

impl Features for Bounded<'_> {
    fn n_features(&self) -> usize {
        self.features.n_features()
    }

    fn read(&mut self, start: usize, out: &mut [f32]) -> speech::Result<usize> {
        if self.cancel.is_cancelled() {
            return Err(speech::Error::Cancelled);
        }
        // Windows of silence run no steps.
        self.stats.pulse.again();
        let n = self.features.read(start, out)?;
        let seconds = self.features.seconds();
        self.exceeded = if seconds > MAX_SECONDS_OF_SPEECH as f64 {
            Some(too_long(seconds))
        } else if self.begun.elapsed() > MOST_TIME {
            let message = format!(
                "transcribing took longer than {} s, expected less; send the recording in parts",
                MOST_TIME.as_secs()
            );
            Some(RequestError::invalid("file", message))
        } else {
            return Ok(n);
        };
        Err(speech::Error::Cancelled)
    }
}

impl From<audio::Error> for RequestError {
    fn from(error: audio::Error) -> RequestError {
        use audio::Error as E;
        match &error {
            E::NotAudio { .. }
            | E::NoAudioTrack { .. }
            | E::Codec { .. }
            | E::SampleRate { .. }
            | E::Empty { .. }
            | E::Undecodable { .. }
            | E::Damaged { .. }
            | E::Read { .. }
            | E::Slow { .. }
            | E::Resample { .. } => RequestError::invalid("file", error.to_string()),
            E::Open { .. } | E::MelBins { .. } => {
                RequestError::internal(without_folders(&error.to_string(), []))
            }
        }
    }
}

impl From<speech::Error> for RequestError {
    fn from(error: speech::Error) -> RequestError {
        use speech::Error as E;
        match error {
            E::Engine(error) => error.into(),
            E::Audio(error) => error.into(),
            E::Text(error) => RequestError::invalid("prompt", error.to_string()),
            E::Option { name, .. } => RequestError::invalid(name, error.to_string()),
            E::Device(_) | E::Output(_) | E::Cancelled | E::NoCandidate { .. } => {
                RequestError::internal(without_folders(&error.to_string(), []))
            }
            // The enum is non-exhaustive.
            _ => RequestError::internal(without_folders(&error.to_string(), [])),
        }
    }
}
