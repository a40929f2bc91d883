//! Resamples any sampling rate to 16 kHz, in pieces.
//!
//! A windowed sinc spans 256 samples at the lower of the two rates. Its Blackman-Harris window has
//! side lobes 92 dB down, below the noise of 16-bit audio. Its cut-off is the highest at which the
//! window's main lobe still ends at the lower Nyquist frequency. From 44.1 kHz, everything to 7.5
//! kHz passes flat, 7.75 kHz is 6 dB down, and nothing above 8 kHz folds back.
//!
//! If the rates are in the ratio of small integers (all common ones are), each output sample is on
//! a precomputed phase of the filter, one dot product per sample. Other rates interpolate cubically
//! between the phases. 16 kHz passes through untouched, bit for bit.
//!
//! Output sample 0 coincides with input sample 0: the filter's delay is removed, and n samples of
//! input give round(n * 16000 / rate) of output.

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{
    Async, FixedAsync, Resampler as _, SincInterpolationParameters, SincInterpolationType, WindowFunction,
    calculate_cutoff,
};

use crate::error::{Error, Result};
use crate::{MAX_SOURCE_RATE, MIN_SOURCE_RATE, SAMPLE_RATE};

/// Length of the filter in samples of the lower rate.
const FILTER_LEN: usize = 256;
const WINDOW: WindowFunction = WindowFunction::BlackmanHarris;
/// The most phases precomputed for an exact ratio: enough for 11.025 kHz, the finest of the usual
/// rates.
const MAX_PHASES: usize = 640;
/// Phases between which other ratios interpolate.
const INTERPOLATED_PHASES: usize = 128;
/// Samples of input for one call of the filter.
const CHUNK: usize = 4096;

/// Resamples a mono signal of one sampling rate to 16 kHz, piece by piece.
pub struct Resampler {
    /// Hz of the input.
    from: u32,
    /// The filter; `None` if the input already has 16 kHz.
    filter: Option<SincFilter>,
    /// Samples consumed and produced so far.
    n_in: u64,
    n_out: u64,
}

/// The filter and its buffers.
struct SincFilter {
    sinc: Async<f32>,
    /// Input that does not fill a chunk yet.
    input: Vec<f32>,
    /// Output buffer, large enough for any chunk.
    output: Vec<f32>,
    /// Samples of the filter's delay still to be dropped from the output.
    n_skip: usize,
}

impl Resampler {
    /// A resampler from `from` Hz to 16 kHz.
    ///
    /// # Errors
    /// [`Error::SampleRate`] when `from` is outside 1000 to 768000 Hz.
    pub fn new(from: u32) -> Result<Self> {
        if !(MIN_SOURCE_RATE..=MAX_SOURCE_RATE).contains(&from) {
            return Err(Error::SampleRate { name: "resampler".into(), found: from });
        }
        let filter = if from == SAMPLE_RATE { None } else { Some(SincFilter::new(from)?) };
        Ok(Self { from, filter, n_in: 0, n_out: 0 })
    }

    /// Resamples more samples; appends the output that is ready to `out`.
    ///
    /// # Errors
    /// [`Error::Resample`] if the filter rejects its buffers, which would be a bug here.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) -> Result<()> {
        self.n_in += samples.len() as u64;
        let before = out.len();
        match &mut self.filter {
            None => out.extend_from_slice(samples),
            Some(filter) => {
                filter.push(samples, out).map_err(|reason| Error::Resample { from: self.from, reason })?
            }
        }
        self.n_out += (out.len() - before) as u64;
        Ok(())
    }

    /// Ends the signal; appends the rest of the output to `out`.
    ///
    /// # Errors
    /// The errors of [`push`](Self::push).
    pub fn finish(mut self, out: &mut Vec<f32>) -> Result<()> {
        let (from, to) = (u128::from(self.from), u128::from(SAMPLE_RATE));
        let n_wanted = ((u128::from(self.n_in) * to + from / 2) / from) as u64;
        let silence = [0.0; CHUNK];
        while self.filter.is_some() && self.n_out < n_wanted {
            let before = out.len();
            self.push(&silence, out)?;
            let surplus = self.n_out.saturating_sub(n_wanted) as usize;
            out.truncate((out.len() - surplus).max(before));
        }
        Ok(())
    }
}

impl SincFilter {
    fn new(from: u32) -> Result<Self> {
        let (input, output) = reduced(from, SAMPLE_RATE);
        let (phases, interpolation) = if output <= MAX_PHASES {
            (output, SincInterpolationType::Nearest)
        } else {
            (INTERPOLATED_PHASES, SincInterpolationType::Cubic)
        };
        // The library measures the filter in samples of input, and the cut-off in parts of the
        // lower Nyquist rate.
        let len = (FILTER_LEN * (from.max(SAMPLE_RATE) as usize)).div_ceil(SAMPLE_RATE as usize);
        let parameters = SincInterpolationParameters::new(len, WINDOW)
            .f_cutoff(calculate_cutoff(FILTER_LEN, WINDOW))
            .oversampling_factor(phases)
            .interpolation(interpolation);
        let ratio = f64::from(SAMPLE_RATE) / f64::from(from);
        let sinc = Async::new_sinc(ratio, 1.0, &parameters, CHUNK, 1, FixedAsync::Input)
            .map_err(|e| Error::Resample { from, reason: e.to_string() })?;

        // The filter's centre is `centre` input samples after the first output, which itself is one
        // step in. Zeros prepended to the signal align an output sample with the first sample of
        // the signal.
        let centre = len.next_multiple_of(8) as f64 / 2.0 - 1.0 / phases as f64;
        let off_grid = |n_zeros: usize| {
            let outputs = (centre + n_zeros as f64) * ratio;
            (outputs - outputs.round()).abs()
        };
        let n_zeros = (0..input.min(CHUNK)).min_by(|&a, &b| off_grid(a).total_cmp(&off_grid(b))).unwrap_or(0);
        let n_skip = ((centre + n_zeros as f64) * ratio).round() as usize;
        let output = vec![0.0; sinc.output_frames_max()];
        Ok(Self { sinc, input: vec![0.0; n_zeros], output, n_skip: n_skip.saturating_sub(1) })
    }

    fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) -> std::result::Result<(), String> {
        self.input.extend_from_slice(samples);
        let mut at = 0;
        while let Some(chunk) = self.input.get(at..at + CHUNK) {
            let chunk = InterleavedSlice::new(chunk, 1, CHUNK).map_err(|e| e.to_string())?;
            let n_frames = self.output.len();
            let mut output =
                InterleavedSlice::new_mut(&mut self.output, 1, n_frames).map_err(|e| e.to_string())?;
            let (n_taken, n_made) =
                self.sinc.process_into_buffer(&chunk, &mut output, None).map_err(|e| e.to_string())?;
            if n_taken == 0 {
                return Err("the filter accepts no input".into());
            }
            at += n_taken;
            let n_cut = self.n_skip.min(n_made);
            self.n_skip -= n_cut;
            out.extend_from_slice(self.output.get(n_cut..n_made).unwrap_or_default());
        }
        self.input.drain(..at);
        Ok(())
    }
}

/// The ratio of two rates in lowest terms.
fn reduced(a: u32, b: u32) -> (usize, usize) {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    ((a / x) as usize, (b / x) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `seconds` of a tone at `hz`, sampled at `rate`.
    fn tone(hz: f64, rate: u32, n: usize) -> Vec<f32> {
        (0..n).map(|i| (std::f64::consts::TAU * hz * i as f64 / f64::from(rate)).sin() as f32).collect()
    }

    fn resample(samples: &[f32], rate: u32, piece: usize) -> Vec<f32> {
        let mut resampler = Resampler::new(rate).unwrap();
        let mut out = Vec::new();
        for piece in samples.chunks(piece) {
            resampler.push(piece, &mut out).unwrap();
        }
        resampler.finish(&mut out).unwrap();
        out
    }

    fn rms(values: impl Iterator<Item = f32>) -> f64 {
        let (mut sum, mut n) = (0.0, 0);
        for v in values {
            sum += f64::from(v) * f64::from(v);
            n += 1;
        }
        (sum / f64::from(n)).sqrt()
    }

    #[test]
    fn tones_arrive_where_and_as_loud_as_they_were() {
        // Every usual rate, and four with no small ratio to 16 kHz.
        let rates = [8_000, 11_025, 12_000, 22_050, 24_000, 32_000, 44_100, 48_000, 88_200, 96_000, 192_000];
        for rate in rates.into_iter().chain([1_001, 15_999, 44_101, 767_999]) {
            let hz = f64::from(rate.min(16_000)) * 0.3;
            let n = rate as usize / 2 + 17;
            let out = resample(&tone(hz, rate, n), rate, 1000);
            assert_eq!(out.len() as f64, (n as f64 * 16000.0 / f64::from(rate)).round(), "{rate} Hz");
            let expected = tone(hz, SAMPLE_RATE, out.len());
            // Away from the ends, where the signal starts and stops abruptly and the filter rings.
            let edge = FILTER_LEN * 16_000 / rate.min(16_000) as usize;
            let middle = edge..out.len() - edge;
            let error =
                rms(out[middle.clone()].iter().zip(&expected[middle]).map(|(a, b)| a - b)) / 0.5f64.sqrt();
            println!("{rate} Hz: error {:.1} dB", 20.0 * error.log10());
            // Exact ratios: the filter's ripple and f32 rounding. Others are aligned to within the
            // numbers of zeros tried.
            let bound = if reduced(rate, SAMPLE_RATE).1 <= MAX_PHASES { 5e-5 } else { 2e-3 };
            assert!(error < bound, "{rate} Hz: error {error:e}");
        }
    }

    #[test]
    fn what_16_khz_cannot_hold_is_gone() {
        for rate in [22_050, 44_100, 48_000, 192_000] {
            let out = resample(&tone(8_300.0, rate, rate as usize), rate, 4096);
            let level = rms(out[2 * FILTER_LEN..out.len() - 2 * FILTER_LEN].iter().copied());
            assert!(20.0 * level.log10() < -80.0, "{rate} Hz: {:.1} dB", 20.0 * level.log10());
        }
    }

    #[test]
    fn pieces_do_not_matter_and_16_khz_is_untouched() {
        let signal = tone(1234.5, 44_100, 9_999);
        assert_eq!(resample(&signal, 44_100, 1), resample(&signal, 44_100, 9_999));
        assert_eq!(resample(&signal, 16_000, 77), signal);
        assert_eq!(resample(&[], 44_100, 1), [0.0f32; 0]);
        assert_eq!(resample(&[0.5; 3], 48_000, 1).len(), 1);
    }

    #[test]
    fn absurd_rates_are_refused() {
        for rate in [0, 999, 768_001, u32::MAX] {
            assert!(matches!(Resampler::new(rate), Err(Error::SampleRate { found, .. }) if found == rate));
        }
    }
}
