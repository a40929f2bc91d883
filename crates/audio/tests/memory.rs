//! A long recording is decoded in bounded memory. The test is alone in its binary, because it
//! measures the whole process.

mod common;

use std::io::Read;

use audio::{AudioStream, MelSpectrogram, MelStream, Tail, WINDOW_FRAMES};

/// The peak resident memory of this process, in kB.
#[cfg(target_os = "linux")]
fn peak_kb() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.trim().parse().ok())
}

#[cfg(not(target_os = "linux"))]
fn peak_kb() -> Option<u64> {
    None
}

#[test]
fn six_minutes_of_stereo_take_a_few_megabytes() {
    const SECONDS: u64 = 360;
    let header = common::wav_header(24_000, 2, 1, 2, u32::MAX);
    let file = std::io::Cursor::new(header).chain(std::io::repeat(0x11).take(SECONDS * 24_000 * 4));
    let mut stream = AudioStream::from_reader(file, "long.wav").unwrap();
    let mut mel = MelStream::new(MelSpectrogram::new(80).unwrap());
    let before = peak_kb();
    let mut n_samples = 0;
    for block in &mut stream {
        let block = block.unwrap();
        n_samples += block.len() as u64;
        mel.push(&block);
        if mel.n_frames() - mel.first_frame() >= 2 * WINDOW_FRAMES {
            let start = mel.first_frame();
            assert_eq!(mel.window(start, WINDOW_FRAMES, Tail::Zero).len(), 80 * WINDOW_FRAMES);
            mel.discard_before(start + WINDOW_FRAMES);
        }
    }
    mel.finish();
    assert_eq!(n_samples, SECONDS * 16_000);
    assert_eq!(mel.n_frames() as u64, SECONDS * 100);
    if let (Some(before), Some(after)) = (before, peak_kb()) {
        println!("peak grew by {} kB", after - before);
        // Two windows of frames and one returned are 3 MB; the rest is buffers. All samples would
        // be 23 MB.
        assert!(after - before < 12_000, "peak grew by {} kB", after - before);
    }
}
