//! Sources of sound for a transcription: frames of features in order, a window at a time.

use audio::{Blocks, MelSpectrogram, MelStream, Tail};

use crate::Result;

/// Frames of features, 10 ms apart.
pub trait Features {
    /// Number of features of a frame.
    fn n_features(&self) -> usize;

    /// Fills `out`, `(n_frames, n_features)` row-major, with the frames from `start` on, and with
    /// zeros after the last frame. Returns the number of frames that exist. Frames before `start`
    /// are not read again.
    ///
    /// # Errors
    /// The sound cannot be read.
    fn read(&mut self, start: usize, out: &mut [f32]) -> Result<usize>;
}

/// The log-mel spectrogram of a file or stream. It keeps about the last window.
///
/// The loudest sound so far defines silence (see [`MelStream`]). So if the first window is quieter
/// than later ones, its features are slightly more exact than those of programs that read the whole
/// recording first.
pub struct AudioFeatures {
    stream: Box<dyn Blocks>,
    mel: MelStream,
    /// The error that ended the stream early.
    failed: Option<audio::Error>,
}

impl AudioFeatures {
    /// Creates a source with `n_mels` features a frame.
    ///
    /// # Errors
    /// No spectrogram has this number of bins.
    pub fn new(stream: impl Blocks + 'static, n_mels: usize) -> Result<AudioFeatures> {
        let stream = Box::new(stream);
        Ok(AudioFeatures { stream, mel: MelStream::new(MelSpectrogram::new(n_mels)?), failed: None })
    }

    /// Damage of the file so far. It is complete when the whole file was read.
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
                // A file without any frame is not a recording. After some frames, an error only
                // ends the sound.
                Some(Err(error)) if self.mel.n_frames() == 0 => return Err(error.into()),
                Some(Err(error)) => {
                    self.failed = Some(error);
                    self.mel.finish();
                }
                None => self.mel.finish(),
            }
        }
        // The window `(n_mels, n_frames)` is transposed to `(n_frames, n_mels)`.
        let window = self.mel.window(start, n_frames, Tail::Zero);
        for (bin, row) in window.chunks(n_frames.max(1)).enumerate() {
            for (frame, value) in out.chunks_mut(n_mels).zip(row) {
                frame[bin] = *value;
            }
        }
        Ok(self.mel.n_frames().saturating_sub(start).min(n_frames))
    }
}

/// True if all values are equal. Such a window is silent, or so quiet that the model cannot tell,
/// and the model would invent text.
pub(crate) fn is_flat(features: &[f32]) -> bool {
    features.first().is_some_and(|first| features.iter().all(|value| value == first))
}

/// A second of near silence.
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

    /// A WAV file: mono, 16 kHz, 16 bits.
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
                // The loudest value of noise is reached early, so that the difference is small.
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
