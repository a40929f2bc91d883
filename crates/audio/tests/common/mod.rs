//! Helpers of the tests: the fixtures, their signal, and a WAV writer.
#![allow(dead_code, clippy::unwrap_used)] // Each test binary uses a part.

use std::f64::consts::TAU;
use std::path::PathBuf;

/// A file of `fixtures/audio`; see `make_audio.py` there.
pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/audio").join(name)
}

/// The fixtures' signal at `rate` Hz: a tone on the left, a sweep on the right.
pub fn tones(rate: u32, seconds: f64) -> Vec<[f64; 2]> {
    (0..(seconds * f64::from(rate)) as usize)
        .map(|i| {
            let t = i as f64 / f64::from(rate);
            [0.4 * (TAU * 440.0 * t).sin(), 0.3 * (TAU * (200.0 * t + 1400.0 * t * t)).sin()]
        })
        .collect()
}

/// The mean of both channels at 16 kHz, which every fixture should decode to.
pub fn expected(seconds: f64) -> Vec<f32> {
    tones(16_000, seconds).iter().map(|[l, r]| ((l + r) / 2.0) as f32).collect()
}

/// Pearson's correlation over the common length.
pub fn correlation(a: &[f32], b: &[f32]) -> f64 {
    let n = a.len().min(b.len()) as f64;
    let pairs = || a.iter().zip(b).map(|(&a, &b)| (f64::from(a), f64::from(b)));
    let (mean_a, mean_b) = (pairs().map(|p| p.0).sum::<f64>() / n, pairs().map(|p| p.1).sum::<f64>() / n);
    let (mut ab, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (a, b) in pairs() {
        ab += (a - mean_a) * (b - mean_b);
        aa += (a - mean_a).powi(2);
        bb += (b - mean_b).powi(2);
    }
    ab / (aa * bb).sqrt()
}

/// Types of a sample in a WAV file.
#[derive(Clone, Copy, Debug)]
pub enum Sample {
    U8,
    S16,
    S24,
    S32,
    F32,
    F64,
}

/// A WAV file with `n_channels` channels. `frames` is interleaved.
pub fn wav(rate: u32, n_channels: u16, sample: Sample, frames: &[f64]) -> Vec<u8> {
    let mut data = Vec::new();
    for &x in frames {
        let scaled =
            |bits: u32| (x * 2f64.powi(bits as i32 - 1)).round().min(2f64.powi(bits as i32 - 1) - 1.0) as i64;
        match sample {
            Sample::U8 => data.push((scaled(8) + 128) as u8),
            Sample::S16 => data.extend_from_slice(&scaled(16).to_le_bytes()[..2]),
            Sample::S24 => data.extend_from_slice(&scaled(24).to_le_bytes()[..3]),
            Sample::S32 => data.extend_from_slice(&scaled(32).to_le_bytes()[..4]),
            Sample::F32 => data.extend_from_slice(&(x as f32).to_le_bytes()),
            Sample::F64 => data.extend_from_slice(&x.to_le_bytes()),
        }
    }
    let (format, n_bytes) = match sample {
        Sample::U8 => (1u16, 1u16),
        Sample::S16 => (1, 2),
        Sample::S24 => (1, 3),
        Sample::S32 => (1, 4),
        Sample::F32 => (3, 4),
        Sample::F64 => (3, 8),
    };
    let mut file = wav_header(rate, n_channels, format, n_bytes, data.len() as u32);
    file.extend_from_slice(&data);
    file
}

/// The 44 bytes before a WAV file's samples. `format` is 1 for integers and 3 for floats; `n_bytes`
/// is the size of one sample.
pub fn wav_header(rate: u32, n_channels: u16, format: u16, n_bytes: u16, n_data: u32) -> Vec<u8> {
    let mut file = Vec::new();
    file.extend_from_slice(b"RIFF");
    file.extend_from_slice(&n_data.saturating_add(36).to_le_bytes());
    file.extend_from_slice(b"WAVEfmt ");
    file.extend_from_slice(&16u32.to_le_bytes());
    file.extend_from_slice(&format.to_le_bytes());
    file.extend_from_slice(&n_channels.to_le_bytes());
    file.extend_from_slice(&rate.to_le_bytes());
    file.extend_from_slice(&rate.wrapping_mul(u32::from(n_channels.wrapping_mul(n_bytes))).to_le_bytes());
    file.extend_from_slice(&n_channels.wrapping_mul(n_bytes).to_le_bytes());
    file.extend_from_slice(&(8 * n_bytes).to_le_bytes());
    file.extend_from_slice(b"data");
    file.extend_from_slice(&n_data.to_le_bytes());
    file
}

/// Reproducible pseudo-random numbers (xorshift64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 16) as usize % n
    }
}
