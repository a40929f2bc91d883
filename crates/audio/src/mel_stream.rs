//! The log-mel spectrogram of a signal that arrives in pieces, in windows that may start at any
//! frame.
//!
//! Frames do not depend on the pieces of the signal or on the start of a window. They equal those
//! of [`MelSpectrogram::compute`] for the whole signal followed by silence. One number depends on
//! the whole signal: the largest logarithm M, below which 8 decades are kept. A stream knows only
//! the M of the samples so far, so a window before a louder passage keeps more silence than the
//! reference. If that matters, process the signal twice and set the second run's M to the
//! [`MelStream::max`] of the first.

use crate::mel::{HOP_LENGTH, MelSpectrogram, N_FFT, Scratch, largest, normalise, normalised};

/// Values of a window past the end of the signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// The value 0.0, which openai-whisper and faster-whisper use for the last window of a
    /// transcription.
    Zero,
    /// The value of silence, as if zeros followed the signal. openai-whisper's language detection
    /// and the feature extractor of transformers use it.
    Silence,
}

/// A spectrogram that is computed incrementally. It keeps the frames that were not discarded: 320
/// (or 512) bytes each, 100 a second.
pub struct MelStream {
    mel: MelSpectrogram,
    scratch: Scratch,
    /// Samples that the next frames still need. Begins with the mirrored start of the signal.
    samples: Vec<f32>,
    /// Samples pushed so far.
    n_samples: u64,
    /// Logarithms of the frames held, `(n_held, n_mels)`.
    logs: Vec<f32>,
    /// Index of the first frame held.
    first_frame: usize,
    max: f32,
    max_is_given: bool,
    finished: bool,
}

impl MelStream {
    /// An empty signal.
    pub fn new(mel: MelSpectrogram) -> Self {
        Self {
            scratch: mel.scratch(),
            mel,
            samples: Vec::new(),
            n_samples: 0,
            logs: Vec::new(),
            first_frame: 0,
            max: largest(&[]),
            max_is_given: false,
            finished: false,
        }
    }

    /// An empty signal whose largest logarithm is known, from [`max`](Self::max) of a first run.
    pub fn with_max(mel: MelSpectrogram, max: f32) -> Self {
        Self { max, max_is_given: true, ..Self::new(mel) }
    }

    /// Number of mel bins.
    pub fn n_mels(&self) -> usize {
        self.mel.n_mels()
    }

    /// Frames computed so far, including discarded ones. After [`finish`](Self::finish), the number
    /// is samples / 160.
    pub fn n_frames(&self) -> usize {
        self.first_frame + self.logs.len() / self.n_mels()
    }

    /// The first frame that was not discarded.
    pub fn first_frame(&self) -> usize {
        self.first_frame
    }

    /// The largest logarithm so far (or the one given): log10 of mel power.
    pub fn max(&self) -> f32 {
        self.max
    }

    /// True if [`finish`](Self::finish) was called.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Appends 16 kHz mono samples. A frame is computed once the 200 samples after its centre have
    /// arrived. After [`finish`](Self::finish) nothing happens.
    pub fn push(&mut self, samples: &[f32]) {
        if self.finished {
            return;
        }
        let half = N_FFT / 2;
        let was_short = self.n_samples <= half as u64;
        self.n_samples += samples.len() as u64;
        self.samples.extend_from_slice(samples);
        if was_short {
            if self.n_samples <= half as u64 {
                return; // The mirror image of the start needs sample 200.
            }
            let mirrored: Vec<f32> = self.samples.iter().skip(1).take(half).rev().copied().collect();
            self.samples.splice(0..0, mirrored);
        }
        self.make_frames();
    }

    /// Ends the signal: its last frames see silence past the end.
    pub fn finish(&mut self) {
        if self.finished {
            return;
        }
        let n_samples = self.n_samples;
        let n_frames = (n_samples / HOP_LENGTH as u64) as usize;
        // The zeros suffice for the mirror image of a very short signal, and for every frame that
        // touches the signal.
        self.push(&[0.0; 2 * N_FFT]);
        self.n_samples = n_samples;
        self.finished = true;
        // The reference includes the frames past the last whole hop in the maximum.
        let n_extra = self.n_frames().saturating_sub(n_frames) * self.n_mels();
        self.logs.truncate(self.logs.len().saturating_sub(n_extra));
        self.samples = Vec::new();
    }

    /// The `n_frames` frames from `start`, `(n_mels, n_frames)` row-major. Frames past the end are
    /// filled as [`Tail`] says; discarded frames read as silence.
    pub fn window(&self, start: usize, n_frames: usize, tail: Tail) -> Vec<f32> {
        let n_mels = self.n_mels();
        let blank = match tail {
            Tail::Zero => 0.0,
            Tail::Silence => normalised(largest(&[]), self.max),
        };
        let mut out = vec![blank; n_mels.saturating_mul(n_frames)];
        let n_lost = self.first_frame.saturating_sub(start).min(n_frames);
        let from = start.saturating_sub(self.first_frame).saturating_mul(n_mels).min(self.logs.len());
        let logs = self.logs.get(from..).unwrap_or_default();
        let logs = logs.get(..(n_frames - n_lost) * n_mels).unwrap_or(logs);
        if n_lost == 0 {
            normalise(logs, n_mels, self.max, &mut out, n_frames);
        } else {
            let silence = vec![largest(&[]); n_lost * n_mels];
            normalise(&[&silence, logs].concat(), n_mels, self.max, &mut out, n_frames);
        }
        out
    }

    /// Discards the frames before `frame`, so that a long signal stays in bounded memory.
    pub fn discard_before(&mut self, frame: usize) {
        let n = frame.min(self.n_frames()).saturating_sub(self.first_frame);
        self.logs.drain(..n * self.n_mels());
        self.first_frame += n;
    }

    fn make_frames(&mut self) {
        let from = self.logs.len();
        let mut at = 0;
        while let Some(frame) = self.samples.get(at..at + N_FFT) {
            self.mel.push_frame(frame, &mut self.scratch, &mut self.logs);
            at += HOP_LENGTH;
        }
        self.samples.drain(..at);
        if !self.max_is_given {
            self.max = self.max.max(largest(self.logs.get(from..).unwrap_or_default()));
        }
    }
}
