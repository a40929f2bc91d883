//! The spectrogram against openai-whisper's formula in float64 (`fixtures/audio/make_audio.py`).
#![allow(clippy::unwrap_used)]

use crate::common::{expected, fixture};
use audio::{MelSpectrogram, MelStream, Tail, WINDOW_FRAMES, WINDOW_SAMPLES, decode};

/// In f32 each frequency has noise of 1e-7 of the frame's loudest frequency. 80 dB below that,
/// where values are clamped, it is 1e-3 of the power, or 1e-4 of the output: log10(1.001) / 4.
const BOUND: f32 = 1e-4;

fn reference(name: &str) -> Vec<f32> {
    let bytes = std::fs::read(fixture(name)).unwrap();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn largest_difference(a: impl Iterator<Item = f32>, b: &[f32]) -> f32 {
    a.zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn agrees_with_the_reference() {
    let jfk = decode(fixture("jfk.wav")).unwrap().samples;
    let tones = expected(0.5);
    for (name, samples) in [("jfk", &jfk[..32_000]), ("tones", &tones[..])] {
        for n_mels in [80, 128] {
            let reference = reference(&format!("mel_{name}_{n_mels}.bin"));
            let mel = MelSpectrogram::new(n_mels).unwrap().compute(samples, 0);
            let n_frames = samples.len() / 160;
            assert_eq!(mel.len(), n_mels * n_frames);
            assert_eq!(reference.len(), n_mels * n_frames / 5);
            let every_fifth = mel.chunks_exact(n_frames).flat_map(|row| row.iter().copied().step_by(5));
            let difference = largest_difference(every_fifth, &reference);
            println!("{name}, {n_mels} bins: largest difference {difference:e}");
            assert!(difference < BOUND, "{name}, {n_mels} bins: {difference:e}");
        }
    }
}

#[test]
fn a_stream_gives_the_same_frames_whatever_the_pieces() {
    let jfk = decode(fixture("jfk.wav")).unwrap().samples;
    // The lengths end on a hop, off a hop, inside the first frame, and at zero.
    for n_samples in [jfk.len(), 30_033, 1_000, 201, 200, 7, 0] {
        let samples = &jfk[60_000.min(jfk.len() - n_samples)..][..n_samples];
        let mel = MelSpectrogram::new(80).unwrap();
        let whole = mel.compute(samples, WINDOW_SAMPLES);
        let n_columns = n_samples / 160 + WINDOW_FRAMES;
        let n_columns = if n_columns * 80 == whole.len() { n_columns } else { whole.len() / 80 };
        for piece in [1, 159, 16_000] {
            let mut stream = MelStream::new(MelSpectrogram::new(80).unwrap());
            samples.chunks(piece).for_each(|piece| stream.push(piece));
            stream.finish();
            stream.push(&[1.0; 1000]); // Ignored after the end.
            assert_eq!(stream.n_frames(), n_samples / 160, "{n_samples} samples by {piece}");
            let n = stream.n_frames();
            for (start, length) in [(0, n), (n / 3, n), (n.saturating_sub(1), 3), (n + 5, 4)] {
                let window = stream.window(start, length, Tail::Zero);
                assert_eq!(window.len(), 80 * length);
                for (row, expected) in window.chunks(length.max(1)).zip(whole.chunks(n_columns)) {
                    for (i, &value) in row.iter().enumerate() {
                        let expected = if start + i < n { expected[start + i] } else { 0.0 };
                        assert_eq!(value, expected, "{n_samples} by {piece}, frame {}", start + i);
                    }
                }
            }
        }
    }
}

#[test]
fn a_window_is_padded_as_silence_or_zero_and_old_frames_can_go() {
    let jfk = decode(fixture("jfk.wav")).unwrap().samples;
    let mel = MelSpectrogram::new(128).unwrap();
    let reference = mel.compute_window(&jfk);
    let mut stream = MelStream::new(mel);
    jfk.chunks(12_345).for_each(|piece| stream.push(piece));
    stream.finish();
    // Silence after the signal equals a signal followed by zeros, except in the frames across its
    // end.
    let window = stream.window(0, WINDOW_FRAMES, Tail::Silence);
    for (row, expected) in window.chunks(WINDOW_FRAMES).zip(reference.chunks(WINDOW_FRAMES)) {
        assert_eq!(row[..1100], expected[..1100]);
        assert_eq!(row[1102..], expected[1102..]);
    }
    let before = stream.window(400, 100, Tail::Zero);
    stream.discard_before(400);
    stream.discard_before(10);
    assert_eq!((stream.first_frame(), stream.n_frames()), (400, 1100));
    assert_eq!(stream.window(400, 100, Tail::Zero), before);
    // Across the first frame that is kept: silence, then the frames.
    let across = stream.window(398, 4, Tail::Zero);
    assert!(across.chunks(4).zip(before.chunks(100)).all(|(a, b)| a[2..] == b[..2] && a[0] == a[1]));
    stream.discard_before(usize::MAX);
    assert_eq!(stream.first_frame(), 1100);
    assert_eq!(stream.window(usize::MAX, 2, Tail::Zero), vec![0.0; 256]);
}

#[test]
fn a_second_run_knows_the_largest_value() {
    let mut samples = expected(0.5);
    samples.iter_mut().take(4000).for_each(|s| *s *= 1e-3); // Quiet at first.
    let mel = || MelSpectrogram::new(80).unwrap();
    let mut first = MelStream::new(mel());
    first.push(&samples);
    first.finish();
    let mut second = MelStream::with_max(mel(), first.max());
    second.push(&samples[..4000]);
    let frames = second.n_frames();
    assert_eq!(second.window(0, frames, Tail::Zero), first.window(0, frames, Tail::Zero));
}
