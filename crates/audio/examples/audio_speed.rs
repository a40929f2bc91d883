//! Times of decoding, resampling and spectrograms on one core:
//! `cargo run --release -p ingle-audio --example audio_speed [FILE…]`

use std::time::Instant;

use audio::{AudioStream, MelSpectrogram, Resampler, WINDOW_SAMPLES};

/// The best of several runs, in milliseconds.
fn best_ms(mut work: impl FnMut()) -> f64 {
    (0..20)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64() * 1e3
        })
        .fold(f64::MAX, f64::min)
}

fn main() -> audio::Result<()> {
    let signal = |n: usize| -> Vec<f32> {
        (0..n).map(|i| ((i as f32 * 0.05).sin() + (i as f32 * 0.0171).cos()) * 0.3).collect()
    };
    for n_mels in [80, 128] {
        let mel = MelSpectrogram::new(n_mels)?;
        let samples = signal(WINDOW_SAMPLES);
        println!("mel, {n_mels} bins, 30 s: {:.2} ms", best_ms(|| drop(mel.compute_window(&samples))));
    }
    println!("mel, making the plan of 128 bins: {:.2} ms", best_ms(|| drop(MelSpectrogram::new(128))));
    for rate in [8_000, 22_050, 44_100, 48_000, 44_101] {
        let samples = signal(30 * rate as usize);
        let mut result = Ok(());
        let ms = best_ms(|| {
            let mut out = Vec::new();
            result = Resampler::new(rate)
                .and_then(|mut r| r.push(&samples, &mut out).and_then(|()| r.finish(&mut out)));
        });
        result?;
        println!("resampling 30 s from {rate} Hz: {ms:.1} ms");
    }
    for path in std::env::args().skip(1) {
        let start = Instant::now();
        let mut stream = AudioStream::open(&path)?;
        let mut n_samples = 0;
        for block in &mut stream {
            n_samples += block?.len();
        }
        let seconds = n_samples as f64 / f64::from(audio::SAMPLE_RATE);
        let took = start.elapsed().as_secs_f64();
        println!("{path}: {seconds:.2} s of audio in {took:.3} s, {:.0} times real time", seconds / took);
        if let Some(damage) = stream.damage() {
            println!("  {damage}");
        }
    }
    Ok(())
}
