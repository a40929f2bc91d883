//! A model that writes down speech, on a thread of its own; the recording is decoded on another one. One recording at a time, in
//! order of arrival.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use audio::AudioStream;
use engine::{CancelFlag, WeightFiles};
use speech::{AudioFeatures, Features, Segment, Task, TranscribeOptions, Transcriber};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use crate::app::CUT;
use crate::error::{ApiError, ErrorKind, Result};
use crate::limits::MAX_SECONDS_OF_SPEECH;
use crate::models::Lease;
use crate::paths::without_folders;
use crate::queue::{Place, Receiver, Sender, died, queue};
use crate::request::KeepAlive;
use crate::stats::Stats;

/// A recording to be written down.
#[derive(Clone, Debug, Default)]
pub struct TranscribeRequest {
    /// The model's id; empty: the first.
    pub model: String,
    /// A whole audio file, of any format that [`audio`] reads.
    pub file: Vec<u8>,
    /// For messages.
    pub file_name: String,
    /// How it is done.
    pub options: TranscribeOptions,
    /// How long the model stays loaded after this request.
    pub keep_alive: Option<KeepAlive>,
}

/// What comes of a recording.
#[derive(Clone, Debug)]
pub enum TranscriptEvent {
    /// The next segment.
    Segment(Segment),
    /// There are no more.
    Done(Heard),
}

/// What was heard, beside the segments.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heard {
    /// The code of the language spoken.
    pub language: String,
    /// Length of the recording.
    pub seconds: f64,
}

/// Everything that comes of a recording.
#[derive(Clone, Debug, Default)]
pub struct Transcript {
    /// The segments, in order.
    pub segments: Vec<Segment>,
    /// The rest.
    pub heard: Heard,
}

/// A transcript on its way. Dropped, it cancels what is left.
pub struct Transcription {
    /// The model's id.
    pub model: String,
    events: UnboundedReceiver<Result<TranscriptEvent>>,
    cancel: CancelFlag,
    /// Becomes true when the server has no more time.
    cut: watch::Receiver<bool>,
    _place: Place,
    /// The model is not unloaded before the transcript has ended.
    _lease: Lease,
}

impl Transcription {
    /// Queue a recording.
    ///
    /// # Errors
    /// The model does not hear, as many wait as may, or its thread has died.
    pub(crate) fn start(
        lease: Lease,
        (stream, file_name): (AudioStream, String),
        options: TranscribeOptions,
        cut: watch::Receiver<bool>,
    ) -> Result<Transcription> {
        let (sender, events) = unbounded_channel();
        let cancel = CancelFlag::default();
        let job = Job { stream, file_name, options, cancel: cancel.clone(), events: sender };
        let place = lease.speech()?.jobs.send(job)?;
        Ok(Transcription { model: lease.id().to_owned(), events, cancel, cut, _place: place, _lease: lease })
    }

    /// What comes next. Nothing follows [`TranscriptEvent::Done`] or an error.
    ///
    /// # Errors
    /// The recording or the device failed.
    pub async fn next(&mut self) -> Result<TranscriptEvent> {
        tokio::select! {
            event = self.events.recv() => event.unwrap_or_else(|| Err(died())),
            Ok(_) = self.cut.wait_for(|is_cut| *is_cut) => Err(ApiError::new(ErrorKind::Unavailable, CUT)),
        }
    }

