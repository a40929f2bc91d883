//! Damaged, truncated and random files quickly give an error or partial audio, and never a panic.
#![allow(clippy::unwrap_used)]

use crate::common::{Random, Sample, correlation, expected, fixture, tones, wav, wav_header};
use audio::{Audio, Error, Result, decode_bytes};

const FILES: [&str; 4] = ["tones.mp3", "tones_8k.mp3", "tones.flac", "tones.ogg"];

fn stereo_wav() -> Vec<u8> {
    wav(44_100, 2, Sample::S16, &tones(44_100, 0.5).concat())
}

fn files() -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> =
        FILES.iter().map(|name| (name.to_string(), std::fs::read(fixture(name)).unwrap())).collect();
    files.push(("wav".into(), stereo_wav()));
    files.push(("tones.m4a".into(), std::fs::read(fixture("tones.m4a")).unwrap()));
    files
}

/// Decoded samples must be finite, and no longer than half a second of packets can yield.
fn check(result: Result<Audio>, what: &str) {
    match result {
        Ok(audio) => assert!(audio.samples.iter().all(|s| s.is_finite()), "{what}"),
        // A panic inside a decoder is caught. One is known, in builds that check for overflow: the
        // WAV reader multiplies channels by bytes in 16 bits before it rejects the number of
        // channels.
        Err(error) => {
            let error = error.to_string();
            assert!(
                !error.contains("the decoder failed") || error.contains("multiply with overflow"),
                "{what}: {error}"
            );
        }
    }
}

#[test]
fn truncated_files_give_what_they_have() {
    for (name, bytes) in files() {
        if name.ends_with("m4a") {
            continue; // Its index is at the end: nothing can be decoded from a part.
        }
        // Three quarters of the small Ogg file are its codebooks.
        let cut = if name.ends_with("ogg") { bytes.len() * 9 / 10 } else { bytes.len() * 6 / 10 };
        let audio = decode_bytes(&bytes[..cut], name.as_str()).unwrap();
        let damage = audio.damage.clone();
        println!("{name}: {} samples; {damage:?}", audio.samples.len());
        // An Ogg page, or an MP3 file's bit reservoir, may span a good part of half a second.
        assert!((500..8000).contains(&audio.samples.len()), "{name}: {} samples", audio.samples.len());
        assert!(correlation(&audio.samples, &expected(0.5)) > 0.95, "{name}");
        let damage = damage.unwrap_or_else(|| panic!("{name}: the missing part was not reported"));
        assert!(damage.truncated, "{name}");
        assert!(damage.to_string().starts_with("the file ends early: 0."), "{damage}");
    }
}

#[test]
fn truncation_at_any_byte_is_survived() {
    for (name, bytes) in files() {
        // Every third byte through the headers, then intervals.
        for cut in (0..bytes.len().min(400)).step_by(3).chain((400..bytes.len()).step_by(1499)) {
            check(decode_bytes(&bytes[..cut], name.as_str()), &format!("{name} cut at {cut}"));
        }
    }
}

#[test]
fn flipped_bytes_are_survived() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for (name, bytes) in files() {
        for round in 0..60 {
            let mut broken = bytes.clone();
            // Half of the rounds change bytes near the start, in the headers.
            let reach = if round % 2 == 0 { 300 } else { broken.len() };
            for _ in 0..=random.below(8) {
                let at = random.below(reach.min(broken.len()));
                broken[at] = random.next() as u8;
            }
            check(decode_bytes(broken, name.as_str()), &format!("{name}, round {round}"));
        }
    }
}

#[test]
fn a_gap_becomes_silence_and_the_rest_keeps_its_time() {
    let mut bytes = std::fs::read(fixture("tones.flac")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 40].fill(0x55);
    let audio = decode_bytes(bytes, "hole.flac").unwrap();
    let damage = audio.damage.unwrap();
    println!("{damage}");
    // One FLAC block of 4096 frames at 48 kHz.
    assert!((damage.silent_seconds - 4096.0 / 48_000.0).abs() < 1e-3 && !damage.truncated, "{damage:?}");
    let expected = expected(0.5);
    assert_eq!(audio.samples.len(), expected.len());
    assert!(correlation(&audio.samples[6000..], &expected[6000..]) > 0.999);
}

#[test]
fn random_bytes_are_survived() {
    let mut random = Random(42);
    let magics: [&[u8]; 7] = [
        b"",
        b"RIFF\xff\xff\xff\xffWAVEfmt ",
        b"OggS\0\x02",
        b"fLaC\0\0\0\x22",
        b"ID3\x04\0\0",
        b"\xff\xfb\x90\x64",
        b"ftypM4A ",
    ];
    for magic in magics {
        for _ in 0..40 {
            let mut bytes = magic.to_vec();
            bytes.extend((0..random.below(20_000)).map(|_| random.next() as u8));
            check(decode_bytes(bytes, "noise"), "noise");
        }
    }
}

#[test]
fn absurd_headers_are_rejected() {
    let header = |rate, n_channels, n_data| {
        let mut file = wav_header(rate, n_channels, 1, 2, n_data);
        file.extend_from_slice(&[1; 4000]);
        decode_bytes(file, "absurd.wav")
    };
    for rate in [0, 1, 999, 768_001, u32::MAX] {
        let error = header(rate, 1, 4000).unwrap_err();
        assert!(matches!(error, Error::SampleRate { found, .. } if found == rate), "{rate}: {error}");
    }
    assert!(header(16_000, 0, 4000).is_err());
    // 65535 channels of 2 bytes: no frame fits.
    assert!(header(16_000, u16::MAX, 4000).is_err());
    // A length that is too large means a truncated file, unless recorders write it for "unknown".
    let long = header(16_000, 1, 0x7ffe_ffff).unwrap();
    assert_eq!(long.samples.len(), 2000);
    assert!(long.damage.unwrap().truncated);
}
