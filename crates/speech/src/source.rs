//! Where a transcription gets its sound from: frames of features, in order, a window at a time.

use audio::{Blocks, MelSpectrogram, MelStream, Tail};

use crate::Result;

/// Frames of numbers that describe sound, 10 ms apart.
pub trait Features {
    /// Numbers of a frame.
    fn n_features(&self) -> usize;

    /// Fill `out`, `(n_frames, n_features)` row-major, with the frames from `start` on, and with zeros after the last.
    /// Returns how many frames there are. Frames before `start` are not asked for again.
    ///
    /// # Errors
    /// The sound cannot be had.
    fn read(&mut self, start: usize, out: &mut [f32]) -> Result<usize>;
}

/// The log-mel spectrogram of a file or stream. Holds about as much as the window that was asked for last.
///
/// The loudest moment so far says what counts as silence (see [`MelStream`]), so a recording that is quieter in its first
/// window than later is heard slightly more exactly there than by programs that look at all of it first.
pub struct AudioFeatures {
    stream: Box<dyn Blocks>,
    mel: MelStream,
    /// What ended the stream before its end.
    failed: Option<audio::Error>,
}

impl AudioFeatures {
    /// With `n_mels` numbers a frame.
    ///
    /// # Errors
    /// There is no spectrogram of that many bins.
    pub fn new(stream: impl Blocks + 'static, n_mels: usize) -> Result<AudioFeatures> {
        let stream = Box::new(stream);
        Ok(AudioFeatures { stream, mel: MelStream::new(MelSpectrogram::new(n_mels)?), failed: None })
    }

    /// What was wrong with the file so far. Complete when all was read.
    pub fn damage(&self) -> Option<String> {
        let failed = self.failed.as_ref().map(ToString::to_string);
        failed.or_else(|| self.stream.damage().map(|damage| damage.to_string()))
    }

    /// Seconds of sound so far.
    pub fn seconds(&self) -> f64 {
        self.mel.n_frames() as f64 * audio::HOP_LENGTH as f64 / f64::from(audio::SAMPLE_RATE)
    }
}

impl Features for AudioFeatures {
    fn n_features(&self) -> usize {
        self.mel.n_mels()
    }

    fn read(&mut self, start: usize, out: &mut [f32]) -> Result<usize> {
        let n_mels = self.mel.n_mels();
        let n_frames = out.len() / n_mels;
        self.mel.discard_before(start);
        while !self.mel.is_finished() && self.mel.n_frames() < start + n_frames {
            match self.stream.next() {
                Some(Ok(block)) => {
                    self.mel.push(&block);
                    self.mel.discard_before(start);
                }
                // Nothing came: the file is no recording. Else what came is worth having.
                Some(Err(error)) if self.mel.n_frames() == 0 => return Err(error.into()),
                Some(Err(error)) => {
                    self.failed = Some(error);
                    self.mel.finish();
                }
                None => self.mel.finish(),
            }
        }
        // `(n_mels, n_frames)` becomes `(n_frames, n_mels)`.
        let window = self.mel.window(start, n_frames, Tail::Zero);
        for (bin, row) in window.chunks(n_frames.max(1)).enumerate() {
            for (frame, value) in out.chunks_mut(n_mels).zip(row) {
                frame[bin] = *value;
            }
        }
        Ok(self.mel.n_frames().saturating_sub(start).min(n_frames))
    }
}

/// Whether no number differs from another: sound without a sound in it, or so far below the loudest that the model could not
/// tell. What it writes then is made up.
pub(crate) fn is_flat(features: &[f32]) -> bool {
    features.first().is_some_and(|first| features.iter().all(|value| value == first))
}

/// A second of nearly nothing.
pub(crate) struct Silence {
    pub(crate) n_features: usize,
}

impl Features for Silence {
    fn n_features(&self) -> usize {
        self.n_features
    }

    fn read(&mut self, frame: usize, out: &mut [f32]) -> Result<usize> {
        out.fill(0.0);
        out.iter_mut().take(1).for_each(|value| *value = 1.0);
        Ok(100_usize.saturating_sub(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use audio::AudioStream;

    /// A RIFF WAVE file: mono, 16 kHz, 16 bits.
    fn wav(samples: &[i16], promised: usize) -> Vec<u8> {
        let mut bytes = b"RIFF".to_vec();
        bytes.extend((36 + 2 * promised as u32).to_le_bytes());
        bytes.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data");
        bytes.extend((2 * promised as u32).to_le_bytes());
        bytes.extend(samples.iter().flat_map(|s| s.to_le_bytes()));
        bytes
    }

    fn noise(n: usize) -> Vec<i16> {
        (0..n).map(|i| ((i * i * 31 + i * 7) % 20_001) as i16 - 10_000).collect()
    }

    #[test]
    fn windows_are_the_spectrogram_by_frames() {
        let n_samples = 3 * 16_000;
        let bytes = wav(&noise(n_samples), n_samples);
        let samples = audio::decode_bytes(bytes.clone(), "noise").unwrap().samples;
        let whole = MelSpectrogram::new(80).unwrap().compute(&samples, audio::WINDOW_SAMPLES);
        let stream = AudioStream::from_bytes(bytes, "noise").unwrap();
        let mut features = AudioFeatures::new(stream, 80).unwrap();
        for (start, expected) in [(0, 100), (50, 100), (170, 100), (250, 50), (300, 0)] {
            let mut out = vec![9.0; 100 * 80];
            assert_eq!(features.read(start, &mut out).unwrap(), expected, "{start}");
            for (i, value) in out.iter().enumerate() {
                let (frame, bin) = (i / 80, i % 80);
                let exact = whole[bin * (300 + 3000) + start + frame];
                let exact = if frame < expected { exact } else { 0.0 };
                // The loudest of noise is heard at once, near enough.
                assert!((value - exact).abs() < 0.02, "{start} {frame} {bin}: {value} for {exact}");
            }
        }
        assert!(features.damage().is_none());
        assert_eq!(features.seconds(), 3.0);
    }

    #[test]
    fn a_cut_file_gives_what_it_has() {
        let stream = AudioStream::from_bytes(wav(&noise(16_000), 32_000), "cut").unwrap();
        let mut features = AudioFeatures::new(stream, 80).unwrap();
        assert_eq!(features.read(0, &mut vec![0.0; 3000 * 80]).unwrap(), 100);
        let damage = features.damage().unwrap();
        assert!(damage.contains("1.0 s") && damage.contains("2.0 s"), "{damage}");
    }
}