    /// Everything.
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

/// A model that writes down speech, and the handle of its thread.
#[derive(Clone)]
pub(crate) struct SpeechModel {
    id: String,
    /// Codes of the languages that it knows.
    pub(crate) languages: Arc<[String]>,
    /// Whether it translates.
    is_multilingual: bool,
    pub(crate) stats: Arc<Stats>,
    pub(crate) weight_files: WeightFiles,
    jobs: Sender<Job>,
}

impl SpeechModel {
    /// The handle, and where its thread finds its work.
    pub(crate) fn new(
        id: String,
        transcriber: &Transcriber,
        max_waiting: usize,
    ) -> (SpeechModel, Receiver<Job>) {
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

    /// Whether it can do this; said before the request waits for its turn.
    ///
    /// # Errors
    /// It does not know the language, or does not translate, or an option is outside its limits.
    pub(crate) fn check(&self, options: &TranscribeOptions) -> Result<()> {
        if options.task == Task::Translate && !self.is_multilingual {
            let message = format!(
                "the model `{}` knows English only and cannot translate; expected a multilingual one, or \
                 /v1/audio/transcriptions",
                self.id
            );
            return Err(ApiError::invalid("model", message));
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
            return Err(ApiError::invalid("language", message));
        }
        // The loader has made it for the beams of the defaults, and no request can ask for others.
        Ok(options.check(TranscribeOptions::default().beam_size)?)
    }
}

/// A recording that waits.
pub(crate) struct Job {
    stream: AudioStream,
    /// For messages.
    file_name: String,
    options: TranscribeOptions,
    cancel: CancelFlag,
    events: UnboundedSender<Result<TranscriptEvent>>,
}

/// Do jobs until nobody can send any more.
pub(crate) fn run(mut transcriber: Transcriber, jobs: &Receiver<Job>, stats: &Arc<Stats>) {
    let of_steps = stats.clone();
    transcriber.set_on_step(Box::new(move || of_steps.pulse.again()));
    while let Some((job, running)) = jobs.recv() {
        let _beat = stats.pulse.begin();
        let events = job.events.clone();
        let done = catch_unwind(AssertUnwindSafe(|| transcribe(&mut transcriber, job, stats)));
        let done = done
            .unwrap_or_else(|_| Err(ApiError::internal("the transcription panicked; see the server's log")));
        if let Err(error) = &done
            && error.kind == ErrorKind::Internal
        {
            tracing::error!("a transcription failed: {error}");
        }
        // Whoever has the answer may ask again at once.
        drop(running);
        // The reader may have gone.
        drop(events.send(done.map(TranscriptEvent::Done)));
    }
}

fn transcribe(transcriber: &mut Transcriber, job: Job, stats: &Stats) -> Result<Heard> {
    let Job { stream, file_name, options, cancel, events } = job;
    let stream = stream.ahead(file_name, MOST_DECODING)?;
    let features = AudioFeatures::new(stream, transcriber.n_features())?;
    let mut features =
        Bounded { features, begun: Instant::now(), cancel: cancel.clone(), stats, exceeded: None };
    let mut on_segment = |segment: Segment| {
        stats.tokens_generated.add(segment.tokens.len() as u64);
        // Nobody reads any more: the flag says so too.
        events.send(Ok(TranscriptEvent::Segment(segment))).map_err(|_| speech::Error::Cancelled)
    };
    let summary = transcriber.transcribe(&mut features, &options, &cancel, &mut on_segment);
    if let Some(error) = features.exceeded {
        return Err(error);
    }
    if cancel.is_cancelled() {
        // Nobody waits for it.
        return Ok(Heard::default());
    }
    let (summary, features) = (summary?, features.features);
    if let Some(damage) = features.damage() {
        tracing::warn!("a recording is damaged: {damage}");
    }
    Ok(Heard { language: summary.language, seconds: features.seconds() })
}

/// A file to be transcribed.
///
/// # Errors
/// It is no recording, or its header says that it is too long.
pub(crate) fn open_recording(file: Vec<u8>, name: String) -> Result<AudioStream> {
    let stream = AudioStream::from_bytes(file, name)?;
    match stream.info().seconds {
        Some(seconds) if seconds > MAX_SECONDS_OF_SPEECH as f64 => Err(too_long(seconds)),
        Some(_) | None => Ok(stream),
    }
}

fn too_long(seconds: f64) -> ApiError {
    let message = format!(
        "`file` has {seconds:.0} s of sound, expected at most {MAX_SECONDS_OF_SPEECH}; long recordings can be sent in parts"
    );
    ApiError::invalid("file", message)
}

/// Longest time of one transcription: others wait for it.
const MOST_TIME: Duration = Duration::from_secs(3600);

/// Longest time that a second of sound may take to be decoded, which takes some milliseconds.
const MOST_DECODING: Duration = Duration::from_secs(20);

/// The sound of a recording, as far as one request may ask for it: its header need not say how long it is.
struct Bounded<'a> {
    features: AudioFeatures,
    begun: Instant,
    cancel: CancelFlag,
    stats: &'a Stats,
    exceeded: Option<ApiError>,
}

impl Features for Bounded<'_> {
    fn n_features(&self) -> usize {
        self.features.n_features()
    }

    fn read(&mut self, start: usize, out: &mut [f32]) -> speech::Result<usize> {
        if self.cancel.is_cancelled() {
            return Err(speech::Error::Cancelled);
        }
        // Windows of silence have no steps.
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
            Some(ApiError::invalid("file", message))
        } else {
            return Ok(n);
        };
        Err(speech::Error::Cancelled)
    }
}

impl From<audio::Error> for ApiError {
    fn from(error: audio::Error) -> ApiError {
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
            | E::Resample { .. } => ApiError::invalid("file", error.to_string()),
            E::Open { .. } | E::MelBins { .. } => ApiError::internal(without_folders(&error.to_string(), [])),
        }
    }
}

impl From<speech::Error> for ApiError {
    fn from(error: speech::Error) -> ApiError {
        use speech::Error as E;
        match error {
            E::Engine(error) => error.into(),
            E::Audio(error) => error.into(),
            E::Text(error) => ApiError::invalid("prompt", error.to_string()),
            E::Option { name, .. } => ApiError::invalid(name, error.to_string()),
            E::Device(_) | E::Output(_) | E::Cancelled | E::NoCandidate { .. } => {
                ApiError::internal(without_folders(&error.to_string(), []))
            }
            // The enum may grow.
            _ => ApiError::internal(without_folders(&error.to_string(), [])),
        }
    }
}
